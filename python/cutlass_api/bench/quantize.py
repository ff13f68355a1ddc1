"""Time of :mod:`cutlass_api.quantize`, as a share of the bandwidth of a copy.

Inputs are larger than L2 and random. Launches run in CUDA graphs, the helpers take turns, and
results are medians, as in :mod:`cutlass_api.bench.gemm`.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cutlass_api.bench import report
from cutlass_api.bench.base import Bench, Document, Entry, deviation
from cutlass_api.bench.limits import copy_rate
from cutlass_api.bench.timing import ROUNDS, capture, in_turns, quartiles
from cutlass_api.library import ScaleSwizzleMode


@dataclass(frozen=True)
class Helper:
    """A call of a function of :mod:`cutlass_api.quantize`.

    - ``extents``: of the groups that share a scale; -1: all rows or columns.
    - ``options``: the arguments behind the matrix and, with ``takes_dtype``, the output's dtype.
    - ``scale_bytes``: of the scale and the zero point of a group.
    """

    function: str
    extents: tuple[int, int]
    outputs: tuple[str, ...] = ("float8_e4m3fn", "int8")
    options: tuple[Any, ...] = ()
    takes_dtype: bool = True
    scale_bytes: int = 4


def _group(name: str, output: str, group: int, scale_bytes: int) -> Helper:
    return Helper(name, (1, group), (output,), (group,), False, scale_bytes)


MX = Helper("per_mx_block", (1, 32), ("float8_e4m3fn",), scale_bytes=1)
HELPERS = {
    "per_tensor": Helper("per_tensor", (-1, -1)),
    "per_row": Helper("per_row", (1, -1)),
    "per_column": Helper("per_column", (-1, 1)),
    "per_block 1x128": Helper("per_block", (1, 128), options=((1, 128),)),
    "per_block 128x128": Helper("per_block", (128, 128), options=((128, 128),)),
    "per_mx_block": MX,
    "per_mx_block swizzled": replace(MX, options=(ScaleSwizzleMode.Swizzle32x4x4,)),
    "per_group 32": _group("per_group", "int8", 32, 4),
    "per_group 128": _group("per_group", "int8", 128, 4),
    "per_group_asymmetric 32": _group("per_group_asymmetric", "uint8", 32, 5),
    "per_group_asymmetric 128": _group("per_group_asymmetric", "uint8", 128, 5),
}
INPUTS = ("bfloat16", "float32")
OUTPUTS = ("float8_e4m3fn", "int8", "uint8")
#: Rows and columns. Inputs have 128 MiB in bfloat16. The columns of the first and, in float32, the
#: rows of the second are longer than a tile.
SHAPES = ((16384, 4096), (2048, 32768))
#: Inputs of a helper, which take turns.
SETS = 2


@dataclass
class Row:
    """The time of one call of a helper."""

    helper: str
    input: str
    output: str
    #: Rows and columns.
    shape: tuple[int, int]
    microseconds: float
    #: Bytes that all passes read and write: the input once or twice, the output and the scales.
    bytes: int
    #: ``bytes`` over the time, as a share of the rate of a copy.
    share: float
    #: The quartiles of the turns.
    quartiles: tuple[float, float] | None = None

    @property
    def call(self) -> str:
        return f"{self.helper}, {self.input} to {self.output}"

    @property
    def extents(self) -> str:
        return " x ".join(map(str, self.shape))


def moved_bytes(helper: str, shape: tuple[int, int], itemsize: int) -> int:
    """Bytes that a helper reads and writes, for a row-major input of elements of this size."""
    from cutlass_api.utils import ceil_div
    from cutlass_api.weights import _kernels

    rows, columns = shape
    group = tuple(
        size if extent == -1 else extent
        for size, extent in zip(shape, HELPERS[helper].extents, strict=True)
    )
    elements, again = rows * columns, 0
    if helper == "per_tensor" or (helper == "per_column" and rows > _kernels.COLUMN_TILE.rows()):
        again = elements
    # A CTA reads all tiles for the scale, keeps the last one, and reads the others again.
    elif helper == "per_row":
        tile = _kernels.row_tile(columns, itemsize).columns(itemsize)
        again = rows * (ceil_div(columns, tile) - 1) * tile
    scales = ceil_div(rows, group[0]) * ceil_div(columns, group[1])
    return (elements + again) * itemsize + elements + HELPERS[helper].scale_bytes * scales


def call(helper: str, matrix: Any, dtype: str) -> tuple[Any, ...]:
    """Calls a helper of :mod:`cutlass_api.quantize`."""
    import torch

    from cutlass_api import quantize

    of = HELPERS[helper]
    dtypes = (getattr(torch, dtype),) if of.takes_dtype else ()
    quantized: tuple[Any, ...] = getattr(quantize, of.function)(matrix, *dtypes, *of.options)
    return quantized


def measure(rate: float) -> Iterator[Row]:
    """Times all helpers. ``rate``: of a copy, in bytes per second."""
    import torch

    stream = torch.cuda.Stream()
    for shape in SHAPES:
        for input in INPUTS:
            dtype = getattr(torch, input)
            sets = [torch.randn(*shape, device="cuda", dtype=dtype) for _ in range(SETS)]
            for output in OUTPUTS:
                methods = {
                    helper: capture(stream, [partial(call, helper, one, output) for one in sets])
                    for helper, of in HELPERS.items()
                    if output in of.outputs
                }
                in_turns(methods, ROUNDS)
                for helper, timed in methods.items():
                    moved = moved_bytes(helper, shape, dtype.itemsize)
                    share = moved / (1e-6 * timed.median * rate)
                    spread = quartiles(timed.times)
                    yield Row(helper, input, output, shape, timed.median, moved, share, spread)
                del methods
                torch.cuda.empty_cache()


class Quantize(Bench[Row]):
    name, about = "quantize", "bandwidth of quantization to 8 bits"
    title, control = "Quantization", "a copy of as many bytes"
    row, field = Row, "helper"
    columns = (
        ("helper", "call", ""),
        ("rows x columns", "extents", ""),
        ("us", "microseconds", ".1f"),
        ("GB", lambda row: 1e-9 * row.bytes, ".3f"),
        ("share of a copy", "share", ".1%"),
    )

    def measure(self, arguments: argparse.Namespace, document: Document) -> Iterator[Row]:
        document["copy_rate"] = copy_rate()
        return measure(document["copy_rate"])

    def heading(self, document: Document) -> str:
        rate = 1e-12 * document["copy_rate"]
        return f"{super().heading(document)}, where a copy moves {rate:.2f} TB/s"

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        for row in rows:
            copy = 1e6 * row.bytes / document["copy_rate"]
            noise = deviation(row.microseconds, row.quartiles)
            yield Entry(f"{row.call}, {row.extents}", row.microseconds, copy, None, noise)

    def plot(self, path: Path, document: Document, rows: Sequence[Row]) -> None:
        """Plots the shares of a copy's rate. Needs matplotlib."""
        title = f"{self.title} ({document['device']})"
        shares = [(f"{row.call} {row.extents}", row.share) for row in rows]
        report.write_ratios(path, title, shares, "share of a copy's rate")
