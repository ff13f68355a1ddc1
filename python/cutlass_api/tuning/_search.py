"""Timing by turns, and the search for the fastest of many candidates.

An idle GPU clocks higher at first than under load, and neighbors share the machine: candidates take
turns, in random orders, so that each meets the same conditions.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

#: The shortest duration of a turn.
TURN_SECONDS = 2e-3
#: Candidates that take this many times the best time drop out after their first turns.
HOPELESS = 1.6


class Turns(Protocol):
    """A method that is timed in turns, and records their times."""

    def warm_up(self) -> None: ...

    def turn(self) -> float: ...


class Timed:
    """A method with its times, in microseconds of one launch.

    ``measure(replays)`` returns the microseconds of one launch, the mean over this many replays of
    ``launches`` launches. ``seconds``: the shortest duration of a turn.
    """

    def __init__(
        self, measure: Callable[[int], float], launches: int, seconds: float = TURN_SECONDS
    ) -> None:
        self._measure, self._launches, self._seconds = measure, launches, seconds
        self._replays = 1
        self.times: list[float] = []

    def warm_up(self, seconds: float | None = None) -> None:
        """Runs twice, and sets the replays of a turn so that it lasts ``seconds``."""
        seconds = seconds or self._seconds
        self.turn()
        least = self.turn()
        self._replays = max(1, math.ceil(seconds / (1e-6 * max(least, 1e-3) * self._launches)))
        self.times.clear()

    def turn(self) -> float:
        """Runs for one turn. Returns and records the microseconds of one launch."""
        self.times.append(self._measure(self._replays))
        return self.times[-1]

    @property
    def median(self) -> float:
        return statistics.median(self.times)


Method = TypeVar("Method", bound=Timed)


class Deadline:
    """The end of a search's budget of seconds; never without a budget."""

    def __init__(self, seconds: float | None) -> None:
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    def end(self) -> None:
        """Ends the search now."""
        self._end = -math.inf

    def has_passed(self) -> bool:
        return time.monotonic() >= self._end


def sift(
    candidates: Iterable[tuple[str, Method]],
    keep: int,
    deadline: Deadline | None = None,
    show: Callable[[str, dict[str, float]], None] | None = None,
) -> tuple[dict[str, float], dict[str, Method]]:
    """The rough time of each candidate in microseconds, and the fastest ``keep`` candidates.

    Candidates take turns, and the slower half drops out until ``keep`` remain. After the deadline,
    no further candidate is taken, and the fastest so far are kept. ``show``: called with the name
    and all rough times after each candidate's first turns.
    """
    deadline = deadline or Deadline(None)
    rough: dict[str, float] = {}
    left: dict[str, Method] = {}
    for name, timed in candidates:
        # The minimum of three, as single replays can take several times as long.
        rough[name] = min(timed.turn() for _ in range(3))
        if rough[name] < HOPELESS * min(rough.values()):
            left[name] = timed
        if show:
            show(name, rough)
        if deadline.has_passed():
            break
    left = {
        name: timed for name, timed in left.items() if rough[name] < HOPELESS * min(rough.values())
    }
    for timed in left.values():
        timed.warm_up(TURN_SECONDS / 2)
    while len(left) > keep:
        if not deadline.has_passed():
            for timed in (*left.values(), *reversed(left.values())):
                timed.turn()
            rough |= {name: timed.median for name, timed in left.items()}
        fastest = sorted(left, key=rough.__getitem__)[: max(keep, len(left) // 2)]
        left = {name: left[name] for name in fastest}
    return rough, left


def in_turns(methods: Mapping[str, Turns], rounds: int) -> None:
    """Times the methods in turns, each round in an order of its own.

    What ran before a method decides its clock: on an H200, torch's float8 product of 4096 cubed
    takes 102 us among kernels of small tiles and 120 us among kernels of large ones.
    """
    order, chance = list(methods.values()), random.Random(0)
    for timed in order:
        timed.warm_up()
    for _ in range(rounds):
        chance.shuffle(order)
        for timed in order:
            timed.turn()


__all__ = ["HOPELESS", "TURN_SECONDS", "Deadline", "Timed", "Turns", "in_turns", "sift"]
