"""Users' kernels on a GPU: results, streams, graphs, memory."""

import statistics
import time

import cutlass_api
import pytest
import torch
from cutlass_api import cuda_kernel
from cutlass_api.utils import ceil_div
from support.gpu_helpers import say

pytestmark = pytest.mark.gpu

SQUARE = """
template <class T> __global__ void square(const T* x, T* out, long long count) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < count) out[i] = x[i] * x[i];
}
"""


def square_of(element):
    return cuda_kernel(
        SQUARE, f"square<{element}>", grid=lambda x, out, count: ceil_div(count, 256)
    )


@pytest.mark.parametrize(
    "element, dtype",
    [
        ("float", torch.float32),
        ("double", torch.float64),
        ("int", torch.int32),
        ("long long", torch.int64),
        ("short", torch.int16),
        ("unsigned char", torch.uint8),
    ],
)
def test_a_template_for_each_type(element, dtype):
    square = square_of(element)
    for shape in [(1,), (1000,), (3, 5, 7, 11), (2, 3, 4, 5, 6)]:
        x = (torch.randn(shape, device="cuda") * 5).to(dtype)
        out = torch.zeros_like(x)
        assert square(x, out, x.numel()) is None
        assert torch.equal(out, x * x)


def test_every_kind_of_parameter_arrives():
    kernel = cuda_kernel(
        """
        #include "common/types.cuh"
        __global__ void all_of_it(double* out, const f16* half, const float4* four, bool yes,
                                  signed char c, unsigned short s, int i, unsigned u, long long l,
                                  unsigned long long ul, float f, double d, const float* none) {
          const double values[] = {decode(half[1]), four[1].w, yes, double(c), double(s),
                                   double(i), double(u), double(l), double(ul), f, d,
                                   none == nullptr};
          out[threadIdx.x] = values[threadIdx.x];
        }
        """,
        "all_of_it",
        grid=1,
        block=12,
    )
    out = torch.zeros(12, device="cuda", dtype=torch.float64)
    half, four = torch.tensor([1, 2.5], device="cuda").half(), torch.arange(8.0, device="cuda")
    kernel(out, half, four, True, -7, 65535, -(2**31), 2**32 - 1, -(2**40), 2**63, 0.25, 0.1, None)
    wanted = [2.5, 7, 1, -7, 65535, -(2**31), 2**32 - 1, -(2**40), 2**63, 0.25, 0.1, 1]
    assert out.tolist() == wanted


def test_half_of_the_toolkit_s_headers():
    kernel = cuda_kernel(
        "#include <cuda_fp16.h>\n__global__ void twice(const __half* x, __half* out) {"
        " out[threadIdx.x] = __hadd(x[threadIdx.x], x[threadIdx.x]); }",
        "twice",
        grid=1,
        block=64,
    )
    x = torch.randn(64, device="cuda").half()
    out = torch.empty_like(x)
    try:
        kernel.compile()
    except RuntimeError as error:
        assert "cuda_fp16.h" in str(error)
        pytest.skip("the toolkit's headers are not installed")
    kernel(x, out)
    assert torch.equal(out, x + x)


REDUCE = """
extern "C" __global__ void total(const float* x, float* out, int count) {
  extern __shared__ float values[];
  for (int i = threadIdx.x; i < count; i += blockDim.x) values[i] = x[blockIdx.x * count + i];
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (int i = 0; i < count; ++i) sum += values[i];
    out[blockIdx.x] = sum;
  }
}
"""


def test_dynamic_shared_memory_beyond_48_kib():
    count = 24 * 1024
    total = cuda_kernel(
        REDUCE, "total", grid=lambda x, out, count: x.shape[0], shared_bytes=4 * count
    )
    x = torch.randint(-3, 4, (5, count), device="cuda").float()
    out = torch.empty(5, device="cuda")
    total(x, out, count)
    assert torch.equal(out, x.sum(1))


def test_grids_blocks_and_clusters_of_three_dimensions():
    source = """
    __global__ void places(int* out) {
      unsigned rank;
      asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(rank));
      const int block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
      const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
      out[block * blockDim.x * blockDim.y * blockDim.z + thread] = rank;
    }
    """
    hopper = cutlass_api.utils.device_cc() >= 90
    if not hopper:
        pytest.skip("clusters came with compute capability 9.0")
    out = torch.zeros(2 * 4 * 6, 4 * 2 * 3, dtype=torch.int32, device="cuda")
    cuda_kernel(source, "places", grid=(2, 4, 6), block=(4, 2, 3), cluster=(1, 2, 3))(out)
    assert (out == 6).all()


def test_streams_and_graphs():
    square = square_of("float")
    x, out = torch.full((1 << 20,), 2.0, device="cuda"), torch.zeros(1 << 20, device="cuda")
    square.compile(x, out, x.numel())
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.fill_(3)
        square(x, out, x.numel())
    torch.cuda.synchronize()
    assert (out == 9).all(), "on torch's current stream"
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        x.fill_(4)
    square(x, out, x.numel(), stream=stream)
    torch.cuda.synchronize()
    assert (out == 16).all(), "on the one it is given"
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        square(x, out, x.numel())
    x.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert (out == 25).all()


def test_arrays_of_another_framework():
    cupy = pytest.importorskip("cupy")
    x, out = cupy.arange(10, dtype=cupy.float32), cupy.zeros(10, dtype=cupy.float32)
    square_of("float")(x, out, 10)
    assert (out.get() == x.get() ** 2).all()


@pytest.mark.timing
def test_a_call_costs_microseconds(request):
    square = square_of("float")
    x, out = torch.ones(256, device="cuda"), torch.zeros(256, device="cuda")
    fixed = cuda_kernel(SQUARE, "square<float>", grid=1)
    medians = {}
    for name, kernel in {"grid computed": square, "grid fixed": fixed}.items():
        times = []
        for _ in range(30):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(100):
                kernel(x, out, 256)
            times.append((time.perf_counter() - start) / 100)
        medians[name] = 1e6 * statistics.median(times)
    say(
        request,
        "a call of cuda_kernel: "
        + ", ".join(f"{name} {us:.1f} us" for name, us in medians.items()),
    )
    assert medians["grid fixed"] < 20
