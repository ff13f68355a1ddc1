"""Threads, devices and contexts of CUDA."""

import ctypes
import threading
from functools import partial

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GemmArguments
from support.gpu_helpers import Gemm

pytestmark = pytest.mark.gpu


def test_threads_on_streams_of_their_own_do_not_disturb_each_other() -> None:
    failures: list[object] = []

    def work(number: int) -> None:
        try:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                generator = torch.Generator("cuda").manual_seed(number)
                a = torch.randn(150 + number, 96, device="cuda", generator=generator).half()
                b = torch.randn(96, 200, device="cuda", generator=generator).half()
                out = torch.empty(150 + number, 200, device="cuda", dtype=torch.float16)
                args = GemmArguments(a, b, out, accumulator_type=torch.float32)
                kernels = cutlass_api.get_kernels(args)
                expected = a.double() @ b.double()
                for turn in range(60):
                    out.fill_(torch.nan)
                    kernels[turn % len(kernels) % 3].run(args)
                    if not (out.double() - expected).norm() < 1e-3 * expected.norm():
                        failures.append((number, turn))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def current_context() -> int:
    context = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value or 0


def test_the_current_device_and_context_are_left_as_they_were() -> None:
    gemm = Gemm()
    before = current_context(), torch.cuda.current_device()
    gemm.kernel.compile(gemm.args)
    gemm.kernel.run(gemm.args, gemm.artifact)
    assert (current_context(), torch.cuda.current_device()) == before
    seen: list[object] = []

    def in_a_thread_without_a_context() -> None:
        try:
            found = current_context()
            gemm.kernel.run(gemm.args, gemm.artifact, stream=0)
            seen.extend([found, current_context()])
        except Exception as error:
            seen.append(error)

    thread = threading.Thread(target=in_a_thread_without_a_context)
    thread.start()
    thread.join()
    assert seen == [0, 0]
    assert gemm.shows(1)


def test_another_context_of_the_device_may_be_current_and_a_capture_goes_on() -> None:
    driver = ctypes.CDLL("libcuda.so.1")
    gemm, stream = Gemm(), torch.cuda.Stream()
    launch = gemm.kernel.bind(gemm.args, gemm.artifact, stream)
    run = partial(gemm.kernel.run, gemm.args, gemm.artifact)
    calls = [*[partial(run, stream.cuda_stream)] * 2, partial(run, 0), launch]
    own, other = current_context(), ctypes.c_void_p()
    assert driver.cuCtxCreate_v2(ctypes.byref(other), 0, torch.cuda.current_device()) == 0
    popped = ctypes.byref(ctypes.c_void_p())
    assert driver.cuCtxPopCurrent_v2(popped) == 0 and current_context() == own
    try:
        for call in calls:
            torch.cuda.synchronize()
            gemm.out.zero_()
            torch.cuda.synchronize()
            assert driver.cuCtxPushCurrent_v2(other) == 0
            call()
            assert current_context() == other.value
            assert driver.cuCtxPopCurrent_v2(popped) == 0
            torch.cuda.synchronize()
            assert gemm.shows(1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            assert driver.cuCtxPushCurrent_v2(other) == 0
            launch()
            assert driver.cuCtxPopCurrent_v2(popped) == 0
        gemm.out.zero_()
        graph.replay()
        assert gemm.shows(1)
    finally:
        assert driver.cuCtxDestroy_v2(other) == 0
    assert current_context() == own
