"""GPU time of products with the weights of a Llama model in 4 and 8 bits: Rutlass, torch, Triton
and, if installed, ``cutlass.operators`` and the packages of :mod:`cutlass_api.bench.peers`.

The weights are those of a 7 B model (PyTorch pull request 119685). Times are taken as in
:mod:`cutlass_api.bench.gemm`: operands larger than L2, CUDA graphs, methods in turns, medians.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import cutlass_api
from cutlass_api.arguments import EpilogueArguments, GemmArguments, PerformanceControls
from cutlass_api.bench import options, peers, report
from cutlass_api.bench.base import Bench, Column, Document, Entry, both, deviation
from cutlass_api.bench.limits import WEIGHT_BYTES, copy_rate, sets_beyond_l2
from cutlass_api.bench.timing import Contest, Timed, capture, time_operators

#: Output features and input features of the weights.
WEIGHTS = ((4096, 11008), (12288, 4096), (22016, 4096), (4096, 4096), (65536, 4096))
#: Rows of the activations.
ROWS = (1, 16, 64, 256, 1024, 4096)
#: The kinds of products:
#: - int8: int8 times int8 into int32; torch: ``torch._int_mm``, which refuses up to 16 rows.
#: - mixed: float16 times int8 into float16; torch: ``torch.mm(a, b.to(a.dtype))``.
#: - fp8, fp8-row: e4m3 times e4m3 into bfloat16 with a scale a tensor, or one a row of A and a
#:   column of B; torch: ``torch._scaled_mm``.
#: - fp8-fast: as fp8; torch adds up in the registers of tensor cores alone (``use_fast_accum``).
#: - fp8-block: e4m3 times e4m3 into bfloat16 with a scale each 128 elements of a row of A and each
#:   128 x 128 block of B; torch: ``torch._scaled_mm``, which needs a multiple of 4 rows.
#: - int4, uint4, mxfp4, nvfp4, fp8w: bfloat16 times a weight of :data:`FORMATS`; torch: its product
#:   with the weight in bfloat16, which reads two to four times the bytes.
KINDS = ("int8", "mixed", "fp8", "fp8-row", "fp8-fast", "fp8-block")
#: Functions of ``cutlass_api.quantize``.
FORMATS = {"int4": "int4", "uint4": "uint4", "mxfp4": "mxfp4", "nvfp4": "nvfp4", "fp8w": "fp8"}

#: The backends, by the field of a row that holds the time: the column's title and the bar's label,
#: and the bar's color.
BACKENDS = {
    "torch": ("torch", "#bbbbbb"),
    "triton": ("Triton", "#ccbb44"),
    "operators": ("cutlass.operators", "#66ccee"),
    **{name: (name, color) for name, (_, _, color) in peers.PEERS.items()},
    "first": ("Rutlass, ranked first", "#4477aa"),
}

#: The epilogue of fp8-block.
BLOCK_SCALED = """
def epilogue(accum, scale_a, scale_b):
    D = scale_blocks(accum, scale_a, scale_b, a_block=(1, 128), b_block=(128, 128))
    return D
