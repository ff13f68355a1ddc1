"""``quantize.int4``, ``uint4``, ``mxfp4``, ``nvfp4``, ``fp8`` and ``int8``: by the rules of the
formats, and by ModelOpt where it is installed.
"""

import math
import re

import pytest
import torch
from cutlass_api import quantize
from cutlass_api.weights import Float8, Int8
from hypothesis import given, settings
from hypothesis import strategies as st
from support.weights import decoded, e2m1

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FUNCTIONS = (quantize.int4, quantize.uint4, quantize.mxfp4, quantize.nvfp4, quantize.fp8)
names = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda x: x.__name__)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def random_weight(dtype=torch.float32, n=6, k=160):
    generator = torch.Generator().manual_seed(5)
    rows = torch.logspace(-1, 1, n)[:, None]
    return ((torch.randn(n, k, generator=generator) + 0.2) * rows).to(dtype)


def groups(weight, group):
    """The rows' groups, the last one short."""
    return weight.split(weight.shape[1] if group in (None, -1) else group, 1)


@dtypes
@pytest.mark.parametrize("group", [32, 64, 128, None, -1])
@pytest.mark.parametrize("function", [quantize.int4, quantize.uint4], ids=lambda x: x.__name__)
def test_integers(function, group, dtype):
    weight = random_weight(dtype)
    found = function(weight, group)
    expected = torch.float32 if dtype is torch.float64 else dtype
    assert found.scales.dtype is expected and found.group == (160 if group in (None, -1) else group)
    for i, part in enumerate(groups(weight.double(), group)):
        zero = part.clamp(max=0).amin(1), part.clamp(min=0).amax(1)
        span = part.abs().amax(1) * 2 if function is quantize.int4 else zero[1] - zero[0]
        scales = found.scales[:, i].double()
        assert torch.equal((span.float() / 15).to(expected).double(), scales)
        # A rounded scale that is too small clips the ends.
        bound = scales * (0.5 + 15 * torch.finfo(expected).eps)
        error = (groups(decoded(found), group)[i] - part).abs().amax(1)
        assert (error <= bound * (1 + 1e-6)).all()
    if function is quantize.uint4:
        assert found.zeros.dtype is torch.uint8 and found.zeros.max() <= 15


def nearest(value):
    """The nearest number of e2m1; of two the one with an even code."""
    codes = sorted(range(8), key=lambda code: (abs(e2m1(code) - abs(value)), code % 2))
    return math.copysign(e2m1(codes[0]), value)


EDGES = [x / 8 for x in range(-56, 57)]
EDGES += [math.nextafter(x, to) for x in EDGES for to in (-9, 9) if x]


@given(st.lists(st.floats(-7, 7, width=32) | st.sampled_from(EDGES), min_size=1, max_size=31))
@settings(max_examples=60, deadline=None)
def test_e2m1_rounds_to_nearest_even(values):
    # 7 begins a block whose scale is 1.
    row = torch.tensor([[7.0, *values, *[0.0] * (31 - len(values))]])
    found = quantize.mxfp4(row)
    assert found.scales.float().tolist() == [[1]]
    assert found.dequantize(torch.float32)[0].tolist() == [nearest(x) for x in row[0].tolist()]


@dtypes
def test_mxfp4_scales(dtype):
    weight = random_weight(dtype)
    found = quantize.mxfp4(weight)
    assert found.dtype is torch.bfloat16
    for i, part in enumerate(weight.double().split(32, 1)):
        powers = part.abs().amax(1).log2().floor() - 2
        assert torch.equal(found.scales[:, i].double(), powers.exp2())
        expected = [[nearest(x) for x in row] for row in (part / powers.exp2()[:, None]).tolist()]
        assert torch.equal(
            decoded(found).split(32, 1)[i] / powers.exp2()[:, None], torch.tensor(expected).double()
        )


