"""`bench jax` on the CPU, with small shapes."""

import json

import numpy as np
import pytest
from cutlass_api.bench import jax as bench
from support.benches import run

jax = pytest.importorskip("jax")


def test_both_functions_compute_the_same_and_take_turns(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(bench, "EXTENT", 8)
    monkeypatch.setattr(bench, "MLP", (2, 8, 12))
    monkeypatch.setattr(bench, "CALLS", 2)
    monkeypatch.setattr(bench, "ROUNDS", 3)
    for _, pair, arguments in bench.functions():
        ours, theirs = jax.jit(lambda *of, pair=pair: [each(*of) for each in pair])(*arguments)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=5e-3 * abs(np.asarray(theirs)).max())
    run(monkeypatch, "bench", "jax", "--json", tmp_path / "jax.json")
    document = json.loads((tmp_path / "jax.json").read_text())
    assert document["jax"] and len(document["rows"]) == 2
    table = capsys.readouterr().out.rpartition("JAX (a GPU)")[2]
    assert "gated MLP of 8 x 12, 2 rows" in table and "us of jax.numpy" in table
