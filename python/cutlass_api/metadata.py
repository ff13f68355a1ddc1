"""What kernels say of themselves."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from cutlass_api import _core
from cutlass_api._core import (
    DType,
    ElementwiseArguments,
    GemmArguments,
    GroupedGemmArguments,
    RuntimeArguments,
    Status,
)
from cutlass_api.typing import NumericLike


@dataclass(frozen=True)
class TensorAttributes:
    """What a kernel asks of one operand."""

    def supports(self, operand: Any, name: str = "operand") -> Status:
        """Whether an operand (a tensor, or what arguments wrap it in) is as asked."""
        raise NotImplementedError(f"{type(self).__name__} must define supports")


@dataclass(frozen=True)
class DenseTensorAttributes(TensorAttributes):
    """An operand that holds its values as they are.

    ``dtype``: the element type. ``stride``: batch first, 1 for the contiguous dimension: ``(0, 0, 1)`` row-major,
    ``(0, 1, 0)`` column-major, None for any strides. ``divisibility``: what the other strides are multiples of, in
    elements. ``ptr_alignment_bytes``: what the first element's address is a multiple of.
    """

    dtype: NumericLike
    stride: tuple[int, ...] | None = None
    divisibility: int = 1
    ptr_alignment_bytes: int | None = None

    def supports(self, operand: Any, name: str = "operand") -> Status:
        return _core.operand_matches(
            name, operand, self.dtype, self.stride, self.divisibility, self.ptr_alignment_bytes
        )


@dataclass(frozen=True)
class ScaledTensorAttributes(TensorAttributes):
    """An operand with scales: ``base`` and ``scale`` describe the tensors, ``mode`` and ``swizzle`` how they relate."""

    base: DenseTensorAttributes
    scale: DenseTensorAttributes | NumericLike
    mode: Any
    swizzle: Any

    def supports(self, operand: Any, name: str = "operand") -> Status:
        if not isinstance(operand, _core.ScaledTensor):
            return Status.fail(f"{name} has no scales, the kernel takes a ScaledTensor")
        if self.mode != operand.mode or self.swizzle != operand.swizzle:
            return Status.fail(
                f"{name} has {operand.mode} and {operand.swizzle}, not {self.mode} and {self.swizzle}"
            )
        scale = (
            self.scale
            if isinstance(self.scale, TensorAttributes)
            else DenseTensorAttributes(self.scale)
        )
        return self.base.supports(operand.base, name) and scale.supports(
            operand.scale, f"the scale of {name}"
        )


@dataclass(frozen=True)
class _OperandsMetadata:
    _arguments: ClassVar[type[RuntimeArguments]] = RuntimeArguments

    def _tensors(self) -> Iterator[tuple[str, TensorAttributes]]:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, TensorAttributes):
                yield field.name, value

    def supports(self, args: RuntimeArguments) -> Status:
        """Whether every operand of some arguments is as asked, and the accumulator's type the same."""
        if not isinstance(args, self._arguments):
            return Status.fail(f"it takes {self._arguments.__name__}, not {type(args).__name__}")
        for name, attributes in self._tensors():
            status = attributes.supports(getattr(args, name), name)
            if not status:
                return status
        wanted, given = (getattr(who, "accumulator_type", None) for who in (self, args))
        if wanted is not None and DType(wanted) != given:
            return Status.fail(f"accumulator_type is {given}, the kernel sums in {wanted}")
        return Status.success()


@dataclass(frozen=True)
class GemmOperandsMetadata(_OperandsMetadata):
    """The operands of a GEMM, and the type that it sums in."""

    _arguments = GemmArguments

    A: TensorAttributes
    B: TensorAttributes
    out: TensorAttributes
    accumulator_type: NumericLike


@dataclass(frozen=True)
class GroupedGemmOperandsMetadata(_OperandsMetadata):
    """The operands of a grouped GEMM, and the type that it sums in."""

    _arguments = GroupedGemmArguments

    A: TensorAttributes
    B: TensorAttributes
    out: TensorAttributes
    offsets: TensorAttributes
    accumulator_type: NumericLike


@dataclass(frozen=True)
class ElementwiseOperandsMetadata(_OperandsMetadata):
    """The operands of an elementwise operation."""

    _arguments = ElementwiseArguments

    A: TensorAttributes
    B: TensorAttributes
    out: TensorAttributes


@dataclass(frozen=True)
class DesignMetadata:
    """How a kernel is made."""


