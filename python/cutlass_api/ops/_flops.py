"""FLOP formulas for torch's FlopCounterMode: two operations for each multiplication, as torch."""

import math
from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import register_flop_formula

from cutlass_api.ops import _epilogues
from cutlass_api.ops._products import OPS

Shape = tuple[int, ...]


def product(a: Shape, b: Shape, *args: Any, **options: Any) -> int:
    """A (*, M, K) @ B (*, K, N)."""
    batch = max(math.prod(a[:-2]), math.prod(b[:-2]))
    return 2 * batch * a[-2] * a[-1] * b[-1]


def fused(a: Shape, b: Shape, operands: Any, epilogue: str, *args: Any, **options: Any) -> int:
    """One product, or two if the epilogue multiplies A by a second matrix."""
    return product(a, b) * (1 if _epilogues.factor(epilogue) is None else 2)


def product_of_rest(input: Shape, a: Shape, b: Shape, *args: Any, **options: Any) -> int:
    return product(a, b)


def linear(input: Shape, weight: Shape, *args: Any, **options: Any) -> int:
    return 2 * math.prod(input) * weight[0]


def linear_weight_gradient(grad: Shape, input: Shape, *args: Any, **options: Any) -> int:
    return 2 * math.prod(grad) * input[-1]


def grouped(a: Shape, b: Shape, *args: Any, **options: Any) -> int:
    """Each row of A (TotalM, K) times one matrix of (G, K, N), or of grad (TotalM, N)."""
    return 2 * a[0] * a[1] * b[-1]


FORMULAS: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("mm", "bmm", "int_mm", "mixed_mm", "scaled_mm"), product),
    "mm_epilogue": fused,
    **dict.fromkeys(("addmm", "baddbmm"), product_of_rest),
    **dict.fromkeys(("linear", "linear_forward"), linear),
    "linear_weight_grad": linear_weight_gradient,
    **dict.fromkeys(("grouped_mm", "grouped_mm_weight_grad", "scaled_grouped_mm"), grouped),
}
for name, formula in FORMULAS.items():
    register_flop_formula(getattr(OPS, name))(formula)
