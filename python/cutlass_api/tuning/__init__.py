"""The autotuner: times kernels on the operands at hand, and remembers the fastest.

:func:`autotune` times the kernels that serve arguments and keeps the results in a SQLite file in
the cache directory. From then on ``get_kernels``, ``matmul``, the operators and
:mod:`cutlass_api.inductor` rank the measured kernels of such a problem first, in every process on
such a device. The environment variable ``CUTLASS_API_TUNE`` is ``use`` by default; ``off`` ignores
the file, and ``record`` also tunes each new problem of ``matmul`` and the operators at its first
call.
"""

import json
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from cutlass_api import _core
from cutlass_api._core import Kernel, TuningBenchmark
from cutlass_api.tuning._progress import progress_bar
from cutlass_api.tuning._search import Deadline, Timed, in_turns, sift

#: Kernels that a halving search times: the first by the cost model.
CANDIDATES = 24
#: Kernels that all rounds time, and the rounds.
FINALISTS, ROUNDS = 4, 9
#: Results that the store keeps of one problem.
KEPT = 8

#: Batch (or groups), M, N and K.
Extents = tuple[int, int, int, int]


@dataclass(frozen=True)
class Trial:
    """What was measured of one kernel.

    - ``kernel``: its name.
    - ``microseconds``: the median time of one launch; NaN if ``error`` says why there is none.
    - ``turns``: how often it was timed.
    - ``error``: why it could not be timed, or None.
    """

    kernel: str
    microseconds: float
    turns: int
    error: str | None = None


@dataclass(frozen=True)
class TuningResult:
    """The measurements of :func:`autotune`, fastest first.

    - ``winner``: the fastest kernel.
    - ``device``: the device's name.
    - ``key``: the problem's key in the store.
    - ``trials``: what was measured of each kernel; kernels that failed come last.
    - ``untried``: kernels that the search left out.
    """

    winner: Kernel
    device: str
    key: str
    trials: tuple[Trial, ...]
    untried: int = 0
    kernels: tuple[Kernel, ...] = field(default=(), repr=False, compare=False)

    @property
    def microseconds(self) -> float:
        """The time of the winner."""
        return self.trials[0].microseconds

    def to_json(self) -> str:
        """The result as JSON."""
        content = {
            "device": self.device,
            "key": self.key,
            "winner": self.winner.metadata.kernel_name,
            "untried": self.untried,
            "trials": [
                {**asdict(trial), "microseconds": None if trial.error else trial.microseconds}
                for trial in self.trials
            ],
        }
        return json.dumps(content, indent=1)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        for trial in self.trials:
            if trial.error is None:
                slower = trial.microseconds / self.microseconds
                yield f"{trial.microseconds:.2f}", f"{slower:.3f}", trial.kernel
            else:
                yield "-", "-", f"{trial.kernel}: {trial.error}"

    def __str__(self) -> str:
        lines = [f"{self.key} on {self.device}", f"{'us':>10}  {'to best':>7}  kernel"]
        lines += [f"{time:>10}  {ratio:>7}  {name}" for time, ratio, name in self._rows()]
        if self.untried:
            lines.append(f"{self.untried} further kernels were not timed")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._rows()
        )
        return (
            f"<p>{escape(self.key)} on {escape(self.device)}</p><table>"
            f"<tr><th>us</th><th>to best</th><th>kernel</th></tr>{rows}</table>"
        )

    def plot(self) -> Any:
        """A matplotlib figure with a bar for each kernel's time. Raises ImportError without
        matplotlib."""
        import matplotlib.pyplot as plt

        timed = [trial for trial in self.trials if trial.error is None]
        figure, axes = plt.subplots(figsize=(8, 0.25 * len(timed) + 1.5), layout="constrained")
        axes.barh(range(len(timed)), [trial.microseconds for trial in timed], color="#4477aa")
        axes.set_yticks(range(len(timed)), [trial.kernel for trial in timed], fontsize=7)
        axes.invert_yaxis()
        axes.set_xlabel("microseconds")
        axes.set_title(f"{self.key} on {self.device}", fontsize=9)
        return figure


