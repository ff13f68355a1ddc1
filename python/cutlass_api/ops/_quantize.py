"""The operator ``quantize``: a matrix in 8 bits, and its scales."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cutlass_api._core import CudaFunction
from cutlass_api.cuda import cuda_kernel
from cutlass_api.ops._library import operator, refuse
from cutlass_api.utils import ceil_div, round_up

Block: TypeAlias = tuple[int, int]

#: An extent of a group: all rows or all columns.
WHOLE = -1
#: The extents of groups, and their names in the program.
GROUPS = {
    (WHOLE, WHOLE): "BLOCK",
    (1, WHOLE): "ROW",
    (1, 128): "ROW",
    (WHOLE, 1): "COLUMN",
    (128, 1): "COLUMN",
    (128, 128): "BLOCK",
}
#: The names in C++; for outputs also the largest finite number.
INPUTS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
OUTPUTS = {
    torch.float8_e4m3fn: ("e4m3", 448.0),
    torch.float8_e5m2: ("e5m2", 57344.0),
    torch.int8: ("s8", 127.0),
}
#: The smallest scale: that of a group of zeros.
SMALLEST = 2.0**-126


@operator(
    "quantize(Tensor input, ScalarType dtype, int[2] block) -> (Tensor, Tensor)", has_out=False
)
def quantize(input: Tensor, dtype: torch.dtype, block: Sequence[int]) -> tuple[Tensor, Tensor]:
    """A matrix in an 8-bit dtype, and its scales, one for each block of the extents ``block``.

    :mod:`cutlass_api.quantize` describes layouts and arithmetic. An extent of -1 is that of the
    matrix.
    """
    block = check(input, dtype, tuple(block))
    if input.stride(0) == 1 and input.stride(1) != 1:
        out, scales = quantize(input.t(), dtype, block[::-1])
        return out.t(), scales.t()
    out = input.new_empty(input.shape, dtype=dtype)
    scales = empty_scales(input, block)
    if isinstance(input, FakeTensor) or input.is_meta:
        return out, scales
    if input.numel() == 0:
        scales.fill_(SMALLEST)
    elif input.is_cuda:
        launch(input, out, scales, block)
    else:
        compute(input, out, scales, block)
    return out, scales


def check(input: Tensor, dtype: torch.dtype, extents: Sequence[int]) -> Block:
    """The extents of a block. Raises ValueError for operands that are not served."""
    if input.dim() != 2:
        raise refuse("quantize", f"the input has shape {list(input.shape)}; pass a matrix")
    for name, given, served in (("input", input.dtype, INPUTS), ("output", dtype, OUTPUTS)):
        if given not in served:
            raise refuse("quantize", f"the {name} dtype is {given}; pass one of {names(served)}")
    block = next((block for block in GROUPS if block == extents), None)
    if block is None:
        raise refuse(
            "quantize", f"block is {extents}; pass one of (1, 128), (128, 1) and (128, 128)"
        )
    return block


def names(dtypes: Any) -> str:
    return ", ".join(map(str, dtypes))


def empty_scales(input: Tensor, block: Block) -> Tensor:
    """The scales of a row-major matrix, in the layout that ``torch._scaled_mm`` takes."""
    if block == (WHOLE, WHOLE):
        return input.new_empty((), dtype=torch.float32)
    rows, columns = (
        1 if extent == WHOLE else ceil_div(size, extent)
        for size, extent in zip(input.shape, block, strict=True)
    )
    if block == (1, 128):
        return input.new_empty((columns, rows), dtype=torch.float32).t()
    if block == (128, 128):
        return input.new_empty((rows, round_up(columns, 4)), dtype=torch.float32)[:, :columns]
    return input.new_empty((rows, columns), dtype=torch.float32)


# ---- by torch ------------------------------------------------------------------------------------


def compute(input: Tensor, out: Tensor, scales: Tensor, block: Block) -> None:
    """The arithmetic of kernels/quantize.cuh, on the CPU."""
    rows, columns = input.shape
    height, width = whole_extents(input, block)
    padded = torch.nn.functional.pad(input.float(), (0, -columns % width, 0, -rows % height))
    blocks = padded.view(padded.shape[0] // height, height, padded.shape[1] // width, width)
    largest = blocks.abs().amax((1, 3), keepdim=True)
    # clamp returns NaN for NaN.
    factors = (largest / OUTPUTS[out.dtype][1]).clamp(min=SMALLEST)
    scales.copy_(factors.view(scales.shape))
    values = (blocks * (1 / factors)).view(padded.shape)[:rows, :columns]
    out.copy_(values.round().nan_to_num(nan=0) if out.dtype is torch.int8 else values)


def whole_extents(input: Tensor, block: Block) -> tuple[int, int]:
    rows, columns = input.shape
    return rows if block[0] == WHOLE else block[0], columns if block[1] == WHOLE else block[1]


# ---- by kernels/quantize.cuh ---------------------------------------------------------------------


class Tile(NamedTuple):
    """The template parameters of a tile: threads down and across, vectors of a thread, and whether
    they are in one column.
    """

    row_threads: int
    column_threads: int
    vectors: int
    stacked: bool

    @property
    def threads(self) -> int:
        return self.row_threads * self.column_threads

    def rows(self) -> int:
        return self.row_threads * (self.vectors if self.stacked else 1)

    def columns(self, itemsize: int) -> int:
        return self.column_threads * (1 if self.stacked else self.vectors) * 16 // itemsize

    def parameters(self, is_aligned: bool) -> str:
        across = f"{self.row_threads}, {self.column_threads}, {self.vectors}"
        return f"{across}, {str(self.stacked).lower()}, {str(is_aligned).lower()}"


#: Tiles of whole rows. A CTA has 16 KiB in flight, also with short rows.
ROW_TILES = (
    *(Tile(8 // warps, 32 * warps, 4, False) for warps in (1, 2, 4, 8)),
    Tile(1, 256, 16, False),
)
#: Of whole columns: 64 bytes of 2048 rows.
COLUMN_TILE = Tile(128, 4, 16, True)
#: Of a contiguous matrix that has one scale.
FLAT_TILE = Tile(1, 256, 8, False)
#: CTAs of the first launch for a matrix that has one scale.
PARTIALS = 512


def row_tile(columns: int, itemsize: int) -> Tile:
    """The smallest tile that holds a row, else the largest."""
    fits = (tile for tile in ROW_TILES if columns <= tile.columns(itemsize))
    return next(fits, ROW_TILES[-1])


def block_tile(itemsize: int) -> Tile:
    """128 x 128 elements."""
    return Tile(16, 128 * itemsize // 16, 8, True)


@cache
def program(function: str, threads: int) -> CudaFunction:
    """A function of kernels/quantize.cuh, which takes strides."""
    name = f"quantize::{function}"
    return cuda_kernel('#include "quantize.cuh"\n', name, grid=1, block=threads, contiguous=False)


def launch(input: Tensor, out: Tensor, scales: Tensor, block: Block) -> None:
    """Enqueues the kernels for a matrix whose output is row-major."""
    (rows, columns), itemsize = input.shape, input.element_size()
    is_whole = block == (WHOLE, WHOLE)
    if is_whole and input.is_contiguous():
        rows, columns = 1, input.numel()
        tile = FLAT_TILE
    elif block[1] == WHOLE:
        tile = row_tile(columns, itemsize)
    elif block[0] == WHOLE:
        tile = COLUMN_TILE
    else:
        tile = block_tile(itemsize)
    # A matrix of one row has any row stride.
    row_step = input.stride(0) if rows > 1 else columns
    is_aligned = (
        (input.stride(1) == 1 or columns == 1)
        and not any(x * itemsize % 16 for x in (columns, row_step))
        and input.data_ptr() % 16 == 0
    )
    types = f"{INPUTS[input.dtype]}, {OUTPUTS[out.dtype][0]}"
    layout = (rows, columns, row_step, input.stride(1))
    if is_whole:
        launch_whole(input, out, scales, types, tile, is_aligned, layout)
        return
    group = GROUPS[block]
    cta_rows, cta_columns = whole_extents(input, block)
    if group == "ROW":
        cta_rows = tile.rows()
    elif group == "COLUMN":
        cta_columns = tile.columns(itemsize)
    column_ctas = ceil_div(columns, cta_columns)
    kernel = program(
        f"groups<{types}, quantize::{group}, {tile.parameters(is_aligned)}>", tile.threads
    )
    extents = (cta_rows, cta_columns, column_ctas)
    steps = (columns, *scales.stride())
    kernel.launch(
        (input, out, scales, *layout, *steps, *extents), ceil_div(rows, cta_rows) * column_ctas
    )


def launch_whole(
    input: Tensor,
    out: Tensor,
    scale: Tensor,
    types: str,
    tile: Tile,
    is_aligned: bool,
    layout: tuple[int, int, int, int],
) -> None:
    """Enqueues the two kernels for one scale of the whole matrix."""
    rows, columns, *_ = layout
    column_tiles = ceil_div(columns, tile.columns(input.element_size()))
    tiles = ceil_div(rows, tile.rows()) * column_tiles
    partials = input.new_empty(min(tiles, PARTIALS), dtype=torch.float32)
    parameters = tile.parameters(is_aligned)
    first = program(f"largest<{types.partition(',')[0]}, {parameters}>", tile.threads)
    first.launch((input, partials, *layout, tiles, column_tiles), len(partials))
    second = program(f"whole<{types}, {parameters}>", tile.threads)
    second.launch(
        (input, out, scale, partials, len(partials), *layout, columns, column_tiles), tiles
    )
