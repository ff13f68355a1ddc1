"""Host time of one small GEMM, for Rutlass, torch and, if installed, Triton, CuPy and CUTLASS.

A turn of a method is 100 launches to warm up, a synchronization, and the same 100 launches timed,
each with operands of its own, as the layers of a model have them. Launches that become CUDA graphs
have done so before most turns. The methods take turns for 30 rounds; the result is the median. The
timed statement is inlined into a loop over the operands, as in user code. The native floor is the
same kernel, launched by a Rust loop around ``cuLaunchKernelEx``; it takes a turn before each turn
of a method.
"""

import statistics
import timeit
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import cutlass_api
from cutlass_api import _core
from cutlass_api.bench.report import Row
from cutlass_api.profiling import quartiles

#: Calls of a turn, each with a set of operands of its own. As many come before the timed ones, to
#: fill the CPU caches that other methods evicted.
LAUNCHES = 100
ROUNDS = 30
GRAPH_LAUNCHES = 20
EXTENT = 128
TITLE = f"Host time of one float16 GEMM, {EXTENT} cubed"
#: The title of the column of ratios.
RATIO = "x floor"
#: How the names of rows begin that time no code of ours.
THEIRS = (
    "native floor",
    "an empty statement",
    "torch.mm",
    "a @ b",
    "Triton",
    "CuPy",
    "cutlass.operators",
    "CUDA graph of torch.mm",
)
#: Rows of torch that do the same as a row of ours.
COUNTERPARTS = {
    "cutlass_api.matmul(a, b, out=c)": "torch.mm(a, b, out=c)",
    "cutlass_api.matmul(a, b)": "a @ b",
    f"CUDA graph of {GRAPH_LAUNCHES} launches, replayed and synchronized": (
        f"CUDA graph of torch.mm, {GRAPH_LAUNCHES} launches, replayed and synchronized"
    ),
}


@dataclass(frozen=True)
class Method:
    """A method to time. ``turn`` runs one turn and returns the seconds of one call."""

    name: str
    turn: Callable[[], float]
    note: str = ""


@dataclass(frozen=True)
class Operands:
    """What a statement uses of one set of operands: A, B, the output, their arguments, and a bound
    launch."""

    a: Any
    b: Any
    c: Any
    args: Any
    launch: Any


def calls(
    name: str,
    statement: str,
    names: dict[str, Any],
    note: str = "",
    sets: Sequence[Operands] = (),
) -> Method:
    """A method that times a Python statement, with ``names`` as its globals, and the fields of one
    of the sets of operands, each set in its turn."""

    import torch

    values = [(each.a, each.b, each.c, each.args, each.launch) for each in sets]
    loop = f"for a, b, c, args, launch in sets:\n    {statement}"

    if sets:
        timer, repeats = timeit.Timer(loop, globals=names | {"sets": values}), 1
    else:
        timer, repeats = timeit.Timer(statement, globals=names), LAUNCHES
    walk = partial(timer.timeit, repeats)

    def turn() -> float:
        walk()
        torch.cuda.synchronize()
        return walk() / LAUNCHES

    return Method(name, turn, note)


def in_turns(methods: list[Method], floor: Callable[[], float]) -> list[Row]:
    """Host time of one call of each method: medians over rounds. Each turn starts with an idle GPU.

    The floor takes a turn before each turn of a method, and the ratio is the median of the
    quotients, so that a host that is slow for a while does not change the ratio.
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
        Row(
            method.name,
            statistics.median(time),
            statistics.median(ratio),
            method.note,
            quartiles(ratio),
        )
        for method, time, ratio in zip(methods, times, ratios, strict=True)
    ]


def is_ours(name: str) -> bool:
    """Whether a row times code of ours."""
    return not name.startswith(THEIRS)


def measure() -> list[Row]:
    """Times all methods. The first row is the native floor. Needs torch and a GPU."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        handle = stream.cuda_stream
        tensors = torch.randn(LAUNCHES, 3, EXTENT, EXTENT, device="cuda", dtype=torch.float16)
        every_args = [
            cutlass_api.arguments.GemmArguments(a, b, out, accumulator_type=torch.float32)
            for a, b, out in tensors
        ]
        a, b, out = tensors[0]
        args = every_args[0]
        kernel = cutlass_api.get_kernels(args)[0]
        artifact = kernel.compile(args)
        sets = [
            Operands(a, b, c, each, kernel.bind(each, artifact, handle))
            for (a, b, c), each in zip(tensors, every_args, strict=True)
        ]

        def floor() -> float:
            _core.native_floor(args, artifact, handle, LAUNCHES, 1)
            return _core.native_floor(args, artifact, handle, LAUNCHES, 1)

        methods = [
            Method("native floor: cuLaunchKernelEx in a loop", floor, kernel.metadata.kernel_name),
            *_ours(sets, kernel, artifact, handle),
            *_peers(a, b, out),
        ]
        methods += _graphs(lambda: kernel.run(args, artifact), lambda: torch.mm(a, b, out=out))
        return in_turns(methods, floor)


