"""Faults: each call of the driver and of NVRTC fails, allocations and threads are refused. Each
ends in an exception that names the cause, leaks nothing, and does not keep the next call from
working.
"""

import json
import re
from pathlib import Path

import pytest
import stand_in

# The driver. tests/faults.py has the paths, and what is expected of each.

#: The calls of the driver that each group of paths makes.
CALLS = {
    "opening": {
        "cuInit",
        "cuDriverGetVersion",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetName",
        "cuDeviceGetAttribute",
        "cuDevicePrimaryCtxRetain",
    },
    "run": {
        "cuCtxGetCurrent",
        "cuCtxPushCurrent_v2",
        "cuCtxPopCurrent_v2",
        "cuKernelGetFunction",
        "cuKernelSetAttribute",
        "cuLaunchKernelEx",
        "cuLibraryGetKernel",
        "cuLibraryLoadData",
        "cuMemAllocFromPoolAsync",
        "cuMemFreeAsync",
        "cuMemPoolCreate",
        "cuMemPoolSetAttribute",
        "cuStreamGetCtx",
        "cuTensorMapEncodeTiled",
        "cuTensorMapReplaceAddress",
    },
    "graphs": {
        "cuGraphAddKernelNode_v2",
        "cuGraphCreate",
        "cuGraphExecKernelNodeSetParams_v2",
        "cuGraphInstantiateWithFlags",
        "cuGraphKernelNodeSetAttribute",
        "cuGraphLaunch",
        "cuStreamGetGreenCtx",
        "cuStreamIsCapturing",
        "cuThreadExchangeStreamCaptureMode",
    },
    "products": {
        "cuLaunchKernelEx",
        "cuMemAllocFromPoolAsync",
        "cuTensorMapEncodeTiled",
    },
    "tuner": {
        "cuCtxSynchronize",
        "cuEventCreate",
        "cuEventDestroy_v2",
        "cuEventElapsedTime",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuGetProcAddress_v2",
        "cuGraphDestroy",
        "cuGraphExecDestroy",
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemcpyDtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemsetD8Async",
        "cuStreamBeginCapture_v2",
        "cuStreamCreate",
        "cuStreamDestroy_v2",
        "cuStreamEndCapture",
        "cuStreamSynchronize",
    },
}
#: Calls that these paths make after another call has failed, or from another device.
OTHER_CALLS = {
    "cuGetErrorName",
    "cuGetErrorString",
    "cuLibraryUnload",
    "cuMemPoolDestroy",
    "cuMemcpyPeerAsync",
}


@pytest.mark.parametrize("group", CALLS)
def test_each_call_of_the_driver_fails_in_turn(group: str, tmp_path: Path) -> None:
    # The tuner's results would rank kernels of other tests.
    folder = {"CUTLASS_API_CACHE_DIR": str(tmp_path)} if group == "tuner" else {}
    report = json.loads(stand_in.run(f"import faults; faults.check({group!r})", **folder))
    for name, path in report.items():
        print(f"{name}: {len(path['calls'])} calls, {path['faults']} faults")
    wrong = [text for path in report.values() for text in path["wrong"]]
    assert not wrong, "\n".join(wrong[:20])
    called = {call for path in report.values() for call in path["calls"]}
    assert CALLS[group] <= called, CALLS[group] - called


def test_no_call_of_the_driver_is_left_out() -> None:
    folder = Path(__file__).parents[1] / "src" / "driver"
    text = "".join(source.read_text() for source in folder.glob("*.rs"))
    used = {*re.findall(r"sys::(cu[A-Z]\w+)\(", text), "cuEventElapsedTime"}
    used |= {"cuGetErrorName", "cuGetErrorString"}
    assert set().union(OTHER_CALLS, *CALLS.values()) == used


def test_a_product_is_not_tuned_if_the_stream_is_unknown() -> None:
    stand_in.run_gemm(
        """
        device.fail("cuStreamIsCapturing", 2)
        try:
            cutlass_api.matmul(a, b, out=out)
        except RuntimeError as error:
            assert "cuStreamIsCapturing failed with CUDA_ERROR_OUT_OF_MEMORY" in str(error), error
        else:
            raise AssertionError("nothing was raised")
        """,
        CUTLASS_API_TUNE="record",
    )


# NVRTC and the host. tests/host_faults.py has what is expected.


def test_each_call_of_nvrtc_fails_in_turn(tmp_path: Path) -> None:
    variables = stand_in.build_faulty_nvrtc(tmp_path)
    variables["LD_LIBRARY_PATH"] += f":{stand_in.build()}"
    out = stand_in.run("import host_faults; host_faults.check_nvrtc()", **variables)
    source = Path(__file__).parents[1] / "src" / "compile" / "nvrtc.rs"
    assert {*json.loads(out), "nvrtcGetErrorString"} == set(
        re.findall(r'b"(nvrtc\w+)"', source.read_text())
    ) | {"nvrtcGetProgramLogSize"}


def run_preloaded(function: str) -> str:
    """Runs a check of tests/host_faults.py whose allocations and threads can be refused."""
    preloaded = str(stand_in.build() / "allocations.so")
    return stand_in.run(f"import host_faults; host_faults.{function}()", LD_PRELOAD=preloaded)


def test_a_refused_allocation_aborts_the_process_or_raises() -> None:
    outcomes = json.loads(run_preloaded("check_heap"))
    assert outcomes["aborted"] > 10, outcomes


def test_a_refused_python_object_raises() -> None:
    pytest.importorskip("_testcapi")
    refused = json.loads(stand_in.run("import host_faults; host_faults.check_interpreter()"))
    assert refused["kernels"] > 0 and refused["compile"] > 0, refused


def test_buffers_of_the_operands_size_raise_memory_errors() -> None:
    run_preloaded("check_large_buffers")


def test_no_thread_is_needed() -> None:
    run_preloaded("check_threads")
