"""Descriptions of kernels: operands, configuration and epilogue.

The dataclasses have slots: these halve the memory of thousands of objects, and the Rust core fills
them without the classes' ``__init__``.
"""

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass
from typing import Any, ClassVar

from cutlass_api import _core
from cutlass_api._core import (
    DType,
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    RuntimeArguments,
    Status,
)
from cutlass_api._faces import core_of
from cutlass_api._tables import html_table
from cutlass_api.typing import NumericLike


@dataclass(frozen=True, slots=True)
class TensorAttributes:
    """A kernel's requirements on one operand.

    - ``dtype``: the element type.
    - ``stride``: 1 for the contiguous dimension, else 0, batch first. ``(0, 0, 1)`` is row-major,
      ``(0, 1, 0)`` column-major, None any strides.
    - ``divisibility``: the other strides are multiples of this, in elements.
    - ``ptr_alignment_bytes``: the address of the first element is a multiple of this. None: the
      size of ``divisibility`` elements.
    """

    dtype: NumericLike
    stride: tuple[int, ...] | None = None
    divisibility: int = 1
    ptr_alignment_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.ptr_alignment_bytes is None:
            object.__setattr__(self, "ptr_alignment_bytes", self._default_alignment())

    def _default_alignment(self) -> int | None:
        try:
            width = DType(self.dtype).width
        except TypeError:
            # Element types that no built-in kernel knows, such as four-bit floats of ``cutlass``.
            width = getattr(self.dtype, "width", 0)
        return max(self.divisibility * width // 8, 1)

    def supports(self, operand: Any, name: str = "operand") -> Status:
        """Whether an operand meets the requirements.

        ``operand``: a tensor, an operand of arguments, or other ``TensorAttributes``, which pass if
        every operand that meets them meets these. ``name``: the operand's name in the reason of a
        failing Status.
        """
        operand = core_of(operand)
        if isinstance(operand, TensorAttributes):
            return self._implied_by(operand, name)
        return _core.operand_matches(
            name, operand, self.dtype, self.stride, self.divisibility, self.ptr_alignment_bytes
        )

    def _implied_by(self, other: "TensorAttributes", name: str) -> Status:
        if isinstance(other, ScaledTensorAttributes):
            return Status.fail(f"{name} has scales; the kernel requires a DenseTensor")
        if not _same_type(self.dtype, other.dtype):
            return Status.fail(f"{name} has dtype {other.dtype}; the kernel requires {self.dtype}")
        if self.stride is not None and not _same_stride(self.stride, other.stride):
            return Status.fail(
                f"{name} has strides {other.stride}; the kernel requires {self.stride}"
            )
        if other.divisibility % self.divisibility:
            return Status.fail(
                f"{name} is divisible by {other.divisibility} elements; the kernel requires "
                f"{self.divisibility}"
            )
        if (other.ptr_alignment_bytes or 1) % (self.ptr_alignment_bytes or 1):
            return Status.fail(
                f"{name} is aligned to {other.ptr_alignment_bytes} bytes; the kernel requires "
                f"{self.ptr_alignment_bytes}"
            )
        return Status.success()


def _same_type(one: NumericLike, other: NumericLike) -> bool:
    try:
        return bool(DType(one) == other)
    except TypeError:
        return bool(one == other)


def _same_stride(one: tuple[int, ...], other: tuple[int, ...] | None) -> bool:
    """Whether strides are equal where both have a dimension. A matrix matches without its batch."""
    shared = -min(len(one), len(other or ()))
    return other is not None and one[shared:] == other[shared:]


@dataclass(frozen=True, slots=True)
class DenseTensorAttributes(TensorAttributes):
    """Requirements on an operand without scales: the fields of :class:`TensorAttributes`."""


@dataclass(frozen=True, slots=True)
class ScaledTensorAttributes(TensorAttributes):
    """Requirements on an operand with scales.

    - ``base``: the tensor of values.
    - ``scale``: the tensor of scales, or its element type.
    - ``mode``, ``swizzle``: a ``ScaleMode`` and a ``ScaleSwizzleMode`` of
      :mod:`cutlass_api.library`.

    The fields of :class:`TensorAttributes` are those of ``base``.
    """

    dtype: NumericLike = field(init=False, repr=False, compare=False)
    stride: tuple[int, ...] | None = field(init=False, repr=False, compare=False)
    divisibility: int = field(init=False, repr=False, compare=False)
    ptr_alignment_bytes: int | None = field(init=False, repr=False, compare=False)
    base: TensorAttributes
    scale: TensorAttributes | NumericLike
    mode: Any
    swizzle: Any

    def __post_init__(self) -> None:
        for inherited in fields(TensorAttributes):
            object.__setattr__(self, inherited.name, getattr(self.base, inherited.name))

    def supports(self, operand: Any, name: str = "operand") -> Status:
        operand = core_of(operand)
        if not isinstance(operand, (_core.ScaledTensor, ScaledTensorAttributes)):
            return Status.fail(f"{name} has no scales, and the kernel requires some")
        if not _same_mode(self.mode, operand.mode) or self.swizzle != operand.swizzle:
            return Status.fail(
                f"{name} has {operand.mode} and {operand.swizzle}, "
                f"not {self.mode} and {self.swizzle}"
            )
        required, actual = _attributes(self.scale), operand.scale
        if isinstance(operand, ScaledTensorAttributes):
            actual = _attributes(actual)
        return self.base.supports(operand.base, name) and required.supports(
            actual, f"the scale of {name}"
        )


def _same_mode(one: Any, other: Any) -> bool:
    """Whether blocks have the same extents, but for leading ones."""
    one, other = ((1,) * (3 - len(mode)) + tuple(mode) for mode in (one, other))
    return bool(one == other)


def _attributes(scale: TensorAttributes | NumericLike) -> TensorAttributes:
    return scale if isinstance(scale, TensorAttributes) else DenseTensorAttributes(scale)


@dataclass(frozen=True, slots=True)
class OperandsMetadata:
    """The base of the operands' metadata: a field per operand, and the type of accumulators."""

    _arguments: ClassVar[type[RuntimeArguments]] = RuntimeArguments

    def _tensors(self) -> Iterator[tuple[str, TensorAttributes]]:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, TensorAttributes):
                yield each.name, value

    def supports(self, args: "RuntimeArguments | OperandsMetadata") -> Status:
        """Whether every operand meets its requirements and the accumulator types are equal.

        ``args``: arguments, or the metadata of other operands, which pass if all operands that meet
        them meet these.
        """
        expected = type(self) if isinstance(args, OperandsMetadata) else self._arguments
        if not isinstance(args, expected):
            return Status.fail(f"it takes {expected.__name__}, not {type(args).__name__}")
        for name, attributes in self._tensors():
            status = attributes.supports(getattr(args, name), name)
            if not status:
                return status
        required, actual = (getattr(each, "accumulator_type", None) for each in (self, args))
        if required is not None and not _same_type(required, actual):
            return Status.fail(f"accumulator_type is {actual}, the kernel sums in {required}")
        return Status.success()


