"""The base of the provider's operators, under the original's name."""

from cutlass_api.operators.providers.kernels import KernelOperator as CuteDslOperator

__all__ = ["CuteDslOperator"]
