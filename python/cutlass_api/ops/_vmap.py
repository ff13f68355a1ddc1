"""Rules for vmap: a mapped dimension becomes a batch dimension of one launch."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cutlass_api.fusion import activation as activations
from cutlass_api.ops import _epilogues
from cutlass_api.ops._broadcast import fused_product, product, sum_with_product
from cutlass_api.ops._library import LIBRARY
from cutlass_api.ops._products import FLOAT8, OPS
from cutlass_api.ops._scales import mixed_operands, scaled_operands

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


def mixed(
    info: Any,
    in_dims: Dims,
    A: Tensor,
    B: Tensor,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Result:
    if scale is None and zero_point is None:
        return multiply(info, in_dims[:2], A, B, out_dtype=out_dtype)
    example = examples(in_dims, A, B, scale, zero_point)
    if scale is None or mixed_operands(*example)[1]:
        rule = one_by_one("mixed_mm", out_dtype=out_dtype)
        return rule(info, (*in_dims, None, None)[:4], A, B, scale, zero_point)
    dims = (*in_dims[:2], in_dims[2:3])
    return epilogue(info, dims, A, B, [scale], _epilogues.scaled("scale_b"), out_dtype=out_dtype)


def scaled(
    info: Any,
    in_dims: Dims,
    A: Tensor,
    B: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Result:
    a, b, of_a, of_b = examples(in_dims, A, B, scale_a, scale_b)
    if scaled_operands("scaled_mm", a, b, of_a, of_b, None)[1]:
        rest = (scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)
        return one_by_one("scaled_mm")(info, (*in_dims, *(None,) * 8)[:8], A, B, *rest)
    out_dtype = out_dtype or A.dtype
    if out_dtype not in FLOAT8:
        scale_result = None
    operands = dict(scale_a=scale_a, scale_b=scale_b, bias=bias, scale_result=scale_result)
    mapped = (*in_dims[2:], None, None)[:4]
    used = {
        name: (operand, dim)
        for (name, operand), dim in zip(operands.items(), mapped, strict=True)
        if operand is not None
    }
    dims = (*in_dims[:2], [dim for _, dim in used.values()])
    given = [operand for operand, _ in used.values()]
    return epilogue(info, dims, A, B, given, _epilogues.scaled(*used), out_dtype=out_dtype)


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


def examples(in_dims: Dims, *tensors: Any) -> list[Any]:
    """The tensors of the first example."""
    pairs = zip(tensors, (*in_dims, *(None,) * len(tensors)), strict=False)
    return [x if dim is None else x.select(dim, 0) for x, dim in pairs]


def one_by_one(name: str, **options: Any) -> Callable[..., Result]:
    """A rule that launches for each example: for groups whose sizes differ between examples, and
    for scales of blocks.
    """
    operator = getattr(OPS, name)

    def rule(info: Any, in_dims: Dims, *args: Any) -> Result:
        def of(example: int) -> Tensor:
            pairs = zip(args, in_dims, strict=True)
            result: Tensor = operator(
                *(x if dim is None else x.select(dim, example) for x, dim in pairs), **options
            )
            return result

        return torch.stack([of(example) for example in range(info.batch_size)]), 0

    return rule


register(multiply, "mm", "bmm", "int_mm")
register(add, "addmm", "baddbmm")
register(epilogue, "mm_epilogue")
register(mixed, "mixed_mm")
register(scaled, "scaled_mm")
register(linear, "linear")
register(linear_forward, "linear_forward")
for name in ("grouped_mm", "grouped_mm_weight_grad", "scaled_grouped_mm"):
    register(one_by_one(name), name)
