"""Success, or failure with its reason."""

from cutlass_api._core import Status

__all__ = ["Status"]
