"""The operands of a grouped GEMM."""

from dataclasses import dataclass
from typing import Any, Literal

from cutlass_api import metadata
from cutlass_api.operators.metadata.operand_constraints import OperandConstraints
from cutlass_api.operators.metadata.operands.base import ProductOperands
from cutlass_api.typing import NumericLike


@dataclass
class IndexPtrGroupedGemmOperandsMetadata(ProductOperands):
    """The constraints on the operands of a grouped GEMM, and the type of its accumulators.

    ``offsets_along``: the dimension that the groups divide.
    """

    A: OperandConstraints
    B: OperandConstraints
    out: OperandConstraints
    offsets: OperandConstraints
    offsets_along: Literal["m", "n", "k"]
    accumulator_type: Any

    _operands = ("A", "B", "out", "offsets")

    def __cutlass_operand__(self) -> Any:
        of_core: Any = metadata.GroupedGemmOperandsMetadata
        return of_core(None, None, None, None, self.accumulator_type, self.offsets_along)


@dataclass(init=False)
class GroupedGemmOperandsMetadata(IndexPtrGroupedGemmOperandsMetadata):
    """The same of groups along M."""

    def __init__(
        self, A: Any, B: Any, out: Any, offsets: Any, accumulator_type: NumericLike
    ) -> None:
        super().__init__(A, B, out, offsets, "m", accumulator_type)


__all__ = ["GroupedGemmOperandsMetadata", "IndexPtrGroupedGemmOperandsMetadata"]
