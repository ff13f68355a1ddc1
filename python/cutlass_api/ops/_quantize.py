"""The operator ``quantize``: a matrix in 8 bits, its scales, and its zero points."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cutlass_api._core import CudaFunction
from cutlass_api._dtypes import E8M0, INT8
from cutlass_api.cuda import cuda_kernel
from cutlass_api.ops._library import operator, refuse
from cutlass_api.ops._scales import MX_DEPTH
from cutlass_api.utils import ceil_div, round_up

Block: TypeAlias = tuple[int, int]

#: An extent of a group: all rows or all columns.
WHOLE = -1
#: A tile of swizzled scales: rows, and blocks along K.
SWIZZLED_TILE = (128, 4)
#: The exponents of the largest powers of two.
EXPONENTS = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}
SYMMETRIC = (*EXPONENTS, torch.int8)
#: The output dtypes by the extents of groups. Each is served transposed, too.
BLOCKS: dict[Block, tuple[torch.dtype, ...]] = {
    (WHOLE, WHOLE): SYMMETRIC,
    (1, WHOLE): SYMMETRIC,
    (1, 128): (*SYMMETRIC, torch.uint8),
    (1, 64): INT8,
    (1, MX_DEPTH): (*SYMMETRIC, torch.uint8),
    (128, 128): SYMMETRIC,
}
#: The names in C++; for outputs also the largest number.
INPUTS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
OUTPUTS = {
    torch.float8_e4m3fn: ("e4m3", 448.0),
    torch.float8_e5m2: ("e5m2", 57344.0),
    torch.int8: ("s8", 127.0),
    torch.uint8: ("u8", 255.0),
}
#: The smallest float32 scale: that of a group of zeros.
SMALLEST = 2.0**-126


class Quantized(NamedTuple):
    """The outputs. ``zeros``: the zero points of uint8, like ``scales``. Scales are a vector if
    they are swizzled.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor | None

    @property
    def is_swizzled(self) -> bool:
        return bool(self.scales.dim() == 1)


@operator(
    "quantize(Tensor input, ScalarType dtype, int[2] block, bool swizzle=False) -> Tensor[]",
    has_out=False,
)
def quantize(
    input: Tensor, dtype: torch.dtype, block: Sequence[int], swizzle: bool = False
) -> list[Tensor]:
    """A matrix in an 8-bit dtype, its scales, one for each block of the extents ``block``, and, for
    uint8, its zero points.

    :mod:`cutlass_api.quantize` describes layouts and arithmetic. An extent of -1 is that of the
    matrix. float8 in blocks of 32 is MXFP8: its scales are float8_e8m0fnu, and swizzled on request;
    those of (32, 1) as those of the transpose.
    """
    block = check(input, dtype, tuple(block), swizzle)
    if input.stride(0) == 1 and input.stride(1) != 1:
        out, *rest = quantize(input.t(), dtype, block[::-1], swizzle)
        return [out.t(), *(each.t() for each in rest)]  # of a vector: the vector
    scales = empty_scales(input, dtype, block, swizzle)
    zeros = torch.empty_like(scales, dtype=torch.uint8) if dtype is torch.uint8 else None
    out = Quantized(input.new_empty(input.shape, dtype=dtype), scales, zeros)
    if isinstance(input, FakeTensor) or input.is_meta:
        pass
    elif input.numel() == 0:
        # Scales of blocks are empty, too.
        if scales.numel():
            scales.fill_(SMALLEST)
    elif input.is_cuda:
        launch(input, out, block)
    else:
        compute(input, out, block)
    return [each for each in out if each is not None]


