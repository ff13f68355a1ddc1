"""Masked grouped GEMMs: arguments, kernels, results on the CPU, and the function of torch."""

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GroupedGemmArguments
from support import memory
from support.helpers import fake, run_first
from support.masked_groups import CASES, MaskedGroups, with_epilogue, with_scales
from support.memory import Form
from support.properties import Types

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(memory, "DEVICE", torch.device("cpu"))


def of_types(case=CASES[0], dtype=BF16, out=None) -> MaskedGroups:
    accumulator = {torch.float64: torch.float64, torch.int8: torch.int32}.get(dtype, F32)
    return MaskedGroups(Types(dtype, dtype, accumulator, out or dtype), *case)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [BF16, torch.float64])
def test_values(case, dtype):
    trial = of_types(case, dtype)
    args = trial.arguments()
    (kernel,) = cutlass_api.get_kernels(args)
    trial.check(kernel, args)


@pytest.mark.parametrize("has_product", [False, True], ids=["one product", "two products"])
def test_epilogues(has_product):
    trial = of_types()
    args, wanted = with_epilogue(trial, has_product)
    (kernel,) = cutlass_api.get_kernels(args)
    trial.check(kernel, args, wanted)


@pytest.mark.parametrize("blocks", [False, True], ids=["rows and columns", "blocks"])
def test_scales(blocks):
    trial = of_types(([0, 70, 37], 70, 152, 304), E4M3, BF16)
    args, wanted = with_scales(trial, blocks)
    (kernel,) = cutlass_api.get_kernels(args)
    trial.check(kernel, args, wanted)


@pytest.mark.parametrize("counts, group, count", [([0, -1], 1, -1), ([71, 3], 0, 71)])
def test_counts_out_of_range(counts, group, count):
    trial = of_types((counts, 70, 16, 16))
    message = f"counts of rows must lie in 0 to 70, .* but group {group} has {count}"
    with pytest.raises(ValueError, match=message):
        run_first(trial.arguments())
    assert (trial.out.memory.bytes == trial.out.poison).all()


def test_one_group_means_the_same_as_groups_along_m():
    a, b, ends = torch.randn(1, 8, 4), torch.randn(1, 4, 6), torch.tensor([5], dtype=torch.int32)
    out = torch.full((1, 8, 6), torch.nan)
    run_first(GroupedGemmArguments(a, b, out, F32, ends))
    torch.testing.assert_close(out[:, :5], a[:, :5] @ b)
    assert out[:, 5:].isnan().all()


@pytest.mark.parametrize("dtype", [BF16, torch.float16, F32, torch.int8], ids=str)
@pytest.mark.parametrize("shape", [(32, 128, 256, 512), (3, 7, 9, 5), (70, 1, 8, 0)], ids=str)
def test_kernels_are_those_of_groups_along_m(dtype, shape):
    groups, rows, n, k = shape
    a, out = fake(groups, rows, k, dtype=dtype), fake(groups, rows, n, dtype=dtype)
    b, counts = fake(groups, k, n, dtype=dtype, layout="n"), fake(groups, dtype=torch.int32)
    accumulator = torch.int32 if dtype is torch.int8 else F32
    args = GroupedGemmArguments(a, b, out, accumulator, counts)
    for cc in (80, 90):
        kernels = cutlass_api.get_kernels(args, cc=cc)
        assert kernels
        for kernel in kernels:
            assert kernel.metadata.operands.offsets_along == "m"
            assert kernel.supports(args) and kernel.metadata.supports(args)
            assert kernel.get_workspace_size(args) == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_function(dtype, has_bias):
    trial = MaskedGroups(Types(BF16, BF16, F32, BF16), [0, 5, 8], 8, 24, 16, [Form()] * 3)
    counts = trial.offsets.to(dtype)
    bias = trial.values(3, 24) if has_bias else None
    wanted = trial.wanted() + (0 if bias is None else bias[:, None].double())
    out = torch.full((3, 8, 24), 7.0, dtype=BF16)
    assert cutlass_api.masked_grouped_mm(trial.a, trial.b, counts, bias=bias, out=out) is out
    new = cutlass_api.masked_grouped_mm(trial.a, trial.b, counts, bias=bias, out_dtype=F32)
    assert new.dtype is F32 and new.shape == out.shape
    for group, count in enumerate(trial.counts):
        assert torch.equal(new[group, :count].double(), wanted[group, :count])
        assert torch.equal(out[group, :count], wanted[group, :count].to(BF16))
        assert (out[group, count:] == 7).all()
    with pytest.raises(ValueError, match="out or out_dtype, not both"):
        cutlass_api.masked_grouped_mm(trial.a, trial.b, counts, out=out, out_dtype=F32)
