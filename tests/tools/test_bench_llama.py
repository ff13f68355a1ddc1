"""`bench llama` on the CPU: each backend, what it skips, its table and its plot."""

import json
import math
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cutlass_api
import pytest
import torch
from cutlass_api.bench import limits, llama, peers
from cutlass_api.weights import Float8
from support.benches import LLAMA, PNG, Clock, replace_graphs, run, use_the_cpu
from torch._subclasses.fake_tensor import FakeTensorMode

#: Of an element, with the scales.
BYTES = {"int4": 0.5 + 2 / 128, "mxfp4": 0.5 + 1 / 32, "nvfp4": 0.5 + 1 / 16}


def test_the_summary_of_8_bit_products() -> None:
    # The small weight and the 256 rows are no reading of weights, and torch refuses 16 rows.
    assert llama.Llama().summary(LLAMA)["int8"] == {
        "torch / first": pytest.approx(math.sqrt(1.5 * 4)),
        "lowest": 1.5,
        "least share of reading the weights": 0.75,
    }


def test_the_table_of_8_bit_products_has_the_backends_that_were_timed() -> None:
    ours = ("first us", "best us", "torch/first", "read/first", "")
    header, cells = llama.Llama().table(LLAMA)
    assert header == ["product", "torch us", "Triton us", *ours]
    assert cells[0] == ("int8 16x4096x4096", "", "", "8.0", "7.5", "", "0.50", "a")
    assert cells[1][:5] == ("int8 64x12288x4096", "30.0", "40.0", "20.0", "20.0")
    assert llama.Llama().table([LLAMA[0], LLAMA[2]])[0] == ["product", "torch us", *ours]
    assert llama.Llama().table(LLAMA[:1])[0] == ["product", *ours]
    theirs = replace(LLAMA[0], operators=9.0)
    header, cells = llama.Llama().table([theirs])
    assert header[:3] == ["product", "cutlass.operators us", "first us"] and cells[0][1] == "9.0"


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Small weights, each launch once, a constant time."""
    use_the_cpu(monkeypatch)
    replace_graphs(monkeypatch, lambda launches: Clock(100.0, launches))
    monkeypatch.setattr(llama, "WEIGHTS", ((256, 128), (128, 256)))
    monkeypatch.setattr(llama, "copy_rate", lambda: 1e12)


@pytest.mark.parametrize("kind", llama.KINDS)
def test_8_bit_products_are_timed_by_each_backend(
    monkeypatch, on_the_cpu, capsys, tmp_path: Path, kind: str
) -> None:
    """All launches run on the CPU, with the reference and without Inductor."""
    pytest.importorskip("matplotlib")
    compiled = []

    def scaled_mm(a, b, scale_a, scale_b, out_dtype, use_fast_accum):
        # Refuses scales of blocks, which do not broadcast. torch serves other scales by version.
        return ((a.float() * scale_a) @ (b.float() * scale_b)).to(out_dtype)

    def compile(function, dynamic):
        compiled.append(function)
        return function

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    monkeypatch.setattr(llama, "find_spec", lambda name: name == "triton")
    path, plot = tmp_path / "rows.json", tmp_path / "rows.png"
    run(
        monkeypatch,
        "bench",
        "llama",
        "--dtype",
        kind,
        "--rows",
        "4,20",
        "--json",
        path,
        "--plot",
        plot,
    )
    assert plot.read_bytes().startswith(PNG)
    rows = json.loads(path.read_text())["rows"]
    assert [(row["kind"], row["rows"], tuple(row["weight"])) for row in rows] == [
        (kind, count, weight) for count in (4, 20) for weight in llama.WEIGHTS
    ]
    for row in rows:
        served = kind != "fp8-block" and (kind != "int8" or row["rows"] > 16)
        assert (row["torch"] is not None) == served
        assert row["triton"] == row["torch"]
        assert row["first"] == row["best"] == 100.0 and "reference" in row["kernel"]
        assert row["operators"] is None
    assert len(compiled) == sum(row["torch"] is not None for row in rows)
    shown = capsys.readouterr().out
    assert ("Triton us" in shown) == bool(compiled) and "cutlass.operators" not in shown


def test_triton_is_left_out_of_8_bit_products(monkeypatch, on_the_cpu, capsys) -> None:
    monkeypatch.setattr(torch, "compile", lambda *args, **options: pytest.fail("timed Triton"))
    run(monkeypatch, "bench", "llama", "--rows", "20", "--no-triton")
    assert "Triton" not in capsys.readouterr().out
    monkeypatch.setattr(llama, "find_spec", lambda name: None)
    run(monkeypatch, "bench", "llama", "--rows", "20")
    assert "Triton" not in capsys.readouterr().out


def test_a_failure_of_triton_is_reported(monkeypatch, on_the_cpu, capsys) -> None:
    def compile(*args, **options):
        raise RuntimeError("no choices\nin many lines")

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(llama, "find_spec", lambda name: True)
    run(monkeypatch, "bench", "llama", "--rows", "20")
    shown = capsys.readouterr().out
    assert "int8 20x256x128: Triton fails: RuntimeError: no choices\n" in shown
    assert "Triton us" not in shown and "torch us" in shown


def test_operators_time_8_bit_products(monkeypatch, on_the_cpu, capsys) -> None:
    """A package that serves int8, in place of ``cutlass.operators``."""

    class Operator:
        def compile(self, args):
            return "artifact"

        def run(self, args, artifact, stream):
            assert artifact == "artifact"
            torch.mm(args.a.int(), args.b.int(), out=args.out)

    def arguments(a, b, out, accumulator_type):
        if accumulator_type is not torch.int32:
            raise TypeError(accumulator_type)
        return SimpleNamespace(a=a, b=b, out=out)

    package, parent = ModuleType("cutlass.operators"), ModuleType("cutlass")
    package.GemmArguments, package.available_providers = arguments, {}
    package.get_operators = lambda args, providers: [Operator()]
    parent.operators = package
    monkeypatch.setitem(sys.modules, "cutlass", parent)
    monkeypatch.setitem(sys.modules, "cutlass.operators", package)
    for kind in ("int8", "mixed", "fp8"):
        run(monkeypatch, "bench", "llama", "--dtype", kind, "--rows", "20", "--no-triton")
        assert ("cutlass.operators us" in capsys.readouterr().out) == (kind == "int8")


@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("kind", llama.KINDS)
def test_operands_of_8_bit_products(monkeypatch, kind: str, rows: int) -> None:
    """Tensors without memory, on a device that is not there."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(limits, "l2_bytes", lambda: 50 << 20)
    n, k = 384, 11008  # of which K has 86 blocks
    with FakeTensorMode():
        operands = llama.Operands(kind, rows, (n, k))
        a, b, out, *scales = operands.sets[0]
        assert (a.shape, b.shape, out.shape) == ((rows, k), (k, n), (rows, n))
        assert b.stride() == (1, k)
        if kind == "fp8-block":
            assert [scale.shape for scale in scales] == [(rows, 86), (86, 3)]
            assert [scale.stride() for scale in scales] == [(1, rows), (1, 88)]
        theirs = operands.torch_method()
        if kind == "int8" and rows == 1:
            assert theirs is None
        else:
            function, sets = theirs
            product = function(*sets[0])
            assert (product.shape, product.dtype) == (out.shape, out.dtype)
        try:
            first, *_ = cutlass_api.get_kernels(operands.arguments()[0], cc=90)
        except ValueError:
            assert kind == "fp8-block"
        else:
            assert first.metadata.kernel_name.startswith(("sm90", "skinny"))


