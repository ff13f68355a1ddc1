"""Epilogue functions for tests, with their operands. Called on torch tensors, they return the
expected values.
"""

import builtins
from dataclasses import dataclass, field

import torch
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from cutlass_api.fusion import max, maximum, minimum, sum, trace_in_out
from cutlass_api.fusion.activation import (
    gelu,
    hardswish,
    identity,
    leaky_relu,
    relu,
    sigmoid,
    silu,
    tanh,
)
from torch.nn import functional

from support.helpers import INTEGERS, coarse, fake

#: Relative and absolute tolerance against torch, by the stored type.
CLOSE = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (3e-6, 3e-6),
    torch.float16: (2e-3, 1e-3),
    torch.bfloat16: (1.6e-2, 1e-3),
    torch.float8_e4m3fn: (0.13, 2e-2),
    torch.float8_e5m2: (0.26, 2e-2),
}


def assert_close(actual, wanted, what=""):
    """Checks values against `wanted`, within the rounding of the stored type and of the computing
    type, which is `wanted`'s dtype.
    """
    wanted = wanted.broadcast_to(actual.shape)
    if actual.dtype in INTEGERS:
        assert torch.equal(actual.long(), wanted.long()), what
        return
    relative, absolute = builtins.max(CLOSE[actual.dtype], CLOSE[wanted.dtype])
    # Values that overflow a narrow type are infinite or NaN in both.
    rounded = wanted.to(actual.dtype).double()
    torch.testing.assert_close(
        actual.double(),
        rounded,
        rtol=relative,
        atol=absolute,
        equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )


# ---- functions -----------------------------------------------------------------------------------


def plain(accum):
    D = accum
    return D


def linear(accum, C, alpha, beta):
    D = alpha * accum + beta * C
    return D


def bias_gelu(accum, bias):
    D = functional.gelu(accum + bias)
    return D


def bias_gelu_tanh(accum, bias):
    D = gelu(accum + bias, approximate="tanh")
    return D


def bias_relu(accum, bias):
    D = torch.relu(accum + bias)
    return D


def aux_store(accum, alpha, C):
    F = (accum * alpha) + (C * 2.0)
    D = relu(F)
    return D, F


def returns_accum(accum, C):
    D = accum / (1.0 + C.abs())
    return accum, D


def activations(accum):
    small = accum * 0.125
    A1 = sigmoid(small)
    A2 = tanh(small)
    A3 = silu(small)
    A4 = hardswish(small)
    A5 = leaky_relu(small, 0.2)
    A6 = identity(small)
    D = torch.exp(-torch.abs(small))
    return D, A1, A2, A3, A4, A5, A6


def roots(accum):
    positive = accum.abs() + 0.5
    L = torch.log(positive)
    R = torch.rsqrt(positive)
    P = torch.log1p(positive)
    E = torch.erf(accum * 0.125)
    S = torch.sin(accum * 0.125)
    W = torch.cos(accum * 0.125)
    D = torch.sqrt(positive)
    return D, L, R, P, E, S, W


def choices(accum, C):
    larger = maximum(accum, C)
    smaller = minimum(accum, C)
    E1 = torch.where(accum > C, larger, -smaller)
    E2 = torch.where(accum <= 0, larger, smaller - 1)
    E3 = (accum >= C) * accum
    D = torch.clamp(larger - smaller, min=0.5, max=3.0)
    return D, E1, E2, E3


def casts(accum):
    half = accum.to(torch.float16)
    whole = accum.to(torch.int32)
    D = half * 2.0 + whole
    return D


def rounded(accum, C):
    near = torch.round(accum * 0.5) + C
    D = torch.clamp(near, -8, 7)
    return D, near


def scales(accum, row, column, one):
    D = accum * row * column + one
    return D


def normalize(accum, mean, scale, C):
    centred = (accum - mean) / scale
    D = centred**2 + C
    return D


def dequantize(accum, row, column):
    D = accum * row * column
    return D


def integer_arithmetic(accum, C, offset):
    E = torch.where(accum > C, accum - offset, -accum) * 3
    D = torch.maximum(accum + C, E).clamp(-100, 100)
    return D, E


def reduced(accum, bias):
    x = accum + bias
    D = relu(x)
    S = sum(x, dim=-1)
    T = max(D, dim=-2)
    return D, S, T


def reduced_more(accum, C, alpha):
    x = accum * alpha + C
    D = x
    largest = max(abs(x), -1)
    total = sum(x, (-2, -1))
    columns = sum(x * x, dim=-2)
    return D, accum, largest, total, columns