@dtypes
def test_nvfp4_scales(dtype):
    weight = random_weight(dtype)
    weight[2, 16:32] = 0
    found = quantize.nvfp4(weight)
    whole = weight.float()
    assert torch.equal(found.factor, whole.abs().max() / 2688)
    for i, part in enumerate(whole.split(16, 1)):
        scales = part.abs().amax(1) / (6 * found.factor)
        scales = scales.where(scales != 0, 1).clamp(2**-9, 448).to(torch.float8_e4m3fn).float()
        assert torch.equal(found.scales[:, i].float(), scales)
        quotients = part / (scales * found.factor)[:, None]
        expected = [[nearest(x) for x in row] for row in quotients.tolist()]
        numbers = found.format.numbers(found.values).split(16, 1)[i]
        assert torch.equal(numbers, torch.tensor(expected))


@dtypes
def test_8_bits_as_the_functions_of_their_products(dtype):
    weight = random_weight(dtype)
    plain = weight.float() if dtype is torch.float64 else weight
    for block, (values, scales) in {
        "row": quantize.per_row(plain),
        "tensor": quantize.per_tensor(plain),
        (1, 128): quantize.per_block(plain),
        (128, 128): quantize.per_block(plain, block=(128, 128)),
    }.items():
        found = quantize.fp8(weight, block)
        assert isinstance(found, Float8) and found.scales.is_contiguous()
        assert torch.equal(found.values.float(), values.float())
        assert torch.equal(found.scales, scales)
    for group, (values, scales) in {
        None: quantize.per_row(plain, torch.int8),
        -1: quantize.per_row(plain, torch.int8),
        32: quantize.per_group(plain, 32),
    }.items():
        found = quantize.int8(weight, group)
        assert isinstance(found, Int8) and found.group == (group if group == 32 else 160)
        assert torch.equal(found.values, values) and torch.equal(found.scales, scales)
    with pytest.raises(ValueError, match="160 columns, which a group of 64 does not divide"):
        quantize.int8(weight, 64)


@names
@dtypes
def test_extremes(function, dtype):
    info = torch.finfo(torch.float32 if dtype is torch.float64 else dtype)
    assert not function(torch.zeros(3, 64, dtype=dtype)).dequantize().any()
    assert function(torch.zeros(0, 64, dtype=dtype)).dequantize().shape == (0, 64)
    for value in (info.max, info.smallest_normal):
        weight = torch.full((2, 64), value, dtype=dtype)
        found = function(weight).dequantize(torch.float32)
        # The smallest scale is 2^-126, or 2^-9 times that.
        assert ((found.double() / weight.double() - 1).abs() < 0.3).all() or value < 2**-100
        assert found.isfinite().all()
    for value in (math.nan, math.inf):
        weight = random_weight(dtype)
        weight[3, 40] = value
        assert function(weight).dequantize()[3, 40].isnan()


@names
def test_traces_and_refuses(function):
    meta = function(torch.empty(6, 160, device="meta"))
    assert meta.shape == (6, 160) and meta.dequantize().is_meta
    weight = torch.randn(6, 160, requires_grad=True)
    assert not function(weight).dequantize().requires_grad
    refused = {
        "pad K with zeros to a multiple of 32": torch.randn(6, 150),
        "pass a matrix in torch.float16, torch.bfloat16, torch.float32": torch.ones(6, 64).int(),
        "[2, 6, 4, 64]; pass a matrix": torch.randn(2, 6, 4, 64),
    }
    for message, wrong in refused.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            function(wrong)


def test_other_groups_and_blocks_are_refused():
    weight = random_weight()
    for function in (quantize.int4, quantize.uint4):
        with pytest.raises(ValueError, match="is 48; pass one of 32, 64, 128, -1, None"):
            function(weight, 48)
    with pytest.raises(ValueError, match=r"block is \(1, 64\); pass one of 'tensor', 'row', \(1, "):
        quantize.fp8(weight, (1, 64))


@dtypes
def test_nvfp4_as_modelopt(dtype):
    name = "modelopt.torch.quantization.qtensor.nvfp4_tensor"
    tensor = pytest.importorskip(name, reason="needs nvidia-modelopt 0.47.0").NVFP4QTensor
    weight = random_weight(dtype)
    packed, scales, factor = tensor.quantize(weight.clone(), 16)
    found = quantize.nvfp4(weight)
    assert torch.equal(found.values, packed._quantized_data)
    assert torch.equal(found.scales.float(), scales.float())
    assert torch.equal(found.factor, factor)
