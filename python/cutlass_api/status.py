"""Whether something is possible, and if not, why."""

from cutlass_api._core import Status

__all__ = ["Status"]
