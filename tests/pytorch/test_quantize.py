"""`cutlass_api.quantize`: arithmetic, layouts and refusals."""

import itertools

import cutlass_api
import pytest
import torch
from cutlass_api import quantize
from cutlass_api.library import ScaleSwizzleMode
from cutlass_api.ops import OPS, _quantize
from support.quantized import INF, INPUTS, NAN, VIEWS, WAYS, expanded, grouped, randn

#: The largest numbers, with a bound of the relative rounding error and the smallest step.
OUTPUTS = {
    torch.float8_e4m3fn: (448.0, 2.0**-4, 2.0**-9),
    torch.float8_e5m2: (57344.0, 2.0**-3, 2.0**-16),
    torch.int8: (127.0, 0, 1.0),
}
E8M0 = torch.float8_e8m0fnu
NONE, TILES = ScaleSwizzleMode.SwizzleNone, ScaleSwizzleMode.Swizzle32x4x4
#: The ways whose scale is the largest magnitude over the largest number.
SYMMETRIC = [
    (output, way)
    for output in OUTPUTS
    for way in WAYS[output]
    if output is torch.int8 or 32 not in way[0]
]
symmetric = pytest.mark.parametrize("output, way", SYMMETRIC, ids=str)
inputs = pytest.mark.parametrize("input", INPUTS, ids=str)
outputs = pytest.mark.parametrize("output", OUTPUTS, ids=str)
float8s = pytest.mark.parametrize("output", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
groups = pytest.mark.parametrize("group", tuple(quantize.GROUPS))


# Float32 scales without zero points.


@symmetric
@inputs
def test_results(output, way, input):
    extents, _ = way
    limit, relative, step = OUTPUTS[output]
    for view in VIEWS.values():
        x = view(randn(150, 300, input))
        quantized, scales = OPS.quantize(x, output, *way)
        assert quantized.dtype == output and quantized.shape == x.shape
        assert scales.dtype == torch.float32 and not scales.isnan().any()
        each = expanded(scales, x.shape, extents).double()
        exact = x.double()
        error = (quantized.double() * each - exact).abs()
        assert (error <= (exact.abs() * relative).maximum(each * step / 2) * (1 + 1e-5)).all()
        # The scale is the largest magnitude over the largest number, rounded once.
        largest = grouped(exact, extents).abs().amax((1, 3))
        assert torch.equal(scales, (largest / limit).float().view(scales.shape))


@symmetric
def test_the_largest_magnitude_becomes_the_largest_number(output, way):
    quantized, _ = OPS.quantize(randn(256, 256, spread=60), output, *way)
    assert (grouped(quantized.float(), way[0]).abs().amax((1, 3)) == OUTPUTS[output][0]).all()


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


@pytest.mark.parametrize("name", [name for name in quantize.__all__ if name.startswith("per_")])
def test_safetensors_saves_what_helpers_return(name):
    """Those of float8 in blocks need `contiguous()`: they have the layout of torch._scaled_mm."""
    from safetensors.torch import save

    blocks = ((1, 128), (128, 1), (128, 128)) if name == "per_block" else (None,)
    for block in blocks:
        options = {} if block is None else {"dtype": torch.int8, "block": block}
        found = getattr(quantize, name)(randn(130, 384), **options)
        assert save({str(at): tensor for at, tensor in enumerate(found)})


@symmetric
def test_zeros_and_empty_inputs(output, way):
    for input in INPUTS:
        quantized, scales = OPS.quantize(torch.zeros(130, 140, dtype=input), output, *way)
        assert (scales == 2.0**-126).all() and (quantized.float() == 0).all()
    for shape in ((0, 5), (5, 0), (0, 0)):
        quantized, scales = OPS.quantize(torch.empty(shape), output, *way)
        assert quantized.shape == shape and (scales == 2.0**-126).all()


@outputs
def test_extremes(output):
    """Subnormal and huge rows, and NaN and infinity, which other rows do not see."""
    x = torch.tensor(
        [[1e-45, 1e-42, -2e-40], [3e38, -3.4e38, 1], [1, NAN, 2], [1, INF, 2], [-INF, NAN, 0]]
    )
    quantized, scales = quantize.per_row(x, output)
    values, limit = quantized.float(), OUTPUTS[output][0]
    assert scales[0] == 2.0**-126 and scales[1] == torch.tensor(3.4e38) / limit
    assert values[1, 1] == -limit and values[:2].isfinite().all()
    assert scales[2].isnan() and scales[3] == INF and scales[4].isnan()
    assert (values * scales)[2:].isnan().all()


# MXFP8.


@inputs
@float8s
def test_mx_blocks(input, output):
    limit, relative, step = OUTPUTS[output]
    for view in VIEWS.values():
        x = view(randn(70, 300, input, spread=40 if input is torch.float32 else 4))
        quantized, scales = quantize.per_mx_block(x, output)
        assert quantized.dtype == output and quantized.shape == x.shape
        assert scales.dtype == E8M0 and scales.shape == (70, 10)
        largest_power = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}[output]
        largest = grouped(x.double(), (1, 32)).abs().amax((1, 3))
        assert torch.equal(scales.double().log2(), largest.log2().floor() - largest_power)
        each = expanded(scales.float(), x.shape, (1, 32)).double()
        exact = (x.double() / each).clamp(-limit, limit)
        error = (quantized.double() - exact).abs()
        assert (error <= (exact.abs() * relative).maximum(torch.tensor(step / 2))).all()


