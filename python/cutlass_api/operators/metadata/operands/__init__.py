"""What operators require of all operands of an operation."""

from cutlass_api.operators.metadata.operands.base import OperandsMetadata
from cutlass_api.operators.metadata.operands.gemm import GemmOperandsMetadata
from cutlass_api.operators.metadata.operands.grouped_gemm import (
    GroupedGemmOperandsMetadata,
    IndexPtrGroupedGemmOperandsMetadata,
)

__all__ = [
    "GemmOperandsMetadata",
    "GroupedGemmOperandsMetadata",
    "IndexPtrGroupedGemmOperandsMetadata",
    "OperandsMetadata",
]
