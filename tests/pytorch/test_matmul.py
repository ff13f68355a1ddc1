"""`cutlass_api.matmul`: the behaviour that users of torch.matmul expect, on CPU and GPU."""

import cutlass_api
import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from cutlass_api import fusion
from cutlass_api.fusion.activation import relu
from torch._subclasses.fake_tensor import FakeTensorMode

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
devices = pytest.mark.parametrize("device", DEVICES)


def close(result, a, b):
    reference = a.double() @ b.double()
    assert result.shape == reference.shape
    error = (result.double() - reference).norm() / reference.norm()
    return error < {torch.float32: 1e-6, torch.float64: 1e-14}.get(result.dtype, 1e-2)


@devices
@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 3, 4), (2, 3, 0), (5, 2, 3, 4), (5, 0, 3, 0)])
def test_the_output_is_allocated_as_by_torch(device, shape, is_inference):
    *batch, m, k, n = shape
    with torch.inference_mode(is_inference):
        a, b = torch.randn(*batch, m, k, device=device), torch.randn(*batch, k, n, device=device)
        out, expected = cutlass_api.matmul(a, b), torch.matmul(a, b)
    for fact in ("shape", "dtype", "device", "requires_grad"):
        assert getattr(out, fact) == getattr(expected, fact)
    assert out.stride() == expected.stride() and out.is_inference() == is_inference


@devices
def test_integers_and_other_dtypes(device):
    a = torch.randint(-100, 100, (16, 32), dtype=torch.int8, device=device)
    b = torch.randint(-100, 100, (32, 24), dtype=torch.int8, device=device)
    result = cutlass_api.matmul(a, b)
    assert result.dtype == torch.int32
    assert torch.equal(result.cpu(), a.cpu().int() @ b.cpu().int())
    half = torch.randn(16, 32, device=device).half()
    assert cutlass_api.matmul(half, half.mT, accumulator_type=torch.float16).dtype == torch.float16
    float8 = half.to(torch.float8_e4m3fn)
    assert cutlass_api.matmul(float8, float8.mT).dtype == torch.bfloat16


def test_batch_dimensions_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"of A, \[2, 3\], and of B, \[4, 3\], do not broadcast"):
        cutlass_api.matmul(torch.ones(2, 3, 4, 5), torch.ones(4, 3, 5, 6))
    with pytest.raises(ValueError, match=r"out has shape \[4, 6\]; pass shape \[2, 3, 4, 6\]"):
        cutlass_api.matmul(torch.ones(2, 3, 4, 5), torch.ones(5, 6), out=torch.ones(4, 6))
    with pytest.raises(ValueError, match=r"^B must have rank 1 or more"):
        cutlass_api.matmul(torch.ones(2, 3, 4, 5), torch.ones(()))


@devices
def test_output_dtypes(device):
    a, b = (torch.randn(shape, device=device).bfloat16() for shape in ((8, 16), (16, 8)))
    result = cutlass_api.matmul(a, b, out_dtype=torch.float32)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, a.float() @ b.float(), rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="out has dtype bfloat16, but out_dtype is float32"):
        cutlass_api.matmul(a, b, out=torch.empty_like(a @ b), out_dtype=torch.float32)


def bias_relu(accum, bias, scale):
    D = relu(accum * scale + bias)
    return D


