"""Quantization to 8 and 4 bits.

:func:`int4`, :func:`uint4`, :func:`mxfp4`, :func:`nvfp4`, :func:`fp8` and :func:`int8` return a
weight of :mod:`cutlass_api.weights`.

Each function ``per_...`` returns ``(quantized, scales)`` with ``input`` close to
``quantized * scales``, which :func:`dequantize` computes (:func:`per_group_asymmetric` also zero
points): 8 bits, with scales in the layouts that products take. It is one kernel on a GPU (two for
:func:`per_tensor`)::

    a, scale_a = cutlass_api.quantize.per_row(x)
    b, scale_b = cutlass_api.quantize.per_row(weight)  # (N, K)
    out = cutlass_api.scaled_mm(a, b.t(), scale_a, scale_b.t())

- ``input``: a matrix in float32, float16 or bfloat16 on the CPU or a CUDA device, with any strides.
  Contiguous rows or columns that begin at multiples of 16 bytes are fast. An input (*, K) counts as
  the matrix of its rows; scales of rows, or of elements along K, then have shape (*, 1) or so.
- ``dtype``, of scales of tensors, rows, columns and blocks: float8_e4m3fn, float8_e5m2, or int8
  (symmetric: -127 to 127).
- A scale is float32: the largest magnitude of its group, divided by the largest finite number of
  ``dtype``. A group of zeros has the scale 2^-126, the smallest normal float32.
- ``quantized`` is ``input * (1 / scale)`` in float32, rounded to nearest even. The largest
  magnitude of a group becomes the largest finite number of ``dtype``, unless the scale is 2^-126.
- A group that contains NaN or infinity has such a value as its scale, and ``quantized * scales`` is
  NaN in the whole group.
- :func:`per_mx_block` and :func:`per_group_asymmetric` compute other scales, and describe them.
- ``quantized`` is row-major, or column-major if ``input`` is.
- These functions trace and compile with ``fullgraph=True``. They have no gradients:
  backward raises RuntimeError.

The kernels are in ``kernels/quantize.cuh``. Importing this module imports torch.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from cutlass_api._dtypes import FLOAT8, FLOATS
from cutlass_api.library import ScaleSwizzleMode
from cutlass_api.ops import OPS
from cutlass_api.ops._checks import checked
from cutlass_api.ops._library import refuse, rows_of
from cutlass_api.utils import ceil_div
from cutlass_api.weights import MXFP4, NVFP4, Float8, Int4, Int8, UInt4
from cutlass_api.weights._formats import GROUPS, names
from cutlass_api.weights._scales import (
    BLOCK,
    MX,
    MX_SWIZZLED,
    ROW,
    TENSOR,
    WHOLE,
    WIDE_BLOCK,
    Scales,
    unswizzled,
)
from cutlass_api.weights._stacks import Form, stack

E4M3 = torch.float8_e4m3fn
#: What :func:`per_block` serves: scales, and whether they are those of A.
BLOCKS = {
    scales.block(is_a): (scales, is_a)
    for scales, is_a in ((BLOCK, True), (BLOCK, False), (WIDE_BLOCK, True))
}


def _quantize(
    input: Tensor, dtype: torch.dtype, scales: Scales, is_a: bool = True
) -> tuple[Tensor, ...]:
    """What the operator returns of all rows of an input; scales of single rows have its rows."""
    # The rank of a proxy of torch.fx is unknown, and the operator refuses rank 0.
    is_matrix = not isinstance(input, Tensor) or input.dim() in (0, 2)
    rows = input if is_matrix else rows_of(input)
    found: tuple[Tensor, ...] = OPS.quantize(rows, dtype, scales.block(is_a), scales.is_swizzled)
    if is_matrix:
        return found
    values, *others = found
    if is_a and scales.extent == 1 and not scales.is_swizzled:
        others = [each.reshape(*input.shape[:-1], each.shape[-1]) for each in others]
    return (values.reshape(input.shape), *others)


@checked
def per_tensor(input: Tensor, dtype: torch.dtype = E4M3) -> tuple[Tensor, Tensor]:
    """One scale, of shape (). Two passes over the input.

    Raises ValueError for rank 0 and for dtypes that are not served.
    """
    values, scale = _quantize(input, dtype, TENSOR)
    return values, scale


@checked
def per_row(input: Tensor, dtype: torch.dtype = E4M3) -> tuple[Tensor, Tensor]:
    """A scale for each row: shape (M, 1) for an input (M, K).

    Rows of up to 64 KiB are read once. Raises as :func:`per_tensor`.
    """
    values, scales = _quantize(input, dtype, ROW)
    return values, scales


@checked
def per_column(input: Tensor, dtype: torch.dtype = E4M3) -> tuple[Tensor, Tensor]:
    """A scale for each column: shape (1, N) for an input (K, N).

    Columns of a row-major input are read once up to 2048 rows, longer ones twice. Raises as
    :func:`per_tensor`.
    """
    values, scales = _quantize(input, dtype, ROW, is_a=False)
    return values, scales


@checked
def per_block(
    input: Tensor, dtype: torch.dtype = E4M3, block: tuple[int, int] = (1, 128)
) -> tuple[Tensor, Tensor]:
    """A scale for each block of (1, 128), (128, 1) or (128, 128) elements.

    The scales of an input (M, K) have shape (ceil(M / rows), ceil(K / columns)) for a block of
    (rows, columns). Those of int8 are row-major for a row-major input. Those of float8 have the
    memory layout that ``torch._scaled_mm`` requires: those of (1, 128) are column-major, those of
    (128, 1) row-major. Those of (128, 128) have the order of the input, with a leading dimension
    that is a multiple of 4. safetensors saves ``scales.contiguous()``, or the tensors of
    :func:`fp8`.

    Raises ValueError for other blocks, and as :func:`per_tensor`.
    """
    extents = tuple(block) if isinstance(block, (list, tuple)) else block
    if extents not in BLOCKS:
        raise refuse("quantize", f"block is {block!r}; pass one of {names(tuple(BLOCKS))}")
    values, scales = _quantize(input, dtype, *BLOCKS[extents])
    return values, scales


@checked
def per_mx_block(
    input: Tensor,
    dtype: torch.dtype = E4M3,
    swizzle: ScaleSwizzleMode = ScaleSwizzleMode.SwizzleNone,
) -> tuple[Tensor, Tensor]:
    """A scale in float8_e8m0fnu for each 32 elements of a row: MXFP8, for ``scaled_mm``.

    - ``dtype``: float8_e4m3fn or float8_e5m2.
    - ``swizzle``: the layout of the scales of an input (M, K). ``SwizzleNone``: a matrix
      (M, ceil(K / 32)). ``Swizzle32x4x4``: a vector of round_up(M, 128) * round_up(ceil(K / 32), 4)
      elements in tiles of 128 x 4, as ``torch._scaled_mm`` takes it. The scales of padding are
      2^-127. The last block of a row may be partial.

    The arithmetic is that of the OCP Microscaling Formats (MX) Specification 1.0, section 6.3:

    - A scale is the largest power of two that is at most the largest magnitude of the block,
      divided by the largest power of two of ``dtype``: 2^8 (float8_e4m3fn) or 2^15 (float8_e5m2).
      It is at least 2^-127. A block of zeros or subnormal float32 has 2^-127.
    - ``quantized`` is ``input / scale``, rounded to nearest even. Magnitudes of the quotient are
      less than 512 or 65536. Those beyond the largest finite number, 448 or 57344, become this
      number.
    - A block that contains NaN or infinity has the scale NaN, and all its elements are NaN.

    Raises ValueError for other dtypes and swizzles, and as :func:`per_tensor`.
    """
    if dtype not in FLOAT8:
        raise refuse("quantize", f"the output dtype is {dtype}; pass one of {names(FLOAT8)}")
    if not isinstance(swizzle, ScaleSwizzleMode):
        raise refuse("quantize", f"swizzle is {swizzle!r}; pass a ScaleSwizzleMode")
    of_blocks = MX_SWIZZLED if swizzle is ScaleSwizzleMode.Swizzle32x4x4 else MX
    values, scales = _quantize(input, dtype, of_blocks)
    return values, scales


@checked
def per_group(input: Tensor, group: int = 128) -> tuple[Tensor, Tensor]:
    """int8, with a scale for each ``group`` elements of a row, for ``mixed_mm``.

    ``group``: 32, 64 or 128; divides the columns. The scales of an input (M, K) have shape
    (M, K / group)::

        b, scale = cutlass_api.quantize.per_group(weight)  # (N, K)
        out = cutlass_api.mixed_mm(x, b.t(), scale.t())

    Raises ValueError for other groups, and as :func:`per_tensor`.
    """
    values, scales = _quantize(input, torch.int8, _group(input, group))
    return values, scales


@checked
def per_group_asymmetric(input: Tensor, group: int = 128) -> tuple[Tensor, Tensor, Tensor]:
    """uint8, with a scale and a zero point for each ``group`` elements of a row, for ``mixed_mm``.

    Returns ``(quantized, scales, zero_points)`` with ``input`` close to
    ``(quantized - zero_points) * scales``. Groups and shapes are those of :func:`per_group`; zero
    points are uint8::

        b, scale, zero = cutlass_api.quantize.per_group_asymmetric(weight)  # (N, K)
        out = cutlass_api.mixed_mm(x, b.t(), scale.t(), zero_point=zero.t())

    - ``scale = (max - min) / 255`` in float32, at least 2^-126. ``max`` is at least 0 and ``min``
      at most 0, so that zeros are exact and a zero point fits into uint8.
    - ``zero_point`` is ``-min * (1 / scale)``, rounded to nearest even. ``quantized`` is
      ``input * (1 / scale)``, rounded to nearest even, plus the zero point, between 0 and 255.
    - The error is half a scale at most, besides the rounding errors of float32.
    - A group that contains NaN or infinity has NaN or infinity as its scale, zeros as elements and
      zero point, and dequantizes to NaN.

    Raises ValueError as :func:`per_group`.
    """
    values, scales, zero_points = _quantize(input, torch.uint8, _group(input, group))
    return values, scales, zero_points


def _group(input: Tensor, group: int) -> Scales:
    if group not in GROUPS:
        raise refuse("quantize", f"group is {group}; pass one of {names(GROUPS)}")
    # The sizes of a proxy of torch.fx are unknown.
    if isinstance(input, Tensor) and input.dim() and input.shape[-1] % group:
        raise refuse(
            "quantize",
            f"the input has {input.shape[-1]} columns, which a group of {group} does not divide; "
            "pad the columns or pass another group",
        )
    return GROUPS[group]


@checked
def dequantize(
    quantized: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """``(quantized - zero_points) * scales`` of what a function ``per_...`` returns, in float32,
    rounded to ``dtype`` once. A weight of :mod:`cutlass_api.weights` has ``dequantize()``.

    - ``quantized``: (*, K). ``scales``, ``zero_points``: as :func:`per_tensor`, :func:`per_row`,
      :func:`per_column`, :func:`per_block`, :func:`per_mx_block` (also swizzled),
      :func:`per_group` or :func:`per_group_asymmetric` returned them.

    Scales that fit several blocks are those of the largest one: 128, 64 or 32 elements.

    Raises ValueError for scales of another shape.
    """
    rows = rows_of(quantized)
    values = rows.float()
    if zero_points is not None:
        values = values - _spread(zero_points, quantized, rows)
    return (values * _spread(scales, quantized, rows)).to(dtype).reshape(quantized.shape)


def _spread(scales: Tensor, quantized: Tensor, rows: Tensor) -> Tensor:
    """Scales, or zero points, of the rows of a matrix, for each element or to be broadcast."""
    m, k = rows.shape
    if scales.numel() == 1:
        return scales.reshape(()).float()
    if scales.dim() == 1 and tuple(scales.shape) == MX_SWIZZLED.shape(m, k):
        scales = unswizzled(scales, m, MX.shape(m, k)[1])
    if scales.dim() == quantized.dim() and scales.shape[:-1] == quantized.shape[:-1]:
        scales = rows_of(scales)
    spread = scales.float()
    for dim, extent in enumerate((m, k) if scales.dim() == 2 else ()):
        count = scales.shape[dim]
        if count in (1, extent):
            continue
        block = next((each for each in (128, 64, 32) if ceil_div(extent, each) == count), None)
        if block is None:
            break
        spread = spread.repeat_interleave(block, dim).narrow(dim, 0, extent)
    else:
        if scales.dim() == 2:
            return spread
    raise refuse(
        "quantize",
        f"scales of shape {list(scales.shape)} are none of {list(quantized.shape)}; pass one for "
        "each tensor, row, column or block, as the function returned them",
    )


@checked
def int4(weight: Tensor, group: int | None = 128) -> Int4:
    """Integers of 4 bits, -8 to 7, with a scale for each ``group`` elements of a row.

    - ``weight``: (N, K) in float32, float16, bfloat16 or float64 on any device; or (G, N, K), as
      the experts of a layer, which yields a stack of weights. K is a multiple of 32. The same holds
      for the other functions that return a weight.
    - ``group``: 32, 64 or 128. The last group may be partial. None or -1: all of K.
    - A scale is the largest magnitude of its group over 7.5, rounded to the dtype of ``weight``, or
      from float64 to float32. An element is the quotient by the rounded scale, rounded to nearest
      even, -8 at least and 7 at most. The error is half a scale, besides rounding of the scale.
    - A group that contains NaN or infinity dequantizes to NaN.

    Raises ValueError for other weights and groups.
    """
    depth = _depth("int4", group)
    return _each("int4", weight, lambda matrix: Int4._quantized(matrix, depth))


@checked
def uint4(weight: Tensor, group: int | None = 128) -> UInt4:
    """Integers of 4 bits, 0 to 15, with a scale and a zero point for each ``group`` elements of a
    row.

    The scale is the range of its group, which includes 0, over 15. The zero point is
    ``-min / scale``, rounded to nearest even, so that zeros are exact. Otherwise as :func:`int4`.
    """
    depth = _depth("uint4", group)
    return _each("uint4", weight, lambda matrix: UInt4._quantized(matrix, depth))


@checked
def mxfp4(weight: Tensor) -> MXFP4:
    """float4_e2m1fn with a power of two for each 32 elements of a row.

    Scales are those of :func:`per_mx_block`, whose arithmetic is that of the OCP Microscaling
    Formats (MX) Specification 1.0, for the largest power of two of float4_e2m1fn, 4. Elements are
    rounded to nearest even, and saturate at 6. Otherwise as :func:`int4`.
    """
    return _each("mxfp4", weight, lambda matrix: MXFP4._quantized(matrix, MX.depth))


@checked
def nvfp4(weight: Tensor) -> NVFP4:
    """float4_e2m1fn with a scale in float8_e4m3fn for each 16 elements of a row, and a factor of
    the matrix.

    The factor is the largest magnitude of the matrix over 6 * 448. A scale is the largest magnitude
    of its block over 6 times the factor, rounded to nearest even, 2^-9 at least and 448 at most; 1
    for a block of zeros. An element is the quotient by scale times factor, rounded to nearest even,
    and saturates at 6. These are the results of NVIDIA's ModelOpt, but for a matrix of zeros, whose
    scales ModelOpt makes NaN. A matrix that contains NaN or infinity dequantizes to NaN. Otherwise
    as :func:`int4`.
    """
    return _each("nvfp4", weight, lambda matrix: NVFP4._quantized(matrix, 16))


@checked
def fp8(weight: Tensor, block: str | tuple[int, int] = "row") -> Float8:
    """float8_e4m3fn, with scales that the functions ``per_...`` compute.

    ``block``: what shares a scale: "row", "tensor", (1, 128) or (128, 128). Raises ValueError for
    others, and as :func:`int4`.
    """
    shared = {"tensor": TENSOR, "row": ROW, (1, 128): BLOCK, (128, 128): WIDE_BLOCK}
    if block not in shared:
        served = ", ".join(map(repr, shared))
        raise refuse("quantize", f"block is {block!r}; pass one of {served}")
    scales = shared[block]
    return _each("fp8", weight, lambda matrix: Float8(*_quantize(_served(matrix), E4M3, scales)))


@checked
def int8(weight: Tensor, group: int | None = None) -> Int8:
    """int8, with a scale in float32 for each row, or for each ``group`` elements of a row, which
    divide K: those of :func:`per_row` and :func:`per_group`.

    ``group``: 32, 64 or 128. None or -1: all of K. Raises ValueError as :func:`int4`.
    """
    depth = _depth("int8", group)

    def quantized(matrix: Tensor) -> Int8:
        scales = ROW if depth == WHOLE else _group(matrix, depth)
        return Int8(*_quantize(_served(matrix), torch.int8, scales))

    return _each("int8", weight, quantized)


def _served(matrix: Tensor) -> Tensor:
    """A matrix that the operator takes: float64 in float32."""
    return matrix.float() if matrix.dtype is torch.float64 else matrix


def _each(name: str, weight: Tensor, quantized: Callable[[Tensor], Form]) -> Form:
    """A matrix (N, K) as a weight; those of (G, N, K), one by one, as a stack."""
    is_stack = weight.dim() == 3 and weight.shape[0] > 0
    if not (is_stack or weight.dim() == 2) or weight.dtype not in (torch.float64, *FLOATS):
        raise refuse(
            "quantize",
            f"{name} of {weight.dtype} {list(weight.shape)}; pass a matrix in {names(FLOATS)}, or "
            "several behind each other",
        )
    if weight.shape[-1] % 32:
        raise refuse(
            "quantize", f"{name} of K = {weight.shape[-1]}; pad K with zeros to a multiple of 32"
        )
    weight = weight.detach()
    return stack([quantized(each) for each in weight]) if is_stack else quantized(weight)


def _depth(name: str, group: int | None) -> int:
    if group is not None and group not in (WHOLE, *GROUPS):
        served = names((*GROUPS, WHOLE, None))
        raise refuse("quantize", f"group of {name} is {group}; pass one of {served}")
    return WHOLE if group is None else group


__all__ = [
    "dequantize",
    "fp8",
    "int4",
    "int8",
    "mxfp4",
    "nvfp4",
    "per_block",
    "per_column",
    "per_group",
    "per_group_asymmetric",
    "per_mx_block",
    "per_row",
    "per_tensor",
    "uint4",
]
