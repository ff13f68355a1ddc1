"""Commands of benchmarks: options, tables of shapes, and results as tables, JSON and plots."""

import json
import math
import sys
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch
from cutlass_api.bench import latency, llama, options, products, report, timing
from cutlass_api.bench import results as reader
from support import benches
from support.benches import PNG, ROOT, run

from benchmarks import suite

BENCHES = {bench.name: bench for bench in suite.BENCHES}


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests the message without a GPU")
@pytest.mark.parametrize("what", ["limits", *BENCHES, "all"])
def test_without_a_gpu_it_says_so(monkeypatch, what: str) -> None:
    is_own = what in ("compile", "tensor_parallel", "all")
    with pytest.raises(SystemExit) as ended:
        names = ["qwen3-8b"] if what == "model" else []
        run(monkeypatch, *([] if is_own else ["bench"]), what, *names, device=None)
    assert str(ended.value) == "this benchmark needs a CUDA GPU, but torch finds none"


@pytest.fixture(params=[True, False], ids=["rich", "plain"])
def with_rich(request, monkeypatch) -> None:
    """Without a terminal, as here, rich assumes 80 columns."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if request.param:
        pytest.importorskip("rich")
    else:
        monkeypatch.setitem(sys.modules, "rich.console", None)


def test_a_table_has_every_row(capsys, with_rich) -> None:
    rows = [
        latency.Row("bare", 2.0, 1.0, "a kernel"),
        latency.Row("run", 2.5, 1.25),
        latency.Row("graph", 41.0, math.nan),
    ]
    report.print_cells("One GEMM", *latency.Latency().table(rows))
    title, header, *lines = capsys.readouterr().out.splitlines()
    assert title.strip() == "One GEMM" and header.split() == ["us", "x", "floor"]
    cells = [" ".join(line.split()) for line in lines]
    assert cells == ["bare 2.00 1.00 a kernel", "run 2.50 1.25", "graph 41.00"]


def test_a_table_without_rows_says_so(capsys, with_rich) -> None:
    report.print_cells("One GEMM", *latency.Latency().table([]))
    assert capsys.readouterr().out == "One GEMM: no rows\n"


def test_a_row_is_one_line(capsys, with_rich) -> None:
    kernel = "sm90_gemm_e4m3xe4m3_f32_bf16_tnt_128x256x128_pingpong_4stages_cluster2x1_packedA"
    row = llama.Row("fp8", 4096, (65536, 4096), 3e4, None, 2e4, 2e4, kernel, kernel, 15.0)
    report.print_cells("8-bit [products]", *llama.Llama().table([row] * 3))
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == 5 and lines[0] == "8-bit [products]"
    assert all(line.endswith(kernel) and "fp8 4096x65536x4096" in line for line in lines[2:])


@pytest.mark.parametrize("name", BENCHES)
def test_results_are_written_read_and_plotted(monkeypatch, tmp_path: Path, name: str) -> None:
    """By the benchmark, and by `plot`, which only the checkout has for its own benchmarks."""
    pytest.importorskip("matplotlib")
    bench, document = BENCHES[name], benches.results()[name]
    rows = reader.parse(document, suite.BENCHES).rows
    path, plot = tmp_path / "rows.json", tmp_path / "rows.png"
    bench.write(path, {key: each for key, each in document.items() if key != "rows"}, rows)
    found = reader.parse(reader.load(path), suite.BENCHES)
    assert found.bench is bench and len(found.rows) == len(rows) == len(found.table()[1])
    assert json.loads(path.read_text())["rows"] == json.loads(json.dumps(document["rows"]))
    assert path.read_text().count("\n  {") == len(rows), "a row a line"
    run(monkeypatch, "plot", path, plot)
    assert plot.read_bytes().startswith(PNG)
    if bench in reader.BENCHES:
        plot.unlink()
        run(monkeypatch, "bench", "plot", path, plot)
        assert plot.read_bytes().startswith(PNG)
    else:
        with pytest.raises(
            SystemExit, match=r"rows.json: no results of `bench latency`, `bench gemm`"
        ):
            run(monkeypatch, "bench", "plot", path, plot)


@pytest.mark.parametrize("name", ["gemm", "latency", "ladder"])
def test_saved_results_are_plotted(monkeypatch, tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib")
    saved = ROOT / f"benchmarks/{name}_h200.json"
    run(monkeypatch, "bench", "plot", saved, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(PNG)
    assert report.to_json(json.loads(saved.read_text())) + "\n" == saved.read_text()


def test_a_plot_of_other_files_is_an_error(monkeypatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shapes = products.FOLDER / "public.json"
    with pytest.raises(SystemExit, match=r"public.json: no results of `bench latency`"):
        run(monkeypatch, "bench", "plot", shapes, tmp_path / "plot.png")


@pytest.mark.parametrize("name", products.TABLES)
def test_the_tables_of_shapes_are_read(name: str) -> None:
    assert len(products.table(name)) > 8


def test_a_table_of_shapes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    path.write_text(
        json.dumps({"note": "two", "odd": {"layout": "tn", "mnk": [[1, 2, 3], [4, 5, 6]]}})
    )
    shapes = list(products.table(str(path)))
    assert [(shape.m, shape.n, shape.k) for shape in shapes] == [(1, 2, 3), (4, 5, 6)]
    assert {shape.layout for shape in shapes} == {"tn"}


def refusal(capsys, monkeypatch, *arguments: str | Path) -> str:
    """The last line of the error for arguments that the command refuses before it needs a GPU."""
    monkeypatch.setattr(options, "device", lambda: pytest.fail("it went on to measure"))
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "bench", *arguments, device=None)
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


GROUPED, LETTERS = "total_m_n_k_groups", "it must be two letters, t or n, for A and B"
NAMES = f"the name of a table: {', '.join(products.TABLES)}"
ROW = "it must be [m, n, k] in positive integers"
GROUPED_ROW = "it must be [total m, n, k, groups] in positive integers"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, f"cannot be read: No such file or directory; pass a JSON file or {NAMES}"),
        ("mnk", "is no table of shapes in JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[[1, 2, 3]]", "[[1, 2, 3]] must be an object of groups by name"),
        ("{}", "it has no groups; add one with layout and mnk"),
        ('{"note": "none yet"}', "it has no groups; add one with layout and mnk"),
        ('{"a": [[1, 2, 3]]}', "'a' is [[1, 2, 3]]; it must be an object with layout and mnk"),
        ('{"a": {"mkn": [[1, 2, 3]]}}', "'a' has no shapes; list them as mnk, lmnk or " + GROUPED),
        ('{"a": {"layout": "tx"}}', f"group 'a' has layout 'tx'; {LETTERS}"),
        ('{"a": {"layout": "t"}}', f"group 'a' has layout 't'; {LETTERS}"),
        ('{"a": {"mnk": [[1, 2, 3], [1, 2]]}}', f"group 'a' has [1, 2] in mnk; {ROW}"),
        ('{"a": {"mnk": [1, 2, 3]}}', f"group 'a' has 1 in mnk; {ROW}"),
        ('{"a": {"mnk": 1}}', f"group 'a' has 1 in mnk; {ROW}"),
        ('{"a": {"mnk": [[1, 0, 3]]}}', f"group 'a' has [1, 0, 3] in mnk; {ROW}"),
        ('{"a": {"mnk": [[1, 2.5, 3]]}}', f"group 'a' has [1, 2.5, 3] in mnk; {ROW}"),
        ('{"a": {"mnk": [[true, 2, 3]]}}', f"group 'a' has [True, 2, 3] in mnk; {ROW}"),
        ('{"a": {"total_m_n_k_groups": [[1, 2, 3]]}}', f"[1, 2, 3] in {GROUPED}; {GROUPED_ROW}"),
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
        products.table(str(path))
    assert said.endswith(str(error.value))


@pytest.mark.timing
@pytest.mark.gpu
def test_latency_on_a_gpu(tmp_path: Path) -> None:
    ended = benches.ended("cutlass_api", "bench", "latency", "--json", tmp_path / "latency.json")
    assert ended.returncode == 0, ended.stderr
    read = json.loads((tmp_path / "latency.json").read_text())
    times = {row["name"]: row["microseconds"] for row in read["rows"]}
    assert all(time > 0 for time in times.values())
    names = ("native floor", "an empty statement", "run, assume", "run, checks", "GemmArguments(")
    for name in (*names, "CUDA graph of"):
        assert any(known.startswith(name) for known in times), name
    assert times["cutlass_api.matmul(a, b, out=c)"] < times["torch.mm(a, b, out=c)"]


@pytest.mark.gpu
def test_gemm_on_a_gpu(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.json"
    shapes.write_text(
        json.dumps({"small": {"layout": "tt", "mnk": [[256, 256, 256], [100, 101, 102]]}})
    )
    options = ["--shapes", shapes, "--dtype", "bfloat16", "--json", tmp_path / "gemm.json"]
    ended = benches.ended("cutlass_api", "bench", "gemm", *options)
    assert ended.returncode == 0, ended.stderr
    read = json.loads((tmp_path / "gemm.json").read_text())
    assert [row["mnk"] for row in read["rows"]] == [[256, 256, 256], [100, 101, 102]]
    for row in read["rows"]:
        assert row["dtype"] == "bfloat16"
        assert 0 < row["best"] <= row["first"] < 1000 and row["torch"] > 0 and row["kernels"] > 1
    assert set(read["geometric_means"]) >= {"torch / first", "torch / best", "first / best"}


class Heated:
    """Replaces a graph: a kernel of this duration, on a chip that slows down under load."""

    turns = 0

    def __init__(self, microseconds: float) -> None:
        self.microseconds, self.times = microseconds, []
        self.replayed = False

    def warm_up(self, seconds: float = 0) -> None:
        self.times.clear()

    def turn(self) -> float:
        first = 1 if self.replayed else 5
        self.times.append(first * self.microseconds * min(1 + Heated.turns / 2000, 1.15))
        self.replayed = True
        Heated.turns += 1
        return self.times[-1]

    median = timing.Timed.median


def test_the_fastest_are_found_on_a_chip_that_slows_down(monkeypatch) -> None:
    monkeypatch.setattr(Heated, "turns", 0)
    kernels = {
        str(at): Heated(60 - at / 2) for at in range(61)
    }  # from 60 to 30 us, the fastest last
    kernels["hopeless"] = Heated(100)
    rough, left = timing.sift(kernels.items(), 5)
    assert set(left) == {"56", "57", "58", "59", "60"}
    assert list(rough) == list(kernels)
    assert all(left[name] is kernels[name] and len(left[name].times) > 4 for name in left)
    assert len(kernels["hopeless"].times) == 3 and rough["hopeless"] > 100
    assert timing.sift([], 5) == ({}, {})
    few = {"a": Heated(10), "b": Heated(11)}
    assert set(timing.sift(few.items(), 5)[1]) == {"a", "b"}


@pytest.mark.parametrize("sets, launched", [(1, 8), (3, 9), (8, 8), (20, 20)])
def test_a_graph_has_several_launches_of_all_sets(monkeypatch, sets, launched):
    """Captures without a GPU: graphs and streams do nothing."""
    for name in ("CUDAGraph", "stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, mock.MagicMock())
    monkeypatch.setattr(timing, "between_events", lambda replay, replays: 9.0 * launched)
    calls = []
    launches = [partial(calls.append, at) for at in range(sets)]
    timed = timing.capture(mock.MagicMock(), launches)
    # The first one before, to be compiled.
    assert calls == [0, *(at % sets for at in range(launched))]
    assert timed.turn() == 9.0
    calls.clear()
    timing.capture(mock.MagicMock(), launches, least=1)
    assert calls == [0, *range(sets)]
