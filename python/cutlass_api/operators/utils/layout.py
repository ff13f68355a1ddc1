"""Layouts of matrices."""

from enum import Enum

#: The extents or strides of a matrix, with an optional batch in front.
TupleRank2Or3 = tuple[int, int, int] | tuple[int, int]

#: The layouts of matrices and, as the original names them, of tensors of convolutions.
LayoutType = Enum(
    "LayoutType",
    "ColumnMajor RowMajor ColumnMajorInterleaved2 RowMajorInterleaved2 ColumnMajorInterleaved32 "
    "RowMajorInterleaved32 ColumnMajorInterleaved64 RowMajorInterleaved64 TensorNWC TensorNHWC "
    "TensorNDHWC TensorNCHW TensorNGHWC TensorNC32HW32 TensorNC64HW64 TensorC32RSK32 "
    "TensorC64RSK64 TensorKCS TensorKCSR TensorKCSRT",
)


def normalized_row_major() -> tuple[int, int, int]:
    """The strides (batch, row, column) of a row-major operand in metadata."""
    return (0, 0, 1)


def normalized_col_major() -> tuple[int, int, int]:
    """The strides (batch, row, column) of a column-major operand in metadata."""
    return (0, 1, 0)


__all__ = ["LayoutType", "TupleRank2Or3", "normalized_col_major", "normalized_row_major"]
