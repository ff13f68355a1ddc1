"""GPU time of GEMMs, for Rutlass, torch (cuBLAS) and, if installed, ``cutlass.operators``.

Each shape has several sets of operands, together larger than twice the L2 cache (200 sets at most),
with random values, since zeros draw less power. Each method is captured in a CUDA graph that runs
all sets, in 8 launches or more. The methods take turns; the result is the median over rounds.

All kernels of a shape compete (`simt` only without other families): halving rounds drop the slower
half until a few remain, which are timed in more rounds with the kernel that `get_kernels` ranks
first.

Grouped GEMMs run in bfloat16 only, the one type that ``torch._grouped_mm`` computes in one launch.
"""

import argparse
import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean

import cutlass_api
from cutlass_api.bench import options, report
from cutlass_api.bench.base import Bench, Document, Entry, both, deviation
from cutlass_api.bench.limits import Limits, float32_precision
from cutlass_api.bench.products import Inputs, Shape, in_type
from cutlass_api.bench.timing import Contest, capture, time_operators


@dataclass
class Row:
    """The times of one shape, in microseconds.

    ``torch`` is None where torch has no such product. ``first`` is the time of ``kernel``, which
    `get_kernels` ranks first; ``best`` the time of ``best_kernel``, the fastest of all.
    """

    label: str
    dtype: str
    mnk: tuple[int, int, int]
    layout: str
    torch: float | None
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

    @property
    def product(self) -> str:
        """The label, the extents and the layout."""
        batch = f"{self.batch}x" if self.batch > 1 else ""
        groups = f" in {self.groups}" if self.groups else ""
        return f"{self.label} {batch}{'x'.join(map(str, self.mnk))}{groups} {self.layout}"

    @property
    def name(self) -> str:
        return f"{self.product} {self.dtype}"

    @property
    def tflops(self) -> float:
        return 2 * self.batch * math.prod(self.mnk) / self.first / 1e6


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
    contest = Contest(kernels, all_args, inputs.stream, pool)
    if launches := inputs.torch_launches():
        contest.methods["torch"] = capture(inputs.stream, launches)
    accumulator = getattr(torch, inputs.type.accumulator)
    operators = None if shape.groups else time_operators(inputs.sets, inputs.stream, accumulator)
    if operators:
        contest.methods["operators"] = operators
    times = contest.times()
    flop = 2 * shape.batch * shape.m * shape.n * shape.k
    return Row(
        label=shape.label,
        dtype=dtype,
        mnk=(shape.m, shape.n, shape.k),
        layout=shape.layout,
        torch=contest.median("torch"),
        floor=limits.floor(dtype, flop, sum(operand.nbytes for operand in inputs.sets[0])),
        kernels=len(kernels),
        operators=contest.median("operators"),
        groups=shape.groups,
        batch=shape.batch,
        rough={name: round(time, 3) for name, time in contest.rough.items()},
        **times,
    )


def measure(shapes: Sequence[Shape], dtypes: Sequence[str], limits: Limits) -> Iterator[Row]:
    """Times all shapes in all types. Yields finished rows."""
    import torch

    with ThreadPoolExecutor() as pool:
        for dtype in dtypes:
            with float32_precision(dtype):
                limits.measure(dtype)
                for shape in in_type(shapes, dtype):
                    yield measure_row(shape, dtype, pool, limits)
                    torch.cuda.empty_cache()


class Gemm(Bench[Row]):
    name, about = "gemm", "GPU time of GEMMs, beside torch's"
    title = "GEMM time of torch over Rutlass"
    row, field, summary_key = Row, "mnk", "geometric_means"
    columns = (
        ("shape", "name", ""),
        ("torch us", "torch", ".1f"),
        ("first us", "first", ".1f"),
        ("best us", "best", ".1f"),
        ("floor us", "floor", ".1f"),
        ("torch/first", lambda row: row.torch and row.torch / row.first, ".3f"),
        ("torch/best", lambda row: row.torch and row.torch / row.best, ".3f"),
        ("TFLOP/s", "tflops", ".0f"),
    )

    def add_options(self, command: argparse.ArgumentParser) -> None:
        options.add_shapes(command.add_mutually_exclusive_group())
        options.add_layout(command)
        options.add_types(command)

    def measure(self, arguments: argparse.Namespace, document: Document) -> Iterator[Row]:
        shapes, limits = options.chosen_shapes(arguments), Limits()
        for row in measure(shapes, arguments.dtype, limits):
            document["limits"] = limits.entries()
            yield row

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        for row in rows:
            times = {"torch": row.torch, "first": row.first}
            spread = (deviation(time, row.quartiles.get(of)) for of, time in times.items())
            yield Entry(row.name, row.first, row.torch, row.torch, both(*spread), row.kernel)

    def summary(self, rows: Sequence[Row]) -> dict[str, float]:
        """Geometric means: torch's time over ours, first over best, first over floor."""
        if not rows:
            return {}
        compared = [(row.torch, row) for row in rows if row.torch]
        ratios = {
            "torch / first": [torch / row.first for torch, row in compared],
            "torch / best": [torch / row.best for torch, row in compared],
        }
        return {name: geometric_mean(found) for name, found in ratios.items() if found} | {
            "first / best": geometric_mean(row.first / row.best for row in rows),
            "worst first / best": max(row.first / row.best for row in rows),
            "first / floor": geometric_mean(row.first / row.floor for row in rows),
        }

    def plot(self, path: Path, document: Document, rows: Sequence[Row]) -> None:
        """Plots torch's time over ours: bars for the first kernel, marks for the best."""
        has_types = len({row.dtype for row in rows}) > 1
        compared = [(row.torch, row) for row in rows if row.torch]
        names = [row.name if has_types else row.product for _, row in compared]
        places = range(len(compared))
        first = [torch / row.first for torch, row in compared]
        best = [torch / row.best for torch, row in compared]
        ticks = [0.5, 0.7, 1, 1.25, 1.5, 2, 3, 4]
        with report.figure(path, self.heading(document), (0.22 * len(names) + 2, 4.8)) as axes:
            axes.bar(places, first, color="#4477aa", label="ranked first")
            axes.plot(places, best, "_", color="#cc3311", markersize=8, label="best kernel")
            axes.axhline(1, color="black", linewidth=0.8)
            axes.set_yscale("log")
            axes.set_yticks(ticks, [str(tick) for tick in ticks])
            axes.minorticks_off()
            axes.set_ylim(min([0.7, *first]) * 0.95, max([1.5, *best]) * 1.05)
            axes.set_xlim(-1, len(names))
            axes.set_xticks(places, names, rotation=90, fontsize=7)
            axes.set_ylabel("torch's time / ours")
            report.draw_legend(axes)