@dataclass(frozen=True, slots=True)
class GemmOperandsMetadata(OperandsMetadata):
    """The operands of a GEMM and the type of its accumulators."""

    _arguments = GemmArguments

    A: TensorAttributes
    B: TensorAttributes
    out: TensorAttributes
    accumulator_type: NumericLike


@dataclass(frozen=True, slots=True)
class GroupedGemmOperandsMetadata(OperandsMetadata):
    """The operands of a grouped GEMM and the type of its accumulators.

    ``offsets_along``: what the groups divide, "m" or "k".
    """

    _arguments = GroupedGemmArguments

    A: TensorAttributes
    B: TensorAttributes
    out: TensorAttributes
    offsets: TensorAttributes
    accumulator_type: NumericLike
    offsets_along: str = "m"

    def supports(self, args: RuntimeArguments | OperandsMetadata) -> Status:
        """As :meth:`OperandsMetadata.supports`. The groups must divide the same dimension, B must
        have rank 3, or rank 2 for groups along K, and ``offsets`` rank 1.
        """
        if isinstance(args, GroupedGemmArguments):
            status = self._supports_ranks(args)
            if not status:
                return status
        elif isinstance(args, GroupedGemmOperandsMetadata):
            own, other = self.offsets_along, args.offsets_along
            if own != other:
                return Status.fail(
                    f"the groups divide {other.upper()}, those of the kernel {own.upper()}"
                )
        return OperandsMetadata.supports(self, args)

    def _supports_ranks(self, args: GroupedGemmArguments) -> Status:
        ranks = {"B": 3} if self.offsets_along == "m" else {"B": 2, "out": 3}
        for name, rank in {**ranks, "offsets": 1}.items():
            shape = getattr(args, name).shape
            if len(shape) != rank:
                return Status.fail(
                    f"{name} has rank {len(shape)} (shape {shape}); "
                    f"a grouped GEMM takes rank {rank}"
                )
        return Status.success()


