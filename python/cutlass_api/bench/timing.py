"""How benchmarks time: launches between two events, in CUDA graphs, and our kernels in turns."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from cutlass_api.profiling import quartiles
from cutlass_api.tuning._search import TURN_SECONDS, Timed, in_turns, sift

#: Rounds in which the methods of a benchmark take turns.
ROUNDS = 15
#: Kernels that all rounds time.
FINALISTS = 5
#: Launches of a graph at least. The start of a graph takes a few microseconds, and the launches of
#: a model's graph, which are hundreds, overlap with each other.
LAUNCHES = 8


def between_events(call: Callable[[], Any], count: int) -> float:
    """Microseconds of a call, the mean over this many, between two events on the current stream."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(1e3 * begin.elapsed_time(end) / count)


def repeated(launch: Callable[[], Any], seconds: float = TURN_SECONDS) -> Timed:
    """A launch that is repeated without a graph. ``seconds``: of a turn."""
    return Timed(partial(between_events, launch), 1, seconds)


def capture(stream: Any, launches: Iterable[Callable[[], Any]], least: int = LAUNCHES) -> Timed:
    """Captures launches, one for each set of operands, on a stream; all of them again until there
    are ``least``. Runs the first one before, so that what it calls is compiled and tuned.
    """
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        launches = list(launches)
        launches *= -(-least // len(launches))
        launches[0]()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for launch in launches:
                launch()

    def microseconds(replays: int) -> float:
        # Refers to the launches, whose memory the graph uses.
        with torch.cuda.stream(stream):
            return between_events(graph.replay, replays) / len(launches)

    return Timed(microseconds, len(launches))


def run_launches(
    kernel: Any, artifact: Any, all_args: Sequence[Any]
) -> Iterator[Callable[[], Any]]:
    """A launch of the kernel for each of the arguments, which share a workspace."""
    import torch

    size = kernel.get_workspace_size(all_args[0])
    workspace = torch.empty(size, device="cuda", dtype=torch.uint8) if size else None
    for args in all_args:
        yield partial(kernel.run, args, artifact, workspace=workspace, assume_supported_args=True)


class Contest:
    """Our kernels of one product, which all run for a rough time. The fastest and the one that
    ranks first then take turns with other methods: entries that a benchmark adds to ``methods``.
    """

    def __init__(
        self, kernels: Sequence[Any], all_args: Sequence[Any], stream: Any, pool: ThreadPoolExecutor
    ) -> None:
        artifacts = list(pool.map(lambda kernel: kernel.compile(all_args[0]), kernels))

        def ours(at: int) -> Timed:
            return capture(stream, run_launches(kernels[at], artifacts[at], all_args))

        names = [kernel.metadata.kernel_name for kernel in kernels]
        self.first = names[0]
        graphs = ((name, ours(at)) for at, name in enumerate(names))
        self.rough, self.methods = sift(graphs, FINALISTS)
        if self.first not in self.methods:
            self.methods[self.first] = ours(0)
        self._ours = list(self.methods)

    def times(self) -> dict[str, Any]:
        """Fields of a row: the times of our kernels, which kernels these are, and quartiles."""
        in_turns(self.methods, ROUNDS)
        best = min(self._ours, key=lambda name: self.methods[name].median)
        named = {"torch": "torch", "first": self.first, "best": best}
        return {
            "first": self.methods[self.first].median,
            "best": self.methods[best].median,
            "kernel": self.first,
            "best_kernel": best,
            "quartiles": {
                field: quartiles(self.methods[name].times)
                for field, name in named.items()
                if name in self.methods
            },
        }

    def median(self, name: str) -> float | None:
        return self.methods[name].median if name in self.methods else None


def nvidia_operators() -> Any:
    """NVIDIA's ``cutlass.operators``; None where the name stands for this package."""
    try:
        import cutlass.operators  # noqa: F401
    except ImportError:
        return None
    from cutlass_api.operators import export

    return export.imported()


def find_operators(package: Any, args: Any) -> list[Any]:
    """The operators of NVIDIA's ``cutlass.operators`` for arguments, without those of ours."""
    providers = [each for name, each in package.available_providers.items() if name != "rutlass"]
    found: list[Any] = package.get_operators(args, providers=providers)
    return found


def time_operators(sets: Sequence[Any], stream: Any, accumulator: Any) -> Timed | None:
    """The first kernel of ``cutlass.operators`` that runs; None if the package is not installed or
    does not serve the product.

    ``sets``: sets of A, B and the output. ``accumulator``: a dtype of torch.
    """
    operators = nvidia_operators()
    if operators is None:
        return None
    # A failure of another package must not end the benchmark.
    try:
        theirs = [operators.GemmArguments(*each, accumulator_type=accumulator) for each in sets]
        found = find_operators(operators, theirs[0])
    except Exception:
        return None
    for operator in found:
        try:
            artifact = operator.compile(theirs[0])
            launches = [partial(operator.run, args, artifact, stream=stream) for args in theirs]
            return capture(stream, launches)
        except Exception:
            continue
    return None


__all__ = [
    "ROUNDS",
    "Contest",
    "Timed",
    "between_events",
    "capture",
    "find_operators",
    "in_turns",
    "nvidia_operators",
    "quartiles",
    "repeated",
    "run_launches",
    "sift",
    "time_operators",
]
