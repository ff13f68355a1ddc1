"""``quantized_grouped_mm`` with stacks of weights, compared with the matrices that they store."""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from cutlass_api import quantize, weights
from support.weights import matrix
from torch import Tensor

from operators.case import FORWARD, Case, operator
from operators.eight_bits import BF16, F16, rounded
from operators.quantized_linear import dtype_of

#: Groups, and extents of their weights.
G, N, K = 3, 6, 64


def exact(
    a: Tensor,
    values: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    factor: Tensor | None,
    format: str,
    offs: Tensor,
    zero_rest: bool = False,
) -> Tensor:
    """The product in float64, with zeros past the last group."""
    ends = [0, *offs.tolist()]
    parts = []
    for at, (start, end) in enumerate(pairwise(ends)):
        fields = (x if x is None else x[at] for x in (values, scales, zeros, factor))
        parts.append(a[start:end].double() @ matrix(*fields, None, format).t())
    parts.append(a.double()[ends[-1] :, :1].expand(-1, scales.shape[1]) * 0)
    return torch.cat(parts)


def arguments(stack: weights.Weight, t: Callable[..., Tensor]) -> tuple[Any, ...]:
    stack = stack.to(t().device)
    return (*stack.fields, type(stack).__name__)


def random_matrices() -> Tensor:
    return torch.randn(G, N, K, generator=torch.Generator().manual_seed(0)) / 8


def ends(t: Callable[..., Tensor], *of_groups: int) -> Tensor:
    return torch.tensor(of_groups, dtype=torch.int32, device=t().device)


def samples(t: Callable[..., Tensor]) -> Iterable[Any]:
    w = random_matrices()
    yield t(5, K), *arguments(quantize.int4(w, 32).repack(), t), ends(t, 2, 2, 5)
    yield t(5, K), *arguments(quantize.uint4(w.bfloat16(), 32), t), ends(t, 0, 5, 5).long()
    yield t(4, K), *arguments(quantize.nvfp4(w).repack(), t), ends(t, 1, 2, 3), True
    yield t(4, K), *arguments(quantize.fp8(w), t), ends(t, 1, 3, 4)


def mx_samples(t: Callable[..., Tensor]) -> Iterable[Any]:
    yield t(5, K), *arguments(quantize.mxfp4(random_matrices()).repack(), t), ends(t, 2, 2, 5)


def case(name: str, **fields: Any) -> Case:
    return Case(
        name=name,
        ours=operator("quantized_grouped_mm"),
        theirs=rounded(exact, dtype_of),
        wide=exact,
        leaves=lambda tensors: [0],
        lacks=["out="],
        **fields,
    )


CASES = (
    case("quantized_grouped_mm", own=samples, dtypes=[BF16, F16]),
    case(
        "quantized_grouped_mm, MXFP4",
        own=mx_samples,
        dtypes=[BF16],
        refuses=(*FORWARD, "autocast (float16)"),
    ),
)
