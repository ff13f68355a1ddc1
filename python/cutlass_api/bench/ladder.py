"""The ladder: fp16 GEMM in eight steps, beside torch and the kernel that ``get_kernels`` ranks
first.

A step is a teaching kernel of ``kernels/ladder/``, which :func:`cutlass_api.cuda_kernel` compiles
and launches. All compute ``out (m, n) = a (m, k) @ b (n, k).T`` for row-major matrices; ``n`` and
``k`` are multiples of 8. Times are measured as in :mod:`cutlass_api.bench.gemm`.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import cutlass_api
from cutlass_api import _core
from cutlass_api.bench import limits, options, report
from cutlass_api.bench.base import Bench, Document, Entry
from cutlass_api.bench.products import Inputs, Shape
from cutlass_api.bench.timing import ROUNDS, capture, in_turns, run_launches
from cutlass_api.utils import ceil_div

#: M, N, K.
Extents = tuple[int, int, int]
DEFAULT_EXTENTS = (4096, 4096, 4096)
#: The largest relative norm error of a step's output against torch's. Both round sums to fp16.
TOLERANCE = 2e-3


@dataclass(frozen=True)
class Step:
    """A step of the ladder.

    - ``file``: its kernel's file in ``kernels/ladder/``.
    - ``function``: the kernel in C++.
    - ``adds``: what the kernel has and the step before has not.
    - ``tile``: the outputs of a CTA, rows and columns.
    - ``shared_bytes``: dynamic shared memory.
    - ``boxes``: rows of the TMA boxes of A and B; None for a kernel that takes pointers.
    - ``persistent``: whether a CTA computes one tile after the other.
    - ``rate``: the key in ``chip_rates`` of the unit that multiplies.
    """

    name: str
    file: str
    function: str
    adds: str
    tile: tuple[int, int]
    threads: int
    rate: str
    shared_bytes: int = 0
    boxes: tuple[int, int] | None = None
    persistent: bool = False
    cluster: int = 1

    @property
    def header(self) -> str:
        """The name of the kernel's file in ``#include`` directives."""
        return f"ladder/{self.file}"

    @property
    def source(self) -> str:
        """The text of the kernel's file."""
        return _core.header(self.header)

    @property
    def intensity(self) -> float:
        """FLOP for each byte of A and B that a CTA loads from global memory."""
        rows, columns = self.tile
        return rows * columns / (rows + columns / self.cluster)

    def runs_on(self, cc: int) -> bool:
        """Whether a device of this compute capability has the instructions of the kernel."""
        return cc == 90 if self.boxes else cc >= 80

    @property
    def kernel(self) -> _core.CudaFunction:
        return _kernel(self)

    def grid(self, m: int, n: int) -> tuple[int, ...]:
        """The number of CTAs along x and y."""
        rows, columns = ceil_div(m, self.tile[0]), ceil_div(n, self.tile[1])
        if not self.persistent:
            return columns, rows
        clusters = ceil_div(rows, self.cluster) * columns
        return (self.cluster * min(clusters, multiprocessors() // self.cluster),)

    def bind(self, a: Any, b: Any, out: Any, extents: Extents) -> Callable[[], None]:
        """A function that launches the kernel on the current stream."""
        m, n, k = extents
        if n % 8 or k % 8:
            raise ValueError(f"n is {n} and k is {k}; the ladder takes multiples of 8")
        if self.boxes:
            a, b = (
                cutlass_api.TensorMap(operand, (rows, 64), swizzle=128)
                for operand, rows in zip((a, b), self.boxes, strict=True)
            )
        return partial(self.kernel, a, b, out, m, n, k)


@cache
def _kernel(step: Step) -> _core.CudaFunction:
    return cutlass_api.cuda_kernel(
        f'#include "{step.header}"',
        step.function,
        grid=lambda a, b, out, m, n, k: step.grid(m, n),
        block=step.threads,
        cluster=step.cluster,
        shared_bytes=step.shared_bytes,
    )


@cache
def multiprocessors() -> int:
    """The number of multiprocessors of torch's current CUDA device."""
    return int(limits.peak_rates()["multiprocessors"])


_FMA, _MMA, _WGMMA = "fma_flop_per_clock", "mma_sync_flop_per_clock", "tensor_flop_per_clock"
#: Four stages of 128 rows of A and 256 of B, 64 elements of K each, and their mbarriers.
_STAGES_BYTES = 4 * (128 + 256) * 64 * 2
_ONE_BARRIER, _TWO_BARRIERS = _STAGES_BYTES + 4 * 8, _STAGES_BYTES + 4 * 16
STEPS = (
    Step(
        *("basic tiling", "1_basic_tiling.cuh", "basic_tiling", "4 x 4 outputs a thread"),
        *((64, 64), 256, _FMA),
    ),
    Step(
        *("shared-memory tiling", "2_shared_memory.cuh", "shared_memory"),
        "operands in shared memory, 8 x 8 outputs a thread",
        *((128, 128), 256, _FMA),
    ),
    Step(
        *("mma.sync", "3_tensor_cores.cuh", "tensor_cores<RowMajor>", "tensor cores, ldmatrix"),
        *((128, 128), 256, _MMA),
    ),
    Step(
        *("swizzle", "4_swizzle.cuh", "tensor_cores<Swizzled>", "no bank conflicts"),
        *((128, 128), 256, _MMA),
    ),
    Step(
        *("cp.async stages", "5_async_copies.cuh", "async_copies"),
        "3 stages of asynchronous copies",
        *((128, 128), 256, _MMA),
        shared_bytes=3 * 2 * 128 * 64 * 2,
    ),
    Step(
        *("wgmma with TMA", "6_wgmma_tma.cuh", "wgmma_tma"),
        "64 x 256 outputs an instruction, copies by one thread",
        *((128, 256), 256, _WGMMA),
        shared_bytes=_ONE_BARRIER,
        boxes=(128, 256),
    ),
    Step(
        *("warp specialization", "7_warp_specialization.cuh", "warp_specialization"),
        "a producer and two consumers, persistent CTAs",
        *((128, 256), 384, _WGMMA),
        shared_bytes=_TWO_BARRIERS,
        boxes=(128, 256),
        persistent=True,
    ),
    Step(
        *("clusters", "8_clusters.cuh", "clusters", "two CTAs share the loads of B"),
        *((128, 256), 384, _WGMMA),
        shared_bytes=_TWO_BARRIERS,
        boxes=(128, 128),
        persistent=True,
        cluster=2,
    ),
)
TORCH, LIBRARY = "torch", "the library"


@dataclass(frozen=True)
class Row:
    """A row of the result.

    - ``share_of_torch``: torch's time over this time.
    - ``speed_up``: the time of the first step over this time.
    - ``note``: what the step adds, or the library's kernel.
    """

    name: str
    microseconds: float
    tflops: float
    share_of_torch: float
    speed_up: float
    note: str = ""

    @property
    def of_torch(self) -> str:
        return f"{100 * self.share_of_torch:.1f} %"


def measure(extents: Extents = DEFAULT_EXTENTS) -> list[Row]:
    """Times the steps that the GPU has the instructions for, torch, and the library's kernel.

    Raises RuntimeError if a step's output differs from torch's.
    """
    import torch

    m, n, k = extents
    inputs = Inputs(Shape("ladder", m, n, k, "tn"), "float16")
    # The launch returns the output of the first set of operands, which the steps overwrite.
    reference = inputs.torch_launches()[0]().float()
    torch.cuda.synchronize()
    methods, notes = {}, {}
    for step in STEPS:
        if step.runs_on(cutlass_api.utils.device_cc()):
            launches = [step.bind(a, b.mT, out, extents) for a, b, out in inputs.sets]
            methods[step.name] = capture(inputs.stream, launches)
            notes[step.name] = step.adds
            _check(step, launches[0], inputs.sets[0][2], reference)
    methods[TORCH] = capture(inputs.stream, inputs.torch_launches())
    all_args = inputs.arguments()
    kernel = cutlass_api.get_kernels(all_args[0])[0]
    ours = run_launches(kernel, kernel.compile(all_args[0]), all_args)
    methods[LIBRARY] = capture(inputs.stream, ours)
    notes[LIBRARY] = kernel.metadata.kernel_name
    in_turns(methods, ROUNDS)
    return rows({name: timed.median for name, timed in methods.items()}, extents, notes)


def _check(step: Step, launch: Callable[[], None], out: Any, reference: Any) -> None:
    out.fill_(float("nan"))
    launch()
    error = float((out.float() - reference).norm() / reference.norm())
    if not error <= TOLERANCE:
        raise RuntimeError(f"the output of {step.file} differs from torch's by {error:.1e}")


def rows(times: Mapping[str, float], extents: Extents, notes: Mapping[str, str]) -> list[Row]:
    """The rows of a result. ``times``: microseconds by name, of torch and of the first step, too.
    ``notes``: by name."""
    m, n, k = extents
    return [
        Row(
            name,
            time,
            2 * m * n * k / time / 1e6,
            times[TORCH] / time,
            times[STEPS[0].name] / time,
            notes.get(name, ""),
        )
        for name, time in times.items()
    ]


def shown(extents: Sequence[int]) -> str:
    """M, N and K in a title."""
    return "x".join(map(str, extents))


#: The ratio of two rates whose labels would touch in a roofline.
NEAR = 1.4


def peaks(rates: limits.Rates) -> dict[str, float]:
    """The peak FLOP per second of a chip at its highest clock, by the unit that multiplies.

    ``rates``: of ``chip_rates``.
    """
    units = {"FP32 units": _FMA, "mma.sync": _MMA, "tensor cores": _WGMMA}
    return {name: limits.peak(rates, unit) for name, unit in units.items()}


def draw_bars(axes: Any, rows: Sequence[Row]) -> None:
    """Draws the TFLOP/s of each row."""
    colors = ["#bbbbbb" if row.name in (TORCH, LIBRARY) else "#4477aa" for row in rows]
    report.draw_bars(axes, [(row.name, row.tflops) for row in rows], "TFLOP/s", "%.1f", colors)


def draw_roofline(axes: Any, rates: limits.Rates, rows: Sequence[Row]) -> None:
    """Draws each step's TFLOP/s over the FLOP for each byte that its CTAs load, below the roofs:
    the peaks of the units that multiply, and memory's bandwidth times the intensity.

    A step above the slanted roof loads most bytes from the L2 cache. Without ``rows``, draws where
    the steps meet the roofs.
    """
    measured = {row.name: row.tflops for row in rows}
    bandwidth, of_unit = rates["memory_bytes_per_second"], peaks(rates)
    highest = max(of_unit.values())
    low, high = 16, 4 * highest / bandwidth
    start = low * bandwidth / 1e12
    memory = f"memory, {bandwidth / 1e12:.1f} TB/s"
    axes.plot([low, highest / bandwidth], [start, highest / 1e12], color="black", label=memory)
    near = {"textcoords": "offset points", "va": "bottom", "ha": "right"}
    for peak in set(of_unit.values()):
        axes.plot([low, high], [peak / 1e12] * 2, color="black", linestyle="--", linewidth=0.8)
        names = ", ".join(name for name, of in of_unit.items() if of == peak)
        label = f"{names}, {peak / 1e12:.0f} TFLOP/s"
        axes.annotate(label, (high, peak / 1e12), (0, 2), fontsize=8, **near)
    points: dict[float, list[tuple[float, str]]] = {}
    for at, step in enumerate(STEPS, 1):
        roof = min(limits.peak(rates, step.rate), step.intensity * bandwidth)
        tflops = measured.get(step.name, None if rows else roof / 1e12)
        if tflops is not None:
            points.setdefault(step.intensity, []).append((tflops, str(at)))
    for intensity, steps in points.items():
        label_at = math.inf
        for tflops, _ in sorted(steps, reverse=True):
            axes.plot(intensity, tflops, "o", color="#4477aa" if rows else "#bbbbbb")
            # Steps that are too near for labels of their own share that of the highest.
            if label_at > NEAR * tflops:
                label_at = tflops
                close = [name for of, name in sorted(steps) if tflops / NEAR <= of <= tflops]
                is_low = any(tflops < peak / 1e12 < NEAR * tflops for peak in of_unit.values())
                beside = dict(near, va="top", ha="left") if is_low else near
                offset = (4, -3) if is_low else (-4, 3)
                axes.annotate(", ".join(close), (intensity, tflops), offset, **beside)
    report.draw_legend(axes)
    axes.margins(y=0.1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel("FLOP for each byte that a CTA loads")
    axes.set_ylabel("TFLOP/s")


class Ladder(Bench[Row]):
    name, about = "ladder", "a float16 GEMM in eight steps, from basic tiling to clusters"
    title = "The ladder: a float16 GEMM in eight steps"
    row, field, is_gradual = Row, "speed_up", False
    columns = (
        ("step", "name", ""),
        ("us", "microseconds", ".1f"),
        ("TFLOP/s", "tflops", ".1f"),
        ("of torch", "of_torch", ""),
        ("speed-up", "speed_up", ".1f"),
        ("", "note", ""),
    )

    def add_options(self, command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--shape",
            type=_extents,
            default=DEFAULT_EXTENTS,
            metavar="M,N,K",
            help="extents; N and K are multiples of 8 (4096,4096,4096)",
        )

    def measure(self, arguments: argparse.Namespace, document: Document) -> list[Row]:
        document |= {"mnk": arguments.shape, "rates": limits.peak_rates()}
        return measure(arguments.shape)

    def heading(self, document: Document) -> str:
        return f"{self.title}, {_shown(document)} ({document['device']})"

    def remarks(self, rows: Sequence[Row]) -> Iterable[str]:
        timed = {row.name for row in rows}
        missing = [step.name for step in STEPS if step.name not in timed]
        if missing:
            yield f"not timed: {', '.join(missing)}, which need compute capability 9.0"

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        torch = next(row.microseconds for row in rows if row.name == TORCH)
        for row in rows:
            if row.name != TORCH:
                # The steps teach; only the library is for use in torch's place.
                rival = torch if row.name == LIBRARY else None
                yield Entry(row.name, row.microseconds, torch, rival, None, row.note)

    def plot(self, path: Path, document: Document, rows: Sequence[Row]) -> None:
        """Plots the TFLOP/s of the rows and the roofline of the steps. Needs matplotlib."""
        title = f"{self.title} ({document['device']})"
        with report.figure(path, title, (12, 4.2), columns=2) as (left, right):
            draw_bars(left, rows)
            left.set_title(_shown(document))
            draw_roofline(right, document["rates"], rows)


def _extents(text: str) -> tuple[int, int, int]:
    m, n, k = options.extents(text)
    if n % 8 or k % 8:
        raise argparse.ArgumentTypeError(f"{text!r}: N and K must be multiples of 8")
    return m, n, k


def _shown(document: Document) -> str:
    return "x".join(map(str, document["mnk"]))
