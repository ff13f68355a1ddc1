"""Compiles, records and times candidates, and stores the fastest."""

import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from cutlass_api import _core
from cutlass_api._core import TimedLaunches
from cutlass_api._progress import Progress, progress_bar
from cutlass_api.tuning._result import Trial, TuningResult
from cutlass_api.tuning._search import Deadline, Timed, in_turns, sift
from cutlass_api.tuning._store import stored_results

#: Candidates that all rounds time, and the rounds.
FINALISTS, ROUNDS = 4, 9


class Benchmark(Protocol):
    """Copies of operands on one device."""

    @property
    def device(self) -> str: ...
    @property
    def driver(self) -> int: ...
    def record(self, compiled: Any, /) -> TimedLaunches: ...


@dataclass(frozen=True)
class Candidate:
    """What is timed.

    - ``value``: the winner of a result.
    - ``compile``: returns what benchmarks record; called in a thread.
    - ``identity``: returns the name and the fingerprint of the program in the store.
    """

    value: Any
    compile: Callable[[], Any]
    identity: Callable[[], tuple[str, str]]


@dataclass(frozen=True)
class Key:
    """A problem in the store.

    - ``persists``: whether its results are written to the file, beyond this process.
    """

    text: str
    persists: bool = True


def tune(
    benchmarks: Sequence[Benchmark],
    candidates: Mapping[str, Candidate],
    key: Key,
    *,
    seconds: float | None = None,
    untried: int = 0,
    progress: bool = False,
) -> TuningResult:
    """Times the candidates, by name, and stores the fastest. The benchmarks share the candidates;
    the first one decides. ``seconds``: after which no further candidate is timed. ``untried``:
    candidates that the caller left out.

    Raises RuntimeError if no candidate could be timed.
    """
    first = benchmarks[0]
    search = _Search(Deadline(seconds))
    with progress_bar(progress, key.text, len(candidates)) as bar:
        try:
            finalists = search.run(benchmarks, candidates, bar)
        except BaseException:  # Ctrl-C, or a launch that fails after its first
            if not stored_of(first, key):
                _store(first, key, _trials(search.rough, {}, {})[:FINALISTS], candidates)
            raise
    trials = _trials(search.rough, finalists, search.errors)
    _store(first, key, [trial for trial in trials if trial.is_finalist], candidates)
    if not trials or trials[0].error is not None:
        reasons = "; ".join(sorted(set(search.errors.values()))) or "the budget allowed none"
        raise RuntimeError(f"no kernel could be timed: {reasons}")
    return TuningResult(
        winner=candidates[trials[0].kernel].value,
        device=first.device,
        key=key.text,
        trials=tuple(trials),
        untried=untried + len(candidates) - len(trials),
    )


class _Search:
    """A search, with what is measured so far."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline
        #: Microseconds by candidate, and the reasons of candidates that fail.
        self.rough: dict[str, float] = {}
        self.errors: dict[str, str] = {}

    def run(
        self,
        benchmarks: Sequence[Benchmark],
        candidates: Mapping[str, Candidate],
        bar: Progress,
    ) -> dict[str, Timed]:
        """The fastest candidates, timed by the first benchmark."""

        def sift_on(benchmark: Benchmark, share: Sequence[str]) -> dict[str, Timed]:
            def show(name: str, times: dict[str, float]) -> None:
                self.rough.update(times)
                bar.step(name, f"best {min(self.rough.values()):.2f} us")

            with closing(self._recorded(benchmark, compiling, share)) as recorded:
                times, left = sift(recorded, FINALISTS, self._deadline, show)
            self.rough.update(times)
            return left

        pool = ThreadPoolExecutor(os.cpu_count())
        try:
            compiling = {name: pool.submit(of.compile) for name, of in candidates.items()}
            left = self._sift(benchmarks, list(candidates), sift_on)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        in_turns(left, 1 if self._deadline.has_passed() else ROUNDS)
        return left

    def _sift(
        self,
        benchmarks: Sequence[Benchmark],
        names: Sequence[str],
        sift_on: Callable[[Benchmark, Sequence[str]], dict[str, Timed]],
    ) -> dict[str, Timed]:
        count = len(benchmarks)
        if count == 1:
            return sift_on(benchmarks[0], names)
        shares = [names[at::count] for at in range(count)]
        with ThreadPoolExecutor(count) as pool:
            try:
                pairs = zip(benchmarks, shares, strict=True)
                sifted = [pool.submit(sift_on, *each) for each in pairs]
                # In the order of their ends: the first that fails ends the others.
                best = {name for done in as_completed(sifted) for name in done.result()}
            except BaseException:
                self._deadline.end()
                raise
        return sift_on(benchmarks[0], sorted(best, key=self.rough.__getitem__))

    def _recorded(
        self, benchmark: Benchmark, compiling: Mapping[str, Future[Any]], names: Sequence[str]
    ) -> Generator[tuple[str, Timed], None, None]:
        """The candidates recorded one by one, in their order, without those that fail."""
        for name in names:
            try:
                launches = benchmark.record(compiling[name].result())
            except (ValueError, RuntimeError) as error:
                self.errors[name] = str(error).partition("\n")[0]
                continue
            yield name, Timed(_microseconds(launches), launches.launches)


def _microseconds(launches: TimedLaunches) -> Callable[[int], float]:
    return lambda replays: 1e6 * launches.turn(replays)


def _trials(
    rough: Mapping[str, float], finalists: Mapping[str, Timed], errors: Mapping[str, str]
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


def stored_of(benchmark: Benchmark, key: Key) -> list[tuple[str, str]]:
    """Names and fingerprints of the store's results of a key on a device, fastest first."""
    of_device = (benchmark.device, benchmark.driver, key.text)
    return [
        (of.kernel, of.program)
        for of in stored_results()
        if (of.device, of.driver, of.key) == of_device
    ]


def _store(
    benchmark: Benchmark, key: Key, trials: Sequence[Trial], candidates: Mapping[str, Candidate]
) -> None:
    rows = []
    for trial in trials:
        name, program = candidates[trial.kernel].identity()
        seconds = 1e-6 * trial.microseconds
        rows.append((benchmark.device, benchmark.driver, key.text, name, program, seconds))
    if rows:
        _core.add_tuning_results(rows, replaces=True, persists=key.persists)


__all__ = ["FINALISTS", "ROUNDS", "Benchmark", "Candidate", "Key", "stored_of", "tune"]
