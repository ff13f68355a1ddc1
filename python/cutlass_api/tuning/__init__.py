"""The autotuner: times kernels on the operands at hand, and remembers the fastest.

:func:`autotune` times the kernels that serve arguments and keeps the results in a SQLite file in
the cache directory. From then on ``get_kernels``, ``matmul``, the operators and
:mod:`cutlass_api.inductor` rank the measured kernels of such a problem first, in every process on
such a device. The environment variable ``CUTLASS_API_TUNE`` is ``use`` by default. With ``off``,
rankings ignore the results. With ``record``, the first call of ``matmul`` or an operator on a new
problem tunes it.
"""

import json
import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, astuple, dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from cutlass_api import _core
from cutlass_api._core import Kernel, TuningBenchmark
from cutlass_api.tuning._progress import Progress, progress_bar
from cutlass_api.tuning._search import Deadline, Timed, in_turns, sift

#: Kernels that a halving search times: the first by the cost model.
CANDIDATES = 24
#: Kernels that all rounds time, and the rounds.
FINALISTS, ROUNDS = 4, 9

#: Batch (or groups), M, N and K.
Extents = tuple[int, int, int, int]


@dataclass(frozen=True)
class Trial:
    """What was measured of one kernel.

    - ``kernel``: its name.
    - ``microseconds``: the time of one launch: the median over all rounds of a finalist, a rough
      time of other kernels; NaN if ``error`` says why there is none.
    - ``is_finalist``: whether all rounds timed it.
    - ``error``: why it could not be timed, or None.
    """

    kernel: str
    microseconds: float
    is_finalist: bool = False
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
    check: bool | float = False,
    devices: "str | Sequence[int] | None" = None,
    progress: bool = True,
) -> TuningResult:
    """Times kernels on copies of the operands, and stores the results.

    - ``args``: ``GemmArguments`` or ``GroupedGemmArguments`` on a GPU, with or without an epilogue.
      The operands are read, not written. Several copies, together larger than the L2 cache, are
      made in device memory.
    - ``kernels``: the candidates; None: those that ``get_kernels(args)`` returns.
    - ``search``: ``"halving"`` times the first 24 candidates, as ``get_kernels`` ranks them, and
      drops the slower half in each round; ``"exhaustive"`` times all of them.
    - ``budget``: an int is the most candidates to time, a float the seconds after which no further
      candidate is timed.
    - ``key``: to which problems the result applies. ``"exact"``: those of the same extents;
      ``"pow2"``: those whose extents round up to the same powers of two; a function from (batch,
      M, N, K), or (groups, M, N, K), to four numbers: problems for which it returns the same. Such
      a result stays in this process. Dtypes, layouts, alignments, epilogue and device always belong
      to the key.
    - ``check``: whether to compare all outputs of each candidate with the CPU reference before the
      candidate is timed. An element may differ by ``tolerance * (abs(expected) + rms)``, where rms
      is the root mean square of the reference's output. A number is the tolerance; with True, the
      tolerance follows from dtypes and K. Integers are equal, or differ by at most 1 behind an
      epilogue.
    - ``devices``: the GPUs that share the candidates: ``"all"`` of the name of the operands' GPU,
      or ordinals of such GPUs. The first, for ``"all"`` the operands' own, times the fastest of all
      once more. None: the operands' GPU alone.
    - ``progress``: whether to show progress, if rich is installed and the output is a terminal or a
      notebook.

    The result replaces earlier ones of the same key. A kernel that fails is reported in the result
    and never chosen. Ctrl-C keeps what has been measured, unless the store has a result of the key.

    Raises ValueError for other arguments, FakeTensors and unknown options, and RuntimeError if no
    candidate could be timed.
    """
    if search not in ("halving", "exhaustive"):
        raise ValueError(f'search is {search!r}; pass "halving" or "exhaustive"')
    if isinstance(budget, bool) or (budget is not None and not budget > 0):
        raise ValueError(f"budget is {budget!r}; pass a positive number of candidates or seconds")
    if isinstance(check, bool):
        checks: dict[str, Any] = {"checks": check}
    elif 0 < check < math.inf:
        checks = {"checks": True, "tolerance": float(check)}
    else:
        raise ValueError(f"check is {check!r}; pass True, False or a positive tolerance")
    benchmarks = _benchmarks(args, devices, checks)
    candidates = list(_get_kernels(args) if kernels is None else kernels)
    if not candidates:
        raise ValueError(
            "there is no kernel to tune: "
            + ("get_kernels(args) is empty" if kernels is None else "kernels is empty")
        )
    text, persists = _key_of(benchmarks[0], key)
    return _tune(benchmarks, candidates, search, budget, text, persists, progress)


