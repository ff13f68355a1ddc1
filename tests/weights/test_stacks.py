"""Stacks of weights, and products of groups of rows by them, on the CPU."""

import cutlass_api
import pytest
import torch
from cutlass_api import quantize, weights
from cutlass_api.arguments import GroupedGemmArguments
from cutlass_api.weights import MXFP4, Float8, Int4
from support import codes, grouped_codes, memory

G, N, K = 3, 40, 96
QUANTIZERS = {
    "int4": lambda w: quantize.int4(w, 32),
    "int4 of rows": lambda w: quantize.int4(w, None),
    "uint4": lambda w: quantize.uint4(w, 64),
    "mxfp4": quantize.mxfp4,
    "nvfp4": quantize.nvfp4,
    "fp8 of tensors": lambda w: quantize.fp8(w, "tensor"),
    "fp8 of blocks": lambda w: quantize.fp8(w, (128, 128)),
    "int8": lambda w: quantize.int8(w, 32),
}


def same(one, other):
    assert type(one) is type(other)
    for (key, x), (of_other, y) in zip(one.tensors().items(), other.tensors().items(), strict=True):
        assert key == of_other and x.dtype == y.dtype and x.shape == y.shape
        assert torch.equal(x.double(), y.double())


@pytest.fixture
def _on_the_cpu(monkeypatch):
    monkeypatch.setattr(memory, "DEVICE", torch.device("cpu"))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_stack_has_the_weights_of_its_matrices(name):
    quantizer = QUANTIZERS[name]
    matrices = torch.randn(G, N, K) * torch.tensor([1.0, 5.0, 0.2])[:, None, None]
    stack, each = quantizer(matrices), [quantizer(x) for x in matrices]
    assert stack.is_stack and stack.shape == (G, N, K)
    assert (stack.group, stack.dtype) == (each[0].group, each[0].dtype)
    same(stack, weights.stack(each))
    assert torch.equal(stack.dequantize(), torch.stack([x.dequantize() for x in each]))
    repacked = stack.repack()
    same(repacked.unpack(), stack)
    same(type(stack).from_tensors(repacked.tensors()), repacked)
    for at, one in enumerate(each):
        same(repacked[at], one.repack())
        assert repacked[at].values.data_ptr() == repacked.values[at].data_ptr()
    same(stack[-1], each[-1])
    with pytest.raises(IndexError):
        stack[G]


def test_an_index_requires_a_stack_and_an_integer():
    weight = quantize.int4(torch.randn(N, K))
    with pytest.raises(TypeError, match=r"Int4 \[40, 96\] is no stack of weights"):
        weight[0]
    with pytest.raises(TypeError, match="integer"):
        weights.stack([weight])[0:1]


WEIGHT = quantize.int4(torch.randn(N, K), 32)
REFUSED = {
    "weights is empty": [],
    r"weights\[1\] is a stack": [WEIGHT, weights.stack([WEIGHT])],
    r"weights\[0\] has a permutation": [
        Int4(WEIGHT.values, WEIGHT.scales, torch.arange(K).int()),
    ],
    r"weights\[1\] is <UInt4.* pass one class": [WEIGHT, quantize.uint4(torch.randn(N, K), 32)],
    r"weights\[1\]\.values has shape .* and that of": [WEIGHT, WEIGHT.repack()],
    r"weights\[1\]\.scales has shape": [WEIGHT, quantize.int4(torch.randn(N, K), 64)],
}


@pytest.mark.parametrize("message", REFUSED)
def test_stacks_of_weights_that_differ_are_refused(message):
    with pytest.raises(ValueError, match=f"stack: {message}"):
        weights.stack(REFUSED[message])


def test_fields_that_do_not_fit_a_stack_are_refused():
    with pytest.raises(TypeError, match=r"weights\[0\] is Tensor of torch.float32; pass weights"):
        weights.stack([torch.zeros(N, K)])
    stack = weights.stack([WEIGHT, WEIGHT])
    with pytest.raises(ValueError, match=r"scales has shape \[40, 3\] for a weight \[2, 40, 96\]"):
        Int4(stack.values, WEIGHT.scales)
    with pytest.raises(ValueError, match="a stack takes no permutation"):
        Int4(stack.values, stack.scales, torch.arange(K).int())
    with pytest.raises(ValueError, match="pass the matrix of one weight, or those of several"):
        Int4(stack.values[None], stack.scales)
    with pytest.raises(ValueError, match=r"quantize: mxfp4 of .*\[0, 40, 96\]; pass a matrix"):
        quantize.mxfp4(torch.zeros(0, N, K))


def test_one_scale_of_each_matrix():
    values = torch.randn(G, N, K).to(torch.float8_e4m3fn)
    scales = torch.tensor([1.0, 2.0, 0.5])
    expected = values.float() * scales[:, None, None]
    assert torch.equal(Float8(values, scales).dequantize(), expected)


@pytest.mark.usefixtures("_on_the_cpu")
@pytest.mark.parametrize("name", codes.CASES)
def test_groups_multiply_by_their_matrices(name):
    for sizes in ([0, 9, 37, 0, 1], [5, 0]):
        assert not list(grouped_codes.failures_of(name, sizes, 40, 352))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_stack_of_no_weights_is_an_operand(name):
    stack = QUANTIZERS[name](torch.randn(1, N, K))
    empty = type(stack)(**{key: field[:0] for key, field in stack.tensors().items()})
    args = arguments(empty, [])
    cutlass_api.get_kernels(args)[0].run(args)


def arguments(stack, ends, k=K):
    x, out = torch.ones(8, k, dtype=torch.bfloat16), torch.empty(8, N, dtype=torch.bfloat16)
    return GroupedGemmArguments(x, stack, out, "float32", torch.tensor(ends, dtype=torch.int32))


def test_arguments_refuse_what_does_not_fit_a_stack():
    stack = quantize.mxfp4(torch.randn(2, N, K))
    assert isinstance(stack, MXFP4) and cutlass_api.get_kernels(arguments(stack, [3, 8]))
    assert not cutlass_api.get_kernels(arguments(stack, [3, 5, 8]))
    assert not cutlass_api.get_kernels(arguments(stack[0], [8]))
    with pytest.raises(ValueError, match="K"):
        arguments(stack, [3, 8], k=K + 32)
    args = arguments(stack, [9, 4])
    with pytest.raises(ValueError, match="group 0"):
        cutlass_api.get_kernels(args)[0].run(args)
