"""What the host spends around one small GEMM, beside torch and, where installed, Triton, CuPy, ``cutlass.operators``.

The protocol: ten launches, a wait, then 100 launches on the clock; 30 such rounds, in which the methods take turns; the
median. The native floor is the same launch in a loop of Rust around the driver's ``cuLaunchKernelEx``, and takes a turn
before each other.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import cutlass_api
from cutlass_api import _core
from cutlass_api.bench.report import Row

#: Calls before the clock starts, in each turn: what others left in the caches is not this method's time.
WARMUP = 10
LAUNCHES = 100
ROUNDS = 30
GRAPH_LAUNCHES = 20
EXTENT = 128


@dataclass(frozen=True)
class Method:
    """What takes its turn: ``turn`` spends it and returns the seconds of one call."""

    name: str
    turn: Callable[[], float]
    note: str = ""


def calls(name: str, call: Callable[[], Any], note: str = "") -> Method:
    """A method whose turn is a loop of calls."""

    import torch

    def turn() -> float:
        for _ in range(WARMUP):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            call()
        return (time.perf_counter() - start) / LAUNCHES

    return Method(name, turn, note)


def in_turns(methods: list[Method], floor: Callable[[], float]) -> list[Row]:
    """Host time of one call of each method: medians over rounds, the GPU idle at the start of each turn.

    Before each turn the floor has one of its own, and the ratio is the median of turn over floor: a machine that is
    slow for a while does not change it.
    """
    import torch

    def turn(spend: Callable[[], float]) -> float:
        torch.cuda.synchronize()
        return spend()

    times: list[list[float]] = [[] for _ in methods]
    ratios: list[list[float]] = [[] for _ in methods]
    for round_ in range(-2, ROUNDS):  # two rounds warm up
        for at, method in enumerate(methods):
            least = turn(floor)
            seconds = turn(method.turn)
            if round_ >= 0:
                times[at].append(1e6 * seconds)
                ratios[at].append(seconds / least)
    torch.cuda.synchronize()
    return [
        Row(method.name, statistics.median(time), statistics.median(ratio), method.note)
        for method, time, ratio in zip(methods, times, ratios, strict=True)
    ]


def measure() -> list[Row]:
    """All rows, in the order to print; the native floor is the first. Needs torch and a GPU."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        a, b, out = (torch.randn(EXTENT, EXTENT, device="cuda", dtype=torch.float16) for _ in range(3))
        args = cutlass_api.arguments.GemmArguments(a, b, out, accumulator_type=torch.float32)
        kernel = cutlass_api.get_kernels(args)[0]
        artifact = kernel.compile(args)
        handle = stream.cuda_stream

        def floor() -> float:
            _core.native_floor(args, artifact, handle, WARMUP, 1)
            return _core.native_floor(args, artifact, handle, LAUNCHES, 1)

        methods = [
            Method("native floor: cuLaunchKernelEx in a loop", floor, kernel.metadata.kernel_name),
            *_ours(a, b, out, args, kernel, artifact, handle),
            *_peers(a, b, out),
        ]
        methods += _graphs(lambda: kernel.run(args, artifact), lambda: torch.mm(a, b, out=out))
        return in_turns(methods, floor)


def _ours(a: Any, b: Any, out: Any, args: Any, kernel: Any, artifact: Any, handle: int) -> Iterator[Method]:
    import torch

    make = cutlass_api.arguments.GemmArguments
    float32 = torch.float32
    prepared = kernel.bind(args, artifact, handle)
    options = cutlass_api.config.GlobalOptions()

    def as_generated() -> None:
        arguments = make(a, b, out, accumulator_type=float32)
        kernel.run(arguments, artifact, stream=handle, workspace=None, assume_supported_args=True)

    def by_protocol(method: Method) -> Method:
        def turn() -> float:
            options.use_tvm_ffi = False
            try:
                return method.turn()
            finally:
                options.use_tvm_ffi = True

        return Method(f"{method.name}, use_tvm_ffi = False", turn, method.note)

    assumed = calls("run, assumed", lambda: kernel.run(args, artifact, stream=handle, assume_supported_args=True))
    arguments = calls("GemmArguments(...)", lambda: make(a, b, out, accumulator_type=float32))
    yield calls("empty Python call", lambda: None)
    yield Method("run, assume_supported_args, stream given", assumed.turn)
    yield calls("run, checks, stream given", lambda: kernel.run(args, artifact, stream=handle))
    yield calls("run, checks, current stream", lambda: kernel.run(args, artifact))
    yield arguments
    yield calls("arguments and run, as generated code", as_generated)
    yield calls("bound launch()", prepared)
    yield calls("bound launch(A=...)", lambda: prepared(A=a))
    yield calls("get_kernels(args)", lambda: cutlass_api.get_kernels(args))
    yield calls("cutlass_api.matmul(a, b, out=c)", lambda: cutlass_api.matmul(a, b, out=out))
    yield calls("cutlass_api.matmul(a, b)", lambda: cutlass_api.matmul(a, b))
    yield calls("torch.mm(a, b, out=c)", lambda: torch.mm(a, b, out=out))
    yield calls("a @ b", lambda: a @ b, "torch")
    yield by_protocol(arguments)
    yield by_protocol(assumed)


def _graphs(ours: Callable[[], Any], theirs: Callable[[], Any]) -> Iterator[Method]:
    """A CUDA graph of some launches, replayed and waited for."""
    import torch

    for name, launch in (("CUDA graph of", ours), ("CUDA graph of torch.mm,", theirs)):
        launch()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(GRAPH_LAUNCHES):
                launch()

        def replay(graph: Any = graph) -> None:
            graph.replay()
            torch.cuda.synchronize()

        yield calls(f"{name} {GRAPH_LAUNCHES} launches, replayed and waited for", replay)


def _peers(a: Any, b: Any, out: Any) -> Iterator[Method]:
    """What others spend on one launch, where they are installed."""
    import torch

    if find_spec("triton") is not None:
        from cutlass_api.bench import triton_kernel

        launch = triton_kernel.launch
        yield calls("Triton kernel[grid](three tensors)", lambda: launch(a, b, out), "adds 128 elements")
    if find_spec("cupy") is not None:
        import cupy

        empty = cupy.RawKernel('extern "C" __global__ void empty(void*, void*, void*) {}', "empty")
        pointers = (a.data_ptr(), b.data_ptr(), out.data_ptr())
        yield calls("CuPy RawKernel, pointers prepared", lambda: empty((1,), (32,), pointers), "empty kernel")
    try:
        import cutlass.operators as operators
    except ImportError:
        return
    theirs = operators.GemmArguments(a, b, out, accumulator_type=torch.float32)
    operator = operators.get_operators(theirs)[0]
    compiled = operator.compile(theirs)
    stream = torch.cuda.current_stream()
    yield calls(
        "cutlass.operators run, assume_supported_args",
        lambda: operator.run(theirs, compiled, stream=stream, assume_supported_args=True),
    )


__all__ = ["Method", "calls", "in_turns", "measure"]
