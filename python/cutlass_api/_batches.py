"""``cutlass_api.matmul`` of operands with several batch dimensions, of any framework."""

import math
from collections.abc import Callable
from typing import Any

from cutlass_api import _core

Shape = tuple[int, ...]


def matmul(
    A: Any,
    B: Any,
    out: Any = None,
    accumulator_type: Any = None,
    *,
    out_dtype: Any = None,
    epilogue: Callable[..., Any] | str | None = None,
    **operands: Any,
) -> Any:
    """Computes one batch of all products, and restores the batch dimensions."""
    for name, tensor in (("A", A), ("B", B)):
        if tensor.ndim < 2:
            raise ValueError(
                f"{name} must have rank 2 or more, but has rank {tensor.ndim} "
                f"(shape {list(tensor.shape)})"
            )
    if epilogue is not None and _core.trace_epilogue(epilogue).outputs != ["D"]:
        raise ValueError(
            f"A has rank {A.ndim} and B {B.ndim}, but an epilogue with outputs except D needs "
            "operands of rank 2 or 3: reshape them to one batch dimension"
        )
    batch = broadcast_shape(tuple(A.shape[:-2]), tuple(B.shape[:-2]))
    flat = {name: one_batch(operand, batch) for name, operand in operands.items()}
    result = _core.matmul(
        one_batch(A, batch),
        one_batch(B, batch),
        None,
        accumulator_type,
        out_dtype=out_dtype,
        epilogue=epilogue,
        **flat,
    ).reshape((*batch, A.shape[-2], B.shape[-1]))
    if out is None:
        return result
    if tuple(out.shape) != tuple(result.shape):
        raise ValueError(f"out has shape {list(out.shape)}; pass shape {list(result.shape)}")
    out[...] = result
    return out


def broadcast_shape(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    shape = tuple(y if x == 1 else x for x, y in pairs)
    for name, own in (("A", a), ("B", b)):
        if any(n not in (1, m) for n, m in zip(own, shape[rank - len(own) :], strict=True)):
            raise ValueError(
                f"the batch dimensions of A, {list(a)}, and of B, {list(b)}, do not broadcast "
                f"({name} has another extent)"
            )
    return shape


def one_batch(tensor: Any, batch: Shape) -> Any:
    """The matrices of a tensor along one batch dimension; one matrix for all if it has one."""
    if getattr(tensor, "ndim", 0) <= 2:
        return tensor
    leading, matrix = tuple(tensor.shape[:-2]), tuple(tensor.shape[-2:])
    if math.prod(leading) == 1:
        return tensor.reshape(matrix)
    shape = (*batch, *matrix)
    if leading != batch:
        if hasattr(tensor, "expand"):
            tensor = tensor.expand(shape)
        else:
            tensor = tensor.__array_namespace__().broadcast_to(tensor, shape)
    return tensor.reshape((math.prod(batch), *matrix))
