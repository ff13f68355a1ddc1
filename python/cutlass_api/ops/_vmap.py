"""Rules for vmap: a mapped dimension becomes a batch dimension of one launch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cutlass_api.fusion import activation as activations
from cutlass_api.ops import _epilogues
from cutlass_api.ops._broadcast import (
    batch_shape,
    fused_product,
    one_batch,
    operand_of,
    product,
    sum_with_product,
)
from cutlass_api.ops._library import LIBRARY
from cutlass_api.ops._products import OPS

Dims = Sequence[Any]
Result = tuple[Any, Any]


def register(rule: Callable[..., Result], *names: str) -> None:
    for name in names:
        torch.library.register_vmap(f"cutlass_api::{name}", rule, lib=LIBRARY)


def front(tensor: Tensor, dim: int | None, rank: int) -> Tensor:
    """The tensor with its mapped dimension first. Ones follow the mapped dimension, so that the
    other dimensions align with those of tensors of this rank.
    """
    if dim is None:
        return tensor
    tensor = tensor.movedim(dim, 0)
    ones = (1,) * (rank + 1 - tensor.dim())
    return tensor.reshape(tensor.shape[0], *ones, *tensor.shape[1:]) if ones else tensor


def factors(info: Any, dims: Dims, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor, int]:
    """A and B with the mapped dimension first, at least in A, and the rank of one product."""
    ranks = [x.dim() - (dim is not None) for x, dim in zip((A, B), dims, strict=True)]
    rank = max(ranks)
    a, b = front(A, dims[0], rank), front(B, dims[1], rank)
    if dims[0] is None and dims[1] is None:
        a = a.expand(info.batch_size, *(1,) * (rank - ranks[0]), *a.shape)
    return a, b, rank


def multiply(
    info: Any, in_dims: Dims, A: Tensor, B: Tensor, *, out_dtype: torch.dtype | None = None
) -> Result:
    a, b, _ = factors(info, in_dims, A, B)
    return product(a, b, out_dtype), 0


def add(
    info: Any,
    in_dims: Dims,
    input: Tensor,
    A: Tensor,
    B: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> Result:
    a, b, rank = factors(info, in_dims[1:], A, B)
    return sum_with_product(front(input, in_dims[0], rank), a, b, beta, alpha), 0


def epilogue(
    info: Any,
    in_dims: Dims,
    A: Tensor,
    B: Tensor,
    operands: Sequence[Tensor],
    epilogue: str,
    *,
    out_dtype: torch.dtype | None = None,
) -> Result:
    a, b, rank = factors(info, in_dims[:2], A, B)
    mapped = [front(x, dim, rank) for x, dim in zip(operands, in_dims[2], strict=True)]
    return fused_product(a, b, mapped, epilogue, out_dtype), 0


def batched(operator: Any) -> Callable[..., Result]:
    """A rule for an operator of A, B and tensors for the product, all of which may have a batch."""

    def rule(info: Any, in_dims: Dims, A: Tensor, B: Tensor, *rest: Any, **options: Any) -> Result:
        a, b, rank = factors(info, in_dims[:2], A, B)
        batch = batch_shape(a, b)
        others = [
            operand_of(front(x, dim, rank), batch) if isinstance(x, Tensor) else x
            for x, dim in zip(rest, in_dims[2:], strict=True)
        ]
        out = operator(one_batch(a, batch), one_batch(b, batch), *others, **options)
        return out.view(*batch, *out.shape[1:]), 0

    return rule


def linear(
    info: Any,
    in_dims: Dims,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Result:
    if not any(dim is not None for dim in in_dims[1:]):
        return OPS.linear(front(input, in_dims[0], 0), weight, bias, activation), 0
    source = _epilogues.linear(activation, bias is not None)
    return linear_of_weights(info, in_dims, input, weight, bias, source), 0


def linear_of_weights(
    info: Any, in_dims: Dims, input: Tensor, weight: Tensor, bias: Tensor | None, source: str
) -> Tensor:
    """`linear` with a weight or bias for each example."""
    rows = front(input, in_dims[0], 0)
    leading = rows.shape[:-1] if in_dims[0] is None else rows.shape[1:-1]
    batch = () if in_dims[0] is None else rows.shape[:1]
    rows = rows.reshape(*batch, math.prod(leading), rows.shape[-1])
    matrix = front(weight, in_dims[1], 0).mT
    dims = (None if in_dims[0] is None else 0, None if in_dims[1] is None else 0)
    operands = [] if bias is None else [bias]
    out, _ = epilogue(info, (*dims, in_dims[2:3]), rows, matrix, operands, source)
    return out.view(info.batch_size, *leading, out.shape[-1])


def linear_forward(
    info: Any,
    in_dims: Dims,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Result:
    stores = activation in _epilogues.PREACTIVATION_DERIVATIVES
    out_dims = (0, 0 if stores else None)
    if not any(dim is not None for dim in in_dims[1:]):
        return OPS.linear_forward(front(input, in_dims[0], 0), weight, bias, activation), out_dims
    source = _epilogues.linear(None, bias is not None)
    preactivation = linear_of_weights(info, in_dims, input, weight, bias, source)
    out = getattr(activations, activation or "identity")(preactivation)
    return (out, preactivation if stores else input.new_empty(0)), out_dims


def linear_weight_gradient(info: Any, in_dims: Dims, grad: Tensor, input: Tensor) -> Result:
    batches = [
        (x.expand(info.batch_size, *x.shape) if dim is None else front(x, dim, 0)).flatten(1, -2)
        for x, dim in zip((grad, input), in_dims, strict=True)
    ]
    return product(batches[0].mT, batches[1]), 0


def one_by_one(name: str) -> Callable[..., Result]:
    """A rule that launches for each example: the sizes of groups differ between examples."""
    operator = getattr(OPS, name)

    def rule(info: Any, in_dims: Dims, *args: Any) -> Result:
        def of(example: int) -> Tensor:
            pairs = zip(args, in_dims, strict=True)
            result: Tensor = operator(
                *(x if dim is None else x.select(dim, example) for x, dim in pairs)
            )
            return result

        return torch.stack([of(example) for example in range(info.batch_size)]), 0

    return rule


register(multiply, "mm", "bmm")
register(add, "addmm", "baddbmm")
register(epilogue, "mm_epilogue")
for name in ("int_mm", "mixed_mm", "scaled_mm"):
    register(batched(getattr(OPS, name)), name)
register(linear, "linear")
register(linear_forward, "linear_forward")
register(linear_weight_gradient, "linear_weight_grad")
for name in ("grouped_mm", "grouped_mm_weight_grad", "scaled_grouped_mm"):
    register(one_by_one(name), name)
