"""`cutlass_api.bench.limits` on GPUs that torch pretends to have."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from cutlass_api import __main__, _core
from cutlass_api._commands import common
from cutlass_api.bench import gemm, limits


@pytest.fixture
def gpu(monkeypatch):
    """Pretends a GPU with the rates of a typical chip, and others instead of some."""

    def pretend(cc: int = 90, **others: float) -> None:
        found = _core.chip_rates(cc=cc) | others
        monkeypatch.setattr(limits, "peak_rates", lambda: found)
        properties = SimpleNamespace(uuid="a-b")
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)

    pretend()
    return pretend


def peak(rates: limits.Rates, dtype: str) -> float:
    unit, share = limits.UNITS[dtype]
    return share * limits.peak(rates, unit)


def test_peaks_follow_from_the_attributes() -> None:
    h100, a100 = limits.peak_rates(90), limits.peak_rates(80)
    # H100 whitepaper, "Preliminary performance": dense, at 1830 MHz for tensor cores but float64.
    assert peak(h100, "bfloat16") == pytest.approx(989.4e12 * 1980 / 1830, rel=1e-3)
    assert peak(h100, "tf32") == peak(h100, "float16") / 2
    assert peak(h100, "float32") == peak(h100, "float64") == pytest.approx(66.9e12, rel=1e-3)
    assert (h100["multiprocessors"], h100["l2_bytes"]) == (132, 50 << 20)
    assert h100["memory_bytes_per_second"] == pytest.approx(3.352e12, rel=1e-3)
    # A100 whitepaper, "Introducing NVIDIA A100".
    rates = {"float16": 312e12, "tf32": 156e12, "float32": 19.5e12, "float64": 19.5e12}
    for dtype, rate in rates.items():
        assert peak(a100, dtype) == pytest.approx(rate, rel=1e-2), dtype


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests the message without a GPU")
def test_without_a_device_rates_are_an_error(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(RuntimeError):
        limits.peak_rates()


def test_sets_of_operands_exceed_twice_this_l2(gpu) -> None:
    for size in (50 << 20, 126 << 20):
        gpu(l2_bytes=size)
        for one_set in (2 << 20, 10 << 20, 1 << 30):
            assert limits.sets_beyond_l2(one_set) * one_set > 2 * size
    assert limits.sets_beyond_l2(1 << 30) == 2 and limits.sets_beyond_l2(1) == 200


def test_a_floor_is_the_longer_of_arithmetic_and_traffic(gpu, monkeypatch) -> None:
    measured = []

    def product_rate(dtype: str) -> float:
        measured.append(dtype)
        return 7e14

    monkeypatch.setattr(limits, "product_rate", product_rate)
    monkeypatch.setattr(limits, "copy_rate", lambda: 3e12)
    found = limits.Limits()
    assert found.floor("float16", 7e9, 3e6) == pytest.approx(10)
    assert found.floor("float16", 7e9, 6e7) == pytest.approx(20)
    assert measured == ["float16"], "a rate is measured once"
    assert found.entries()["product_rates"] == {"float16": 7e14}


class Slow:
    """Replaces a stream: each product takes a second."""

    median = 1e6

    def __init__(self, launch, calls: int) -> None:
        self.calls = calls
        launch()

    def warm_up(self) -> None: ...

    def turn(self) -> float:
        return self.median


def test_the_rate_of_a_product(gpu, monkeypatch) -> None:
    """On the CPU, with a clock for the launches."""
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape, device, dtype: randn(*shape, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(limits, "TENSOR_EXTENT", 16)
    monkeypatch.setattr(limits, "EXTENT", 8)
    monkeypatch.setattr(limits, "Stream", Slow)
    assert [limits.product_rate(dtype) for dtype in limits.DTYPES] == [2 * 16**3] * 3 + [
        2 * 8**3
    ] * 2


def test_the_command(gpu, monkeypatch, tmp_path, capsys) -> None:
    precisions = {}

    def product_rate(dtype: str) -> float:
        precisions[dtype] = torch.get_float32_matmul_precision()
        return 5e14

    monkeypatch.setattr(common, "device", lambda: "a GPU")
    monkeypatch.setattr(limits, "product_rate", product_rate)
    monkeypatch.setattr(limits, "copy_rate", lambda: 2.5e12)
    smi = SimpleNamespace(returncode=0, stdout="570.1, 1980 MHz, 1755 MHz, [N/A], 700.00 W\n")
    monkeypatch.setattr(limits.shutil, "which", lambda name: "/bin/nvidia-smi")
    monkeypatch.setattr(limits.subprocess, "run", lambda command, **options: smi)
    path = tmp_path / "limits.json"
    monkeypatch.setattr(sys, "argv", ["cutlass_api", "bench", "limits", "--json", str(path)])
    __main__.main()
    assert (precisions["tf32"], precisions["float32"]) == ("high", "highest")
    read = json.loads(path.read_text())
    assert read["copy_rate"] == 2.5e12 and set(read["product_rates"]) == set(limits.DTYPES)
    assert read["smi"]["driver"] == "570.1" and "memory clock" not in read["smi"]
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if "memory" in line]
    assert line.split() == ["memory", "3.35", "2.50", "TB/s"]
    (line,) = [line for line in shown.splitlines() if "bfloat16 products" in line]
    assert line.split() == ["bfloat16", "products", "1071", "500", "TFLOP/s"]
    assert "power limit: 700.00 W" in shown


def test_gemm_passes_its_limits_on(gpu, monkeypatch) -> None:
    """The floor of a row is that of this device, whose rates are measured before."""
    seen = []
    monkeypatch.setattr(limits, "product_rate", lambda dtype: 7e14)
    monkeypatch.setattr(limits, "copy_rate", lambda: 3e12)
    monkeypatch.setattr(gemm, "measure_row", lambda *arguments: seen.append(arguments))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = limits.Limits()
    shape = gemm.Shape("small", 1, 2, 3)
    gemm.measure([shape], ["float16"], lambda row: None, found)
    assert seen[0][0] is shape and seen[0][-1] is found
    assert found.entries()["product_rates"] == {"float16": 7e14}
