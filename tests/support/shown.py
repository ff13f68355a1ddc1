"""Instances of public classes."""

import cutlass_api
import torch
from cutlass_api import arguments, metadata, profiling
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from cutlass_api.library import ScaleMode, ScaleSwizzleMode
from cutlass_api.tuning import StoredResult, Trial, TuningResult

from support.helpers import fake_gemm

EPILOGUE = "def scaled(accum, alpha, bias):\n    D = accum * alpha + bias\n    return D\n"


def operands(dtype=torch.float32):
    return [torch.zeros(shape, dtype=dtype) for shape in ((4, 8), (8, 6), (4, 6))]


def gemm(**more):
    return GemmArguments(*operands(), accumulator_type="float32", **more)


def grouped():
    a, b, offsets = torch.zeros(4, 8), torch.zeros(2, 8, 6), torch.tensor([1, 4]).int()
    return arguments.GroupedGemmArguments(a, b, torch.zeros(4, 6), "float32", offsets)


def epilogue():
    return EpilogueArguments(EPILOGUE, alpha=2.5, bias=torch.zeros(6), D=torch.zeros(4, 6))


def scaled():
    values, scales = torch.zeros(4, 64).to(torch.float8_e4m3fn), torch.ones(4, 2)
    mode, swizzle = ScaleMode.Blockwise1x32, ScaleSwizzleMode.SwizzleNone
    return arguments.ScaledTensor(values, scales, mode, swizzle)


def kernel(part, args=None):
    kernels = cutlass_api.get_kernels(args, cc=90)
    return next(each for each in kernels if each.metadata.kernel_name.startswith(part))


def cpu_kernel():
    return cutlass_api.get_kernels(gemm())[0]


def artifact():
    args = fake_gemm()
    return kernel("sm90", args).compile(args, cc=90)


def requirements():
    return metadata.DenseTensorAttributes("float16", (0, 0, 1), 8)


class Square(cutlass_api.CudaKernel):
    source = "__global__ void square(const float* x, float* out) {}"
    function = "square"
    operands = metadata.ElementwiseOperandsMetadata(*[requirements()] * 3)


def own_kernel():
    return next(iter(Square.generate_kernels()))


def function():
    return cutlass_api.cuda_kernel(
        "__global__ void f(float* x, int n) {}", "f", grid=4, block=(32, 2), options=["-DA=<B>"]
    )


RESULT = TuningResult(
    "<kernel>", "a GPU", "exact gemm", (Trial("<kernel>", 2.0, True), Trial("b", 3.0)), 7
)
STORED = StoredResult("a GPU", 12, "exact gemm", "<kernel>", "f00d", 2e-6)
TIMING = profiling.Timing((1.0, 2.0, 3.0), "a GPU")
