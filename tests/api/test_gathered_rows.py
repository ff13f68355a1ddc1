"""Grouped GEMMs of rows that an index names: arguments, kernels and results on the CPU."""

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GroupedGemmArguments
from support import memory
from support.dual_groups import CASES as DUAL
from support.dual_groups import DualGroups
from support.group_rows import CASES, GroupRows
from support.helpers import fake, run_first

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(memory, "DEVICE", torch.device("cpu"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__} {case[1:]}")
def test_values(case):
    trial = GroupRows(*case, has_index=True)
    (kernel,) = cutlass_api.get_kernels(trial.args)
    trial.check(kernel)


@pytest.mark.parametrize("seed", range(len(DUAL)))
def test_two_products(seed):
    trial = DualGroups(*DUAL[seed], "halves", seed, has_index=True)
    (kernel,) = trial.kernels()
    trial.check(kernel)


def arguments(index, out=None) -> GroupedGemmArguments:
    """Two groups, of 2 and 3 rows, and a row behind them."""
    a, b, out = torch.ones(4, 8), torch.ones(2, 8, 16), torch.ones(6, 16) if out is None else out
    return GroupedGemmArguments(a, b, out, F32, indices(2, 5), index=index)


def indices(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_the_operand():
    out = torch.full((6, 16), 7.0)
    args = arguments(indices(3, 3, 0, 1, 2, 9), out)
    assert args.index.shape == (6,) and "index=int32[6]" in repr(args)
    plain = GroupedGemmArguments(
        *(torch.ones(6, 8), torch.ones(2, 8, 16)), torch.ones(6, 16), F32, indices(2, 5)
    )
    assert plain.index is None
    run_first(args)
    assert (out[:5] == 8).all() and (out[5:] == 7).all()


@pytest.mark.parametrize("wrong, row, group", [(-1, 1, 0), (4, 3, 1)])
def test_an_index_of_no_row(wrong, row, group):
    index = indices(3, 3, 0, 1, 2, 9)
    index[row] = wrong
    out = torch.full((6, 16), 7.0)
    args = arguments(index, out)
    message = f"index must lie in 0 to 3, .* but row {row} of group {group} has {wrong}"
    with pytest.raises(ValueError, match=message):
        run_first(args)
    assert (out == 7).all()


@pytest.mark.parametrize(
    "message, index",
    [
        ("index is int64; pass int32", torch.zeros(6, dtype=torch.int64)),
        ("index must have rank 1", torch.zeros(1, 6, dtype=torch.int32)),
        ("dimension TotalM differs: it is 6 in out", indices(0, 1)),
    ],
)
def test_refusals(message, index):
    with pytest.raises(ValueError, match=message):
        arguments(index)


def test_masked_groups_have_no_index():
    a, b, out = torch.ones(2, 4, 8), torch.ones(2, 8, 16), torch.ones(2, 4, 16)
    with pytest.raises(ValueError, match="index names rows of A for groups of rows"):
        GroupedGemmArguments(a, b, out, F32, indices(2, 5), index=indices(0, 1, 2, 3))


@pytest.mark.parametrize(
    "dtype, cc, families",
    [(BF16, 90, {"sm90"}), (BF16, 80, set()), (F32, 90, set()), (E4M3, 90, set())],
    ids=str,
)
def test_kernels(dtype, cc, families):
    a, b = fake(40, 64, dtype=dtype), fake(3, 64, 128, dtype=dtype, layout="n")
    out, ends, index = fake(90, 128, dtype=BF16), fake(3, dtype=torch.int32), None
    index = fake(90, dtype=torch.int32)
    args = GroupedGemmArguments(a, b, out, F32, ends, index=index)
    kernels = cutlass_api.get_kernels(args, cc=cc)
    assert {kernel.metadata.kernel_name.split("_")[0] for kernel in kernels} == families
    assert all(kernel.supports(args) for kernel in kernels)
    if not kernels:
        in_order = GroupedGemmArguments(fake(90, 64, dtype=dtype), b, out, F32, ends)
        kernel = cutlass_api.get_kernels(in_order, cc=cc)[0]
        status = kernel.supports(args)
        assert not status and "it reads the rows of A in order" in str(status.error)


def test_the_function():
    torch.manual_seed(0)
    a, b = torch.randn(5, 8, requires_grad=True), torch.randn(3, 8, 6, requires_grad=True)
    ends, index = indices(2, 2, 6), indices(4, 4, 0, 3, 3, 3, -1, 9)
    for each in (index, index.long()):
        out = cutlass_api.grouped_mm(a, b, ends, index=each, zero_rest=True)
        rows = a[index.clamp(0, 4).long()]
        wanted = cutlass_api.grouped_mm(rows, b, ends, zero_rest=True)
        assert torch.equal(out, wanted) and out.shape == (8, 6)
        found, expected = (torch.autograd.grad(x.sin().sum(), (a, b)) for x in (out, wanted))
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs)