@float8s
def test_mx_saturates_and_marks_what_is_not_finite(output):
    limit, power = {torch.float8_e4m3fn: (448.0, 8), torch.float8_e5m2: (57344.0, 15)}[output]
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


@groups
def test_layouts_of_groups(group):
    x = randn(20, 256)
    quantized, scales = quantize.per_group(x, group)
    assert quantized.dtype == torch.int8 and quantized.stride() == x.stride()
    assert scales.shape == (20, 256 // group) and scales.is_contiguous()


@inputs
@groups
@pytest.mark.parametrize("offset", [0, 3, -3])
def test_asymmetric_groups(input, group, offset):
    """Of both signs, and of one sign."""
    x = (randn(20, 256, spread=0).clamp(-2.9, 2.9) + offset).to(input)
    quantized, scales, zeros = quantize.per_group_asymmetric(x, group)
    assert quantized.dtype == torch.uint8 and quantized.stride() == x.stride()
    assert scales.shape == (20, 256 // group) and scales.is_contiguous()
    assert (zeros.dtype, zeros.shape) == (torch.uint8, scales.shape) and zeros.is_contiguous()
    each = grouped(x.double(), (1, group))
    low, high = each.amin((1, 3)).clamp(max=0), each.amax((1, 3)).clamp(min=0)
    torch.testing.assert_close(scales.double(), (high - low) / 255, rtol=1e-6, atol=0)
    if offset:
        assert (zeros == (0 if offset > 0 else 255)).all()
    each, zero = (expanded(one, x.shape, (1, group)).double() for one in (scales, zeros))
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
    values = (quantized.float() - expanded(zeros, x.shape, (1, 32))) * expanded(
        scales, x.shape, (1, 32)
    )
    assert (scales[0] == 2.0**-126).all() and (quantized[0] == 0).all() and (zeros[0] == 0).all()
    assert values[1:4, :32].isnan().all() and (values[1:4, 32:] == 0).all()
    assert (quantized[1:4] == 0).all() and (zeros[1:4] == 0).all()
    assert scales[4, 0].isfinite() and quantized[4, :2].tolist() == [255, 0]
    assert (values[5] == 0).all()


# Traces and refusals.


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
    r"the input has shape \[\]; pass a matrix": lambda: quantize.per_row(X[0, 0]),
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


def test_vmap_of_groups_of_rows_is_one_call(monkeypatch):
    compute, calls = _quantize.compute, []
    monkeypatch.setattr(_quantize, "compute", lambda *args: calls.append(compute(*args)))
    torch.vmap(quantize.per_row)(randn(12, 64).view(3, 4, 64))
    assert len(calls) == 1