"""


class Unserved(Exception):
    """No kernel serves a product; the reason."""


@dataclass
class Row:
    """The times of one product, in microseconds; None for a method that does not serve it."""

    kind: str
    rows: int
    #: Output and input features.
    weight: tuple[int, int]
    torch: float | None
    triton: float | None
    #: The kernel that ranks first, and the fastest of all.
    first: float
    best: float
    kernel: str
    best_kernel: str
    #: The time to read the weights at the rate of a copy on this GPU.
    read: float
    operators: float | None = None
    marlin: float | None = None
    machete: float | None = None
    humming: float | None = None
    gemlite: float | None = None
    #: The quartiles of the turns of ``torch`` and ``first``.
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return product(self.kind, self.rows, self.weight)


class Operands:
    """Sets of operands of one product: the weights exceed twice L2 and have `WEIGHT_BYTES`."""

    def __init__(self, kind: str, rows: int, weight: tuple[int, int]) -> None:
        import torch

        self.kind = kind
        n, k = weight
        bytes_of_set = k * n // (2 if "4" in kind else 1)
        count = sets_beyond_l2(bytes_of_set, WEIGHT_BYTES)
        self.sets = [self._operands(rows, n, k) for _ in range(count)]
        self.stream = torch.cuda.Stream()

    def _operands(self, m: int, n: int, k: int) -> tuple[Any, ...]:
        """A, B, the output, and the scales of A and B, or B in bfloat16 of a weight."""
        import torch

        from cutlass_api import quantize

        random = partial(torch.randn, device="cuda")
        integers = partial(torch.randint, -128, 128, device="cuda", dtype=torch.int8)
        empty = partial(torch.empty, m, n, device="cuda")
        if self.kind == "int8":
            return integers((m, k)), integers((n, k)).mT, empty(dtype=torch.int32)
        if self.kind in FORMATS:
            a, w = (random(*shape, dtype=torch.bfloat16) for shape in ((m, k), (n, k)))
            weight = getattr(quantize, FORMATS[self.kind])(w)
            dense = weight.dequantize(torch.bfloat16).mT
            return a, weight.repack(), empty(dtype=torch.bfloat16), dense
        if self.kind == "mixed":
            a = random(m, k, dtype=torch.float16)
            return a, integers((n, k)).mT, empty(dtype=torch.float16)
        if self.kind == "fp8-block":
            x, w = (random(*shape, dtype=torch.bfloat16) for shape in ((m, k), (n, k)))
            a, scale_a = quantize.per_block(x, block=(1, 128))
            b, scale_b = quantize.per_block(w, block=(128, 128))
            return a, b.mT, empty(dtype=torch.bfloat16), scale_a, scale_b.mT
        a, b = (random(*shape).to(torch.float8_e4m3fn) for shape in ((m, k), (n, k)))
        shapes = ((m, 1), (1, n)) if self.kind == "fp8-row" else ((1,), (1,))
        scales = (torch.rand(*shape, device="cuda") + 0.5 for shape in shapes)
        return a, b.mT, empty(dtype=torch.bfloat16), *scales

    def torch_method(self) -> tuple[Callable[..., Any], list[tuple[Any, ...]]] | None:
        """torch's product of a set of operands, and the sets; None where torch refuses them."""
        import torch

        if self.kind == "int8":
            if self.sets[0][0].shape[0] <= 16:
                return None
            return lambda a, b, out: torch._int_mm(a, b), self.sets
        if self.kind in FORMATS:
            return lambda a, weight, out, dense: torch.mm(a, dense), self.sets
        if self.kind == "mixed":
            return lambda a, b, out: torch.mm(a, b.to(a.dtype)), self.sets
        is_fast = self.kind == "fp8-fast"

        def scaled(a: Any, b: Any, out: Any, scale_a: Any, scale_b: Any) -> Any:
            return torch._scaled_mm(
                a, b, scale_a, scale_b, out_dtype=out.dtype, use_fast_accum=is_fast
            )

        if self.kind != "fp8-block":
            return scaled, self.sets
        # Versions of torch require a leading dimension of B's scales that is a multiple of 4, or
        # one without padding.
        for sets in (self.sets, [(*rest, b.mT.contiguous().mT) for *rest, b in self.sets]):
            try:
                scaled(*sets[0])
            except (RuntimeError, ValueError):
                continue
            return scaled, sets
        return None

    def arguments(self) -> list[GemmArguments]:
        accumulator = "int32" if self.kind == "int8" else "float32"
        if self.kind in FORMATS or not self.kind.startswith("fp8"):
            return [GemmArguments(a, b, out, accumulator) for a, b, out, *_ in self.sets]
        from cutlass_api.ops import _epilogues

        is_blocked = self.kind == "fp8-block"
        source = BLOCK_SCALED if is_blocked else _epilogues.scaled("scale_a", "scale_b")
        controls = PerformanceControls(fast_sums=self.kind == "fp8-fast")
        return [
            GemmArguments(
                *(a, b, out, accumulator),
                EpilogueArguments(source, scale_a=scale_a, scale_b=scale_b, D=out),
                controls,
            )
            for a, b, out, scale_a, scale_b in self.sets
        ]


