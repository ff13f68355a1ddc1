"""What profilers show of a call: torch's profilers, NVTX, and names of kernels."""

import json
import textwrap

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GemmArguments
from support.helpers import run_python
from torch.profiler import ProfilerActivity, profile


def products(device="cpu", extent=32):
    """Calls of each kind, by the name of their range."""
    a, b, out = (torch.ones(extent, extent, device=device) for _ in range(3))
    args = GemmArguments(a, b, out, "float32")
    kernel = cutlass_api.get_kernels(args)[0]
    launch = kernel.bind(args)
    calls = {
        "cutlass_api::matmul": lambda: cutlass_api.matmul(a, b),
        "cutlass_api::run": lambda: kernel.run(args),
        "cutlass_api::PreparedLaunch": lambda: launch(A=b),
        "cutlass_api::mm": lambda: torch.ops.cutlass_api.mm(a, b),
    }
    return kernel, calls


def ours(recorded):
    return [event for event in recorded.events() if event.name.startswith("cutlass_api")]


@pytest.fixture
def recorded():
    return profile(activities=[ProfilerActivity.CPU], record_shapes=True)


def test_each_call_has_one_range_with_shapes(recorded):
    kernel, calls = products()
    with recorded:
        for call in calls.values():
            call()
    events = ours(recorded)
    assert [event.name for event in events] == list(calls)
    for event in events:
        assert event.input_shapes[:2] == [[32, 32]] * 2
        if event.name in ("cutlass_api::run", "cutlass_api::PreparedLaunch"):
            assert event.kwinputs == {"kernel": kernel.metadata.kernel_name}


def test_a_call_that_raises_ends_its_range(recorded):
    kernel, calls = products()
    with recorded:
        with pytest.raises(TypeError, match="args"):
            kernel.run(None)
        with pytest.raises(ValueError, match="K"):
            cutlass_api.matmul(torch.ones(2, 3), torch.ones(2, 3))
        with torch.profiler.record_function("after"):
            calls["cutlass_api::run"]()
    parents = {event.name: event.cpu_parent for event in recorded.events()}
    assert parents["after"] is None and parents["cutlass_api::run"].name == "after"


def test_a_trace_exports(recorded, tmp_path):
    kernel, calls = products()
    with recorded:
        calls["cutlass_api::run"]()
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    (event,) = (each for each in trace if each.get("name") == "cutlass_api::run")
    assert event["args"]["kernel"] == kernel.metadata.kernel_name
    assert event["args"]["Input Dims"] == [[32, 32]] * 3


def test_a_profiler_that_fails_does_not_break_a_call(recorded, monkeypatch):
    import cutlass_api._ranges as ranges

    def fail(*_):
        raise RuntimeError("no range")

    monkeypatch.setattr(ranges, "enter", fail)
    _, calls = products()
    unraisable = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    with recorded:
        calls["cutlass_api::run"]()
    assert str(unraisable[0].exc_value) == "no range" and not ours(recorded)


#: Package nvtx, which prints its ranges.
NVTX = """
    import sys, types
    nvtx = types.ModuleType("nvtx")
    nvtx.push_range = lambda text: print("push", text)
    nvtx.pop_range = lambda: print("pop")
    sys.modules["nvtx"] = nvtx
"""
CALLS = """
    import numpy, cutlass_api
    a = numpy.ones((4, 8), numpy.float32)
    out = numpy.empty((4, 4), numpy.float32)
    args = cutlass_api.arguments.GemmArguments(a, a.T, out, "float32")
    cutlass_api.matmul(a, a.T)
    cutlass_api.get_kernels(args)[0].run(args)
"""


def test_nvtx():
    script = textwrap.dedent(NVTX) + textwrap.dedent(CALLS)
    name = "reference_gemm_f32xf32_f32_f32"
    assert run_python(script, CUTLASS_API_NVTX="1").splitlines() == [
        "push cutlass_api::matmul float32[4, 8] float32[8, 4]",
        "pop",
        f"push cutlass_api::run float32[4, 8] float32[8, 4] float32[4, 4] {name}",
        "pop",
    ]
    assert run_python(script) == ""


def test_nvtx_is_missing():
    script = "import sys; sys.modules['nvtx'] = None; sys.stderr = sys.stdout\n"
    output = run_python(script + textwrap.dedent(CALLS), CUTLASS_API_NVTX="1")
    assert output.count("pip install nvtx") == 1


@pytest.mark.gpu
def test_names_of_kernels_and_their_calls():
    kernel, calls = products("cuda", 256)
    calls["cutlass_api::run"]()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as recorded:
        calls["cutlass_api::run"]()
        torch.cuda.synchronize()
    launched = [each.name for each in recorded.events() if each.name.startswith("rutlass_")]
    family = kernel.metadata.kernel_name.split("_")[0]
    assert len(launched) == 1 and launched[0].startswith(f"rutlass_{family}_gemm_f32xf32_")
    assert [event.name for event in ours(recorded)] == ["cutlass_api::run"]
