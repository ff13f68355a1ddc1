"""`cutlass_api.bench.limits` on GPUs that torch pretends to have."""

import json
from types import SimpleNamespace

import pytest
import torch
from cutlass_api import _core
from cutlass_api.bench import gemm, limits, results, timing
from cutlass_api.bench.products import Shape
from cutlass_api.bench.types import TYPES
from support.benches import Clock, replace_graphs, run, use_the_cpu


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


def test_peaks_follow_from_the_attributes() -> None:
    h100, a100 = limits.peak_rates(90), limits.peak_rates(80)
    # H100 whitepaper, "Preliminary performance": dense, at 1830 MHz for tensor cores but float64.
    assert limits.type_peak(h100, "bfloat16") == pytest.approx(989.4e12 * 1980 / 1830, rel=1e-3)
    # Dense int8 and float8: 1979 Tera operations.
    for dtype in ("int8", "uint8", "float8_e4m3fn", "float8_e5m2"):
        assert limits.type_peak(h100, dtype) == 2 * limits.type_peak(h100, "float16"), dtype
    assert limits.type_peak(h100, "tf32") == limits.type_peak(h100, "float16") / 2
    assert (
        limits.type_peak(h100, "float32")
        == limits.type_peak(h100, "float64")
        == pytest.approx(66.9e12, rel=1e-3)
    )
    assert (h100["multiprocessors"], h100["l2_bytes"]) == (132, 50 << 20)
    assert h100["memory_bytes_per_second"] == pytest.approx(3.352e12, rel=1e-3)
    # A100 whitepaper, "Introducing NVIDIA A100".
    rates = {"float16": 312e12, "tf32": 156e12, "float32": 19.5e12, "float64": 19.5e12}
    for dtype, rate in rates.items():
        assert limits.type_peak(a100, dtype) == pytest.approx(rate, rel=1e-2), dtype


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
            least = limits.sets_beyond_l2(one_set, limits.WEIGHT_BYTES)
            assert least * one_set >= limits.WEIGHT_BYTES or least == 200
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


def test_rates_are_those_of_the_medians(gpu, monkeypatch) -> None:
    """On the CPU, with a clock for the launches: of a product, and of the faster copy."""
    use_the_cpu(monkeypatch)
    monkeypatch.setattr(limits, "TENSOR_EXTENT", 16)
    monkeypatch.setattr(limits, "EXTENT", 8)
    monkeypatch.setattr(limits, "COPIED_BYTES", 1 << 12)
    precisions, times = [], iter([1e6] * 5 + [3.0, 2.0])

    class Slow(Clock):
        def turn(self) -> float:
            precisions.append(torch.get_float32_matmul_precision())
            return super().turn()

    monkeypatch.setattr(limits, "repeated", lambda launch, seconds: Slow(next(times), [launch]))
    rates = [limits.product_rate(dtype) for dtype in limits.DTYPES]
    assert rates == [2 * 16**3] * 3 + [2 * 8**3] * 2
    assert [name == "high" for name in precisions] == [
        dtype == "tf32" for dtype in limits.DTYPES for _ in range(timing.ROUNDS)
    ]
    assert limits.copy_rate() == pytest.approx(2 * 4096 / 2e-6)


def test_the_command(gpu, monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(limits, "product_rate", lambda dtype: 5e14)
    monkeypatch.setattr(limits, "copy_rate", lambda: 2.5e12)
    smi = SimpleNamespace(returncode=0, stdout="570.1, 1980 MHz, 1755 MHz, [N/A], 700.00 W\n")
    monkeypatch.setattr(limits.shutil, "which", lambda name: "/bin/nvidia-smi")
    monkeypatch.setattr(limits.subprocess, "run", lambda command, **options: smi)
    path = tmp_path / "limits.json"
    run(monkeypatch, "bench", "limits", "--json", path)
    read = json.loads(path.read_text())
    assert read["copy_rate"] == 2.5e12 and set(read["product_rates"]) == set(limits.DTYPES)
    assert read["smi"]["driver"] == "570.1" and "memory clock" not in read["smi"]
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if "memory" in line]
    assert line.split() == ["memory", "3.35", "2.50", "TB/s"]
    (line,) = [line for line in shown.splitlines() if "bfloat16 products" in line]
    assert line.split() == ["bfloat16", "products", "1071", "500", "TFLOP/s"]
    assert "power limit: 700.00 W" in shown


