"""Time of models under ``torch.compile``, with and without our kernels.

Methods: ``eager``; ``compiled``, ATEN and Triton with max-autotune; ``again``, the same compiled
once more; ``ours``, the same with `cutlass_api.inductor` enabled. The difference of ``compiled``
and ``again`` is the spread of Inductor's own choices. In the model ``nvgemm``, ``ours`` is
Inductor's NVGEMM backend alone, and ``added`` is ATEN, Triton and NVGEMM.

Every method compiles with empty caches of its own, except that ``again`` uses the Triton programs
of ``compiled``: it repeats the choices, and its compile time is not reported. Programs of our own
stay in memory from one row to the next.

Each method's output is compared with eager's on inputs that the warm-up has not seen. A method with
a larger error than `ERROR_LIMIT` is not timed.

The methods take turns; the result is the median over rounds. A turn is a series of calls between
two events, behind a kernel that keeps the GPU busy until the host has enqueued the calls. The
operands of a call exceed the L2 cache.
"""

import gc
import importlib
import json
import math
import os
import re
import statistics
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any
from unittest import mock

from cutlass_api.bench import report
from cutlass_api.profiling import keep_gpu_busy
from cutlass_api.tuning._search import in_turns

if TYPE_CHECKING:
    from cutlass_api.bench.models import Workload

MODELS = ("mlp", "gelu_mlp", "llama", "epilogue", "nvgemm")
METHODS = ("eager", "compiled", "again", "ours")
NVGEMM_METHODS = ("eager", "compiled", "again", "added", "ours")
#: Inductor's backends of the methods that differ from ATEN and Triton.
NVGEMM_BACKENDS = {"added": "ATEN,TRITON,NVGEMM", "ours": "NVGEMM"}
TOKENS: dict[str, Sequence[int]] = {"llama": (1, 16, 512)}
MLP_TOKENS = (1, 4, 16, 64, 256, 2048)
BLOCKS, QUICK_BLOCKS = 8, 2
#: The largest relative norm error of a row of the output, against eager, in bfloat16.
ERROR_LIMIT = 2e-2
ROUNDS, QUICK_ROUNDS = 15, 7
#: The duration of a turn, and its largest number of calls.
TURN_SECONDS = 10e-3
TURN_CALLS = 20


@dataclass(frozen=True)
class Extents:
    """Extents of the models. ``products`` are the (M, N, K) of the model ``epilogue``."""

    hidden: int = 4096
    intermediate: int = 11008
    llama_intermediate: int = 14336
    heads: int = 32
    key_value_heads: int = 8
    products: tuple[tuple[int, int, int], ...] = (
        (16, 11008, 4096),
        (512, 11008, 4096),
        (4096, 11008, 4096),
        (4096, 4096, 4096),
    )


@dataclass(frozen=True)
class Case:
    """One row to measure. ``size``: the number of tokens, or M, N and K."""

    model: str
    size: tuple[int, ...]
    blocks: int

    def __str__(self) -> str:
        return f"{self.model} {'x'.join(map(str, self.size))}"


def baseline(model: str) -> str:
    """The method that ours is compared with: eager for NVGEMM, else torch's choices."""
    return "eager" if model == "nvgemm" else "compiled"


@dataclass
class Row:
    """The results of one case, by method. Times are in microseconds and of one block."""

    model: str
    size: tuple[int, ...]
    blocks: int
    microseconds: dict[str, float] = field(default_factory=dict)
    #: Seconds of the first call.
    compile_seconds: dict[str, float] = field(default_factory=dict)
    #: The largest relative norm error of a row of the output.
    errors: dict[str, float] = field(default_factory=dict)
    #: Host time of one call of all blocks, in microseconds.
    host: dict[str, float] = field(default_factory=dict)
    #: How often the generated code calls each GEMM kernel.
    kernels: dict[str, dict[str, int]] = field(default_factory=dict)
    #: The time of each turn.
    turns: dict[str, list[float]] = field(default_factory=dict)
    #: Why a method has no time.
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(Case(self.model, self.size, self.blocks))

    @property
    def ratio(self) -> float:
        """The time of torch over ours, or NaN."""
        torch = self.microseconds.get(baseline(self.model), math.nan)
        return torch / self.microseconds.get("ours", math.nan)

    @property
    def spread(self) -> float:
        """The difference of the two compilations by torch over the time of the first, or NaN."""
        first = self.microseconds.get("compiled", math.nan)
        return abs(first - self.microseconds.get("again", math.nan)) / first

    @property
    def compile_ratio(self) -> float:
        """Our compile time over that of torch, or NaN."""
        torch = self.compile_seconds.get("compiled", math.nan)
        return self.compile_seconds.get("ours", math.nan) / torch


