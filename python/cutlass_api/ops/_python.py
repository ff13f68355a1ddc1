"""``cutlass_api.linear``, and ``cutlass_api.matmul`` where torch differentiates or traces."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cutlass_api._core import trace_epilogue
from cutlass_api.fusion import activation as activations
from cutlass_api.ops._broadcast import fused_product, product
from cutlass_api.ops._products import OPS


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | Callable[..., Any] | None = None,
) -> Tensor:
    """activation(input @ weight.T + bias), in one launch; ``torch.nn.functional.linear`` and more.

    ``input`` has shape (*, K), ``weight`` (N, K), ``bias`` (N,). ``activation``: a name of
    :mod:`cutlass_api.fusion.activation`, its function, or torch's function of that name. The
    accumulator, the bias and the activation are float32 (float64 for float64), and are rounded
    once. Differentiates, traces and follows autocast, as torch's function does.

    Raises ValueError if shapes do not match, no kernel serves the dtypes, or the activation is
    unknown.
    """
    if callable(activation):
        activation = activation_name(activation)
    return OPS.linear(input, weight, bias, activation)


def activation_name(function: Callable[..., Any]) -> str:
    """The name of a function of ``cutlass_api.fusion.activation`` or torch."""
    name = getattr(function, "__name__", "")
    homes = (activations, torch, torch.nn.functional)
    if name in activations.__all__ and any(function is getattr(x, name, None) for x in homes):
        return name
    raise ValueError(
        f"activation is {function!r}; pass one of {', '.join(activations.__all__)}, as a name or "
        "as the function of cutlass_api.fusion.activation or torch"
    )


def matmul(
    A: Tensor,
    B: Tensor,
    out: Tensor | None = None,
    accumulator_type: Any = None,
    *,
    out_dtype: torch.dtype | None = None,
    epilogue: Callable[..., Any] | str | None = None,
    **operands: Any,
) -> Tensor:
    """``cutlass_api.matmul`` through the operators, which torch differentiates and traces."""
    if accumulator_type is not None:
        raise ValueError(
            f"accumulator_type is {accumulator_type}, but torch differentiates or traces the call "
            "of matmul, and the operators choose the accumulator type: omit accumulator_type"
        )
    if A.is_nested or B.is_nested:
        return OPS.mm(A, B)  # which refuses them
    if min(A.dim(), B.dim()) < 2:
        name, tensor = ("A", A) if A.dim() < 2 else ("B", B)
        raise ValueError(
            f"{name} must have rank 2 or more, but has rank {tensor.dim()} "
            f"(shape {list(tensor.shape)})"
        )
    if out is not None and torch.is_grad_enabled() and requires_grad(A, B, out, operands):
        raise RuntimeError(
            "matmul with out= computes no gradients, but an operand requires grad: omit out, or "
            "call it under torch.no_grad()"
        )
    if epilogue is None:
        if operands:
            raise TypeError(f"{next(iter(operands))} is passed without an epilogue; pass epilogue=")
        result = product(A, B, out_dtype)
    else:
        source, inputs = epilogue_source(epilogue)
        missing = [name for name in inputs if name not in operands]
        extra = [name for name in operands if name not in inputs]
        if missing or extra:
            raise TypeError(
                f"the epilogue takes {', '.join(inputs) or 'no operands'}, but "
                f"{', '.join(operands) or 'nothing'} is passed"
            )
        tensors = [as_tensor(operands[name], A) for name in inputs]
        result = fused_product(A, B, tensors, source, out_dtype)
    return result if out is None else out.copy_(result)


def requires_grad(A: Tensor, B: Tensor, out: Tensor, operands: dict[str, Any]) -> bool:
    values = (A, B, out, *operands.values())
    return any(isinstance(value, Tensor) and value.requires_grad for value in values)


def epilogue_source(epilogue: Callable[..., Any] | str) -> tuple[str, list[str]]:
    """The source of an epilogue without outputs other than D, and its operands' names."""
    traced = trace_epilogue(epilogue)
    if [reduced for _, _, reduced in traced.results] != [False]:
        raise ValueError(
            f"the epilogue returns {', '.join(traced.outputs)}, but torch differentiates or traces "
            "the call of matmul, which then returns D alone and reduces nothing"
        )
    return traced.source, traced.inputs


def as_tensor(operand: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(operand, Tensor):
        return operand
    dtype = torch.float64 if like.dtype is torch.float64 else torch.float32
    return torch.full((1,), operand, dtype=dtype, device=like.device)