def test_a_row_of_gemm(gpu, monkeypatch, tmp_path) -> None:
    """On the CPU, where each launch runs once: the reference takes half of torch's time."""
    use_the_cpu(monkeypatch)
    times = iter([5.0, 10.0])
    replace_graphs(monkeypatch, lambda launches: Clock(next(times), launches))
    monkeypatch.setattr(limits, "product_rate", lambda dtype: 1e12)
    monkeypatch.setattr(limits, "copy_rate", lambda: 1e9)
    shapes, path = tmp_path / "shapes.json", tmp_path / "rows.json"
    shapes.write_text('{"small": {"layout": "tn", "mnk": [[8, 16, 24]]}}')
    run(monkeypatch, "bench", "gemm", "--shapes", shapes, "--dtype", "float32", "--json", path)
    read = json.loads(path.read_text())
    (row,) = read["rows"]
    assert (row["torch"], row["first"], row["best"], row["kernels"]) == (10, 5, 5, 1)
    assert row["floor"] == pytest.approx(1e6 * 4 * (8 * 16 + 8 * 24 + 16 * 24) / 1e9)
    assert row["quartiles"] == {"torch": [10, 10], "first": [5, 5], "best": [5, 5]}
    assert read["geometric_means"]["torch / first"] == pytest.approx(2)
    assert read["limits"]["product_rates"] == {"float32": 1e12}


@pytest.mark.parametrize("dtype", TYPES)
def test_a_row_of_every_type(gpu, monkeypatch, tmp_path, dtype) -> None:
    """Where torch has no product, the row has no time of torch, and no mean of ratios."""
    use_the_cpu(monkeypatch)
    replace_graphs(monkeypatch, lambda launches: Clock(5.0, launches))
    monkeypatch.setattr(limits, "product_rate", lambda dtype: 1e12)
    monkeypatch.setattr(limits, "copy_rate", lambda: 1e9)
    path, plot = tmp_path / "rows.json", tmp_path / "plot.png"
    options = ["--shape", "32,48,64", "16,16,16", "--layout", "tn", "--dtype", dtype]
    run(monkeypatch, "bench", "gemm", *options, "--json", path, "--plot", plot)
    read = json.loads(path.read_text())
    assert [(row["mnk"], row["layout"]) for row in read["rows"]] == [
        ([32, 48, 64], "tn"),
        ([16, 16, 16], "tn"),
    ]
    has_torch = dtype != "uint8"  # on the CPU
    for row in read["rows"]:
        assert row["dtype"] == dtype and row["first"] == 5 and row["floor"] > 0
        assert row["torch"] == (5 if has_torch else None)
    assert ("torch / first" in read["geometric_means"]) == has_torch
    assert results.parse(read, results.BENCHES).table()[1] and plot.exists()


def test_tune_takes_shapes_and_every_type(monkeypatch, tmp_path, capsys) -> None:
    use_the_cpu(monkeypatch)
    seen = []

    def autotune(args, **options):
        seen.append(args)
        raise KeyboardInterrupt

    monkeypatch.setattr("cutlass_api.tuning.autotune", autotune)
    for dtype, of in TYPES.items():
        with pytest.raises(SystemExit, match="stopped: the results of 0 shapes are stored"):
            run(monkeypatch, "tune", "--shape", "8,16,24", "--layout", "nt", "--dtype", dtype)
        A, B, out = seen[-1].A, seen[-1].B, seen[-1].out
        assert (A.shape, B.shape, out.shape) == ((8, 24), (24, 16), (8, 16))
        assert (A.stride, B.stride) == ((1, 8), (16, 1))
        names = [str(operand.element_type) for operand in (A, B, out)]
        assert names == [of.element, of.element, of.output]


def test_types_are_those_of_kernels() -> None:
    served = {element.name for element in _core.ELEMENT_TYPES if element.accumulators}
    assert TYPES.keys() == served | {"tf32"}


def test_no_shape_that_is_left_is_an_error(gpu, monkeypatch, tmp_path) -> None:
    grouped = tmp_path / "grouped.json"
    grouped.write_text('{"experts": {"layout": "tn", "total_m_n_k_groups": [[64, 16, 16, 2]]}}')
    for command in (["bench", "gemm"], ["tune"]):
        with pytest.raises(SystemExit, match=r"no shape is left: .*; pass --dtype bfloat16"):
            run(monkeypatch, *command, "--shapes", grouped)
        with pytest.raises(SystemExit, match="--layout is of --shape; a table has the layouts"):
            run(monkeypatch, *command, "--shapes", grouped, "--layout", "tn")


def test_gemm_passes_its_limits_on(gpu, monkeypatch) -> None:
    """The floor of a row is that of this device, whose rates are measured before."""
    seen = []
    monkeypatch.setattr(limits, "product_rate", lambda dtype: 7e14)
    monkeypatch.setattr(limits, "copy_rate", lambda: 3e12)
    monkeypatch.setattr(gemm, "measure_row", lambda *arguments: seen.append(arguments))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = limits.Limits()
    shape = Shape("small", 1, 2, 3)
    assert list(gemm.measure([shape], ["float16"], found)) == [None]
    assert seen[0][0] is shape and seen[0][-1] is found
    assert found.entries()["product_rates"] == {"float16": 7e14}
