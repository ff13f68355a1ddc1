"""`cutlass_api.quantize`: arithmetic, layouts and refusals, and its kernels."""

import itertools
import math
import shutil

import cutlass_api
import pytest
import stand_in
import torch
from cutlass_api import quantize
from cutlass_api.library import ScaleSwizzleMode
from cutlass_api.ops import OPS, _quantize
from cutlass_api.weights import _kernels
from support.helpers import run_python, spilled_bytes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

INPUTS = [torch.float32, torch.float16, torch.bfloat16]
OUTPUTS = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
#: A bound of the relative rounding error, and the step of the smallest numbers.
ROUNDING = {
    torch.float8_e4m3fn: (2.0**-4, 2.0**-9),
    torch.float8_e5m2: (2.0**-3, 2.0**-16),
    torch.int8: (0, 1.0),
}
#: The kinds of scales, and the extents that share one.
KINDS = {
    "per_tensor": (quantize.per_tensor, (-1, -1)),
    "per_row": (quantize.per_row, (1, -1)),
    "per_column": (quantize.per_column, (-1, 1)),
    "1x128": (lambda x, dtype: quantize.per_block(x, dtype, (1, 128)), (1, 128)),
    "128x1": (lambda x, dtype: quantize.per_block(x, dtype, (128, 1)), (128, 1)),
    "128x128": (lambda x, dtype: quantize.per_block(x, dtype, (128, 128)), (128, 128)),
}
#: Extents and swizzle of all groups, by output. (1, 32) of float8 is MXFP8.
MX = [((1, 32), False), ((32, 1), False), ((1, 32), True), ((32, 1), True)]
GROUPS = [(extents[::step], False) for extents in ((1, 32), (1, 64)) for step in (1, -1)]
BLOCKS = {
    output: [(extents, False) for _, extents in KINDS.values()]
    + (GROUPS if output is torch.int8 else MX)
    for output in OUTPUTS
}
BLOCKS[torch.uint8] = [*GROUPS, ((1, 128), False), ((128, 1), False)]
kinds = pytest.mark.parametrize("kind", KINDS)
inputs = pytest.mark.parametrize("input", INPUTS, ids=str)
outputs = pytest.mark.parametrize("output", OUTPUTS, ids=str)
NAN, INF = math.nan, math.inf


def randn(rows, columns, dtype=torch.float32, spread=4, device="cpu"):
    """Random values. The magnitudes of rows differ by 10^spread at most."""
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    values = torch.randn(rows, columns, generator=generator)
    factors = torch.logspace(-spread / 2, spread / 2, rows)
    return (values * factors[torch.randperm(rows, generator=generator), None]).to(device, dtype)


def expanded(scales, like, extents):
    """The scale of each element."""
    for dim, extent in enumerate(extents):
        if scales.dim() == 2 and extent != -1:
            scales = scales.repeat_interleave(extent, dim).narrow(dim, 0, like.shape[dim])
    return scales.expand(like.shape)


VIEWS = {
    "rows": lambda x: x,
    "columns": lambda x: x.mT.contiguous().mT,
    "sliced": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "offset": lambda x: torch.nn.functional.pad(x, (1, 2))[:, 1:-2],
    "padded": lambda x: torch.nn.functional.pad(x, (0, 16))[:, :-16],
    "expanded": lambda x: x[:1].expand(x.shape),
}


# Arithmetic and layouts.


@kinds
@inputs
@outputs
@pytest.mark.parametrize("view", VIEWS)
def test_results(kind, input, output, view):
    function, extents = KINDS[kind]
    x = VIEWS[view](randn(150, 300, input))
    quantized, scales = function(x, output)
    assert quantized.dtype == output and quantized.shape == x.shape
    assert scales.dtype == torch.float32 and not scales.isnan().any()
    each = expanded(scales, x, extents).double()
    exact = x.double()
    relative, step = ROUNDING[output]
    error = (quantized.double() * each - exact).abs()
    assert (error <= (exact.abs() * relative).maximum(each * step / 2) * (1 + 1e-5)).all()
    # The scale is the largest magnitude over the largest number, rounded once.
    height, width = (
        size if extent == -1 else extent for size, extent in zip(x.shape, extents, strict=True)
    )
    found = scales.reshape(1, 1) if kind == "per_tensor" else scales
    for row, column in itertools.product(*map(range, found.shape)):
        group = exact[row * height : (row + 1) * height, column * width : (column + 1) * width]
        largest = group.abs().max()
        assert found[row, column] == (largest / OUTPUTS[output]).float()


