"""Products of any rank, from the operators of rank 2 and 3. Batch dimensions broadcast."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cutlass_api.ops._products import OPS, rows_of


def product(A: Tensor, B: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    """A (*, M, K) @ B (*, K, N)."""
    if B.dim() == 2:
        out: Tensor = OPS.mm(rows_of(A), B, out_dtype=out_dtype)
        return out if A.dim() == 2 else out.view(*A.shape[:-1], B.shape[-1])
    batch = batch_shape(A, B)
    out = OPS.bmm(one_batch(A, batch), one_batch(B, batch), out_dtype=out_dtype)
    return out.view(*batch, *out.shape[1:])


def sum_with_product(input: Tensor, A: Tensor, B: Tensor, beta: float, alpha: float) -> Tensor:
    """beta * input + alpha * (A @ B). input broadcasts to (*, M, N)."""
    batch = batch_shape(A, B)
    a, b = one_batch(A, batch), one_batch(B, batch)
    out: Tensor = OPS.baddbmm(operand_of(input, batch), a, b, beta=beta, alpha=alpha)
    return out.view(*batch, *out.shape[1:])


def fused_product(
    A: Tensor,
    B: Tensor,
    operands: Sequence[Tensor],
    epilogue: str,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """epilogue(A @ B, *operands). The operands broadcast to (*, M, N)."""
    if A.dim() <= 3 and B.dim() <= 3:
        return OPS.mm_epilogue(A, B, operands, epilogue, out_dtype=out_dtype)
    batch = batch_shape(A, B)
    a, b = one_batch(A, batch), one_batch(B, batch)
    flat = [operand_of(operand, batch) for operand in operands]
    out: Tensor = OPS.mm_epilogue(a, b, flat, epilogue, out_dtype=out_dtype)
    return out.view(*batch, *out.shape[1:])


def batch_shape(A: Tensor, B: Tensor) -> Any:
    return torch.broadcast_shapes(A.shape[:-2], B.shape[:-2])


def one_batch(tensor: Tensor, batch: Sequence[int]) -> Tensor:
    """(*, M, K) as (L, M, K), a view if the batch dimensions permit."""
    matrix = tensor.shape[-2:]
    return tensor.expand(*batch, *matrix).reshape(math.prod(batch), *matrix)


def operand_of(operand: Tensor, batch: Sequence[int]) -> Tensor:
    """An operand that broadcasts to (*, M, N), as one that broadcasts to (L, M, N)."""
    return operand if operand.dim() <= 2 else one_batch(operand, batch)
