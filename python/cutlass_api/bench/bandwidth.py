"""The bandwidth of device memory, which benchmarks of memory-bound work compare with."""

import statistics
from collections.abc import Callable
from typing import Any

from cutlass_api.bench import ROUNDS
from cutlass_api.tuning._search import in_turns

#: Bytes of the source. The target has as many, so that next to nothing of either stays in L2.
COPIED_BYTES = 2 << 30
#: Copies of a turn.
COPIES = 3


class Stream:
    """A launch that is repeated on a stream without a graph, with its times in microseconds.

    ``calls``: launches of a turn.
    """

    def __init__(self, launch: Callable[[], Any], calls: int) -> None:
        self._launch, self._calls = launch, calls
        self.times: list[float] = []

    def warm_up(self) -> None:
        self.turn()
        self.turn()
        self.times.clear()

    def turn(self) -> float:
        """Returns and records the time of one launch, the mean of a turn."""
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(self._calls):
            self._launch()
        end.record()
        end.synchronize()
        self.times.append(1e3 * begin.elapsed_time(end) / self._calls)
        return self.times[-1]

    @property
    def median(self) -> float:
        return statistics.median(self.times)


def copy_rate() -> float:
    """Bytes per second that a copy within device memory reads and writes, both counted.

    Copies 2 GiB of random bytes in two ways, and returns the rate of the faster one: a
    device-to-device memcpy on a stream, and an elementwise kernel (``torch.add(x, 0, out=y)`` in
    float32). A memcpy node of a CUDA graph can be slower than either, so no graph is used.
    """
    import torch

    source = torch.randint(0, 255, (COPIED_BYTES,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    numbers, copied = source.view(torch.float32), target.view(torch.float32)
    methods = {
        "memcpy": Stream(lambda: target.copy_(source), COPIES),
        "kernel": Stream(lambda: torch.add(numbers, 0, out=copied), COPIES),
    }
    in_turns(methods, ROUNDS)
    return 2 * COPIED_BYTES / (1e-6 * min(timed.median for timed in methods.values()))


__all__ = ["Stream", "copy_rate"]
