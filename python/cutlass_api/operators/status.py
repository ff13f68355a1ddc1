"""Success, or failure with its reason."""

from cutlass_api.status import Status

__all__ = ["Status"]