@dataclass(frozen=True)
class Options:
    """How to measure.

    - ``repeat_torch``: whether to compile torch's choice twice.
    - ``cache``: a folder that keeps all caches between runs, or None for empty ones. Compile times
      mean nothing with it.
    - ``baseline``: rows of an earlier run, by case, which replace ``compiled`` and ``again``.
    - ``code``: a folder for the generated code.
    """

    device: str = "cuda"
    mode: str = "max-autotune"
    extents: Extents = Extents()
    rounds: int = ROUNDS
    repeat_torch: bool = True
    cache: Path | None = None
    baseline: dict[Case, Row] = field(default_factory=dict)
    code: Path | None = None


def cases(
    models: Iterable[str],
    tokens: Sequence[int] | None = None,
    blocks: int = BLOCKS,
    extents: Extents | None = None,
) -> list[Case]:
    """The rows of these models. ``tokens`` replaces the defaults of all models but ``epilogue``."""
    extents = extents or Extents()
    found: list[Case] = []
    for model in models:
        if model == "epilogue":
            found += [Case(model, product, 1) for product in extents.products]
        else:
            counts: Sequence[int] = tokens or TOKENS.get(model, MLP_TOKENS)
            found += [Case(model, (n,), 1 if model == "llama" else blocks) for n in counts]
    return found


def read_rows(path: Path) -> dict[Case, Row]:
    """The rows in a JSON file of this benchmark, by case. Raises ValueError for another file."""
    try:
        rows = [
            Row(**entry | {"size": tuple(entry["size"])})
            for entry in json.loads(path.read_text())["rows"]
        ]
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no results of `bench compile`: {error!r}") from None
    return {Case(row.model, row.size, row.blocks): row for row in rows}


#: Triple-quoted text in generated code: sources of kernels.
_QUOTED = re.compile(r"'''.*?'''|\"\"\".*?\"\"\"", re.DOTALL)
_CALL = re.compile(r"[A-Za-z_][\w.]*(?=\()")


def called_kernels(code: str) -> Counter[str]:
    """How often generated code calls each GEMM kernel and each other external kernel.

    Names hold ``cutlass_api`` for our operators, ``nv_universal_gemm`` for NVGEMM's, and begin with
    ``triton_tem`` for Triton's templates and with ``extern_kernels.`` for ATEN's.
    """
    calls: Counter[str] = Counter()
    for name in _CALL.findall(_QUOTED.sub("", code)):
        if name.startswith("extern_kernels.") or "cutlass_api" in name:
            calls[name] += 1
        elif name.endswith(".run") and ("triton_tem" in name or "nv_universal_gemm" in name):
            calls[name.removesuffix(".run")] += 1
    return calls


def kinds(calls: dict[str, int]) -> tuple[int, int, int]:
    """The number of calls of our kernels, of ATEN's and of Triton's templates."""
    ours = sum(
        calls[name] for name in calls if "cutlass_api" in name or "nv_universal_gemm" in name
    )
    triton = sum(calls[name] for name in calls if "triton_tem" in name)
    return ours, sum(calls.values()) - ours - triton, triton


@contextmanager
def own_caches(folder: Path, triton: Path, programs: Path | None) -> Iterator[None]:
    """Puts the caches of Inductor and Triton, and optionally of our programs, into folders."""
    from torch._inductor import utils

    # Inductor's caches in memory refer to files of the previous folder.
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(triton)}
    if programs:
        variables["CUTLASS_API_CACHE_DIR"] = str(programs)
    utils.clear_caches()
    try:
        with mock.patch.dict(os.environ, variables):
            yield
    finally:
        utils.clear_caches()


