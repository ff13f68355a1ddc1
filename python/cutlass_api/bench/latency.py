"""Host time of one small GEMM, for Rutlass, torch and, if installed, Triton, CuPy and CUTLASS.

A turn of a method is 100 launches to warm up, a synchronization, and the same 100 launches timed,
each with operands of its own, as the layers of a model have them. Launches that become CUDA graphs
have done so before most turns. The methods take turns for 30 rounds; the result is the median. The
timed statement is inlined into a loop over the operands, as in user code. The native floor is the
same kernel, launched by a Rust loop around ``cuLaunchKernelEx``; it takes a turn before each turn
of a method.
"""

import argparse
import math
import statistics
import timeit
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cutlass_api
from cutlass_api import _core
from cutlass_api.bench import report
from cutlass_api.bench.base import Bench, Document, Entry, deviation
from cutlass_api.bench.timing import find_operators, nvidia_operators
from cutlass_api.profiling import quartiles

#: Calls of a turn, each with a set of operands of its own. As many come before the timed ones, to
#: fill the CPU caches that other methods evicted.
LAUNCHES = 100
ROUNDS = 30
GRAPH_LAUNCHES = 20
EXTENT = 128
#: How the names of rows begin that time no code of ours.
THEIRS: tuple[str, ...] = ("native floor", "an empty statement", "torch.mm", "a @ b", "Triton")
THEIRS += ("CuPy", "cutlass.operators", "CUDA graph of torch.mm")
#: Rows of torch that do the same as a row of ours.
COUNTERPARTS = {
    "cutlass_api.matmul(a, b, out=c)": "torch.mm(a, b, out=c)",
    "cutlass_api.matmul(a, b)": "a @ b",
    f"CUDA graph of {GRAPH_LAUNCHES} launches, replayed and synchronized": (
        f"CUDA graph of torch.mm, {GRAPH_LAUNCHES} launches, replayed and synchronized"
    ),
}


@dataclass(frozen=True)
class Row:
    """One row of a result.

    - ``ratio``: the time over the floor's time, or NaN.
    - ``quartiles``: of the ratio of each turn.
    """

    name: str
    microseconds: float
    ratio: float
    note: str = ""
    quartiles: tuple[float, float] | None = None


@dataclass(frozen=True)
class Method:
    """A method to time. ``turn`` runs one turn and returns the seconds of one call."""

    name: str
    turn: Callable[[], float]
    note: str = ""


def calls(
    name: str, statement: str, names: dict[str, Any], note: str = "", sets: Sequence[Any] = ()
) -> Method:
    """A method that times a Python statement, with ``names`` as its globals.

    ``sets``: A, B, the output, their arguments and a bound launch, for each call of a turn.
    """
    import torch

    if sets:
        loop = f"for a, b, c, args, launch in sets:\n    {statement}"
        timer, repeats = timeit.Timer(loop, globals=names | {"sets": sets}), 1
    else:
        timer, repeats = timeit.Timer(statement, globals=names), LAUNCHES

    def turn() -> float:
        timer.timeit(repeats)
        torch.cuda.synchronize()
        return timer.timeit(repeats) / LAUNCHES

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
            (*each, args, kernel.bind(args, artifact, handle))
            for each, args in zip(tensors, every_args, strict=True)
        ]

        def floor() -> float:
            _core.native_floor(args, artifact, handle, LAUNCHES, 1)
            return _core.native_floor(args, artifact, handle, LAUNCHES, 1)

        methods = [
            Method("native floor: cuLaunchKernelEx in a loop", floor, kernel.metadata.kernel_name),
            *_statements(sets, kernel, artifact, handle),
            *_peers(a, b, out),
        ]
        methods += _graphs(lambda: kernel.run(args, artifact), lambda: torch.mm(a, b, out=out))
        return in_turns(methods, floor)