@devices
def test_further_outputs_of_an_epilogue_are_written(device):
    a, b = torch.randn(8, 16, device=device), torch.randn(16, 24, device=device)

    def epilogue(accum):
        D = relu(accum)
        S = fusion.sum(D, -1)
        return accum, D, S

    accum, sums = torch.empty(8, 24, device=device), torch.empty(8, device=device)
    weight = torch.ones(8, device=device, requires_grad=True)
    loss = (weight * sums).sum()
    result = cutlass_api.matmul(a, b, epilogue=epilogue, accum=accum, S=sums)
    torch.testing.assert_close(result, torch.relu(a @ b))
    torch.testing.assert_close(accum, a @ b)
    torch.testing.assert_close(sums, result.sum(-1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with pytest.raises(ValueError, match="returns accum, D, S, but torch differentiates or traces"):
        cutlass_api.matmul(a.requires_grad_(), b, epilogue=epilogue, accum=accum, S=sums)
    with pytest.raises(ValueError, match="needs operands of rank 2 or 3"):
        cutlass_api.matmul(a[None, None].detach(), b, epilogue=epilogue, accum=accum, S=sums)


def test_operands_of_an_epilogue_are_checked():
    a, watched = torch.ones(4, 4), torch.ones(4, 4, requires_grad=True)
    fused = {"epilogue": bias_relu, "bias": a}
    for x, given, message in (
        (a, {"bias": a}, r"unexpected keyword argument 'bias'.*epilogue="),
        (a, fused, r"^scale is missing"),
        (a, fused | {"scale": 1, "other": 1}, r"^other is neither a parameter"),
        (a, fused | {"scale": 1, "D": a}, r"^D is neither a parameter"),
        (watched, fused, r"takes bias, scale, but bias is passed"),
        (watched, {"bias": a}, r"bias is passed without an epilogue"),
    ):
        with pytest.raises(TypeError, match=message):
            cutlass_api.matmul(x, a, **given)


@devices
def test_gradients(device):
    a = torch.randn(8, 8, device=device)
    b = torch.randn(8, 8, device=device, requires_grad=True)
    ours = torch.autograd.grad(cutlass_api.matmul(a, b).square().sum(), b)
    theirs = torch.autograd.grad((a @ b).square().sum(), b)
    torch.testing.assert_close(ours, theirs)
    with pytest.raises(RuntimeError, match=r"requires grad, and a product into out.*omit out"):
        cutlass_api.matmul(a, b, out=torch.empty_like(a))
    with pytest.raises(ValueError, match="accumulator_type is float32, but torch differentiates"):
        cutlass_api.matmul(a, b, accumulator_type="float32")
    with torch.no_grad():
        assert not cutlass_api.matmul(a, b).requires_grad
        assert close(cutlass_api.matmul(a, b, out=torch.empty_like(a)), a, b)
    with torch.inference_mode():
        assert close(cutlass_api.matmul(a, b), a, b)
        inside = torch.randn(8, 8, device=device)
        assert cutlass_api.matmul(inside, inside).is_inference()
    assert close(cutlass_api.matmul(a, b.detach()), a, b)


@devices
def test_tangents_are_refused_and_not_dropped(device):
    a, b = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    with forward_ad.dual_level():
        with pytest.raises(RuntimeError, match=r"^B has a tangent"):
            cutlass_api.matmul(a, forward_ad.make_dual(b, torch.ones_like(b)))
        assert close(cutlass_api.matmul(a, b), a, b)


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
def test_traces_of_torchscript():
    b, bias = torch.randn(8, 6), torch.randn(6)

    def function(x):
        fused = cutlass_api.matmul(x, b, epilogue=bias_relu, bias=bias, scale=0.5)
        return cutlass_api.matmul(x, b) + fused + cutlass_api.matmul(x, b, out=torch.empty(2, 4, 6))

    traced = torch.jit.trace(function, torch.randn(2, 4, 8), check_trace=False)
    other = torch.randn(2, 4, 8)
    expected = 2 * (other @ b) + torch.relu((other @ b) * 0.5 + bias)
    torch.testing.assert_close(traced(other), expected)


def test_numpy():
    a, b = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
    result = cutlass_api.matmul(a, b)
    assert isinstance(result, np.ndarray) and (result == 4).all()


def test_autocast_leaves_arrays_of_others_alone():
    a, b = torch.ones(3, 4), np.ones((4, 5), np.float32)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ValueError, match="no kernel computes bfloat16 @ float32"),
    ):
        cutlass_api.matmul(a, b)


def test_what_does_not_fit_is_named():
    a = torch.ones(3, 4)
    with pytest.raises(ValueError, match="dimension K differs"):
        cutlass_api.matmul(a, a)
    with pytest.raises(ValueError, match="A must have rank 1 or more"):
        cutlass_api.matmul(a[0, 0], a)
    with pytest.raises(TypeError, match=r"^A is a list"):
        cutlass_api.matmul([[1.0]], a)
    with pytest.raises(TypeError, match=r"^B is a list"):
        cutlass_api.matmul(a, [1])
    with pytest.raises(TypeError, match=r"^accumulator_type: 'foo' does not name"):
        cutlass_api.matmul(a, a.mT, accumulator_type="foo")
    with FakeTensorMode():
        described = torch.empty(4, 3)
    with pytest.raises(AssertionError, match=r"cutlass_api.mm.default\(tensor.*FakeTensor"):
        cutlass_api.matmul(a, described, out=torch.empty(3, 3))
    with pytest.raises(ValueError, match="no kernel computes complex64"):
        cutlass_api.matmul(a.to(torch.complex64), a.mT.to(torch.complex64))


@pytest.mark.parametrize("first", [0, 4])
def test_freed_storage_is_refused(first):
    # Sharded training frees parameters this way. A view with a storage offset then has an address
    # near 0.
    whole = torch.ones(8, 4)
    a, out = whole[first : first + 4], torch.zeros(4, 4)
    args = cutlass_api.arguments.GemmArguments(a, torch.eye(4), out, torch.float32)
    kernel = cutlass_api.get_kernels(args)[0]
    kernel.run(args)
    whole.untyped_storage().resize_(0)
    for call in (lambda: cutlass_api.matmul(a, torch.eye(4), out=out), lambda: kernel.run(args)):
        with pytest.raises(ValueError, match=r"^A has a null data pointer"):
            call()
