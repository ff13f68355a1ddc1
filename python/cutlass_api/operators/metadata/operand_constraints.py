"""What operators require of one operand.

The rules are those of :mod:`cutlass_api.metadata`. The classes are dataclasses from which others,
that are not frozen, can derive.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from cutlass_api import metadata
from cutlass_api._core import Status
from cutlass_api._faces import core_of
from cutlass_api.operators.arguments.base import UNREADABLE
from cutlass_api.operators.utils.dtype import PAIRS_OF_FOUR_BITS, of_core, shown_type
from cutlass_api.typing import NumericLike


class OperandConstraints(ABC):
    """The base of requirements on one operand."""

    @abstractmethod
    def supports(self, operand: Any) -> Status:
        """Whether an operand, or all operands that meet other constraints, meet these."""


@dataclass
class DenseTensorConstraints(OperandConstraints):
    """Requirements on an operand without scales.

    - ``dtype``: the element type, which becomes a class of ``cutlass``.
    - ``stride``, ``divisibility``, ``ptr_alignment_bytes``: as
      :class:`cutlass_api.metadata.TensorAttributes` has them.
    """

    dtype: Any
    stride: tuple[int, ...] | None
    divisibility: int
    ptr_alignment_bytes: int | None

    def __init__(
        self,
        dtype: NumericLike,
        stride: tuple[int, ...] | None,
        divisibility: int,
        ptr_alignment_bytes: int | None = None,
    ) -> None:
        self.dtype, self.stride = dtype, stride
        self.divisibility, self.ptr_alignment_bytes = divisibility, ptr_alignment_bytes
        self.__post_init__()

    def __post_init__(self) -> None:
        self.dtype = shown_type(self.dtype)
        if self.ptr_alignment_bytes is None:
            self.ptr_alignment_bytes = core_of(self).ptr_alignment_bytes

    def supports(self, operand: Any) -> Status:
        """Whether an operand, or all operands that meet other constraints, meet these."""
        return _judged(self, operand)

    def __cutlass_operand__(self) -> metadata.DenseTensorAttributes:
        """The same requirements in the class of the core, which counts pairs of four bits."""
        dtype, divisibility = of_core(self.dtype), self.divisibility
        if dtype is not self.dtype and dtype.name == PAIRS_OF_FOUR_BITS:
            divisibility = max(divisibility // 2, 1)
        return metadata.DenseTensorAttributes(
            dtype, self.stride, divisibility, self.ptr_alignment_bytes
        )


@dataclass
class ScaledOperandConstraints(OperandConstraints):
    """Requirements on an operand with scales.

    - ``quantized``, ``scale``: requirements on the tensors of values and scales.
    - ``mode``, ``swizzle``: a ``ScaleMode`` and a ``ScaleSwizzleMode``.

    Attributes that it lacks are those of ``quantized``.
    """

    quantized: DenseTensorConstraints
    scale: DenseTensorConstraints
    mode: Any
    swizzle: Any

    def supports(self, operand: Any) -> Status:
        """Whether an operand, or all operands that meet other constraints, meet these."""
        return _judged(self, operand)

    def __cutlass_operand__(self) -> metadata.ScaledTensorAttributes:
        """The same requirements in the class of the core."""
        return metadata.ScaledTensorAttributes(
            core_of(self.quantized), core_of(self.scale), self.mode, self.swizzle
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "quantized":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.quantized, name)


def _judged(constraints: OperandConstraints, operand: Any) -> Status:
    """Whether the core's rules accept an operand. Fails for what it cannot read."""
    try:
        status: Status = core_of(constraints).supports(operand)
    except UNREADABLE as error:
        return Status.fail(error)
    return status


__all__ = ["DenseTensorConstraints", "OperandConstraints", "ScaledOperandConstraints"]