@kinds
@outputs
def test_the_largest_magnitude_becomes_the_largest_number(kind, output):
    function, extents = KINDS[kind]
    x = randn(256, 256, spread=60)
    quantized, _ = function(x, output)
    height, width = (256 if extent == -1 else extent for extent in extents)
    groups = quantized.float().abs().view(256 // height, height, 256 // width, width)
    assert (groups.amax((1, 3)) == OUTPUTS[output]).all()


def test_layouts():
    x = randn(200, 300)
    q, scales = quantize.per_tensor(x)
    assert q.stride() == (300, 1) and scales.shape == ()
    for of in (x, x.mT.contiguous().mT):
        q, scales = quantize.per_row(of)
        assert q.stride() == of.stride()
        assert scales.shape == (200, 1) and scales.is_contiguous()
        q, scales = quantize.per_column(of)
        assert scales.shape == (1, 300) and scales.is_contiguous()
        _, scales = quantize.per_block(of, block=[1, 128])
        assert scales.shape == (200, 3) and scales.stride() == (1, 200)
        _, scales = quantize.per_block(of, block=(128, 1))
        assert scales.shape == (2, 300) and scales.stride() == (300, 1)
        _, scales = quantize.per_block(of, block=(128, 128))
        assert scales.shape == (2, 3) and scales.stride() == ((4, 1) if of is x else (1, 4))
    assert quantize.per_row(x[:, ::2])[0].is_contiguous()


@kinds
@inputs
@outputs
def test_zeros(kind, input, output):
    function, _ = KINDS[kind]
    quantized, scales = function(torch.zeros(130, 140, dtype=input), output)
    assert (scales == 2.0**-126).all() and (quantized.float() == 0).all()


@outputs
def test_extremes(output):
    """Subnormal and huge rows, and NaN and infinity, which other rows do not see."""
    x = torch.tensor(
        [[1e-45, 1e-42, -2e-40], [3e38, -3.4e38, 1], [1, NAN, 2], [1, INF, 2], [-INF, NAN, 0]]
    )
    quantized, scales = quantize.per_row(x, output)
    values = quantized.float()
    assert scales[0] == 2.0**-126 and scales[1] == torch.tensor(3.4e38) / OUTPUTS[output]
    assert values[1, 1] == -OUTPUTS[output] and values[:2].isfinite().all()
    assert scales[2].isnan() and scales[3] == INF and scales[4].isnan()
    assert (values * scales)[2:].isnan().all()


@kinds
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty(kind, shape):
    quantized, scales = KINDS[kind][0](torch.empty(shape), torch.int8)
    assert quantized.shape == shape and (scales == 2.0**-126).all()


# MXFP8.

E8M0 = torch.float8_e8m0fnu
NONE, TILES = ScaleSwizzleMode.SwizzleNone, ScaleSwizzleMode.Swizzle32x4x4
float8s = pytest.mark.parametrize("output", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)


def groups_of(x, extent):
    """The elements of each group along the rows, padded with zeros."""
    return torch.nn.functional.pad(x, (0, -x.shape[1] % extent)).unflatten(1, (-1, extent))


@inputs
@float8s
@pytest.mark.parametrize("view", VIEWS)
def test_mx_blocks(input, output, view):
    x = VIEWS[view](randn(70, 300, input, spread=40 if input is torch.float32 else 4))
    quantized, scales = quantize.per_mx_block(x, output)
    assert quantized.dtype == output and quantized.shape == x.shape
    assert scales.dtype == E8M0 and scales.shape == (70, 10)
    groups = groups_of(x.double(), 32)
    largest_power = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}[output]
    expected = groups.abs().amax(2).log2().floor() - largest_power
    assert torch.equal(scales.double().log2(), expected)
    each = expanded(scales.float(), x, (1, 32)).double()
    relative, step = ROUNDING[output]
    limit = OUTPUTS[output]
    exact = (x.double() / each).clamp(-limit, limit)
    error = (quantized.double() - exact).abs()
    assert (error <= (exact.abs() * relative).maximum(torch.tensor(step / 2))).all()


