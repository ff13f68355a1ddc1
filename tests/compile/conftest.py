"""A compiled kernel."""

import cutlass_api
import pytest
from support.helpers import fake_gemm


@pytest.fixture(scope="module")
def artifact(cache_directory):
    kernel = cutlass_api.get_kernels(fake_gemm(3, 3, 3))[0]
    return kernel.compile(fake_gemm(3, 3, 3), cc=90)
