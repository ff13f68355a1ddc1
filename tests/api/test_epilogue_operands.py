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
    d, e, c = (torch.zeros(3, 4) for _ in range(3))
    for missing in "CDE":
        given = {
            name: tensor for name, tensor in {"C": c, "D": d, "E": e}.items() if name != missing
        }
        with pytest.raises(
            ValueError,
            match=f"^Argument {missing} is not provided in the kwargs of the EpilogueArgu",
        ):
            outputs(**given)
    with pytest.raises(
        ValueError,
        match="Argument alpha is neither a parameter nor an output of the epilogue function",
    ):
        outputs(C=c, D=d, E=e, alpha=1)
    for wrong in ("text", None, [1.0], object()):
        with pytest.raises(TypeError, match=r"C is a \w+; pass a tensor or a number"):
            outputs(C=wrong, D=d, E=e)
    for wrong in (1j, numpy.complex64(2 + 7j)):
        with pytest.raises(TypeError, match=r"^C is .*j\)?, a complex number; pass a real number"):
            outputs(C=wrong, D=d, E=e)


def test_more_operands_than_a_launch_has_room_for():
    names = [f"t{at}" for at in range(1000)]
    source = f"def f(accum, {', '.join(names)}):\n    D = accum + t0\n    return D"
    with pytest.raises(ValueError, match="D exceeds the limit of 1000 epilogue operands"):
        fused(
            torch.ones(2, 2),
            torch.ones(2, 2),
            torch.zeros(2, 2),
            source,
            **dict.fromkeys(names, 1.0),
        )


def whole():
    """Matching operands."""
    return {"C": torch.ones(3, 4), "D": torch.zeros(3, 4), "E": torch.zeros(3, 4)}


def overlapping():
    return torch.zeros(4).expand(3, 4)


def read_only():
    array = numpy.zeros((3, 4), dtype=numpy.float32)
    array.flags.writeable = False
    return array


WRONG = {
    "rows": (
        {"C": torch.ones(4, 4)},
        ValueError,
        r"C with shape \[4, 4\] does not broadcast .* \[3, 4\]",
    ),
    "columns": ({"C": torch.ones(3)}, ValueError, r"C with shape \[3\] does not broadcast"),
    "batch": (
        {"C": torch.ones(2, 3, 4)},
        ValueError,
        r"C with shape \[2, 3, 4\] does not broadcast",
    ),
    "rank": ({"C": torch.ones(1, 1, 3, 4)}, ValueError, "C has rank 4"),
    "dtype": ({"C": torch.ones(3, 4, dtype=torch.complex64)}, ValueError, "C has dtype complex64"),
    "device": ({"C": fake(3, 4)}, ValueError, "C is on cuda:0, but out is on cpu"),
    "output shape": (
        {"E": torch.zeros(1, 4)},
        ValueError,
        r"E has shape \[1, 4\], but an epilogue's outputs .* \[3, 4\]",
    ),
    "output number": (
        {"E": 1.0},
        ValueError,
        "E is an output of the epilogue, but a number was passed",
    ),
    "main output number": (
        {"D": 1.0},
        ValueError,
        "D is the main output of the epilogue and must be a tensor",
    ),
    "main output shape": (
        {"D": torch.zeros(4, 4)},
        ValueError,
        r"D has shape \[4, 4\], but an epilogue's outputs .* \[3, 4\]",
    ),
    "output overlap": (
        {"E": overlapping()},
        ValueError,
        "E with shape .* overlaps itself",
    ),
    "read-only output": ({"E": read_only()}, ValueError, "E is read-only"),
}


@pytest.mark.parametrize("change, error, message", WRONG.values(), ids=WRONG)
def test_operands_that_do_not_fit(change, error, message):
    a, b, tensors = torch.ones(3, 5), torch.ones(5, 4), whole() | change
    with pytest.raises(error, match=message):
        GemmArguments(
            a,
            b,
            tensors["D"] if "D" not in change else torch.zeros(3, 4),
            "float32",
            outputs(**tensors),
        )


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