def measure_row(
    kind: str,
    rows: int,
    weight: tuple[int, int],
    pool: ThreadPoolExecutor,
    *,
    rate: float,
    with_triton: bool,
    others: Sequence[str] = (),
) -> Row:
    """Times one product with each method. Prints the reason if Triton or one of ``others``, the
    peers, fails. Raises :class:`Unserved` without a kernel.
    """
    import torch

    operands = Operands(kind, rows, weight)
    try:
        all_args = operands.arguments()
        kernels = cutlass_api.get_kernels(all_args[0])
    except ValueError as error:
        raise Unserved(str(error)) from None
    if not kernels:
        raise Unserved("no kernel serves these operands")
    # CUDA cores take many times as long.
    kernels = [k for k in kernels if "simt" not in k.metadata.kernel_name] or kernels
    contest = Contest(kernels, all_args, operands.stream, pool)
    methods = contest.methods
    theirs = operands.torch_method()
    if theirs:
        function, sets = theirs
        methods["torch"] = capture(operands.stream, [partial(function, *each) for each in sets])
        if with_triton and kind not in FORMATS:
            try:
                methods["triton"] = _triton(operands.stream, function, sets)
            except Exception as error:  # inductor has no template, or none of them compiles
                reason = str(error).partition("\n")[0]
                name = product(kind, rows, weight)
                print(f"{name}: Triton fails: {type(error).__name__}: {reason}", flush=True)
    # cutlass.operators takes no scales of tensors, rows or blocks in float32.
    first = operands.sets[0][1]
    if kind in FORMATS:
        stored = [(a, b.unpack()) for a, b, *_ in operands.sets]
        name = product(kind, rows, weight)
        methods.update(peers.captured(name, others, stored, operands.stream))
        read = sum(tensor.nbytes for tensor in first.tensors().values())
    else:
        read = math.prod(weight) * first.element_size()
    if kind not in FORMATS and not kind.startswith("fp8"):
        accumulator = torch.int32 if kind == "int8" else torch.float32
        found = time_operators(operands.sets, operands.stream, accumulator)
        if found:
            methods["operators"] = found
    times = contest.times()
    row = Row(
        kind=kind,
        rows=rows,
        weight=weight,
        torch=contest.median("torch"),
        triton=contest.median("triton"),
        operators=contest.median("operators"),
        read=1e6 * read / rate,
        **times,
    )
    of_peers: dict[str, Any] = {name: contest.median(name) for name in peers.PEERS}
    return replace(row, **of_peers)


def _triton(stream: Any, function: Callable[..., Any], sets: list[tuple[Any, ...]]) -> Timed:
    """torch's function, compiled with Triton's templates only."""
    import torch

    from cutlass_api.inductor._torch import config

    torch._dynamo.reset()
    settings = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
    with config.patch(settings):
        compiled = torch.compile(function, dynamic=False)
        return capture(stream, [partial(compiled, *each) for each in sets])


def measure(
    kinds: Sequence[str],
    rows: Sequence[int],
    with_triton: bool = True,
    weights: Sequence[tuple[int, int]] | None = None,
) -> Iterator[Row]:
    """Times all weights with these numbers of rows. Prints which products no kernel serves, or
    Triton fails on, and the reason.

    - ``with_triton``: whether to time Triton, if it is installed.
    - ``weights``: their extents; None: those of the Llama.
    """
    import torch

    with_triton = with_triton and find_spec("triton") is not None
    others = peers.installed() if FORMATS.keys() & set(kinds) else []
    options: dict[str, Any] = {"rate": copy_rate(), "with_triton": with_triton, "others": others}
    with ThreadPoolExecutor() as pool:
        for kind, count, weight in itertools.product(kinds, rows, weights or WEIGHTS):
            try:
                yield measure_row(kind, count, weight, pool, **options)
            except Unserved as reason:
                print(f"{product(kind, count, weight)}: skipped: {reason}", flush=True)
            torch.cuda.empty_cache()