@contextmanager
def method_settings(model: str, method: str) -> Iterator[None]:
    """Inductor's settings while a method compiles."""
    from torch._inductor import config

    with ExitStack() as stack:
        if model == "nvgemm" and method in NVGEMM_BACKENDS:
            _forget_nvgemm()
            backends = NVGEMM_BACKENDS[method]
            stack.enter_context(config.patch(max_autotune_gemm_backends=backends))
        else:
            stack.enter_context(config.patch(max_autotune_gemm_backends="ATEN,TRITON"))
            if method == "ours":
                stack.enter_context(importlib.import_module("cutlass_api.inductor").enabled())
        yield


def _forget_nvgemm() -> None:
    """Clears what torch remembers of NVGEMM. Raises RuntimeError if torch cannot use ours."""
    import torch
    from torch._inductor import utils

    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if not (2, 11) <= version <= (2, 13):
        raise RuntimeError(
            f"NVGEMM of torch {torch.__version__} does not import cutlass_api; "
            "use torch 2.11, 2.12 or 2.13"
        )
    for name in ("ensure_cute_available", "ensure_nv_universal_gemm_available"):
        probe = getattr(utils, name, None)
        if probe is not None and hasattr(probe, "cache_clear"):
            probe.cache_clear()
    kernels = importlib.import_module("torch._inductor.codegen.nv_universal_gemm.kernel_cache")
    kernels.clear_cache()


def own_entry(module: Any, name: str) -> Any:
    """A function that calls the module. It has a code object of its own.

    Dynamo keeps compiled code by code object, so that several compilations of one module exist
    side by side only if each has its own.
    """

    def entry(*inputs: Any) -> Any:
        return module(*inputs)

    code = entry.__code__.replace(co_name=name)
    return FunctionType(code, entry.__globals__, name, None, entry.__closure__)


class Repeated:
    """A function without arguments that is timed in turns."""

    def __init__(self, call: Callable[[], Any], device: str) -> None:
        self.call, self.device = call, device
        self.times: list[float] = []
        #: Host time of one call in seconds.
        self.host = math.nan
        self._calls, self._lead = 1, 0.0

    def warm_up(self) -> None:
        """Calls three times, and sets the number of calls of a turn and its lead."""
        synchronize(self.device)
        begin = time.perf_counter()
        for _ in range(3):
            self.call()
        self.host = (time.perf_counter() - begin) / 3
        synchronize(self.device)
        seconds = (time.perf_counter() - begin) / 3
        self._calls = min(max(math.ceil(TURN_SECONDS / seconds), 2), TURN_CALLS)
        self._lead = self.host * self._calls
        self.turn()
        self.times.clear()

    def turn(self) -> float:
        """Runs the calls of one turn. Returns and records the microseconds of one call."""
        seconds = self._gpu_seconds() if self.device == "cuda" else self._host_seconds()
        self.times.append(1e6 * seconds / self._calls)
        return self.times[-1]

    def _gpu_seconds(self) -> float:
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        keep_gpu_busy(self._lead)  # while the host enqueues the calls
        begin.record()
        for _ in range(self._calls):
            self.call()
        end.record()
        end.synchronize()
        return float(1e-3 * begin.elapsed_time(end))

    def _host_seconds(self) -> float:
        begin = time.perf_counter()
        for _ in range(self._calls):
            self.call()
        return time.perf_counter() - begin


