"""Products with epilogues and activations, and products of groups, compared with compositions."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import cutlass_api
import torch
from cutlass_api.fusion import activation as activations
from cutlass_api.ops import OPS
from support.operator_calls import BIAS_RELU, MANY, SWIGLU
from torch import Tensor
from torch.nn import functional

from operators.calls import FLOATS
from operators.case import Case, Make, operator

NUMBERS = """
def epilogue(accum, x, scale, offset):
    D = accum * scale + x * offset
    return D
"""


def fused(source: str, a: Tensor, b: Tensor, **operands: Any) -> Tensor:
    return cutlass_api.matmul(a, b, epilogue=source, **operands)


def fused_into(source: str, a: Tensor, b: Tensor, out: Tensor, **operands: Any) -> None:
    cutlass_api.matmul(a, b, out=out, epilogue=source, **operands)


def bias_relu(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(a @ b + bias)


def many(a: Tensor, b: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    accum = a @ b
    x = accum * 0.5 + bias
    y = torch.where(
        x > other,
        functional.gelu(x) - other,
        functional.silu(-x) / (1 + other.abs()),
    )
    z = torch.maximum(y, x.tanh()) + torch.minimum(x, other) * accum.sigmoid()
    return z + torch.exp(-x.square()) + torch.sqrt(x.square() + 1)


def swiglu(a: Tensor, b: Tensor, up: Tensor) -> Tensor:
    return functional.silu(a @ b) * (a @ up)


def numbers(a: Tensor, b: Tensor, x: Tensor, scale: float, offset: float) -> Tensor:
    return (a @ b) * scale + x * offset


def activated(activation: str, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return getattr(activations, activation)(functional.linear(x, weight, bias))


def linear(activation: str, *args: Any, **options: Any) -> Tensor:
    return cutlass_api.linear(*args, activation=activation, **options)


def linear_into(activation: str, *args: Any, out: Tensor) -> None:
    OPS.linear.out(*args, *([None] * (3 - len(args))), activation, out=out)


def grouped(a: Tensor, b: Tensor, offs: Tensor) -> Tensor:
    ends = [0, *offs.tolist()]
    return torch.cat([a[i:j] @ b[g] for g, (i, j) in enumerate(pairwise(ends))])


def grouped_samples(t: Make) -> Any:
    ends = partial(torch.tensor, dtype=torch.int32, device=t().device)
    yield t(6, 4), t(3, 4, 2), ends([2, 2, 6])
    yield t(5, 8), t(2, 8, 6), ends([0, 5])


def epilogue(name: str, source: str, composed: Callable[..., Tensor], own: Any) -> Case:
    def stored(a: Tensor, b: Tensor, **operands: Any) -> Tensor:
        """In the dtype of the product: under autocast, that of autocast."""
        return composed(a, b, **operands).to((a[..., :1, :1] @ b[..., :1, :1]).dtype)

    return Case(
        name=f"matmul, {name}",
        ours=partial(fused, source),
        theirs=stored,
        into=partial(fused_into, source),
        own=own,
        dtypes=FLOATS,
    )


CASES = (
    epilogue(
        *("bias and ReLU", BIAS_RELU, bias_relu),
        lambda t: [
            (t(3, 4), t(4, 2), {"bias": t(2)}),
            (t(2, 3, 4), t(4, 2), {"bias": t(2, 1, 2)}),
            (t(2, 1, 3, 4), t(2, 4, 2), {"bias": t(3, 1)}),
        ],
    ),
    epilogue(
        *("many operations", MANY, many),
        lambda t: [(t(3, 4), t(4, 2), {"bias": t(2), "other": t(3, 2)})],
    ),
    epilogue(
        *("two products", SWIGLU, swiglu),
        lambda t: [
            (t(3, 4), t(4, 2), {"up": t(4, 2)}),
            (t(2, 3, 4), t(4, 2), {"up": t(4, 2)}),
        ],
    ),
    epilogue(
        *("numbers", NUMBERS, numbers),
        lambda t: [(t(3, 4), t(4, 2), {"x": t(3, 2), "scale": 0.5, "offset": 3})],
    ),
    *(
        Case(
            name=f"linear, {name}",
            ours=partial(linear, name),
            theirs=partial(activated, name),
            into=partial(linear_into, name),
            # Arguments of the activation at which its derivatives are not negligible.
            own=lambda t: [
                (t(3, 4, low=-1, high=1), t(2, 4), t(2)),
                (t(2, 3, 4, low=-1, high=1), t(2, 4)),
                (t(4, low=-1, high=1), t(2, 4), t(2)),
            ],
            dtypes=FLOATS,
        )
        for name in activations.__all__
    ),
    Case(
        name="grouped_mm",
        ours=operator("grouped_mm"),
        theirs=grouped,
        own=grouped_samples,
        dtypes=FLOATS,
        lacks=["out="],
    ),
)
