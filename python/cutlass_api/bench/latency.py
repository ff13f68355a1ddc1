"""What the host spends around one small GEMM, beside torch and, where installed, Triton, CuPy, ``cutlass.operators``.

The protocol: enqueue 100 launches, take the time, wait for the GPU; the median of 30 such rounds, divided by 100. The
native floor is the same launch in a loop of Rust around the driver's ``cuLaunchKernelEx``, in the same process.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import cutlass_api
from cutlass_api import _core
from cutlass_api.bench.report import Row

LAUNCHES = 100
ROUNDS = 30
GRAPH_LAUNCHES = 20
EXTENT = 128


def microseconds(call: Callable[[], Any], launches: int = LAUNCHES, rounds: int = ROUNDS) -> float:
    """Host microseconds of one call: the median over rounds, the GPU idle at the start of each."""
    import torch

    for _ in range(10):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(launches):
            call()
        times.append((time.perf_counter() - start) / launches)
        torch.cuda.synchronize()
    return 1e6 * statistics.median(times)


def measure() -> list[Row]:
    """All rows, in the order to print. Needs torch and a GPU."""
    import torch

    found: list[tuple[str, float, str]] = []
    operand = lambda: torch.randn(EXTENT, EXTENT, device="cuda", dtype=torch.float16)  # noqa: E731
    a, b, out = operand(), operand(), operand()
    make = cutlass_api.arguments.GemmArguments
    args = make(a, b, out, accumulator_type=torch.float32)
    kernel = cutlass_api.get_kernels(args)[0]
    artifact = kernel.compile(args)
    stream = torch.cuda.Stream()
    handle = stream.cuda_stream
    torch.cuda.set_stream(stream)

    floor = 1e6 * _core.native_floor(args, artifact, handle, LAUNCHES, ROUNDS)
    found.append(("empty Python call", microseconds(lambda: None), ""))
    found.append(("native floor: cuLaunchKernelEx in a loop", floor, kernel.metadata.kernel_name))
    found.append(
        (
            "run, assume_supported_args, stream given",
            microseconds(lambda: kernel.run(args, artifact, stream=handle, assume_supported_args=True)),
            "",
        )
    )
    found.append(("run, checks, stream given", microseconds(lambda: kernel.run(args, artifact, stream=handle)), ""))
    found.append(
        (
            "run, assume_supported_args, current stream",
            microseconds(lambda: kernel.run(args, artifact, assume_supported_args=True)),
            "",
        )
    )
    found.append(("GemmArguments(...)", microseconds(lambda: make(a, b, out, accumulator_type=torch.float32)), ""))

    def as_generated() -> None:
        arguments = make(a, b, out, accumulator_type=torch.float32)
        kernel.run(arguments, artifact, stream=handle, workspace=None, assume_supported_args=True)

    found.append(("arguments and run, as generated code", microseconds(as_generated), ""))
    prepared = kernel.bind(args, artifact, handle)
    found.append(("bound launch()", microseconds(prepared), ""))
    found.append(("bound launch(A=...)", microseconds(lambda: prepared(A=a)), ""))
    found.append(("get_kernels(args)", microseconds(lambda: cutlass_api.get_kernels(args)), ""))
    found.append(("cutlass_api.matmul(a, b, out=c)", microseconds(lambda: cutlass_api.matmul(a, b, out=out)), ""))
    found.append(("cutlass_api.matmul(a, b)", microseconds(lambda: cutlass_api.matmul(a, b)), ""))
    found.append(("torch.mm(a, b, out=c)", microseconds(lambda: torch.mm(a, b, out=out)), ""))
    found.append(("a @ b", microseconds(lambda: a @ b), "torch"))

    options = cutlass_api.config.GlobalOptions()
    options.use_tvm_ffi = False
    found.append(("GemmArguments(...), use_tvm_ffi = False", microseconds(lambda: make(a, b, out, torch.float32)), ""))
    found.append(
        (
            "run, assume_supported_args, use_tvm_ffi = False",
            microseconds(lambda: kernel.run(args, artifact, stream=handle, assume_supported_args=True)),
            "",
        )
    )
    options.use_tvm_ffi = True
    found.extend(
        _graphs(lambda: kernel.run(args, artifact, assume_supported_args=True), lambda: torch.mm(a, b, out=out))
    )
    found.extend(_peers(a, b, out))
    torch.cuda.set_stream(torch.cuda.default_stream())
    return [Row(name, us, us / floor if us == us else math.nan, note) for name, us, note in found]


def _graphs(ours: Callable[[], Any], theirs: Callable[[], Any]) -> Iterator[tuple[str, float, str]]:
    """A CUDA graph of some launches, replayed and waited for: ours and torch's in turns, medians."""
    import torch

    graphs = []
    for launch in (ours, theirs):
        launch()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(GRAPH_LAUNCHES):
                launch()
        graphs.append(graph)
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS * 10):
        for graph, into in zip(graphs, times, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            into.append(time.perf_counter() - start)
    names = (f"CUDA graph of {GRAPH_LAUNCHES}, replayed and waited for", "... the same of torch.mm")
    for name, into in zip(names, times, strict=True):
        yield name, 1e6 * statistics.median(into[10:]), ""


def _peers(a: Any, b: Any, out: Any) -> Iterator[tuple[str, float, str]]:
    """What others spend on one launch, where they are installed."""
    import torch

    if find_spec("triton") is not None:
        from cutlass_api.bench import triton_kernel

        yield (
            "Triton kernel[grid](three tensors)",
            microseconds(lambda: triton_kernel.launch(a, b, out)),
            "copies one tile",
        )
    if find_spec("cupy") is not None:
        import cupy

        empty = cupy.RawKernel('extern "C" __global__ void empty(void*, void*, void*) {}', "empty")
        pointers = (a.data_ptr(), b.data_ptr(), out.data_ptr())
        with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
            yield (
                "CuPy RawKernel, pointers prepared",
                microseconds(lambda: empty((1,), (32,), pointers)),
                "empty kernel",
            )
    try:
        import cutlass.operators as operators
    except ImportError:
        operators = None
    if operators is not None:
        theirs = operators.GemmArguments(a, b, out, accumulator_type=torch.float32)
        operator = operators.get_operators(theirs)[0]
        compiled = operator.compile(theirs)
        handle = torch.cuda.current_stream()
        yield (
            "cutlass.operators run, assume_supported_args",
            microseconds(lambda: operator.run(theirs, compiled, stream=handle, assume_supported_args=True)),
            "",
        )


__all__ = ["measure", "microseconds"]