def synchronize(device: str) -> None:
    """Waits for the GPU."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def largest_error(out: Any, expected: Any) -> float:
    """The largest relative norm error of a row, over all tensors of an output."""
    if isinstance(expected, (list, tuple)):
        return max(largest_error(*pair) for pair in zip(out, expected, strict=True))
    reference = expected.reshape(-1, expected.shape[-1]).float()
    difference = out.reshape(reference.shape).float() - reference
    # NaN in one row makes the maximum NaN.
    return float((difference.norm(dim=1) / reference.norm(dim=1)).max())


class Measurement:
    """All methods of one case."""

    def __init__(self, row: Row, options: Options, log: Callable[[str], None]) -> None:
        from cutlass_api.bench import models

        case = Case(row.model, row.size, row.blocks)
        self.case, self.row, self.options, self._log = case, row, options, log
        self.workload: Workload = models.build(case, options.extents, options.device)
        self.methods: dict[str, Repeated] = {}
        self.expected: Any = None

    def run(self, folder: Path) -> None:
        """Compiles and times the methods. A failure of one method leaves the others."""
        self.expected = self.workload.module(*self.workload.other_inputs)
        self._add("eager", self.workload.module)
        for method in self._to_compile():
            begin = time.perf_counter()
            try:
                self._compile(method, folder)
            except Exception as error:
                self.row.failures[method] = _failure(error)
            self._log(
                f"{self.case}: {method}, {time.perf_counter() - begin:.1f} s"
                + (f", {self.row.failures[method]}" if method in self.row.failures else "")
            )
        self._time()

    def _to_compile(self) -> list[str]:
        _, *methods = NVGEMM_METHODS if self.case.model == "nvgemm" else METHODS
        if self.case in self.options.baseline:
            return [method for method in methods if method not in ("compiled", "again")]
        return [method for method in methods if method != "again" or self.options.repeat_torch]

    def _add(self, method: str, function: Callable[..., Any]) -> None:
        import torch

        def call() -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return function(*self.workload.inputs)

        self.methods[method] = Repeated(call, self.options.device)

    def _compile(self, method: str, folder: Path) -> None:
        """Compiles, warms up, and compares the output with eager's."""
        import torch
        from torch._dynamo.utils import counters
        from torch._inductor.graph import GraphLowering

        codes: list[str] = []
        name = f"{self.case.model}_{'x'.join(map(str, self.case.size))}_{method}"
        function = torch.compile(
            own_entry(self.workload.module, name), mode=self.options.mode, dynamic=False
        )
        skips = counters["inductor"]["cudagraph_skips"]
        own, triton = folder / method, folder / ("compiled" if method == "again" else method)
        programs = None if self.options.cache else own / "programs"
        with (
            own_caches(own, triton / "triton", programs),
            method_settings(self.case.model, method),
            mock.patch.object(GraphLowering, "save_output_code", codes.append),
        ):
            synchronize(self.options.device)
            begin = time.perf_counter()
            torch.compiler.cudagraph_mark_step_begin()
            function(*self.workload.inputs)
            synchronize(self.options.device)
            self.row.compile_seconds[method] = time.perf_counter() - begin
            # With CUDA graphs, the second call captures and later calls replay.
            for _ in range(3):
                torch.compiler.cudagraph_mark_step_begin()
                function(*self.workload.inputs)
            torch.compiler.cudagraph_mark_step_begin()
            out = function(*self.workload.other_inputs)
            error = largest_error(out, self.expected)
        # torch may report one module twice.
        code = "\n".join(dict.fromkeys(codes))
        if self.options.code:
            (self.options.code / f"{name}.py").write_text(code)
        self.row.kernels[method] = dict(called_kernels(code))
        self.row.errors[method] = error
        if counters["inductor"]["cudagraph_skips"] > skips:
            self.row.notes.append(f"{method} runs without CUDA graphs")
        if not error <= ERROR_LIMIT:
            raise ArithmeticError(f"relative error {error:.3g} exceeds {ERROR_LIMIT}")
        self._add(method, function)

    def _time(self) -> None:
        from torch._dynamo.utils import counters

        row, graphs = self.row, counters["stats"]["unique_graphs"]
        in_turns(self.methods, self.options.rounds)
        if counters["stats"]["unique_graphs"] > graphs:
            raise RuntimeError(
                "Dynamo compiled during the timing, so the methods' settings are lost; "
                "call torch._dynamo.reset() neither in enable() nor in disable()"
            )
        for method, timed in self.methods.items():
            row.turns[method] = [round(time / self.workload.blocks, 3) for time in timed.times]
            row.microseconds[method] = statistics.median(timed.times) / self.workload.blocks
            row.host[method] = 1e6 * timed.host
        earlier = self.options.baseline.get(self.case)
        if earlier:
            for method in ("compiled", "again"):
                for ours, theirs in (
                    (row.microseconds, earlier.microseconds),
                    (row.compile_seconds, earlier.compile_seconds),
                    (row.errors, earlier.errors),
                ):
                    if method in theirs:
                        ours[method] = theirs[method]
            row.notes.append("compiled and again are from an earlier run")