def _benchmarks(
    args: Any, devices: "str | Sequence[int] | None", checks: dict[str, Any]
) -> list[TuningBenchmark]:
    """A benchmark on each device: all of one name, because other times do not compare."""
    if devices is None:
        return [TuningBenchmark(args, **checks)]
    if isinstance(devices, str):
        if devices != "all":
            raise ValueError(f'devices is {devices!r}; pass "all", or a list of ordinals')
        first = TuningBenchmark(args, **checks)
        others = [TuningBenchmark(args, device=other, **checks) for other in first.alike()[1:]]
        return [first, *others]
    ordinals = list(dict.fromkeys(devices))
    if not ordinals:
        raise ValueError("devices is empty; pass ordinals, or None for the operands' GPU")
    alike = TuningBenchmark(args).alike()
    for ordinal in ordinals:
        if ordinal not in alike:
            raise ValueError(
                f"devices has {ordinal}, and the GPUs of the name of the operands' GPU are "
                f"{alike}; times of other GPUs do not compare"
            )
    return [TuningBenchmark(args, device=ordinal, **checks) for ordinal in ordinals]


def _get_kernels(args: Any) -> list[Kernel]:
    found = _core.get_kernels(args)
    # Kernels for any strides are slower where others serve.
    return [kernel for kernel in found if not _is_simt(kernel)] or list(found)


def _is_simt(kernel: Kernel) -> bool:
    return isinstance(kernel, _core.SimtGemmKernel)


def _key_of(
    benchmark: TuningBenchmark, key: "str | Callable[[Extents], Extents]"
) -> tuple[str, bool]:
    """The key of a problem, and whether its results are written to the file."""
    if isinstance(key, str):
        if key not in ("exact", "pow2"):
            raise ValueError(f'key is {key!r}; pass "exact", "pow2" or a function of the extents')
        return benchmark.key(key), True
    # Another process may have another function of this name.
    name = f"{getattr(key, '__qualname__', type(key).__name__)}@{id(key):x}"
    text = benchmark.key(name, tuple(key(benchmark.extents)))
    # From now on, rankings of this process look for keys of this function, too.
    _core.register_tuning_key(name, key)
    return text, False


def _record(benchmark: TuningBenchmark, kernels: list[Kernel]) -> None:
    """Tunes a problem of ``matmul`` or an operator at its first call, with
    ``CUTLASS_API_TUNE=record``; once in a process, whether it succeeds or not."""
    key = benchmark.key("exact")
    if key not in _recorded_keys:
        _recorded_keys.add(key)
        _tune([benchmark], kernels, "halving", None, key, persists=True, progress=False)


_recorded_keys: set[str] = set()


def _tune(
    benchmarks: list[TuningBenchmark],
    candidates: list[Kernel],
    search: str,
    budget: float | None,
    key: str,
    persists: bool,
    progress: bool,
) -> TuningResult:
    most = len(candidates) if search == "exhaustive" else CANDIDATES
    seconds = None
    if isinstance(budget, Integral):
        most = min(most, int(budget))
    elif budget is not None:
        seconds = budget
    chosen = candidates[:most]
    names = {kernel.metadata.kernel_name: kernel for kernel in chosen}
    benchmark = benchmarks[0]
    found = _Search(Deadline(seconds))
    with progress_bar(progress, key, len(chosen)) as bar:
        try:
            finalists = found.run(benchmarks, chosen, bar)
        except BaseException:  # Ctrl-C, or a launch that fails after its first
            if _is_new(benchmark, key):
                _store(benchmark, key, persists, _trials(found.rough, {}, {})[:FINALISTS], names)
            raise
    trials = _trials(found.rough, finalists, found.errors)
    _store(benchmark, key, persists, [trial for trial in trials if trial.is_finalist], names)
    if not trials or trials[0].error is not None:
        reasons = "; ".join(sorted(set(found.errors.values()))) or "the budget allowed none"
        raise RuntimeError(f"no kernel could be timed: {reasons}")
    return TuningResult(
        winner=names[trials[0].kernel],
        device=benchmark.device,
        key=key,
        trials=tuple(trials),
        untried=len(candidates) - len(trials),
    )


