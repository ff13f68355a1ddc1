"""Plots of benchmarks and of notebooks: no label lies over a value, a line or the frame."""

import json
from types import SimpleNamespace

import pytest
import torch
from cutlass_api.bench import ladder, limits, report
from cutlass_api.bench import results as reader
from support import benches
from support.benches import ROOT
from support.notebooks import NOTEBOOKS, code_cells

from benchmarks import suite

plt = pytest.importorskip("matplotlib.pyplot")
plots = pytest.importorskip("support.plots")


@pytest.fixture
def checked(monkeypatch):
    """What overlaps in the plots that `report.figure` writes, by benchmark, as they are written."""
    found = []
    close = plt.close
    monkeypatch.setattr(plt, "close", lambda drawn: found.append(plots.overlaps(drawn)))
    yield found
    monkeypatch.setattr(plt, "close", close)
    plt.close("all")


@pytest.mark.parametrize("name", benches.results())
def test_labels_of_a_benchmark_are_free(checked, tmp_path, name) -> None:
    document = benches.results()[name]
    reader.parse(document, suite.BENCHES).plot(tmp_path / "plot.png")
    assert checked == [[]]


@pytest.mark.parametrize("name", ["gemm", "latency", "ladder"])
def test_labels_of_saved_results_are_free(checked, tmp_path, name) -> None:
    document = reader.load(ROOT / f"benchmarks/{name}_h200.json")
    reader.parse(document, suite.BENCHES).plot(tmp_path / "plot.png")
    assert checked == [[]]


def test_ratios_near_one_are_free_of_the_line(checked, tmp_path) -> None:
    ratios = [(f"row {at}", 0.9 + at / 100) for at in range(20)]
    report.write_ratios(tmp_path / "plot.png", "ratios", ratios, "torch's time / ours")
    assert checked == [[]]


@pytest.mark.parametrize("cc", [80, 90, 100, 120])
def test_the_roofline_of_a_chip_is_free(cc) -> None:
    figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
    ladder.draw_roofline(axes, limits.peak_rates(cc), [])
    assert plots.overlaps(figure) == []
    plt.close(figure)


KERNELS = [
    f"sm90_gemm_f16xf16_f32_f16_ttt_{tile}_pingpong2_5stages_cluster2x1" for tile in range(6)
]
STEPS = ("a torch operator", "the same, fused", "sum of squares of each row")
METHODS = ("eager", "torch.compile", "torch.compile and cutlass_api")
#: Names that the cell of a plot reads, and a GPU's results in them.
NAMES = {
    "000_gemm": {
        "times": dict(
            zip(("torch.mm", *KERNELS), (0.18, 0.19, 0.2, 0.2, 0.3, 0.9, 13.0), strict=True)
        ),
        **{name: 4096 for name in "MNK"},
    },
    "001_fused_epilogues": {
        "times": {(of, by): 190.0 + len(of) for of in STEPS for by in ("torch", "fused")},
        **{name: 4096 for name in "MNK"},
    },
    "002_bring_your_own_kernel": {
        "measured": {
            "square": dict(
                zip(("torch.square(x)", "x * x", "cuda_kernel, fours"), (3, 2.9, 3.01), strict=True)
            ),
            "mean": dict(zip(("torch.mean(x)", "Triton, then torch"), (2.81, 2.89), strict=True)),
        },
    },
    "003_host_latency": {
        "results": {"GemmArguments": 1.12, "torch.mm(a, b, out=out)": 21.7, "20 launches": 67.07},
        "EXTENT": 128,
    },
    "006_torch_compile": {
        "methods": {method: lambda x: None for method in METHODS},
        "inputs": dict.fromkeys((1, 16, 64, 256, 2048)),
        "statistics": SimpleNamespace(median=lambda values: 1234.5),
        "hidden": 4096,
        "intermediate": 11008,
        "dtype": torch.bfloat16,
        "name": "NVIDIA H100 80GB HBM3",
        "on_gpu": False,
        "time": SimpleNamespace(perf_counter=lambda: 0.0),
    },
}


@pytest.mark.parametrize("stem", NAMES)
def test_labels_of_a_notebook_are_free(monkeypatch, stem) -> None:
    (path,) = [path for path in NOTEBOOKS if path.stem == stem]
    sources = ["".join(cell["source"]) for cell in code_cells(path).values()]
    (source,) = [source for source in sources if "plt.show()" in source]
    found = []
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(plt, "show", lambda: found.append(plots.overlaps(plt.gcf())))
    exec(source, {"torch": torch, "plt": plt, **NAMES[stem]})
    plt.close("all")
    assert found == [[]]


def test_the_notebook_of_the_ladder_shows_free_labels() -> None:
    saved = json.loads((ROOT / "benchmarks/ladder_h200.json").read_text())
    rows = [ladder.Row(**row) for row in saved["rows"]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.2), layout="constrained")
    ladder.draw_bars(left, rows)
    ladder.draw_roofline(right, saved["rates"], rows)
    assert plots.overlaps(figure) == []
    plt.close(figure)


def test_overlaps_are_found() -> None:
    figure, axes = plt.subplots(layout="constrained")
    bars = axes.barh(["a", "b"], [1.0, 2.0], label="bars")
    axes.bar_label(bars, fmt="%.2f")
    axes.axvline(1.02)
    axes.legend(loc="upper left")
    axes.set_title("a title " * 30)
    axes.set_xlim(0, 2)
    found = plots.overlaps(figure)
    plt.close(figure)
    for wrong in ("'1.00' over a line", "'2.00' crosses the frame", "legend over a bar", "title"):
        assert any(wrong in each for each in found), (wrong, found)
