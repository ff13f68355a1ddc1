"""Device memory that an operator needs beside its operands."""

from dataclasses import dataclass

from cutlass_api.typing import TensorLike


@dataclass
class Workspace:
    """Memory for :meth:`Operator.run`.

    - ``data``: a contiguous tensor on the operands' device.
    - ``leading_zero_bytes``: how many bytes at its start are zero.
    """

    data: TensorLike
    leading_zero_bytes: int = 0


@dataclass
class AllocationRequirement:
    """The memory that an operator needs.

    - ``size_bytes``: its size in bytes.
    - ``ptr_alignment``: its address is a multiple of this many bytes.
    """

    size_bytes: int
    ptr_alignment: int

    @classmethod
    def empty(cls) -> "AllocationRequirement":
        """The requirement of an operator that needs no memory."""
        return cls(0, 1)


__all__ = ["AllocationRequirement", "Workspace"]
