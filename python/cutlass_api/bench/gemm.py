"""GPU time of GEMMs, for Rutlass, torch (cuBLAS) and, if installed, ``cutlass.operators``.

Each shape has several sets of operands, together larger than twice the L2 cache (200 sets at most),
with random values, since zeros draw less power. Each method is captured in a CUDA graph that runs
all sets. The methods take turns; the result is the median over rounds.

All kernels of a shape compete (`simt` only without other families): halving rounds drop the slower
half until a few remain, which are timed in more rounds with the kernel that `get_kernels` ranks
first.

Grouped GEMMs run in bfloat16 only, the one type that ``torch._grouped_mm`` computes in one launch.
"""

import json
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import cutlass_api
from cutlass_api.arguments import GemmArguments, GroupedGemmArguments
from cutlass_api.bench import ROUNDS
from cutlass_api.bench.limits import Limits, sets_beyond_l2
from cutlass_api.profiling import quartiles
from cutlass_api.tuning._search import Timed, in_turns, sift

TITLE = "GEMM time of torch over Rutlass"
#: Kernels that all rounds time.
FINALISTS = 5


@dataclass(frozen=True)
class Shape:
    """One product: C (m, n) = A (m, k) @ B (k, n).

    - ``layout``: of A and B, t row-major, n column-major.
    - ``batch``: the number of products, each with operands of its own.
    - ``groups``: the number of groups of a grouped GEMM, or 0. Each group of rows of A has its B.
    - ``uneven``: whether the sizes of groups are random, instead of as equal as possible.
    """

    label: str
    m: int
    n: int
    k: int
    layout: str = "tt"
    groups: int = 0
    uneven: bool = False
    batch: int = 1

    @property
    def elements(self) -> int:
        """The number of elements of all operands."""
        one = self.m * self.k + max(self.groups, 1) * self.k * self.n + self.m * self.n
        return self.batch * one


@dataclass
class Row:
    """The times of one shape, in microseconds.

    ``first`` is the time of ``kernel``, which `get_kernels` ranks first; ``best`` the time of
    ``best_kernel``, the fastest of all.
    """

    label: str
    dtype: str
    mnk: tuple[int, int, int]
    layout: str
    torch: float
    first: float
    best: float
    floor: float
    kernel: str
    best_kernel: str
    kernels: int
    operators: float | None = None
    groups: int = 0
    batch: int = 1
    #: The rough time of each kernel: the median of a few turns, or the minimum if it dropped out.
    rough: dict[str, float] = field(default_factory=dict)
    #: The quartiles of the turns of ``torch``, ``first`` and ``best``.
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)


def table(path: Path | None) -> list[Shape]:
    """The shapes in a JSON file, or a built-in table for None.

    The file is an object of named groups. A group has a ``layout`` and a list ``mnk`` of products,
    ``lmnk`` of batched products or ``total_m_n_k_groups`` of grouped GEMMs; the last are timed with
    equal and with uneven groups. Strings beside the groups are notes. Raises ValueError if the file
    has another form.
    """
    try:
        groups = json.loads(path.read_text()) if path else BUILT_IN
        if not isinstance(groups, dict):
            raise ValueError(f"{reprlib.repr(groups)} must be an object of groups by name")
        named = [(label, group) for label, group in groups.items() if not isinstance(group, str)]
        shapes = [shape for label, group in named for shape in _group(label, group)]
        if not shapes:
            raise ValueError("it has no groups; add one with layout and mnk")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no table of shapes in JSON: {error}") from None
    return shapes


