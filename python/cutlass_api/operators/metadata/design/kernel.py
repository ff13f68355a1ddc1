"""The configurations of the core's kernels."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from cutlass_api import metadata
from cutlass_api._core import Status
from cutlass_api.operators.metadata.design.base import BLASDesignMetadata
from cutlass_api.operators.mma import MmaInstruction


@dataclass(kw_only=True)
class KernelDesignMetadata(BLASDesignMetadata):
    """The configuration of a kernel of this package.

    - ``core``: its metadata in :mod:`cutlass_api.metadata`, such as ``Sm90DesignMetadata``.
    - ``use_2cta_mma``: whether pairs of CTAs share instructions, which is a feature of Blackwell.
    """

    core: metadata.DesignMetadata = field(repr=False)
    use_2cta_mma: ClassVar[bool] = False

    def supports(self, args: Any) -> Status:
        """Whether the kernel's configuration serves the arguments."""
        return self.core.supports(args)


def design_of_core(design: Any, instruction: type[MmaInstruction] | None) -> Any:
    """The configuration of one of the core's kernels. Returns other configurations as they are."""
    if not isinstance(design, metadata.BLASDesignMetadata):
        return design
    return KernelDesignMetadata(
        mma_instruction_type=instruction,
        tile_shape=design.tile_shape,
        cluster_shape=design.cluster_shape,
        num_smem_stages=getattr(design, "stages", None),
        core=design,
    )


__all__ = ["KernelDesignMetadata", "design_of_core"]
