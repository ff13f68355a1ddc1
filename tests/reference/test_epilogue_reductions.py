"""Reductions in fused epilogues, by the CPU reference: results and mismatched operands."""

import pytest
import torch
from cutlass_api.arguments import ElementwiseArguments, EpilogueArguments
from support.epilogues import REDUCTIONS, assert_close, expected, fused, operands_of, shape_of
from support.helpers import coarse, run_first


@pytest.mark.parametrize("shape", [(17, 9), (300, 270), (3, 130, 140)], ids=str)
@pytest.mark.parametrize("case, kinds", REDUCTIONS, ids=lambda case: getattr(case, "name", ""))
def test_reductions_compute_what_torch_does(case, kinds, shape):
    *batch, m, n = shape
    a, b = coarse(*batch, m, 12), coarse(*batch, 12, n)
    others = {name: torch.full(shape, torch.nan) for name in case.others}
    others |= {name: torch.full(shape_of(kind, shape), torch.nan) for name, kind in kinds.items()}
    operands = operands_of(case, shape, torch.float32)
    run_first(fused(a, b, torch.full(shape, torch.nan), case.function, **operands, **others))
    # Operands are coarse, so that sums are exact in any order.
    wanted = expected(case.function, a @ b, operands)
    for name, tensor in others.items():
        torch.testing.assert_close(tensor, wanted[name].reshape(tensor.shape), rtol=1e-6, atol=0)


DIMS = [
    ((5, 6), 0, (1, 6)),
    ((5, 6), [0, 1], ()),
    ((2, 5, 6), (0, 1), (6,)),
    ((2, 5, 6), (0, 2), (1, 5, 1)),
    ((2, 5, 6), (0, 1, 2), (1, 1, 1)),
    ((5, 6), (), (1, 1)),
    ((5, 6), (), (1,)),
    ((2, 5, 6), [], ()),
]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.float16, torch.int8], ids=str
)
@pytest.mark.parametrize("shape, dims, reduced", DIMS)
def test_reductions_along_any_dimensions_into_any_dtype(shape, dims, reduced, dtype):
    source = (
        f"def f(accum):\n    D = accum\n    S = sum(accum, {dims})\n    T = max(accum, {dims})\n"
        "    return D, S, T"
    )
    integer = dtype == torch.int8
    narrow, wide = (torch.int8, torch.int32) if integer else (torch.float32, torch.float32)
    *batch, m, n = shape
    a, b = (coarse(*batch, *of, dtype=narrow) for of in ((m, 3), (3, n)))
    totals = {name: torch.zeros(reduced, dtype=dtype) for name in "ST"}
    run_first(fused(a, b, torch.zeros(shape, dtype=wide), source, wide, **totals))
    exact = a.double() @ b.double()
    for name, wanted in (("S", exact.sum(dims)), ("T", exact.amax(dims))):
        wanted = wanted.int().to(dtype) if integer else wanted.float()
        assert_close(totals[name], wanted.reshape(reduced))


def test_reductions_of_nan_of_nothing_and_of_integers_that_wrap():
    source = (
        "def f(accum):\n    D = accum\n    S = sum(accum, -1)\n    T = max(accum, -1)\n"
        "    return D, S, T"
    )
    a = torch.tensor([[torch.nan, 1.0], [0.0, -3.0]])
    s, t = torch.zeros(2), torch.zeros(2, 1)
    run_first(fused(a, torch.eye(2), torch.zeros(2, 2), source, S=s, T=t))
    assert s.isnan().tolist() == [True, False]
    assert t.isnan().flatten().tolist() == [True, False]
    assert t[1] == 0
    total = torch.full((3,), torch.nan)
    only_sum = "def f(accum):\n    D = accum\n    S = sum(accum, 1)\n    return D, S"
    run_first(fused(torch.ones(3, 2), torch.ones(2, 0), torch.zeros(3, 0), only_sum, S=total))
    assert total.tolist() == [0, 0, 0]
    a, total = torch.full((1, 2), 2**30, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    b, out = torch.ones(2, 3, dtype=torch.int32), torch.zeros(1, 3, dtype=torch.int32)
    run_first(fused(a, b, out, only_sum, torch.int32, S=total))
    assert total.item() == -(2**31)  # three times 2^31, modulo 2^32


#: The dimension that is summed up, and S.
REDUCTION_ERRORS = {
    r"S has shape \[4\], but the reduction has shape \[3\], or \[3, 1\] if": (-1, torch.zeros(4)),
    r"S has shape \[3, 4\], but the reduction has shape \[4\], or \[1, 4\]": (0, torch.zeros(3, 4)),
    r"S is reduced along dimension 2, which an output of shape \[3, 4\]": (2, torch.zeros(3)),
    "S is reduced along dimension -3": (-3, torch.zeros(3)),
    "S is an output of the epilogue, but a number was passed": (-1, 1.0),
    "S with shape .* overlaps itself": (-1, torch.zeros(1).expand(3)),
}


@pytest.mark.parametrize("message", REDUCTION_ERRORS)
def test_reductions_that_do_not_fit(message):
    dim, tensor = REDUCTION_ERRORS[message]
    source = f"def f(accum):\n    D = accum\n    S = sum(accum, {dim})\n    return D, S"
    with pytest.raises(ValueError, match=message):
        fused(torch.ones(3, 5), torch.ones(5, 4), torch.zeros(3, 4), source, S=tensor)


def test_reductions_are_refused_along_the_batch_and_behind_other_operations():
    source = "def f(accum):\n    D = accum\n    S = sum(accum, 0)\n    return D, S"
    a, out = torch.ones(2, 3, 3), torch.zeros(2, 3, 3)
    with pytest.raises(ValueError, match="S is reduced along the batch dimension alone"):
        fused(a, a, out, source, S=torch.zeros(3, 3))
    with pytest.raises(
        ValueError, match="S is a reduction, which only the epilogue of a GEMM can fuse"
    ):
        ElementwiseArguments(
            a[0], a[0], out[0], EpilogueArguments(source, D=out[0], S=torch.zeros(3))
        )
    with pytest.raises(ValueError, match="T is a maximum along a dimension of extent 0"):
        fused(
            torch.ones(3, 2),
            torch.ones(2, 0),
            torch.zeros(3, 0),
            source.replace("S", "T").replace("sum(accum, 0)", "max(accum, 1)"),
            T=torch.zeros(3),
        )