def test_weights_are_timed_beside_bfloat16(monkeypatch, on_the_cpu, capsys, tmp_path: Path) -> None:
    """All launches run on the CPU. One peer computes the product, the others fail in their ways."""
    monkeypatch.setattr(torch, "compile", lambda *args, **options: pytest.fail("timed Triton"))

    def fails(weight):
        raise RuntimeError("no kernel\nin many lines")

    def lacks(weight):
        raise peers.NotServed

    made = {
        "marlin": lambda weight: lambda x: x @ weight.dequantize().to(x.dtype).t(),
        "machete": lambda weight: lambda x: x.new_zeros(len(x), weight.shape[0]),
        "humming": fails,
        "gemlite": lacks,
    }
    for name, make in made.items():
        monkeypatch.setitem(peers.PEERS, name, (make, *peers.PEERS[name][1:]))
    monkeypatch.setattr(peers, "find_spec", lambda name: True)
    path = tmp_path / "rows.json"
    kinds = ("int4", "mxfp4", "nvfp4")
    run(monkeypatch, "bench", "llama", "--dtype", *kinds, "--rows", "4", "--json", path)
    rows = json.loads(path.read_text())["rows"]
    assert [row["kind"] for row in rows] == [kind for kind in kinds for _ in llama.WEIGHTS]
    for row in rows:
        assert row["torch"] == row["first"] == row["marlin"] == 100.0
        assert not any(row[name] for name in ("machete", "humming", "gemlite", "triton"))
        assert row["read"] == pytest.approx(1e6 * BYTES[row["kind"]] * 256 * 128 / 1e12, rel=1e-3)
    shown = capsys.readouterr().out
    assert "int4 4x256x128: machete fails: ValueError: its error is 1\n" in shown
    assert "int4 4x256x128: humming fails: RuntimeError: no kernel\n" in shown
    assert "marlin us" in shown and "gemlite" not in shown