@float8s
def test_mx_saturates_and_marks_what_is_not_finite(output):
    limit, power = {
        torch.float8_e4m3fn: (448.0, 8),
        torch.float8_e5m2: (57344.0, 15),
    }[output]
    x = torch.zeros(7, 64)
    below = torch.tensor(2.0 ** (power + 1)).nextafter(torch.tensor(0.0))
    x[0, :4] = torch.tensor([below, -below, limit, 1.0])
    x[2, 3] = 1e-39
    x[3, 5], x[4, 6], x[5, 7] = NAN, INF, -INF
    x[6, :2] = torch.tensor([-3.4e38, 3.4e38])
    quantized, scales = quantize.per_mx_block(x, output)
    values, factors = quantized.float(), scales.float()
    assert factors[0, 0] == 1 and values[0, :4].tolist() == [limit, -limit, limit, 1]
    # Zeros and subnormal numbers, of which 2^127 times the number is left.
    assert (factors[1] == 2.0**-127).all() and (values[1] == 0).all()
    assert factors[2, 0] == 2.0**-127
    assert values[2, 3] == (x[2, 3] * 2.0**127).to(output).float() > 0
    assert factors[3:6, 0].isnan().all() and values[3:6, :32].isnan().all()
    assert (factors[3:6, 1] == 2.0**-127).all() and (values[3:6, 32:] == 0).all()
    assert factors[6, 0] == 2.0 ** (127 - power) and values[6, :2].tolist() == [-limit, limit]


