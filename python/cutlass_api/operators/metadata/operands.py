"""What operators require of their operands.

The rules are those of :mod:`cutlass_api.metadata`. The classes are dataclasses from which others,
that are not frozen, can derive.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cutlass_api import metadata
from cutlass_api._core import Status
from cutlass_api._faces import core_of
from cutlass_api.operators.utils.dtype import shown_type
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
        status: Status = core_of(self).supports(operand)
        return status

    def __cutlass_operand__(self) -> metadata.DenseTensorAttributes:
        """The same requirements in the class of the core."""
        return metadata.DenseTensorAttributes(
            self.dtype, self.stride, self.divisibility, self.ptr_alignment_bytes
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
        status: Status = core_of(self).supports(operand)
        return status

    def __cutlass_operand__(self) -> metadata.ScaledTensorAttributes:
        """The same requirements in the class of the core."""
        return metadata.ScaledTensorAttributes(
            core_of(self.quantized), core_of(self.scale), self.mode, self.swizzle
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "quantized":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.quantized, name)


@dataclass
class OperandsMetadata(ABC):
    """The base of requirements on all operands of an operation."""

    @abstractmethod
    def supports(self, args: Any) -> Status:
        """Whether arguments, or all that meet other requirements, meet these."""


class _ProductOperands(OperandsMetadata):
    """What the metadata of products share."""

    #: The fields with constraints.
    _operands: ClassVar[tuple[str, ...]] = ("A", "B", "out")

    accumulator_type: Any

    def __post_init__(self) -> None:
        self.accumulator_type = shown_type(self.accumulator_type)

    @abstractmethod
    def __cutlass_operand__(self) -> Any:
        """The core's metadata without constraints, which may be of classes of the user's."""

    def supports(self, args: Any) -> Status:
        """Whether arguments, or all that meet other metadata, meet these requirements."""
        status: Status = core_of(self).supports(core_of(args))
        for name in self._operands if status else ():
            status = getattr(self, name).supports(getattr(args, name))
            if not status:
                return Status.fail(f"{name} is not supported: {status.error}")
        return status


@dataclass
class GemmOperandsMetadata(_ProductOperands):
    """The constraints on the operands of a GEMM, and the type of its accumulators."""

    A: OperandConstraints
    B: OperandConstraints
    out: OperandConstraints
    accumulator_type: Any

    def __cutlass_operand__(self) -> Any:
        of_core: Any = metadata.GemmOperandsMetadata
        return of_core(None, None, None, self.accumulator_type)


@dataclass
class IndexPtrGroupedGemmOperandsMetadata(_ProductOperands):
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


def operands_of_core(of: Any) -> Any:
    """The requirements of one of the core's kernels, as classes of this module.

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


__all__ = [
    "DenseTensorConstraints",
    "GemmOperandsMetadata",
    "GroupedGemmOperandsMetadata",
    "IndexPtrGroupedGemmOperandsMetadata",
    "OperandConstraints",
    "OperandsMetadata",
    "ScaledOperandConstraints",
]
