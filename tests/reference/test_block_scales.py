"""Scales and zero points of blocks along K: ``scale_blocks``, ``ScaledTensor`` and the operators,
against float64.
"""

import math
import re

import cutlass_api
import pytest
import torch
from cutlass_api import scaled_grouped_mm
from cutlass_api.arguments import (
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    ScaledTensor,
)
from cutlass_api.fusion import scale_blocks, trace
from cutlass_api.library import ScaleMode, ScaleSwizzleMode
from cutlass_api.metadata import ScaledTensorAttributes
from cutlass_api.utils import ceil_div
from support.eight_bits import (
    A8,
    B8,
    BOTH,
    CLOSE,
    E4M3,
    E8M0,
    OUT,
    ROWS,
    K,
    M,
    N,
    blocks,
    devices,
    factors,
    float8,
    fused,
    integers,
    one,
    product_of_blocks,
    spread,
    swizzled,
)
from support.helpers import fake
from support.properties import family_of


def run(arguments):
    kernel = cutlass_api.get_kernels(arguments)[0]
    kernel.run(arguments)
    return kernel


# The language.


@pytest.mark.parametrize("a_block", [(1, 128), (128, 128), (3, 7)])
@pytest.mark.parametrize("b_block", [(128, 1), (128, 128), (48, 5), (-1, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, E8M0])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_both_factors(a_block, b_block, dtype, batch):
    a, b, out = float8(*batch, M, K), float8(*batch, K, N), torch.empty(*batch, M, N)
    scale_a = factors(*batch, *blocks((M, K), a_block), dtype=dtype)
    # Shared by all matrices, and not contiguous.
    scale_b = factors(*blocks((K, N), b_block)[::-1], dtype=dtype).t()
    run(fused(a, b, out, BOTH.format(a_block, b_block), left=scale_a, right=scale_b))
    expected = product_of_blocks(a, scale_a, a_block, b, scale_b, b_block)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("factor", ["a", "b"])
@pytest.mark.parametrize("kind", [torch.int8, torch.uint8])
@pytest.mark.parametrize("zeros", [torch.int8, torch.uint8, torch.int32, torch.float16])
def test_zero_points(factor, kind, zeros):
    source = f"""
def epilogue(accum, scale, zero, bias):
    D = relu(scale_blocks(accum, {factor}=scale, {factor}_block=BLOCK, {factor}_zero=zero) + bias)
    return D
"""
    bias, out = torch.randn(N), torch.empty(M, N)
    a, b = integers(M, K, dtype=kind), torch.randn(K, N).half()
    block, narrow = (1, 48), a
    if factor == "b":
        a, b = torch.randn(M, K).half(), integers(K, N, dtype=kind)
        block, narrow = (48, 1), b
    scale = factors(*blocks(narrow.shape, block)) / 100
    zero = torch.randint(0, 9, scale.shape).to(zeros)
    run(fused(a, b, out, source.replace("BLOCK", str(block)), scale=scale, zero=zero, bias=bias))
    wide = narrow.double() - spread(zero, *block, narrow.shape)
    wide = wide * spread(scale, *block, narrow.shape)
    product = wide @ b.double() if factor == "a" else a.double() @ wide
    torch.testing.assert_close(out.double(), (product + bias).relu(), **CLOSE)


def test_nan_scales_reach_the_rows_and_columns_of_their_block():
    for dtype in (torch.float32, E8M0):
        scale_a, scale_b = factors(M, 3), factors(3, 2)
        scale_a[1, 2], scale_b[0, 1] = math.nan, math.nan
        if dtype is E8M0:
            scale_a, scale_b = scale_a.to(E8M0), scale_b.to(E8M0)
        out = torch.empty(M, N)
        source = BOTH.format((1, 128), (128, 128))
        run(fused(float8(M, K), float8(K, N), out, source, left=scale_a, right=scale_b))
        expected = torch.zeros(M, N, dtype=torch.bool)
        expected[1], expected[:, 128:] = True, True
        assert torch.equal(out.isnan(), expected)


def test_empty_products():
    for m, n, k in [(0, 5, 7), (5, 0, 7), (5, 7, 0)]:
        out = torch.full((m, n), math.nan)
        scales = {"left": torch.ones(m, ceil_div(k, 128)), "right": torch.ones(ceil_div(k, 128), n)}
        run(fused(float8(m, k), float8(k, n), out, BOTH.format((1, 128), (128, 1)), **scales))
        assert not out.any()


@devices
def test_scales_of_all_of_k_without_k(device):
    a, b = float8(4, 0, device=device), float8(2, 0, 6, device=device)
    scales = factors(4, 1, device=device), factors(2, 1, 6, device=device)
    ends = torch.tensor([1, 4], dtype=torch.int32, device=device)
    assert not scaled_grouped_mm(a, b, *scales, ends).any()
    message = r"takes scales of shape \[1, 6\], one for each block of \[-1, 1\]"
    with pytest.raises(ValueError, match=message):
        fused(
            a,
            b[0],
            torch.empty(4, 6, device=device),
            BOTH.format((1, -1), (-1, 1)),
            left=scales[0],
            right=scales[1][0, :0],
        )


def test_scales_move_with_a_bound_launch():
    a, b, out = float8(M, K), float8(K, N), torch.empty(M, N)
    scale_a, scale_b = factors(M, 3), factors(3, N)
    arguments = fused(a, b, out, BOTH.format((1, 128), (128, 1)), left=scale_a, right=scale_b)
    launch = run(arguments).bind(arguments)
    doubled, before = 2 * scale_b, out.clone()
    launch(right=doubled)
    torch.testing.assert_close(out, 2 * before)
    scale_a *= 0.5
    launch(right=doubled)
    torch.testing.assert_close(out, before)
    with pytest.raises(ValueError, match="but the launch was bound for"):
        launch(right=factors(3, N + 1))


def test_the_graph_names_the_scales():
    graph = trace(BOTH.format((1, 128), (128, 1)))
    text = "scale_blocks(accum, a=left, a_block=(1, 128), b=right, b_block=(128, 1))"
    assert str(graph) == f"D = {text}"
    assert graph.inputs == ["left", "right"] and ("scale_blocks",) in graph.nodes
    assert str(trace(graph.source)) == str(graph)

    def function(accum, s, z, x):
        D = scale_blocks(accum, a=s, a_block=(2, 64), a_zero=z) * x
        return D

    def swizzled(accum, s):
        D = scale_blocks(accum, b=s, b_block=(32, 1), b_swizzle="32x4x4")
        return D

    def whole(accum, s):
        D = scale_blocks(accum, a=s, a_block=(1, -1))
        return D

    for each in (function, swizzled, whole):
        assert str(trace(trace(each).source)) == str(trace(each))
    with pytest.raises(TypeError, match="only a kernel can compute it"):
        scale_blocks(torch.ones(2, 2))


#: A call without its closing parenthesis.
CALL = "scale_blocks(accum, a=s, a_block=(1, 32)"
CODE = {
    "no scales; pass a=, b= or both": "scale_blocks(accum)",
    r"no block; pass a_block=\(rows, depth along K\)": "scale_blocks(accum, a=s)",
    r"b, but no scales; pass b=": f"{CALL}, b_block=(32, 1))",
    "must be a tuple of two integers": "scale_blocks(accum, a=s, a_block=128)",
    r"a_block of scale_blocks is \[0, 128\]; pass two extents": CALL.replace("1, 32", "0, 128")
    + ")",
    r"is \[-1, 128\]; .* or -1 for all of K": CALL.replace("1, 32", "-1, 128") + ")",
    "must be a parameter of the epilogue function": CALL.replace("=s", "=s * 2") + ")",
    "first argument of scale_blocks must be accum": CALL.replace("accum", "accum * 2") + ")",
    "cannot use accum elsewhere": f"{CALL}) + accum",
    "s holds scales or zero points of scale_blocks and cannot": f"{CALL}) + s",
    "scale_blocks is called twice": f"{CALL}) + {CALL})",
    "takes s twice": f"{CALL}, b=s, b_block=(32, 1))",
    'a_swizzle of scale_blocks is "x"': f'{CALL}, a_swizzle="x")',
    "with zero points cannot be swizzled": f'{CALL}, a_swizzle="32x4x4", a_zero=z)',
    "takes no argument 'block'": f"{CALL}, block=2)",
}


@pytest.mark.parametrize("message", CODE)
def test_code_that_is_refused(message):
    with pytest.raises(ValueError, match=message):
        trace(one(CODE[message], "s, z"))


ZEROS = one("scale_blocks(accum, a=s, a_block=(1, 128), a_zero=z)", "s, z")
MX = one('scale_blocks(accum, a=s, a_block=(1, 32), a_swizzle="32x4x4")')
OPERANDS = {
    r"^s has shape \[3, 4\], but A with shape \[4, 300\] takes scales of shape \[4, 3\], one for "
    r"each block of \[1, 128\]": {"s": torch.ones(3, 4)},
    r"^s has shape \[4\], but A": {"s": torch.ones(4)},
    r"^s has shape \[2, 4, 3\], but A": {"s": torch.ones(2, 4, 3)},
    "^s holds scales and has dtype int32; use one of: float32": {"s": torch.ones(4, 3).int()},
    "^s holds scales .*, but a number was passed": {"s": 2.0},
    "^s is on cuda:0, but out is on cpu": {"s": fake(4, 3)},
    "D shares memory with s": {"s": OUT.as_strided((4, 3), (6, 1))},
    r"^s has shape \[4, 10\], .* \[128, 12\], contiguous and padded to tiles of 128 x 4": {
        "source": MX,
        "s": torch.ones(4, 10),
    },
    "zero points of A, which has dtype float8_e4m3fn; only int8, uint8, int4 and uint4": {
        "source": ZEROS,
        "s": torch.ones(4, 3),
        "z": torch.ones(4, 3),
    },
}


@pytest.mark.parametrize("message", OPERANDS)
def test_operands_that_are_refused(message):
    with pytest.raises(ValueError, match=message):
        fused(A8, B8, OUT, **{"source": ROWS} | OPERANDS[message])


def test_only_float32_sums_of_products_have_scales():
    epilogue = EpilogueArguments(ROWS, D=OUT, s=torch.ones(4, 3))
    with pytest.raises(ValueError, match="requires accumulator_type float32, but it is int32"):
        GemmArguments(A8.to(torch.int8), B8.to(torch.int8), OUT, "int32", epilogue=epilogue)
    with pytest.raises(ValueError, match="operation is no matrix product"):
        ElementwiseArguments(OUT.clone(), OUT.clone(), OUT, epilogue=epilogue)


def test_families_without_block_scales_say_so():
    a, b, out = fake(64, 64, dtype=E4M3), fake(64, 64, dtype=E4M3, layout="n"), fake(64, 64)
    arguments = fused(a, b, out, BOTH.format((1, 16), (16, 1)), left=fake(64, 4), right=fake(4, 64))
    kernels = cutlass_api.get_kernels(arguments, cc=90)
    assert {family_of(kernel) for kernel in kernels} == {"simt"}
    text = cutlass_api._core.explanation(arguments, 90)
    assert "it applies no scales of such blocks along K" in text


@pytest.mark.parametrize("depth, is_served", [(8, False), (16, True), (64, True), (128, True)])
@pytest.mark.parametrize("scaled", ["a", "b"])
def test_hopper_scales_the_integers_of_mixed_products(scaled, depth, is_served):
    a, b = fake(64, 256, dtype=torch.int8), fake(256, 64, dtype=torch.float16)
    scale, block = (64, 256 // depth), (1, depth)
    if scaled == "b":
        scale, block, is_served = scale[::-1], block[::-1], False
    source = f"def f(accum, s):\n    D = scale_blocks(accum, {scaled}=s, {scaled}_block={block})"
    out = fake(64, 64, dtype=torch.float16)
    arguments = fused(a, b, out, f"{source}\n    return D", s=fake(*scale))
    kernels = cutlass_api.get_kernels(arguments, cc=90)
    families = {family_of(kernel) for kernel in kernels}
    assert families == ({"simt", "sm90"} if is_served else {"simt"})
    if not is_served:
        text = cutlass_api._core.explanation(arguments, 90)
        assert re.search("sm90 .*it applies no scales of such blocks along K", text)


# ScaledTensor.


NONE, TILES = ScaleSwizzleMode.SwizzleNone, ScaleSwizzleMode.Swizzle32x4x4


@pytest.mark.parametrize("swizzle", [NONE, TILES])
@pytest.mark.parametrize("mode", [ScaleMode.Blockwise1x32, (1, 32)])
def test_mxfp8(swizzle, mode):
    a, b, out = float8(M, K), float8(N, K).t(), torch.empty(M, N)
    scale_a, scale_b = factors(M, 10, dtype=E8M0), factors(10, N, dtype=E8M0)
    scales = scale_a, scale_b
    if swizzle is TILES:
        scales = swizzled(scale_a), swizzled(scale_b.t())
    left, right = (
        ScaledTensor(base, scale, mode, swizzle) for base, scale in zip((a, b), scales, strict=True)
    )
    arguments = GemmArguments(left, right, out, "float32")
    kernel = run(arguments)
    expected = product_of_blocks(a, scale_a, (1, 32), b, scale_b, (32, 1))
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-3)
    assert arguments.A is left and arguments.epilogue is None
    metadata = kernel.metadata
    assert isinstance(metadata.operands.A, ScaledTensorAttributes)
    assert (metadata.operands.B.mode, metadata.operands.B.swizzle) == (mode, swizzle)
    assert metadata.epilogue is None
    assert kernel.supports(arguments) and metadata.supports(arguments)
    assert not metadata.supports(GemmArguments(a, b, out, "float32"))


def test_scaled_operands_before_an_epilogue():
    a, b, out = float8(M, K), float8(K, N), torch.empty(M, N)
    scale_a, scale_b, bias = factors(M, 3), factors(3, 2), torch.randn(N)
    # The name of the operand is that of the scales.
    source = "def f(accum, scale_a):\n    D = relu(accum + scale_a)\n    return D"
    epilogue = EpilogueArguments(source, scale_a=bias, D=out)
    left = ScaledTensor(a, scale_a, (1, 128), NONE)
    right = ScaledTensor(b, scale_b, (1, 128, 128), NONE)
    arguments = GemmArguments(left, right, out, "float32", epilogue=epilogue)
    kernel = run(arguments)
    expected = product_of_blocks(a, scale_a, (1, 128), b, scale_b, (128, 128))
    torch.testing.assert_close(out.double(), (expected + bias).relu(), **CLOSE)
    assert arguments.epilogue is epilogue and kernel.metadata.supports(arguments)
    scale_b *= 2
    kernel.run(arguments)
    torch.testing.assert_close(out.double(), (2 * expected + bias).relu(), **CLOSE)


def test_scaled_operands_of_groups():
    a, b, out = float8(M, K), float8(2, K, N), torch.empty(M, N)
    scale_a, scale_b = factors(M, 3), factors(2, 3, 2)
    left = ScaledTensor(a, scale_a, (1, 128), NONE)
    right = ScaledTensor(b, scale_b, (128, 128), NONE)
    ends = torch.tensor([100, M], dtype=torch.int32)
    run(GroupedGemmArguments(left, right, out, "float32", ends))
    of_groups = product_of_blocks(a, scale_a, (1, 128), b, scale_b, (128, 128))
    expected = torch.cat([of_groups[0, :100], of_groups[1, 100:]])
    torch.testing.assert_close(out.double(), expected, **CLOSE)


def with_scales(scale, mode=(1, 128), swizzle=NONE, **more):
    return GemmArguments(ScaledTensor(A8, scale, mode, swizzle), B8, OUT, "float32", **more)


ONES = torch.ones(4, 3)
#: Operands by the reason.
SCALED = {
    r"scale_a has shape \[3, 4\], but A": (torch.ones(3, 4),),
    "its mode is 'x', which kernels do not read": (ONES, "x"),
    r"its mode is \(2, 1, 128\)": (ONES, (2, 1, 128)),
    "its swizzle is 'y'": (ONES, (1, 128), "y"),
    "scale_a holds scales and has dtype float8_e4m3fn": (float8(4, 19), ScaleMode.Blockwise1x16),
}
EPILOGUE = EpilogueArguments(ROWS, D=OUT, s=ONES)
SCALED = {f"A has scales: {reason}": with_scales(*SCALED[reason]) for reason in SCALED} | {
    "A has scales: the epilogue calls scale_blocks, too": with_scales(ONES, epilogue=EPILOGUE),
    "out has scales: kernels scale A and B only": GemmArguments(
        A8, B8, ScaledTensor(OUT, torch.ones(4, 1), (1, 6), NONE), "float32"
    ),
}


@pytest.mark.parametrize("message", SCALED)
def test_scaled_operands_that_no_kernel_reads(message):
    arguments = SCALED[message]
    assert cutlass_api.get_kernels(arguments) == []
    assert cutlass_api.get_kernels(with_scales(ONES))
    with pytest.raises(IndexError, match=message):
        cutlass_api.get_kernels(arguments)[0]