_MAKE = "GemmArguments(a, b, c, accumulator_type=float32)"
_GENERATED = (
    f"kernel.run({_MAKE}, artifact, stream=stream, workspace=None, assume_supported_args=True)"
)
_OPERATOR_ARGUMENTS = "OperatorArguments(a, b, c, accumulator_type=float32)"
_ARGUMENTS, _ASSUMED = "GemmArguments(...)", "run, assume_supported_args, stream given"
#: What is timed in this process, by name.
STATEMENTS = {
    "an empty statement": "pass",
    _ASSUMED: "kernel.run(args, artifact, stream=stream, assume_supported_args=True)",
    "run, checks, stream passed": "kernel.run(args, artifact, stream=stream)",
    "run, checks, torch.cuda.Stream": "kernel.run(args, artifact, stream=torch_stream)",
    "run, checks, current stream": "kernel.run(args, artifact)",
    "run(args) alone": "kernel.run(args)",
    _ARGUMENTS: _MAKE,
    "arguments and run, as NVGEMM's code": _GENERATED,
    "call in code of torch.compile": "launch_gemm(a, b, out=c, kernel=name)",
    "bound launch()": "launch()",
    "bound launch(A=...)": "launch(A=a)",
    "get_kernels(args)": "cutlass_api.get_kernels(args)",
    "cutlass_api.operators: arguments and run, as NVGEMM's code": (
        f"operator.run({_OPERATOR_ARGUMENTS}, operator_artifact, stream=stream, workspace=None, "
        "assume_supported_args=True)"
    ),
    "cutlass_api.operators.get_operators(args)": "operators.get_operators(operator_args)",
    "cutlass_api.matmul(a, b, out=c)": "cutlass_api.matmul(a, b, out=c)",
    "cutlass_api.matmul(a, b)": "cutlass_api.matmul(a, b)",
    "torch.mm(a, b, out=c)": "torch.mm(a, b, out=c)",
    "a @ b": "a @ b",
}


def _statements(sets: Sequence[Any], kernel: Any, artifact: Any, handle: int) -> Iterator[Method]:
    import torch

    from cutlass_api import operators

    options = cutlass_api.config.GlobalOptions()
    a, b, out, *_ = sets[0]
    operator_args = operators.GemmArguments(a, b, out, accumulator_type=torch.float32)
    operator = operators.get_operators(operator_args)[0]
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
        "operators": operators,
        "OperatorArguments": operators.GemmArguments,
        "operator_args": operator_args,
        "operator": operator,
        "operator_artifact": operator.compile(operator_args),
    }

    def by_protocol(method: Method) -> Method:
        def turn() -> float:
            options.use_tvm_ffi = False
            try:
                return method.turn()
            finally:
                options.use_tvm_ffi = True

        return Method(f"{method.name}, use_tvm_ffi = False", turn)

    methods = {
        name: calls(name, statement, names, "torch" if name == "a @ b" else "", sets)
        for name, statement in STATEMENTS.items()
    }
    yield from methods.values()
    yield from (by_protocol(methods[name]) for name in (_ARGUMENTS, _ASSUMED))


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
    operators = nvidia_operators()
    if operators is None:
        return
    theirs = operators.GemmArguments(a, b, out, accumulator_type=torch.float32)
    operator = find_operators(operators, theirs)[0]
    compiled = operator.compile(theirs)
    names = {
        "operator": operator,
        "args": theirs,
        "artifact": compiled,
        "stream": torch.cuda.current_stream(),
    }
    run = "operator.run(args, artifact, stream=stream, assume_supported_args=True)"
    yield calls("cutlass.operators run, assume_supported_args", run, names)


class Latency(Bench[Row]):
    name, about = "latency", "host time of one small GEMM"
    title = f"Host time of one float16 GEMM, {EXTENT} cubed"
    row, field, is_gradual = Row, "ratio", False
    control = "the native launch"
    columns = (
        ("", "name", ""),
        ("us", "microseconds", ".2f"),
        ("x floor", "ratio", ".2f"),
        ("", "note", ""),
    )

    def measure(self, arguments: argparse.Namespace, document: Document) -> list[Row]:
        document |= {"extent": EXTENT, "dtype": "float16"}
        return measure()

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        times = {row.name: row.microseconds for row in rows}
        for row in rows:
            if is_ours(row.name):
                torch = times.get(COUNTERPARTS.get(row.name, ""))
                floor = None if math.isnan(row.ratio) else row.microseconds / row.ratio
                noise = deviation(row.ratio, row.quartiles)
                yield Entry(row.name, row.microseconds, floor, torch, noise)

    def plot(self, path: Path, document: Document, rows: Sequence[Row]) -> None:
        """Plots microseconds as bars on a logarithmic axis. Needs matplotlib."""
        bars = [(row.name, row.microseconds) for row in rows if row.microseconds > 0]
        with report.figure(path, self.heading(document), (9, 0.35 * len(bars) + 1.2)) as axes:
            report.draw_bars(axes, bars, "microseconds on the host")
            axes.set_xscale("log")
