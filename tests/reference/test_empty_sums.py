"""K = 0: sums are 0, whatever the scales, and products are the bias, rounded as any other."""

import math

import cutlass_api
import pytest
import torch
from cutlass_api import int8_mm, mixed_mm, scaled_grouped_mm, scaled_mm
from cutlass_api.arguments import EpilogueArguments, GemmArguments, GroupedGemmArguments
from support.eight_bits import E8M0, devices, fused, one
from support.helpers import fake
from support.properties import family_of

M, N, GROUPS = 20, 24, 3
E4M3, S8, F16 = torch.float8_e4m3fn, torch.int8, torch.float16
#: What may make NaN of a sum of 0.
values = pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])


def empty(a, b, device, batch=()):
    return (
        torch.empty(*batch, M, 0, dtype=a, device=device),
        torch.empty(*batch, 0, N, dtype=b, device=device),
    )


def filled(shape, value, device, dtype=torch.float32):
    return torch.full(shape, value, device=device).to(dtype)


def check(out, expected):
    torch.testing.assert_close(out.float(), expected.float().expand(out.shape), rtol=0, atol=0)


@values
@devices
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16, E4M3], ids=str)
@pytest.mark.parametrize(
    "shapes",
    [((), ()), ((M, 1), (1, N)), ((M, 1), ()), ((M, 0), (0, N)), ((1, 0), (0, 1)), ((), (0, N))],
    ids=str,
)
def test_scaled_mm(shapes, out_dtype, batch, value, device):
    a, b = empty(E4M3, E4M3, device, batch)
    scales = [filled(shape, value, device) for shape in shapes]
    bias = torch.ones(N, device=device)
    result = filled((), value, device)
    check(scaled_mm(a, b, *scales, out_dtype), torch.zeros(N, device=device))
    check(scaled_mm(a, b, *scales, out_dtype, scale_result=result), torch.zeros(N, device=device))
    check(scaled_mm(a, b, *scales, out_dtype, bias), bias)


@devices
def test_scaled_mm_of_mx(device):
    a, b = empty(E4M3, E4M3, device)
    scale_a, scale_b = (torch.empty(shape, device=device).to(E8M0) for shape in [(M, 0), (0, N)])
    check(scaled_mm(a, b, scale_a, scale_b), torch.zeros(N, device=device))


@values
@devices
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("out_dtype", [torch.float16, torch.int32, torch.int8], ids=str)
@pytest.mark.parametrize("shapes", [((), ()), ((M, 1), (1, N))], ids=str)
def test_int8_mm(shapes, out_dtype, batch, value, device):
    a, b = empty(S8, S8, device, batch)
    scales = [filled(shape, value, device) for shape in shapes]
    bias = torch.arange(N, device=device, dtype=torch.float32)
    check(int8_mm(a, b, *scales, out_dtype=out_dtype), torch.zeros(N, device=device))
    check(int8_mm(a, b, *scales, bias, out_dtype), bias)
    if out_dtype is S8:
        zero = torch.tensor(3, dtype=S8, device=device)
        check(int8_mm(a, b, *scales, bias, out_dtype, zero), bias + 3)


@values
@devices
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("zero_point", [None, math.inf])
@pytest.mark.parametrize("types", [(F16, S8), (S8, F16)], ids=str)
def test_mixed_mm(types, zero_point, batch, value, device):
    a, b = empty(*types, device, batch)
    row_or_column = (1, N) if types[1] is S8 else (M, 1)
    for shape in [(), row_or_column]:
        scale = filled(shape, value, device)
        zero = None if zero_point is None else filled(row_or_column, zero_point, device)
        check(mixed_mm(a, b, scale, zero_point=zero), torch.zeros(N, device=device))


@values
@devices
@pytest.mark.parametrize("scale_b", [(), (GROUPS,), (GROUPS, 1, N), (GROUPS, 0, N)], ids=str)
@pytest.mark.parametrize("scale_a", [(), (M, 1), (M,), (M, 0)], ids=str)
def test_scaled_grouped_mm(scale_a, scale_b, value, device):
    a, b = torch.empty(M, 0, device=device), torch.empty(GROUPS, 0, N, device=device)
    scales = [filled(shape, value, device) for shape in (scale_a, scale_b)]
    ends = torch.tensor([5, 5, M], dtype=torch.int32, device=device)
    out = scaled_grouped_mm(a.to(E4M3), b.to(E4M3), *scales, ends)
    check(out, torch.zeros(N, device=device))


@values
@devices
@pytest.mark.parametrize("depth", [-1, 128])
def test_scale_blocks(depth, value, device):
    """In every family that serves it."""
    a, b = empty(E4M3, E4M3, device)
    out = torch.ones(M, N, device=device)
    source = one(f"scale_blocks(accum, b=s, b_block=({depth}, 1)) + 2")
    args = fused(a, b, out, source, s=filled((1 if depth < 0 else 0, N), value, device))
    for kernel in cutlass_api.get_kernels(args)[::20]:
        kernel.run(args)
        check(out, filled((), 2, device))


@pytest.mark.parametrize("is_grouped", [False, True])
def test_kernels_that_scale_sums_refuse_sums_of_nothing(is_grouped):
    groups = (GROUPS,) if is_grouped else ()

    def arguments(k):
        """Rows are aligned, also if K is 0."""
        a, out = fake(64, 128, dtype=E4M3)[:, :k], fake(64, 64, dtype=torch.float32)
        b = fake(*groups, 128, 64, dtype=E4M3, layout="n")[..., :k, :]
        source = one("scale_blocks(accum, b=s, b_block=(-1, 1))")
        scales = fake(*groups, 1, 64, dtype=torch.float32)
        epilogue = EpilogueArguments(source, D=out, s=scales)
        if not is_grouped:
            return GemmArguments(a, b, out, "float32", epilogue=epilogue)
        ends = fake(GROUPS, dtype=torch.int32)
        return GroupedGemmArguments(a, b, out, "float32", ends, epilogue)

    some, none = arguments(128), arguments(0)
    kernel = next(k for k in cutlass_api.get_kernels(some, cc=90) if family_of(k) == "sm90")
    assert "K is 0, and the kernel serves at least 1" in str(kernel.supports(none).error)
    # Of sm80, the scales multiply the sums of K blocks, of which there are none.
    assert {family_of(each) for each in cutlass_api.get_kernels(none, cc=90)} == {"simt", "sm80"}
