"""Gradients of `cutlass_api.nn.Experts` whose activation the epilogues compute, on a GPU."""

import cutlass_api
import pytest
import torch
from cutlass_api.nn import Experts
from cutlass_api.ops import OPS, _epilogues
from support import gated_mlp

pytestmark = pytest.mark.gpu

EXPERTS, HIDDEN, INNER, TOKENS, TOP_K = 8, 256, 192, 300, 2
KINDS = [("silu", False, True), ("silu", True, False), ("gelu", True, True)]
kinds = pytest.mark.parametrize("activation, interleaved, has_bias", KINDS)


@pytest.fixture
def on_hopper():
    if cutlass_api.utils.device_cc() // 10 != 9:
        pytest.skip("sm90 is for Hopper")


@pytest.mark.usefixtures("on_hopper")
@pytest.mark.parametrize("case", gated_mlp.CASES, ids=str)
def test_every_kernel(case):
    assert gated_mlp.check(case) >= 8


def made(activation, interleaved, has_bias, dtype=torch.bfloat16):
    """A layer, and its inputs: expert 1 has no slot, and some slots are of no expert."""
    generator = torch.Generator().manual_seed(0)

    def randn(*extents):
        return torch.randn(extents, generator=generator)

    tensors = [randn(EXPERTS, 2 * INNER, HIDDEN) / 16, randn(EXPERTS, HIDDEN, INNER) / 14]
    tensors += [randn(EXPERTS, 2 * INNER), randn(EXPERTS, HIDDEN)] if has_bias else []
    layer = Experts(
        *(each.to(dtype) for each in tensors), activation=activation, interleaved=interleaved
    ).cuda()
    scores = torch.rand(TOKENS, EXPERTS + 1, generator=generator)
    scores[:, 1] = -1
    weights, index = scores.topk(TOP_K)
    hidden = randn(TOKENS, HIDDEN).to("cuda", dtype).requires_grad_()
    return layer, hidden, index.cuda(), weights.cuda().requires_grad_()


def outcome(layer, hidden, index, weights):
    out = layer(hidden, index, weights)
    of = [hidden, weights, *layer.parameters()]
    return [out.detach(), *torch.autograd.grad(out.double().sin().sum(), of)]


@kinds
def test_errors(activation, interleaved, has_bias, monkeypatch):
    """Beside float64, and not above those of an activation that torch computes."""
    layer, hidden, index, weights = made(activation, interleaved, has_bias)
    found, again = (outcome(layer, hidden, index, weights) for _ in range(2))
    assert all(map(torch.equal, found, again))
    monkeypatch.setattr(_epilogues, "GATE_DERIVATIVES", {})
    theirs = outcome(layer, hidden, index, weights)
    double = [each.detach().double().requires_grad_() for each in (hidden, weights)]
    exact = outcome(layer.double(), double[0], index, double[1])
    for ours, other, wanted in zip(found, theirs, exact, strict=True):
        error, their_error = ((x.double() - wanted).norm() / wanted.norm() for x in (ours, other))
        assert error < 0.01 and error < 1.1 * their_error + 1e-4


@kinds
def test_a_step_in_a_graph_that_routes_otherwise(activation, interleaved, has_bias):
    layer, hidden, index, weights = made(activation, interleaved, has_bias)
    outcome(layer, hidden, index, weights)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = outcome(layer, hidden, index, weights)
    for _ in range(2):
        index.copy_(index.flip(0))
        graph.replay()
        assert all(map(torch.equal, captured, outcome(layer, hidden, index, weights)))


@kinds
def test_compiled(activation, interleaved, has_bias):
    layer, hidden, index, weights = made(activation, interleaved, has_bias)
    wanted = outcome(layer, hidden, index, weights)
    compiled = torch.compile(layer, fullgraph=True)
    out = compiled(hidden, index, weights)
    of = [hidden, weights, *layer.parameters()]
    found = [out, *torch.autograd.grad(out.double().sin().sum(), of)]
    for each, other in zip(found, wanted, strict=True):
        assert (each.double() - other.double()).norm() < 0.01 * other.double().norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_types(dtype):
    """Of which no kernel takes gate and up at once."""
    layer, hidden, index, weights = made("silu", True, True, dtype)
    found = outcome(layer, hidden, index, weights)
    cpu = [each.detach().cpu() for each in (hidden, index, weights)]
    cpu = [each.requires_grad_() if each.is_floating_point() else each for each in cpu]
    for each, wanted in zip(found, outcome(layer.cpu(), *cpu), strict=True):
        torch.testing.assert_close(each.cpu(), wanted, rtol=1e-3, atol=1e-3)


def test_no_rows():
    layer, hidden, index, weights = made("silu", False, True)
    found = outcome(layer, hidden, torch.full_like(index, EXPERTS), weights)
    assert not any(each.any() for each in found)
    up, down = layer.gate_up_proj.mT, layer.down_proj.mT
    ends = torch.zeros(EXPERTS, dtype=torch.int32, device="cuda")
    out, sums = OPS.grouped_gated_mlp(hidden[:0], up, down, ends)
    assert out.shape == (0, HIDDEN) and sums.shape == (0, 2 * INNER)
