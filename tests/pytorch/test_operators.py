"""`torch.ops.cutlass_api`: torch's check of operators, and special gradients."""

import pytest
import torch
from cutlass_api.ops import OPERATORS, OPS
from cutlass_api.ops._operator import Gradient
from support.helpers import opcheck
from support.operator_calls import BIAS_RELU, EVERY, every, operator_of, randn
from torch.utils.flop_counter import FlopCounterMode


@every
def test_opcheck_of_every_operator(name):
    """With the backward of the first operand, if it has a gradient."""
    args = EVERY[name](randn)
    has_gradient = isinstance(OPERATORS[name].gradient, Gradient) and name != "mixed_mm"
    first = args[0].clone().requires_grad_() if has_gradient else args[0]
    opcheck(operator_of(name).default, (first, *args[1:]))
    if hasattr(operator_of(name), "out"):
        out = torch.zeros_like(operator_of(name)(*args))
        opcheck(operator_of(name).out, args, {"out": out})


# Gradients.


def doubles(*shape):
    return randn(*shape, dtype=torch.float64, requires_grad=True)


def test_gradients_of_half_precision_have_the_dtype_of_their_operands():
    a, b, bias = (randn(8, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    out = OPS.mm(a, b, out_dtype=torch.float32)
    assert out.dtype == torch.float32
    wide = bias.detach().float().requires_grad_()
    for loss in (out, OPS.addmm(wide, a, b), OPS.mm_epilogue(a, b, [wide], BIAS_RELU)):
        used = [x for x in (a, b, wide) if loss is not out or x is not wide]
        for tensor, gradient in zip(used, torch.autograd.grad(loss.sum(), used), strict=True):
            assert gradient.dtype == tensor.dtype


def test_the_second_output_of_linear_replaces_a_second_product():
    """The preactivation that gelu's derivative needs comes from the launch of the forward."""
    x, weight, bias = doubles(4, 8), doubles(6, 8), doubles(6)
    with FlopCounterMode(display=False) as counter:
        OPS.linear(x, weight, bias, "gelu").sum().backward()
    assert counter.get_total_flops() == 3 * 2 * 4 * 8 * 6


# Eight-bit products.


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_offsets_of_any_stride(groups, dtype):
    rows, matrices = randn(4, 8), randn(groups, 8, 6)
    ends = torch.tensor([[3, 7, 9], [4, 7, 9]], dtype=dtype)[-groups:, 0]
    found = OPS.grouped_mm(rows, matrices, ends)
    assert found.equal(OPS.grouped_mm(rows, matrices, ends.int().clone()))
