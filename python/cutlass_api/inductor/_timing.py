"""The time of a call on a GPU, for choices that differ by a few microseconds.

Inductor's own timer writes a buffer as large as L2 before each call. The GPU then writes these
lines back to memory while the call runs, which adds about 8 us to a memory-bound product of 25 us
on an H200 and hides differences of up to 4 us between kernels. It also times each choice once,
after a pause in which the clocks fall.
"""

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cutlass_api.inductor._torch import run_function

#: The GPU time of a measurement in seconds, and the most repetitions of each call in it.
_SECONDS = 1e-3
_REPETITIONS = 8
_ROUNDS = 7
#: The most copies of an input.
_COPIES = 16


#: Moves the inputs of a call in memory.
Arrange = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def time_alike(choices: Sequence[Any], arrange: Arrange = tuple) -> bool:
    """Lets Inductor time these choices of one product by `milliseconds`, if it serves all of them.

    Inductor keeps its own timer otherwise: times by different methods do not compare. Returns
    whether the choices are timed by `milliseconds`. arrange: makes the inputs of each call.
    """
    if any(run_function(choice) is None for choice in choices):
        return False
    for choice in choices:
        choice.benchmark = functools.partial(_benchmark, choice, arrange)
    return True


def _benchmark(choice: Any, arrange: Arrange, *inputs: Any, out: torch.Tensor) -> float:
    make_call = run_function(choice)
    assert make_call is not None  # `time_alike` has checked it
    factor = getattr(choice, "time_factor", 1.0)
    sets = list(map(arrange, _input_sets(inputs)))
    return factor * milliseconds(lambda: [make_call(*values, out=out) for values in sets])


def _input_sets(inputs: Sequence[torch.Tensor]) -> list[Sequence[torch.Tensor]]:
    """Sets of inputs with copies of the largest tensor and of those of its size, which together
    exceed the L2 cache. The others stay in the cache, as activations do in a model."""
    sizes = [value.untyped_storage().nbytes() for value in inputs]
    largest = max(sizes)
    cache = torch.cuda.get_device_properties(inputs[0].device).L2_cache_size
    bytes_of_set = max(largest * sizes.count(largest), 1)
    copies = max(1, min(_COPIES, math.ceil(2 * cache / bytes_of_set)))

    def copy(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(
            value.shape, value.stride(), dtype=value.dtype, device=value.device
        ).copy_(value)

    return [
        [
            copy(value) if size == largest else value
            for value, size in zip(inputs, sizes, strict=True)
        ]
        for _ in range(copies)
    ]


def milliseconds(make_calls: Callable[[], Sequence[Callable[[], Any]]]) -> float:
    """The time of a call, in milliseconds: the mean of calls that follow each other.

    make_calls returns the calls; it runs on the stream that captures, since a Triton launch is
    bound to the stream on which it is made. The calls are captured in a CUDA graph, so that the
    host's speed does not count. The median of several replays counts.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        calls = make_calls()

        def call_all() -> None:
            for call in calls:
                call()

        call_all()  # loads programs, and reports errors outside of the capture
        seconds = _timed(call_all) * 1e-3
        repetitions = max(1, min(_REPETITIONS, round(_SECONDS / max(seconds, 1e-6))))
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Other threads may call the driver meanwhile: they compile kernels.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for _ in range(repetitions):
                call_all()
        # The first replay also raises the clocks of an idle GPU.
        times = [_timed(graph.replay) for _ in range(_ROUNDS + 1)][1:]
    return statistics.median(times) / (repetitions * len(calls))


def _timed(run: Callable[[], Any]) -> float:
    """Milliseconds between two events around the run."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