def measure(
    cases: Iterable[Case],
    options: Options,
    show: Callable[[Row], None],
    log: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Measures all cases. Calls ``show`` with each finished row and ``log`` with each step.

    An exception in one case is noted in its row, and the other cases go on.
    """
    import torch

    rows = []
    with torch.no_grad():
        if options.mode != "default":
            _start_compiler(options, log)
        for case in cases:
            rows.append(_measure_case(case, options, log))
            show(rows[-1])
            # Compiled code holds the weights and the memory of CUDA graphs.
            torch._dynamo.reset()
            gc.collect()
            if options.device == "cuda":
                torch.cuda.empty_cache()
    return rows


def _measure_case(case: Case, options: Options, log: Callable[[str], None]) -> Row:
    row = Row(case.model, case.size, case.blocks)
    with ExitStack() as stack:
        if options.cache:
            folder = options.cache / str(case).replace(" ", "_")
        else:
            # A worker of Inductor may still write into the folder when it is removed.
            temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
        try:
            Measurement(row, options, log).run(folder)
        except Exception as error:
            row.failures["eager"] = _failure(error)
    return row


def _failure(error: Exception) -> str:
    """The first line of an error, of which the traceback is printed."""
    traceback.print_exception(error)
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def _start_compiler(options: Options, log: Callable[[str], None]) -> None:
    """Compiles a small product: torch's first compilation also imports and starts workers."""
    import torch

    begin = time.perf_counter()
    function = torch.compile(own_entry(torch.mm, "start"), mode=options.mode, dynamic=False)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with own_caches(folder, folder / "triton", None), method_settings("start", "compiled"):
            a = torch.randn(64, 64, device=options.device, dtype=torch.bfloat16)
            for _ in range(3):
                function(a, a)
            synchronize(options.device)
    torch._dynamo.reset()
    log(f"compiler started, {time.perf_counter() - begin:.1f} s")


def means(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """By model: the geometric mean and the least of the ratios, and the mean of compile times."""
    by_model: dict[str, list[Row]] = {}
    for row in rows:
        by_model.setdefault(row.model, []).append(row)
    found: dict[str, dict[str, float]] = {}
    for model, group in by_model.items():
        ratios = [row.ratio for row in group if not math.isnan(row.ratio)]
        compiles = [row.compile_ratio for row in group if not math.isnan(row.compile_ratio)]
        found[model] = {"rows": len(group), "rows without a ratio": len(group) - len(ratios)}
        if ratios:
            found[model]["ratio"] = statistics.geometric_mean(ratios)
            found[model]["least ratio"] = min(ratios)
        if compiles:
            found[model]["compile time"] = statistics.geometric_mean(compiles)
    return found


TITLE = "Compiled models"
HEADER = (
    "model",
    "eager us",
    "compiled us",
    "again us",
    "added us",
    "ours us",
    "ratio",
    "spread",
    "compile s",
    "ours s",
    "error",
    "ours+ATEN+Triton",
)


def line(row: Row) -> tuple[str, ...]:
    """The cells of a row of the table. The last counts the kernels of our run by kind."""

    def number(value: float | None, form: str) -> str:
        return "" if value is None or math.isnan(value) else format(value, form)

    calls = row.kernels.get("ours")
    return (
        row.name,
        *(
            "failed" if method in row.failures else number(row.microseconds.get(method), ".1f")
            for method in NVGEMM_METHODS
        ),
        number(row.ratio, ".3f"),
        number(row.spread, ".1%"),
        number(row.compile_seconds.get("compiled"), ".1f"),
        number(row.compile_seconds.get("ours"), ".1f"),
        number(row.errors.get("ours"), ".1e"),
        "" if calls is None else "+".join(map(str, kinds(calls))),
    )


def write_json(path: Path, context: dict[str, Any], rows: Sequence[Row]) -> None:
    """Writes rows and their means as JSON, after the entries of ``context`` (device, versions)."""
    entries = [asdict(row) for row in rows]
    path.write_text(json.dumps({**context, "means": means(rows), "rows": entries}, indent=1) + "\n")


def write_plot(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Plots torch's time over ours. Needs matplotlib."""
    compared = [row for row in rows if not math.isnan(row.ratio)]
    names = [row.name for row in compared]
    ratios = [row.ratio for row in compared]
    report.write_ratios(path, title, names, ratios, "torch's time / ours")


__all__ = [
    "HEADER",
    "Case",
    "Extents",
    "Options",
    "Row",
    "baseline",
    "called_kernels",
    "cases",
    "line",
    "means",
    "measure",
    "read_rows",
    "write_json",
    "write_plot",
]
