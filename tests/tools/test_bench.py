"""`python -m cutlass_api bench`: its report, and its message on a machine without a GPU."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace

import cutlass_api
import pytest
import torch
from cutlass_api import __main__
from cutlass_api._commands import common
from cutlass_api.bench import bandwidth, gemm, limits, llama, quantize, report
from torch._subclasses.fake_tensor import FakeTensorMode

ROWS = [
    report.Row("bare", 2.0, 1.0, "a kernel"),
    report.Row("run", 2.5, 1.25),
    report.Row("graph", 41.0, math.nan),
]


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cutlass_api", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests the message without a GPU")
@pytest.mark.parametrize(
    "what",
    [
        "limits",
        "latency",
        "gemm",
        "ladder",
        "llama",
        "quantize",
        "compile",
        "tensor_parallel",
        "all",
    ],
)
def test_without_a_gpu_it_says_so(monkeypatch, what: str) -> None:
    monkeypatch.setattr(sys, "argv", ["cutlass_api", "bench", what])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert str(ended.value) == "this benchmark needs a CUDA GPU, but torch finds none"


@pytest.mark.parametrize("with_rich", [True, False])
def test_a_table_has_every_row(capsys, monkeypatch, with_rich: bool) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    if with_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    report.print_table("One GEMM", ROWS, "x floor")
    lines = capsys.readouterr().out.splitlines()
    assert "One GEMM" in lines[0] and any("x floor" in line for line in lines)
    for name, *cells in [
        ("bare", "2.00", "1.00", "a kernel"),
        ("run", "2.50", "1.25"),
        ("graph", "41.00"),
    ]:
        (line,) = [line for line in lines if f" {name} " in line]
        assert all(cell in line for cell in cells) and "nan" not in line


@pytest.mark.parametrize("with_rich", [True, False])
def test_a_row_is_one_line(capsys, monkeypatch, with_rich: bool) -> None:
    """Without a terminal, as here, rich assumes 80 columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if with_rich:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)
    kernel = "sm90_gemm_e4m3xe4m3_f32_bf16_tnt_128x256x128_pingpong_4stages_cluster2x1_packedA"
    row = llama.Row("fp8", 4096, (65536, 4096), 3e4, None, 2e4, 2e4, kernel, kernel, 15.0)
    report.print_cells("8-bit [products]", *llama.table([row] * 3))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == 5 and lines[0] == "8-bit [products]"
    assert all(line.endswith(kernel) and "fp8 4096x65536x4096" in line for line in lines[2:])


def test_json(tmp_path: Path) -> None:
    report.write_json(tmp_path / "rows.json", {"device": "a GPU"}, ROWS[:2])
    read = json.loads((tmp_path / "rows.json").read_text())
    assert read["device"] == "a GPU"
    assert [(row["name"], row["microseconds"], row["ratio"]) for row in read["rows"]] == [
        ("bare", 2, 1),
        ("run", 2.5, 1.25),
    ]


