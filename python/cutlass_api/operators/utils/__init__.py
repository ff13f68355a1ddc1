"""Helpers for tensors, devices, dtypes and layouts."""

from cutlass_api.operators.utils import common, device, dtype, gemm, generate, layout, tensor

__all__ = ["common", "device", "dtype", "gemm", "generate", "layout", "tensor"]
