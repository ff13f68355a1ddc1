"""`torch.ops.cutlass_api`: torch's check of operators, and special gradients."""

import cutlass_api.ops
import pytest
import torch
from cutlass_api.ops import OPS
from support.helpers import opcheck
from support.operator_calls import (  # noqa: F401
    BIAS_RELU,
    CASES,
    EVERY,
    F8,
    cases,
    devices,
    ends,
    every,
    integers,
    operator_of,
    randn,
    seed,
)
from torch.utils.flop_counter import FlopCounterMode


@cases
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(case, dtype):
    args = CASES[case](lambda *shape: randn(*shape, dtype=dtype))
    opcheck(operator_of(case).default, args)


@every
def test_opcheck_of_every_operator(name):
    args = EVERY[name](randn)
    opcheck(operator_of(name).default, args)
    if hasattr(operator_of(name), "out"):
        out = torch.zeros_like(operator_of(name)(*args))
        opcheck(operator_of(name).out, args, {"out": out})


@pytest.mark.parametrize("activation", cutlass_api.fusion.activation.__all__)
def test_opcheck_of_activations(activation):
    args = [randn(*shape, requires_grad=True) for shape in ((4, 8), (6, 8), (6,))]
    opcheck(OPS.linear.default, (*args, activation))
    opcheck(OPS.linear_forward.default, (*args, activation))


@cases
def test_opcheck_of_training(case):
    args = CASES[case](lambda *shape: randn(*shape, requires_grad=True))
    opcheck(operator_of(case).default, args)


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


@devices
def test_weight_gradients_of_groups(device):
    rows = ends(4, 4, 9, device=device)
    a, grad = randn(9, 8, device=device), randn(9, 16, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        ours = OPS.grouped_mm_weight_grad(a.to(dtype), grad.to(dtype), rows).float()
        expected = torch.stack([a[:4].T @ grad[:4], torch.zeros_like(ours[0]), a[4:].T @ grad[4:]])
        torch.testing.assert_close(ours, expected, rtol=0.05, atol=0.1)


# Eight-bit products.


@pytest.mark.parametrize("kinds", [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
def test_opcheck_of_integers(kinds):
    """test_eight_bits.py has the results."""
    a, b = (integers(8, 8, dtype=getattr(torch, kind)) for kind in kinds)
    opcheck(OPS.int_mm.default, (a, b))
    opcheck(OPS.mm.default, (a, b))


@pytest.mark.parametrize("scales", [((), ()), ((1, 1), (1,)), ((16, 1), (1, 32)), ((16, 1), ())])
@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16, torch.float32])
def test_opcheck_of_scaled_mm(scales, out_dtype):
    """test_eight_bits.py has the results."""
    a, b = randn(16, 64).to(F8), randn(32, 64).to(F8).mT
    # Small enough for float8: NaN differs from NaN.
    scale_a, scale_b = (randn(*shape).abs() / 8 for shape in scales)
    arguments = (a, b, scale_a, scale_b, randn(32), torch.tensor(0.5), out_dtype)
    assert OPS.scaled_mm(*arguments).dtype == (out_dtype or F8)
    opcheck(OPS.scaled_mm.default, arguments)
