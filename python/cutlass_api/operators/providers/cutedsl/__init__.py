"""The provider of this package's operators, and the base of their classes."""

from cutlass_api.operators.providers.built_in import CuTeDSLProvider
from cutlass_api.operators.providers.cutedsl.operator import CuteDslOperator

__all__ = ["CuTeDSLProvider", "CuteDslOperator"]
