"""How fast this machine is just now, for tests of time. A fresh process can afford to import it."""

import time

#: Seconds that an addition in a loop takes on the machine that limits are meant for: the development machine, quiet.
#: The same machine takes up to 50 ns when others use its host, and CI may run anywhere.
ADDITION = 30e-9


def slowness() -> float:
    """How many times as long as there this machine takes now, by a loop of a few milliseconds; at least 1."""
    count = 100_000
    start = time.perf_counter()
    total = 0
    for number in range(count):
        total += number
    return max(1.0, (time.perf_counter() - start) / count / ADDITION)
