"""Batch dimensions, which broadcast: of the operators, of Inductor's lowerings, and of
``cutlass_api.matmul`` of several batch dimensions, for any framework and for symbolic sizes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from cutlass_api import _core


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
    check_ranks(A, B)
    if epilogue is not None and _core.trace_epilogue(epilogue).outputs != ["D"]:
        raise ValueError(
            f"A has rank {A.ndim} and B {B.ndim}, but an epilogue with outputs except D needs "
            "operands of rank 2 or 3: reshape them to one batch dimension"
        )

    def product(a: Any, b: Any, *flat: Any) -> Any:
        named = dict(zip(operands, flat, strict=True))
        options = {"out_dtype": out_dtype, "epilogue": epilogue, **named}
        return _core.matmul(a, b, None, accumulator_type, **options)

    result = over_batches(product, A, B, *operands.values())
    if out is None:
        return result
    if tuple(out.shape) != tuple(result.shape):
        raise ValueError(f"out has shape {list(out.shape)}; pass shape {list(result.shape)}")
    out[...] = result
    return out


def check_ranks(A: Any, B: Any) -> None:
    for name, tensor in (("A", A), ("B", B)):
        if tensor.ndim < 2:
            raise ValueError(
                f"{name} must have rank 2 or more, but has rank {tensor.ndim} "
                f"(shape {list(tensor.shape)})"
            )


def over_batches(
    function: Callable[..., Any], A: Any, B: Any, *operands: Any, expands_matrices: bool = False
) -> Any:
    """A product of any rank, from a function of the operands with one batch dimension at most."""
    batch = checked_shape(A.shape[:-2], B.shape[:-2])
    a, b = (one_batch(factor, batch, expands_matrices=expands_matrices) for factor in (A, B))
    out = function(a, b, *(one_batch(operand, batch) for operand in operands))
    return out.reshape((*batch, A.shape[-2], B.shape[-1]))


def broadcast_shape(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """The batch dimensions of A @ B, from those of A and B, which the launch compares."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b), strict=True)
    return tuple(y if x == 1 else x for x, y in pairs)


def checked_shape(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...]:
    """The same, for batches that are expanded. Raises ValueError if they do not broadcast."""
    shape = broadcast_shape(a, b)
    for name, own in (("A", a), ("B", b)):
        if any(n != 1 and n != m for n, m in zip(own, shape[len(shape) - len(own) :], strict=True)):
            raise ValueError(
                f"the batch dimensions of A, {list(a)}, and of B, {list(b)}, do not broadcast "
                f"({name} has another extent)"
            )
    return shape


def one_batch(tensor: Any, batch: Sequence[Any], *, expands_matrices: bool = False) -> Any:
    """The matrices of a tensor along one batch dimension, a view if the strides permit. Of one
    matrix: that matrix, unless ``expands_matrices``. Numbers and vectors stay as they are.
    """
    if getattr(tensor, "ndim", 0) <= 2 and not expands_matrices:
        return tensor
    leading, matrix = tuple(tensor.shape[:-2]), tuple(tensor.shape[-2:])
    shape = (*batch, *matrix)
    if leading != tuple(batch):
        if hasattr(tensor, "expand"):
            tensor = tensor.expand(shape)
        elif math.prod(leading) == 1:  # a broadcast array would be copied
            return tensor.reshape(matrix)
        else:
            tensor = tensor.__array_namespace__().broadcast_to(tensor, shape)
    return tensor.reshape((math.prod(batch), *matrix))
