"""Operators with scales and zero points of blocks along K, against float64."""

import cutlass_api
import pytest
import torch
from cutlass_api import mixed_mm, scaled_grouped_mm, scaled_mm
from cutlass_api.arguments import (
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    PerformanceControls,
)
from support.eight_bits import (
    A8,
    ALIGNED,
    B8,
    BOTH,
    E4M3,
    E8M0,
    M,
    N,
    assert_close,
    blocks,
    depths,
    devices,
    factors,
    float8,
    fused,
    integers,
    product_of_blocks,
    swizzled,
)
from support.helpers import fake

# scaled_mm.


@devices
@pytest.mark.parametrize("rows, columns", [(1, 128), (128, 1), (128, 128)])
@pytest.mark.parametrize("k", [300, 32])
def test_scales_of_blocks_in_e8m0(rows, columns, k, device):
    a, b = float8(M, k, device=device), float8(N, k, device=device).t()
    scale_a = factors(*blocks((M, k), (rows, 128)), device=device, dtype=E8M0)
    scale_b = factors(*blocks((N, k), (columns, 128)), device=device, dtype=E8M0).t()
    expected = scaled_mm(a, b, scale_a.float(), scale_b.float())
    assert torch.equal(scaled_mm(a, b, scale_a, scale_b), expected)
    assert torch.equal(scaled_mm(a, b, scale_a, scale_b.float()), expected)
    torch._dynamo.reset()  # it compiles a function for few sets of shapes
    compiled = torch.compile(scaled_mm, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(a, b, scale_a, scale_b), expected)


@devices
@depths
def test_scaled_mm_of_mxfp8(k, device):
    a, b = float8(M, k, device=device), float8(N, k, device=device).t()
    scale_a = factors(M, 10, dtype=E8M0, device=device)
    scale_b = factors(10, N, dtype=E8M0, device=device)
    expected = product_of_blocks(a, scale_a, (1, 32), b, scale_b, (32, 1))
    plain = scaled_mm(a, b, scale_a, scale_b, torch.float32)
    assert_close(plain, expected)
    tiles = swizzled(scale_a), swizzled(scale_b.t().contiguous())
    assert torch.equal(scaled_mm(a, b, *tiles, torch.float32), plain)


# mixed_mm.


# scaled_grouped_mm.


def test_fast_sums_of_groups_are_on_request():
    """With scales of rows, groups and columns, but not with scales that vary along K."""
    m, n, k = 256, 256, 512
    a, b = fake(m, k, dtype=E4M3), fake(4, k, n, dtype=E4M3, layout="n")
    out, ends = fake(m, n, dtype=torch.bfloat16), fake(4, dtype=torch.int32)

    def names(block, scales, fast_sums):
        source = f"def f(accum, x, s):\n    D = scale_blocks(accum, b=s, b_block={block}) * x\n"
        operands = {"x": fake(m, 1, dtype=torch.float32), "s": fake(*scales, dtype=torch.float32)}
        epilogue = EpilogueArguments(f"{source}    return D\n", D=out, **operands)
        controls = PerformanceControls(fast_sums=fast_sums)
        args = GroupedGemmArguments(a, b, out, "float32", ends, epilogue, controls)
        return {kernel.metadata.kernel_name for kernel in cutlass_api.get_kernels(args, cc=90)}

    for block, scales in (((-1, 128), (4, 1, 2)), ((-1, 1), (4, 1, n))):
        slow, fast = (names(block, scales, permitted) for permitted in (False, True))
        more = fast - slow
        assert slow < fast and len(more) == 3 and all("_fast" in name for name in more)
    assert names((128, 1), (4, 4, n), False) == names((128, 1), (4, 4, n), True)


# Factors of rows, of columns and of all elements.


