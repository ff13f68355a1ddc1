"""The current speed of this machine, for tests of time. Cheap to import in a new process."""

import time

#: Seconds per addition in a loop on an idle reference machine. Time limits assume this machine. A
#: busy machine takes up to 50 ns.
ADDITION = 30e-9


def slowness() -> float:
    """The slowdown of this machine against the reference, measured in a loop of a few milliseconds;
    at least 1.
    """
    count = 100_000
    start = time.perf_counter()
    total = 0
    for number in range(count):
        total += number
    return max(1.0, (time.perf_counter() - start) / count / ADDITION)