def test_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    report.write_bars(tmp_path / "rows.png", "One GEMM", ROWS)
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["gemm_h200", "latency_h200"])
def test_results_are_plotted_again(tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    results = Path(__file__).parents[2] / "benchmarks" / f"{name}.json"
    ended = bench("plot", results, tmp_path / "plot.png")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_other_files_are_not_plotted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shapes = Path(__file__).parents[2] / "benchmarks/public_shapes.json"
    ended = bench("plot", shapes, tmp_path / "plot.png")
    assert ended.returncode == 1
    assert (
        "public_shapes.json: no results of `bench latency`, `bench gemm`, `bench ladder`"
        in ended.stderr
    )


@pytest.mark.parametrize("name", ["public", "random", "other"])
def test_the_tables_of_shapes_are_read(name: str) -> None:
    path = Path(__file__).parents[2] / f"benchmarks/{name}_shapes.json"
    assert len(gemm.table(path)) > 30


def test_a_table_of_shapes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    path.write_text(
        json.dumps({"note": "two", "odd": {"layout": "tn", "mnk": [[1, 2, 3], [4, 5, 6]]}})
    )
    shapes = list(gemm.table(path))
    assert [(shape.m, shape.n, shape.k) for shape in shapes] == [(1, 2, 3), (4, 5, 6)]
    assert {shape.layout for shape in shapes} == {"tn"}


def refusal(capsys, monkeypatch, *arguments: str | Path) -> str:
    """The last line of the error for arguments that the command refuses before it needs a GPU."""
    monkeypatch.setattr(sys, "argv", ["cutlass_api", "bench", *map(str, arguments)])
    monkeypatch.setattr(common, "device", lambda: pytest.fail("it went on to measure"))
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("what", ["latency", "gemm"])
@pytest.mark.parametrize("option", ["--json", "--plot"])
def test_an_unwritable_output_is_refused_first(
    capsys, monkeypatch, tmp_path: Path, what: str, option: str
) -> None:
    if option == "--plot":
        pytest.importorskip("matplotlib")
    missing = tmp_path / "missing"
    said = refusal(capsys, monkeypatch, what, option, missing / "rows")
    assert said.endswith(f"argument {option}: the folder {missing} does not exist; create it")
    said = refusal(capsys, monkeypatch, what, option, tmp_path)
    assert said.endswith(
        f"argument {option}: {tmp_path} is not writable; choose a file in a writable folder"
    )


@pytest.mark.parametrize("what", ["latency", "gemm"])
def test_a_plot_without_matplotlib_is_refused_first(
    capsys, monkeypatch, tmp_path: Path, what: str
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = refusal(capsys, monkeypatch, what, "--plot", tmp_path / "rows.png")
    assert "argument --plot: " in said and "pip install matplotlib (or rutlass[bench])" in said


ROW = "it must be [m, n, k] in positive integers"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "cannot be read: No such file or directory"),
        ("mnk", "is no table of shapes in JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[[1, 2, 3]]", "[[1, 2, 3]] must be an object of groups by name"),
        ("{}", "it has no groups; add one with layout and mnk"),
        ('{"note": "none yet"}', "it has no groups; add one with layout and mnk"),
        (
            '{"a": [[1, 2, 3]]}',
            "group 'a' is [[1, 2, 3]]; it must be an object with layout and mnk",
        ),
        (
            '{"a": {"mkn": [[1, 2, 3]]}}',
            "group 'a' has no shapes; list them as mnk, lmnk or total_m_n_k_groups",
        ),
        (
            '{"a": {"layout": "tx"}}',
            "group 'a' has layout 'tx'; it must be two letters, t or n, for A and B",
        ),
        (
            '{"a": {"layout": "t"}}',
            "group 'a' has layout 't'; it must be two letters, t or n, for A and B",
        ),
        ('{"a": {"mnk": [[1, 2, 3], [1, 2]]}}', f"group 'a' has [1, 2] in mnk; {ROW}"),
        ('{"a": {"mnk": [1, 2, 3]}}', f"group 'a' has 1 in mnk; {ROW}"),
        ('{"a": {"mnk": 1}}', f"group 'a' has 1 in mnk; {ROW}"),
        ('{"a": {"mnk": [[1, 0, 3]]}}', f"group 'a' has [1, 0, 3] in mnk; {ROW}"),
        ('{"a": {"mnk": [[1, 2.5, 3]]}}', f"group 'a' has [1, 2.5, 3] in mnk; {ROW}"),
        ('{"a": {"mnk": [[true, 2, 3]]}}', f"group 'a' has [True, 2, 3] in mnk; {ROW}"),
        (
            '{"a": {"total_m_n_k_groups": [[1, 2, 3]]}}',
            "group 'a' has [1, 2, 3] in total_m_n_k_groups; "
            "it must be [total m, n, k, groups] in positive integers",
        ),
    ],
)
def test_a_wrong_table_of_shapes_is_refused_first(
    capsys, monkeypatch, tmp_path: Path, text, expected: str
) -> None:
    path = tmp_path / "shapes.json"
    if text is not None:
        path.write_text(text)
    said = refusal(capsys, monkeypatch, "gemm", "--shapes", path)
    assert f"argument --shapes: {path} " in said and said.endswith(expected)
    with pytest.raises(ValueError) as error:
        gemm.table(path)
    assert said.endswith(str(error.value))


@pytest.mark.timing
@pytest.mark.gpu
def test_latency_on_a_gpu(tmp_path: Path) -> None:
    ended = bench("latency", "--json", tmp_path / "latency.json")
    assert ended.returncode == 0, ended.stderr
    read = json.loads((tmp_path / "latency.json").read_text())
    times = {row["name"]: row["microseconds"] for row in read["rows"]}
    assert all(time > 0 for time in times.values())
    for name in (
        "native floor",
        "an empty statement",
        "run, assumed",
        "run, checks",
        "GemmArguments(...)",
        "CUDA graph of",
    ):
        assert any(known.startswith(name.replace("assumed", "assume")) for known in times), name
    assert times["cutlass_api.matmul(a, b, out=c)"] < times["torch.mm(a, b, out=c)"]


