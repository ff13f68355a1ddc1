"""``scaled_grouped_mm`` of groups along K, against float64."""

import math
from itertools import pairwise, product

import cutlass_api
import pytest
import torch
from cutlass_api import scaled_grouped_mm
from cutlass_api.arguments import EpilogueArguments, GroupedGemmArguments
from cutlass_api.ops._operator import OPS
from support.eight_bits import E4M3, E8M0, assert_close, devices, factors, float8, of_blocks
from support.helpers import fake, opcheck

GROUPS, M, N, K = 4, 140, 150, 304
ENDS = [100, 100, 228, 290]
#: The shapes of scales of A; those of B are of its transpose.
SHAPES = [
    (),
    (GROUPS,),
    (GROUPS, 1, 1),
    (GROUPS, M, 1),
    (GROUPS * M,),
    (M, 3),
    (2, 3),
]


def of_b(shape):
    """The shape for B, of N columns, of scales of A, of M rows."""
    swapped = {M: N, GROUPS * M: GROUPS * N}
    shape = tuple(swapped.get(extent, extent) for extent in shape)
    is_group = shape[:1] == (GROUPS,)
    if len(shape) == 3:
        return shape[0], shape[2], shape[1]
    return shape if is_group else shape[::-1]


def wide(scale, shape, is_a):
    """The scale of each element, and the scales of groups, which broadcast to the output."""
    if scale.dim() == 2:
        return of_blocks(scale, shape), torch.ones((), dtype=torch.float64, device=scale.device)
    per_row = scale.numel() > GROUPS
    outer = (-1, 1) if is_a else (1, -1)
    of_groups = scale.double().reshape(GROUPS, *outer) if per_row else scale.double()
    return 1.0, of_groups if per_row or scale.dim() == 0 else of_groups.reshape(GROUPS, 1, 1)


def expected(a, b, scale_a, scale_b, ends):
    left, of_a = wide(scale_a, a.shape, True)
    right, of_columns = wide(scale_b, b.shape, False)
    left, right = a.double() * left, b.double() * right
    spans = pairwise([0, *ends])
    sums = torch.stack([left[:, start:end] @ right[start:end] for start, end in spans])
    return sums * of_a * of_columns


@devices
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("fast", [False, True])
def test_every_kind_of_scales(dtype, fast, device):
    a, b = float8(M, K, device=device), float8(N, K, device=device).t()
    ends = torch.tensor(ENDS, dtype=torch.int32, device=device)
    for of_a, shape in product(SHAPES, SHAPES):
        scale_a, scale_b = factors(*of_a, device=device), factors(*of_b(shape), device=device)
        out = scaled_grouped_mm(a, b, scale_a, scale_b, ends, dtype, fast)
        wanted = expected(a, b, scale_a, scale_b, ENDS)
        assert out.dtype is dtype and not out[1].any()
        if device == "cpu" or not fast:
            assert_close(out, wanted)
        else:
            assert (out.double() - wanted).norm() / wanted.norm() < 5e-3


def test_offsets_of_int64_and_no_groups():
    a, b, one = float8(4, 32), float8(32, 6), torch.ones(())
    assert scaled_grouped_mm(a, b, one, one, torch.tensor([5, 32])).shape == (2, 4, 6)
    assert scaled_grouped_mm(a, b, one, one, torch.zeros(0, dtype=torch.int32)).shape == (0, 4, 6)
    scales = torch.full((2 * 4,), math.inf), torch.full((2, 1, 6), math.inf)
    nothing = scaled_grouped_mm(a[:, :0], b[:0], *scales, torch.zeros(2, dtype=torch.int32))
    assert nothing.shape == (2, 4, 6) and not nothing.any()


def test_traces():
    a, b = float8(M, K), float8(N, K).t()
    scales, ends = (
        (factors(GROUPS * M), factors(GROUPS, 1, N)),
        torch.tensor(ENDS, dtype=torch.int32),
    )
    compiled = torch.compile(scaled_grouped_mm, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(a, b, *scales, ends), scaled_grouped_mm(a, b, *scales, ends))
    opcheck(OPS.scaled_grouped_mm.default, (a, b, *scales, ends, torch.bfloat16))


def test_hopper_multiplies_aligned_operands_by_tensor_cores():
    m, n, k, f32 = 261, 395, 1024, torch.float32
    out, ends = fake(GROUPS, m, n, dtype=f32), fake(GROUPS, dtype=torch.int32)

    def families(source, layout="tn", k=k, **scales):
        operands = {name: fake(*shape, dtype=f32) for name, shape in scales.items()}
        epilogue = EpilogueArguments(
            f"def f(accum, {', '.join(scales)}, C): D = {source} + C; return D",
            C=out,
            D=out,
            **operands,
        )
        a, b = (
            fake(*of, dtype=E4M3, layout=letter)
            for of, letter in zip(((m, k), (k, n)), layout, strict=True)
        )
        args = GroupedGemmArguments(a, b, out, "float32", ends, epilogue)
        names = [x.metadata.kernel_name for x in cutlass_api.get_kernels(args, cc=90)]
        return list(dict.fromkeys(name.split("_")[0] for name in names))

    rows = {"x": (GROUPS, m, 1), "y": (GROUPS, 1, n)}
    assert families("accum * x * y", **rows) == ["sm90", "simt"]
    assert families("accum * x * y", "nt", **rows) == ["simt"]
    assert families("accum * x * y", k=1000, **rows) == ["simt"]
    blocks = "scale_blocks(accum, a=x, b=y, a_block=(1, {0}), b_block=({0}, 1))"
    for depth, served in ((128, ["sm90", "simt"]), (32, ["simt"])):
        of_blocks = {"x": (m, k // depth), "y": (k // depth, n)}
        assert families(blocks.format(depth), **of_blocks) == served
    assert families(blocks.format(-1), x=(m, 1), y=(1, n)) == ["simt"]


A, B, ONE = float8(4, 300), float8(300, 6), torch.ones(())
TWO = torch.tensor([1, 4], dtype=torch.int32)
REFUSALS = {
    "A has rank 3 and B rank 2; pass .* or A \\(M, TotalK\\) and B \\(TotalK, N\\)": lambda: (
        scaled_grouped_mm(A[None], B, ONE, ONE, TWO)
    ),
    r"scale_a has shape \[4\]; pass one factor, of shape \[\] or \[1\], or one for each group, of "
    r"shape \[2\] or \[2, 1, 1\], or one for each group and row, of shape \[2, 4, 1\] or \[8\], "
    r"or one for each block of 1 x 128, of shape \[4, 3\], or one for each block of "
    r"128 x 128, of shape \[1, 3\]": lambda: scaled_grouped_mm(A, B, torch.ones(4), ONE, TWO),
    r"scale_b has shape \[2, 6\]; .*group and column, of shape \[2, 1, 6\] or \[12\]": (
        lambda: scaled_grouped_mm(A, B, ONE, torch.ones(2, 6), TWO)
    ),
    "scale_a is torch.float8_e8m0fnu; pass torch.float32": lambda: scaled_grouped_mm(
        A, B, factors(4, 10, dtype=E8M0), ONE, TWO
    ),
    "offs is torch.float32": lambda: scaled_grouped_mm(A, B, ONE, ONE, TWO.float()),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals(message):
    with pytest.raises(ValueError, match=f"^cutlass_api::scaled_grouped_mm: {message}"):
        REFUSALS[message]()
