"""`torch.ops.cutlass_api.grouped_gated_mlp`: values, gradients and traces."""

import itertools

import pytest
import torch
from cutlass_api.ops import OPS, _gated_mlp
from cutlass_api.ops._epilogues import GATE_DERIVATIVES
from cutlass_api.ops._gated_mlp import composed, gate_and_up
from support.operator_calls import ends, randn

ROWS, BEHIND, GROUPS, K, N, H = 9, 2, 3, 8, 6, 5


def operands(dtype=torch.float64, has_bias=True):
    """A, up, down, the offsets and both biases. Rows behind the last group are NaN."""
    a = randn(ROWS + BEHIND, K, dtype=dtype)
    a[ROWS:] = torch.nan
    up, down = randn(GROUPS, 2 * N, K, dtype=dtype).mT, randn(GROUPS, H, N, dtype=dtype).mT
    biases = (randn(GROUPS, 2 * N), randn(GROUPS, H)) if has_bias else (None, None)
    return a, up, down, ends(4, 4, ROWS), *biases


def layers(a, up, down, activation, interleaved, up_bias, down_bias):
    """By torch, in the dtype of A: rows of both groups that have some."""

    def round(x):
        return x.to(a.dtype)

    def layer(group, rows):
        sums = round(rows @ up[group] + up_bias[group])
        gate, other = gate_and_up(sums, interleaved)
        if activation == "gelu_tanh":
            acted = torch.nn.functional.gelu(gate, approximate="tanh")
        else:
            acted = getattr(torch.nn.functional, activation)(gate)
        value = round(acted * other)
        return value @ down[group] + down_bias[group]

    return torch.cat([layer(0, a[:4]), layer(2, a[4:ROWS])])


def differentiable(tensors):
    return [x if x is None else x.detach().clone().requires_grad_() for x in tensors]


FUNCTIONS = sorted(GATE_DERIVATIVES.keys() - {"identity"})
each_kind = pytest.mark.parametrize(
    "activation, interleaved", list(itertools.product(FUNCTIONS, (False, True)))
)


@each_kind
def test_gradients(activation, interleaved):
    a, up, down, offs, *biases = operands()
    tensors = differentiable((a, up, down, *(each.double() for each in biases)))
    a, up, down, *biases = tensors
    out, sums = OPS.grouped_gated_mlp(a, up, down, offs, activation, interleaved, *biases)
    wanted = layers(a, up, down, activation, interleaved, *biases)
    torch.testing.assert_close(out[:ROWS], wanted)
    grad, of_sums = randn(ROWS + BEHIND, H, dtype=torch.float64), torch.zeros_like(sums)
    found = torch.autograd.grad((out, sums), tensors, (grad, of_sums))
    assert not found[0][ROWS:].any()
    for each, other in zip(found, torch.autograd.grad(wanted, tensors, grad[:ROWS]), strict=True):
        torch.testing.assert_close(each, other)