@pytest.mark.parametrize("shape", [(1, 32), (40, 130), (128, 128), (300, 700)])
@pytest.mark.parametrize("order", ["rows", "columns"])
def test_swizzled_scales(shape, order):
    x = VIEWS[order](randn(*shape))
    quantized, scales = quantize.per_mx_block(x, swizzle=TILES)
    plain_quantized, plain = quantize.per_mx_block(x)
    assert torch.equal(quantized.view(torch.uint8), plain_quantized.view(torch.uint8))
    assert quantized.stride() == x.stride()
    (rows, deep), codes = plain.shape, scales.view(torch.uint8)
    across = -(-deep // 4)
    expected = torch.zeros(-(-rows // 128) * across * 512, dtype=torch.uint8)
    # cuBLAS, "1D Block Scaling Factors Layout".
    for row, column in itertools.product(range(rows), range(deep)):
        tile = row // 128 * across + column // 4
        at = tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4
        expected[at] = plain.view(torch.uint8)[row, column]
    assert torch.equal(codes, expected)


def test_mx_scales_of_empty_inputs():
    for shape, scales in (((0, 5), (0, 1)), ((5, 0), (5, 0)), ((0, 0), (0, 0))):
        for swizzle in (NONE, TILES):
            found = quantize.per_mx_block(torch.empty(shape), swizzle=swizzle)
            assert found[0].shape == shape
            assert found[1].shape == (scales if swizzle is NONE else (0,))


# Groups.

extents_of_groups = pytest.mark.parametrize("group", tuple(quantize.GROUPS))


@inputs
@extents_of_groups
def test_groups(input, group):
    x = randn(20, 256, input)
    quantized, scales = quantize.per_group(x, group)
    assert quantized.dtype == torch.int8 and quantized.stride() == x.stride()
    assert scales.shape == (20, 256 // group) and scales.stride() == (1, 20)
    assert torch.equal(scales, (groups_of(x.double(), group).abs().amax(2) / 127).float())
    each = expanded(scales, x, (1, group)).double()
    assert ((quantized.double() * each - x.double()).abs() <= each * 0.50001).all()


@inputs
@extents_of_groups
@pytest.mark.parametrize("offset", [0, 3, -3])
def test_asymmetric_groups(input, group, offset):
    """Of both signs, and of one sign."""
    x = (randn(20, 256, spread=0).clamp(-2.9, 2.9) + offset).to(input)
    quantized, scales, zeros = quantize.per_group_asymmetric(x, group)
    assert quantized.dtype == torch.uint8 and quantized.stride() == x.stride()
    assert scales.shape == (20, 256 // group) and scales.stride() == (1, 20)
    assert (zeros.dtype, zeros.shape, zeros.stride()) == (torch.uint8, scales.shape, (1, 20))
    groups = groups_of(x.double(), group)
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    torch.testing.assert_close(scales.double(), (high - low) / 255, rtol=1e-6, atol=0)
    if offset:
        assert (zeros == (0 if offset > 0 else 255)).all()
    each, zero = (expanded(one, x, (1, group)).double() for one in (scales, zeros))
    assert (((quantized.double() - zero) * each - x.double()).abs() <= each * 0.5001).all()
    # Zeros are exact.
    x[:, ::group] = 0
    quantized, _, zeros = quantize.per_group_asymmetric(x, group)
    assert torch.equal(quantized[:, ::group], zeros)


def test_extremes_of_asymmetric_groups():
    x = torch.zeros(6, 64)
    x[1, 3], x[2, 4], x[3, 5] = NAN, INF, -INF
    x[4, :2] = torch.tensor([3.4e38, -3.4e38])
    x[5, :2] = torch.tensor([1e-42, -2e-40])
    quantized, scales, zeros = quantize.per_group_asymmetric(x, 32)
    values = (quantized.float() - expanded(zeros, x, (1, 32))) * expanded(scales, x, (1, 32))
    assert (scales[0] == 2.0**-126).all() and (quantized[0] == 0).all() and (zeros[0] == 0).all()
    assert values[1:4, :32].isnan().all() and (values[1:4, 32:] == 0).all()
    assert (quantized[1:4] == 0).all() and (zeros[1:4] == 0).all()
    assert scales[4, 0].isfinite() and quantized[4, :2].tolist() == [255, 0]
    assert (values[5] == 0).all()


# Products of what is quantized.


@pytest.mark.parametrize("dtypes", [(torch.float8_e4m3fn,) * 2, (torch.float8_e5m2,) * 2])
def test_products_by_scaled_mm(dtypes):
    x, weight = randn(40, 130, spread=1), randn(24, 130, spread=1)
    expected = x.double() @ weight.double().mT
    for function in (quantize.per_tensor, quantize.per_row):
        (a, scale_a), (b, scale_b) = (
            function(*pair) for pair in zip((x, weight), dtypes, strict=True)
        )
        out = cutlass_api.scaled_mm(a, b.t(), scale_a, scale_b.t(), torch.float32)
        exact = (a.double() * scale_a) @ (b.double() * scale_b).mT
        torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
        assert (out - expected).norm() < 0.1 * expected.norm()


def test_products_by_int8_mm():
    x, weight = randn(40, 130, spread=1), randn(130, 24, spread=1)
    (a, scale_a), (b, scale_b) = (
        quantize.per_row(x, torch.int8),
        quantize.per_column(weight, torch.int8),
    )
    out = cutlass_api.int8_mm(a, b, scale_a, scale_b, out_dtype=torch.float32)
    expected = x.double() @ weight.double()
    assert (out - expected).norm() < 0.02 * expected.norm()
    mixed = cutlass_api.mixed_mm(x.half(), b, scale_b, torch.float32)
    assert (mixed - expected).norm() < 0.02 * expected.norm()


@float8s
@pytest.mark.parametrize("swizzle", [NONE, TILES])
def test_products_of_mx_blocks(output, swizzle):
    x, weight = randn(40, 130, spread=1), randn(24, 130, spread=1)
    (a, scale_a), (b, scale_b) = (
        quantize.per_mx_block(each, output, swizzle) for each in (x, weight)
    )
    scale_b = scale_b.t() if swizzle is NONE else scale_b
    out = cutlass_api.scaled_mm(a, b.t(), scale_a, scale_b, torch.float32)
    expected = x.double() @ weight.double().mT
    # The largest relative error of an element is that of rounding, or of saturation.
    saturation = 1 - OUTPUTS[output] / {448.0: 512.0, 57344.0: 65536.0}[OUTPUTS[output]]
    assert (out - expected).norm() < saturation * expected.norm()
    exact = [
        quantized.double()
        * expanded(quantize.per_mx_block(each, output)[1].double(), each, (1, 32))
        for each, quantized in ((x, a), (weight, b))
    ]
    torch.testing.assert_close(out.double(), exact[0] @ exact[1].mT, rtol=1e-5, atol=1e-5)


@extents_of_groups
@pytest.mark.parametrize("is_weight_left", [False, True])
def test_products_of_groups(group, is_weight_left):
    x, weight = randn(40, 256, torch.float16, spread=1), randn(24, 256, spread=1)
    expected = x.double() @ weight.double().mT
    b, scale = quantize.per_group(weight, group)
    c, scales, zeros = quantize.per_group_asymmetric(weight, group)
    if is_weight_left:
        symmetric = cutlass_api.mixed_mm(b, x.t(), scale, torch.float32).t()
        zero = zeros
        asymmetric = cutlass_api.mixed_mm(c, x.t(), scales, torch.float32, zero_point=zero).t()
    else:
        symmetric = cutlass_api.mixed_mm(x, b.t(), scale.t(), torch.float32)
        zero = zeros.t()
        asymmetric = cutlass_api.mixed_mm(x, c.t(), scales.t(), torch.float32, zero_point=zero)
    for out in (symmetric, asymmetric):
        assert (out - expected).norm() < 0.01 * expected.norm()


# Traces and refusals.


@kinds
def test_opcheck(kind):
    x = randn(130, 140)
    # torch compares no float8 tensors.
    opcheck(OPS.quantize.default, (x, torch.int8, KINDS[kind][1]))
    opcheck(OPS.quantize.default, (x.mT, torch.int8, KINDS[kind][1]))


def test_opcheck_of_zero_points():
    x = randn(130, 140)
    opcheck(OPS.quantize.default, (x, torch.uint8, (1, 32)))
    opcheck(OPS.quantize.default, (x.mT, torch.uint8, (1, 64)))


@pytest.mark.parametrize("output", [torch.float8_e5m2, torch.uint8], ids=str)
def test_fake_tensors(output):
    x = randn(130, 300, torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for view, block in itertools.product(VIEWS.values(), BLOCKS[output]):
            real = view(x)
            expected = OPS.quantize(real, output, *block)
            found = OPS.quantize(mode.from_tensor(real), output, *block)
            for one, other in zip(found, expected, strict=True):
                assert (one.shape, one.stride(), one.dtype) == (
                    other.shape,
                    other.stride(),
                    other.dtype,
                )


def test_compiled():
    def layer(x, weight, scale_b):
        a, scale_a = quantize.per_row(x)
        return cutlass_api.scaled_mm(a, weight, scale_a, scale_b)

    b, scale_b = quantize.per_row(randn(24, 64))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 40):
        args = (randn(rows, 64), b.t(), scale_b.t())
        assert torch.equal(compiled(*args), layer(*args))


def test_compiled_blocks_and_groups():
    def layer(x, weight):
        a, scale_a = quantize.per_mx_block(x, swizzle=TILES)
        b, scale_b = quantize.per_mx_block(weight)
        c, scale_c, zero = quantize.per_group_asymmetric(weight, 32)
        return (
            cutlass_api.scaled_mm(a, b.t(), scale_a, scale_b.t()),
            cutlass_api.mixed_mm(x.half(), c.t(), scale_c.t(), zero_point=zero.t()),
        )

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 140):
        args = (randn(rows, 64), randn(24, 64))
        for one, other in zip(compiled(*args), layer(*args), strict=True):
            assert torch.equal(one, other)


X = randn(4, 8)
REFUSALS = {
    r"the input has shape \[4, 8, 1\]; pass a matrix": lambda: quantize.per_row(X[:, :, None]),
    r"the input dtype is torch.float64; pass one of torch.float32": lambda: quantize.per_tensor(
        X.double()
    ),
    r"the output dtype is torch.uint8; pass one of .*int8": lambda: quantize.per_row(
        X, torch.uint8
    ),
    r"the output dtype is torch.float8_e4m3fnuz": lambda: quantize.per_column(
        X, torch.float8_e4m3fnuz
    ),
    r"block is \(1, 64\); pass one of \(1, 128\)": lambda: quantize.per_block(X, block=(1, 64)),
    r"block is \(1, 16\); pass one of .*\(1, 32\).*, or a transpose": lambda: OPS.quantize(
        X, torch.int8, (1, 16)
    ),
    r"the output dtype is torch.float8_e5m2; pass one of torch.int8, ": lambda: OPS.quantize(
        X, torch.float8_e5m2, (64, 1)
    ),
    r"swizzle is True for torch.int8 in blocks of \(1, 32\); pass False": lambda: OPS.quantize(
        X, torch.int8, (1, 32), True
    ),
    r"the output dtype is torch.int8; pass one of torch.float8_e4m3fn, torch.float8_e5m2": (
        lambda: quantize.per_mx_block(X, torch.int8)
    ),
    r"swizzle is '32x4x4'; pass a ScaleSwizzleMode": lambda: quantize.per_mx_block(
        X, swizzle="32x4x4"
    ),
    r"group is 16; pass one of 32, 64, 128": lambda: quantize.per_group(X, 16),
    r"the input has 8 columns, which a group of 32 does not divide; pad": (
        lambda: quantize.per_group_asymmetric(X, 32)
    ),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals(message):
    with pytest.raises(ValueError, match=f"^cutlass_api::quantize: {message}"):
        REFUSALS[message]()


def test_gradients_are_refused():
    with pytest.raises(RuntimeError, match=r"cutlass_api::quantize has no derivative"):
        quantize.per_row(X.clone().requires_grad_())
    with torch.no_grad():
        quantize.per_row(X.clone().requires_grad_())


def test_the_module_imports_torch_when_it_is_used():
    script = """
        import sys, cutlass_api
        print("torch" in sys.modules)
        print(cutlass_api.quantize.per_row.__name__, "torch" in sys.modules)
    """
    assert run_python(script).splitlines() == ["False", "per_row True"]


# Kernels.

#: Shapes for all kinds of scales.
SHAPES = [(1, 1), (5, 8), (37, 131), (130, 304)]
#: Shapes for the other tiles of a kind: rows of a CTA and of several tiles, and so on.
LONG = [
    ("per_row", (3, 2048)),
    ("per_row", (2, 9000)),
    ("per_row", (1, 70000)),
    ("per_column", (2200, 16)),
    ("per_column", (2100, 9)),
    ("per_tensor", (5, 8192)),
]


def problems(output):
    """Shapes with the extents and the swizzle of groups."""
    yield from ((shape, block) for block in BLOCKS[output] for shape in SHAPES)
    if output in OUTPUTS:
        yield from ((shape, (KINDS[kind][1], False)) for kind, shape in LONG)


def outcome(result):
    """The bits of a result, with one pattern for NaN."""
    return [tensor.float().nan_to_num(nan=-1e30, posinf=-2e30) for tensor in result]


def compare(x, output, block, run, where):
    """Compares a kernel with the CPU, to the bit. ``run``: ``OPS.quantize`` by the kernel."""
    expected = OPS.quantize(x, output, *block)
    found = [tensor.cpu() for tensor in run(x, output, *block)]
    for one, other in zip(outcome(found), outcome(expected), strict=True):
        assert one.stride() == other.stride() and torch.equal(one, other), (x.dtype, *where)


def special(dtype):
    x = randn(7, 256, dtype)
    x[0, 3], x[1, 5], x[2, 6], x[2, 7] = NAN, INF, -INF, NAN
    x[3] = 0
    x[4] = 1e-7 if dtype is torch.float16 else 1e-39
    x[5] = torch.finfo(dtype).max
    x[5, ::3] *= -1
    return x


def check_kernels(run, input, output):
    """Every group, tile and view of these types."""
    for shape, block in problems(output):
        compare(randn(*shape, input), output, block, run, (shape, block))
    for (view, make), block in itertools.product(VIEWS.items(), BLOCKS[output]):
        compare(make(randn(33, 272, input)), output, block, run, (view, block))
    for block in BLOCKS[output]:
        compare(special(input), output, block, run, ("special", block))


def emulated(*arguments):
    """The results of ``OPS.quantize`` by the kernels, in the emulator, and the number of launches.

    For a process of ``stand_in.run(..., emulated=True)``.
    """
    from stand_in import device
    from stand_in.emulated import operand

    class Emulated:
        def __init__(self, *key):
            self.kernel = program(*key)

        def launch(self, args, grid):
            self.kernel.launch(tuple(map(operand, args)), grid)

    def launch(input, out, *format):
        for tensor in out:
            if tensor is not None:
                (tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor).fill_(0x55)
        _quantize.launch(input, out, *format)

    program = _kernels.program
    before = device.library.stand_in_launches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernels, "program", Emulated)
        patch.setattr(_quantize, "compute", launch)
        return OPS.quantize(*arguments), device.library.stand_in_launches() - before


def check_in_emulator(output):
    """For a process of ``stand_in.run(..., emulated=True)``."""
    for input in (torch.float32, torch.float16, torch.bfloat16):
        check_kernels(lambda *args: emulated(*args)[0], input, getattr(torch, output))
    print("done")


def count_launches():
    """For a process of ``stand_in.run(..., emulated=True)``: prints the launches of each group."""
    x = randn(130, 304)
    for output, blocks in BLOCKS.items():
        for block in blocks:
            for view in (x, x[:, ::2], x.mT):
                print(*block[0], emulated(view, output, *block)[1])


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")
@pytest.mark.parametrize("output", ["float8_e4m3fn", "float8_e5m2", "int8", "uint8"])
def test_kernels_in_the_emulator(output):
    script = "import stand_in.emulated, test_quantize\n"
    script += f"test_quantize.check_in_emulator({output!r})"
    assert stand_in.run(script, emulated=True) == "done\n"


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")
def test_each_function_is_one_kernel():
    """A scale of the whole matrix takes two."""
    script = "import stand_in.emulated, test_quantize\ntest_quantize.count_launches()"
    lines = stand_in.run(script, emulated=True).splitlines()
    assert len(lines) == 3 * sum(map(len, BLOCKS.values()))
    for line in lines:
        *extents, launches = map(int, line.split())
        assert launches == (2 if extents == [-1, -1] else 1), line


@pytest.mark.gpu
@inputs
@pytest.mark.parametrize("output", BLOCKS, ids=str)
def test_kernels_on_a_gpu(input, output):
    def run(x, *rest):
        # A copy with the strides of x.
        storage = torch.as_strided(x, (x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)
        there = storage.cuda().as_strided(x.shape, x.stride(), x.storage_offset())
        return OPS.quantize(there, *rest)

    check_kernels(run, input, output)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "output, block", [(output, block) for output in BLOCKS for block in BLOCKS[output]], ids=str
)
def test_large_matrices_and_graphs_on_a_gpu(output, block):
    x = torch.randn(8192, 5120, device="cuda", dtype=torch.bfloat16)
    compare(x.cpu(), output, block, lambda a, *rest: OPS.quantize(x, *rest), block)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = OPS.quantize(x, output, *block)
    x.mul_(2)
    graph.replay()
    for one, other in zip(captured, OPS.quantize(x, output, *block), strict=True):
        assert torch.equal(one.float(), other.float())


def programs():
    """The functions of kernels/quantize.cuh that any matrix needs, and their threads."""
    found = set()

    class Recorder:
        def __init__(self, name, threads):
            found.add((name, threads))

        def launch(self, args, grid):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernels, "program", Recorder)
        patch.setattr(_quantize, "compute", _quantize.launch)
        for input, output in itertools.product(INPUTS, BLOCKS):
            for shape, block in problems(output):
                for view in ("rows", "sliced", "padded"):
                    OPS.quantize(VIEWS[view](torch.empty(shape, dtype=input)), output, *block)
    return sorted(found)


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize("cc, step", [(80, 3), (90, 1)])
def test_no_register_spills(cc, step):
    # One of the programs that differ in types of the same width alone: they differ in conversions.
    sample = {}
    for name, threads in programs():
        alike = name.replace("bf16", "f16").replace("e5m2", "e4m3").replace("u8", "s8")
        sample[alike] = (name, threads)
    assert len(sample) > 60
    for name, threads in list(sample.values())[::step]:
        program = _kernels.program(name, threads).compile(cc=cc)
        assert program.log == "", name
        assert spilled_bytes(program) == 0, name
