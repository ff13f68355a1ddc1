"""Running kernels: on every kind of stream, in CUDA graphs, from several threads, with operands of
every framework. `test_gpu_gemm.py` tests results; these tests check where and when kernels run.
"""

import ctypes
import gc
import json
import os

import cutlass_api
import numpy
import pytest
import torch
from cutlass_api.arguments import GemmArguments
from support.gpu_helpers import SLEEP_CYCLES, Gemm, say
from support.helpers import fake_gemm, run_python

pytestmark = pytest.mark.gpu


# ---- streams -------------------------------------------------------------------------------------


def as_torch_stream(stream: torch.cuda.Stream):
    return stream


def as_integer(stream: torch.cuda.Stream):
    return stream.cuda_stream


def as_custream(stream: torch.cuda.Stream):
    driver = pytest.importorskip("cuda.bindings.driver")
    return driver.CUstream(stream.cuda_stream)


def as_cupy_stream(stream: torch.cuda.Stream):
    cupy = pytest.importorskip("cupy")
    return cupy.cuda.ExternalStream(stream.cuda_stream)


@pytest.mark.parametrize("form", [as_torch_stream, as_integer, as_custream, as_cupy_stream])
@pytest.mark.parametrize("assume", [False, True], ids=["checked", "assumed"])
def test_a_launch_is_ordered_on_its_stream(form, assume: bool) -> None:
    gemm, stream = Gemm(), torch.cuda.Stream()
    argument = form(stream)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        gemm.a.fill_(3)
    # torch's own current stream is another one here, on which A still holds ones.
    gemm.kernel.run(gemm.args, gemm.artifact, stream=argument, assume_supported_args=assume)
    assert gemm.shows(3)


def test_the_sleep_outlasts_a_launch() -> None:
    """The test above proves nothing unless a launch on another stream can still read the old A."""
    gemm, stream = Gemm(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(SLEEP_CYCLES)
        gemm.a.fill_(3)
    gemm.kernel.run(gemm.args, gemm.artifact, stream=torch.cuda.Stream())
    assert gemm.shows(1)


def test_no_stream_means_the_current_one_of_torch(exchange_mode: bool) -> None:
    gemm = Gemm()
    for stream in (torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.default_stream()):
        gemm.a.fill_(1)
        gemm.out.fill_(torch.nan)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP_CYCLES)
            gemm.a.fill_(5)
            gemm.kernel.run(gemm.args, gemm.artifact)
            gemm.kernel.run(gemm.args, gemm.artifact, stream=None)
        assert gemm.shows(5)


def test_the_default_stream_has_handle_zero() -> None:
    gemm = Gemm()
    torch.cuda._sleep(SLEEP_CYCLES)
    gemm.a.fill_(2)
    gemm.kernel.run(gemm.args, gemm.artifact, stream=0)
    assert gemm.shows(2)


def test_a_failing_launch_raises_with_the_name_of_cuda_s_error() -> None:
    """The legacy stream cannot be used while a stream that waits for it is being captured. The
    driver refuses the launch, and only the capture is lost.
    """
    gemm = Gemm()
    cuda = ctypes.CDLL("libcuda.so.1")
    stream, graph = ctypes.c_void_p(), ctypes.c_void_p()
    assert (
        cuda.cuStreamCreate(ctypes.byref(stream), 0) == 0
    )  # 0: it waits for the legacy stream; torch's do not
    try:
        assert cuda.cuStreamBeginCapture_v2(stream, 1) == 0  # 1: this thread's calls are watched
        try:
            with pytest.raises(RuntimeError, match="CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"):
                gemm.kernel.run(gemm.args, gemm.artifact, stream=0)
        finally:
            cuda.cuStreamEndCapture(stream, ctypes.byref(graph))
            if graph.value:
                cuda.cuGraphDestroy(graph)
    finally:
        cuda.cuStreamDestroy_v2(stream)
    # The next launch succeeds.
    gemm.kernel.run(gemm.args, gemm.artifact)
    assert gemm.shows(1)


# ---- CUDA graphs ---------------------------------------------------------------------------------


def test_a_graph_is_captured_before_anything_has_run() -> None:
    """In a new process that has only compiled."""
    code = """
    import torch, cutlass_api
    from cutlass_api.arguments import GemmArguments

    torch.manual_seed(0)
    inputs = [
        [torch.randn(70, 40, device="cuda", dtype=torch.float16) for _ in range(20)]
        for _ in range(2)
    ]
    b = torch.randn(40, 90, device="cuda", dtype=torch.float16)
    outs = [torch.full((70, 90), torch.nan, device="cuda", dtype=torch.float16) for _ in range(20)]
    a = [x.clone() for x in inputs[0]]
    calls = [GemmArguments(x, b, out, accumulator_type=torch.float32) for x, out in zip(a, outs)]
    kernels = cutlass_api.get_kernels(calls[0])
    # The fastest kernel with an explicit artifact, and the slowest through the cache.
    for kernel, artifact in [(kernels[0], kernels[0].compile(calls[0])), (kernels[-1], None)]:
        kernel.compile(calls[0])
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                kernel.run(call, artifact)
        for out in outs:
            assert out.isnan().all(), "capturing runs nothing"
        for values in inputs:
            for x, value in zip(a, values):
                x.copy_(value)
            graph.replay()
            for value, out in zip(values, outs):
                torch.testing.assert_close(out, value @ b, rtol=2e-3, atol=2e-3)
        for out in outs:
            out.fill_(torch.nan)
    print("done")
    """
    assert run_python(code, timeout=120).endswith("done\n")


