"""PyTorch's NVGEMM backend, as the tests of its client code need it.

An import of this module skips the importing test module if torch has no NVGEMM backend that imports
`cutlass_api`. The module holds all differences between the versions of torch that have one.
"""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import cutlass_api
import pytest
import torch
from nvidia_cutlass_stub.releases import NVGEMM

if not NVGEMM.holds(torch.__version__):
    newest = "{}.{}.0".format(*NVGEMM.last)
    pytest.skip(
        f"NVGEMM of torch {torch.__version__} does not import cutlass_api; "
        f"`make test-torch TORCH={newest}` runs these tests",
        allow_module_level=True,
    )

from torch._inductor.codegen.nv_universal_gemm import GemmVariant, kernel_cache
from torch._inductor.codegen.nv_universal_gemm import nv_universal_gemm as backend
from torch._inductor.codegen.nv_universal_gemm.nv_universal_gemm_kernel import (
    NVUniversalGemmKernel,
    NVUniversalGemmKernelWrapper,
)
from torch._inductor.template_heuristics import nv_universal_gemm as heuristics

#: The default of `torch._inductor.config.nvgemm_max_profiling_configs`.
TRIED = 5


def config_key(design: Any) -> tuple[int, ...]:
    """The key by which the heuristics find kernels of this design: tile and cluster. From torch
    2.12 on, the key omits K of the tile.
    """
    tile = design.tile_shape if torch.__version__ < (2, 12) else design.tile_shape[:2]
    return (*tile, *design.cluster_shape[:2])


@pytest.fixture(autouse=True)
def fresh_kernel_cache() -> Iterator[None]:
    """torch keeps the kernels it found for the life of the process."""
    kernel_cache.clear_cache()
    yield
    kernel_cache.clear_cache()


def family(kernel: cutlass_api.Kernel) -> str:
    return kernel.metadata.kernel_name.split("_")[0]


def render(name: str, workspace_size: int = 0) -> str:
    kernel = NVUniversalGemmKernel(
        kernel_name="nv_universal_gemm_test",
        input_nodes=[mock.Mock(), mock.Mock()],
        output_node=mock.Mock(),
        kernel_metadata={"kernel_name": name, "min_cc": 80},
        accumulator_type=torch.float32,
        variant=GemmVariant.GEMM,
        workspace_size=workspace_size,
    )
    return kernel.render()


__all__ = [
    "TRIED",
    "GemmVariant",
    "NVUniversalGemmKernel",
    "NVUniversalGemmKernelWrapper",
    "backend",
    "config_key",
    "family",
    "fresh_kernel_cache",
    "heuristics",
    "kernel_cache",
    "render",
]