def check(input: Tensor, dtype: torch.dtype, extents: Sequence[int], swizzle: bool) -> Block:
    """The extents of a block. Raises ValueError for operands that are not served."""
    if input.dim() != 2:
        raise refuse("quantize", f"the input has shape {list(input.shape)}; pass a matrix")
    if input.dtype not in INPUTS:
        raise refuse("quantize", f"the input dtype is {input.dtype}; pass one of {names(INPUTS)}")
    block = next((block for block in BLOCKS if extents in (block, block[::-1])), None)
    if block is None:
        raise refuse("quantize", f"block is {extents}; pass one of {names(BLOCKS)}, or a transpose")
    if dtype not in BLOCKS[block]:
        served = names(BLOCKS[block])
        raise refuse("quantize", f"the output dtype is {dtype}; pass one of {served}")
    if swizzle and not is_mx(dtype, block):
        raise refuse(
            "quantize",
            f"swizzle is True for {dtype} in blocks of {extents}; pass False, or float8 and "
            f"{(1, MX_DEPTH)}",
        )
    return block if extents == block else block[::-1]


def is_mx(dtype: torch.dtype, block: Block) -> bool:
    return dtype in EXPONENTS and MX_DEPTH in block


def names(dtypes: Any) -> str:
    return ", ".join(map(str, dtypes))


def empty_scales(input: Tensor, dtype: torch.dtype, block: Block, swizzle: bool) -> Tensor:
    """The scales of a row-major matrix, in the layout that products take."""
    if block == (WHOLE, WHOLE):
        return input.new_empty((), dtype=torch.float32)
    rows, columns = (
        1 if extent == WHOLE else ceil_div(size, extent)
        for size, extent in zip(input.shape, block, strict=True)
    )
    if is_mx(dtype, block):
        if not swizzle:
            return input.new_empty((rows, columns), dtype=E8M0)
        outer, deep = (rows, columns) if block[0] == 1 else (columns, rows)
        return input.new_empty(math.prod(padded(outer, deep)), dtype=E8M0)
    if block[0] == 1 and block[1] != WHOLE:
        return input.new_empty((columns, rows), dtype=torch.float32).t()
    if block == (128, 128):
        return input.new_empty((rows, round_up(columns, 4)), dtype=torch.float32)[:, :columns]
    return input.new_empty((rows, columns), dtype=torch.float32)


def padded(outer: int, deep: int) -> tuple[int, int]:
    """The extents of swizzled scales."""
    return round_up(outer, SWIZZLED_TILE[0]), round_up(deep, SWIZZLED_TILE[1])


# ---- by torch ------------------------------------------------------------------------------------


