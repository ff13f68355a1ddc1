"""Heuristics: orders of operators for arguments."""

from cutlass_api.operators.heuristics.base import (
    Heuristic,
    available_heuristics,
    get_heuristic,
    register_heuristic,
)
from cutlass_api.operators.heuristics.nvmatmul import NvMatmulHeuristics

__all__ = [
    "Heuristic",
    "NvMatmulHeuristics",
    "available_heuristics",
    "get_heuristic",
    "register_heuristic",
]
