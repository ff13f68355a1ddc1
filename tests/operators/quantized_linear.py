"""``quantized_linear`` with weights of all formats, compared with the matrices that they store."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from cutlass_api import quantize, weights
from cutlass_api.ops import OPS
from support.weights import matrix
from torch import Tensor

from operators.case import FORWARD, Case, operator
from operators.eight_bits import BF16, F16, rounded

#: Extents of weights: two or three groups.
N, K = 6, 64


def exact(x: Tensor, *others: Any) -> Tensor:
    *fields, bias, activation = (*others, None, None)[:8]
    out = torch.nn.functional.linear(x.double(), matrix(*fields))
    out = out if bias is None else out + bias.double()
    return out if activation is None else getattr(torch.nn.functional, activation)(out)


def dtype_of(x: Tensor, *others: Any) -> torch.dtype:
    is_cast = torch.is_autocast_enabled(x.device.type)
    return torch.get_autocast_dtype(x.device.type) if is_cast else x.dtype


def float_operands(tensors: Sequence[Tensor]) -> list[int]:
    """The input, and the bias: the only other float of one dimension."""
    return [
        0,
        *(at for at, x in enumerate(tensors) if at and x.dim() == 1 and x.is_floating_point()),
    ]


def arguments(weight: weights.Weight, t: Callable[..., Tensor]) -> tuple[Any, ...]:
    weight = weight.to(t().device)
    return (*weight.fields, weight.permutation, type(weight).__name__)


def random_matrix() -> Tensor:
    return torch.randn(N, K, generator=torch.Generator().manual_seed(0)) / 8


def samples(t: Callable[..., Tensor]) -> Iterable[Any]:
    w = random_matrix()
    order = torch.randperm(K, generator=torch.Generator().manual_seed(1)).int()
    int4, uint4, nvfp4 = quantize.int4(w, 32), quantize.uint4(w.bfloat16(), 32), quantize.nvfp4(w)
    permuted = weights.Int4(int4.values, int4.scales, order).repack()
    added = weights.UInt4(uint4.values, uint4.scales, uint4.scales / 2).repack()
    of_rows = weights.NVFP4(nvfp4.values, nvfp4.scales, torch.rand(N, 1) + 0.5).repack()
    int8 = quantize.per_group(w, 32)
    bias = t(N)
    yield t(4, K), *arguments(int4.repack(), t), bias, "gelu"
    yield t(4, K), *arguments(int4, t)
    yield t(2, 3, K), *arguments(uint4.repack(), t), bias
    yield t(K), *arguments(added, t), None, "relu"
    yield t(3, K), *arguments(nvfp4.repack(), t)
    yield t(3, K), *arguments(of_rows, t), bias
    yield t(3, K), *arguments(permuted, t), bias
    yield t(0, K), *arguments(quantize.int4(w, None).repack(), t), bias
    yield t(3, K), *arguments(quantize.fp8(w), t), bias, "silu"
    yield t(3, K), *arguments(weights.Int8(*int8), t), bias
    yield t(3, K), *arguments(weights.UInt8(*quantize.per_group_asymmetric(w, 32)), t)


def mx_samples(t: Callable[..., Tensor]) -> Iterable[Any]:
    weight = quantize.mxfp4(random_matrix())
    yield t(4, K), *arguments(weight.repack(), t), t(N), "silu"
    yield t(2, 3, K), *arguments(weight, t)


def case(name: str, **fields: Any) -> Case:
    return Case(
        name=name,
        ours=operator("quantized_linear"),
        theirs=rounded(exact, dtype_of),
        wide=exact,
        leaves=float_operands,
        **fields,
    )


CASES = (
    case(
        "quantized_linear",
        own=samples,
        dtypes=[BF16, F16],
        into=OPS.quantized_linear.out,
    ),
    case(
        "quantized_linear, MXFP4",
        own=mx_samples,
        dtypes=[BF16],
        refuses=(*FORWARD, "autocast (float16)"),
        lacks=["out="],
    ),
)
