"""Kernels that split K, against torch in float64."""

import cutlass_api
import pytest
import torch
from cutlass_api import cuda_kernel
from cutlass_api.arguments import GemmArguments
from support import memory
from support.gemms import ALL_TYPES, GROUPS, make_problem
from support.gpu_helpers import fail_with
from support.helpers import served
from support.memory import Form, Output
from support.problems import check
from support.properties import Types, float32_precision, layouts_of, over_grid, rounds_to_tf32

pytestmark = pytest.mark.gpu


def split_kernels(types: Types) -> list[cutlass_api.Kernel]:
    """The kernels that split K."""
    kernels = GROUPS.get(("sm90", types), [])
    return [
        kernel
        for kernel in kernels
        if kernel.metadata.design.split > 1 and not any(kernel.metadata.design.packed)
    ]


@pytest.mark.parametrize("types", [types for types in ALL_TYPES if split_kernels(types)], ids=str)
def test_k_in_parts(types: Types, artifacts) -> None:
    """K of zero blocks, fewer than the splits, as many, and a number that the splits do not divide;
    over the grid, the fewest splits, enough for five, and the maximum. The results are
    deterministic, and as exact as torch's, which splits K too.
    """
    kernels, failures = split_kernels(types), []
    block = 128 // types.a.itemsize
    cases = [(0, ()), (1, ()), (3 * block, ()), (8 * block, (2,)), (19 * block + 8, ())]
    deep = [(32 * block, (2,)), (43 * block, ()), (170 * block + 16, ())]
    for k, batch in [*cases, *deep]:
        for kernel, artifact in zip(kernels, artifacts.of(kernels), strict=True):
            if (k, batch) in cases and kernel.metadata.design.over_grid:
                continue
            tf32 = rounds_to_tf32(kernel)
            for layout in layouts_of(kernel):
                forms = [Form(order, multiple=16) for order in layout]
                shape = (*batch, *served(kernel, 133, 70, k))
                with float32_precision("high" if tf32 else "highest"):
                    problem = make_problem(types, shape, *forms[:2], tf32)
                    failure = check(kernel, artifact, problem, forms[2], f"{shape} {layout}")
                    outs = [Output(problem.shape, types.out, forms[2]).tensor for _ in range(2)]
                    for out in outs:
                        args = GemmArguments(
                            problem.a, problem.b, out, accumulator_type=types.accumulator
                        )
                        kernel.run(args, artifact)
                if not failure and not torch.equal(*outs):
                    failure = f"{kernel.metadata.kernel_name} {shape} {layout}: not the same bits"
                failures += [failure] if failure else []
    fail_with(failures)


def deep_gemm(m: int, n: int, k: int) -> tuple[GemmArguments, torch.Tensor, torch.Tensor]:
    """A product, its output, and the expected result."""
    half = {"dtype": torch.float16, "device": memory.DEVICE}
    a, b, out = (
        torch.randn(m, k, **half),
        torch.randn(k, n, **half),
        torch.full((m, n), torch.nan, **half),
    )
    return GemmArguments(a, b, out, torch.float32), out, a.double() @ b.double()


def is_near(out: torch.Tensor, expected: torch.Tensor) -> bool:
    return bool((out.double() - expected).norm() < 1e-3 * expected.norm())


def test_workspace_of_parts_may_hold_anything() -> None:
    """Workspace with noise, or left over from another or the same problem; also in a graph."""
    if cutlass_api.utils.device_cc() // 10 != 9:
        pytest.skip("sm90 is for Hopper")
    problems = [
        deep_gemm(*shape)
        for shape in [(130, 72, 9000), (130, 72, 3008), (380, 392, 6000), (64, 64, 20000)]
    ]
    workspace = torch.empty(16 << 20, dtype=torch.uint8, device=memory.DEVICE)
    fills = [
        lambda: workspace.random_(0, 256),
        lambda: workspace.fill_(255),
        lambda: None,
        workspace.zero_,
    ]

    def run_all(kernel: cutlass_api.Kernel, artifact: object) -> None:
        for args, _, _ in problems:
            kernel.run(args, artifact, workspace=workspace, assume_supported_args=True)

    def compare(kernel: cutlass_api.Kernel, first: dict[int, torch.Tensor]) -> None:
        for at, (_, out, expected) in enumerate(problems):
            assert is_near(out, expected), kernel.metadata.kernel_name
            assert torch.equal(out, first.setdefault(at, out.clone())), kernel.metadata.kernel_name
            out.fill_(torch.nan)

    kernels = over_grid(problems[0][0])
    assert len(kernels) > 3
    for kernel in kernels:
        assert max(kernel.get_workspace_size(args) for args, _, _ in problems) <= workspace.numel()
        artifact, first = kernel.compile(problems[0][0]), {}
        for fill in fills:
            fill()
            run_all(kernel, artifact)
            compare(kernel, first)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            run_all(kernel, artifact)
        for _ in range(3):
            graph.replay()
            torch.cuda.synchronize()
            compare(kernel, first)


def test_parts_do_not_wait_for_what_cannot_run() -> None:
    """While another kernel occupies most of the chip, a tile's CTAs run one by one; none may wait
    for the rest.
    """
    if cutlass_api.utils.device_cc() // 10 != 9:
        pytest.skip("sm90 is for Hopper")
    source = """
    __global__ void occupy(long long* end, long long nanoseconds) {
      long long start, now;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
      do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
      *end = now;
    }
    """
    multiprocessors = torch.cuda.get_device_properties(memory.DEVICE).multi_processor_count
    # Each of its CTAs occupies a whole multiprocessor; 24 multiprocessors stay free.
    occupy = cuda_kernel(
        source, "occupy", grid=multiprocessors - 24, block=32, shared_bytes=200 << 10
    )
    args, out, expected = deep_gemm(256, 512, 32768)
    busy, ours = torch.cuda.Stream(), torch.cuda.Stream()
    end = torch.zeros(1, dtype=torch.int64, device=memory.DEVICE)
    occupy(end, 0, stream=busy)
    for kernel in over_grid(args):
        design = kernel.metadata.design
        if design.cluster_shape[0] * design.cluster_shape[1] > 2:
            continue  # which may find no room before the end
        artifact = kernel.compile(args)
        workspace = torch.empty(
            kernel.get_workspace_size(args), dtype=torch.uint8, device=memory.DEVICE
        )
        out.fill_(torch.nan)
        torch.cuda.synchronize()
        occupy(end, 50_000_000, stream=busy)
        kernel.run(args, artifact, stream=ours, workspace=workspace)
        ours.synchronize()
        assert not busy.query(), f"{kernel.metadata.kernel_name} waited"
        assert is_near(out, expected), kernel.metadata.kernel_name
        torch.cuda.synchronize()
