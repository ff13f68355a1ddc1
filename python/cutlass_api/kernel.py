"""The base class of kernels."""

from cutlass_api._core import Kernel

__all__ = ["Kernel"]
