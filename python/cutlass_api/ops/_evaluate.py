"""Epilogues and activations by torch, for gradients: values and derivatives."""

from collections.abc import Callable

import torch
from torch import Tensor

from cutlass_api._core import trace_epilogue

aten = torch.ops.aten

#: The gradient of an activation's argument, from that of its output and the second output of
#: `linear_forward`: the argument for gelu, silu and hardswish, the output for the others.
DERIVATIVES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "relu": lambda grad, y: aten.threshold_backward(grad, y, 0),
    "sigmoid": aten.sigmoid_backward,
    "tanh": aten.tanh_backward,
    "leaky_relu": lambda grad, y: aten.leaky_relu_backward(grad, y, 0.01, True),
    "gelu": aten.gelu_backward,
    "silu": lambda grad, x: silu_gradient(grad, x),
    "hardswish": aten.hardswish_backward,
    "identity": lambda grad, y: grad,
}


def silu_gradient(grad: Tensor, x: Tensor) -> Tensor:
    if not torch.is_grad_enabled():
        return aten.silu_backward(grad, x)
    # torch's operator cannot be differentiated.
    sigmoid = torch.sigmoid(x)
    return grad * sigmoid * (1 + x * (1 - sigmoid))


UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    **{name: getattr(torch.nn.functional, name) for name in ("silu", "gelu", "hardswish")},
    **{
        name: getattr(torch, name)
        for name in ("absolute", "exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh")
    },
    "negate": torch.neg,
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    name: getattr(torch, name)
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")
}
COMPARISONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "<": torch.lt,
    "<=": torch.le,
    ">": torch.gt,
    ">=": torch.ge,
    "==": torch.eq,
    "!=": torch.ne,
}


def evaluate(epilogue: str, accum: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
    """D of an epilogue without further outputs, computed by torch in the accumulator's dtype. The
    input of `product` is the product."""
    traced = trace_epilogue(epilogue)
    values: list[Tensor] = []
    for name, *reads in traced.nodes:
        if name == "accum":
            value = accum
        elif name in ("input", "product"):
            value = inputs[reads[0]]
        elif name == "number":
            value = accum.new_full((), reads[0])
        elif name == "cast":
            dtype = getattr(torch, reads[0])
            value = values[reads[1]].to(dtype).to(accum.dtype)
        elif name == "where":
            condition, yes, no = (values[at] for at in reads)
            value = torch.where(condition != 0, yes, no)
        else:
            operands = [values[at] for at in reads]
            function = UNARY.get(name) or BINARY.get(name) or COMPARISONS[name]
            value = function(*operands).to(accum.dtype)
        values.append(value)
    (_, result, _) = traced.results[0]
    return values[result].expand(accum.shape)
