"""Products of operands of any rank, by ``mm`` and ``bmm``."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from cutlass_api._batches import output_shape
from cutlass_api._dtypes import FLOAT8
from cutlass_api.ops._library import rows_of
from cutlass_api.ops._operator import OPS


def product(A: Tensor, B: Tensor, out_dtype: torch.dtype | None) -> Tensor:
    """A (*, M, K) @ B (*, K, N), or of vectors (K,). No factor is expanded: of a batch dimension
    that one factor lacks, the other's matrices are stacked.
    """
    shape = output_shape(A, B)
    A, B = (A[None] if A.dim() == 1 else A), (B[:, None] if B.dim() == 1 else B)
    sizes_a, sizes_b = A.shape[:-2], B.shape[:-2]
    if all(size == 1 for size in sizes_b):
        matrix = B if B.dim() == 2 else B.reshape(B.shape[-2:])
        out: Tensor = OPS.mm(rows_of(A), matrix, out_dtype=out_dtype)
        return out if out.shape == shape else out.view(shape)
    if all(size == 1 for size in sizes_a):
        A, B = A.reshape(A.shape[-2:]), B.flatten(0, -3)
        return OPS.bmm(A, B, broadcast=True, out_dtype=out_dtype).view(shape)
    if sizes_a == sizes_b:
        A, B = A.flatten(0, -3), B.flatten(0, -3)
        return OPS.bmm(A, B, out_dtype=out_dtype).view(shape)
    if 0 in shape:
        return empty_product(A, B, shape, out_dtype)
    rank = max(A.dim(), B.dim()) - 2
    A, B = (x.reshape(*(1,) * (rank + 2 - x.dim()), *x.shape) for x in (A, B))
    pairs = list(enumerate(zip(A.shape[:rank], B.shape[:rank], strict=True)))
    of_a = [at for at, (size_a, size_b) in pairs if size_b == 1 and size_a != 1]
    of_b = [at for at, (size_a, size_b) in pairs if size_a == 1 and size_b != 1]
    both = [at for at in range(rank) if at not in (*of_a, *of_b)]
    # For each of the batch dimensions of both, a product of matrices (of_a, M, K) and (K, of_b, N).
    batch, rows, columns = (
        math.prod([shape[at] for at in dims]) for dims in (both, (*of_a, rank), (*of_b, rank + 1))
    )
    A = A.permute(*both, *of_b, *of_a, rank, rank + 1).reshape(batch, rows, A.shape[-1])
    B = B.permute(*both, *of_a, rank, *of_b, rank + 1).reshape(batch, B.shape[-2], columns)
    order = (*both, *of_a, rank, *of_b, rank + 1)
    out = OPS.bmm(A, B, out_dtype=out_dtype).view([shape[at] for at in order])
    return out.permute([order.index(at) for at in range(rank + 2)]).contiguous()


def empty_product(
    A: Tensor, B: Tensor, shape: Sequence[int], out_dtype: torch.dtype | None
) -> Tensor:
    """A product without elements, whose derivatives are those of products. DTensor may not return
    from a reshape of tensors without elements.
    """
    factors = A.new_empty((0, A.shape[-1])), B.new_empty((B.shape[-2], 0))
    empty = OPS.mm(*factors, out_dtype=out_dtype).new_empty(shape)
    floats = [x for x in (A, B) if x.is_floating_point() and x.dtype not in FLOAT8]
    rows = [x.sum()[None, None][:, :0] for x in floats]
    return empty + sum(OPS.mm(x, x.mT)[0, 0] for x in rows)