def product(kind: str, rows: int, weight: tuple[int, int]) -> str:
    """The name of a product: its kind, and M x N x K."""
    n, k = weight
    return f"{kind} {rows}x{n}x{k}"


def backends(rows: Sequence[Row]) -> list[str]:
    """The backends that have a time in a row."""
    return [name for name in BACKENDS if any(getattr(row, name) is not None for row in rows)]


class Llama(Bench[Row]):
    name, about = "llama", "GPU time of products with a Llama's weights in 4 and 8 bits"
    title = "Products with the weights of a Llama"
    row, field = Row, "weight"
    columns = (
        ("product", "name", ""),
        *((f"{BACKENDS[name][0]} us", name, ".1f") for name in BACKENDS if name != "first"),
        ("first us", "first", ".1f"),
        ("best us", "best", ".1f"),
        ("torch/first", lambda row: row.torch and row.torch / row.first, ".2f"),
        ("read/first", lambda row: row.read / row.first, ".2f"),
        ("", "kernel", ""),
    )

    def columns_of(self, rows: Sequence[Row]) -> Sequence[Column]:
        """The columns, without those of backends that have no time."""
        missing = BACKENDS.keys() - backends(rows)
        return [column for column in self.columns if column[1] not in missing]

    def add_options(self, command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--dtype", nargs="+", choices=(*KINDS, *FORMATS), default=["int8"], help="operands"
        )
        options.add_counts(command, "--rows", "rows of the activations", ROWS)
        command.add_argument(
            "--weights",
            nargs="+",
            type=options.matrix,
            metavar="N,K",
            help="output and input features of other weights than a Llama's",
        )
        command.add_argument(
            "--no-triton",
            action="store_true",
            help="do not time torch.compile with Triton's kernels",
        )

    def measure(self, arguments: argparse.Namespace, document: Document) -> Iterator[Row]:
        with_triton = not arguments.no_triton
        return measure(arguments.dtype, arguments.rows, with_triton, arguments.weights)

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        for row in rows:
            ours = deviation(row.first, row.quartiles.get("first"))
            theirs = deviation(row.torch, row.quartiles.get("torch")) if row.torch else None
            noise = both(ours, theirs)
            yield Entry(row.name, row.first, row.torch, row.torch, noise, row.kernel)

    def summary(self, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
        """For each kind: torch's time over ours, its geometric mean and the lowest, for the kernel
        that ranks first; and the share of the time to read the weights, up to 64 rows and from
        40 MB on."""
        found: dict[str, dict[str, float]] = {}
        for kind in dict.fromkeys(row.kind for row in rows):
            of_kind = [row for row in rows if row.kind == kind]
            ratios = [row.torch / row.first for row in of_kind if row.torch]
            large = [row for row in of_kind if row.rows <= 64 and math.prod(row.weight) >= 40e6]
            found[kind] = {}
            if ratios:
                found[kind] |= {"torch / first": geometric_mean(ratios), "lowest": min(ratios)}
            if large:
                share = min(row.read / row.first for row in large)
                found[kind]["least share of reading the weights"] = share
        return found

    def plot(self, path: Path, document: Document, rows: Sequence[Row]) -> None:
        """Plots the times: for each product one bar a backend. Needs matplotlib."""
        bars = [
            (*BACKENDS[name], [getattr(row, name) or math.nan for row in rows])
            for name in backends(rows)
        ]
        with report.figure(path, self.heading(document), (0.4 * len(rows) + 2, 4.8)) as axes:
            report.draw_groups(axes, [row.name for row in rows], bars)
            axes.set_yscale("log")
            axes.set_ylabel("microseconds")
            report.draw_legend(axes)
