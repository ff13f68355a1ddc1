"""Quantization to 8 bits, with scales in the layouts that ``torch._scaled_mm`` takes.

Each function returns ``(quantized, scales)`` with ``input`` close to ``quantized * scales``, and is
one kernel on a GPU (two for :func:`per_tensor`)::

    a, scale_a = cutlass_api.quantize.per_row(x)
    b, scale_b = cutlass_api.quantize.per_row(weight)  # (N, K)
    out = cutlass_api.scaled_mm(a, b.t(), scale_a, scale_b.t())

- ``input``: a matrix in float32, float16 or bfloat16 on the CPU or a CUDA device, with any strides.
  Contiguous rows or columns that begin at multiples of 16 bytes are fast.
- ``dtype``: float8_e4m3fn, float8_e5m2, or int8 (symmetric: -127 to 127).
- A scale is float32: the largest magnitude of its group, divided by the largest finite number of
  ``dtype``. A group of zeros has the scale 2^-126, the smallest normal float32.
- ``quantized`` is ``input * (1 / scale)`` in float32, rounded to nearest even. The largest
  magnitude of a group becomes the largest finite number of ``dtype``, unless the scale is 2^-126.
- A group that contains NaN or infinity has this value as its scale, and ``quantized * scales`` is
  NaN in the whole group.
- ``quantized`` is row-major, or column-major if ``input`` is.
- The functions trace and compile with ``fullgraph=True``. They have no gradients.

The kernels are in ``kernels/quantize.cuh``. Importing this module imports torch.
"""

import torch
from torch import Tensor

from cutlass_api.ops._products import OPS
from cutlass_api.ops._quantize import WHOLE

E4M3 = torch.float8_e4m3fn


def _quantize(input: Tensor, dtype: torch.dtype, block: tuple[int, int]) -> tuple[Tensor, Tensor]:
    quantized, scales = OPS.quantize(input, dtype, block)
    return quantized, scales


def per_tensor(input: Tensor, dtype: torch.dtype = E4M3) -> tuple[Tensor, Tensor]:
    """One scale, of shape (). Two passes over the input.

    Raises ValueError for another rank than 2 and for dtypes that are not served.
    """
    return _quantize(input, dtype, (WHOLE, WHOLE))


def per_row(input: Tensor, dtype: torch.dtype = E4M3) -> tuple[Tensor, Tensor]:
    """A scale for each row: shape (M, 1) for an input (M, K).

    Rows of up to 64 KiB are read once. Raises as :func:`per_tensor`.
    """
    return _quantize(input, dtype, (1, WHOLE))


def per_column(input: Tensor, dtype: torch.dtype = E4M3) -> tuple[Tensor, Tensor]:
    """A scale for each column: shape (1, N) for an input (K, N).

    Columns of a row-major input are read once up to 2048 rows. Raises as :func:`per_tensor`.
    """
    return _quantize(input, dtype, (WHOLE, 1))


def per_block(
    input: Tensor, dtype: torch.dtype = E4M3, block: tuple[int, int] = (1, 128)
) -> tuple[Tensor, Tensor]:
    """A scale for each block of (1, 128), (128, 1) or (128, 128) elements.

    The scales of an input (M, K) have shape (ceil(M / rows), ceil(K / columns)) for a block of
    (rows, columns), and the memory layout that ``torch._scaled_mm`` requires: those of (1, 128) are
    column-major, those of (128, 1) row-major. Those of (128, 128) have the order of the input, with
    a leading dimension that is a multiple of 4.

    Raises ValueError for other blocks, and as :func:`per_tensor`.
    """
    return _quantize(input, dtype, block)


__all__ = ["per_block", "per_column", "per_row", "per_tensor"]
