"""The descriptions of operators in the classes of NVIDIA's ``cutlass.operators``.

Their fields have NVIDIA's types, and whether an operator serves arguments the core decides.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import cutlass.operators as nvidia
from cutlass.operators import metadata

from cutlass_api._core import Status
from cutlass_api.operators.export.arguments import REFUSALS, converted
from cutlass_api.operators.metadata import (
    BLASDesignMetadata,
    GemmOperandsMetadata,
    IndexPtrGroupedGemmOperandsMetadata,
    ScaledOperandConstraints,
)
from cutlass_api.operators.providers.kernels import KernelOperator
from cutlass_api.operators.utils.dtype import cutlass_class


class Described:
    """What the metadata classes share. ``own``: the operator of this package."""

    own: KernelOperator

    def judge(self, args: Any, part: str) -> Any:
        """Whether a part of the operator's metadata serves NVIDIA's arguments, as their Status."""
        try:
            conversion = converted(args)
        except REFUSALS as error:
            return nvidia.Status.fail(error)
        # The core checks more than each part of the metadata does, and in less time.
        kernel = self.own.kernel
        if conversion.is_served_by(kernel) or kernel.supports(conversion.own):
            return nvidia.Status.success()
        return status(getattr(self.own.metadata, part).supports(conversion.own))


class DescribedOperands(Described):
    """What the metadata classes of operands share. It precedes NVIDIA's class among the bases."""

    def supports(self, other: Any) -> Any:
        """Whether the kernel serves arguments, or all that meet other metadata meet this."""
        if isinstance(other, nvidia.RuntimeArguments):
            return self.judge(other, "operands")
        return super().supports(other)  # type: ignore[misc]


@dataclass
class GemmOperands(DescribedOperands, metadata.GemmOperandsMetadata):
    """The operands of a kernel's GEMM."""

    own: KernelOperator = field(repr=False, compare=False, kw_only=True)


@dataclass
class GroupedGemmOperands(DescribedOperands, metadata.IndexPtrGroupedGemmOperandsMetadata):
    """The operands of a kernel's grouped GEMM."""

    own: KernelOperator = field(repr=False, compare=False, kw_only=True)


@dataclass(kw_only=True)
class KernelDesign(metadata.BLASDesignMetadata):
    """The configuration of a kernel.

    - ``mma_instruction_type``: None for a kernel that multiplies without tensor cores.
    - ``core``: the metadata of the kernel's configuration in ``cutlass_api.metadata``, or None.
    - ``use_2cta_mma``: whether pairs of CTAs share instructions, which is a feature of Blackwell.
    """

    core: Any = field(default=None, repr=False)
    use_2cta_mma: ClassVar[bool] = False

    def supports(self, args: Any) -> Any:
        """Success: the operands' metadata and the operator check ``performance``."""
        return nvidia.Status.success()


class Epilogue(metadata.EpilogueMetadata, Described):
    """The epilogue that a kernel fuses."""

    def __init__(self, epilogue_args: Any, own: KernelOperator) -> None:
        super().__init__(epilogue_args)
        self.own = own

    def supports(self, args: Any) -> Any:
        """Whether the arguments have the same epilogue."""
        return self.judge(args, "epilogue")


def status(own: Status) -> Any:
    """NVIDIA's Status for one of this package."""
    return nvidia.Status(own.error)


def described(own: KernelOperator, operator_class: Any, epilogue_args: Any) -> Any:
    """NVIDIA's metadata of a kernel; None if NVIDIA's package has no class for its operation.

    ``epilogue_args``: NVIDIA's epilogue, for a kernel that fuses one. Raises KeyError if NVIDIA's
    package has no class for an element type.
    """
    of = own.metadata
    if not isinstance(of.operands, (GemmOperandsMetadata, IndexPtrGroupedGemmOperandsMetadata)):
        return None
    return nvidia.OperatorMetadata(
        operator_name=of.operator_name,
        operator_class=operator_class,
        supported_targets=[nvidia.TargetSm(str(target)) for target in of.supported_targets],
        operands=_operands(of.operands, own),
        design=_design(of.design),
        epilogue=None if of.epilogue is None else Epilogue(epilogue_args, own),
    )


def _operands(of: Any, own: KernelOperator) -> Any:
    parts = {name: _constraints(getattr(of, name)) for name in ("A", "B", "out")}
    parts["accumulator_type"] = cutlass_class(of.accumulator_type)
    if not isinstance(of, IndexPtrGroupedGemmOperandsMetadata):
        return GemmOperands(**parts, own=own)
    parts |= {"offsets": _constraints(of.offsets), "offsets_along": of.offsets_along}
    return GroupedGemmOperands(**parts, own=own)


def _constraints(of: Any) -> Any:
    if isinstance(of, ScaledOperandConstraints):
        parts = _constraints(of.quantized), _constraints(of.scale)
        mode, swizzle = tuple(of.mode), nvidia.ScaleSwizzleMode[of.swizzle.name]
        return metadata.ScaledOperandConstraints(*parts, mode, swizzle)
    return metadata.DenseTensorConstraints(
        cutlass_class(of.dtype), of.stride, of.divisibility, of.ptr_alignment_bytes
    )


def _design(of: Any) -> Any:
    # Filters read the tile of each operator: a kernel of the CPU computes one element at a time.
    if not isinstance(of, BLASDesignMetadata):
        shape = (1, 1, 1)
        return KernelDesign(mma_instruction_type=None, tile_shape=shape, cluster_shape=shape)
    instruction = of.mma_instruction_type
    return KernelDesign(
        mma_instruction_type=instruction and getattr(nvidia.mma, instruction.__name__),
        tile_shape=of.tile_shape,
        cluster_shape=of.cluster_shape,
        num_smem_stages=of.num_smem_stages,
        core=getattr(of, "core", None),
    )


__all__ = ["described", "status"]
