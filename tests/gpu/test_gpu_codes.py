"""Products by weights of 4 bits on a GPU, against float64."""

import cutlass_api
import pytest
import torch
from support import codes
from support.codes import CASES, product
from support.gpu_helpers import fail_with

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
