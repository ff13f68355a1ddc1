"""``cutlass_api.linear``, and ``cutlass_api.matmul`` where torch differentiates or traces."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cutlass_api._batches import check_ranks, over_batches
from cutlass_api._core import trace_epilogue
from cutlass_api.fusion import activation as activations
from cutlass_api.ops._library import rows_of
from cutlass_api.ops._operator import OPS


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
    check_ranks(A, B)
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


def product(A: Tensor, B: Tensor, out_dtype: torch.dtype | None) -> Tensor:
    """A (*, M, K) @ B (*, K, N)."""
    if B.dim() == 2:
        out: Tensor = OPS.mm(rows_of(A), B, out_dtype=out_dtype)
        return out if A.dim() == 2 else out.view(*A.shape[:-1], B.shape[-1])

    def batched(a: Tensor, b: Tensor) -> Any:
        return OPS.bmm(a, b, out_dtype=out_dtype)

    return over_batches(batched, A, B, expands_matrices=True)


def fused_product(
    A: Tensor,
    B: Tensor,
    operands: Sequence[Tensor],
    epilogue: str,
    out_dtype: torch.dtype | None,
) -> Tensor:
    """epilogue(A @ B, *operands). The operands broadcast to (*, M, N)."""

    def fused(a: Tensor, b: Tensor, *operands: Tensor) -> Any:
        return OPS.mm_epilogue(a, b, operands, epilogue, out_dtype=out_dtype)

    if A.dim() <= 3 and B.dim() <= 3:
        return fused(A, B, *operands)
    return over_batches(fused, A, B, *operands)


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
