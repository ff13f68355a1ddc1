"""`bench experts`: what is timed, beside a baseline, and the limits."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import cutlass_api
import pytest
import torch
from cutlass_api.bench import experts, mixtures, results
from support.benches import CONTEXT, Clock, replace_graphs, run, use_the_cpu

import benchmarks.page

SMALL = mixtures.Mixture(hidden=160, inner=96, experts=6, top_k=2)
#: Products whose least number of tokens is above 1.
LARGE = ("weights", "fp8-block-up", "fp8-block-down")


def scaled_grouped_mm(a, b, scale_a, scale_b, offs, out_dtype):
    """torch's operator, which the CPU does not have."""
    a, b = a.float() * scale_a[:, None], b.float() * scale_b[:, None]
    return torch._grouped_mm(a.bfloat16(), b.bfloat16(), offs=offs).to(out_dtype)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(experts, "MIXTURES", {"small": SMALL})
    products = {
        name: replace(
            each,
            mixtures=("small",),
            least_tokens=8 if name in LARGE else 1,
            own_tokens=each.own_tokens and (12,),
        )
        for name, each in mixtures.PRODUCTS.items()
    }
    monkeypatch.setattr(experts, "PRODUCTS", products)
    monkeypatch.setattr(mixtures, "WEIGHT_BYTES", 0)
    monkeypatch.setattr(mixtures, "sets_beyond_l2", lambda *_: 2)
    monkeypatch.setattr(torch, "_scaled_grouped_mm", scaled_grouped_mm)


def comparison(name: str, tokens: int) -> mixtures.Comparison:
    return experts.PRODUCTS[name].compare(SMALL, tokens, "cpu")


@pytest.mark.parametrize("name", mixtures.PRODUCTS)
def test_products_are_those_of_the_baseline(name: str) -> None:
    torch.manual_seed(0)
    n = SMALL.hidden if "down" in name or name == "layer" else 2 * SMALL.inner
    shape = {
        "weights": (6, SMALL.hidden, n),
        "layer": (20, n),
        "masked-up": (6, 12, n),
        "masked-down": (6, 12, n),
    }.get(name, (40, n))
    tokens = 18 if name.startswith("masked") else 20
    compared = comparison(name, tokens)
    assert len(compared.baseline) == len(compared.ours) == (1 if name == "weights" else 2)
    assert compared.error() < experts.ERROR_LIMIT
    defined = slice(None) if compared.mask is None else compared.mask
    for expected, found in zip(compared.baseline, compared.ours, strict=True):
        assert found().shape == shape
        torch.testing.assert_close(found()[defined], expected()[defined], rtol=2e-2, atol=0.2)


def test_routing_repeats() -> None:
    for counts in (mixtures.routed, mixtures.uniform):
        assert counts(SMALL, 30).tolist() == counts(SMALL, 30).tolist()
    assert mixtures.routed(SMALL, 30).sum() == 60
    rank = mixtures.MIXTURES["deepseek-v3-rank"]
    found = mixtures.uniform(rank, 256)
    assert mixtures.capacity(rank, 256) == 16 and found.max() == 16 and found.min() == 0
    assert len(found) == 32


def test_rows_that_are_not_computed_do_not_count(monkeypatch) -> None:
    def product(a, b, counts):
        out = cutlass_api.masked_grouped_mm(a, b, counts)
        for rows, count in zip(out, counts, strict=True):
            rows[int(count) :] = torch.nan
        return out

    fake = type("Fake", (), {"masked_grouped_mm": staticmethod(product)})
    monkeypatch.setattr(mixtures, "cutlass_api", fake)
    assert comparison("masked-up", 18).error() < experts.ERROR_LIMIT


def test_limits() -> None:
    elements = 160 * 96
    # Two experts are read, and the gradients of all are written, 1 byte a us.
    read = {
        "up": 2 * 2 * 2 * elements,
        "layer": 2 * 2 * 3 * elements,
        "weights": 2 * 6 * 2 * elements,
        "fp8-down": 2 * elements,
        "fp8-block-up": 2 * 2 * elements,
        # 4 bits, and a scale of 8 for 32 elements.
        "mxfp4-down": 2 * elements * 17 / 32,
    }
    for name, expected in read.items():
        assert comparison(name, 1).limit(1e6) == pytest.approx(expected), name
    # Two rows, and a multiplication and an addition for each element of a weight.
    for name, rate in (("down", 700e12), ("fp8-down", 1400e12), ("mxfp4-down", 700e12)):
        assert comparison(name, 1).limit(1e30) == pytest.approx(1e6 * 2 * 2 * elements / rate)
    counts = mixtures.uniform(SMALL, 3)
    assert 0 < (counts > 0).sum() < 6, "an expert without rows"
    masked = comparison("masked-down", 3)
    assert masked.limit(1e6) == pytest.approx(2 * int((counts > 0).sum()) * elements)
    assert masked.flop == 2 * int(counts.sum()) * elements


