"""The requirements of the core's kernels, as classes of operators."""

from typing import Any

from cutlass_api import metadata
from cutlass_api.operators.metadata.operand_constraints import (
    DenseTensorConstraints,
    ScaledOperandConstraints,
)
from cutlass_api.operators.metadata.operands.gemm import GemmOperandsMetadata
from cutlass_api.operators.metadata.operands.grouped_gemm import IndexPtrGroupedGemmOperandsMetadata


def operands_of_core(of: Any) -> Any:
    """The requirements of one of the core's kernels, as classes of operators.

    Returns those of other operations as they are.
    """
    if isinstance(of, metadata.GemmOperandsMetadata):
        A, B, out = map(_constraints_of_core, (of.A, of.B, of.out))
        return GemmOperandsMetadata(A, B, out, of.accumulator_type)
    if isinstance(of, metadata.GroupedGemmOperandsMetadata):
        A, B, out, offsets = map(_constraints_of_core, (of.A, of.B, of.out, of.offsets))
        along: Any = of.offsets_along
        return IndexPtrGroupedGemmOperandsMetadata(A, B, out, offsets, along, of.accumulator_type)
    return of


def _constraints_of_core(of: Any) -> Any:
    if isinstance(of, metadata.ScaledTensorAttributes):
        values, scale = map(_constraints_of_core, (of.base, of.scale))
        return ScaledOperandConstraints(values, scale, of.mode, of.swizzle)
    if isinstance(of, metadata.TensorAttributes):
        return DenseTensorConstraints(of.dtype, of.stride, of.divisibility, of.ptr_alignment_bytes)
    return DenseTensorConstraints(of, None, 1)  # the element type of scales


__all__ = ["operands_of_core"]
