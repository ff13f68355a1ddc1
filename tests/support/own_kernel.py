"""An example of a user's kernel: a .cu file with metadata, which runs like a built-in kernel."""

from pathlib import Path

from cutlass_api.metadata import DenseTensorAttributes, ElementwiseOperandsMetadata
from cutlass_api.providers import CudaKernel, NvrtcProvider
from cutlass_api.utils import ceil_div

matrix = DenseTensorAttributes("float32")


@NvrtcProvider.register
class Axpby(CudaKernel):
    """out = A + B, as alpha A + beta B."""

    source = Path(__file__).with_name("kernels") / "axpby.cu"
    function = "axpby"
    operands = ElementwiseOperandsMetadata(matrix, matrix, matrix)
    kernel_name = "axpby_f32"
    block = (32, 8)
    contiguous = False

    def grid(self, args):
        rows, columns = args.out.shape
        return ceil_div(columns, 32), ceil_div(rows, 8)

    def parameters(self, args):
        operands = (args.A, args.B, args.out)
        strides = [step for operand in operands for step in operand.stride]
        return *operands, *args.out.shape, *strides, 1.0, 1.0
