"""The ways to share scales. Shapes, memory layouts, checks, messages and the arguments of
``scale_blocks`` (:mod:`cutlass_api.fusion`) follow from one record, :class:`Scales`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from cutlass_api._dtypes import E8M0
from cutlass_api.utils import ceil_div, round_up

#: Extents along the rows and columns of a matrix.
Block: TypeAlias = tuple[int, int]

#: An extent that has all rows, or all of K.
WHOLE = -1
#: A tile of swizzled scales: rows, and blocks along K.
SWIZZLED_TILE = (128, 4)


class Scales(NamedTuple):
    """Scales of a matrix (outer, K): A of a product, or a weight (N, K). ``is_a=False``: those of
    its transpose, B (K, N).
    """

    #: Rows that share a scale.
    extent: int
    #: Elements along K that share a scale. The last block may be partial.
    depth: int
    dtype: torch.dtype = torch.float32
    #: Whether the scales are a vector, in tiles of 128 x 4 (``Swizzle32x4x4``).
    is_swizzled: bool = False

    @property
    def varies_along_k(self) -> bool:
        """Whether a kernel applies the scales inside of the sum over K."""
        return self.depth != WHOLE

    def block(self, is_a: bool = True) -> Block:
        return oriented(self.extent, self.depth, is_a)

    def name(self, is_a: bool = True) -> str:
        """What has one scale."""
        if self.varies_along_k:
            return "block of " + " x ".join(map(str, self.block(is_a)))
        return "tensor" if self.extent == WHOLE else "row" if is_a else "column"

    def shape(self, outer: int, depth: int, is_a: bool = True) -> tuple[int, ...]:
        """The shape of the scales. One scale of a tensor may have any shape of one element."""
        rows, columns = (
            1 if extent == WHOLE else ceil_div(size, extent)
            for size, extent in ((outer, self.extent), (depth, self.depth))
        )
        if self.is_swizzled:
            return (math.prod(padded(rows, columns)),)
        return oriented(rows, columns, is_a)

    def fits(self, scale: Any, batch: Any, outer: int, depth: int, is_a: bool = True) -> bool:
        """Whether scales, or those of each product of a batch, have a shape that is served."""
        one = shape_of_one(scale, batch)
        if self == TENSOR:
            return math.prod(one) == 1
        shape = self.shape(outer, depth, is_a)
        # A vector of each product is a matrix of one row, which has the batch in front.
        is_vector = self.is_swizzled and len(scale.shape) == 3
        return one == shape or (is_vector and one == (1, *shape))

    def empty(self, matrix: Tensor, is_a: bool = True, *, is_float: bool) -> Tensor:
        """Uninitialized scales of a matrix: row-major, but those of floats in the layout that
        ``torch._scaled_mm`` requires."""
        if self == TENSOR:
            return matrix.new_empty((), dtype=self.dtype)
        rows, columns = matrix.shape
        shape = self.shape(*oriented(rows, columns, is_a), is_a)
        if is_float and self.varies_along_k and self.dtype is not E8M0:
            if self.extent != 1:  # the leading dimension is a multiple of 4
                whole = shape[0], round_up(shape[1], 4)
                return matrix.new_empty(whole, dtype=self.dtype)[:, : shape[1]]
            if is_a:
                return matrix.new_empty(shape[::-1], dtype=self.dtype).t()
        return matrix.new_empty(shape, dtype=self.dtype)

    def arguments(self, factor: str, has_zero: bool = False) -> str:
        """The arguments of ``scale_blocks`` that follow the scales of a factor, ``a`` or ``b``."""
        found = f"{factor}_block={self.block(factor == 'a')}"
        if self.is_swizzled:
            found += f', {factor}_swizzle="32x4x4"'
        return found + (f", {factor}_zero=zero_{factor}" if has_zero else "")


TENSOR, ROW = Scales(WHOLE, WHOLE), Scales(1, WHOLE)
#: Blocks of a row, and of 128 rows.
BLOCK, WIDE_BLOCK = Scales(1, 128), Scales(128, 128)
MX = Scales(1, 32, E8M0)
MX_SWIZZLED = MX._replace(is_swizzled=True)
#: The scales of integer products and of float8 products.
OF_INTEGERS = (TENSOR, ROW)
OF_FLOAT8 = (TENSOR, ROW, BLOCK, WIDE_BLOCK, MX, MX_SWIZZLED)
#: Scales of float8 products in float8_e8m0fnu. Those of blocks of 128 are converted to float32.
IN_E8M0 = (MX, MX_SWIZZLED, *(each._replace(dtype=E8M0) for each in (BLOCK, WIDE_BLOCK)))


def of_float8(dtype: Any) -> tuple[Scales, ...]:
    """The scales of float8 products in this dtype, or in float32."""
    return IN_E8M0 if dtype is E8M0 else tuple(x for x in OF_FLOAT8 if x.dtype is not E8M0)


def is_widened(scales: Scales) -> bool:
    """Whether scales are converted to float32, which is exact."""
    return scales.dtype is E8M0 and scales.depth != MX.depth


def find(
    served: Sequence[Scales], scale: Any, batch: Any, outer: int, depth: int, is_a: bool
) -> Scales | None:
    """The first of the records that the shape of scales fits; None for another shape."""
    for scales in served:
        if scales.fits(scale, batch, outer, depth, is_a):
            return scales
    return None


def oriented(outer: Any, deep: Any, is_a: bool) -> tuple[Any, Any]:
    """(outer, deep) of A, (deep, outer) of B."""
    return (outer, deep) if is_a else (deep, outer)


def padded(rows: int, deep: int) -> Block:
    """The extents of swizzled scales."""
    return round_up(rows, SWIZZLED_TILE[0]), round_up(deep, SWIZZLED_TILE[1])


def shape_of_one(tensor: Any, batch: Any) -> tuple[int, ...]:
    """The shape of a tensor for one product: without the batch dimension, if there is one."""
    shape = tuple(tensor.shape)
    has_batch = batch is not None and len(shape) == 3 and shape[0] in (1, batch)
    return shape[1:] if has_batch else shape


def swizzled(scales: Tensor) -> Tensor:
    """Scales (rows, blocks along K) in tiles of 128 x 4, padded with zeros. A tile holds its rows
    0, 32, 64 and 96, then 1, 33 and so on.
    """
    rows, deep = scales.shape
    outer, across = padded(rows, deep)
    whole = torch.nn.functional.pad(scales, (0, across - deep, 0, outer - rows))
    return whole.view(outer // 128, 4, 32, across // 4, 4).permute(0, 3, 2, 1, 4).flatten()


def unswizzled(scales: Tensor, rows: int, deep: int) -> Tensor:
    """The inverse of :func:`swizzled`, without the padding."""
    outer, across = padded(rows, deep)
    tiles = scales.view(outer // 128, across // 4, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(outer, across)[:rows, :deep]