@pytest.mark.gpu
def test_gemm_on_a_gpu(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.json"
    shapes.write_text(
        json.dumps({"small": {"layout": "tt", "mnk": [[256, 256, 256], [100, 101, 102]]}})
    )
    ended = bench(
        "gemm", "--shapes", shapes, "--dtype", "bfloat16", "--json", tmp_path / "gemm.json"
    )
    assert ended.returncode == 0, ended.stderr
    read = json.loads((tmp_path / "gemm.json").read_text())
    assert [row["mnk"] for row in read["rows"]] == [[256, 256, 256], [100, 101, 102]]
    for row in read["rows"]:
        assert row["dtype"] == "bfloat16"
        assert 0 < row["best"] <= row["first"] < 1000 and row["torch"] > 0 and row["kernels"] > 1
    assert set(read["geometric_means"]) >= {"torch / first", "torch / best", "first / best"}


class Clock:
    """Replaces a graph: a kernel of this duration, on a chip that slows down under load."""

    turns = 0

    def __init__(self, microseconds: float) -> None:
        self.microseconds, self.times = microseconds, []
        self.replayed = False

    def warm_up(self, seconds: float = 0) -> None:
        self.times.clear()

    def turn(self) -> float:
        first = 1 if self.replayed else 5
        self.times.append(first * self.microseconds * min(1 + Clock.turns / 2000, 1.15))
        self.replayed = True
        Clock.turns += 1
        return self.times[-1]

    median = gemm.Timed.median


def test_the_fastest_are_found_on_a_chip_that_slows_down(monkeypatch) -> None:
    monkeypatch.setattr(Clock, "turns", 0)
    kernels = {
        str(at): Clock(60 - at / 2) for at in range(61)
    }  # from 60 to 30 us, the fastest last
    kernels["hopeless"] = Clock(100)
    rough, left = gemm.sift(kernels.items(), 5)
    assert set(left) == {"56", "57", "58", "59", "60"}
    assert list(rough) == list(kernels)
    assert all(left[name] is kernels[name] and len(left[name].times) > 4 for name in left)
    assert len(kernels["hopeless"].times) == 3 and rough["hopeless"] > 100
    assert gemm.sift([], 5) == ({}, {})
    few = {"a": Clock(10), "b": Clock(11)}
    assert set(gemm.sift(few.items(), 5)[1]) == {"a", "b"}


def test_the_rate_of_a_copy_is_that_of_the_faster_method(monkeypatch) -> None:
    """On the CPU, with a clock for each method."""
    monkeypatch.setattr(bandwidth, "COPIED_BYTES", 1 << 12)
    for name in ("randint", "empty_like"):
        create = getattr(torch, name)
        monkeypatch.setattr(
            torch,
            name,
            lambda *args, create=create, **options: create(
                *args, **options | ({"device": "cpu"} if "device" in options else {})
            ),
        )
    times = iter([3.0, 2.0])

    def clock(launch, calls: int) -> Clock:
        launch()
        return Clock(next(times))

    monkeypatch.setattr(bandwidth, "Stream", clock)
    monkeypatch.setattr(Clock, "turns", 10_000)
    assert bandwidth.copy_rate() == pytest.approx(2 * 4096 / (1.15 * 2e-6))


LLAMA = [
    llama.Row("int8", 16, (4096, 4096), None, None, 8.0, 7.5, "a", "b", 4.0),
    llama.Row("int8", 64, (12288, 4096), 30.0, 40.0, 20.0, 20.0, "a", "a", 15.0),
    llama.Row("int8", 256, (12288, 4096), 80.0, None, 20.0, 20.0, "a", "a", 15.0),
]


def test_the_summary_of_8_bit_products() -> None:
    # The small weight and the 256 rows are no reading of weights, and torch refuses 16 rows.
    assert llama.summary(LLAMA)["int8"] == {
        "torch / first": pytest.approx(math.sqrt(1.5 * 4)),
        "lowest": 1.5,
        "least share of reading the weights": 0.75,
    }


def test_the_table_of_8_bit_products_has_the_backends_that_were_timed() -> None:
    ours = ("first us", "best us", "torch/first", "read/first", "")
    header, cells = llama.table(LLAMA)
    assert header == ("product", "torch us", "Triton us", *ours)
    assert cells[0] == ("int8 16x4096x4096", "", "", "8.0", "7.5", "", "0.50", "a")
    assert cells[1][:5] == ("int8 64x12288x4096", "30.0", "40.0", "20.0", "20.0")
    assert llama.table([LLAMA[0], LLAMA[2]])[0] == ("product", "torch us", *ours)
    assert llama.table(LLAMA[:1])[0] == ("product", *ours)
    theirs = replace(LLAMA[0], operators=9.0)
    header, cells = llama.table([theirs])
    assert header[:3] == ("product", "cutlass.operators us", "first us") and cells[0][1] == "9.0"


class Turn:
    """Replaces a graph of launches that run at half of a copy's rate."""

    median = 100.0
    times = (100.0, 100.0, 100.0)

    def __init__(self, launches) -> None:
        for launch in launches:
            launch()

    def warm_up(self, seconds: float = 0) -> None: ...

    def turn(self) -> float:
        return self.median


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Runs ``bench llama`` on the CPU: small weights, each launch once, a constant time."""

    def on_cpu(create, *args, device=None, **options):
        return create(*args, **options)

    for name in ("empty", "rand", "randint", "randn"):
        monkeypatch.setattr(torch, name, partial(on_cpu, getattr(torch, name)))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(llama, "WEIGHTS", ((256, 128), (128, 256)))
    monkeypatch.setattr(limits, "l2_bytes", lambda: 1 << 15)
    monkeypatch.setattr(llama, "capture", lambda stream, launches: Turn(launches))
    monkeypatch.setattr(llama, "copy_rate", lambda: 1e12)
    monkeypatch.setattr(common, "device", lambda: "a GPU")


def run_llama(monkeypatch, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["cutlass_api", "bench", "llama", *map(str, arguments)])
    __main__.main()


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
    run_llama(monkeypatch, "--dtype", kind, "--rows", "4,20", "--json", path, "--plot", plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
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
    run_llama(monkeypatch, "--rows", "20", "--no-triton")
    assert "Triton" not in capsys.readouterr().out
    monkeypatch.setattr(llama, "find_spec", lambda name: None)
    run_llama(monkeypatch, "--rows", "20")
    assert "Triton" not in capsys.readouterr().out


def test_a_failure_of_triton_is_reported(monkeypatch, on_the_cpu, capsys) -> None:
    def compile(*args, **options):
        raise RuntimeError("no choices\nin many lines")

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(llama, "find_spec", lambda name: True)
    run_llama(monkeypatch, "--rows", "20")
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
    package.GemmArguments, package.get_operators = arguments, lambda args: [Operator()]
    parent.operators = package
    monkeypatch.setitem(sys.modules, "cutlass", parent)
    monkeypatch.setitem(sys.modules, "cutlass.operators", package)
    monkeypatch.setattr(gemm, "capture", lambda stream, launches: Turn(launches))
    for kind in ("int8", "mixed", "fp8"):
        run_llama(monkeypatch, "--dtype", kind, "--rows", "20", "--no-triton")
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


@pytest.mark.parametrize("found", [[], ValueError("unknown operation 'scale_blocks'")])
def test_an_8_bit_product_without_a_kernel_is_skipped(monkeypatch, found) -> None:
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
    skipped: list[str] = []
    rows = llama.measure(["fp8-block"], [16], pytest.fail, skipped.append)
    reason = str(found) if found else "no kernel serves these operands"
    assert rows == [] and len(skipped) == len(llama.WEIGHTS)
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
    llama.write_plot(tmp_path / "rows.png", "8-bit products", rows)
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


def test_8_bit_results_are_plotted_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    llama.write_json(tmp_path / "rows.json", {"device": "a GPU"}, LLAMA)
    ended = bench("plot", tmp_path / "rows.json", tmp_path / "rows.png")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


QUANTIZED = [(name, output) for name, of in quantize.HELPERS.items() for output in of.outputs]


@pytest.mark.parametrize(("helper", "output"), QUANTIZED)
def test_each_quantization_has_groups_of_these_extents(helper: str, output: str) -> None:
    x = torch.randn(256, 384)
    quantized, scales, *zeros = quantize.call(helper, x, output)
    assert quantized.dtype == getattr(torch, output) and quantized.shape == x.shape
    extents = [
        size if extent == -1 else extent
        for size, extent in zip(x.shape, quantize.HELPERS[helper].extents, strict=True)
    ]
    assert scales.numel() == (256 // extents[0]) * (384 // extents[1])
    assert [zero.numel() for zero in zeros] == [scales.numel()] * (output == "uint8")
    # In one pass: the input, the output and the scales. Only per_tensor has a second pass here.
    passes = 2 if helper == "per_tensor" else 1
    moved = quantize.moved_bytes(helper, tuple(x.shape), 4)
    written = sum(each.nbytes for each in (quantized, scales, *zeros))
    assert moved == 4 * passes * x.numel() + written


def test_what_does_not_fit_a_tile_is_read_again() -> None:
    # Tiles hold 64 KiB of a row and 2048 rows of a column. The last tile of a row is kept; longer
    # columns take two launches.
    assert quantize.moved_bytes("per_row", (10, 32768), 2) == 10 * (3 * 32768 + 4)
    assert quantize.moved_bytes("per_row", (10, 32768), 4) == 10 * (5 * 32768 + 4 * 16384 + 4)
    assert quantize.moved_bytes("per_column", (2048, 64), 2) == 64 * (3 * 2048 + 4)
    assert quantize.moved_bytes("per_column", (5000, 64), 2) == 64 * (5 * 5000 + 4)
    smallest = min(rows * columns for rows, columns in quantize.SHAPES)
    assert 2 * smallest >= 64 << 20, "an input does not fit into L2"


def test_quantization_is_compared_with_a_copy(monkeypatch, capsys, tmp_path: Path) -> None:
    """On the CPU, with small inputs and a constant time."""
    randn = torch.randn
    monkeypatch.setattr(torch, "randn", lambda *shape, device, dtype: randn(*shape, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(quantize, "SHAPES", ((128, 256),))
    monkeypatch.setattr(quantize, "capture", lambda stream, launches: Turn(launches))
    monkeypatch.setattr(quantize, "copy_rate", lambda: 4e9)
    monkeypatch.setattr(common, "device", lambda: "a GPU")
    path = tmp_path / "quantize.json"
    monkeypatch.setattr(sys, "argv", ["cutlass_api", "bench", "quantize", "--json", str(path)])
    __main__.main()
    read = json.loads(path.read_text())
    assert read["device"] == "a GPU" and read["copy_rate"] == 4e9
    assert len(read["rows"]) == 2 * len(QUANTIZED)
    assert {row["output"] for row in read["rows"]} == set(quantize.OUTPUTS)
    row = next(row for row in read["rows"] if row["helper"] == "per_row")
    assert row["bytes"] == 128 * (3 * 256 + 4)
    assert row["share"] == pytest.approx(row["bytes"] / (1e-4 * 4e9))
    table = capsys.readouterr().out.rpartition("Quantization (a GPU)")[2]
    assert "where a copy moves 0.00 TB/s" in table
    (shown,) = [line for line in table.splitlines() if "per_row, float32 to int8" in line]
    assert shown.split()[-4:] == ["256", "100.0", "0.000", f"{128 * (5 * 256 + 4) / 4e5:.1%}"]


def test_a_tensor_parallel_mlp_on_the_cpu(tmp_path: Path, monkeypatch) -> None:
    options = ["--device", "cpu", "--tokens", "1,3", "--extents", "32,64", "--rounds", "2"]
    ended = bench("tensor_parallel", *options, "--json", tmp_path / "rows.json")
    assert ended.returncode == 0, ended.stderr
    assert "MLP 32 x 64 in bfloat16, 2 ranks (the CPU)" in ended.stdout
    document = json.loads((tmp_path / "rows.json").read_text())
    rows = document["rows"]
    assert [row["tokens"] for row in rows] == [1, 3] and all(row["kernel"] > 0 for row in rows)
    ratios = [row["torch"] / row["ours"] for row in rows]
    assert document["summary"]["torch / ours"] == pytest.approx(math.sqrt(math.prod(ratios)))
    assert document["summary"]["lowest"] == min(ratios)
    refused = ["cutlass_api", "bench", "tensor_parallel", "--device", "cpu", "--extents", "32,63"]
    monkeypatch.setattr(sys, "argv", refused)
    with pytest.raises(SystemExit, match="the second a multiple of 2 ranks"):
        __main__.main()
