"""Weights of 4 bits as B of GemmArguments, on the CPU."""

import cutlass_api
import ml_dtypes
import numpy
import pytest
import torch
from cutlass_api import quantize, weights
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from cutlass_api.weights import Int4
from support import codes, memory
from support.weights import PACKED


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(memory, "DEVICE", torch.device("cpu"))


@pytest.mark.parametrize("shape", [(5, 70, 352), (1, 3, 1056), (0, 8, 64), (4, 0, 64)], ids=str)
@pytest.mark.parametrize("name", codes.CASES)
def test_a_weight_multiplies_as_its_matrix(name, shape):
    assert not list(codes.failures_of(name, shape))


def product_of(weight, x=None, **options):
    n, k = weight.shape
    x = torch.randn(5, k, dtype=torch.bfloat16) if x is None else x
    out = torch.empty(5, n, dtype=x.dtype)
    return GemmArguments(x, weight, out, torch.float32, **options), x, out


def test_the_epilogue_of_the_user_follows_the_scales_and_the_factor():
    weight = quantize.nvfp4(torch.randn(24, 64))
    bias, out = torch.randn(24), torch.empty(5, 24, dtype=torch.bfloat16)
    source = "def f(accum, bias):\n    D = relu(accum + bias)\n    return D\n"
    epilogue = EpilogueArguments(source, bias=bias, D=out)
    args, x, _ = product_of(weight, epilogue=epilogue)
    cutlass_api.get_kernels(args)[0].run(args)
    expected = (x.double() @ weight.dequantize(torch.float32).double().t() + bias).relu()
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2)


def test_arguments_follow_the_memory_of_a_weight():
    weight = quantize.int4(torch.randn(24, 64)).repack()
    args, x, out = product_of(weight)
    kernel = cutlass_api.get_kernels(args)[0]
    kernel.run(args)
    first = out.clone()
    weight.values.copy_(quantize.int4(torch.randn(24, 64)).repack().values)
    kernel.run(args)
    assert not torch.equal(out, first)
    expected = x.double() @ weight.dequantize(torch.float32).double().t()
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=5e-2)


MAKERS = {
    **{name: lambda w, kind=kind: kind.of_group(w, 32).repack() for name, kind in PACKED.items()},
    "int8": lambda w: weights.Int8(*quantize.per_group(w, 32)),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_weight_replaces_a_bound_one_with_its_scales(name):
    """Beside an operand of the user's epilogue that has the name of the scales."""
    first, second = (MAKERS[name](torch.randn(24, 64) * size) for size in (1, 3))
    bias, out = torch.randn(24), torch.empty(5, 24, dtype=torch.bfloat16)
    source = "def f(accum, scale_b):\n    D = accum + scale_b\n    return D\n"
    epilogue = EpilogueArguments(source, scale_b=bias, D=out)
    args, x, _ = product_of(first, epilogue=epilogue)
    launch = cutlass_api.get_kernels(args)[0].bind(args)

    def expect(weight, bias=bias):
        expected = x.double() @ weight.dequantize(torch.float32).double().t() + bias
        torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=5e-2)

    for options, weight in (({}, first), ({"B": second}, second), ({}, first)):
        launch(**options)
        expect(weight)
    launch(B=second, scale_b=2 * bias)
    expect(second, 2 * bias)


def test_a_bound_weight_refuses_other_ones():
    weight = quantize.int4(torch.randn(24, 64), 32)
    args, *_ = product_of(weight)
    launch = cutlass_api.get_kernels(args)[0].bind(args)
    added = weights.UInt4(weight.values, weight.scales, weight.scales).repack()
    order = torch.arange(63, -1, -1, dtype=torch.int32)
    for other, message in (
        (weight, r"call repack\(\) on it once"),
        (added, r"new arguments of zero points that are added"),
        (Int4(weight.values, weight.scales, order).repack(), r"has a permutation"),
        (quantize.int4(torch.randn(24, 64), 64).repack(), r"was bound for other ones"),
        (quantize.uint4(torch.randn(24, 64), 32).repack(), r"B is uint4 .* bound for int4"),
        (quantize.int4(torch.randn(32, 64), 32).repack(), r"B is int4 \[64, 32\]"),
    ):
        with pytest.raises(ValueError, match=message):
            launch(B=other)
    with pytest.raises(TypeError, match="B is a str"):
        launch(B="weight")
    a, b = torch.ones(5, 64).bfloat16(), torch.ones(64, 24, dtype=torch.int8)
    plain = GemmArguments(a, b, torch.empty(5, 24).bfloat16(), torch.float32)
    launch = cutlass_api.get_kernels(plain)[0].bind(plain)
    int8 = weights.Int8(torch.ones(24, 64, dtype=torch.int8), torch.ones(24, 1))
    with pytest.raises(ValueError, match=r"B is int8 .* bound for"):
        launch(B=int8)  # of other strides
    plain = GemmArguments(a, b.t().contiguous().t(), torch.empty(5, 24).bfloat16(), torch.float32)
    launch = cutlass_api.get_kernels(plain)[0].bind(plain)
    with pytest.raises(ValueError, match=r"B has scales .* bound for other ones"):
        launch(B=int8)


def test_mxfp4_refuses_float16():
    with pytest.raises(IndexError, match=r"whose powers of two exceed the range.*bfloat16"):
        args, *_ = product_of(quantize.mxfp4(torch.randn(8, 64)), torch.ones(5, 64).half())
        cutlass_api.get_kernels(args)[0]


def test_a_permutation_is_refused_by_name():
    weight = quantize.int4(torch.randn(8, 64))
    order = torch.arange(63, -1, -1, dtype=torch.int32)
    permuted = Int4(weight.values, weight.scales, order)
    with pytest.raises(ValueError, match=r"pass A as x\[..., weight.permutation\]"):
        product_of(permuted)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float8_e4m3fn, torch.int8], ids=lambda dtype: str(dtype)[6:]
)
def test_other_activations_find_no_kernel(dtype):
    args, *_ = product_of(quantize.int4(torch.randn(8, 64)), torch.ones(5, 64).to(dtype))
    assert not cutlass_api.get_kernels(args)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: torch.empty(64, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "cast B"),
        (
            lambda: torch.empty(64, 4, dtype=torch.uint4),
            "as B, in a weight of cutlass_api.weights: pass one or cast B",
        ),
        (
            lambda: numpy.zeros((64, 4), dtype=ml_dtypes.int4),
            r"B has dtype int4, .*weight of cutlass_api",
        ),
        (
            lambda: numpy.zeros((64, 4), dtype=ml_dtypes.float4_e2m1fn),
            r"float4_e2m1fn, one element",
        ),
    ],
)
def test_a_tensor_of_4_bits_is_no_weight(make, message):
    """Its elements have another order."""
    with pytest.raises(ValueError, match=message):
        cutlass_api.matmul(torch.ones(5, 64, dtype=torch.bfloat16), make())
