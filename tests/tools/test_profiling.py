"""`cutlass_api.profiling`: times of functions."""

import json
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import cutlass_api
import pytest
import torch
from cutlass_api import profiling
from cutlass_api.profiling import Comparison, Timing, compare, time_kernel
from torch._subclasses.fake_tensor import FakeTensorMode


def test_each_timed_call_is_a_sample():
    calls = []
    timing = time_kernel(lambda *args: calls.append(args), torch.ones(2), 3, warmup=2, repeat=5)
    assert len(timing.samples) == 5 and timing.device == "CPU"
    assert len(calls) == 7 and calls[0][1] == 3
    assert all(sample > 0 for sample in timing.samples)


def test_functions_take_turns():
    order = []
    functions = {name: lambda x, name=name: order.append(name) for name in "abc"}
    compared = compare(functions, torch.ones(1), warmup=0, repeat=8)
    rounds = ["".join(order[at : at + 3]) for at in range(0, 24, 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert len(set(rounds)) > 2  # no function always follows the same one
    assert [len(timing.samples) for timing in compared.timings.values()] == [8, 8, 8]


def test_what_a_function_raises_passes_through():
    def fails():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        time_kernel(fails)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"repeat": 0}, "repeat is 0 and warmup 10; repeat must be 1 or more"),
        ({"warmup": -1}, "repeat is 100 and warmup -1"),
    ],
)
def test_counts_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        time_kernel(print, **options)
    with pytest.raises(ValueError, match="functions is empty"):
        compare({})


COMPARED = Comparison(
    {"torch": Timing((4.0, 1.0, 3.0, 2.0, 5.0), "a GPU"), "<ours>": Timing((2.0,) * 5, "a GPU")}
)


def test_a_timing_shows_what_it_holds():
    timing = COMPARED.timings["torch"]
    assert (timing.median, timing.quartiles) == (3.0, (2.0, 4.0))
    assert repr(timing) == "<3.00 us, quartiles 2.00 to 4.00, 5 calls on a GPU>"
    assert json.loads(timing.to_json()) == {
        "samples": [4.0, 1.0, 3.0, 2.0, 5.0],
        "device": "a GPU",
        "median": 3.0,
        "quartiles": [2.0, 4.0],
    }
    assert Timing((7.0,), "CPU").quartiles == (7.0, 7.0)


def test_a_comparison_is_a_table():
    assert str(COMPARED).splitlines() == [
        "5 calls on a GPU",
        "  us     quartiles  ratio",
        "3.00  2.00 to 4.00  1.000  torch",
        "2.00  2.00 to 2.00  1.500  <ours>",
    ]
    assert "<td>&lt;ours&gt;</td>" in COMPARED._repr_html_()
    assert json.loads(COMPARED.to_json())["<ours>"]["ratio"] == 1.5


class Enqueued(list):
    """What is enqueued, and the devices that are current."""


@pytest.fixture
def pretended_gpu(monkeypatch):
    """Records what is enqueued on a GPU that does not exist: an event counts 1 ms more than the one
    before."""
    enqueued = Enqueued()

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            enqueued.append("event")
            self.at = enqueued.count("event")

        def synchronize(self):
            enqueued.append("wait")

        def elapsed_time(self, end):
            return end.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: enqueued.append(("sleep", cycles)))
    current = []

    @contextmanager
    def make_current(device):
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", make_current)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"pretended {device}")
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=1 << 20)
    )
    for name in ("zeros", "empty"):
        make = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *shape, make=make, device, **more: make(*shape, **more)
        )
    reading = torch.sum

    def read(buffer, **more):
        enqueued.append(("read", buffer.nbytes))
        return reading(buffer, **more)

    monkeypatch.setattr(torch, "sum", read)
    enqueued.current = current
    return enqueued


def test_a_gpu_call_lies_between_two_events(pretended_gpu):
    def call():
        assert pretended_gpu.current == [torch.device("cuda:0")]
        pretended_gpu.append("call")

    timing = time_kernel(call, warmup=0, repeat=1)
    assert (timing.samples, timing.device) == ((1000.0,), "pretended cuda:0")
    *host, (sleep, cycles), read, begin, call, end, wait = pretended_gpu
    assert host == ["call"] * 3 and sleep == "sleep" and 0 <= cycles <= 30e-3 * 2e9
    assert (read, begin, call, end, wait) == (("read", 2 << 20), "event", "call", "event", "wait")


def test_the_cache_may_stay_warm(pretended_gpu):
    time_kernel(lambda: None, warmup=1, repeat=2, clear_l2=False)
    assert not any(each[0] == "read" for each in pretended_gpu)
    assert pretended_gpu.count("wait") == 3


def test_the_cpu_is_timed_where_the_arguments_are_there(pretended_gpu):
    assert time_kernel(lambda x: None, torch.ones(1), repeat=1).device == "CPU"
    assert pretended_gpu == []


def test_the_first_cuda_tensor_decides():
    with FakeTensorMode():
        there = torch.empty(2, device="cuda:1")
    here = torch.ones(())
    assert profiling._device((here, there)) == torch.device("cuda:1")
    assert profiling._device((here, 3)) is None


def test_it_works_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert time_kernel(lambda: None, repeat=1).device == "CPU"


def test_the_module_is_imported_at_first_use():
    assert cutlass_api.profiling is profiling


@pytest.mark.gpu
def test_a_gpu_s_time_excludes_the_host():
    import time

    def slow_to_enqueue():
        time.sleep(2e-3)
        torch.cuda._sleep(200_000)  # about 0.1 ms

    timing = time_kernel(slow_to_enqueue, warmup=2, repeat=10)
    assert 50 < timing.median < 400, timing
    assert timing.device == torch.cuda.get_device_name()


@pytest.mark.gpu
@pytest.mark.timing
def test_clearing_the_cache_lengthens_a_read():
    cache = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    small = torch.ones(cache // 12, dtype=torch.float32, device="cuda")  # a third of the cache
    total = torch.empty((), device="cuda")

    def read():
        torch.sum(small, dim=0, out=total)

    warm = time_kernel(read, clear_l2=False)
    assert time_kernel(read).median > 1.1 * warm.median
