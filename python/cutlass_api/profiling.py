"""Times of functions, alone and compared: :func:`time_kernel` and :func:`compare`.

On a GPU, each call lies between two CUDA events, behind a kernel that keeps the GPU busy until the
host has enqueued the call. So the host's speed does not count, unless the function waits for the
GPU or takes longer than 30 ms to enqueue.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from cutlass_api._tables import html_table
from cutlass_api.tuning._search import in_turns

#: An upper bound of a GPU's clock rate, which turns seconds into cycles of the leading kernel.
CYCLES_PER_SECOND = 2e9
LONGEST_LEAD_SECONDS = 30e-3


def quartiles(samples: Sequence[float]) -> tuple[float, float]:
    """What a quarter and three quarters of the samples do not exceed."""
    if len(samples) == 1:
        return samples[0], samples[0]
    first, _, third = statistics.quantiles(samples, n=4, method="inclusive")
    return first, third


@dataclass(frozen=True)
class Timing:
    """Times of a function.

    - ``samples``: microseconds of each timed call, in the order of the calls.
    - ``device``: the GPU's name, or ``"CPU"``.
    """

    samples: tuple[float, ...]
    device: str

    @property
    def median(self) -> float:
        """Microseconds."""
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        """Microseconds that a quarter and three quarters of the calls do not exceed."""
        return quartiles(self.samples)

    def to_json(self) -> str:
        """The times as JSON."""
        return json.dumps({**asdict(self), "median": self.median, "quartiles": self.quartiles})

    def __repr__(self) -> str:
        if not self.samples:
            return f"<no calls on {self.device}>"
        first, third = self.quartiles
        calls = f"{len(self.samples)} calls on {self.device}"
        return f"<{self.median:.2f} us, quartiles {first:.2f} to {third:.2f}, {calls}>"


@dataclass(frozen=True)
class Comparison:
    """Times of functions that took turns, by name. The first is the baseline of the ratios."""

    timings: dict[str, Timing]

    _TITLES: ClassVar[tuple[str, ...]] = ("us", "quartiles", "ratio", "")

    def ratio(self, name: str) -> float:
        """The median time of the first function over that of this one: above 1, this is faster."""
        first = next(iter(self.timings.values()))
        return first.median / self.timings[name].median

    def to_json(self) -> str:
        """The times and ratios as JSON."""
        return json.dumps(
            {
                name: {**json.loads(timing.to_json()), "ratio": self.ratio(name)}
                for name, timing in self.timings.items()
            }
        )

    def _first(self) -> list[Timing]:
        return list(self.timings.values())[:1]

    def _rows(self) -> Iterator[tuple[str, str, str, str]]:
        for name, timing in self.timings.items():
            first, third = timing.quartiles
            spread = f"{first:.2f} to {third:.2f}"
            yield f"{timing.median:.2f}", spread, f"{self.ratio(name):.3f}", name

    def __str__(self) -> str:
        lines = [f"{len(each.samples)} calls on {each.device}" for each in self._first()]
        rows = [self._TITLES, *self._rows()]
        widths = [max(len(row[at]) for row in rows) for at in range(3)]
        for *cells, name in rows:
            padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
            lines.append("  ".join([*padded, name]).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table(self._TITLES, self._rows(), len(self.timings))


def time_kernel(
    fn: Callable[..., Any],
    *args: Any,
    warmup: int = 10,
    repeat: int = 100,
    clear_l2: bool = True,
) -> Timing:
    """Times ``fn(*args)``: ``warmup`` calls that do not count, then ``repeat`` timed ones. On a
    GPU, three more calls before these measure the host's time.

    The device is that of the first CUDA tensor of torch among the arguments; without one, the CPU,
    which a clock times, if there are other tensors or no GPU, else torch's current CUDA device.
    There, ``fn`` launches work on the current stream. ``clear_l2``: evict what the L2 cache holds
    before each call, as the work between two calls of a model does.

    Raises ValueError for fewer than one timed call. What ``fn`` raises passes through.
    """
    return compare({"": fn}, *args, warmup=warmup, repeat=repeat, clear_l2=clear_l2).timings[""]


def compare(
    functions: Mapping[str, Callable[..., Any]],
    *args: Any,
    warmup: int = 10,
    repeat: int = 100,
    clear_l2: bool = True,
) -> Comparison:
    """Times functions of the same arguments, which take turns: each meets the same clock rates.

    ``functions``: the functions by name; the first is the baseline of the ratios. The others as in
    :func:`time_kernel`.
    """
    if not functions:
        raise ValueError("functions is empty; pass a dict of names and functions")
    if repeat < 1 or warmup < 0:
        raise ValueError(
            f"repeat is {repeat} and warmup {warmup}; repeat must be 1 or more, warmup 0 or more"
        )
    device = _device(args)
    clear = _reader_of_l2(device) if clear_l2 and device is not None else None
    methods = {name: _Method(fn, args, warmup, device, clear) for name, fn in functions.items()}
    in_turns(methods, repeat)
    return Comparison({name: method.timing() for name, method in methods.items()})


def keep_gpu_busy(seconds: float) -> None:
    """Enqueues a kernel that runs for about this long, 30 ms at most, on torch's current stream."""
    import torch

    torch.cuda._sleep(int(min(seconds, LONGEST_LEAD_SECONDS) * CYCLES_PER_SECOND))


