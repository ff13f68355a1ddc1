"""`torch.ops.cutlass_api`: results and gradients."""

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
    MANY,
    cases,
    devices,
    ends,
    every,
    integers,
    moved,
    operator_of,
    randn,
    seed,
    widened,
)
from torch.utils.flop_counter import FlopCounterMode

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@devices
@cases
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_results(case, dtype, device):
    if device == "cuda" and "dual" in case:
        pytest.skip("no kernel for a GPU")
    make, reference = CASES[case]
    args = make(lambda *shape: randn(*shape, dtype=dtype))
    expected = reference(*(widened(arg) for arg in args))
    args = [moved(arg, device) for arg in args]
    out = operator_of(case)(*args)
    assert out.dtype == dtype and out.device.type == device and out.is_contiguous()
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.cpu().double(), expected, rtol=tolerance, atol=tolerance)
    if hasattr(operator_of(case), "out"):
        given = torch.full_like(out, 7)
        assert operator_of(case).out(*args, out=given) is None
        assert torch.equal(given, out)


@cases
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(case, dtype):
    args = CASES[case][0](lambda *shape: randn(*shape, dtype=dtype))
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
    args = CASES[case][0](lambda *shape: randn(*shape, requires_grad=True))
    opcheck(operator_of(case).default, args)


# Gradients.


def doubles(*shape):
    return randn(*shape, dtype=torch.float64, requires_grad=True)


def differentiable(operator, args, **options):
    """The operator as a function of the tensors that require grad, and these tensors."""
    flat, spec = torch.utils._pytree.tree_flatten(args)
    wanted = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor) and x.requires_grad]

    def function(*tensors):
        values = list(flat)
        for at, tensor in zip(wanted, tensors, strict=True):
            values[at] = tensor
        return operator(*torch.utils._pytree.tree_unflatten(values, spec), **options)

    return function, [flat[at] for at in wanted]


GRADIENTS = {
    case: make
    for case, (make, _) in CASES.items()
    if case not in ("bmm, repeated", "linear, empty")  # which gradcheck cannot perturb
} | {
    "addmm, factors": lambda t: (t(4, 6), t(4, 8), t(8, 6)),
    "mm_epilogue, many operations": lambda t: (t(4, 8), t(8, 6), [t(6), t(4, 6)], MANY),
    "mm_epilogue, shared A": lambda t: (t(4, 8), t(3, 8, 6), [t(4, 1)], BIAS_RELU),
    **{
        f"linear, {activation}": lambda t, activation=activation: (
            t(2, 4, 8),
            t(6, 8),
            t(6),
            activation,
        )
        for activation in cutlass_api.fusion.activation.__all__
    },
}


@pytest.mark.parametrize("case", GRADIENTS)
def test_gradcheck(case):
    options = {"beta": 0.5, "alpha": -2} if "factors" in case else {}
    function, tensors = differentiable(operator_of(case), GRADIENTS[case](doubles), **options)
    torch.autograd.gradcheck(function, tensors)
    torch.autograd.gradgradcheck(function, tensors)


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


@devices
@pytest.mark.parametrize("order", ["float @ integer", "integer @ float"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [torch.int8, torch.uint8])
def test_mixed_mm(order, dtype, kind, device):
    wide = randn(16, 16, dtype=dtype, device=device, requires_grad=True)
    narrow = integers(16, 16, dtype=kind, device=device)
    scale = (randn(16, device=device).abs() / 100).to(dtype)
    args = (wide, narrow) if order == "float @ integer" else (narrow, wide)
    expected = (args[0].double() @ args[1].double()) * scale
    out = OPS.mixed_mm(*args, scale)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)
    weight = torch.randn_like(expected)
    (ours,) = torch.autograd.grad(out, wide, weight.to(dtype))
    (theirs,) = torch.autograd.grad(expected, wide, weight)
    torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1)
    if device == "cpu":
        opcheck(OPS.mixed_mm.default, args)
        opcheck(OPS.mixed_mm.default, (*args, scale))


@pytest.mark.parametrize("order", ["float @ integer", "integer @ float"])
@pytest.mark.parametrize("scale", [None, (1,), (8,), (1, 8), (8, 1)], ids=str)
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_mixed_mm_differentiates_twice(order, scale, batch):
    wide, narrow = randn(*batch, 8, 8, dtype=torch.bfloat16), integers(8, 8)
    factor = None if scale is None else randn(*scale).abs() / 50

    def gradients(product, x):
        x = x.detach().requires_grad_()
        pair = (x, narrow) if order == "float @ integer" else (narrow, x)
        out = product(*pair, factor).float()
        (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return first, *torch.autograd.grad(first.float().square().sum(), x)

    def reference(a, b, factor):
        return (a.double() @ b.double()) * (1 if factor is None else factor)

    ours = gradients(OPS.mixed_mm, wide)
    for mine, theirs in zip(ours, gradients(reference, wide.double()), strict=True):
        assert mine.dtype is torch.bfloat16
        assert (mine - theirs).norm() <= 2e-2 * theirs.norm()


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
