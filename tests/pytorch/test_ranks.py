"""Activations of any rank in `quantize` and in products of 8-bit operands; bias, activation."""

import functools

import cutlass_api
import pytest
import torch
from cutlass_api import quantize
from cutlass_api.library import ScaleSwizzleMode
from torch.nn import functional as F

I8, F8 = torch.int8, torch.float8_e4m3fn
SHAPES = [(256,), (3, 256), (2, 3, 256), (2, 2, 3, 256), (2, 64, 256)]
N, K = 32, 256
TILES = ScaleSwizzleMode.Swizzle32x4x4

#: Ways to quantize activations, and a weight for their product.
HELPERS = {
    "per_tensor": (quantize.per_tensor, quantize.per_tensor),
    "per_row": (quantize.per_row, quantize.per_row),
    "per_block 1": (quantize.per_block, quantize.per_block),
    "per_block 128": 2 * (lambda x: quantize.per_block(x, block=(128, 128)),),
    "per_mx_block": (quantize.per_mx_block, quantize.per_mx_block),
    "swizzled": 2 * (lambda x: quantize.per_mx_block(x, swizzle=TILES),),
}
INT8_HELPERS = {
    name: 2 * (functools.partial(HELPERS[name][0], dtype=I8),) for name in ("per_tensor", "per_row")
}


def randn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def weight():
    return randn(N, K)


def assert_near(found, expected, tolerance):
    assert found.shape == expected.shape
    error = (found.double() - expected).norm() / expected.norm()
    assert error < tolerance, error


def exact(x, w, bias=None):
    return F.linear(x.double(), w.double(), None if bias is None else bias.double())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [n for n in quantize.__all__ if n.startswith("per_")])