def _ours(sets: Sequence[Operands], kernel: Any, artifact: Any, handle: int) -> Iterator[Method]:
    import torch

    options = cutlass_api.config.GlobalOptions()
    names = {
        "cutlass_api": cutlass_api,
        "torch": torch,
        "GemmArguments": cutlass_api.arguments.GemmArguments,
        "float32": torch.float32,
        "launch_gemm": _core.launch_gemm,
        "kernel": kernel,
        "name": kernel.metadata.kernel_name,
        "artifact": artifact,
        "stream": handle,
        "torch_stream": torch.cuda.current_stream(),
    }

    def ours(name: str, statement: str, note: str = "") -> Method:
        return calls(name, statement, names, note, sets)

    def by_protocol(method: Method) -> Method:
        def turn() -> float:
            options.use_tvm_ffi = False
            try:
                return method.turn()
            finally:
                options.use_tvm_ffi = True

        return Method(f"{method.name}, use_tvm_ffi = False", turn, method.note)

    make = "GemmArguments(a, b, c, accumulator_type=float32)"
    generated = (
        f"kernel.run({make}, artifact, stream=stream, workspace=None, assume_supported_args=True)"
    )
    assumed = ours(
        "run, assume_supported_args, stream given",
        "kernel.run(args, artifact, stream=stream, assume_supported_args=True)",
    )
    arguments = ours("GemmArguments(...)", make)
    yield ours("an empty statement", "pass")
    yield assumed
    yield ours("run, checks, stream passed", "kernel.run(args, artifact, stream=stream)")
    yield ours("run, checks, torch.cuda.Stream", "kernel.run(args, artifact, stream=torch_stream)")
    yield ours("run, checks, current stream", "kernel.run(args, artifact)")
    yield ours("run(args) alone", "kernel.run(args)")
    yield arguments
    yield ours("arguments and run, as NVGEMM's code", generated)
    yield ours("call in code of torch.compile", "launch_gemm(a, b, out=c, kernel=name)")
    yield ours("bound launch()", "launch()")
    yield ours("bound launch(A=...)", "launch(A=a)")
    yield ours("get_kernels(args)", "cutlass_api.get_kernels(args)")
    yield ours("cutlass_api.matmul(a, b, out=c)", "cutlass_api.matmul(a, b, out=c)")
    yield ours("cutlass_api.matmul(a, b)", "cutlass_api.matmul(a, b)")
    yield ours("torch.mm(a, b, out=c)", "torch.mm(a, b, out=c)")
    yield ours("a @ b", "a @ b", "torch")
    yield by_protocol(arguments)
    yield by_protocol(assumed)


def _graphs(ours: Callable[[], Any], theirs: Callable[[], Any]) -> Iterator[Method]:
    """CUDA graphs of ``GRAPH_LAUNCHES`` launches: replay and synchronization."""
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

        yield calls(
            f"{name} {GRAPH_LAUNCHES} launches, replayed and synchronized",
            "replay()",
            {"replay": replay},
        )


def _peers(a: Any, b: Any, out: Any) -> Iterator[Method]:
    """One launch by other packages, if they are installed."""
    import torch

    if find_spec("triton") is not None:
        from cutlass_api.bench import triton_kernel

        names = {"kernel": triton_kernel.add, "a": a, "b": b, "c": out}
        yield calls(
            "Triton kernel[grid](three tensors)",
            "kernel[(1,)](a, b, c, BLOCK=128)",
            names,
            "adds 128 elements",
        )
    if find_spec("cupy") is not None:
        import cupy

        empty = cupy.RawKernel('extern "C" __global__ void empty(void*, void*, void*) {}', "empty")
        pointers = (a.data_ptr(), b.data_ptr(), out.data_ptr())
        names = {"kernel": empty, "pointers": pointers}
        yield calls(
            "CuPy RawKernel, pointers prepared",
            "kernel((1,), (32,), pointers)",
            names,
            "empty kernel",
        )
    try:
        import cutlass.operators as operators
    except ImportError:
        return
    theirs = operators.GemmArguments(a, b, out, accumulator_type=torch.float32)
    operator = operators.get_operators(theirs)[0]
    compiled = operator.compile(theirs)
    names = {
        "operator": operator,
        "args": theirs,
        "artifact": compiled,
        "stream": torch.cuda.current_stream(),
    }
    run = "operator.run(args, artifact, stream=stream, assume_supported_args=True)"
    yield calls("cutlass.operators run, assume_supported_args", run, names)


__all__ = ["COUNTERPARTS", "RATIO", "TITLE", "Method", "calls", "in_turns", "is_ours", "measure"]