def test_sets_are_of_the_weights_that_are_read(monkeypatch) -> None:
    found = []
    monkeypatch.setattr(mixtures, "sets_beyond_l2", lambda size, _: found.append(size) or 1)
    for name in ("up", "fp8-up", "layer", "mxfp4-up"):
        comparison(name, 1)
    elements = 2 * 2 * 160 * 96
    assert found == [2 * elements, elements, 3 * elements, elements * 17 // 32]


def test_a_wrong_result_is_not_timed(monkeypatch) -> None:
    monkeypatch.setattr(mixtures, "composed", lambda *_: torch.ones(20, SMALL.hidden))
    with pytest.raises(ArithmeticError, match="small 20 layer: the error is"):
        list(experts.measure(["small"], ["layer"], [20], 1e12, "cpu"))


def test_products_are_timed_for_their_mixtures(monkeypatch) -> None:
    only = replace(experts.PRODUCTS["up"], mixtures=("other",))
    monkeypatch.setitem(experts.PRODUCTS, "up", only)
    assert list(experts.measure(["small"], ["up"], [20], 1e12, "cpu")) == []
    for each in mixtures.PRODUCTS.values():
        assert set(each.mixtures) <= set(mixtures.MIXTURES)


def test_command(monkeypatch, capsys, tmp_path: Path) -> None:
    """On the CPU, with a constant time."""
    use_the_cpu(monkeypatch)
    replace_graphs(monkeypatch, lambda launches: Clock(100.0, launches))
    measure = experts.measure
    monkeypatch.setattr(experts, "measure", lambda *of: measure(*of, device="cpu"))
    monkeypatch.setattr(experts, "copy_rate", lambda: 4e12)
    path, plot = tmp_path / "experts.json", tmp_path / "experts.png"
    options = ("--mixtures", "small", "--tokens", "2,8", "--json", path, "--plot", plot)
    run(monkeypatch, "bench", "experts", *options)
    read = json.loads(path.read_text())
    names = [(row["product"], row["tokens"]) for row in read["rows"]]
    assert names == [
        (name, tokens)
        for name in mixtures.PRODUCTS
        for tokens in ((12,) if "masked" in name else (8,) if name in LARGE else (2, 8))
    ]
    assert read["summary"]["weights"]["baseline / ours"] == 1 and plot.stat().st_size > 0
    shown = capsys.readouterr().out
    assert "small 8 weights" in shown and "layer: baseline / ours 1, least 1" in shown
    assert "small 8 fp8-block-up  baseline ours, bfloat16  baseline us 100.0" in shown


def test_rows_of_files_with_torchs_times_are_read() -> None:
    row = experts.Row("small", "up", 8, 3.0, 2.0, 1.0, 0.0, quartiles={"baseline": (2.9, 3.1)})
    old = asdict(row)
    del old["method"], old["baseline"], old["quartiles"]
    old |= {"torch": 3.0, "quartiles": {"torch": (2.9, 3.1)}}
    assert results.parse({**CONTEXT, "rows": [old, asdict(row)]}).rows == [row, row]


def test_our_baselines_are_not_called_torch() -> None:
    rows = [
        experts.Row("small", "up", 8, 3.0, 2.0, 1.0, 0.0),
        experts.Row("small", "fp8-block-up", 8, 8.0, 2.0, 1.0, 0.0, method=mixtures.OUR_BFLOAT16),
    ]
    found = results.parse({**CONTEXT, "rows": list(map(asdict, rows))})
    assert [each.torch for each in found.entries()] == [3.0, None]
    page = benchmarks.page.mean(found)
    assert "time of torch over ours with up: 1.500 in 1 rows" in page
    assert "time of our bfloat16 over ours with fp8-block-up: 4.000 in 1 rows" in page
