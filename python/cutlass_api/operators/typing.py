"""Types for annotations."""

from cutlass_api.typing import NumericLike, TensorLike

__all__ = ["NumericLike", "TensorLike"]
