"""Products that torch has, too."""

import math
from typing import Any

import cutlass_api
import torch
from cutlass_api.ops import OPS
from support.operator_calls import SHAPES
from torch.utils.flop_counter import register_flop_formula

from operators.case import Case, operator

# Products of which torch counts no operations.
register_flop_formula(torch.ops.aten.addbmm)(
    lambda input, a, b, *args, out_shape=None, **options: 2 * math.prod(a) * b[-1]
)
register_flop_formula([torch.ops.aten.mv, torch.ops.aten.dot])(
    lambda a, b, *args, out_shape=None, **options: 2 * math.prod(a)
)


# Where we have no operator of the name, what a user writes.


def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """One product of the batches side by side along K."""
    return OPS.addmm(input, *side_by_side(batch1, batch2), beta=beta, alpha=alpha)


def addbmm_into(input: Any, batch1: Any, batch2: Any, **options: Any) -> None:
    OPS.addmm.out(input, *side_by_side(batch1, batch2), **options)


def side_by_side(batch1: Any, batch2: Any) -> tuple[Any, Any]:
    return batch1.transpose(0, 1).flatten(1), batch2.flatten(0, 1)


def mv(A: Any, x: Any) -> Any:
    """Under autocast, torch casts the operands of matmul, but not of mv."""
    is_cast = torch.is_autocast_enabled(A.device.type)
    return torch.matmul(A, x) if is_cast else torch.mv(A, x)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """torch computes sums with any bias that broadcasts, but its derivatives refuse some."""
    if bias is None or (bias.dim() == 1 and weight.dim() == 2):
        return torch.nn.functional.linear(input, weight, bias)
    out = torch.nn.functional.linear(input, weight)
    return (out + bias.to(out.dtype)).view(out.shape)


def reversed_matmul(B: Any, A: Any) -> Any:
    return cutlass_api.matmul(A, B)


#: Shapes of the input, the weight and the bias.
LINEAR = [
    *(((4, 8), (6, 8), bias) for bias in ((), (1,), (6,), (1, 6), (4, 6), (4, 1), (1, 1))),
    *(((2, 4, 8), (6, 8), bias) for bias in ((), (6,), (1, 6), (4, 6), (2, 4, 6), (2, 1, 6))),
    *(((8,), (6, 8), bias) for bias in ((), (6,), (1, 6))),
    ((2, 3, 4, 8), (6, 8), (3, 4, 6)),
    *((shape, (8,), None) for shape in ((8,), (4, 8), (2, 4, 8))),
    *(((2, 4, 8), (8,), bias) for bias in ((), (4,), (2, 1))),
    ((0, 8), (6, 8), (1, 6)),
]

CASES = (
    Case(
        name="mm",
        ours=operator("mm"),
        theirs=torch.mm,
        into=OPS.mm.out,
        database="mm",
        own=lambda t: [(t(4, 3), t(3, 5)), (t(1, 7), t(7, 1))],
    ),
    Case(
        name="bmm",
        ours=operator("bmm"),
        theirs=torch.bmm,
        into=OPS.bmm.out,
        database="bmm",
        own=lambda t: [
            (t(2, 3, 4), t(2, 4, 2)),
            (t(1, 3, 4).expand(2, 3, 4), t(2, 4, 2)),
            (t(0, 3, 4), t(0, 4, 2)),
        ],
    ),
    Case(
        name="matmul",
        ours=cutlass_api.matmul,
        theirs=torch.matmul,
        into=cutlass_api.matmul,
        database="matmul",
        own=lambda t: [(t(*a), t(*b)) for a, b in SHAPES],
    ),
    Case(
        name="mv",
        ours=cutlass_api.matmul,
        theirs=mv,
        into=cutlass_api.matmul,
        database="mv",
        own=lambda t: [(t(3, 0), t(0))],
    ),
    Case(
        name="__rmatmul__",
        ours=reversed_matmul,
        theirs=torch.Tensor.__rmatmul__,
        database="__rmatmul__",
        lacks=["out="],
    ),
    Case(
        name="addmm",
        ours=operator("addmm"),
        theirs=torch.addmm,
        into=OPS.addmm.out,
        database="addmm",
        extends=["another float of tensor 0"],
        own=lambda t: [(t(3, 1), t(3, 4), t(4, 2)), (t(2), t(3, 4), t(4, 2), {"beta": 0})],
    ),
    Case(
        name="addbmm",
        ours=addbmm,
        theirs=torch.addbmm,
        into=addbmm_into,
        database="addbmm",
        own=lambda t: [(t(3, 2), t(2, 3, 4), t(2, 4, 2))],
    ),
    Case(
        name="baddbmm",
        ours=operator("baddbmm"),
        theirs=torch.baddbmm,
        into=OPS.baddbmm.out,
        database="baddbmm",
        extends=["another float of tensor 0"],
        own=lambda t: [(t(2, 1, 2), t(2, 3, 4), t(2, 4, 2), {"beta": 2, "alpha": 3})],
    ),
    Case(
        name="linear",
        ours=cutlass_api.linear,
        theirs=linear,
        into=OPS.linear.out,
        database="nn.functional.linear",
        own=lambda t: [tuple(None if x is None else t(*x) for x in shapes) for shapes in LINEAR],
        extends=["another float of tensor 2", "one more dimension of tensor 2"],
    ),
)
#: The operators of ours that have the name of torch's.
OPERATORS = ("mm", "bmm", "matmul", "addmm", "baddbmm", "linear")