def _group(label: str, group: Any) -> list[Shape]:
    """The shapes of one group of a table."""
    if not isinstance(group, dict):
        raise ValueError(
            f"group {label!r} is {reprlib.repr(group)}; it must be an object with layout and mnk"
        )
    layout = group.get("layout", "tt")
    if layout not in ("tt", "tn", "nt", "nn"):
        raise ValueError(
            f"group {label!r} has layout {layout!r}; it must be two letters, t or n, for A and B"
        )

    def rows(key: str, *extents: str) -> Iterator[list[int]]:
        listed = group.get(key, [])
        for row in listed if isinstance(listed, list) else [listed]:
            # isinstance(True, int) is true.
            right = isinstance(row, list) and all(
                type(extent) is int and extent > 0 for extent in row
            )
            if not right or len(row) != len(extents):
                expected = f"[{', '.join(extents)}] in positive integers"
                raise ValueError(
                    f"group {label!r} has {reprlib.repr(row)} in {key}; it must be {expected}"
                )
            yield row

    shapes = [Shape(label, m, n, k, layout) for m, n, k in rows("mnk", "m", "n", "k")]
    for batch, m, n, k in rows("lmnk", "l", "m", "n", "k"):
        shapes.append(Shape(label, m, n, k, layout, batch=batch))
    for m, n, k, groups in rows("total_m_n_k_groups", "total m", "n", "k", "groups"):
        shapes.append(Shape(label, m, n, k, layout, groups))
        shapes.append(Shape(f"{label}, uneven", m, n, k, layout, groups, uneven=True))
    if not shapes:
        raise ValueError(
            f"group {label!r} has no shapes; list them as mnk, lmnk or total_m_n_k_groups"
        )
    return shapes


#: The default shapes: squares, a transformer's weights, unaligned rows, deep K, grouped GEMMs.
BUILT_IN: dict[str, Any] = {
    "square": {
        "layout": "tt",
        "mnk": [[512, 512, 512], [1024, 1024, 1024], [4096, 4096, 4096], [8192, 8192, 8192]],
    },
    "weights": {"layout": "tn", "mnk": [[m, 4096, 11008] for m in (1, 16, 64, 256, 1024, 4096)]},
    "unaligned": {"layout": "tt", "mnk": [[4095, 4097, 4093], [300, 5000, 700]]},
    "deep k": {"layout": "tt", "mnk": [[128, 128, 16384], [64, 4096, 16384]]},
    "experts": {
        "layout": "tn",
        "total_m_n_k_groups": [[8192, 2048, 1024, 12], [16384, 1408, 2048, 64]],
    },
}


class Inputs:
    """Sets of operands of one shape. ``sets``: their number; None: together larger than L2."""

    def __init__(self, shape: Shape, dtype: str, sets: int | None = None) -> None:
        import torch

        element = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
        count = sets or sets_beyond_l2(element.itemsize * shape.elements)

        def matrix(*extents: int, order: str) -> Any:
            *batch, rows, columns = extents
            if order == "t":
                return torch.randn(*batch, rows, columns, device="cuda", dtype=element)
            return torch.randn(*batch, columns, rows, device="cuda", dtype=element).mT

        generator = torch.Generator().manual_seed(0)
        groups = max(shape.groups, 1)
        dealt = (
            torch.randint(groups, (shape.m,), generator=generator)
            if shape.uneven
            else torch.arange(shape.m) % groups
        )
        self.offsets = (
            dealt.bincount(minlength=groups).cumsum(0).to(device="cuda", dtype=torch.int32)
        )
        self.groups = (shape.groups,) if shape.groups else ()
        batch = (shape.batch,) if shape.batch > 1 else ()
        self.accumulator = "float64" if dtype == "float64" else "float32"
        self.sets = [
            (
                matrix(*batch, shape.m, shape.k, order=shape.layout[0]),
                matrix(*batch, *self.groups, shape.k, shape.n, order=shape.layout[1]),
                torch.empty(*batch, shape.m, shape.n, device="cuda", dtype=element),
            )
            for _ in range(count)
        ]
        self.stream = torch.cuda.Stream()

    def arguments(self) -> list[Any]:
        if self.groups:
            return [
                GroupedGemmArguments(*one_set, "float32", self.offsets) for one_set in self.sets
            ]
        return [GemmArguments(*one_set, accumulator_type=self.accumulator) for one_set in self.sets]

    def torch_launches(self) -> list[Callable[[], Any]]:
        import torch

        if self.groups:
            return [partial(torch._grouped_mm, a, b, offs=self.offsets) for a, b, _ in self.sets]
        return [partial(torch.matmul, a, b, out=c) for a, b, c in self.sets]


