"""The provider of this package's operators, and the base of their classes."""

from cutlass_api.operators.providers.cutedsl.operator import CuteDslOperator
from cutlass_api.operators.providers.kernels import CuTeDSLProvider

__all__ = ["CuTeDSLProvider", "CuteDslOperator"]
