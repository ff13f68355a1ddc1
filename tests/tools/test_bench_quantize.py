"""`bench quantize`: what helpers read and write, and their share of the rate of a copy."""

import json
from pathlib import Path

import pytest
import torch
from cutlass_api.bench import quantize
from support.benches import Clock, replace_graphs, run, use_the_cpu

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
    use_the_cpu(monkeypatch)
    replace_graphs(monkeypatch, lambda launches: Clock(100.0, launches))
    monkeypatch.setattr(quantize, "SHAPES", ((128, 256),))
    monkeypatch.setattr(quantize, "copy_rate", lambda: 4e9)
    path = tmp_path / "quantize.json"
    run(monkeypatch, "bench", "quantize", "--json", path)
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
