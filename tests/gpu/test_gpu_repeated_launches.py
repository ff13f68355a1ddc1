"""Repeated launches that are promoted to CUDA graphs, on a GPU."""

import gc
import threading

import cutlass_api
import pytest
import torch
from cutlass_api import _core
from cutlass_api.arguments import GemmArguments
from support.gpu_helpers import SLEEP_CYCLES, Gemm

pytestmark = pytest.mark.gpu

#: More runs than the promotion of a short launch needs.
SETTLED = 40


def repeated(gemm: Gemm, stream: int | None, times: int = SETTLED) -> None:
    for _ in range(times):
        gemm.kernel.run(gemm.args, gemm.artifact, stream=stream, assume_supported_args=True)


def with_new_arguments(gemm: Gemm, stream: int, a: torch.Tensor) -> None:
    """Runs arguments like generated code."""
    args = GemmArguments(a, gemm.b, gemm.out, accumulator_type=torch.float32)
    gemm.kernel.run(args, gemm.artifact, stream=stream, assume_supported_args=True)


@pytest.mark.parametrize("default", [False, True], ids=["made", "default"])
def test_what_is_launched_again_and_again_keeps_its_place_on_the_stream(default: bool) -> None:
    gemm, stream = Gemm(), torch.cuda.default_stream() if default else torch.cuda.Stream()
    seen, before = [], _core.launch_graphs()
    with torch.cuda.stream(stream):
        for step in range(2 * SETTLED):
            if step % SETTLED == SETTLED - 1:
                torch.cuda._sleep(SLEEP_CYCLES)  # so that all that follows waits in the queue
            gemm.a.fill_(step)
            repeated(gemm, stream.cuda_stream, 1)
            seen.append(gemm.out[0, 0].clone())
            gemm.out.fill_(torch.nan)
        repeated(gemm, None, 1)
    torch.cuda.synchronize()
    assert _core.launch_graphs() > before
    assert [int(value) for value in seen] == [step * gemm.k for step in range(2 * SETTLED)]
    assert gemm.shows(2 * SETTLED - 1)


def test_memory_that_moves_is_followed_by_launches_that_were_repeated() -> None:
    gemm = Gemm()
    stream = torch.cuda.current_stream().cuda_stream
    kept = []
    for value in (2, 3, 4):
        repeated(gemm, stream)
        kept.append(gemm.a.data)
        gemm.a.data = torch.full_like(gemm.a, value)
        gemm.out.fill_(torch.nan)
        repeated(gemm, stream, 1)
        assert gemm.shows(value)
    for step, a in enumerate([*kept, gemm.a.data] * SETTLED):
        a.fill_(step % 32)
        with_new_arguments(gemm, stream, a)
        if step % 16 == 0:
            assert gemm.shows(step % 32)


@pytest.mark.parametrize(
    "ending",
    [
        "_64x64x64_cooperative1_12stages_cluster1x4",
        "_cluster2x1_swapped",
        "_48x64x64_cooperative1_12stages_cluster2x4_swapped",
    ],
)
def test_clusters_stay_clusters(ending: str) -> None:
    """A graph keeps the cluster shape as an attribute of its node. Clusters along N and along M, of
    short programs. A's address changes; in the last case A has two tensor maps, for slices of 8 and
    16 rows.
    """
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("clusters are Hopper's")
    tensors = [torch.randn(256, 64, device="cuda", dtype=torch.float16) for _ in range(4)]
    b, out = (
        torch.randn(64, 256, device="cuda", dtype=torch.float16),
        torch.empty(256, 256, device="cuda").half(),
    )
    args = GemmArguments(tensors[0], b, out, accumulator_type=torch.float32)
    kernel = next(
        k for k in cutlass_api.get_kernels(args) if k.metadata.kernel_name.endswith(ending)
    )
    artifact, stream = kernel.compile(args), torch.cuda.current_stream().cuda_stream
    before = _core.launch_graphs()
    for step in range(2 * SETTLED):
        a = tensors[0] if step < SETTLED else tensors[step % 4]
        out.fill_(torch.nan)
        again = GemmArguments(a, b, out, accumulator_type=torch.float32)
        kernel.run(again, artifact, stream=stream, assume_supported_args=True)
        torch.testing.assert_close(out, a @ b, rtol=1e-2, atol=1e-2)
    assert _core.launch_graphs() > before


def test_repeated_launches_are_captured_and_leave_captures_alone() -> None:
    """The strictest capture mode forbids creating, updating and freeing graphs."""
    captured, beside, freed, moved = Gemm(), Gemm(), Gemm(), Gemm()
    stream, other = torch.cuda.Stream(), torch.cuda.Stream()
    before = _core.launch_graphs()
    repeated(captured, stream.cuda_stream)
    repeated(freed, other.cuda_stream)
    elsewhere = torch.full_like(moved.a, 7)
    for _ in range(SETTLED):
        with_new_arguments(moved, other.cuda_stream, moved.a)
    assert _core.launch_graphs() == before + 3
    torch.cuda.synchronize()
    captured.out.fill_(torch.nan)
    beside.out.fill_(torch.nan)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
        repeated(captured, stream.cuda_stream)
        repeated(beside, other.cuda_stream)
        with_new_arguments(moved, other.cuda_stream, elsewhere)
        assert _core.launch_graphs() == before + 4
        del freed
        gc.collect()
        assert _core.launch_graphs() == before + 3
        repeated(captured, stream.cuda_stream, 1)
    assert beside.shows(1) and moved.shows(7)
    assert captured.out.isnan().all(), "launched, not captured"
    captured.a.fill_(5)
    graph.replay()
    assert captured.shows(5)
    captured.a.fill_(6)
    repeated(captured, stream.cuda_stream, 1)
    assert captured.shows(6)


def test_threads_repeat_one_launch_on_streams_of_their_own() -> None:
    gemm = Gemm()
    streams = [torch.cuda.Stream() for _ in range(4)]
    failures: list[BaseException] = []

    def work(stream: torch.cuda.Stream) -> None:
        # A new thread has no current context.
        try:
            repeated(gemm, stream.cuda_stream, 10 * SETTLED)
            for _ in range(10 * SETTLED):
                with_new_arguments(gemm, stream.cuda_stream, gemm.a)
        except BaseException as error:
            failures.append(error)

    for value in (1, 2):
        gemm.a.fill_(value)
        gemm.out.fill_(torch.nan)
        torch.cuda.synchronize()
        threads = [threading.Thread(target=work, args=(stream,)) for stream in streams * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures
        assert gemm.shows(value)
