"""`bench experts`: what is timed, beside torch, and the limits."""

import json
from pathlib import Path

import pytest
import torch
from cutlass_api.bench import experts
from support.benches import Clock, replace_graphs, run, use_the_cpu

SMALL = experts.Mixture(hidden=32, inner=16, experts=6, top_k=2)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(experts, "MIXTURES", {"small": SMALL})
    monkeypatch.setattr(experts, "LEAST_TOKENS", {"weights": 8})
    monkeypatch.setattr(experts, "WEIGHT_BYTES", 0)
    monkeypatch.setattr(experts, "sets_beyond_l2", lambda *_: 2)


def test_products_are_those_of_torch() -> None:
    torch.manual_seed(0)
    operands = experts.Operands(SMALL, 20, "cpu")
    shapes = {"up": (40, 32), "down": (40, 32), "layer": (20, 32), "weights": (6, 32, 32)}
    for name, shape in shapes.items():
        theirs, ours = operands.launches(name)
        assert len(theirs) == len(ours) == (1 if name == "weights" else 2)
        for expected, found in zip(theirs, ours, strict=True):
            assert found().shape == shape
            torch.testing.assert_close(found(), expected(), rtol=2e-2, atol=2e-2)


def test_limits() -> None:
    torch.manual_seed(0)
    operands = experts.Operands(SMALL, 1, "cpu")
    assert operands.chosen == 2
    # Two experts are read, and the gradients of all are written: 2 bytes an element, 1 a us.
    assert operands.limit("up", 1e6) == pytest.approx(2 * 2 * 2 * 32 * 16)
    assert operands.limit("layer", 1e6) == pytest.approx(2 * 2 * 3 * 32 * 16)
    assert operands.limit("weights", 1e6) == pytest.approx(2 * 6 * 2 * 32 * 16)
    # Two rows, and a multiplication and an addition for each element of a weight.
    arithmetic = 1e6 * 2 * 2 * 32 * 16 / experts.FLOP_RATE
    assert operands.limit("down", 1e30) == pytest.approx(arithmetic)


def test_a_wrong_result_is_not_timed(monkeypatch) -> None:
    monkeypatch.setattr(experts, "composed", lambda *_: torch.ones(20, 32))
    with pytest.raises(ArithmeticError, match="small 20 layer: the error is"):
        list(experts.measure(["small"], ["layer"], [20], 1e12, "cpu"))


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
    assert names == [(name, 2) for name in ("up", "down", "layer")] + [
        (name, 8) for name in ("up", "down", "layer", "weights")
    ]
    assert read["summary"]["weights"]["torch / ours"] == 1 and plot.stat().st_size > 0
    shown = capsys.readouterr().out
    assert "small 8 weights" in shown and "layer: torch / ours 1, least 1" in shown
