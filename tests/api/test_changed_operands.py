"""Tensors that change after the construction of arguments."""

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GemmArguments
from support.helpers import REFUSED, coarse, exact, run_first

pytestmark = pytest.mark.usefixtures("exchange_mode")


def changed_after(change, name):
    """Runs after a change of one operand; returns (all operands, whether the run was refused)."""
    operands = {"A": coarse(4, 4), "B": coarse(4, 4), "out": torch.full((4, 4), torch.nan)}
    args = GemmArguments(**operands, accumulator_type="float32")
    kernel = cutlass_api.get_kernels(args)[0]
    change(operands[name])
    try:
        kernel.run(args)
    except REFUSED as error:
        assert name in str(error)
        return operands, True
    return operands, False


CHANGES = {
    ".data =": lambda tensor: setattr(tensor, "data", coarse(4, 4)),
    "set_": lambda tensor: tensor.set_(coarse(4, 4).T),
    "resize_ and back": lambda tensor: tensor.resize_(4000, 400).resize_(4, 4).fill_(2),
    "transposed": lambda tensor: tensor.t_(),
}
MISFITS = {
    "resize_": lambda tensor: tensor.resize_(6, 6),
    "rank": lambda tensor: tensor.resize_(4, 2, 2),
    "dtype": lambda tensor: setattr(tensor, "data", torch.ones(4, 4, dtype=torch.int64)),
    "empty": lambda tensor: tensor.resize_(0, 4),
}


@pytest.mark.parametrize("name", ["A", "B", "out"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_run_follows_memory_that_moved(change, name):
    operands, refused = changed_after(change, name)
    assert not refused
    assert torch.equal(operands["out"], exact(operands["A"], operands["B"], torch.float32))


@pytest.mark.parametrize("name", ["A", "B", "out"])
@pytest.mark.parametrize("change", MISFITS.values(), ids=MISFITS)
def test_a_run_refuses_operands_that_do_not_fit_any_more(change, name):
    assert changed_after(change, name)[1]


def test_a_run_refuses_operands_that_came_to_overlap():
    a, out = coarse(4, 4), torch.zeros(4, 4)
    args = GemmArguments(a, coarse(4, 4), out, "float32")
    a.data = out
    with pytest.raises(ValueError, match="out shares memory with A"):
        cutlass_api.get_kernels(args)[0].run(args)


def test_arguments_keep_their_operands_alive():
    out = torch.zeros(64, 64)
    args = GemmArguments(torch.eye(64), torch.full((64, 64), 3.0), out, "float32")
    torch.full((64, 64), 5.0)
    run_first(args)
    assert torch.equal(out, torch.full((64, 64), 3.0))
