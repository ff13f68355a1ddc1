"""NVIDIA's heuristics for kernels of Blackwell, which this package has no kernels for."""

from cutlass_api.operators.heuristics.nvmatmul.ranker import (
    MIN_NVMMH_VERSION,
    NvMatmulHeuristics,
    is_available,
)

__all__ = ["MIN_NVMMH_VERSION", "NvMatmulHeuristics", "is_available"]
