"""Time of :mod:`cutlass_api.quantize`, as a share of the bandwidth of a copy.

Inputs are larger than L2 and random. Launches run in CUDA graphs, the helpers take turns, and
results are medians, as in :mod:`cutlass_api.bench.gemm`.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cutlass_api.bench import ROUNDS, report
from cutlass_api.bench.bandwidth import copy_rate
from cutlass_api.bench.gemm import capture
from cutlass_api.library import ScaleSwizzleMode
from cutlass_api.profiling import quartiles
from cutlass_api.tuning._search import in_turns


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


def moved_bytes(helper: str, shape: tuple[int, int], itemsize: int) -> int:
    """Bytes that a helper reads and writes, for a row-major input of elements of this size."""
    from cutlass_api.ops import _quantize
    from cutlass_api.utils import ceil_div

    rows, columns = shape
    group = tuple(
        size if extent == -1 else extent
        for size, extent in zip(shape, HELPERS[helper].extents, strict=True)
    )
    elements, again = rows * columns, 0
    if helper == "per_tensor" or (helper == "per_column" and rows > _quantize.COLUMN_TILE.rows()):
        again = elements
    # A CTA reads all tiles for the scale, keeps the last one, and reads the others again.
    elif helper == "per_row":
        tile = _quantize.row_tile(columns, itemsize).columns(itemsize)
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


def measure(show: Callable[[Row], None]) -> tuple[float, list[Row]]:
    """The rate of a copy in bytes per second, and the times of all helpers. Calls ``show`` with
    each finished row.
    """
    import torch

    rate, stream, results = copy_rate(), torch.cuda.Stream(), []
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
                    row = Row(helper, input, output, shape, timed.median, moved, share, spread)
                    results.append(row)
                    show(row)
                del methods
                torch.cuda.empty_cache()
    return rate, results


TITLE = "Quantization"
HEADER = ("helper", "rows x columns", "us", "GB", "share of a copy")


def line(row: Row) -> tuple[str, ...]:
    """The cells of a row of the table."""
    rows, columns = row.shape
    return (
        f"{row.helper}, {row.input} to {row.output}",
        f"{rows} x {columns}",
        f"{row.microseconds:.1f}",
        f"{1e-9 * row.bytes:.3f}",
        f"{row.share:.1%}",
    )


def write_plot(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Plots the shares of a copy's rate. Needs matplotlib."""
    names = [" ".join(line(row)[:2]) for row in rows]
    report.write_ratios(path, title, names, [row.share for row in rows], "share of a copy's rate")


def write_json(path: Path, context: dict[str, Any], rate: float, rows: Sequence[Row]) -> None:
    """Writes the rate of a copy and rows as JSON, after the entries of ``context``."""
    document = {**context, "copy_rate": rate, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(document, indent=1) + "\n")


__all__ = [
    "HEADER",
    "HELPERS",
    "Row",
    "call",
    "line",
    "measure",
    "moved_bytes",
    "write_json",
    "write_plot",
]