@each_kind
def test_the_derivative_in_the_epilogue(activation, interleaved):
    *_, down, offs, _, _ = operands()
    grad, sums = randn(ROWS, H, dtype=torch.float64), randn(ROWS, 2 * N, dtype=torch.float64)
    args = (grad, down, sums, offs, activation, interleaved)
    for found, wanted in zip(OPS.grouped_gated_mlp_grad(*args), composed(*args), strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("interleaved", [False, True])
def test_derivatives_of_derivatives(interleaved):
    a, up, down, offs, *biases = operands()
    tensors = differentiable((a[:ROWS], up, down, *(each.double() for each in biases)))

    def function(a, up, down, *biases):
        return OPS.grouped_gated_mlp(a, up, down, offs, "silu", interleaved, *biases)

    assert torch.autograd.gradcheck(function, tensors)
    # All elements of the second derivatives would take many times as long as their projections.
    assert torch.autograd.gradgradcheck(function, tensors, fast_mode=True)

    def loss(*tensors):
        return function(*tensors)[0].sin().sum()

    found = torch.func.grad(loss, tuple(range(5)))(*tensors)
    for each, other in zip(found, torch.autograd.grad(loss(*tensors), tensors), strict=True):
        torch.testing.assert_close(each, other)


def test_the_epilogue_has_no_derivative_itself():
    *_, down, offs, _, _ = operands()
    grad = randn(ROWS, H, dtype=torch.float64, requires_grad=True)
    sums = randn(ROWS, 2 * N, dtype=torch.float64)
    value, _ = OPS.grouped_gated_mlp_grad(grad, down, sums, offs, "silu", False)
    with pytest.raises(RuntimeError, match=r"no derivative for grad: .* grouped_gated_mlp, whose"):
        value.sum().backward()


def distance(found, exact):
    return (found.double() - exact).norm() / exact.norm()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_errors_are_those_of_rounding(dtype, interleaved):
    """Not above those of torch's operations in 16 bits."""
    a, up, down, offs, *biases = operands(dtype)
    assert _gated_mlp.launched_at_once(a, up, offs, "silu", interleaved, biases[0]) is not None
    grad = randn(ROWS + BEHIND, H, dtype=dtype)
    tensors = differentiable((a, up, down, *biases))
    out, _ = OPS.grouped_gated_mlp(*tensors[:3], offs, "silu", interleaved, *tensors[3:])
    found = [out[:ROWS], *torch.autograd.grad(out, tensors, grad)]
    assert [x.dtype for x in found] == [dtype] * 4 + [torch.float32] * 2
    results = []
    for kind in (dtype, torch.float64):
        others = differentiable(x.to(kind) for x in (a, up, down, *biases))
        out = layers(*others[:3], "silu", interleaved, *others[3:])
        results.append([out, *torch.autograd.grad(out, others, grad[:ROWS].to(kind))])
    for each, theirs, exact in zip(found, *results, strict=True):
        each, theirs, exact = (x[:ROWS] for x in (each, theirs, exact))
        assert distance(each, exact) < max(1.2 * distance(theirs, exact), 2e-4)


def test_one_graph():
    a, up, down, offs, *biases = operands(torch.float32)

    def step(a, up, down, *biases):
        out, _ = OPS.grouped_gated_mlp(a, up, down, offs, "gelu", True, *biases)
        return out[:ROWS].sin().sum()

    results = []
    for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager")):
        tensors = differentiable((a, up, down, *biases))
        results.append(torch.autograd.grad(function(*tensors), tensors))
    for each, other in zip(*results, strict=True):
        torch.testing.assert_close(each, other)


def test_needed_gradients_alone():
    a, up, down, offs, *_ = operands()
    for at in range(3):
        tensors = [x.detach().requires_grad_(at == of) for of, x in enumerate((a, up, down))]
        out, sums = OPS.grouped_gated_mlp(*tensors, offs)
        out[:ROWS].sum().backward()
        assert [x.grad is not None for x in tensors] == [at == of for of in range(3)]
        assert sums.requires_grad
    (of_a,) = torch.autograd.grad(
        OPS.grouped_gated_mlp(a.requires_grad_(), up, down, offs)[1][:ROWS].sum(), a
    )
    torch.testing.assert_close(of_a[:4], up[0].sum(1).expand(4, K))


@pytest.mark.parametrize(
    "change, message",
    {
        "up": (lambda args: args | {"up": randn(3, 8, 10)}, r"up \(G, K, 2N\)"),
        "activation": (lambda args: args | {"activation": "swish"}, "is 'swish'; pass None or one"),
        "bias": (lambda args: args | {"up_bias": randn(3, 6)}, r"up_bias has shape \[3, 6\]"),
        "K": (lambda args: args | {"A": randn(9, 7)}, "K"),
    }.values(),
)
def test_refusals(change, message):
    args = {"A": randn(9, 8), "up": randn(3, 8, 12), "down": randn(3, 6, 5), "offs": ends(4, 4, 9)}
    with pytest.raises(ValueError, match=f"^cutlass_api::grouped_gated_mlp: .*{message}"):
        OPS.grouped_gated_mlp(**change(args))
