"""Enqueues ``kernels/quantize.cuh``, which quantizes a matrix to a format."""

import math
from functools import cache, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from cutlass_api._core import CudaFunction
from cutlass_api._dtypes import CUDA_NAMES
from cutlass_api.cuda import cuda_kernel
from cutlass_api.utils import ceil_div
from cutlass_api.weights._formats import Fields, Format
from cutlass_api.weights._scales import SWIZZLED_TILE, WHOLE, Block, padded


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


class Matrix(NamedTuple):
    """What a launch depends on, except for memory: of the matrix and its scales."""

    format: Format
    is_a: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    #: Whether the address is a multiple of the 16 bytes of a load.
    is_aligned: bool
    scale_strides: tuple[int, ...]
    has_zeros: bool

    @property
    def block(self) -> Block:
        return self.format.scales.block(self.is_a)


class Launch(NamedTuple):
    """A matrix to quantize, and the tile of a CTA."""

    matrix: Matrix
    tile: Tile
    is_aligned: bool
    rows: int
    columns: int
    row_step: int

    @property
    def layout(self) -> tuple[int, ...]:
        return (self.rows, self.columns, self.row_step, self.matrix.strides[1])

    @property
    def row_tiles(self) -> int:
        return ceil_div(self.rows, self.tile.rows())

    @property
    def column_tiles(self) -> int:
        return ceil_div(self.columns, self.tile.columns(self.matrix.dtype.itemsize))

    def program(self, name: str, *arguments: str, has_output: bool = True) -> CudaFunction:
        """A kernel: its types, further template arguments, and those of the tile."""
        types = [CUDA_NAMES[self.matrix.dtype]]
        types += [self.matrix.format.cuda_name] if has_output else []
        of_tile = self.tile.parameters(self.is_aligned)
        return program(f"{name}<{', '.join([*types, *arguments, of_tile])}>", self.tile.threads)


def launch(input: Tensor, out: Fields, format: Format, is_a: bool) -> None:
    """Enqueues the kernels for a matrix (N, K), or (K, N) without ``is_a``, whose output is
    row-major.
    """
    is_aligned = input.data_ptr() % 16 == 0
    layout = (input.dtype, input.shape, input.stride(), is_aligned, out.scales.stride())
    matrix = Matrix(format, is_a, *layout, out.zeros is not None)
    if matrix.block == (WHOLE, WHOLE):
        launch_whole(launch_of(matrix), input, out)
    elif matrix.block[0] == WHOLE and input.shape[0] > COLUMN_TILE.rows():
        launch_long_columns(launch_of(matrix), input, out)
    else:
        kernel, numbers, ctas = groups_of(matrix)
        kernel.launch((input, *out[:3], *numbers), ctas)


def launch_of(matrix: Matrix) -> Launch:
    block, itemsize = matrix.block, matrix.dtype.itemsize
    (rows, columns), (row_step, column_step) = matrix.shape, matrix.strides
    if block == (WHOLE, WHOLE) and row_step == columns and column_step == 1:
        rows, columns = 1, rows * columns
        tile = FLAT_TILE
    elif block[1] == WHOLE:
        tile = row_tile(columns, itemsize)
    elif block[0] == WHOLE:
        tile = COLUMN_TILE if rows <= COLUMN_TILE.rows() else LONG_COLUMN_TILE
    elif block[0] == 1:
        # At most as many vectors as a group has lanes: a lane computes the scale of one row. Zero
        # points take registers, so that fewer vectors fit.
        most = 4 if matrix.has_zeros else 8
        tile = block_tile(itemsize, min(most, block[1] * itemsize // 16))
    else:
        tile = block_tile(itemsize, block[0] // 16)
    # A matrix of one row has any row stride.
    row_step = row_step if rows > 1 else columns
    is_aligned = (
        (column_step == 1 or columns == 1)
        and not any(x * itemsize % 16 for x in (columns, row_step))
        and matrix.is_aligned
    )
    return Launch(matrix, tile, is_aligned, rows, columns, row_step)


@lru_cache(maxsize=1024)
def groups_of(matrix: Matrix) -> tuple[CudaFunction, tuple[int, ...], int]:
    """The kernel for a scale of each group, its arguments behind the tensors, and its CTAs. To find
    them takes longer than the launch.
    """
    one, block, itemsize = launch_of(matrix), matrix.block, matrix.dtype.itemsize
    height, width = (
        size if extent == WHOLE else extent
        for size, extent in zip(matrix.shape, block, strict=True)
    )
    # How many scales there are along the rows (columns) that hold the groups, and how many groups
    # a row (column) has.
    outer, deep = ceil_div(one.rows, height), ceil_div(one.columns, width)
    steps = matrix.scale_strides
    cta_rows, cta_columns, across = height, width, 1
    if block[0] == 1:
        group = "ROW"
        cta_rows = one.tile.rows()
        if block[1] != WHOLE:
            cta_columns = one.tile.columns(itemsize)
            across = cta_columns // width
    elif block[1] == 1:
        group = "COLUMN"
        cta_columns = one.tile.columns(itemsize)
        outer, deep, steps = deep, outer, steps[::-1]
    else:
        group = "BLOCK"
    scales = matrix.format.scales
    if scales.is_swizzled:
        outer, deep = padded(outer, deep)
        steps = (128 * deep, math.prod(SWIZZLED_TILE))
    along_rows, along_columns = (deep, outer) if group == "COLUMN" else (outer, deep)
    # How many scales a CTA computes along rows and columns.
    row_ctas = ceil_div(along_rows, cta_rows // height)
    column_ctas = ceil_div(along_columns, cta_columns // width)
    kernel = one.program(
        "groups",
        *(CUDA_NAMES[scales.dtype], cpp(scales.is_swizzled)),
        *(f"quantize::{group}", cpp(WHOLE not in block), str(across)),
    )
    counts = (one.columns, *steps, outer, deep, cta_rows, cta_columns, column_ctas)
    return kernel, (*one.layout, *counts), row_ctas * column_ctas


def launch_long_columns(one: Launch, input: Tensor, out: Fields) -> None:
    """Enqueues the two kernels for a scale of each column that exceeds a tile of whole columns."""
    values, scales, *_ = out
    row_ctas = min(one.row_tiles, ceil_div(PARTIALS, one.column_tiles))
    partials = input.new_empty(row_ctas, one.columns, dtype=torch.float32)
    first = one.program("largest_of_columns", has_output=False)
    first.launch((input, partials, *one.layout, row_ctas), row_ctas * one.column_tiles)
    tensors = (input, values, scales, partials, row_ctas)
    steps = (one.columns, scales.stride(1), one.column_tiles)
    second = one.program("long_columns")
    second.launch((*tensors, *one.layout, *steps), one.row_tiles * one.column_tiles)


def launch_whole(one: Launch, input: Tensor, out: Fields) -> None:
    """Enqueues the two kernels for one scale of the whole matrix."""
    values, scales, *_ = out
    tiles = one.row_tiles * one.column_tiles
    partials = input.new_empty(min(tiles, PARTIALS), dtype=torch.float32)
    first = one.program("largest", has_output=False)
    first.launch((input, partials, *one.layout, tiles, one.column_tiles), len(partials))
    tensors = (input, values, scales, partials, len(partials))
    second = one.program("whole")
    second.launch((*tensors, *one.layout, one.columns, one.column_tiles), tiles)
