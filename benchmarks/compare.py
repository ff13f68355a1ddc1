"""``compare``: what got slower between two JSON files of the same benchmarks.

Another clock or machine changes our times and those of the control, which is torch for most
benchmarks. A row got slower if our time grew more than its control and more than the median control
of its benchmark, by at least 2 % and more than noise explains.

The noise of a row is the larger of two estimates: that of the turns in the files, and the scatter
of the controls of its benchmark between the files. The turns of one process do not show what
changes between two processes. The bound takes the number of rows into account: in one of twenty
comparisons of equal code, noise alone exceeds it in some row.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cutlass_api.bench.base import Cells, Column, Entry, table

from benchmarks import suite

#: A row that got slower by less is not flagged.
LEAST = 1.02
#: The relative standard deviation of a time between processes, if the files show none.
UNKNOWN_NOISE = 0.015
#: The probability that equal code has a flagged row.
FALSE_ALARM = 0.05
#: Rows from which the scatter of controls is taken.
SCATTER_ROWS = 5


@dataclass(frozen=True)
class Change:
    """One row of both files: factors by which times grew, and the factor that noise explains."""

    bench: str
    name: str
    #: Microseconds.
    old: float
    new: float
    control: float | None
    #: Our growth over that of the control or of the median control, whichever is less.
    slower: float
    bound: float
    note: str = ""

    @property
    def ours(self) -> float:
        return self.new / self.old

    @property
    def is_flagged(self) -> bool:
        return self.slower > self.bound

    @property
    def remark(self) -> str:
        return " ".join(filter(None, ["SLOWER" if self.is_flagged else "", self.note]))


@dataclass(frozen=True)
class Comparison:
    """``differences``: in which facts the files differ. ``missing``: rows in one file only."""

    differences: list[str]
    changes: list[Change]
    missing: list[str]

    @property
    def flagged(self) -> list[Change]:
        return [change for change in self.changes if change.is_flagged]


def compare(old: Any, new: Any) -> Comparison:
    """Compares two documents. Raises ValueError for a document of no benchmark, or if the documents
    have no row in common.
    """
    before, after = _entries(old), _entries(new)
    shared = [key for key in before if key in after]
    if not shared:
        raise ValueError("the files have no row in common; compare the same benchmarks")
    missing = [f"{bench}: {name}" for bench, name in before.keys() ^ after.keys()]
    deviations = statistics.NormalDist().inv_cdf(1 - FALSE_ALARM / len(shared))
    changes: list[Change] = []
    for bench in dict.fromkeys(bench for bench, _ in shared):
        pairs = [(before[key], after[key]) for key in shared if key[0] == bench]
        changes += _changes(bench, pairs, deviations)
    changes.sort(key=lambda change: (not change.is_flagged, -change.slower))
    return Comparison(_differences(old, new), changes, sorted(missing))


def _changes(
    bench: str, pairs: Sequence[tuple[Entry, Entry]], deviations: float
) -> Iterable[Change]:
    controls = [_control(*pair) for pair in pairs]
    logs = [math.log(control) for control in controls if control is not None]
    middle = statistics.median(logs) if logs else 0.0
    scatter = 0.0
    if len(logs) >= SCATTER_ROWS:
        # The median absolute deviation, as that of a normal distribution: a few rows in which torch
        # changed do not count.
        scatter = 1.4826 * statistics.median(abs(each - middle) for each in logs)
    for (old, new), control in zip(pairs, controls, strict=True):
        grown = math.log(new.ours / old.ours)
        own = middle if control is None else math.log(control)
        of_turns = [each.noise for each in (old, new) if each.noise is not None]
        # Of both files, and of our time and the control's.
        noise = math.sqrt(2) * max([scatter, *of_turns]) or math.sqrt(2) * UNKNOWN_NOISE
        yield Change(
            bench=bench,
            name=old.name,
            old=old.ours,
            new=new.ours,
            control=control,
            slower=math.exp(min(grown - own, grown - middle)),
            bound=max(LEAST, math.exp(deviations * noise)),
            note="" if old.kernel == new.kernel else f"{old.kernel} before, now {new.kernel}",
        )


def _control(old: Entry, new: Entry) -> float | None:
    """The factor by which the control's time grew."""
    return new.control / old.control if old.control and new.control else None


def _entries(document: Any) -> dict[tuple[str, str], Entry]:
    """The entries of all benchmarks, by benchmark and name. A repeated name is numbered."""
    found: dict[tuple[str, str], Entry] = {}
    for part in suite.parsed(document).values():
        for entry in part.entries():
            name, count = entry.name, 1
            while (part.bench.name, name) in found:
                count += 1
                name = f"{entry.name} ({count})"
            found[part.bench.name, name] = entry
    return found


def _differences(old: Any, new: Any) -> list[str]:
    """Facts that differ: the device, the version of torch, and more if both files hold it."""

    def facts(document: Any) -> dict[str, Any]:
        if suite.is_suite(document):
            environment = document["environment"]
            shown = {name: environment.get(name) for name in suite.SHARED_FACTS}
            parts = list(suite.parsed(document).values())
            shown |= {key: parts[0].document.get(key) for key in ("device", "torch") if parts}
            return shown | {"quick": document["quick"]}
        names = ("device", "torch", "triton", "rutlass", "development")
        return {name: document[name] for name in names if name in document}

    before, after = facts(old), facts(new)
    return [
        f"{name}: {before[name]} before, now {after[name]}"
        for name in before
        if name in after and before[name] != after[name]
    ]


COLUMNS: tuple[Column, ...] = (
    ("row", lambda each: f"{each.bench}: {each.name}", ""),
    ("old us", "old", ".2f"),
    ("new us", "new", ".2f"),
    ("ours", "ours", ".3f"),
    ("control", "control", ".3f"),
    ("slower", "slower", ".3f"),
    ("bound", "bound", ".3f"),
    ("", "remark", ""),
)


def cells(changes: Sequence[Change]) -> Cells:
    """The table of a comparison."""
    return table(COLUMNS, changes)