class _Search:
    """A search, with what is measured so far."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        #: Microseconds by kernel, and the reasons of kernels that fail.
        self.rough: dict[str, float] = {}
        self.errors: dict[str, str] = {}

    def run(
        self, benchmarks: list[TuningBenchmark], kernels: list[Kernel], bar: Progress
    ) -> dict[str, Timed]:
        """The fastest kernels, timed by the first benchmark. The benchmarks share the others."""

        def sift_on(benchmark: TuningBenchmark, share: Sequence[Kernel]) -> dict[str, Timed]:
            def show(name: str, times: dict[str, float]) -> None:
                self.rough.update(times)
                bar.step(name, min(self.rough.values()))

            with closing(_recorded(benchmark, compiling, share, self.errors)) as recorded:
                times, left = sift(recorded, FINALISTS, self._deadline, show)
            self.rough.update(times)
            return left

        pool = ThreadPoolExecutor(os.cpu_count())
        try:
            compiling = {kernel: pool.submit(benchmarks[0].compile, kernel) for kernel in kernels}
            left = self._sift(benchmarks, kernels, sift_on)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        in_turns(left, 1 if self._deadline.has_passed() else ROUNDS)
        return left

    def _sift(
        self,
        benchmarks: list[TuningBenchmark],
        kernels: list[Kernel],
        sift_on: Callable[[TuningBenchmark, Sequence[Kernel]], dict[str, Timed]],
    ) -> dict[str, Timed]:
        if len(benchmarks) == 1:
            return sift_on(benchmarks[0], kernels)
        count = len(benchmarks)
        shares = [kernels[at::count] for at in range(count)]
        with ThreadPoolExecutor(count) as pool:
            try:
                names = {name for left in pool.map(sift_on, benchmarks, shares) for name in left}
            except BaseException:
                self._deadline.end()
                raise
        best = sorted(names, key=self.rough.__getitem__)
        by_name = {kernel.metadata.kernel_name: kernel for kernel in kernels}
        return sift_on(benchmarks[0], [by_name[name] for name in best])


def _recorded(
    benchmark: TuningBenchmark,
    compiling: Mapping[Kernel, Future[Any]],
    kernels: Iterable[Kernel],
    errors: dict[str, str],
) -> Generator[tuple[str, Timed], None, None]:
    """The candidates recorded one by one, in their order. Writes the reasons of those that fail
    into ``errors``."""
    for kernel in kernels:
        name = kernel.metadata.kernel_name
        try:
            launches = benchmark.record(compiling[kernel].result())
        except (ValueError, RuntimeError) as error:
            errors[name] = str(error).partition("\n")[0]
            continue
        yield name, Timed(_microseconds(launches), launches.launches)


def _microseconds(launches: Any) -> Callable[[int], float]:
    return lambda replays: 1e6 * float(launches.turn(replays))


def _trials(
    rough: dict[str, float], finalists: dict[str, Timed], errors: dict[str, str]
) -> list[Trial]:
    """Everything measured: finalists, other kernels, kernels that failed; each fastest first."""
    final = [Trial(name, timed.median, is_finalist=True) for name, timed in finalists.items()]
    others = [Trial(name, time) for name, time in rough.items() if name not in finalists]
    failed = [Trial(name, math.nan, error=error) for name, error in errors.items()]
    return (
        sorted(final, key=lambda trial: trial.microseconds)
        + sorted(others, key=lambda trial: trial.microseconds)
        + failed
    )


def _is_new(benchmark: TuningBenchmark, key: str) -> bool:
    """Whether the store has no result of a key."""
    of_device = (benchmark.device, benchmark.driver, key)
    return all((of.device, of.driver, of.key) != of_device for of in stored_results())


def _store(
    benchmark: TuningBenchmark,
    key: str,
    persists: bool,
    trials: list[Trial],
    kernels: dict[str, Kernel],
) -> None:
    rows = []
    for trial in trials:
        name, program = _core.tuning_identity(kernels[trial.kernel])
        seconds = 1e-6 * trial.microseconds
        rows.append((benchmark.device, benchmark.driver, key, name, program, seconds))
    if rows:
        _core.add_tuning_results(rows, replaces=True, persists=persists)


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
    entries = document.get("results")
    if not isinstance(entries, list):
        raise ValueError(f"{path} has no list of results; export them again")
    fastest = {_place(result): result for result in stored_results()}
    added: dict[tuple[Any, ...], StoredResult] = {}
    damaged, slower = 0, 0
    for entry in entries:
        result = _parsed(entry)
        if result is None:
            damaged += 1
            continue
        place = _place(result)
        own = fastest.get(place)
        if own and own.program == result.program and own.seconds <= result.seconds:
            slower += 1
            continue
        fastest[place] = added[place] = result
    if added:
        _core.add_tuning_results([astuple(result) for result in added.values()])
    reasons = [
        (damaged, "lack a field, or have one of the wrong type"),
        (slower, "are not faster than those in the store"),
    ]
    return ImportReport(
        len(added), tuple(f"{count} skipped: they {why}" for count, why in reasons if count)
    )


def _place(result: StoredResult) -> tuple[Any, ...]:
    return result.device, result.driver, result.key, result.kernel


def _parsed(entry: Any) -> StoredResult | None:
    """An entry of a file as a result; None if a field is missing or of the wrong type."""
    types: dict[str, type] = dict.fromkeys(("device", "key", "kernel", "program"), str)
    types |= {"driver": int, "seconds": float}
    if not isinstance(entry, dict) or any(
        type(entry.get(name)) is not expected for name, expected in types.items()
    ):
        return None
    result = StoredResult(**{name: entry[name] for name in types})
    fits = 0 <= result.driver < 2**31 and 0 < result.seconds < math.inf
    return result if fits else None


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
