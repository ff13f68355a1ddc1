"""What operators require of their operands.

The rules are those of :mod:`cutlass_api.metadata`: ``DenseTensorConstraints`` and
``GemmOperandsMetadata`` are its classes, the others derive from them.
"""

from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import Any

from cutlass_api import metadata
from cutlass_api._core import Status
from cutlass_api.metadata import DenseTensorAttributes, GemmOperandsMetadata
from cutlass_api.typing import NumericLike


class OperandConstraints(ABC):
    """The base of requirements on one operand."""

    @abstractmethod
    def supports(self, operand: Any) -> Status:
        """Whether an operand, or all operands that meet other constraints, meet these."""


OperandConstraints.register(metadata.TensorAttributes)
DenseTensorConstraints = DenseTensorAttributes


class ScaledOperandConstraints(metadata.ScaledTensorAttributes):
    """Requirements on an operand with scales.

    - ``quantized``, ``scale``: requirements on the tensors of values and scales.
    - ``mode``, ``swizzle``: a ``ScaleMode`` and a ``ScaleSwizzleMode``.
    """

    def __init__(
        self,
        quantized: metadata.TensorAttributes,
        scale: metadata.TensorAttributes | NumericLike,
        mode: Any,
        swizzle: Any,
    ) -> None:
        if not isinstance(scale, metadata.TensorAttributes):
            scale = DenseTensorAttributes(scale)
        super().__init__(quantized, scale, mode, swizzle)

    @property
    def quantized(self) -> metadata.TensorAttributes:
        """Requirements on the tensor of values."""
        return self.base


class OperandsMetadata(ABC):
    """The base of requirements on all operands of an operation."""

    @abstractmethod
    def supports(self, args: Any) -> Status:
        """Whether arguments, or all that meet other requirements, meet these."""


OperandsMetadata.register(metadata.OperandsMetadata)


class IndexPtrGroupedGemmOperandsMetadata(metadata.GroupedGemmOperandsMetadata):
    """The operands of a grouped GEMM, the dimension that the groups divide, the accumulator."""

    def __init__(
        self,
        A: Any,
        B: Any,
        out: Any,
        offsets: Any,
        offsets_along: str,
        accumulator_type: NumericLike,
    ) -> None:
        super().__init__(A, B, out, offsets, accumulator_type, offsets_along)


class GroupedGemmOperandsMetadata(IndexPtrGroupedGemmOperandsMetadata):
    """The same of groups along M."""

    def __init__(
        self, A: Any, B: Any, out: Any, offsets: Any, accumulator_type: NumericLike
    ) -> None:
        super().__init__(A, B, out, offsets, "m", accumulator_type)


def operands_of_core(operands: Any) -> Any:
    """The requirements of one of the core's kernels, as classes of this module."""
    if type(operands) is metadata.GroupedGemmOperandsMetadata:
        parts = {each.name: getattr(operands, each.name) for each in fields(operands)}
        operands = IndexPtrGroupedGemmOperandsMetadata(**parts)
    scaled = {
        each.name: ScaledOperandConstraints(part.base, part.scale, part.mode, part.swizzle)
        for each in fields(operands)
        if isinstance(part := getattr(operands, each.name), metadata.ScaledTensorAttributes)
    }
    return replace(operands, **scaled) if scaled else operands


__all__ = [
    "DenseTensorConstraints",
    "GemmOperandsMetadata",
    "GroupedGemmOperandsMetadata",
    "IndexPtrGroupedGemmOperandsMetadata",
    "OperandConstraints",
    "OperandsMetadata",
    "ScaledOperandConstraints",
]
