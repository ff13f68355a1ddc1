"""`torch.ops.cutlass_api`: results, gradients, traces and refusals."""

from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from pathlib import Path

import cutlass_api.ops
import pytest
import torch
from cutlass_api.ops import OPS
from support.helpers import opcheck, run_python
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
devices = pytest.mark.parametrize("device", DEVICES)

BIAS_RELU = "def epilogue(accum, bias):\n    D = relu(accum + bias)\n    return D"
#: An epilogue with every kind of operation that has a gradient.
MANY = """
def epilogue(accum, bias, other):
    x = accum * 0.5 + bias
    y = where(x > other, gelu(x) - other, silu(-x) / (1 + abs(other)))
    z = maximum(y, tanh(x)) + cast(minimum(x, other), torch.float64) * sigmoid(accum)
    D = z + exp(-square(x)) + sqrt(square(x) + 1.0)
    return D
"""
SWIGLU = "def epilogue(accum, up):\n    D = silu(accum) * product(up)\n    return D"
F8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def randn(*shape, dtype=torch.float32, device="cpu", requires_grad=False):
    tensor = torch.randn(shape, device=device).to(dtype)
    return tensor.requires_grad_(requires_grad)


def integers(*shape, dtype=torch.int8, device="cpu"):
    return torch.randint(0, 50, shape, device=device).to(dtype)


def ends(*rows, device="cpu"):
    return torch.tensor(rows, dtype=torch.int32, device=device)


def groups(a, b, offs):
    starts = [0, *offs.tolist()]
    return torch.cat([a[i:j] @ b[g] for g, (i, j) in enumerate(pairwise(starts))])


#: For each operator: its arguments, and the same by torch in the arguments' dtype.
CASES = {
    "mm": (lambda t: (t(4, 8), t(8, 6)), torch.mm),
    "mm, transposed views": (lambda t: (t(8, 4).mT, t(6, 8).mT), torch.mm),
    "mm, sliced": (lambda t: (t(4, 16)[:, ::2], t(8, 9)[:, 2:8]), torch.mm),
    "bmm": (lambda t: (t(3, 4, 8), t(3, 8, 6)), torch.bmm),
    "bmm, repeated": (lambda t: (t(1, 4, 8).expand(3, 4, 8), t(3, 6, 8).mT), torch.bmm),
    "addmm": (lambda t: (t(4, 6), t(4, 8), t(8, 6)), torch.addmm),
    "addmm, row": (lambda t: (t(6), t(4, 8), t(8, 6)), torch.addmm),
    "baddbmm": (lambda t: (t(3, 4, 6), t(3, 4, 8), t(3, 8, 6)), torch.baddbmm),
    "baddbmm, one": (lambda t: (t(1, 1, 6), t(3, 4, 8), t(3, 8, 6)), torch.baddbmm),
    "linear": (lambda t: (t(4, 8), t(6, 8), t(6)), torch.nn.functional.linear),
    "linear, no bias": (lambda t: (t(4, 8), t(6, 8)), torch.nn.functional.linear),
    "linear, rank 1": (lambda t: (t(8), t(6, 8), t(6)), torch.nn.functional.linear),
    "linear, rank 4": (lambda t: (t(2, 3, 4, 8), t(6, 8), t(6)), torch.nn.functional.linear),
    "linear, strided": (
        lambda t: (t(3, 4, 8).mT.contiguous().mT, t(8, 6).mT),
        torch.nn.functional.linear,
    ),
    "linear, empty": (lambda t: (t(0, 3, 8), t(6, 8), t(6)), torch.nn.functional.linear),
    "grouped_mm": (lambda t: (t(9, 8), t(3, 8, 6), ends(4, 4, 9)), groups),
    "mm_epilogue": (
        lambda t: (t(4, 8), t(8, 6), [t(6)], BIAS_RELU),
        lambda a, b, rest, _: torch.relu(a @ b + rest[0]),
    ),
    "mm_epilogue, batches": (
        lambda t: (t(3, 4, 8), t(8, 6), [t(3, 1, 6)], BIAS_RELU),
        lambda a, b, rest, _: torch.relu(a @ b + rest[0]),
    ),
    # Of these shapes, by the CPU alone.
    "mm_epilogue, dual": (
        lambda t: (t(4, 8), t(8, 6), [t(8, 6)], SWIGLU),
        lambda a, b, rest, _: torch.nn.functional.silu(a @ b) * (a @ rest[0]),
    ),
    "mm_epilogue, dual batches": (
        lambda t: (t(3, 4, 8), t(6, 8).mT, [t(6, 8).mT], SWIGLU),
        lambda a, b, rest, _: torch.nn.functional.silu(a @ b) * (a @ rest[0]),
    ),
}
cases = pytest.mark.parametrize("case", CASES)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}


def operator_of(case):
    return getattr(OPS, case.partition(",")[0])