@dataclass(frozen=True)
class BLASDesignMetadata(DesignMetadata):
    """A kernel that computes tiles: M, N and K of a CTA's tile, and the CTAs of a cluster along M, N and K."""

    tile_shape: tuple[int, int, int]
    cluster_shape: tuple[int, int, int]


@dataclass(frozen=True)
class Sm80DesignMetadata(BLASDesignMetadata):
    """A kernel of the sm80 family.

    ``warp_shape``: warps along M, N and K. ``stages``: tiles of A and B in flight. ``load_bytes``: bytes that one load
    moves, which addresses and leading strides are multiples of.
    """

    warp_shape: tuple[int, int, int]
    stages: int
    load_bytes: int


@dataclass(frozen=True)
class SkinnyDesignMetadata(BLASDesignMetadata):
    """A kernel of the skinny family, for few rows (``narrow`` is "m") or few columns ("n"): at most those of the tile.

    ``warp_shape``: warps along M, N and K. ``stages``: tiles of A and B in flight. ``load_bytes``: bytes that one load
    moves, which addresses and leading strides are multiples of. The CTAs of a cluster each have a part of K; their sums
    are added in a fixed order.
    """

    warp_shape: tuple[int, int, int]
    stages: int
    load_bytes: int
    narrow: str


@dataclass(frozen=True)
class Sm90DesignMetadata(BLASDesignMetadata):
    """A kernel of the sm90 family (Hopper only).

    ``stages``: tiles of A and B in flight. ``schedule``: "cooperative", the warpgroups that multiply share a tile, or
    "pingpong", each has one of its own. ``consumers``: these warpgroups. ``split``: CTAs of a cluster that share a
    tile, each with a part of K; their sums are added in a fixed order. ``over_grid``: K is cut into up to 16 parts,
    while they fill the chip; their sums meet in workspace, where ``split`` of a tile's CTAs add them up, in order too.
    ``swapped``: rows lie where the tensor cores take columns, since they are few, or since an operand comes from
    registers. ``packed``: whether A and B are first copied to workspace, which serves any alignment and strides.
    ``load_bytes``: 16, or, where threads load A (B, if ``out`` is column-major) in place of the copy engine, the 8 or 4
    bytes that its address, strides and rows are multiples of.
    """

    stages: int
    schedule: str
    consumers: int
    split: int
    over_grid: bool
    swapped: bool
    packed: tuple[bool, bool]
    load_bytes: int


@dataclass(frozen=True)
class Sm100DesignMetadata(BLASDesignMetadata):
    """A Blackwell kernel of the original. Rutlass has none; the class is here for kernels of one's own."""

    use_2cta_mma: bool
    use_tma_store: bool


@dataclass(frozen=True)
class EpilogueMetadata:
    """What a kernel fuses behind its main operation.

    ``epilogue``: of a built-in kernel, the outputs as expressions of the inputs, and the types of both; for a kernel of
    one's own, anything.
    """

    epilogue: Any = None

    def supports(self, args: RuntimeArguments) -> Status:
        """Whether some arguments carry an epilogue. Which one is for the kernel to check."""
        if getattr(args, "epilogue", None) is None:
            return Status.fail("the arguments carry no epilogue, and the kernel fuses one")
        return Status.success()


@dataclass(frozen=True)
class KernelMetadata:
    """A kernel's description: its unique name, its class, the least compute capability (90: Hopper), its operands."""

    kernel_name: str
    kernel_class: type
    min_cc: int
    operands: Any
    design: DesignMetadata | None = None
    epilogue: EpilogueMetadata | None = None

    def supports(self, args: RuntimeArguments) -> Status:
        """Whether some arguments have the operands that this describes, and an epilogue if it has one."""
        status: Status = self.operands.supports(args)
        if status and self.epilogue is not None:
            return self.epilogue.supports(args)
        if status and getattr(args, "epilogue", None) is not None:
            return Status.fail("the arguments carry an epilogue, and the kernel fuses none")
        return status


__all__ = [
    "BLASDesignMetadata",
    "DenseTensorAttributes",
    "DesignMetadata",
    "ElementwiseOperandsMetadata",
    "EpilogueMetadata",
    "GemmOperandsMetadata",
    "GroupedGemmOperandsMetadata",
    "KernelMetadata",
    "ScaledTensorAttributes",
    "SkinnyDesignMetadata",
    "Sm80DesignMetadata",
    "Sm90DesignMetadata",
    "Sm100DesignMetadata",
    "TensorAttributes",
]