def compute(input: Tensor, out: Quantized, block: Block) -> None:
    """The arithmetic of kernels/quantize.cuh, on the CPU."""
    rows, columns = input.shape
    height, width = whole_extents(input, block)
    padding = (0, -columns % width, 0, -rows % height)
    whole = torch.nn.functional.pad(input.float(), padding)
    blocks = whole.view(whole.shape[0] // height, height, whole.shape[1] // width, width)

    def largest(values: Tensor) -> Tensor:
        return values.amax((1, 3), keepdim=True)

    dtype = out.values.dtype
    limit = OUTPUTS[dtype][1]
    if is_mx(dtype, block):
        # The sign of NaN is arbitrary.
        exponents = largest(blocks.abs()).view(torch.int32) >> 23 & 0xFF
        is_finite = exponents < 255
        codes = (exponents - EXPONENTS[dtype]).clamp(min=0).where(is_finite, 255)
        inverse = ((254 - codes) << 23).view(torch.float32).where(is_finite, math.nan)
        values = (blocks * inverse).clamp(-limit, limit)
        scales = codes.to(torch.uint8).view(blocks.shape[0], blocks.shape[2])
        if out.is_swizzled:
            scales = swizzled(scales if block[0] == 1 else scales.t())
        out.scales.view(torch.uint8).copy_(scales)
    elif out.zeros is not None:
        positive, negative = largest(blocks.clamp(min=0)), largest((-blocks).clamp(min=0))
        # clamp returns NaN for NaN. The range itself can overflow.
        factors = ((0.5 * positive + 0.5 * negative) / (limit / 2)).clamp(min=SMALLEST)
        zeros = (negative * (1 / factors)).round()
        values = ((blocks * (1 / factors)).round() + zeros).clamp(0, limit).nan_to_num(nan=0)
        out.scales.copy_(factors.view(out.scales.shape))
        out.zeros.copy_(zeros.nan_to_num(nan=0).view(out.zeros.shape))
    else:
        factors = (largest(blocks.abs()) / limit).clamp(min=SMALLEST)
        values = blocks * (1 / factors)
        if dtype is torch.int8:
            values = values.round().nan_to_num(nan=0)
        out.scales.copy_(factors.view(out.scales.shape))
    out.values.copy_(values.view(whole.shape)[:rows, :columns])


def swizzled(scales: Tensor) -> Tensor:
    """Scales (rows, blocks along K) in tiles of 128 x 4, padded with zeros. A tile holds its rows
    0, 32, 64 and 96, then 1, 33 and so on.
    """
    rows, deep = scales.shape
    outer, across = padded(rows, deep)
    whole = torch.nn.functional.pad(scales, (0, across - deep, 0, outer - rows))
    return whole.view(outer // 128, 4, 32, across // 4, 4).permute(0, 3, 2, 1, 4).flatten()


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
        return f"{across}, {cpp(self.stacked)}, {cpp(is_aligned)}"


def cpp(value: bool) -> str:
    return str(value).lower()


#: Tiles of whole rows. A CTA has 16 KiB in flight, also with short rows.
ROW_TILES = (
    *(Tile(8 // warps, 32 * warps, 4, False) for warps in (1, 2, 4, 8)),
    Tile(1, 256, 16, False),
)
#: Of whole columns: 64 bytes of 2048 rows. Of longer columns: 256 bytes of 128 rows.
COLUMN_TILE, LONG_COLUMN_TILE = Tile(128, 4, 16, True), Tile(16, 16, 8, True)
#: Of a contiguous matrix that has one scale.
FLAT_TILE = Tile(1, 256, 8, False)
#: CTAs of the first launch for a matrix that has one scale, or long columns.
PARTIALS = 512


def row_tile(columns: int, itemsize: int) -> Tile:
    """The smallest tile that holds a row, else the largest."""
    fits = (tile for tile in ROW_TILES if columns <= tile.columns(itemsize))
    return next(fits, ROW_TILES[-1])


def block_tile(itemsize: int, vectors: int = 8) -> Tile:
    """16 x vectors rows of 128 elements."""
    return Tile(16, 128 * itemsize // 16, vectors, True)


@cache
def program(function: str, threads: int) -> CudaFunction:
    """A function of kernels/quantize.cuh, which takes strides."""
    name = f"quantize::{function}"
    return cuda_kernel('#include "quantize.cuh"\n', name, grid=1, block=threads, contiguous=False)


def launch(input: Tensor, out: Quantized, block: Block) -> None:
    """Enqueues the kernels for a matrix whose output is row-major."""
    (rows, columns), itemsize = input.shape, input.element_size()
    is_whole = block == (WHOLE, WHOLE)
    if is_whole and input.is_contiguous():
        rows, columns = 1, input.numel()
        tile = FLAT_TILE
    elif block[1] == WHOLE:
        tile = row_tile(columns, itemsize)
    elif block[0] == WHOLE:
        tile = COLUMN_TILE if rows <= COLUMN_TILE.rows() else LONG_COLUMN_TILE
    elif block[0] == 1:
        # At most as many vectors as a group has lanes: a lane computes the scale of one row. Zero
        # points take registers, so that fewer vectors fit.
        most = 8 if out.zeros is None else 4
        tile = block_tile(itemsize, min(most, block[1] * itemsize // 16))
    else:
        tile = block_tile(itemsize, block[0] // 16)
    # A matrix of one row has any row stride.
    row_step = input.stride(0) if rows > 1 else columns
    is_aligned = (
        (input.stride(1) == 1 or columns == 1)
        and not any(x * itemsize % 16 for x in (columns, row_step))
        and input.data_ptr() % 16 == 0
    )
    layout = (rows, columns, row_step, input.stride(1))
    if is_whole:
        launch_whole(input, out, tile, is_aligned, layout)
    elif tile is LONG_COLUMN_TILE:
        launch_long_columns(input, out, tile, is_aligned, layout)
    else:
        launch_groups(input, out, block, tile, is_aligned, layout)


def launch_groups(
    input: Tensor,
    out: Quantized,
    block: Block,
    tile: Tile,
    is_aligned: bool,
    layout: tuple[int, int, int, int],
) -> None:
    """Enqueues the kernel for a scale of each group."""
    rows, columns, *_ = layout
    height, width = whole_extents(input, block)
    # How many scales there are along the rows (columns) that hold the groups, and how many groups
    # a row (column) has.
    outer, deep = ceil_div(rows, height), ceil_div(columns, width)
    steps = out.scales.stride()
    cta_rows, cta_columns, across = height, width, 1
    if block[0] == 1:
        group = "ROW"
        cta_rows = tile.rows()
        if block[1] != WHOLE:
            cta_columns = tile.columns(input.element_size())
            across = cta_columns // width
    elif block[1] == 1:
        group = "COLUMN"
        cta_columns = tile.columns(input.element_size())
        outer, deep, steps = deep, outer, steps[::-1]
    else:
        group = "BLOCK"
    if out.is_swizzled:
        outer, deep = padded(outer, deep)
        steps = (128 * deep, math.prod(SWIZZLED_TILE))
    along_rows, along_columns = (deep, outer) if group == "COLUMN" else (outer, deep)
    # How many scales a CTA computes along rows and columns.
    row_ctas = ceil_div(along_rows, cta_rows // height)
    column_ctas = ceil_div(along_columns, cta_columns // width)
    scale = "e8m0" if out.scales.dtype is E8M0 else "f32"
    kernel = program(
        f"groups<{INPUTS[input.dtype]}, {OUTPUTS[out.values.dtype][0]}, {scale}, "
        f"{cpp(out.is_swizzled)}, quantize::{group}, {cpp(WHOLE not in block)}, {across}, "
        f"{tile.parameters(is_aligned)}>",
        tile.threads,
    )
    counts = (*steps, outer, deep)
    extents = (cta_rows, cta_columns, column_ctas)
    kernel.launch((input, *out, *layout, columns, *counts, *extents), row_ctas * column_ctas)


def launch_long_columns(
    input: Tensor,
    out: Quantized,
    tile: Tile,
    is_aligned: bool,
    layout: tuple[int, int, int, int],
) -> None:
    """Enqueues the two kernels for a scale of each column that exceeds a tile of whole columns."""
    rows, columns, *_ = layout
    row_tiles = ceil_div(rows, tile.rows())
    column_tiles = ceil_div(columns, tile.columns(input.element_size()))
    row_ctas = min(row_tiles, ceil_div(PARTIALS, column_tiles))
    partials = input.new_empty(row_ctas, columns, dtype=torch.float32)
    source, parameters = INPUTS[input.dtype], tile.parameters(is_aligned)
    first = program(f"largest_of_columns<{source}, {parameters}>", tile.threads)
    first.launch((input, partials, *layout, row_ctas), row_ctas * column_tiles)
    types = f"{source}, {OUTPUTS[out.values.dtype][0]}"
    second = program(f"long_columns<{types}, {parameters}>", tile.threads)
    tensors = (input, out.values, out.scales, partials, row_ctas)
    steps = (columns, out.scales.stride(1), column_tiles)
    second.launch((*tensors, *layout, *steps), row_tiles * column_tiles)


def launch_whole(
    input: Tensor,
    out: Quantized,
    tile: Tile,
    is_aligned: bool,
    layout: tuple[int, int, int, int],
) -> None:
    """Enqueues the two kernels for one scale of the whole matrix."""
    rows, columns, *_ = layout
    column_tiles = ceil_div(columns, tile.columns(input.element_size()))
    tiles = ceil_div(rows, tile.rows()) * column_tiles
    partials = input.new_empty(min(tiles, PARTIALS), dtype=torch.float32)
    source, parameters = INPUTS[input.dtype], tile.parameters(is_aligned)
    first = program(f"largest<{source}, {parameters}>", tile.threads)
    first.launch((input, partials, *layout, tiles, column_tiles), len(partials))
    types = f"{source}, {OUTPUTS[out.values.dtype][0]}"
    second = program(f"whole<{types}, {parameters}>", tile.threads)
    tensors = (input, out.values, out.scales, partials)
    second.launch((*tensors, len(partials), *layout, columns, column_tiles), tiles)