def autotune(
    args: Any,
    *,
    kernels: Sequence[Kernel] | None = None,
    search: str = "halving",
    budget: float | None = None,
    key: "str | Callable[[Extents], Extents]" = "exact",
    progress: bool = True,
) -> TuningResult:
    """Times kernels on copies of the operands, and stores the results.

    - ``args``: ``GemmArguments`` or ``GroupedGemmArguments`` on a GPU, with or without an epilogue.
      The operands are read, not written. Several copies, together larger than the L2 cache, are
      made in device memory.
    - ``kernels``: the candidates; None: those that ``get_kernels(args)`` returns.
    - ``search``: ``"halving"`` times the first 24 candidates and drops the slower half in each
      round; ``"exhaustive"`` times all of them.
    - ``budget``: an int is the most candidates to time, a float the seconds after which no further
      candidate is timed.
    - ``key``: to which problems the result applies. ``"exact"``: those of the same extents;
      ``"pow2"``: those whose extents round up to the same powers of two; a function from (batch,
      M, N, K), or (groups, M, N, K), to four numbers: problems for which it returns the same, in
      this process. Dtypes, layouts, alignments, epilogue and device always belong to the key.
    - ``progress``: whether to show progress, if rich is installed and the output is a terminal or a
      notebook.

    A kernel that fails is reported in the result and never chosen. After Ctrl-C, what has been
    measured is in the store.

    Raises ValueError for other arguments, FakeTensors and unknown options, and RuntimeError if no
    candidate could be timed.
    """
    if search not in ("halving", "exhaustive"):
        raise ValueError(f'search is {search!r}; pass "halving" or "exhaustive"')
    if isinstance(budget, bool) or (budget is not None and not budget > 0):
        raise ValueError(f"budget is {budget!r}; pass a positive number of candidates or seconds")
    benchmark = TuningBenchmark(args)
    candidates = list(_get_kernels(args) if kernels is None else kernels)
    if not candidates:
        raise ValueError(
            "there is no kernel to tune: "
            + ("get_kernels(args) is empty" if kernels is None else "kernels is empty")
        )
    return _tune(benchmark, candidates, search, budget, _key_of(benchmark, key), progress)


def _get_kernels(args: Any) -> list[Kernel]:
    found = _core.get_kernels(args)
    # Kernels for any strides are slower where others serve.
    return [kernel for kernel in found if not _is_simt(kernel)] or list(found)


def _is_simt(kernel: Kernel) -> bool:
    return isinstance(kernel, _core.SimtGemmKernel)


def _key_of(benchmark: TuningBenchmark, key: "str | Callable[[Extents], Extents]") -> str:
    if isinstance(key, str):
        if key not in ("exact", "pow2"):
            raise ValueError(f'key is {key!r}; pass "exact", "pow2" or a function of the extents')
        return benchmark.key(key)
    name = f"{getattr(key, '__module__', '')}.{getattr(key, '__qualname__', type(key).__name__)}"
    text = benchmark.key(name, tuple(key(benchmark.extents)))
    # From now on, rankings of this process look for keys of this function, too.
    _core.register_tuning_key(name, key)
    return text


def _record(benchmark: TuningBenchmark, kernels: list[Kernel]) -> None:
    """Tunes a problem of ``matmul`` or an operator at its first call, with
    ``CUTLASS_API_TUNE=record``. A failure leaves the ranking to the cost model, with a warning."""
    try:
        _tune(benchmark, kernels, "halving", None, benchmark.key("exact"), progress=False)
    except RuntimeError as error:
        warnings.warn(f"{benchmark.key('exact')} was not tuned: {error}", stacklevel=2)


def _tune(
    benchmark: TuningBenchmark,
    candidates: list[Kernel],
    search: str,
    budget: float | None,
    key: str,
    progress: bool,
) -> TuningResult:
    most = len(candidates) if search == "exhaustive" else CANDIDATES
    seconds = None
    if isinstance(budget, int):
        most = min(most, budget)
    elif budget is not None:
        seconds = budget
    chosen = candidates[:most]
    names = {kernel.metadata.kernel_name: kernel for kernel in chosen}
    errors: dict[str, str] = {}
    rough: dict[str, float] = {}
    left: dict[str, Timed] = {}
    deadline = Deadline(seconds)
    trials: list[Trial] = []
    with progress_bar(progress, key, len(chosen)) as bar:

        def show(name: str, times: dict[str, float]) -> None:
            rough.update(times)
            bar.step(name, min(times.values()))

        try:
            recorded = _recorded(benchmark, chosen, errors)
            times, left = sift(recorded, FINALISTS, deadline, show)
            rough.update(times)
            in_turns(left, 1 if deadline.has_passed() else ROUNDS)
        finally:
            trials = _trials(rough, left, errors)
            _store(benchmark, key, [trial for trial in trials if trial.error is None], names)
    if not trials or trials[0].error is not None:
        reasons = "; ".join(sorted(set(errors.values()))) or "the budget allowed none"
        raise RuntimeError(f"no kernel could be timed: {reasons}")
    return TuningResult(
        winner=names[trials[0].kernel],
        device=benchmark.device,
        key=key,
        trials=tuple(trials),
        untried=len(candidates) - len(trials),
        kernels=tuple(names[trial.kernel] for trial in trials),
    )


def _recorded(
    benchmark: TuningBenchmark, kernels: Iterable[Kernel], errors: dict[str, str]
) -> Iterator[tuple[str, Timed]]:
    """The candidates, compiled on all cores and recorded one by one, in their order. Writes the
    reasons of those that fail into ``errors``."""
    pool = ThreadPoolExecutor(os.cpu_count())
    try:
        futures: list[tuple[Kernel, Future[Any]]] = [
            (kernel, pool.submit(benchmark.compile, kernel)) for kernel in kernels
        ]
        for kernel, future in futures:
            name = kernel.metadata.kernel_name
            try:
                launches = benchmark.record(future.result())
            except (ValueError, RuntimeError) as error:
                errors[name] = str(error).partition("\n")[0]
                continue
            yield name, Timed(_microseconds(launches), launches.launches)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _microseconds(launches: Any) -> Callable[[int], float]:
    return lambda replays: 1e6 * float(launches.turn(replays))


