"""Epilogues of stages: the source of the function, and its values in float64 with error bounds."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import torch
from cutlass_api import fusion
from cutlass_api.fusion import activation
from support.epilogues import CLOSE
from support.helpers import INTEGERS
from support.problems import ROUNDOFF, rounded_once

from .cases import Case, Result

PRODUCT = "x * product(c)"
#: Expressions of which the result of integers is an integer.
WHOLE = (
    *("x + c", "c - x", "x * c", "maximum(x, c)", "minimum(x, c)", "where(c > 0, x, -x)"),
    *("relu(x)", "-x", "abs(x)", "round(x)"),
)
OF_TWO = (*WHOLE[:6], "x / (abs(c) + 1)", "where(c <= 0, x, x * 0.5)")
EXPRESSIONS = (
    *OF_TWO,
    *WHOLE[6:],
    *("leaky_relu(x, 0.2)", "clamp(x, -2.5, 6.0)", "sigmoid(x)", "tanh(x * 0.125)", "silu(x)"),
    *("gelu(x)", 'gelu(x, approximate="tanh")', "hardswish(x)", "identity(x)", "exp(-abs(x))"),
    *("sqrt(abs(x) + 0.5)", "rsqrt(abs(x) + 0.5)", "log(abs(x) + 0.5)", "(x * 0.0625) ** 2"),
    *(
        "x.bfloat16()",
        "x * 0.75 - 1",
        "erf(x * 0.25)",
        "log1p(abs(x))",
        "sin(x * 0.125)",
        "cos(x * 0.125)",
    ),
)
#: Arguments at which functions of abs(x), gelu, silu and hardswish turn.
TURNS = (0.0, -0.7518, -1.2785, -1.5)
_NAMES = {
    **{name: getattr(fusion, name) for name in ("maximum", "minimum", "exp", "round")},
    **{name: getattr(activation, name) for name in activation.__all__},
    **{
        name: getattr(torch, name)
        for name in ("where", "clamp", "sqrt", "rsqrt", "log", "log1p", "erf", "sin", "cos")
    },
    # torch divides float64 by 6 in float32 on a GPU.
    "hardswish": lambda x: x * (x + 3).clamp(0, 6) / 6,
    "product": lambda c: c,
}


def source(case: Case, parameters: Iterable[str], first: str = "accum") -> str:
    """The epilogue function. Operands are c0, c1, ... by stage, further outputs r0_0, r0_1, ...

    `first`: the value before the first stage.
    """
    lines, returned, value = [f"x = {first}"], ["D"], "x"
    for at, stage in enumerate(case.stages):
        text = re.sub(r"\bc\b", f"c{at}", re.sub(r"\bx\b", value, stage.expression))
        value = f"x{at}"
        lines.append(f"{value} = {text}")
        for name, result in results_of(case, at):
            returned.append(name)
            fold = f"{result.fold}({value}, {result.dims})" if result.fold else value
            lines.append(f"{name} = {fold}")
    lines += [f"D = {value}", f"return {', '.join(returned)}"]
    head = f"def epilogue({', '.join(['accum', *parameters])}):"
    return "\n    ".join([head, *lines]) + "\n"


def results_of(case: Case, at: int) -> list[tuple[str, Result]]:
    """The further outputs of a stage by name."""
    return [(f"r{at}_{place}", result) for place, result in enumerate(case.stages[at].results)]


@dataclass
class Bounded:
    """Exact values and the largest acceptable error of each. Values in int64 are those of int32
    arithmetic, and acceptable as they are.
    """

    value: torch.Tensor
    error: torch.Tensor

    @property
    def is_whole(self) -> bool:
        return self.value.dtype == torch.int64

    @staticmethod
    def of(value: torch.Tensor) -> "Bounded":
        """Values as an operand stores them."""
        wide = value.to(torch.int64 if value.dtype in INTEGERS else torch.float64)
        return Bounded(wide, torch.zeros((), dtype=torch.float64, device=value.device))

    def as_floats(self) -> "Bounded":
        """Integers converted to float32."""
        if not self.is_whole:
            return self
        value = self.value.double()
        is_exact = value.abs() <= 2**24
        return Bounded(value, torch.where(is_exact, 0, ROUNDOFF[torch.float32] * value.abs()))

    def corners(self) -> list[torch.Tensor]:
        """The smallest and the largest value."""
        return [self.value - self.error, self.value + self.error]

    def samples(self) -> list[torch.Tensor]:
        """The smallest and the largest value, and those nearest to where expressions turn."""
        low, high = self.corners()
        turns = (torch.full_like(low, turn).clamp(low, high) for turn in TURNS)
        return [low, high, *turns]


def wrapped(value: torch.Tensor) -> torch.Tensor:
    """int64 values modulo 2^32, as int32 arithmetic wraps them."""
    return (value + 2**31) % 2**32 - 2**31


def apply(expression: str, x: Bounded, c: Bounded, compute: torch.dtype) -> Bounded:
    """The value of an expression that a kernel computes in a type."""

    def evaluate(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return eval(expression, _NAMES, {"x": x, "c": c})

    if x.is_whole and expression in WHOLE and (c.is_whole or not re.search(r"\bc\b", expression)):
        return Bounded(wrapped(evaluate(x.value, c.value)), x.error)
    x, c = x.as_floats(), c.as_floats()
    if "bfloat16" in expression:  # from float64, torch rounds to float32 on the way
        x = Bounded(x.value, x.error + ROUNDOFF[torch.float32] * x.value.abs())
    value = evaluate(x.value, c.value).double()
    others = c.samples() if c.error.any() else [c.value]
    samples = (evaluate(*pair).double() for pair in product(x.samples(), others))
    relative, absolute = CLOSE[compute]
    error = torch.stack([(sample - value).abs() for sample in samples]).amax(0)
    return Bounded(value, error + relative * value.abs() + absolute)


def folded(result: Result, x: Bounded, compute: torch.dtype) -> Bounded:
    """The sum or the maximum of values along dimensions, which are kept."""
    if result.fold == "max":
        low, value, high = (
            each.amax(result.dims, keepdim=True)
            for each in (x.value - x.error, x.value, x.value + x.error)
        )
        if x.is_whole:
            return Bounded(value.long(), x.error)
        return Bounded(value, torch.maximum(high - value, value - low))
    value = x.value.sum(result.dims, keepdim=True)
    if x.is_whole:
        return Bounded(wrapped(value), x.error)
    count = x.value.numel() // max(value.numel(), 1)
    error = x.error.expand(x.value.shape).sum(result.dims, keepdim=True)
    rounding = 8 * ROUNDOFF[compute] * count**0.5 * x.value.abs().sum(result.dims, keepdim=True)
    return Bounded(value, error + rounding)


def differing(stored: torch.Tensor, x: Bounded) -> torch.Tensor:
    """Whether each stored element is outside of the bounds of a value, rounded to its type."""
    dtype = stored.dtype
    if x.is_whole:
        return stored != rounded_once(x.value.to(torch.int32), dtype)
    if dtype in INTEGERS:  # towards zero, saturated as int32, then the low bits
        low, high = (
            corner.trunc().clamp(-(2**31), 2**31 - 1).to(torch.int64) for corner in x.corners()
        )
        return (stored.to(torch.int64) - low) % 2 ** (8 * dtype.itemsize) > high - low
    info = torch.finfo(dtype)
    largest = x.value.abs() + x.error
    allowed = x.error + 1.01 * ROUNDOFF[dtype] * largest + info.smallest_normal * info.eps
    # What overflows may become infinite, NaN or the largest number.
    return ~(((stored.double() - x.value).abs() <= allowed) | (largest > info.max))