def test_helpers_of_any_rank(name, shape):
    """The values and scales of the matrix of all rows."""
    x = randn(*shape)
    function = getattr(quantize, name)
    flat, found = function(x.reshape(-1, shape[-1])), function(x)
    assert found[0].equal(flat[0].reshape(shape)) and found[0].shape == shape
    for mine, of_rows in zip(found[1:], flat[1:], strict=True):
        assert torch.equal(mine.flatten().view(torch.uint8), of_rows.flatten().view(torch.uint8))
        if name not in ("per_tensor", "per_column"):
            assert mine.shape[:-1] == shape[:-1]
    assert_near(quantize.dequantize(*found), x.double(), 0.1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", HELPERS)
def test_scaled_mm_of_any_rank(name, shape):
    x, w = randn(*shape), weight()
    (a, scale_a), (b, scale_b) = (each(t) for each, t in zip(HELPERS[name], (x, w), strict=True))
    scale_b = scale_b.t() if scale_b.dim() == 2 else scale_b
    found = cutlass_api.scaled_mm(a, b.t(), scale_a, scale_b, bias=torch.ones(N))
    assert_near(found, exact(x, w) + 1, 0.1)
    flat = a.reshape(-1, K), scale_a
    if scale_a.dim() == a.dim() and name != "swizzled":
        flat = flat[0], scale_a.reshape(-1, scale_a.shape[-1])
    same = cutlass_api.scaled_mm(flat[0], b.t(), flat[1], scale_b, bias=torch.ones(N))
    assert found.equal(same.reshape(found.shape))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", INT8_HELPERS)
def test_int8_mm_of_any_rank(name, shape):
    x, w = randn(*shape), weight()
    (a, of_a), (b, of_b) = (each(t) for each, t in zip(INT8_HELPERS[name], (x, w), strict=True))
    scale_b = of_b.t() if of_b.dim() == 2 else of_b
    found = cutlass_api.int8_mm(a, b.t(), of_a, scale_b, torch.ones(N))
    assert_near(found, exact(x, w) + 1, 0.05)
    sums = cutlass_api.int8_mm(a, b.t())
    assert sums.equal(exact(a, b).int()) and sums.dtype is torch.int32


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("group", [None, 64])
def test_mixed_mm_of_any_rank(shape, group):
    x, w = randn(*shape).half(), weight()
    b, scale = quantize.per_row(w, I8) if group is None else quantize.per_group(w, group)
    assert_near(cutlass_api.mixed_mm(x, b.t(), scale.t()), exact(x, w), 0.05)
    b, scale, zero = quantize.per_group_asymmetric(w)
    found = cutlass_api.mixed_mm(x, b.t(), scale.t(), zero_point=zero.t(), bias=torch.ones(N))
    assert_near(found, exact(x, w) + 1, 0.05)
    # Integers of any rank, and a scale for each row of the float activations.
    a, scale_a = quantize.per_row(x, I8)
    assert_near(cutlass_api.mixed_mm(a, w.half().t(), scale_a), exact(x, w), 0.05)
    ones, rows = torch.ones(N, K, dtype=I8), torch.rand(*shape[:-1], 1)
    expected = exact(x, ones) * rows.double()
    assert_near(cutlass_api.mixed_mm(x, ones.t(), rows), expected, 0.01)


def test_batches_of_several_dimensions():
    x, w = randn(2, 3, 5, K), randn(3, N, K)
    (a, of_a), (b, of_b) = quantize.per_row(x, I8), quantize.per_row(w, I8)
    expected = x.double() @ w.double().mT
    assert_near(cutlass_api.int8_mm(a, b.mT, of_a, of_b.mT), expected, 0.05)
    assert_near(cutlass_api.mixed_mm(x.half(), b.mT, of_b.mT), expected, 0.05)
    (a, of_a), (b, of_b) = quantize.per_block(x), quantize.per_row(w)
    assert_near(cutlass_api.scaled_mm(a, b.mT, of_a, of_b.mT), expected, 0.1)


def test_scales_that_a_batch_shares():
    """Not those of all rows: one for each row of each product."""
    a, b, rows = torch.ones(2, 3, K).to(F8), torch.ones(N, K).to(F8), torch.rand(3, 1)
    found = cutlass_api.scaled_mm(a, b.t(), rows, torch.ones(()), torch.float32)
    assert_near(found, rows.double().expand(2, 3, N) * K, 1e-6)
    found = cutlass_api.mixed_mm(torch.ones(2, 3, K).half(), torch.ones(K, N, dtype=I8), rows)
    assert_near(found, rows.double().expand(2, 3, N) * K, 1e-3)


# Bias and activations.

ACTIVATIONS = {
    "relu": torch.relu,
    "swish": F.silu,
    "gelu": F.gelu,
    "gelu_pytorch_tanh": functools.partial(F.gelu, approximate="tanh"),
    "gelu_new": torch.nn.GELU(approximate="tanh"),
    "linear": torch.nn.Identity(),
    "silu": torch.nn.SiLU(),
    "leaky_relu": torch.nn.LeakyReLU(),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("product", ["scaled_mm", "int8_mm", "mixed_mm", "linear", "weight"])
def test_activations(product, name):
    x, w, bias = randn(2, 3, K), weight() / 8, torch.randn(N)
    if product == "linear":
        x = x.bfloat16()

        def call(activation):
            return cutlass_api.linear(x, w.bfloat16(), bias.bfloat16(), activation)
    elif product == "weight":

        def call(activation):
            return cutlass_api.quantized_linear(x.half(), quantize.int8(w), bias, activation)
    elif product == "mixed_mm":
        b, scale = quantize.per_row(w, I8)

        def call(activation):
            operands = (x.half(), b.t(), scale.t())
            return cutlass_api.mixed_mm(*operands, bias=bias, activation=activation)
    else:
        dtype = F8 if product == "scaled_mm" else I8
        (a, of_a), (b, of_b) = quantize.per_row(x, dtype), quantize.per_row(w, dtype)

        def call(activation):
            options = {"bias": bias, "activation": activation, "out_dtype": torch.float32}
            return getattr(cutlass_api, product)(a, b.t(), of_a, of_b.t(), **options)

    found = call(name)
    assert found.equal(call(ACTIVATIONS[name]))
    assert_near(found, ACTIVATIONS[name](exact(x, w, bias)), 0.15)


@pytest.mark.parametrize("product", ["linear", "scaled_mm", "int8_mm", "mixed_mm"])
def test_unknown_activations(product):
    one = torch.ones(16, 16)
    operands = {
        "linear": (one, one),
        "scaled_mm": (one.to(F8), one.to(F8).t(), one[0, 0], one[0, 0]),
        "int8_mm": (one.to(I8), one.to(I8), one[0, 0]),
        "mixed_mm": (one.half(), one.to(I8)),
    }[product]
    for unknown in ("mish", torch.nn.Mish(), torch.nn.LeakyReLU(0.2), torch.exp, lambda x: x):
        with pytest.raises(ValueError, match=r"activation is .*; pass .*gelu_tanh, .*relu"):
            getattr(cutlass_api, product)(*operands, activation=unknown)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_gradients_of_gelu(name):
    shapes = ((5, 4), (3, 4), (3,))
    inputs = [torch.randn(*each, dtype=torch.float64).requires_grad_() for each in shapes]

    def function(*args):
        return cutlass_api.linear(*args, name)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_gradients_of_mixed_mm():
    x, bias = torch.randn(2, 5, 32).bfloat16(), torch.randn(16)
    b, scale = quantize.per_row(torch.randn(16, 32), I8)
    operands = [each.clone().requires_grad_() for each in (x, bias)]
    out = cutlass_api.mixed_mm(operands[0], b.t(), scale.t(), bias=operands[1])
    grad = torch.randn_like(out)
    out.backward(grad)
    assert_near(operands[1].grad, grad.double().sum((0, 1)), 0.01)
    assert_near(operands[0].grad, grad.double() @ (b.double() * scale.double()), 0.02)
    out = cutlass_api.mixed_mm(operands[0], b.t(), scale.t(), activation="relu")
    with pytest.raises(RuntimeError, match=r"with an activation.*apply the activation with torch"):
        out.sum().backward()


def test_products_of_any_rank_compile():
    x, bias = torch.randn(2, 3, 64).half(), torch.randn(16)
    b, scale = quantize.per_row(torch.randn(16, 64), I8)
    a, scale_a = quantize.per_row(x, I8)

    def products(x, a, scale_a):
        mixed = cutlass_api.mixed_mm(x, b.t(), scale.t(), bias=bias, activation="gelu_new")
        integers = cutlass_api.int8_mm(a, b.t(), scale_a, scale.t(), activation=torch.relu)
        return mixed, integers, quantize.per_row(x)[1]

    compiled = torch.compile(products, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(x, a, scale_a), products(x, a, scale_a), strict=True):
        assert found.equal(expected)


# dequantize.


@pytest.mark.parametrize("shape", [(130, 300), (64, 384), (2, 3, 96)])
@pytest.mark.parametrize("block", [(1, 128), (128, 1), (128, 128)])
def test_dequantize_blocks(shape, block):
    x = randn(*shape)
    values, scales = quantize.per_block(x, I8, block)
    found = quantize.dequantize(values, scales, dtype=torch.float16)
    assert found.dtype is torch.float16
    assert_near(found, x.double(), 0.02)


def test_dequantize_swizzled_scales_and_refuses_others():
    x = randn(130, 96)
    plain, tiles = quantize.per_mx_block(x), quantize.per_mx_block(x, swizzle=TILES)
    assert quantize.dequantize(*plain).equal(quantize.dequantize(*tiles))
    with pytest.raises(ValueError, match=r"scales of shape \[7, 5\] are none of \[130, 96\]"):
        quantize.dequantize(x, torch.ones(7, 5))