def test_weights_of_other_extents(monkeypatch, on_the_cpu, tmp_path, capsys) -> None:
    path = tmp_path / "rows.json"
    command = ("bench", "llama", "--dtype", "uint4", "--rows", "4", "--json", path)
    run(monkeypatch, *command, "--weights", "64,96", "32,64")
    rows = json.loads(path.read_text())["rows"]
    assert [row["weight"] for row in rows] == [[64, 96], [32, 64]]
    with pytest.raises(SystemExit):
        run(monkeypatch, *command, "--weights", "64")
    assert "'64' must be N,K" in capsys.readouterr().err


def test_missing_packages_have_one_line_each(monkeypatch, on_the_cpu, capsys) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    run(monkeypatch, "bench", "llama", "--dtype", "int4", "--rows", "4,20")
    shown = capsys.readouterr().out
    for name, (_, package, _) in peers.PEERS.items():
        assert shown.count(f"{name}: skipped: the package {package} is not installed\n") == 1
    run(monkeypatch, "bench", "llama", "--rows", "20", "--no-triton")
    assert "skipped" not in capsys.readouterr().out


def test_weights_that_no_kernel_multiplies_are_skipped(monkeypatch, on_the_cpu, capsys) -> None:
    def refuses(weight):
        raise ValueError("no kernel multiplies it")

    monkeypatch.setattr(Float8, "__cutlass_operand__", refuses)
    run(monkeypatch, "bench", "llama", "--dtype", "fp8w", "--rows", "4")
    assert "fp8w 4x256x128: skipped: no kernel multiplies it\n" in capsys.readouterr().out


@pytest.mark.parametrize("found", [[], ValueError("unknown operation 'scale_blocks'")])
def test_an_8_bit_product_without_a_kernel_is_skipped(monkeypatch, capsys, found) -> None:
    class NoOperands:
        def __init__(self, *product) -> None: ...

        def arguments(self) -> list[None]:
            return [None]

    def get_kernels(args: None) -> list[cutlass_api.Kernel]:
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(llama, "Operands", NoOperands)
    monkeypatch.setattr(llama, "copy_rate", lambda: 1e12)
    monkeypatch.setattr(cutlass_api, "get_kernels", get_kernels)
    assert list(llama.measure(["fp8-block"], [16])) == []
    skipped = capsys.readouterr().out.splitlines()
    reason = str(found) if found else "no kernel serves these operands"
    assert len(skipped) == len(llama.WEIGHTS)
    assert skipped[0] == f"fp8-block 16x4096x11008: skipped: {reason}"


@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (LLAMA, ["torch", "Triton", "Rutlass, ranked first"]),
        (LLAMA[::2], ["torch", "Rutlass, ranked first"]),
        ([replace(LLAMA[0], operators=9.0)], ["cutlass.operators", "Rutlass, ranked first"]),
    ],
)
def test_a_plot_of_8_bit_products_has_a_bar_for_each_backend(
    monkeypatch, tmp_path: Path, rows, labels
) -> None:
    figures = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(figures, "close", lambda figure: None)
    llama.Llama().plot(tmp_path / "rows.png", {"device": "a GPU"}, rows)
    axes = figures.gcf().axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == labels
    assert [len(bars) for bars in axes.containers] == [len(rows)] * len(labels)
    # The bars of a product lie side by side, around its tick.
    places = sorted(
        bar.get_x() + bar.get_width() / 2 for bars in axes.containers for bar in bars[:1]
    )
    assert sum(places) == pytest.approx(0, abs=1e-9)
    widths = {round(b - a, 6) for a, b in pairwise(places)}
    assert widths == {round(axes.containers[0][0].get_width(), 6)}
    monkeypatch.undo()
    figures.close("all")
