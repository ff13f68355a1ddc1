"""Launches of fused epilogues on a GPU: graphs, in-place outputs."""

import cutlass_api
import pytest
import torch
from support.epilogue_trials import F64, gemm_operands
from support.epilogues import assert_close, fused, linear

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("form", ["run", "bind", "restored"])
def test_a_graph_replay_sees_updates_of_tensors(form):
    a, b, c, out = gemm_operands()
    alpha = torch.full((), 2.0, device="cuda")
    beta = torch.ones(1, 1, device="cuda", dtype=F64)
    args = fused(a, b, out, linear, C=c, alpha=alpha, beta=beta)
    kernel = cutlass_api.get_kernels(args)[0]
    artifact = kernel.compile(args)
    if form == "restored":
        artifact = cutlass_api.artifact.CompiledArtifact.from_bytes(artifact.to_bytes())
        assert artifact.kernel_obj is kernel
    launch = kernel.bind(args, artifact)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch() if form == "bind" else kernel.run(args, artifact)
    for value in (2.0, -1.0):
        alpha.fill_(value)
        beta.fill_(value + 1)
        c.add_(1)
        graph.replay()
        assert_close(out, value * (a.double() @ b.double()) + (value + 1) * c.double())


def test_in_place_and_on_another_stream():
    a, b, c, _ = gemm_operands()
    before = c.clone()
    args = fused(a, b, c, linear, C=c, alpha=1.0, beta=2.0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    for kernel in cutlass_api.get_kernels(args)[::7]:
        torch.cuda.synchronize()
        c.copy_(before)
        torch.cuda.synchronize()
        kernel.run(args, stream=stream)
        stream.synchronize()
        assert_close(c, a.double() @ b.double() + 2 * before.double(), repr(kernel))