def test_hopper_multiplies_aligned_operands_by_tensor_cores():
    a, f32 = fake(M, ALIGNED, dtype=E4M3), torch.float32
    b, groups = (fake(*of, ALIGNED, N, dtype=E4M3, layout="n") for of in ((), (3,)))
    narrow = [fake(*x.shape, dtype=torch.int8, layout=y) for x, y in ((a, "t"), (b, "n"))]
    wide, out = fake(M, ALIGNED, dtype=torch.bfloat16), fake(M, N)
    sums = "def f(accum, x, y):\n    D = accum * x * y\n    return D"
    vectors = EpilogueArguments(sums, D=out, x=fake(M, 1, dtype=f32), y=fake(1, N, dtype=f32))
    mx = {"left": fake(M, 10, dtype=E8M0), "right": fake(10, N, dtype=E8M0)}
    products = [
        GemmArguments(a, b, out, "float32", epilogue=vectors),
        GemmArguments(*narrow, out, "int32", epilogue=vectors),
        GemmArguments(wide, narrow[1], fake(M, N, dtype=torch.bfloat16), "float32"),
        fused(a, b, out, BOTH.format((1, 32), (32, 1)), **mx),
        GroupedGemmArguments(a, groups, out, "float32", fake(3, dtype=torch.int32)),
    ]
    for arguments in products:
        first = cutlass_api.get_kernels(arguments, cc=90)[0]
        assert first.metadata.kernel_name.startswith("sm90_")