@dataclass(frozen=True, slots=True)
class ElementwiseOperandsMetadata(OperandsMetadata):
    """The operands of an elementwise operation."""

    _arguments = ElementwiseArguments

    A: TensorAttributes
    B: TensorAttributes
    out: TensorAttributes


@dataclass(frozen=True, slots=True)
class DesignMetadata:
    """A kernel's configuration: a point in the space of its family."""

    def supports(self, args: "RuntimeArguments | DesignMetadata") -> Status:
        """Whether this configuration serves arguments, or has the values of another one.

        ``args``: arguments, which pass, because a configuration alone excludes none; or metadata of
        a design, whose fields except None must have the same values here.
        """
        if not isinstance(args, DesignMetadata):
            return Status.success()
        for each in fields(args):
            wanted = getattr(args, each.name)
            if wanted is not None and getattr(self, each.name, None) != wanted:
                actual = getattr(self, each.name, "missing")
                return Status.fail(f"{each.name} is {actual}, not {wanted}")
        return Status.success()


@dataclass(frozen=True, slots=True)
class BLASDesignMetadata(DesignMetadata):
    """The configuration of a tiled kernel.

    - ``tile_shape``: M, N and K of a CTA's tile, in elements.
    - ``cluster_shape``: the CTAs of a cluster along M, N and K.
    """

    tile_shape: tuple[int, int, int]
    cluster_shape: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class SimtDesignMetadata(BLASDesignMetadata):
    """The configuration of a simt kernel for float32 operands with a contiguous dimension.

    - ``slices``: equal parts of a tile along K, each multiplied by other warps.
    - ``stages``: pipeline stages of A and B tiles in shared memory.
    - ``load_bytes``: the size of one load. Addresses and leading strides are multiples of it.

    The CTAs of a cluster split K. Partial sums are added up in a fixed order.
    """

    slices: int
    stages: int
    load_bytes: int


