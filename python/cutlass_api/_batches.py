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
    """Computes one batch of all products, and restores the dimensions of the output."""
    check_ranks(A, B)
    second = None
    if epilogue is not None:
        traced = _core.trace_epilogue(epilogue)
        if traced.outputs != ["D"]:
            raise ValueError(
                f"A has rank {A.ndim} and B {B.ndim}, but an epilogue with outputs except D needs "
                "operands of rank 2 or 3: reshape them to one batch dimension"
            )
        at = second_factor(traced)
        second = None if at is None else traced.inputs[at]
    if out is not None:
        check_out(out, output_shape(A, B))
        if out_dtype is not None and _core.DType(out_dtype) != _core.DType(out.dtype):
            raise of_other_dtype(_core.DType(out.dtype), _core.DType(out_dtype))

    def product(a: Any, b: Any, *flat: Any) -> Any:
        named = dict(zip(operands, flat, strict=True))
        options = {"out_dtype": out_dtype, "epilogue": epilogue, **named}
        if out is None:
            return _core.matmul(a, b, None, accumulator_type, **options)
        shape = flat_shape(a, b)
        if hasattr(out, "new_empty"):  # Autocast casts no operands of a call with an output.
            return _core.matmul(a, b, out.new_empty(shape), accumulator_type, **options)
        return _core.matmul(a, b, None, accumulator_type, **{**options, "out_dtype": out.dtype})

    is_factor = [name == second for name in operands]
    result = over_batches(product, A, B, *operands.values(), is_factor=is_factor)
    if out is None:
        return result
    out[...] = result
    return out


def check_ranks(A: Any, B: Any) -> None:
    for name, tensor in (("A", A), ("B", B)):
        if tensor.ndim < 1:
            raise ValueError(
                f"{name} must have rank 1 or more, but has rank {tensor.ndim} "
                f"(shape {list(tensor.shape)})"
            )


def check_out(out: Any, shape: Sequence[Any]) -> None:
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"out has shape {list(out.shape)}; pass shape {list(shape)}")


def of_other_dtype(found: Any, requested: Any) -> ValueError:
    return ValueError(f"out has dtype {found}, but out_dtype is {requested}; omit out_dtype")


def second_factor(traced: Any) -> int | None:
    """The position of the operand of an epilogue that A is multiplied by, too."""
    return next((reads[0] for name, *reads in traced.nodes if name == "product"), None)


def output_shape(A: Any, B: Any) -> tuple[Any, ...]:
    """The shape of A @ B. A vector A counts as a row, B as a column, that the output lacks."""
    batch = checked_shape(A.shape[:-2], B.shape[:-2])
    return (*batch, *A.shape[-2:-1], *(B.shape[-1:] if B.ndim > 1 else ()))


def flat_shape(a: Any, b: Any) -> tuple[Any, ...]:
    """The shape of a product of one batch dimension at most."""
    batch = [tensor.shape[0] for tensor in (a, b) if tensor.ndim == 3]
    return (*batch[:1], a.shape[-2], b.shape[-1])


def over_batches(
    function: Callable[..., Any],
    A: Any,
    B: Any,
    *operands: Any,
    is_factor: Sequence[bool] = (),
    expands_matrices: bool = False,
) -> Any:
    """A product of any rank, from a function of the operands with one batch dimension at most.

    ``is_factor``: of each operand, whether it is a second matrix B. The others broadcast to the
    output.
    """
    shape = output_shape(A, B)
    if A.ndim == 1 or B.ndim == 1:
        of_vectors = (A.ndim == 1, B.ndim == 1)
        pairs = zip(operands, is_factor, strict=True)
        operands = tuple(beside_vectors(each, *of_vectors, second) for each, second in pairs)
        A, B = A[None] if A.ndim == 1 else A, B[:, None] if B.ndim == 1 else B
    batch = checked_shape(A.shape[:-2], B.shape[:-2])
    a, b = (one_batch(factor, batch, expands_matrices=expands_matrices) for factor in (A, B))
    out = function(a, b, *(one_batch(operand, batch) for operand in operands))
    return out.reshape(shape)


def beside_vectors(operand: Any, is_row: bool, is_column: bool, is_factor: bool) -> Any:
    """An operand of an epilogue, with the dimensions of the output that vectors A and B lack."""
    if getattr(operand, "ndim", 0) == 0:
        return operand
    if is_row and not is_factor:
        operand = operand[..., None, :]
    return operand[..., None] if is_column else operand


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
