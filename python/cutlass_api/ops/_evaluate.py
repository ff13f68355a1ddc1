"""Epilogues and activations by torch, for gradients and vmap: values and derivatives."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cutlass_api._core import EpilogueFunction, trace_epilogue
from cutlass_api.fusion._functions import ACTIVATIONS, FUNCTIONS, torch_function

#: By the name of an operation in `TracedEpilogue.nodes`.
OPERATIONS: dict[str, Callable[..., Tensor]] = {
    function.operation: computed
    for name, function in FUNCTIONS.items()
    if (computed := torch_function(name)) is not None
}


def evaluate(epilogue: str, accum: Tensor, inputs: Sequence[Any]) -> Tensor:
    """D of an epilogue without further outputs, computed by torch in the accumulator's dtype, which
    the inputs have that are not numbers. The input of `product` is the product."""
    nodes, result = traced(epilogue)
    values: list[Tensor] = []
    for name, *reads in nodes:
        if name == "accum":
            value = accum
        elif name in ("input", "product"):
            value = inputs[reads[0]]
        elif name == "number":
            value = accum.new_full((), reads[0])
        elif name == "cast":
            dtype = getattr(torch, reads[0])
            value = values[reads[1]].to(dtype).to(accum.dtype)
        else:
            operands = [values[at] for at in reads]
            if name == "where":
                operands[0] = operands[0] != 0
            value = OPERATIONS[name](*operands).to(accum.dtype)
        values.append(value)
    return values[result].expand(torch.broadcast_shapes(values[result].shape, accum.shape))


def traced(epilogue: str) -> tuple[Any, int]:
    """The nodes of an epilogue, and the place of D among them: constants in graphs."""
    found = trace_epilogue(epilogue)
    (_, result, _) = found.results[0]
    return tuple(map(tuple, found.nodes)), result


def derivative(function: EpilogueFunction) -> Callable[[Tensor, Tensor], Tensor]:
    """The gradient of an activation's argument, from that of its result and from the result, or
    from the argument if the activation is one of `_epilogues.PREACTIVATION_DERIVATIVES`."""
    if not function.backward:
        return lambda grad, saved: grad
    operator = getattr(torch.ops.aten, function.backward)
    constants, keywords = function.constants, dict(function.torch_keywords)
    if function.derivative is None:
        if constants or keywords:
            return lambda grad, saved: operator(grad, saved, *constants, **keywords)
        return operator  # type: ignore[no-any-return]
    source = f"def epilogue(accum):\n    D = {function.derivative}\n    return D"

    def differentiable(grad: Tensor, saved: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return grad * evaluate(source, saved, ())
        return operator(grad, saved, *constants)

    return differentiable


DERIVATIVES = {name: derivative(FUNCTIONS[name]) for name in ACTIVATIONS}
