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


def biases_of(weights):
    return [torch.randn(len(weight), device="cuda").to(weight.dtype) for weight in weights]


def check(outs, x, weights, biases=None):
    for out, weight, bias in zip(outs, weights, biases or [0] * len(weights), strict=True):
        expected = x.double() @ weight.double().t() + bias
        error = (out.double() - expected).norm() / expected.norm()
        assert error < 2 * torch.finfo(out.dtype).eps


@pytest.mark.parametrize("rows", [1, 8, 16, 64, 512])
@pytest.mark.parametrize("columns", [(4096, 1024, 1024), (256, 256), (40, 40), (64, 96, 32, 5)])
def test_linears(rows, columns):
    """Also of columns that no tile divides, and of other tensors at each call."""
    for has_biases in (False, True, True, False):
        x, weights = operands(rows, 1024, *columns)
        biases = biases_of(weights) if has_biases else None
        check(cutlass_api.linears(x, weights, biases), x, weights, biases)


def test_a_captured_launch():
    x, weights = operands(8, 1024, 512, 256)
    biases = biases_of(weights)
    cutlass_api.linears(x, weights, biases)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = cutlass_api.linears(x, weights, biases)
    for each in (x, *biases):
        each.copy_(torch.randn_like(each))
    graph.replay()
    check(outs, x, weights, biases)


@pytest.mark.parametrize("has_biases", [False, True])
@pytest.mark.parametrize("rows", [8, 64])
def test_compiled(rows, has_biases):
    """Right whatever is the fastest."""

    def attention(x, weights, biases):
        layers = map(F.linear, [x] * 3, weights, biases or [None] * 3)
        q, k, v = (F.rms_norm(layer.float(), (64,)) for layer in layers)
        return F.softmax(q @ k.mT, -1) @ v

    x, weights = operands(rows, 2048, 64, 64, 64)
    biases = biases_of(weights) if has_biases else []
    torch._dynamo.reset()
    settings = {"max_autotune": True, "force_disable_caches": True}
    with cutlass_api.inductor.enabled(), config.patch(**settings), torch.no_grad():
        out = torch.compile(attention)(x, weights, biases)
    expected = attention(x.double(), *([each.double() for each in of] for of in (weights, biases)))
    assert (out.double() - expected).norm() / expected.norm() < 0.05