@dataclass
class Case:
    """An epilogue with the shapes of its tensors, as functions of L, M and N, and its numbers."""

    function: object
    tensors: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    #: Names of the outputs except D.
    others: tuple[str, ...] = ()

    @property
    def name(self):
        return self.function.__name__


FULL, ROW, ROW1, COLUMN, ONE, NUMBER = "full", "row", "row1", "column", "one", "number"
#: Outputs that lack a dimension, or both.
NO_ROW, NO_COLUMN, NEITHER, KEPT_ROW = "no row", "no column", "neither", "kept row"

CASES = [
    Case(plain),
    Case(linear, {"C": FULL}, {"alpha": 1.5, "beta": -0.5}),
    Case(bias_gelu, {"bias": ROW}),
    Case(bias_gelu_tanh, {"bias": ROW1}),
    Case(bias_relu, {"bias": COLUMN}),
    Case(aux_store, {"C": FULL}, {"alpha": 3.0}, ("F",)),
    Case(returns_accum, {"C": FULL}, {}, ("accum",)),
    Case(activations, {}, {}, ("A1", "A2", "A3", "A4", "A5", "A6")),
    Case(roots, {}, {}, ("L", "R", "P", "E", "S", "W")),
    Case(choices, {"C": FULL}, {}, ("E1", "E2", "E3")),
    Case(casts),
    Case(rounded, {"C": FULL}, {}, ("near",)),
    Case(scales, {"row": ROW1, "column": COLUMN, "one": ONE}),
    Case(scales, {"row": ROW, "column": COLUMN, "one": NUMBER}),
    Case(normalize, {"mean": COLUMN, "scale": ROW, "C": FULL}),
]


def shape_of(kind, shape):
    """The shape of an operand of this kind for an output of this shape."""
    *batch, m, n = shape
    return {
        FULL: (*batch, m, n),
        ROW: (n,),
        ROW1: (*(1 for _ in batch), 1, n),
        COLUMN: (*batch, m, 1),
        ONE: (1,),
        NUMBER: (),
        NO_ROW: (*batch, m),
        NO_COLUMN: (*batch, n),
        NEITHER: tuple(batch),
        KEPT_ROW: (*batch, 1, n),
    }[kind]


def operands_of(case, shape, dtype, generator=None):
    tensors = {
        name: coarse(*shape_of(kind, shape), dtype=dtype, generator=generator)
        for name, kind in case.tensors.items()
    }
    if "scale" in tensors:
        tensors["scale"] = (tensors["scale"].abs() + 1).to(dtype)
    return {
        name: tensor if tensor.dim() else float(tensor) for name, tensor in tensors.items()
    } | case.numbers


#: Each with its reduced outputs and their shapes.
REDUCTIONS = [
    (Case(reduced, {"bias": ROW}), {"S": COLUMN, "T": NO_COLUMN}),
    (
        Case(reduced_more, {"C": FULL}, {"alpha": 0.5}, ("accum",)),
        {"largest": NO_ROW, "total": NEITHER, "columns": KEPT_ROW},
    ),
]


def expected(function, accum, given, compute=torch.float32):
    """The function's results by name, in the computing type. Operations among integers stay
    integer.
    """

    def widened(value):
        return (
            value.to(compute)
            if isinstance(value, torch.Tensor) and value.dtype.is_floating_point
            else value
        )

    returned = function(accum, **{name: widened(value) for name, value in given.items()})
    returned = returned if isinstance(returned, tuple) else (returned,)
    return dict(zip(trace_in_out(function)[1], returned, strict=True))


def fused(a, b, out, function, accumulator_type=torch.float32, **operands):
    """Arguments of a GEMM with an epilogue whose main output is `out`."""
    epilogue = EpilogueArguments(function, D=out, **operands)
    return GemmArguments(a, b, out, accumulator_type=accumulator_type, epilogue=epilogue)


def fake_fused(
    function=linear,
    m=256,
    n=256,
    k=256,
    dtype=torch.float16,
    operand=torch.float16,
    layout="ttt",
    **more,
):
    """Arguments of a fused GEMM of FakeTensors; `more` adds to the operands, or replaces some."""
    a, b = fake(m, k, dtype=dtype, layout=layout[0]), fake(k, n, dtype=dtype, layout=layout[1])
    out = fake(m, n, dtype=dtype, layout=layout[2])
    operands = (
        {"C": fake(m, n, dtype=operand), "alpha": 1.0, "beta": 2.0} if function is linear else {}
    )
    return fused(a, b, out, function, torch.float32, **(operands | more))