def capture(stream: Any, launches: Iterable[Callable[[], Any]]) -> Timed:
    """Captures launches, one for each set of operands, on a stream. Runs the first one before, so
    that what it calls is compiled and tuned."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        launches = list(launches)
        launches[0]()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            for launch in launches:
                launch()

    def microseconds(replays: int) -> float:
        # Refers to the launches, whose memory the graph uses.
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            begin.record()
            for _ in range(replays):
                graph.replay()
            end.record()
        end.synchronize()
        return float(1e3 * begin.elapsed_time(end) / (replays * len(launches)))

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


def measure_row(shape: Shape, dtype: str, pool: ThreadPoolExecutor, limits: Limits) -> Row:
    """Times torch, the kernel that ranks first and the fastest kernel."""
    import torch

    inputs = Inputs(shape, dtype)
    all_args = inputs.arguments()
    offered = cutlass_api.get_kernels(all_args[0])
    # simt kernels of large products run for seconds.
    kernels = [
        kernel
        for kernel in offered
        if kernel is offered[0] or "simt" not in kernel.metadata.kernel_name or shape.m == 1
    ]
    artifacts = list(pool.map(lambda kernel: kernel.compile(all_args[0]), kernels))

    def ours(at: int) -> Timed:
        return capture(inputs.stream, run_launches(kernels[at], artifacts[at], all_args))

    names = [kernel.metadata.kernel_name for kernel in kernels]
    rough, methods = sift(((name, ours(at)) for at, name in enumerate(names)), FINALISTS)
    finalists = {names[0], *methods}
    if names[0] not in methods:
        methods[names[0]] = ours(0)
    methods["torch"] = capture(inputs.stream, inputs.torch_launches())
    accumulator = getattr(torch, inputs.accumulator)
    operators = None if shape.groups else time_operators(inputs.sets, inputs.stream, accumulator)
    if operators:
        methods["operators"] = operators
    in_turns(methods, ROUNDS)
    best = min(finalists, key=lambda name: methods[name].median)
    flop = 2 * shape.batch * shape.m * shape.n * shape.k
    byte_count = inputs.sets[0][2].itemsize * shape.elements
    return Row(
        label=shape.label,
        dtype=dtype,
        mnk=(shape.m, shape.n, shape.k),
        layout=shape.layout,
        torch=methods["torch"].median,
        first=methods[names[0]].median,
        best=methods[best].median,
        floor=limits.floor(dtype, flop, byte_count),
        kernel=names[0],
        best_kernel=best,
        kernels=len(kernels),
        operators=methods["operators"].median if operators else None,
        groups=shape.groups,
        batch=shape.batch,
        rough={name: round(time, 3) for name, time in rough.items()},
        quartiles={
            of: quartiles(methods[name].times)
            for of, name in (("torch", "torch"), ("first", names[0]), ("best", best))
        },
    )


def time_operators(sets: Sequence[Any], stream: Any, accumulator: Any) -> Timed | None:
    """The first kernel of ``cutlass.operators`` that runs; None if the package is not installed or
    does not serve the product.

    ``sets``: sets of A, B and the output. ``accumulator``: a dtype of torch.
    """
    try:
        import cutlass.operators as operators
    except ImportError:
        return None
    # A failure of another package must not end the benchmark.
    try:
        theirs = [operators.GemmArguments(*each, accumulator_type=accumulator) for each in sets]
        found = operators.get_operators(theirs[0])
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


@contextmanager
def float32_precision(dtype: str) -> Iterator[None]:
    """Whether torch, and the kernels that follow it, round float32 operands: for "tf32"."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def measure(
    shapes: list[Shape], dtypes: list[str], show: Callable[[Row], None], limits: Limits
) -> list[Row]:
    """Times all shapes in all types. Calls ``show`` with each finished row."""
    import torch

    rows = []
    with ThreadPoolExecutor() as pool:
        for dtype in dtypes:
            with float32_precision(dtype):
                limits.measure(dtype)
                for shape in (shape for shape in shapes if not shape.groups or dtype == "bfloat16"):
                    rows.append(measure_row(shape, dtype, pool, limits))
                    show(rows[-1])
                    torch.cuda.empty_cache()
    return rows


