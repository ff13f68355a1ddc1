"""`cutlass_api.matmul`: the behaviour that users of torch.matmul expect, on CPU and GPU."""

import cutlass_api
import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
devices = pytest.mark.parametrize("device", DEVICES)


def close(result, a, b):
    reference = a.double() @ b.double()
    assert result.shape == reference.shape
    error = (result.double() - reference).norm() / reference.norm()
    return error < {torch.float32: 1e-6, torch.float64: 1e-14}.get(result.dtype, 1e-2)


@devices
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((33, 65), (65, 17)),
        ((3, 33, 65), (3, 65, 17)),
        ((3, 33, 65), (65, 17)),
        ((33, 65), (3, 65, 17)),
        ((1, 33, 65), (3, 65, 17)),
    ],
)
def test_shapes(device, dtype, a_shape, b_shape):
    a, b = (torch.randn(shape, device=device).to(dtype) for shape in (a_shape, b_shape))
    for _ in range(2):  # the second call takes the remembered choice
        result = cutlass_api.matmul(a, b)
        assert result.dtype == dtype and result.device == a.device
        assert close(result, a, b)


@devices
def test_out_is_written_and_returned(device):
    a, b = torch.randn(64, 32, device=device), torch.randn(32, 48, device=device)
    out = torch.full((64, 48), torch.nan, device=device)
    assert cutlass_api.matmul(a, b, out=out) is out
    assert close(out, a, b)


@devices
def test_integers_and_other_dtypes(device):
    a = torch.randint(-100, 100, (16, 32), dtype=torch.int8, device=device)
    b = torch.randint(-100, 100, (32, 24), dtype=torch.int8, device=device)
    result = cutlass_api.matmul(a, b)
    assert result.dtype == torch.int32
    assert torch.equal(result.cpu(), a.cpu().int() @ b.cpu().int())
    half = torch.randn(16, 32, device=device).half()
    assert cutlass_api.matmul(half, half.mT, accumulator_type=torch.float16).dtype == torch.float16
    assert (
        cutlass_api.matmul(half.to(torch.float8_e4m3fn), half.to(torch.float8_e4m3fn).mT).dtype
        == torch.bfloat16
    )


@devices
def test_gradients_are_refused_and_not_dropped(device):
    a, b = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"B requires grad.*no_grad"):
        cutlass_api.matmul(a, b)
    with torch.no_grad():
        assert close(cutlass_api.matmul(a, b), a, b)
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


@pytest.mark.parametrize(
    "trace",
    [make_fx, lambda f: lambda x: torch.jit.trace(f, x, check_trace=False)],
    ids=["make_fx", "jit"],
)
@pytest.mark.parametrize("out", [None, torch.zeros(4, 6)], ids=["allocated", "given"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated:DeprecationWarning")
def test_traces_are_refused_and_not_left_without_the_product(trace, out):
    a, b = torch.randn(4, 8), torch.randn(8, 6)
    with pytest.raises(RuntimeError, match="torch records a trace"):
        trace(lambda x: cutlass_api.matmul(x, b, out=out))(a)
    with FlopCounterMode(display=False):  # which only watches
        assert close(cutlass_api.matmul(a, b, out=out), a, b)


@devices
def test_autograd_is_told_what_was_written(device):
    a, b = torch.randn(4, 8, device=device), torch.randn(8, 6, device=device)
    weight, saved = (
        torch.randn(4, 6, device=device, requires_grad=True),
        torch.zeros(4, 6, device=device),
    )
    loss = (weight * saved).sum()
    cutlass_api.matmul(a, b, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@devices
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_casts_as_torch_does(device, dtype):
    a, b = torch.randn(16, 32, device=device), torch.randn(32, 24, device=device)
    with torch.autocast(device, dtype=dtype):
        ours, theirs = cutlass_api.matmul(a, b), torch.mm(a, b)
        double = cutlass_api.matmul(a.double(), b.double())
    assert ours.dtype == theirs.dtype == dtype
    assert close(ours, a, b)
    assert double.dtype == torch.mm(a.double(), b.double()).dtype == torch.float64
    assert cutlass_api.matmul(a, b).dtype == torch.float32


@devices
def test_float32_is_not_rounded_to_tf32_unless_torch_allows_it(device):
    a, b = torch.randn(256, 256, device=device), torch.randn(256, 256, device=device)
    assert close(cutlass_api.matmul(a, b), a, b)


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
    with pytest.raises(ValueError, match="A must have rank 2 or 3"):
        cutlass_api.matmul(a[0], a)
    with pytest.raises(TypeError, match=r"^A is a list"):
        cutlass_api.matmul([[1.0]], a)
    with pytest.raises(TypeError, match=r"^B is a list"):
        cutlass_api.matmul(a, [1])
    with pytest.raises(TypeError, match=r"^accumulator_type: 'foo' does not name"):
        cutlass_api.matmul(a, a.mT, accumulator_type="foo")
    with FakeTensorMode():
        described = torch.empty(4, 3)
    with pytest.raises(ValueError, match=r"^B is a FakeTensor"):
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