def _trials(rough: dict[str, float], left: dict[str, Timed], errors: dict[str, str]) -> list[Trial]:
    """Everything measured, fastest first. The finalists' medians come before rough times."""
    finalists = {name: timed for name, timed in left.items() if timed.times}
    final = [Trial(name, timed.median, len(timed.times)) for name, timed in finalists.items()]
    others = [Trial(name, time, 3) for name, time in rough.items() if name not in finalists]
    failed = [Trial(name, math.nan, 0, error) for name, error in errors.items()]
    return (
        sorted(final, key=lambda trial: trial.microseconds)
        + sorted(others, key=lambda trial: trial.microseconds)
        + failed
    )


def _store(
    benchmark: TuningBenchmark, key: str, trials: list[Trial], kernels: dict[str, Kernel]
) -> None:
    rows = []
    for trial in trials[:KEPT]:
        name, program = _core.tuning_identity(kernels[trial.kernel])
        rows.append(
            (benchmark.device, benchmark.driver, key, name, program, 1e-6 * trial.microseconds)
        )
    if rows:
        _core.add_tuning_results(rows)


@dataclass(frozen=True)
class StoredResult:
    """A result in the store: the time of one kernel for one problem on one device.

    - ``device``, ``driver``: the device's name, and the driver's major version as CUDA counts.
    - ``key``: the problem: rounding, operation, batch x M x N x K, then for A, B and out the dtype,
      the order (t row-major, n column-major, s other) and the alignment in bytes.
    - ``kernel``, ``program``: the kernel's name, and a hash of its program.
    - ``seconds``: the median time of one launch.
    """

    device: str
    driver: int
    key: str
    kernel: str
    program: str
    seconds: float


def stored_results() -> list[StoredResult]:
    """All results in the store, of all devices, the fastest of each problem first."""
    return [StoredResult(*row) for row in _core.tuning_results()]


def clear() -> None:
    """Removes all results from the store."""
    _core.clear_tuning_results()


#: The format of exported files.
FORMAT, VERSION = "rutlass tuning results", 1


def export_results(path: "str | os.PathLike[str]") -> int:
    """Writes all results into a JSON file, for :func:`import_results` on other machines. Returns
    their number. Raises OSError if the file cannot be written."""
    results = stored_results()
    document = {
        "format": FORMAT,
        "version": VERSION,
        "results": [asdict(result) for result in results],
    }
    Path(path).write_text(json.dumps(document, indent=1) + "\n")
    return len(results)


@dataclass(frozen=True)
class ImportReport:
    """What :func:`import_results` did.

    - ``added``: new results, and results that replaced slower ones.
    - ``skipped``: a line for each reason and the number of results that it applied to.
    """

    added: int
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.added} results added", *self.skipped])


def import_results(path: "str | os.PathLike[str]") -> ImportReport:
    """Merges the results of a file from :func:`export_results` into the store.

    A result of the store stays if it is at least as fast. Results of other devices are kept for
    other machines that share the store, and not used on this one.

    Raises ValueError if the file has another format, OSError if it cannot be read.
    """
    try:
        document = json.loads(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path} holds no tuning results; pass a file that export_results wrote")
    if document.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {document.get('version')!r}, and this package reads {VERSION}; "
            "export the results with this version"
        )
    known = {(r.device, r.driver, r.key, r.kernel): r for r in stored_results()}
    rows, damaged, slower = [], 0, 0
    for entry in document.get("results") or []:
        result = _parsed(entry)
        if result is None:
            damaged += 1
            continue
        own = known.get((result.device, result.driver, result.key, result.kernel))
        if own and own.program == result.program and own.seconds <= result.seconds:
            slower += 1
            continue
        rows.append(tuple(asdict(result).values()))
    if rows:
        _core.add_tuning_results(rows)
    reasons = [
        (damaged, "lack a field, or have one of the wrong type"),
        (slower, "are not faster than those in the store"),
    ]
    return ImportReport(
        len(rows), tuple(f"{count} skipped: they {why}" for count, why in reasons if count)
    )


def _parsed(entry: Any) -> StoredResult | None:
    """An entry of a file as a result; None if a field is missing or of the wrong type."""
    types = {each.name: _TYPES[str(each.type)] for each in fields(StoredResult)}
    if not isinstance(entry, dict) or any(
        type(entry.get(name)) is not expected for name, expected in types.items()
    ):
        return None
    result = StoredResult(**{name: entry[name] for name in types})
    return result if 0 < result.seconds < math.inf else None


#: The types of a result's fields by their annotations.
_TYPES = {str(each): each for each in (str, int, float)}


__all__ = [
    "ImportReport",
    "StoredResult",
    "Trial",
    "TuningResult",
    "autotune",
    "clear",
    "export_results",
    "import_results",
    "stored_results",
]