def geometric_means(rows: list[Row]) -> dict[str, float]:
    """Geometric means over the rows: torch's time over ours, first over best, first over floor."""

    def mean(ratios: Iterable[float]) -> float:
        logs = [math.log(ratio) for ratio in ratios]
        return math.exp(sum(logs) / len(logs)) if logs else math.nan

    return {
        "torch / first": mean(row.torch / row.first for row in rows),
        "torch / best": mean(row.torch / row.best for row in rows),
        "first / best": mean(row.first / row.best for row in rows),
        "worst first / best": max((row.first / row.best for row in rows), default=math.nan),
        "first / floor": mean(row.first / row.floor for row in rows),
    }


def line(row: Row) -> tuple[str, ...]:
    """The cells of a row of the table."""
    m, n, k = row.mnk
    tflops = 2 * row.batch * m * n * k / row.first / 1e6
    return (
        f"{name(row)} {row.dtype}",
        f"{row.torch:.1f}",
        f"{row.first:.1f}",
        f"{row.best:.1f}",
        f"{row.floor:.1f}",
        f"{row.torch / row.first:.3f}",
        f"{row.torch / row.best:.3f}",
        f"{tflops:.0f}",
    )


def name(row: Row) -> str:
    """The name of a product: its label, extents and layout."""
    m, n, k = row.mnk
    batch = f"{row.batch}x" if row.batch > 1 else ""
    return f"{row.label} {batch}{m}x{n}x{k}{f' in {row.groups}' if row.groups else ''} {row.layout}"


HEADER = (
    "shape",
    "torch us",
    "first us",
    "best us",
    "floor us",
    "torch/first",
    "torch/best",
    "TFLOP/s",
)


def write_json(path: Path, context: dict[str, Any], rows: list[Row]) -> None:
    """Writes rows and their means as JSON, after the entries of ``context`` (device, versions)."""
    document = {
        **context,
        "geometric_means": geometric_means(rows),
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def write_plot(path: Path, title: str, rows: list[Row]) -> None:
    """Plots torch's time over ours: bars for the first kernel, marks for the best."""
    import matplotlib.pyplot as plt

    several = len({row.dtype for row in rows}) > 1
    names = [f"{name(row)} {row.dtype}" if several else name(row) for row in rows]
    places = range(len(rows))
    figure, axes = plt.subplots(figsize=(0.22 * len(rows) + 2, 4.8), layout="constrained")
    first = [row.torch / row.first for row in rows]
    axes.bar(places, first, color="#4477aa", label="ranked first")
    best = [row.torch / row.best for row in rows]
    axes.plot(places, best, "_", color="#cc3311", markersize=8, label="best kernel")
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_yscale("log")
    ticks = [0.5, 0.7, 1, 1.25, 1.5, 2, 3, 4]
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(min([0.7, *first]) * 0.95, max([1.5, *best]) * 1.05)
    axes.set_xlim(-1, len(rows))
    axes.set_xticks(places, names, rotation=90, fontsize=7)
    axes.set_ylabel("torch's time / ours")
    axes.legend(loc="upper left")
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


__all__ = [
    "HEADER",
    "Inputs",
    "Row",
    "Shape",
    "float32_precision",
    "geometric_means",
    "line",
    "measure",
    "name",
    "run_launches",
    "table",
    "write_json",
    "write_plot",
]
