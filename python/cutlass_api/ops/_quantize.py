"""The operator ``quantize``: a matrix in 8 bits, its scales, and its zero points."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cutlass_api.ops._library import refuse
from cutlass_api.weights import _kernels
from cutlass_api.weights._formats import SMALLEST, Fields, Format, find_format, names

INPUTS = (torch.float32, torch.float16, torch.bfloat16)


def quantize(
    input: Tensor, dtype: torch.dtype, block: Sequence[int], swizzle: bool = False
) -> list[Tensor]:
    """A matrix in an 8-bit dtype, its scales, one for each block of the extents ``block``, and, for
    uint8, its zero points.

    :mod:`cutlass_api.quantize` describes layouts and arithmetic. An extent of -1 is that of the
    matrix. float8 in blocks of 32 is MXFP8: its scales are float8_e8m0fnu, and swizzled on request;
    those of (32, 1) as those of the transpose.
    """
    if input.dim() != 2:
        raise refuse("quantize", f"the input has shape {list(input.shape)}; pass a matrix")
    if input.dtype not in INPUTS:
        raise refuse("quantize", f"the input dtype is {input.dtype}; pass one of {names(INPUTS)}")
    try:
        format, is_a = find_format(dtype, tuple(block), swizzle)
    except ValueError as error:
        raise refuse("quantize", str(error)) from None
    if input.stride(0) == 1 and input.stride(1) != 1:
        fields = quantized(input.t(), format, not is_a).t()
    else:
        fields = quantized(input, format, is_a)
    return [each for each in fields if each is not None]


def quantized(input: Tensor, format: Format, is_a: bool) -> Fields:
    """The fields of a matrix (N, K), or of (K, N) without ``is_a``, in row-major order."""
    out = format.empty(input, is_a)
    if isinstance(input, FakeTensor) or input.is_meta:
        pass
    elif input.numel() == 0:
        # Scales of blocks are empty, too.
        if out.scales.numel():
            out.scales.fill_(SMALLEST)
    elif input.is_cuda:
        _kernels.launch(input, out, format, is_a)
    else:
        compute(input, out, format, is_a)
    return out


def compute(input: Tensor, out: Fields, format: Format, is_a: bool) -> None:
    """On the CPU."""
    if is_a:
        format.compute(input, out)
    else:
        format.compute(input.t(), out.t())
