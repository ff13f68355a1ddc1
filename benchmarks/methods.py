"""Time of models under ``torch.compile``, with and without our kernels.

Methods: ``eager``; ``compiled``, ATEN and Triton with max-autotune; ``again``, the same compiled
once more; ``ours``, the same with `cutlass_api.inductor` enabled. The difference of ``compiled``
and ``again`` is the spread of Inductor's own choices. In the model ``nvgemm``, ``ours`` is
Inductor's NVGEMM backend alone, and ``added`` is ATEN, Triton and NVGEMM.

Every method compiles with empty caches of its own, except that ``again`` uses the Triton programs
of ``compiled``: it repeats the choices, and its compile time is not reported. Programs of our own
stay in memory from one row to the next.

Each method's output is compared with eager's on inputs that the warm-up has not seen. A method with
a larger error than `compiling.ERROR_LIMIT` is not timed.

The methods take turns; the result is the median over rounds. A turn is a series of calls between
two events, behind a kernel that keeps the GPU busy until the host has enqueued the calls. The
operands of a call exceed the L2 cache.
"""

import gc
import math
import time
import timeit
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from cutlass_api.bench.compiling import (
    BACKENDS,
    cache_folder,
    check_error,
    failure,
    largest_error,
    own_caches,
    own_entry,
    seconds,
    settings,
    start_compiler,
    synchronize,
)
from cutlass_api.bench.generated_code import called_kernels
from cutlass_api.bench.timing import ROUNDS, Timed, between_events, in_turns
from cutlass_api.inductor import _torch as inductor
from cutlass_api.profiling import keep_gpu_busy
from nvidia_cutlass_stub.releases import NVGEMM

from benchmarks import models
from benchmarks.cases import METHODS, NVGEMM_METHODS, Case, Extents, Row

#: Inductor's backends of the methods that differ from ATEN and Triton.
NVGEMM_BACKENDS = {"added": "ATEN,TRITON,NVGEMM", "ours": "NVGEMM"}
QUICK_ROUNDS = 7
#: The duration of a turn, and its largest number of calls.
TURN_SECONDS = 10e-3
TURN_CALLS = 20


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
    extents: Extents = field(default_factory=Extents)
    rounds: int = ROUNDS
    repeat_torch: bool = True
    cache: Path | None = None
    baseline: dict[Case, Row] = field(default_factory=dict)
    code: Path | None = None


@contextmanager
def method_settings(model: str, method: str) -> Iterator[None]:
    """Inductor's settings while a method compiles. Raises RuntimeError if NVGEMM of this torch
    cannot use our kernels."""
    is_nvgemm = model == "nvgemm" and method in NVGEMM_BACKENDS
    backends = NVGEMM_BACKENDS[method] if is_nvgemm else BACKENDS
    if is_nvgemm:
        if not NVGEMM.holds(torch.__version__):
            raise RuntimeError(
                f"NVGEMM of torch {torch.__version__} does not import cutlass_api; "
                f"use torch {NVGEMM}"
            )
        inductor.forget_nvgemm()
    with settings(method == "ours" and not is_nvgemm, backends):
        yield


class Repeated(Timed):
    """A function without arguments that is timed in turns."""

    def __init__(self, call: Callable[[], Any], device: str) -> None:
        super().__init__(self._microseconds, 1)
        self.call, self.device = call, device
        #: Host time of one call in seconds.
        self.host = math.nan

    def warm_up(self, seconds: float | None = None) -> None:
        """Calls three times, and sets the number of calls of a turn."""
        synchronize(self.device)
        begin = time.perf_counter()
        for _ in range(3):
            self.call()
        self.host = (time.perf_counter() - begin) / 3
        synchronize(self.device)
        spent = (time.perf_counter() - begin) / 3
        self._replays = min(max(math.ceil(TURN_SECONDS / spent), 2), TURN_CALLS)
        self.turn()
        self.times.clear()

    def _microseconds(self, calls: int) -> float:
        if self.device == "cuda":
            keep_gpu_busy(self.host * calls)  # while the host enqueues the calls
            return between_events(self.call, calls)
        return 1e6 / calls * timeit.timeit(self.call, number=calls)


class Measurement:
    """All methods of one case."""

    def __init__(self, row: Row, options: Options, log: Callable[[str], None]) -> None:
        self.case, self.row, self.options, self._log = row.case, row, options, log
        self.workload = models.build(row.case, options.extents, options.device)
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
                self.row.failures[method] = failure(error)
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
        def call() -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            return function(*self.workload.inputs)

        self.methods[method] = Repeated(call, self.options.device)

    def _compile(self, method: str, folder: Path) -> None:
        """Compiles, warms up, and compares the output with eager's."""
        from torch._dynamo.utils import counters

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
            mock.patch.object(inductor.GraphLowering, "save_output_code", codes.append),
        ):
            torch.compiler.cudagraph_mark_step_begin()
            first = partial(function, *self.workload.inputs)
            self.row.compile_seconds[method] = seconds(first, self.options.device)
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
        check_error(error)
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
            row.microseconds[method] = timed.median / self.workload.blocks
            row.host[method] = 1e6 * timed.host
        earlier = self.options.baseline.get(self.case)
        if earlier:
            for name in ("microseconds", "compile_seconds", "errors"):
                theirs = getattr(earlier, name)
                torch_only = {"compiled", "again"} & theirs.keys()
                getattr(row, name).update({method: theirs[method] for method in torch_only})
            row.notes.append("compiled and again are from an earlier run")


def measure(
    cases: Iterable[Case], options: Options, log: Callable[[str], None] = lambda _: None
) -> Iterator[Row]:
    """Yields the row of each case. Calls ``log`` with each step.

    An exception in one case is noted in its row, and the other cases go on.
    """
    with torch.no_grad():
        if options.mode != "default":
            spent = start_compiler(options.mode, options.device)
            log(f"compiler started, {spent:.1f} s")
        for case in cases:
            yield _measure_case(case, options, log)
            # Compiled code holds the weights and the memory of CUDA graphs.
            torch._dynamo.reset()
            gc.collect()
            if options.device == "cuda":
                torch.cuda.empty_cache()


def _measure_case(case: Case, options: Options, log: Callable[[str], None]) -> Row:
    row = Row(case.model, case.size, case.blocks)
    with cache_folder(options.cache, str(case)) as folder:
        try:
            Measurement(row, options, log).run(folder)
        except Exception as error:
            row.failures["eager"] = failure(error)
    return row
