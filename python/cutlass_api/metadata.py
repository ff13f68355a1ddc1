"""Descriptions of kernels: operands, configuration and epilogue."""

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
    """A kernel's requirements on one operand."""

    def supports(self, operand: Any, name: str = "operand") -> Status:
        """Whether an operand (a tensor, or an operand of arguments) meets the requirements.

        ``name``: the operand's name in the reason of a failing Status.
        """
        raise NotImplementedError(f"{type(self).__name__} must define supports")


@dataclass(frozen=True)
class DenseTensorAttributes(TensorAttributes):
    """Requirements on an operand without scales.

    - ``dtype``: the element type.
    - ``stride``: 1 for the contiguous dimension, else 0, batch first. ``(0, 0, 1)`` is row-major,
      ``(0, 1, 0)`` column-major, None any strides.
    - ``divisibility``: the other strides are multiples of this, in elements.
    - ``ptr_alignment_bytes``: the address of the first element is a multiple of this.
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
    """Requirements on an operand with scales.

    - ``base``: the tensor of values.
    - ``scale``: the tensor of scales, or its element type.
    - ``mode``, ``swizzle``: a ``ScaleMode`` and a ``ScaleSwizzleMode`` of
      :mod:`cutlass_api.library`.
    """

    base: DenseTensorAttributes
    scale: DenseTensorAttributes | NumericLike
    mode: Any
    swizzle: Any

    def supports(self, operand: Any, name: str = "operand") -> Status:
        if not isinstance(operand, _core.ScaledTensor):
            return Status.fail(f"{name} has no scales, the kernel takes a ScaledTensor")
        if self.mode != operand.mode or self.swizzle != operand.swizzle:
            return Status.fail(
                f"{name} has {operand.mode} and {operand.swizzle}, "
                f"not {self.mode} and {self.swizzle}"
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
        """Whether every operand meets its requirements and the accumulator types are equal."""
        if not isinstance(args, self._arguments):
            return Status.fail(f"it takes {self._arguments.__name__}, not {type(args).__name__}")
        for name, attributes in self._tensors():
            status = attributes.supports(getattr(args, name), name)
            if not status:
                return status
        required, actual = (getattr(each, "accumulator_type", None) for each in (self, args))
        if required is not None and DType(required) != actual:
            return Status.fail(f"accumulator_type is {actual}, the kernel sums in {required}")
        return Status.success()


@dataclass(frozen=True)
class GemmOperandsMetadata(_OperandsMetadata):
    """The operands of a GEMM and the type of its accumulators."""

    _arguments = GemmArguments

    A: TensorAttributes
    B: TensorAttributes
    out: TensorAttributes
    accumulator_type: NumericLike


@dataclass(frozen=True)
class GroupedGemmOperandsMetadata(_OperandsMetadata):
    """The operands of a grouped GEMM and the type of its accumulators."""

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
    """A kernel's configuration: a point in the space of its family."""


@dataclass(frozen=True)
class BLASDesignMetadata(DesignMetadata):
    """The configuration of a tiled kernel.

    - ``tile_shape``: M, N and K of a CTA's tile, in elements.
    - ``cluster_shape``: the CTAs of a cluster along M, N and K.
    """

    tile_shape: tuple[int, int, int]
    cluster_shape: tuple[int, int, int]


@dataclass(frozen=True)
class Sm80DesignMetadata(BLASDesignMetadata):
    """The configuration of an sm80 kernel.

    - ``warp_shape``: warps of a CTA along M, N and K.
    - ``stages``: pipeline stages of A and B tiles in shared memory.
    - ``load_bytes``: the size of one load. Addresses and leading strides are multiples of it.
    """

    warp_shape: tuple[int, int, int]
    stages: int
    load_bytes: int


@dataclass(frozen=True)
class SkinnyDesignMetadata(BLASDesignMetadata):
    """The configuration of a skinny kernel, for outputs with few rows or columns.

    - ``warp_shape``: warps of a CTA along M, N and K.
    - ``stages``: pipeline stages of A and B tiles in shared memory.
    - ``load_bytes``: the size of one load. Addresses and leading strides are multiples of it.
    - ``narrow``: "m" if the output has at most as many rows as the tile, "n" for columns.

    The CTAs of a cluster split K and add up their partial sums in a fixed order.
    """

    warp_shape: tuple[int, int, int]
    stages: int
    load_bytes: int
    narrow: str


@dataclass(frozen=True)
class Sm90DesignMetadata(BLASDesignMetadata):
    """The configuration of an sm90 kernel (Hopper only).

    - ``stages``: pipeline stages of A and B tiles in shared memory.
    - ``schedule``: "cooperative", the consumer warpgroups share a tile, or "pingpong", each
      computes its own.
    - ``consumers``: the number of consumer warpgroups, which issue ``wgmma``.
    - ``split``: with a cluster split, the CTAs of a cluster that share a tile and split K. With a
      grid split, the reducer CTAs of a tile. Sums are in a fixed order in both.
    - ``over_grid``: grid split. K is split up to 16 ways over the grid until the splits fill the
      GPU, and the partial sums meet in workspace.
    - ``swapped``: the program computes the transposed product, because the output has few rows or
      because an operand comes from registers.
    - ``packed``: whether A and B are copied into workspace first. Packed operands may have any
      alignment and strides.
    - ``load_bytes``: 16, or 8 or 4 if threads load A in place of TMA (B, if ``out`` is
      column-major). The operand's address, strides and row length in bytes are multiples of it.
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
    """The configuration of a Blackwell kernel. For user kernels: Rutlass has no sm100 family."""

    use_2cta_mma: bool
    use_tma_store: bool


@dataclass(frozen=True)
class EpilogueMetadata:
    """The epilogue that a kernel fuses.

    ``epilogue``: for built-in kernels, the outputs as expressions of the inputs, with the types of
    both. User kernels may store any value.
    """

    epilogue: Any = None

    def supports(self, args: RuntimeArguments) -> Status:
        """Whether ``args`` has an epilogue. The kernel itself compares the epilogues."""
        if getattr(args, "epilogue", None) is None:
            return Status.fail("the arguments carry no epilogue, and the kernel fuses one")
        return Status.success()


@dataclass(frozen=True)
class KernelMetadata:
    """The description of a kernel.

    - ``kernel_name``: unique among all kernels.
    - ``kernel_class``: the class of the kernel.
    - ``min_cc``: the lowest compute capability that runs it, as 10 * major + minor.
    - ``operands``: the metadata of its operands, such as :class:`GemmOperandsMetadata`.
    - ``design``: its configuration.
    - ``epilogue``: the fused epilogue, or None.
    """

    kernel_name: str
    kernel_class: type
    min_cc: int
    operands: Any
    design: DesignMetadata | None = None
    epilogue: EpilogueMetadata | None = None

    def supports(self, args: RuntimeArguments) -> Status:
        """Whether the operands of ``args`` match, and both or neither have an epilogue."""
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