# Traces, batches, gradients and refusals.


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 16, 128])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("is_b", [True, False])
def test_the_meaning_of_scales_depends_on_no_batch_size(rows, count, columns, is_b):
    """Scales of groups of ``count`` along K = 128, for float operands of any number of rows."""
    x, w = torch.randn(rows, 128).half(), integers(128, columns)
    scale = torch.rand(count, columns) + 0.5
    exact = x.double() @ (w.double() * scale.double().repeat_interleave(128 // count, 0))
    for zero in (None, torch.zeros(count, columns)):
        if is_b:
            out = mixed_mm(x, w, scale, torch.float32, zero)
        else:
            zero = zero if zero is None else zero.t()
            out = mixed_mm(w.t(), x.t(), scale.t(), torch.float32, zero).t()
        assert (out.double() - exact).norm() <= 1e-2 * exact.norm()


def test_rows_of_the_float_operand_beside_integers_of_one_column():
    x, w = torch.randn(4, 128).half(), integers(128, 6)
    scale = factors(4, 1)
    out = mixed_mm(x, w, scale, torch.float32)
    torch.testing.assert_close(out, x.float() @ w.float() * scale, rtol=1e-3, atol=1e-2)
    for rows in (3, 5, 7):  # which are no number of groups
        with pytest.raises(ValueError, match=r"one factor, .* or one for each group"):
            mixed_mm(x.repeat(2, 1)[:rows], w[:, :1], factors(rows, 1))
        with pytest.raises(ValueError, match=r"one for each column, of shape \[\d\], or one for"):
            mixed_mm(w[:, :1].t(), x.repeat(2, 1)[:rows].t(), factors(1, rows))


ONE = torch.ones(())
ENDS = torch.tensor([1, 4], dtype=torch.int32)
GROUPS = float8(2, 300, 6)
X, W = torch.randn(4, 96).half(), integers(96, 6)
REFUSALS = {
    r"scaled_mm: scale_a has shape \[4, 2\]; pass one factor, of shape \[\] or \[1\], or one for "
    r"each row, of shape \[4, 1\], or one for each block of 1 x 128, of shape \[4, 3\], or one for "
    r"each block of 128 x 128, of shape \[1, 3\]": lambda: scaled_mm(A8, B8, torch.ones(4, 2), ONE),
    r"scaled_mm: scale_b has shape \[6, 3\]; .*block of 128 x 1, of shape \[3, 6\]": lambda: (
        scaled_mm(A8, B8, ONE, torch.ones(6, 3))
    ),
    "scaled_mm: scale_a is torch.float16; pass torch.float32": lambda: scaled_mm(
        A8, B8, torch.ones(4, 3).half(), ONE
    ),
    "scaled_mm: scale_a is on meta and A on cpu": lambda: scaled_mm(
        A8, B8, torch.ones(4, 3, device="meta"), ONE
    ),
    r"scaled_mm: scale_a has shape \[4, 9\]; pass one for each block of 1 x 32, of shape "
    r"\[4, 10\], or swizzled in tiles of 128 x 4, of shape \[1536\], or one for each block of "
    r"1 x 128, of shape \[4, 3\], or one for each block of 128 x 128, of shape \[1, 3\]": lambda: (
        scaled_mm(A8, B8, factors(4, 9, dtype=E8M0), ONE)
    ),
    r"scaled_mm: scale_a has shape \[1536\], but A with shape \[4, 300\] takes scales of shape "
    r"\[128, 12\], contiguous and padded to tiles of 128 x 4": lambda: scaled_mm(
        A8, B8, factors(2 * 1536, dtype=E8M0)[::2], ONE
    ),
    r"scaled_mm: scale_b has shape \[1536\], .*contiguous and padded": lambda: scaled_mm(
        A8, B8, ONE, factors(2 * 1536, dtype=E8M0)[::2]
    ),
    r"mixed_mm: scale has shape \[4, 6\]; .*group of a multiple of 16 along K = 96, of shape "
    r"\[K / group, 6\]": lambda: mixed_mm(X, W, torch.ones(4, 6)),
    "mixed_mm: zero_point is passed without scale": lambda: mixed_mm(X, W, zero_point=integers(6)),
    r"mixed_mm: zero_point has shape \[2, 6\]; pass the shape of scale, or one for each column: "
    r"\[3, 6\] or \[6\] or \[1, 6\]": lambda: mixed_mm(
        X, W, torch.ones(3, 6), zero_point=integers(2, 6)
    ),
    "mixed_mm: zero_point is torch.int64": lambda: mixed_mm(
        X, W, torch.ones(3, 6), zero_point=torch.ones(6).long()
    ),
    r"mixed_mm: scale has shape \[4, 1\]; with zero_point, pass one factor or one for each "
    "column": lambda: mixed_mm(X, W, torch.ones(4, 1), zero_point=integers(6)),
    "scaled_grouped_mm: A is torch.float16": lambda: scaled_grouped_mm(X, W, ONE, ONE, ENDS),
    r"scaled_grouped_mm: scale_b has shape \[3, 6\]; .*for each group, of shape \[2\] or "
    r"\[2, 1, 1\], .*group and column, of shape \[2, 1, 6\]": lambda: scaled_grouped_mm(
        A8, GROUPS, ONE, torch.ones(3, 6), ENDS
    ),
    r"scaled_grouped_mm: offs has shape \[1\]": lambda: scaled_grouped_mm(
        A8, GROUPS, ONE, ONE, ENDS[:1]
    ),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals(message):
    with pytest.raises(ValueError, match=f"^cutlass_api::{message}"):
        REFUSALS[message]()


def test_grouped_products_with_block_scales_have_tiles_of_64_columns():
    """Tiles of other widths would have a scale for each few columns, and are slower."""
    groups, m, n, k = 4, 1024, 1024, 512
    a, b = fake(m, k, dtype=E4M3), fake(groups, k, n, dtype=E4M3, layout="n")
    out, ends = fake(m, n, dtype=torch.bfloat16), fake(groups, dtype=torch.int32)
    scales = {"left": fake(m, 4, dtype=torch.float32)}
    scales |= {"right": fake(groups, 4, 8, dtype=torch.float32)}
    epilogue = EpilogueArguments(BOTH.format((1, 128), (128, 128)), D=out, **scales)
    args = GroupedGemmArguments(a, b, out, "float32", ends, epilogue)
    kernels = cutlass_api.get_kernels(args, cc=90)
    hopper = [each for each in kernels if each.metadata.kernel_name.startswith("sm90")]
    tiles = {each.metadata.design.tile_shape[:2] for each in hopper}
    assert (128, 128) in tiles and all(columns % 64 == 0 for _, columns in tiles)
