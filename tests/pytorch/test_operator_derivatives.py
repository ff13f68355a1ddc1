"""Derivatives of derivatives through `autograd`, and writes of `out`."""

import cutlass_api
import pytest
import torch
from cutlass_api.ops import OPERATORS
from cutlass_api.ops._operator import Gradient
from support.operator_calls import BIAS_RELU, EVERY, F8, integers, operator_of, randn
from torch import func
from torch.utils._pytree import tree_flatten, tree_unflatten

#: Calls of the operators with a gradient.
DIFFERENTIABLE = {
    name: EVERY[name]
    for name, operator in OPERATORS.items()
    if isinstance(operator.gradient, Gradient)
} | {
    "mixed_mm": lambda t: (t(4, 8).bfloat16(), integers(8, 6)),
    "bmm, broadcast": lambda t: (t(1, 4, 8), t(3, 8, 6), {"broadcast": True}),
}
differentiable = pytest.mark.parametrize("name", DIFFERENTIABLE)


def loss_of(name):
    """A scalar function of the first operand, with curvature, and that operand."""
    function, x = function_of(name)
    return (lambda x: (function(x).float() / 64).pow(3).sum()), x


def function_of(name):
    """The first output as a function of the first operand, and that operand."""
    leaves, spec = tree_flatten(DIFFERENTIABLE[name](randn))

    def function(x):
        *args, last = tree_unflatten([x, *leaves[1:]], spec)
        options = last if isinstance(last, dict) else {}
        out = operator_of(name)(*args, *([] if options else [last]), **options)
        return out[0] if isinstance(out, tuple) else out

    return function, leaves[0]


def by_autograd(loss, x, order):
    """The gradient of the sum of squares of the gradient, and so on, without transforms."""
    x = x.detach().requires_grad_()
    value = loss(x)
    for _ in range(order):
        (grad,) = torch.autograd.grad(value, x, create_graph=True)
        value = grad.float().square().sum()
    return grad.detach()


@differentiable
def test_gradients_around_gradients(name):
    """A gradient by autograd of a gradient by `torch.func`, and one under `no_grad`."""
    loss, x = loss_of(name)
    outer = x.detach().requires_grad_()
    func.grad(loss)(outer).float().square().sum().backward()
    torch.testing.assert_close(outer.grad, by_autograd(loss, x, 2))

    def constant(x):
        with torch.no_grad():
            inner = func.grad(loss)(x)
        return (inner.float() * x.float()).sum()

    torch.testing.assert_close(func.grad(constant)(x), by_autograd(loss, x, 1))


@differentiable
def test_gradients_of_a_batch(name):
    function, x = function_of(name)
    x.requires_grad_()
    out = function(x)
    rows = torch.stack([torch.ones_like(out), randn(*out.shape).to(out.dtype)])
    (whole,) = torch.autograd.grad(out, x, rows, retain_graph=True, is_grads_batched=True)
    each = [torch.autograd.grad(out, x, row, retain_graph=True)[0] for row in rows]
    torch.testing.assert_close(whole, torch.stack(each))


def test_tangents_are_refused_and_not_dropped():
    a, b = randn(2, 3, 4), randn(4, 2)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(a, a)
        with pytest.raises(RuntimeError, match="has a tangent"):
            torch.vmap(lambda a: cutlass_api.matmul(a, b, epilogue=BIAS_RELU, bias=b[0]))(dual)
        with pytest.raises(RuntimeError, match=r"^A has a tangent, and cutlass_api\.matmul"):
            cutlass_api.matmul(dual, b)


@pytest.mark.parametrize("name", [name for name, each in OPERATORS.items() if each.has_out])
def test_out_counts_as_a_write(name):
    """A backward that saved what `out` overwrites raises, as with torch's operators."""
    operator, args = operator_of(name), EVERY[name](randn)
    out = torch.zeros_like(operator(*args))
    version = out._version
    operator.out(*args, out=out)
    assert out._version == version + 1
    with torch.inference_mode():
        operator.out(*args, out=out)
        operator.out(*args, out=torch.zeros_like(out))
    assert out._version == version + 2
    if out.dtype.is_floating_point and out.dtype is not F8:
        product = torch.ones_like(out).requires_grad_() * out
        operator.out(*args, out=out)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()
