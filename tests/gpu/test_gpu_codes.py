"""Products by weights of 4 bits on a GPU, against float64."""

import cutlass_api
import pytest
import torch
from support import codes, grouped_codes
from support.codes import CASES, product
from support.gpu_helpers import fail_with
from support.grouped_codes import GroupedProduct

pytestmark = pytest.mark.gpu

#: Few and many rows, partial tiles along N and along K, and K of less than a tile.
SHAPES = [(1, 4096, 4096), (7, 136, 352), (16, 200, 2880), (64, 1000, 1056), (300, 264, 608)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shape", [*SHAPES, (3, 40, 32), (0, 40, 64)], ids=str)
def test_every_kernel(name, shape):
    fail_with(list(codes.failures_of(name, shape)))


@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_the_same_every_run(name):
    case = product(CASES[name], 16, 1024, 4096)
    for kernel in cutlass_api.get_kernels(case.args):
        kernel.run(case.args)
        first = case.out.clone()
        for _ in range(20):
            kernel.run(case.args)
        assert torch.equal(case.out, first), kernel.metadata.kernel_name


#: Empty groups, groups of one row and of several tiles, more groups than a warp has lanes.
GROUPS = [
    ([0, 9, 37, 0, 0, 1, 0], 136, 352),
    ([300, 0, 2, 129], 264, 608),
    ([at % 3 for at in range(70)], 200, 2880),
]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes, n, k", GROUPS, ids=["small", "large", "many"])
def test_groups_by_every_kernel(name, sizes, n, k):
    fail_with(list(grouped_codes.failures_of(name, sizes, n, k)))


@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_groups_are_the_same_every_run(name):
    case = GroupedProduct(CASES[name], [5, 0, 130, 20], 1024, 2048)
    args, out = case.product.args, case.product.out
    for kernel in cutlass_api.get_kernels(args):
        kernel.run(args)
        first = out.clone()
        for _ in range(20):
            kernel.run(args)
        assert torch.equal(out, first), kernel.metadata.kernel_name


def test_a_graph_reads_the_offsets_of_each_replay():
    stack = cutlass_api.quantize.mxfp4(torch.randn(3, 256, 512, device="cuda")).repack()
    x = torch.randn(64, 512, device="cuda", dtype=torch.bfloat16)
    offs = torch.tensor([10, 20, 64], dtype=torch.int32, device="cuda")
    multiply = cutlass_api.quantized_grouped_mm
    multiply(x, stack, offs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = multiply(x, stack, offs)
    matrices = stack.dequantize(torch.float64)
    for ends in ([64, 64, 64], [0, 1, 64], [10, 20, 64]):
        offs.copy_(torch.tensor(ends))
        graph.replay()
        parts = x.double().tensor_split(ends[:2])
        expected = torch.cat([part @ w.t() for part, w in zip(parts, matrices, strict=True)])
        torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=0.3)