def test_a_graph_outlives_everything_it_was_captured_with() -> None:
    """If a program were unloaded with its artifact, the graph would hold a freed kernel."""
    gemm = Gemm()
    a, out, k = gemm.a, gemm.out, gemm.k
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gemm.kernel.run(gemm.args, gemm.artifact)
    keep_b = gemm.b
    del gemm
    gc.collect()
    a.fill_(4)
    graph.replay()
    torch.cuda.synchronize()
    assert (out == 4 * k).all() and keep_b is not None


# ---- operands ------------------------------------------------------------------------------------


def test_what_was_compiled_for_fake_tensors_runs_on_real_ones() -> None:
    gemm = Gemm()
    artifact = gemm.kernel.compile(fake_gemm(128, 256, 64))
    gemm.kernel.run(gemm.args, artifact)
    assert gemm.shows(1)
    with pytest.raises(ValueError, match="FakeTensor"):
        gemm.kernel.run(fake_gemm(128, 256, 64), artifact)


def test_cupy_arrays() -> None:
    cupy = pytest.importorskip("cupy")
    generator = numpy.random.default_rng(0)
    a_values, b_values = (
        generator.standard_normal(shape).astype("float16") for shape in [(70, 40), (40, 90)]
    )
    a, b, out = (
        cupy.asarray(a_values),
        cupy.asarray(b_values, order="F"),
        cupy.empty((70, 90), dtype="float16"),
    )
    args = GemmArguments(a, b, out, accumulator_type=cupy.float32)
    kernel = cutlass_api.get_kernels(args)[0]
    expected = a_values.astype("float64") @ b_values.astype("float64")
    for stream in (None, cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream.null):
        out.fill(cupy.nan)
        cupy.cuda.Device().synchronize()
        kernel.run(args, stream=stream)
        cupy.cuda.Device().synchronize()
        assert abs(cupy.asnumpy(out) - expected).max() < 0.02


def test_no_stream_means_the_current_one_of_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    a, b = (cupy.ones((64, 64), dtype=cupy.float16) for _ in range(2))
    out = cupy.full((64, 64), cupy.nan, dtype=cupy.float16)
    args = GemmArguments(a, b, out, accumulator_type=cupy.float32)
    kernel = cutlass_api.get_kernels(args)[0]
    artifact = kernel.compile(args)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(SLEEP_CYCLES)
    with stream:
        a.fill(3)
        kernel.run(args, artifact)
    cupy.cuda.Device().synchronize()
    assert (cupy.asnumpy(out) == 192).all()


def test_jax_arrays() -> None:
    # By default, JAX allocates three quarters of the memory with its first array.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip(f"JAX runs on {jax.default_backend()} here")
    keys = jax.random.split(jax.random.key(0))
    a = jax.random.normal(keys[0], (70, 40), dtype=jax.numpy.float16).block_until_ready()
    b = jax.random.normal(keys[1], (40, 90), dtype=jax.numpy.float16).block_until_ready()
    # JAX arrays are immutable, so the output belongs to another framework.
    out = torch.full((70, 90), torch.nan, device="cuda", dtype=torch.float16)
    args = GemmArguments(a, b, out, accumulator_type="float32")
    cutlass_api.get_kernels(args)[0].run(args)
    torch.cuda.synchronize()
    expected = torch.from_dlpack(a).double() @ torch.from_dlpack(b).double()
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)


# ---- times --------------------------------------------------------------------------------------


@pytest.mark.timing
def test_compiling_is_quick(tmp_path, request) -> None:
    """Under 0.5 s with NVRTC, under 5 ms from disk, in new processes that have imported torch."""
    code = """
    import json, time, torch, cutlass_api
    from cutlass_api.arguments import GemmArguments

    a, b, out = (torch.zeros(4096, 4096, device="cuda", dtype=torch.float16) for _ in range(3))
    torch.cuda.synchronize()
    args = GemmArguments(a, b, out, accumulator_type=torch.float32)
    times = []
    for kernel in cutlass_api.get_kernels(args)[:3]:
        start = time.perf_counter()
        kernel.compile(args)
        times.append(time.perf_counter() - start)
    print(json.dumps(times))
    """

    def times(folder: str) -> list[float]:
        # Disables the driver's cache, in which NVRTC also keeps results (NVRTC documentation,
        # "Caching").
        environment = {"CUTLASS_API_CACHE_DIR": str(tmp_path / folder), "CUDA_CACHE_DISABLE": "1"}
        output = run_python(code, timeout=120, **environment)
        return json.loads(output.splitlines()[-1])

    # The first process also loads NVRTC from disk into memory, and other processes disturb the
    # timing. Hence the best of two, and of three.
    first, second = times("first"), times("second")
    cold = [min(each) for each in zip(first, second, strict=True)]
    warm = [min(each) for each in zip(*(times("second") for _ in range(3)), strict=True)]
    for name, values in [("first process", first), ("second", second), ("from disk", warm)]:
        shown = ", ".join(f"{1e3 * value:.1f} ms" for value in values)
        say(request, f"compile, {name}: {shown} (first, second, third kernel)")
    assert max(cold) < 0.5
    assert max(warm) < 0.005