@dataclass(frozen=True, slots=True)
class Sm80DesignMetadata(BLASDesignMetadata):
    """The configuration of an sm80 kernel.

    - ``warp_shape``: warps of a CTA along M, N and K.
    - ``stages``: pipeline stages of A and B tiles in shared memory.
    - ``load_bytes``: the size of one load. Addresses and leading strides are multiples of it.
    - ``fast_sums``: float8 products are summed with 14 bits. The kernel serves arguments with
      ``PerformanceControls(fast_sums=True)``.

    The CTAs of a cluster split K and add up their partial sums in a fixed order.
    """

    warp_shape: tuple[int, int, int]
    stages: int
    load_bytes: int
    fast_sums: bool


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
    - ``fast_sums``: float8 products are summed with 14 bits. The kernel serves arguments with
      ``PerformanceControls(fast_sums=True)``.
    """

    stages: int
    schedule: str
    consumers: int
    split: int
    over_grid: bool
    swapped: bool
    packed: tuple[bool, bool]
    load_bytes: int
    fast_sums: bool


@dataclass(frozen=True, slots=True)
class Sm100DesignMetadata(BLASDesignMetadata):
    """The configuration of a Blackwell kernel. For user kernels: Rutlass has no sm100 family."""

    use_2cta_mma: bool
    use_tma_store: bool


@dataclass(frozen=True, slots=True)
class EpilogueMetadata:
    """The epilogue that a kernel fuses.

    ``epilogue``: for built-in kernels, the outputs as expressions of the inputs, with the types of
    both. User kernels may store any value.
    """

    epilogue: Any = None

    @staticmethod
    def from_args(args: RuntimeArguments | EpilogueArguments) -> "EpilogueMetadata | None":
        """The metadata of a kernel that fuses the epilogue of ``args``; None if there is none.

        For :class:`~cutlass_api.arguments.EpilogueArguments`, ``epilogue`` is the text that
        built-in kernels have, which for ``EpilogueArguments`` alone assumes a floating-point
        accumulator. An epilogue of another class is kept as it is.
        """
        epilogue = args if isinstance(args, EpilogueArguments) else getattr(args, "epilogue", None)
        if epilogue is None:
            return None
        text = _core.describe_epilogue(args)
        if text is None and isinstance(epilogue, EpilogueArguments):
            text = _core.describe_epilogue(epilogue)
        return EpilogueMetadata(epilogue if text is None else text)

    def supports(self, args: "RuntimeArguments | EpilogueMetadata") -> Status:
        """Whether ``args`` has an epilogue. The kernel itself compares the epilogues.

        ``args``: arguments, or the metadata of another epilogue, which must be equal.
        """
        if isinstance(args, EpilogueMetadata):
            if args == self:
                return Status.success()
            return Status.fail(f"it fuses the epilogue {self.epilogue}, not {args.epilogue}")
        if getattr(args, "epilogue", None) is None:
            return Status.fail("the arguments carry no epilogue, and the kernel fuses one")
        return Status.success()


@dataclass(frozen=True, slots=True)
class KernelMetadata:
    """The description of a kernel.

    - ``kernel_name``: unique among all kernels.
    - ``kernel_class``: the class of the kernel.
    - ``min_cc``: the lowest compute capability that runs it, as 10 * major + minor.
    - ``operands``: the metadata of its operands, such as :class:`GemmOperandsMetadata`.
    - ``design``: its configuration, a :class:`DesignMetadata`; None of kernels that have none, such
      as those of the reference.
    - ``epilogue``: the fused epilogue, or None.
    """

    kernel_name: str
    kernel_class: type
    min_cc: int
    operands: Any
    design: Any = None
    epilogue: EpilogueMetadata | None = None

    def supports(self, args: RuntimeArguments) -> Status:
        """Whether the operands of ``args`` match, and both or neither have an epilogue."""
        status: Status = self.operands.supports(args)
        if status and self.epilogue is not None:
            return self.epilogue.supports(args)
        if status and getattr(args, "epilogue", None) is not None:
            return Status.fail("the arguments carry an epilogue, and the kernel fuses none")
        return status

    def _repr_html_(self) -> str:
        rows = [("kernel_class", getattr(self.kernel_class, "__name__", repr(self.kernel_class)))]
        rows.append(("min_cc", str(self.min_cc)))
        for name in ("operands", "design", "epilogue"):
            value = getattr(self, name)
            parts = {each.name: getattr(value, each.name) for each in _fields_of(value)}
            rows += ((part, repr(content)) for part, content in (parts or {name: value}).items())
        return html_table(("field", "value"), rows, len(rows), self.kernel_name)


def _fields_of(value: Any) -> "tuple[Field[Any], ...]":
    """The fields of an instance of a dataclass; none of anything else."""
    return fields(value) if is_dataclass(value) else ()


__all__ = [
    "BLASDesignMetadata",
    "DenseTensorAttributes",
    "DesignMetadata",
    "ElementwiseOperandsMetadata",
    "EpilogueMetadata",
    "GemmOperandsMetadata",
    "GroupedGemmOperandsMetadata",
    "KernelMetadata",
    "OperandsMetadata",
    "ScaledTensorAttributes",
    "SimtDesignMetadata",
    "SkinnyDesignMetadata",
    "Sm80DesignMetadata",
    "Sm90DesignMetadata",
    "Sm100DesignMetadata",
    "TensorAttributes",
]
