"""PyTorch's NVGEMM backend, as the tests of its client code need it.

An import of this module skips the importing test module if torch has no NVGEMM backend that imports
`cutlass_api`. The module holds all differences between the versions of torch that have one.
"""

from typing import Any

import pytest
import torch
from rutlass_stand_in.releases import NVGEMM

if not NVGEMM.holds(torch.__version__):
    pytest.skip(
        f"NVGEMM of torch {torch.__version__} imports cutlass.operators, not cutlass_api; "
        "`make test-torch TORCH=2.13.0` runs these tests",
        allow_module_level=True,
    )

from torch._inductor.codegen.nv_universal_gemm import GemmVariant, kernel_cache
from torch._inductor.codegen.nv_universal_gemm import nv_universal_gemm as backend
from torch._inductor.codegen.nv_universal_gemm.nv_universal_gemm_kernel import (
    NVUniversalGemmKernel,
    NVUniversalGemmKernelWrapper,
)
from torch._inductor.template_heuristics import nv_universal_gemm as heuristics


def config_key(design: Any) -> tuple[int, ...]:
    """The key by which the heuristics find kernels of this design: tile and cluster. From torch
    2.12 on, the key omits K of the tile.
    """
    tile = design.tile_shape if torch.__version__ < (2, 12) else design.tile_shape[:2]
    return (*tile, *design.cluster_shape[:2])


__all__ = [
    "GemmVariant",
    "NVUniversalGemmKernel",
    "NVUniversalGemmKernelWrapper",
    "backend",
    "config_key",
    "heuristics",
    "kernel_cache",
]
