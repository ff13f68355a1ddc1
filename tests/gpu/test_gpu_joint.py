"""Several layers of one input in one launch, on a GPU: the operator, and compiled graphs."""

import cutlass_api
import cutlass_api.inductor
import pytest
import torch
import torch.nn.functional as F
from torch._inductor import config

pytestmark = pytest.mark.gpu


def operands(rows, k, *columns, dtype=torch.bfloat16):
    x = torch.randn(rows, k, device="cuda").to(dtype)
    return x, [(torch.randn(n, k, device="cuda") / k**0.5).to(dtype) for n in columns]


def check(outs, x, weights):
    for out, weight in zip(outs, weights, strict=True):
        expected = x.double() @ weight.double().t()
        error = (out.double() - expected).norm() / expected.norm()
        assert error < 2 * torch.finfo(out.dtype).eps


@pytest.mark.parametrize("rows", [1, 8, 16, 64, 512])
@pytest.mark.parametrize("columns", [(4096, 1024, 1024), (256, 256), (40, 40), (64, 96, 32, 5)])
def test_linears(rows, columns):
    """Also of columns that no tile divides, and of other tensors at each call."""
    for _ in range(3):
        x, weights = operands(rows, 1024, *columns)
        check(cutlass_api.linears(x, weights), x, weights)


def test_a_captured_launch():
    x, weights = operands(8, 1024, 512, 256)
    cutlass_api.linears(x, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = cutlass_api.linears(x, weights)
    x.copy_(torch.randn_like(x))
    graph.replay()
    check(outs, x, weights)


@pytest.mark.parametrize("rows", [8, 64])
def test_compiled(rows):
    """Right whatever is the fastest."""

    def attention(x, *weights):
        q, k, v = (F.rms_norm(F.linear(x, weight).float(), (64,)) for weight in weights)
        return F.softmax(q @ k.mT, -1) @ v

    x, weights = operands(rows, 2048, 64, 64, 64)
    torch._dynamo.reset()
    settings = {"max_autotune": True, "force_disable_caches": True}
    with cutlass_api.inductor.enabled(), config.patch(**settings), torch.no_grad():
        out = torch.compile(attention)(x, *weights)
    expected = attention(x.double(), *(weight.double() for weight in weights))
    assert (out.double() - expected).norm() / expected.norm() < 0.05
