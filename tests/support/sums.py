"""Sums of two tensors in several memory layouts."""

import torch
from cutlass_api.arguments import ElementwiseArguments

from support.helpers import INTEGERS, run_first, same
from support.memory import Form

FORMS = [
    Form(),
    Form(order="n"),
    Form(multiple=16),
    Form(multiple=16, pad=1),
    Form(multiple=16, offset=1),
    Form(multiple=16, step=2),
    Form(multiple=16, broadcast=(-1,)),
    Form(multiple=16, broadcast=(-2,)),
    Form(broadcast=(-1, -2)),
]


def expected(a, b):
    wide = torch.int64 if a.dtype in INTEGERS else torch.float64
    return (a.to(wide) + b.to(wide)).to(a.dtype)


def check(a, b, output, what=""):
    """A sum into a poisoned output."""
    args = ElementwiseArguments(a, b, output.tensor)
    output.memory.bytes.fill_(output.poison)
    run_first(args)
    assert same(output.tensor, expected(a, b)), what
    assert output.intact_around(), f"{what}: wrote outside the output"
