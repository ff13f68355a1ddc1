"""Layouts of matrices."""

from enum import Enum


class LayoutType(Enum):
    """The order of a matrix in memory."""

    RowMajor = "row"
    ColumnMajor = "column"


def normalized_row_major() -> tuple[int, int, int]:
    """The strides (batch, row, column) of a row-major operand in metadata."""
    return (0, 0, 1)


def normalized_col_major() -> tuple[int, int, int]:
    """The strides (batch, row, column) of a column-major operand in metadata."""
    return (0, 1, 0)


__all__ = ["LayoutType", "normalized_col_major", "normalized_row_major"]
