"""Calls of the operators of `torch.ops.cutlass_api`, for tests of all operators."""

from functools import partial

import pytest
import torch
from cutlass_api.ops import OPERATORS, OPS

BIAS_RELU = "def epilogue(accum, bias):\n    D = relu(accum + bias)\n    return D"
#: An epilogue with every kind of operation that has a gradient.
MANY = """
def epilogue(accum, bias, other):
    x = accum * 0.5 + bias
    y = where(x > other, gelu(x) - other, silu(-x) / (1 + abs(other)))
    z = maximum(y, tanh(x)) + cast(minimum(x, other), torch.float64) * sigmoid(accum)
    D = z + exp(-square(x)) + sqrt(square(x) + 1.0)
    return D
"""
SWIGLU = "def epilogue(accum, up):\n    D = silu(accum) * product(up)\n    return D"
F8 = torch.float8_e4m3fn
#: The shapes of A and B: vectors, and each way in which batch dimensions broadcast.
SHAPES = [
    ((5,), (5,)),
    ((5,), (5, 6)),
    ((4, 5), (5,)),
    ((5,), (2, 5, 6)),
    ((2, 4, 5), (5,)),
    ((5,), (2, 3, 5, 6)),
    ((2, 3, 4, 5), (5,)),
    ((4, 5), (5, 6)),
    ((3, 4, 5), (5, 6)),
    ((4, 5), (3, 5, 6)),
    ((1, 4, 5), (3, 5, 6)),
    ((3, 4, 5), (1, 5, 6)),
    ((2, 3, 4, 5), (5, 6)),
    ((2, 3, 4, 5), (2, 3, 5, 6)),
    ((2, 1, 4, 5), (3, 5, 6)),
    ((2, 3, 4, 5), (2, 1, 5, 6)),
    ((1, 3, 4, 5), (2, 1, 5, 6)),
    ((2, 3, 1, 4, 5), (2, 1, 7, 5, 6)),
    ((3, 4, 5), (1, 1, 5, 6)),
    ((1, 1, 4, 5), (3, 5, 6)),
    ((0, 3, 4, 5), (3, 5, 6)),
    ((2, 1, 4, 5), (0, 5, 6)),
]


def randn(*shape, dtype=torch.float32, device="cpu", requires_grad=False):
    tensor = torch.randn(shape, device=device).to(dtype)
    return tensor.requires_grad_(requires_grad)


def integers(*shape, dtype=torch.int8, device="cpu"):
    return torch.randint(0, 50, shape, device=device).to(dtype)


def ends(*rows, device="cpu"):
    return torch.tensor(rows, dtype=torch.int32, device=device)


def int4(t):
    """The fields of a weight (6, 32), and the name of its class."""
    return t(6, 1, 4).int(), t(6, 1), None, None, None, "Int4"


def int4_stack(t):
    """The fields of a stack of weights (3, 6, 32), and the name of its class."""
    return t(3, 6, 1, 4).int(), t(3, 6, 1), None, None, "Int4"


def operator_of(case):
    return getattr(OPS, case.partition(",")[0])


#: For each operator: arguments, of each kind that it takes.
EVERY = {
    "mm": lambda t: (t(4, 8), t(8, 6)),
    "bmm": lambda t: (t(3, 4, 8), t(3, 8, 6)),
    "addmm": lambda t: (t(4, 6), t(4, 8), t(8, 6)),
    "baddbmm": lambda t: (t(3, 4, 6), t(3, 4, 8), t(3, 8, 6)),
    "linear": lambda t: (t(4, 8), t(6, 8), t(6)),
    "joint_linear": lambda t: (t(4, 8), [t(6, 8), t(2, 8)], [t(6), t(2)]),
    "grouped_mm": lambda t: (t(9, 8), t(3, 8, 6), ends(4, 4, 9), t(3, 6)),
    "grouped_gated_mm": lambda t: (
        *(t(9, 8), t(3, 8, 6), t(3, 8, 6), ends(4, 4, 9), "gelu"),
        *(t(3, 6), t(3, 6)),
    ),
    "grouped_gated_mlp": lambda t: (
        *(t(9, 8), t(3, 8, 12), t(3, 6, 8), ends(4, 4, 9), "gelu", True),
        *(t(3, 12), t(3, 8)),
    ),
    "grouped_gated_mlp_grad": lambda t: (
        *(t(9, 8), t(3, 6, 8), t(9, 12), ends(4, 4, 9), "gelu", True),
    ),
    "masked_grouped_mm": lambda t: (t(3, 4, 8), t(3, 8, 6), ends(4, 4, 4), t(3, 6)),
    "mm_epilogue": lambda t: (t(4, 8), t(8, 6), [t(6)], BIAS_RELU),
    "linear_forward": lambda t: (t(4, 8), t(6, 8), t(6), "gelu"),
    "linear_weight_grad": lambda t: (t(2, 4, 6), t(2, 4, 8)),
    "grouped_mm_weight_grad": lambda t: (t(9, 8), t(9, 6), ends(4, 4, 9)),
    "int_mm": lambda t: (integers(4, 8), integers(8, 6)),
    "mixed_mm": lambda t: (t(4, 8).half(), integers(8, 6), t(6).abs(), integers(6)),
    "scaled_mm": lambda t: (t(4, 8).to(F8), t(8, 6).to(F8), t(4, 1).abs(), t(1).abs(), t(6)),
    "scaled_grouped_mm": lambda t: (
        *(t(9, 8).to(F8), t(3, 8, 6).to(F8)),
        *(t(9, 1).abs(), t(3).abs(), ends(4, 4, 9)),
    ),
    "quantized_linear": lambda t: (t(4, 32).half(), *int4(t), t(6), "gelu"),
    "quantized_linear_grad": lambda t: (t(4, 6).half(), *int4(t)),
    "quantized_grouped_mm": lambda t: (t(9, 32).half(), *int4_stack(t), ends(4, 4, 9)),
    "quantized_grouped_mm_grad": lambda t: (t(9, 6).half(), *int4_stack(t), ends(4, 4, 9)),
    "quantize": lambda t: (t(4, 8), torch.uint8, [1, 128]),
}
assert EVERY.keys() == OPERATORS.keys()


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
devices = pytest.mark.parametrize("device", DEVICES)
every = pytest.mark.parametrize("name", EVERY)


def each_operand(args, kind):
    """The arguments with each tensor in turn, also in a list, replaced by one of another kind."""
    flat, spec = torch.utils._pytree.tree_flatten(args)
    for at, value in enumerate(flat):
        if isinstance(value, torch.Tensor):
            others = [*flat[:at], kind(value), *flat[at + 1 :]]
            yield torch.utils._pytree.tree_unflatten(others, spec)


def each_call(name, kind):
    """Calls of an operator and of its overload `out`, each with one tensor of another kind."""
    operator, args = operator_of(name), EVERY[name](randn)
    for given in each_operand(args, kind):
        yield name, partial(operator, *given)
    if hasattr(operator, "out"):
        for *given, out in each_operand((*args, operator(*args)), kind):
            yield f"{name}.out", partial(operator.out, *given, out=out)
