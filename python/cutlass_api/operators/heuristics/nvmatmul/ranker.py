"""NVIDIA's heuristics for kernels of Blackwell, which this package has no kernels for."""

from typing import TYPE_CHECKING, Any

from cutlass_api.operators._unserved import Unserved
from cutlass_api.operators.heuristics.base import Heuristic, register_heuristic

if TYPE_CHECKING:
    from cutlass_api.operators.base import Operator

#: The release of nvidia-matmul-heuristics that the original requires.
MIN_NVMMH_VERSION = "0.1.0.27"


def is_available() -> bool:
    """False: the heuristics rank kernels that this package does not have."""
    return False


@register_heuristic("nvmatmul")
class NvMatmulHeuristics(Unserved, Heuristic):
    """NVIDIA's heuristics for kernels of Blackwell. The constructor raises NotImplementedError."""

    _nearest = "get_operators without a heuristic, which ranks by the cost model"

    def rank(self, *args: Any, **kwargs: Any) -> "list[Operator]":
        """Not reached: the class has no instances."""
        raise NotImplementedError


__all__ = ["MIN_NVMMH_VERSION", "NvMatmulHeuristics", "is_available"]
