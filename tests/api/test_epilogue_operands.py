"""Operands that an epilogue refuses."""

import numpy
import pytest
import torch
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from support.epilogues import fused
from support.helpers import fake


def outputs(**tensors):
    return EpilogueArguments(
        "def f(accum, C):\n    D = accum + C\n    E = D * 2\n    return D, E", **tensors
    )


def test_missing_and_extra_operands():
    given = {name: torch.zeros(3, 4) for name in "CDE"}
    for missing in "CDE":
        message = f"^Argument {missing} is not provided in the kwargs of the EpilogueArgu"
        with pytest.raises(ValueError, match=message):
            outputs(**{name: given[name] for name in given if name != missing})
    message = "Argument alpha is neither a parameter nor an output of the epilogue function"
    with pytest.raises(ValueError, match=message):
        outputs(**given, alpha=1)
    for wrong in ("text", None, [1.0], object()):
        with pytest.raises(TypeError, match=r"C is a \w+; pass a tensor or a number"):
            outputs(**given | {"C": wrong})
    for wrong in (1j, numpy.complex64(2 + 7j)):
        with pytest.raises(TypeError, match=r"^C is .*j\)?, a complex number; pass a real number"):
            outputs(**given | {"C": wrong})


def test_more_operands_than_a_launch_has_room_for():
    names = [f"t{at}" for at in range(1000)]
    source = f"def f(accum, {', '.join(names)}):\n    D = accum + t0\n    return D"
    a, out = torch.ones(2, 2), torch.zeros(2, 2)
    with pytest.raises(ValueError, match="D exceeds the limit of 1000 epilogue operands"):
        fused(a, a, out, source, **dict.fromkeys(names, 1.0))


def read_only():
    array = numpy.zeros((3, 4), dtype=numpy.float32)
    array.flags.writeable = False
    return array


WRONG = {
    r"C with shape \[4, 4\] does not broadcast .* \[3, 4\]": {"C": torch.ones(4, 4)},
    r"C with shape \[3\] does not broadcast": {"C": torch.ones(3)},
    r"C with shape \[2, 3, 4\] does not broadcast": {"C": torch.ones(2, 3, 4)},
    "C has rank 4": {"C": torch.ones(1, 1, 3, 4)},
    "C has dtype complex64": {"C": torch.ones(3, 4, dtype=torch.complex64)},
    "C is on cuda:0, but out is on cpu": {"C": fake(3, 4)},
    r"E has shape \[1, 4\], but an epilogue's outputs .* \[3, 4\]": {"E": torch.zeros(1, 4)},
    "E is an output of the epilogue, but a number was passed": {"E": 1.0},
    "D is the main output of the epilogue and must be a tensor": {"D": 1.0},
    r"D has shape \[4, 4\], but an epilogue's outputs .* \[3, 4\]": {"D": torch.zeros(4, 4)},
    "E with shape .* overlaps itself": {"E": torch.zeros(4).expand(3, 4)},
    "E is read-only": {"E": read_only()},
}


@pytest.mark.parametrize("message", WRONG)
def test_operands_that_do_not_fit(message):
    out = torch.zeros(3, 4)
    tensors = {"C": torch.ones(3, 4), "D": out, "E": torch.zeros(3, 4)} | WRONG[message]
    with pytest.raises(ValueError, match=message):
        GemmArguments(torch.ones(3, 5), torch.ones(5, 4), out, "float32", outputs(**tensors))


def test_outputs_that_meet_other_operands():
    a, b, memory = torch.ones(4, 4), torch.ones(4, 4), torch.zeros(8, 4)
    top, bottom, middle = memory[:4], memory[4:], memory[2:6]
    c = torch.ones(4, 4)
    GemmArguments(a, b, top, "float32", outputs(C=c, D=top, E=bottom))
    GemmArguments(a, b, top, "float32", outputs(C=top, D=top, E=bottom))
    GemmArguments(a, b, top, "float32", outputs(C=bottom, D=top, E=bottom))
    cases = [
        ({"C": c, "D": top, "E": middle}, "the outputs E and D of the epilogue share memory"),
        ({"C": middle, "D": top, "E": bottom}, "the output D shares memory with C"),
        ({"C": bottom.T, "D": top, "E": bottom}, "the output E shares memory with C"),
        ({"C": top[:1], "D": top, "E": bottom}, "the output D shares memory with C"),
        ({"C": c, "D": top, "E": a}, "the output E shares memory with A"),
    ]
    for tensors, message in cases:
        with pytest.raises(ValueError, match=message):
            GemmArguments(a, b, top, "float32", outputs(**tensors))
    with pytest.raises(ValueError, match="out shares memory with B"):
        GemmArguments(a, b, top, "float32", outputs(C=c, D=b, E=bottom))
