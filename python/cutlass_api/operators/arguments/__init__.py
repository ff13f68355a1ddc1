"""The arguments of operations: operands, epilogue, accumulator type."""

from cutlass_api.operators.arguments.base import Operand, PerformanceControls, RuntimeArguments
from cutlass_api.operators.arguments.epilogue import EpilogueArguments, Load, Store, Transport
from cutlass_api.operators.arguments.gemm import GemmArguments, GemmProblemSize
from cutlass_api.operators.arguments.grouped_gemm import (
    GroupedGemmArguments,
    IndexPtrGroupedGemmArguments,
    IndexPtrGroupedGemmProblemSize,
)
from cutlass_api.operators.arguments.operand import (
    DenseTensor,
    ScaledOperand,
    ScaleMode,
    ScaleSwizzleMode,
)

__all__ = [
    "DenseTensor",
    "EpilogueArguments",
    "GemmArguments",
    "GemmProblemSize",
    "GroupedGemmArguments",
    "IndexPtrGroupedGemmArguments",
    "IndexPtrGroupedGemmProblemSize",
    "Load",
    "Operand",
    "PerformanceControls",
    "RuntimeArguments",
    "ScaleMode",
    "ScaleSwizzleMode",
    "ScaledOperand",
    "Store",
    "Transport",
]
