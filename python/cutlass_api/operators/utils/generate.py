"""Helpers for the metadata of operators."""

from cutlass_api._core import DType
from cutlass_api.operators.metadata import DenseTensorConstraints, GemmOperandsMetadata
from cutlass_api.typing import NumericLike


def construct_dense_gemm_operands(
    a_dtype: NumericLike,
    b_dtype: NumericLike,
    out_dtype: NumericLike,
    acc_dtype: NumericLike,
    stride_A: tuple[int, ...],
    stride_B: tuple[int, ...],
    stride_out: tuple[int, ...],
    alignment_bytes: int,
) -> GemmOperandsMetadata:
    """The metadata of dense operands whose rows or columns start at aligned addresses.

    ``alignment_bytes``: the alignment of all three, in bytes; strides are multiples of as many
    bytes.
    """

    def dense(dtype: NumericLike, stride: tuple[int, ...]) -> DenseTensorConstraints:
        return DenseTensorConstraints(dtype, stride, alignment_bytes * 8 // DType(dtype).width)

    return GemmOperandsMetadata(
        dense(a_dtype, stride_A),
        dense(b_dtype, stride_B),
        dense(out_dtype, stride_out),
        acc_dtype,
    )


__all__ = ["construct_dense_gemm_operands"]