def _device(args: tuple[Any, ...]) -> Any:
    """The torch device that runs the work; None for the CPU."""
    try:
        import torch
    except ImportError:
        return None
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    for tensor in tensors:
        if tensor.is_cuda:
            return tensor.device
    if tensors or not torch.cuda.is_available():
        return None
    return torch.device("cuda", torch.cuda.current_device())


def _reader_of_l2(device: Any) -> Callable[[], Any]:
    """A function that reads more than the L2 cache holds. A write would leave lines that the GPU
    writes back to memory while the timed call runs."""
    import torch

    size = torch.cuda.get_device_properties(device).L2_cache_size
    buffer = torch.zeros(size // 4, dtype=torch.int64, device=device)  # twice the cache
    total = torch.empty((), dtype=torch.int64, device=device)
    return lambda: torch.sum(buffer, dim=0, out=total)


class _Method:
    """A function that is timed in turns of one call."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        warmup: int,
        device: Any,
        clear: Callable[[], Any] | None,
    ) -> None:
        self._fn, self._args, self._warmup = fn, args, warmup
        self._device, self._clear = device, clear
        self._lead = 0.0
        self._samples: list[float] = []

    def warm_up(self) -> None:
        """Makes the calls that do not count, and finds out how long the host takes for one."""
        for _ in range(self._warmup):
            self.turn()
        if self._device is not None:
            import torch

            with torch.cuda.device(self._device):
                host = min(self._host_seconds() for _ in range(3))
            # Twice the least: a single call takes the host longer than repeated ones.
            self._lead = 2 * host
        self._samples.clear()

    def turn(self) -> float:
        """Calls once. Returns and records the microseconds."""
        seconds = self._host_seconds() if self._device is None else self._gpu_seconds()
        self._samples.append(1e6 * seconds)
        return self._samples[-1]

    def timing(self) -> Timing:
        return Timing(tuple(self._samples), "CPU" if self._device is None else self._gpu_name())

    def _gpu_name(self) -> str:
        import torch

        return str(torch.cuda.get_device_name(self._device))

    def _host_seconds(self) -> float:
        begin = time.perf_counter()
        self._fn(*self._args)
        return time.perf_counter() - begin

    def _gpu_seconds(self) -> float:
        import torch

        with torch.cuda.device(self._device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            keep_gpu_busy(self._lead)
            if self._clear is not None:
                self._clear()
            begin.record()
            self._fn(*self._args)
            end.record()
            end.synchronize()
        return float(1e-3 * begin.elapsed_time(end))


__all__ = ["Comparison", "Timing", "compare", "keep_gpu_busy", "time_kernel"]