#: For each operator: arguments, of each kind that it takes.
EVERY = {
    **{name: make for name, (make, _) in CASES.items() if hasattr(OPS, name)},
    "linear_forward": lambda t: (t(4, 8), t(6, 8), t(6), "gelu"),
    "linear_weight_grad": lambda t: (t(2, 4, 6), t(2, 4, 8)),
    "grouped_mm_weight_grad": lambda t: (t(9, 8), t(9, 6), ends(4, 4, 9)),
    "int_mm": lambda t: (integers(4, 8), integers(8, 6)),
    "mixed_mm": lambda t: (t(4, 8).half(), integers(8, 6), t(6).abs(), integers(6)),
    "scaled_mm": lambda t: (t(4, 8).to(F8), t(8, 6).to(F8), t(4, 1).abs(), t(1).abs(), t(6)),
    "scaled_grouped_mm": lambda t: (
        *(t(9, 8).to(F8), t(3, 8, 6).to(F8)),
        *(t(9, 1).abs(), t(3).abs(), ends(4, 4, 9)),
    ),
}
every = pytest.mark.parametrize("name", EVERY)


def each_operand(args, kind):
    """The arguments with each tensor in turn, also in a list, replaced by one of another kind."""
    flat, spec = torch.utils._pytree.tree_flatten(args)
    for at, value in enumerate(flat):
        if isinstance(value, torch.Tensor):
            others = [*flat[:at], kind(value), *flat[at + 1 :]]
            yield torch.utils._pytree.tree_unflatten(others, spec)


def each_call(name, kind):
    """Calls of an operator and of its overload `out`, each with one tensor of another kind."""
    operator, args = operator_of(name), EVERY[name](randn)
    for given in each_operand(args, kind):
        yield name, partial(operator, *given)
    if hasattr(operator, "out"):
        for *given, out in each_operand((*args, operator(*args)), kind):
            yield f"{name}.out", partial(operator.out, *given, out=out)


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


def widened(value):
    if isinstance(value, list):
        return [widened(x) for x in value]
    return (
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )


def moved(value, device):
    if isinstance(value, list):
        return [moved(x, device) for x in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


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


@devices
@pytest.mark.parametrize("kinds", [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
def test_int_mm(kinds, device):
    a, b = (
        integers(*shape, dtype=getattr(torch, kind), device=device)
        for shape, kind in zip([(4, 32), (32, 8)], kinds, strict=True)
    )
    assert torch.equal(OPS.int_mm(a, b).cpu(), a.cpu().int() @ b.cpu().int())
    if device == "cpu":
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


def test_mixed_mm_has_no_gradient_for_its_scale():
    a, b = randn(8, 8, dtype=torch.float16), integers(8, 8)
    with pytest.raises(RuntimeError, match="cutlass_api::mixed_mm has no derivative for scale"):
        OPS.mixed_mm(a, b, randn(8, requires_grad=True))


@devices
@pytest.mark.parametrize("scales", [((), ()), ((1, 1), (1,)), ((16, 1), (1, 32)), ((16, 1), ())])
@pytest.mark.parametrize("out_dtype", [None, torch.bfloat16, torch.float32])
def test_scaled_mm(scales, out_dtype, device):
    a, b = (randn(*shape, device=device).to(F8) for shape in ((16, 64), (32, 64)))
    scale_a, scale_b = (randn(*shape, device=device).abs() for shape in scales)
    bias = randn(32, device=device)
    expected = (a.double() @ b.double().mT) * scale_a * scale_b
    out = OPS.scaled_mm(a, b.mT, scale_a, scale_b, out_dtype=out_dtype)
    assert out.dtype == (out_dtype or F8)
    relative = {torch.float32: 1e-5, torch.bfloat16: 1e-2}.get(out_dtype, 0.07)
    torch.testing.assert_close(out.double(), expected.clamp(-448, 448), rtol=relative, atol=0.05)
    result = torch.tensor(0.5, device=device)
    out = OPS.scaled_mm(a, b.mT, scale_a, scale_b, bias, result, out_dtype)
    factor = 0.5 if out_dtype is None else 1
    expected = ((expected + bias) * factor).clamp(-448, 448)
    torch.testing.assert_close(out.double(), expected, rtol=relative, atol=0.05)
    if device == "cpu":
        # Small enough for float8: NaN differs from NaN.
        arguments = (a, b.mT, scale_a / 64, scale_b, bias, result, out_dtype)
        opcheck(OPS.scaled_mm.default, arguments)


def test_scaled_mm_as_torchs():
    a, b = randn(16, 64).to(F8), randn(32, 64).to(F8).mT
    one, bias = torch.tensor(0.5), randn(32).bfloat16()
    theirs = torch._scaled_mm(a, b, one, one, bias=bias, out_dtype=torch.bfloat16)
    ours = OPS.scaled_mm(a, b, one, one, bias, out_dtype=torch.bfloat16)
    torch.testing.assert_close(ours, theirs)


# Autocast, FLOPs, vmap.


@devices
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@cases
def test_autocast(case, dtype, device):
    if device == "cuda" and "dual" in case:
        pytest.skip("no kernel for a GPU")
    args = [moved(x, device) for x in CASES[case][0](randn)]
    with torch.autocast(device, dtype=dtype):
        assert operator_of(case)(*args).dtype == dtype
        doubled = [widened(x) for x in args]
        assert operator_of(case)(*doubled).dtype == torch.float64
    assert operator_of(case)(*args).dtype == torch.float32


@every
def test_autocast_of_every_operator(name):
    unchanged = {"int_mm": torch.int32, "scaled_mm": F8, "scaled_grouped_mm": F8}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = operator_of(name)(*EVERY[name](randn))
    out = result[0] if isinstance(result, tuple) else result
    assert out.dtype is unchanged.get(name, torch.bfloat16)


def test_autocast_of_mixed_mm():
    x, weight, scale = randn(4, 8), integers(8, 6), randn(6).abs() / 100
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = OPS.mixed_mm(x, weight, scale)
        public = cutlass_api.mixed_mm(
            weight.t(), x.t(), scale=scale[:, None], out_dtype=torch.float32
        )
        with pytest.raises(ValueError, match="mixed_mm: A is torch"):  # which torch does not cast
            OPS.mixed_mm(x.double(), weight)
    assert torch.equal(out, OPS.mixed_mm(x.bfloat16(), weight, scale))
    torch.testing.assert_close(public.t(), out.float(), rtol=1e-2, atol=1e-2)


def test_autocast_of_scaled_products_as_torchs():
    """torch casts neither the operands nor the bias of `_scaled_mm`. Without oneDNN's float8
    products, its CPU implementation calls an operator that autocast rounds: compare with its result
    outside of autocast.
    """
    a, b, one, bias = randn(16, 16).to(F8), randn(16, 16).to(F8).t(), torch.tensor(0.5), randn(16)
    args = (a, b, one, one, bias, None, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = OPS.scaled_mm(*args), torch._scaled_mm(*args)
    assert ours.dtype is theirs.dtype is torch.float32
    assert torch.equal(ours, OPS.scaled_mm(*args))
    torch.testing.assert_close(ours, torch._scaled_mm(*args))
    integer = integers(32, 32), integers(32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(OPS.int_mm(*integer), torch._int_mm(*integer))


def test_autocast_as_torchs():
    a, b, c = randn(4, 8), randn(8, 6), randn(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(OPS.mm(a, b), torch.mm(a, b))
        torch.testing.assert_close(OPS.addmm(c, a, b), torch.addmm(c, a, b), rtol=2e-2, atol=2e-2)
        assert OPS.int_mm(integers(4, 8), integers(8, 6)).dtype == torch.int32


@pytest.mark.parametrize("case", ["mm", "bmm", "addmm", "baddbmm", "linear", "linear, rank 4"])
def test_flops_are_those_of_torch(case):
    make, reference = CASES[case]
    args = make(lambda *shape: randn(*shape, requires_grad=True))
    counts = []
    for function in (operator_of(case), reference):
        with FlopCounterMode(display=False) as counter:
            function(*args).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_flops_of_other_operators():
    a, b = randn(4, 8), randn(8, 6)
    e, i = a.to(F8), a.to(torch.int8)
    one = torch.ones(1)
    calls = [
        lambda: OPS.mm_epilogue(a, b, [randn(6)], BIAS_RELU),
        lambda: OPS.scaled_mm(e, b.to(F8), one, one),
        lambda: OPS.int_mm(i, b.to(torch.int8)),
        lambda: OPS.mixed_mm(a.half(), b.to(torch.int8)),
        lambda: OPS.grouped_mm(a, b.expand(2, 8, 6), ends(1, 4)),
        lambda: OPS.grouped_mm_weight_grad(a, randn(4, 6), ends(1, 4)),
    ]
    for call in calls:
        with FlopCounterMode(display=False) as counter:
            call()
        assert counter.get_total_flops() == 2 * 4 * 8 * 6


def examples(dims, args, at):
    """The arguments of one example of a vmapped call."""
    return [
        examples(dim, arg, at)
        if isinstance(arg, list)
        else arg
        if dim is None
        else arg.select(dim, at)
        for dim, arg in zip(dims, args, strict=True)
    ]


V = 3
VMAP = {
    "mm": [((V, 4, 8), 0), ((8, 6), None)],
    "mm, B": [((4, 8), None), ((8, V, 6), 1)],
    "mm, both": [((4, 8, V), 2), ((V, 8, 6), 0)],
    "bmm": [((2, V, 4, 8), 1), ((2, 8, 6), None)],
    "bmm, both": [((V, 2, 4, 8), 0), ((2, 8, 6, V), -1)],
    "addmm": [((V, 6), 0), ((V, 4, 8), 0), ((8, 6), None)],
    "addmm, input": [((V, 4, 6), 0), ((4, 8), None), ((8, 6), None)],
    "addmm, not input": [((6,), None), ((4, 8), None), ((V, 8, 6), 0)],
    "baddbmm": [((4, V, 6), 1), ((V, 2, 4, 8), 0), ((2, 8, 6), None)],
    "linear": [((V, 2, 4, 8), 0), ((6, 8), None), ((6,), None), "gelu"],
    "linear, weight": [((2, 4, 8), None), ((V, 6, 8), 0), ((6,), None), "silu"],
    "linear, bias": [((4, 8), None), ((6, 8), None), ((6, V), 1), "relu"],
    "linear, all": [((8, V), 1), ((V, 6, 8), 0), ((6, V), 1), None],
    "mm_epilogue": [((V, 4, 8), 0), ((8, 6), None), [((6, V), 1)], BIAS_RELU],
    "mm_epilogue, dual": [((V, 4, 8), 0), ((8, 6), None), [((8, 6), None)], SWIGLU],
    "mm_epilogue, dual factors": [((4, 8), None), ((V, 8, 6), 0), [((V, 8, 6), 0)], SWIGLU],
    "mm_epilogue, operand": [((4, 8), None), ((8, 6), None), [((V, 4, 1), 0)], BIAS_RELU],
    "mm_epilogue, batches": [((4, V, 8), 1), ((2, 8, 6), None), [((6,), None)], BIAS_RELU],
    "mm_epilogue, all batches": [((V, 2, 4, 8), 0), ((8, 6), None), [((V, 2, 4, 6), 0)], BIAS_RELU],
}


def vmap_arguments(case):
    def split(value):
        if isinstance(value, list):
            pairs = [split(x) for x in value]
            return [arg for arg, _ in pairs], [dim for _, dim in pairs]
        if isinstance(value, tuple):
            return randn(*value[0]), value[1]
        return value, None

    return split(VMAP[case])


@pytest.mark.parametrize("case", VMAP)
def test_vmap(case):
    args, dims = vmap_arguments(case)
    operator = operator_of(case)
    expected = torch.stack([operator(*examples(dims, args, at)) for at in range(V)])
    out = torch.vmap(operator, tuple(dims))(*args)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    inner = [isinstance(dim, int) for dim in dims]
    if any(inner):
        outer = [torch.stack([x, x + 1]) if b else x for x, b in zip(args, inner, strict=True)]
        outer_dims = tuple(0 if b else None for b in inner)
        nested = torch.vmap(torch.vmap(operator, tuple(dims)), outer_dims)(*outer)
        torch.testing.assert_close(nested[0], expected, rtol=1e-5, atol=1e-5)


def test_vmap_of_eight_bit_and_grouped_products():
    a, b = integers(V, 4, 8), integers(8, 6)
    assert torch.equal(torch.vmap(OPS.int_mm, (0, None))(a, b), a.int() @ b.int())
    half, scale = randn(V, 4, 8, dtype=torch.float16), randn(V, 6).half().abs() / 10
    mixed = torch.vmap(OPS.mixed_mm, (0, None, 0))(half, b, scale)
    expected = (half.double() @ b.double()) * scale[:, None]
    torch.testing.assert_close(mixed.double(), expected, rtol=2e-2, atol=2e-2)
    e, scale_a, scale_b = randn(V, 4, 8).to(F8), randn(V, 4, 1).abs(), randn(V)
    out = torch.vmap(lambda x, s, t: OPS.scaled_mm(x, b.to(F8), s, t, out_dtype=torch.float32))(
        e, scale_a, scale_b
    )
    expected = (e.double() @ b.to(F8).double()) * scale_a * scale_b[:, None, None]
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    both = torch.vmap(  # vmap in vmap, of a batch
        torch.vmap(lambda x, s, t: OPS.scaled_mm(x, b.to(F8), s, t, out_dtype=torch.float32)),
        (0, None, None),
    )(torch.stack([e, e])[:, :, None].expand(2, V, 5, 4, 8), scale_a, scale_b)
    assert torch.equal(both, out[None, :, None].expand(2, V, 5, 4, 6))
    with pytest.raises(ValueError, match="int_mm: A is torch"):
        torch.vmap(OPS.int_mm, (0, None))(randn(V, 4, 8), b)
    a, b, rows = randn(V, 9, 8), randn(2, 8, 6), torch.stack([ends(3, 9), ends(0, 9), ends(9, 9)])
    out = torch.vmap(OPS.grouped_mm, (0, None, 0))(a, b, rows)
    torch.testing.assert_close(out, torch.stack([groups(a[i], b, rows[i]) for i in range(V)]))


@pytest.mark.parametrize("scale", [(), (4, 1), (4, 2)], ids=str)
def test_vmap_of_scaled_mm_permits_fast_sums(scale, monkeypatch):
    permitted = recorded_permissions(monkeypatch)
    a, b, scale_a = randn(V, 4, 256).to(F8), randn(256, 6).to(F8), randn(*scale).abs()
    for fast in (False, True):
        options = (torch.ones(()), None, None, torch.float32, fast)
        torch.vmap(lambda x, options=options: OPS.scaled_mm(x, b, scale_a, *options))(a)
    assert permitted == [False, True]


@pytest.mark.parametrize("scale", [(), (2,), (2, 1, 6)], ids=str)
def test_scaled_grouped_mm_permits_fast_sums(scale, monkeypatch):
    permitted = recorded_permissions(monkeypatch)
    a, b, scale_b = randn(4, 256).to(F8), randn(2, 256, 6).to(F8), randn(*scale).abs()
    for fast in (False, True):
        cutlass_api.scaled_grouped_mm(a, b, torch.ones(()), scale_b, ends(1, 4), None, fast)
    assert permitted == [False, True]


def recorded_permissions(monkeypatch):
    """Whether each launch from now on permits fast sums."""
    launch, permitted = cutlass_api.ops._products.launch, []

    def recorded(*args, fast_sums=False, **options):
        permitted.append(fast_sums)
        return launch(*args, fast_sums=fast_sums, **options)

    monkeypatch.setattr(cutlass_api.ops._products, "launch", recorded)
    return permitted


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_gradients_of_each_example(activation):
    """vmap(grad(...)), with a weight for all examples, and one for each."""
    x, weight, bias = randn(V, 4, 8), randn(6, 8), randn(6)
    act = getattr(cutlass_api.fusion.activation, activation or "identity")

    def ours(weight, bias, x):
        return OPS.linear(x, weight, bias, activation).square().sum()

    def theirs(weight, bias, x):
        return act(torch.nn.functional.linear(x, weight, bias)).square().sum()

    for dims, args in (
        ((None, None, 0), (weight, bias, x)),
        ((0, 0, 0), (randn(V, 6, 8), randn(V, 6), x)),
    ):
        gradients = [
            torch.vmap(torch.func.grad(f, argnums=(0, 1, 2)), dims)(*args) for f in (ours, theirs)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


# Traces and compiled code.


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def all_operators(a, b, weight, bias):
    """A function that calls each operator. a (M, 8), b (8, 6)."""
    batch = OPS.bmm(a.expand(2, *a.shape), b.expand(2, 8, 6)) + OPS.baddbmm(
        bias, a[None], b[None], beta=0.5
    )
    rows = (torch.arange(1, 3, dtype=torch.int32) * a.shape[0] // 2).to(torch.int32)
    one, scale = torch.ones(()), torch.full((1, 6), 0.5)
    # These have no gradients, except for the float operand of mixed_mm.
    x, y = a.detach(), b.detach()
    integer, narrow = (y * 8).to(torch.int8), y.to(F8)
    eight_bits = (
        OPS.int_mm((x * 8).to(torch.int8), integer)
        + OPS.mixed_mm(a.half(), integer, scale).float()
        + OPS.scaled_mm(x.to(F8), narrow, one, scale, out_dtype=torch.float32)
        + OPS.scaled_grouped_mm(
            x.to(F8), narrow.expand(2, 8, 6), one, scale.expand(2, 1, 6), rows, torch.float32
        )
    )
    return (
        eight_bits
        + OPS.mm(a, b)
        + OPS.addmm(bias, a, b, alpha=2)
        + batch.sum(0)
        + OPS.linear(a, weight, bias, "gelu")
        + OPS.grouped_mm(a, b.expand(2, 8, 6), rows)
        + OPS.mm_epilogue(a, b, [bias], BIAS_RELU)
    )


def inputs(rows=4, requires_grad=False):
    shapes = ((rows, 8), (8, 6), (6, 8), (6,))
    return [randn(*shape, requires_grad=requires_grad) for shape in shapes]


@pytest.fixture
def dynamo():
    """Forgets code that other tests compiled."""
    torch._dynamo.reset()


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend):
    compiled = torch.compile(all_operators, fullgraph=True, backend=backend)
    args = inputs()
    torch.testing.assert_close(compiled(*args), all_operators(*args))


@pytest.mark.usefixtures("dynamo")
def test_compile_of_training():
    compiled = torch.compile(all_operators, fullgraph=True, backend="aot_eager")
    args = inputs(requires_grad=True)
    gradients = [
        torch.autograd.grad(f(*args).square().sum(), args) for f in (compiled, all_operators)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("dynamo")
def test_compile_of_dynamic_shapes():
    compiled = torch.compile(all_operators, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (4, 6, 10):
            args = inputs(rows)
            torch.testing.assert_close(compiled(*args), all_operators(*args))


@pytest.mark.usefixtures("dynamo")
def test_compile_of_out():
    def function(a, b):
        out = a.new_empty(a.shape[0], b.shape[1])
        OPS.mm.out(a, b, out=out)
        OPS.mm_epilogue.out(a, b, [out], BIAS_RELU, out=out)
        return out * 2

    a, b = inputs()[:2]
    compiled = torch.compile(function, fullgraph=True, backend="inductor")
    torch.testing.assert_close(compiled(a, b), function(a, b))


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict):
    rows = torch.export.Dim("rows", min=2, max=64)
    args = tuple(inputs())
    shapes = {"args": ({0: rows * 2}, None, None, None)}
    program = torch.export.export(Module(all_operators), args, strict=strict, dynamic_shapes=shapes)
    names = {str(node.target) for node in program.graph.nodes}
    internal = {"linear_forward", "linear_weight_grad", "grouped_mm_weight_grad"}
    assert names >= {f"cutlass_api.{name}.default" for name in EVERY if name not in internal}
    args = inputs(10)
    torch.testing.assert_close(program.module()(*args), all_operators(*args))


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
def test_make_fx(tracing_mode):
    graph = make_fx(all_operators, tracing_mode=tracing_mode)(*inputs())
    args = inputs()
    torch.testing.assert_close(graph(*args), all_operators(*args))


def test_meta_tensors():
    a, b = torch.empty(4, 8, device="meta"), torch.empty(8, 6, device="meta")
    assert OPS.mm(a, b).shape == (4, 6) and OPS.mm(a, b).is_meta


@pytest.mark.usefixtures("dynamo")
def test_sizes_that_depend_on_data():
    def function(x, weight):
        return OPS.linear(x[x[:, 0] > 0], weight)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        x, weight = randn(16, 8), randn(6, 8)
        torch.testing.assert_close(compiled(x, weight), function(x, weight))


# Training.


class Perceptron(torch.nn.Module):
    """Two linear layers with a gelu between them."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        generator = torch.Generator().manual_seed(0)
        shapes = {"up": (64, 32), "up_bias": (64,), "down": (16, 64), "down_bias": (16,)}
        for name, shape in shapes.items():
            values = torch.randn(shape, generator=generator) / 8
            self.register_parameter(name, torch.nn.Parameter(values))

    def forward(self, x):
        hidden = self.linear(x, self.up, self.up_bias, "gelu")
        return self.linear(hidden, self.down, self.down_bias, None)


def torch_linear(x, weight, bias, activation):
    out = torch.nn.functional.linear(x, weight, bias)
    return torch.nn.functional.gelu(out) if activation == "gelu" else out


@devices
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_training_step_of_a_perceptron(device, is_compiled):
    x = randn(2, 24, 32, device=device)
    target = randn(2, 24, 16, device=device)
    losses, gradients = [], []
    for linear in (cutlass_api.linear, torch_linear):
        model = Perceptron(linear).to(device)
        step = torch.compile(model, fullgraph=True, backend="aot_eager") if is_compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = torch.nn.functional.mse_loss(step(x).float(), target)
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*losses, rtol=1e-2, atol=0)
    for ours, theirs in zip(*gradients, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.parametrize("activation", cutlass_api.fusion.activation.__all__)
def test_linear_takes_names_and_functions(activation):
    x, weight, bias = randn(4, 8), randn(6, 8), randn(6)
    ours = getattr(cutlass_api.fusion.activation, activation)
    expected = ours(torch.nn.functional.linear(x, weight, bias))
    torch.testing.assert_close(cutlass_api.linear(x, weight, bias, activation), expected)
    torch.testing.assert_close(cutlass_api.linear(x, weight, bias, ours), expected)
    if theirs := getattr(torch.nn.functional, activation, None):
        torch.testing.assert_close(cutlass_api.linear(x, weight, bias, theirs), expected)


# Refusals.


A, B, W = randn(4, 8), randn(8, 6), randn(6, 8)
C64 = torch.complex64
SCALED = torch.ones(1)
REFUSALS = {
    "mm: dimension K differs: it is 8 in A": lambda: OPS.mm(A, A),
    "mm: A, B and out must have the same rank": lambda: OPS.mm(A[None], B),
    "mm: .*no kernel computes complex64 @ complex64.*cast": lambda: OPS.mm(A.to(C64), B.to(C64)),
    "mm: .*no kernel computes int64 @ int64.*cast": lambda: OPS.mm(A.long(), B.long()),
    "mm: .*no kernel computes float8_e4m3fnuz .*; cast A to float16 or": lambda: OPS.mm(
        A.to(torch.float8_e4m3fnuz), B
    ),
    "mm: .*no kernel computes float32 @ float16.*; cast B to float32": lambda: OPS.mm(A, B.half()),
    "bmm: A has shape .*; pass tensors of rank 3": lambda: OPS.bmm(A[None], B.expand(2, 8, 6)),
    "addmm: input with shape .* does not broadcast": lambda: OPS.addmm(A, A, B),
    "linear: input has shape .* and weight": lambda: OPS.linear(A, W[0]),
    "linear: activation is 'sin'; pass None or one of": lambda: OPS.linear(A, W, None, "sin"),
    "linear: bias with shape": lambda: OPS.linear(A, W, A),
    "grouped_mm: A has rank 2, B rank 2": lambda: OPS.grouped_mm(A, B, ends(4)),
    "grouped_mm: .*offs is missing": lambda: OPS.grouped_mm(A, B[None]),
    "grouped_mm: bias is not supported": lambda: OPS.grouped_mm(A, B[None], ends(4), B),
    "grouped_mm: offs has shape": lambda: OPS.grouped_mm(A, B[None], ends(1, 4)),
    "grouped_mm: offsets must have dtype int32": lambda: OPS.grouped_mm(A, B[None], ends(4).long()),
    "int_mm: A is torch.float32": lambda: OPS.int_mm(A, B),
    "mixed_mm: A is torch.float32": lambda: OPS.mixed_mm(A, B),
    "scaled_mm: A is torch.float32": lambda: OPS.scaled_mm(A, B, SCALED, SCALED),
    r"scaled_mm: scale_a has shape \[4, 2\]; pass one factor, .* \[4, 1\]": lambda: OPS.scaled_mm(
        A.to(F8), B.to(F8), torch.ones(4, 2), SCALED
    ),
    "mm_epilogue: the epilogue takes 1 operands": lambda: OPS.mm_epilogue(A, B, [], BIAS_RELU),
    "mm_epilogue: the epilogue returns D, S; .* reduces nothing": lambda: OPS.mm_epilogue(
        A, B, [], "def f(accum):\n    D = accum\n    S = sum(D, -1)\n    return D, S"
    ),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals_are_the_same_when_traced(message):
    call = REFUSALS[message]
    errors = []
    for mode in (nullcontext(), FakeTensorMode(allow_non_fake_inputs=True)):
        with (
            mode,
            pytest.raises((ValueError, TypeError), match=f"^cutlass_api::{message}") as error,
        ):
            call()
        errors.append(str(error.value))
    assert errors[0] == errors[1]
    with pytest.raises(Exception, match=f"cutlass_api::{message}"):
        torch.compile(call, fullgraph=True, backend="aot_eager")()


def test_refusal_of_symbolic_sizes():
    compiled = torch.compile(
        lambda a, b: OPS.mm(a, b), fullgraph=True, dynamic=True, backend="eager"
    )
    with pytest.raises(Exception, match="cutlass_api::mm: dimension K differs: it is 8 in A"):
        compiled(A, A)


def sparse(tensor):
    where = torch.zeros(tensor.dim(), 1, dtype=torch.int64)
    return torch.sparse_coo_tensor(where, tensor.flatten()[:1], tensor.shape, check_invariants=True)


def nested(tensor):
    return torch.nested.nested_tensor_from_jagged(
        tensor[None, None].flatten(0, 1), ends(0, 1).long()
    )


KINDS = {"layout torch.sparse_coo": sparse, "nested tensors": nested}


@every
@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_refuses_other_kinds_by_name(name, kind):
    for overload, call in each_call(name, KINDS[kind]):
        message = f"^cutlass_api::{overload} does not serve {kind}"
        with pytest.raises(NotImplementedError, match=message):
            call()


@every
def test_every_operator_refuses_complex_operands(name):
    for overload, call in each_call(name, lambda tensor: tensor.to(C64)):
        named = "linear" if name == "linear_forward" else overload.removesuffix(".out")
        with pytest.raises(ValueError, match=f"^cutlass_api::{named}: .*complex64"):
            call()


@every
@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("device", ["xpu", "mps"])
def test_every_operator_refuses_other_devices(name, device):
    operator, args = operator_of(name), EVERY[name](randn)
    message = f"cutlass_api::{name} does not serve device {device}:0; pass dense tensors on the CPU"

    def described(value):
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty(value.shape, dtype=value.dtype, device=device)

    with FakeTensorMode():
        args = torch.utils._pytree.tree_map(described, args)
        with pytest.raises(NotImplementedError, match=f"^{message}"):
            operator(*args)
        with pytest.raises(Exception, match=message):
            torch.compile(operator, fullgraph=True, backend="eager")(*args)


def test_tensors_of_other_kinds_are_refused():
    nested = torch.nested.nested_tensor([A, A], layout=torch.jagged)
    kinds = {
        "layout torch.sparse_coo": A.to_sparse(),
        "layout torch.sparse_csr": A.to_sparse_csr(),
        "nested tensors": nested,
        "quantized": torch.quantize_per_tensor(A, 1.0, 0, torch.quint8),
    }
    for message, tensor in kinds.items():
        for call in (OPS.mm, cutlass_api.matmul):
            with pytest.raises(
                NotImplementedError, match=f"^cutlass_api::mm does not serve {message}"
            ):
                call(tensor, B)
    with pytest.raises(NotImplementedError, match=r"^cutlass_api::linear does not serve nested"):
        cutlass_api.linear(nested, W)


def test_distributed_tensors_beside_others_are_refused():
    """`test_distributed.py` computes with DTensors alone."""
    script = """
        import sys, torch, cutlass_api
        from torch.distributed import HashStore, init_process_group
        from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
        init_process_group("gloo", rank=0, world_size=1, store=HashStore())
        mesh = init_device_mesh("cpu", (1,))
        def distributed(tensor):
            return DTensor.from_local(tensor, mesh, [Replicate()])
        ones = torch.ones(4, 4)
        for call in (cutlass_api.matmul, cutlass_api.linear):
            try:
                call(distributed(ones), ones)
            except TypeError as error:
                print(error)
        sys.path[:0] = sys.argv[1:]
        from test_operators import EVERY, each_call
        for name in EVERY:
            for overload, call in each_call(name, distributed):
                is_out = overload.endswith(".out")
                reason = " does not serve DTensor" if is_out else ": some operands are DTensors"
                try:
                    call()
                except NotImplementedError if is_out else TypeError as error:
                    is_named = f"cutlass_api::{overload}{reason}" in str(error)
                    print("refused" if is_named else error)
                else:
                    print(overload, "computes")
    """
    first, second, *lines = run_python(script, *Path(__file__).parents[:2]).splitlines()
    reason = "some operands are DTensors and others are not; distribute the others, too"
    assert first.startswith(f"cutlass_api::mm: {reason}")
    assert second.startswith(f"cutlass_api::linear: {reason}")
    assert len(lines) > 60 and set(lines) == {"refused"}


def test_gradients_that_do_not_exist_are_refused():
    a, b = A.to(F8), B.to(F8)
    one = torch.ones(1, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"cutlass_api::scaled_mm has no derivative"):
        OPS.scaled_mm(a, b, one, one)
    with pytest.raises(RuntimeError, match=r"cutlass_api::mm: an operand of torch.float8_e4m3fn"):
        OPS.mm(a.requires_grad_(), b)
    with pytest.raises(RuntimeError, match=r"cutlass_api::mm.out does not support autograd"):
        OPS.mm.out(A.clone().requires_grad_(), B, out=torch.empty(4, 6))
    with pytest.raises(RuntimeError, match=r"cutlass_api::mm_epilogue has no derivative for A of"):
        OPS.mm_epilogue(A.to(torch.int8), B.to(torch.int8), [one], BIAS_RELU)


@pytest.mark.parametrize("operator", ["mm", "addmm", "linear", "mm_epilogue"])
def test_tangents_are_refused_and_not_dropped(operator):
    calls = {
        "mm": lambda x: OPS.mm(x, B),
        "addmm": lambda x: OPS.addmm(B[0], x, B),
        "linear": lambda x: OPS.linear(x, W),
        "mm_epilogue": lambda x: OPS.mm_epilogue(A, B, [x[0, :6]], BIAS_RELU),
    }
    with pytest.raises(RuntimeError, match=f"^cutlass_api::{operator}: an operand has a tangent"):
        torch.func.jvp(calls[operator], (A,), (A,))


# Imports.


@pytest.mark.parametrize("first", ["torch", "cutlass_api"])
def test_import_order(first):
    script = f"""
        import sys
        import {first}
        assert {first!r} == "torch" or "torch" not in sys.modules
        import cutlass_api, torch
        a = torch.ones(2, 2)
        print(torch.ops.cutlass_api.mm(a, a).sum().item(), cutlass_api.linear(a, a).sum().item())
        slow = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "triton")
        print([name for name in slow if name in sys.modules])
        from torch.utils.flop_counter import FlopCounterMode
        with FlopCounterMode(display=False) as counter:
            cutlass_api.matmul(a, a)
        print(counter.get_total_flops())
        print(torch.compile(cutlass_api.matmul, fullgraph=True, backend="eager")(a, a).sum().item())
    """
    assert run_python(script).splitlines() == ["8.0 8.0", "[]", "16", "8.0"]


def test_operators_imported_before_torch():
    script = """
        import warnings
        warnings.simplefilter("error")
        from cutlass_api.ops import OPS
        import cutlass_api
        print(OPS.mm.default, cutlass_api.linear is cutlass_api.ops.linear)
    """
    assert run_python(script) == "cutlass_api.mm.default True\n"


def test_linear_imports_torch():
    script = "import sys, cutlass_api; cutlass_api.linear; print('torch' in sys.modules)"
    assert run_python(script) == "True\n"
    script = """
        import sys
        sys.modules["torch"] = None
        import cutlass_api
        try:
            cutlass_api.linear
        except ImportError as error:
            print(error.name, hasattr(cutlass_api, "ops2"))
    """
    assert run_python(script) == "torch False\n"


def test_a_torch_without_the_dispatcher_does_not_break_the_import(tmp_path):
    (tmp_path / "torch.py").write_text("")
    script = """
        import sys, warnings
        sys.path[:0] = sys.argv[1:]
        with warnings.catch_warnings(record=True) as caught:
            import cutlass_api, torch
        print(len(caught), caught[0].message)
    """
    found = run_python(script, tmp_path)
    assert found.startswith("1 cutlass_api serves torch in part: cutlass_api._import_ops raised")
