"""The operands of a GEMM."""

from dataclasses import dataclass
from typing import Any

from cutlass_api import metadata
from cutlass_api.operators.metadata.operand_constraints import OperandConstraints
from cutlass_api.operators.metadata.operands.base import ProductOperands


@dataclass
class GemmOperandsMetadata(ProductOperands):
    """The constraints on the operands of a GEMM, and the type of its accumulators."""

    A: OperandConstraints
    B: OperandConstraints
    out: OperandConstraints
    accumulator_type: Any

    def __cutlass_operand__(self) -> Any:
        of_core: Any = metadata.GemmOperandsMetadata
        return of_core(None, None, None, self.accumulator_type)


__all__ = ["GemmOperandsMetadata"]
