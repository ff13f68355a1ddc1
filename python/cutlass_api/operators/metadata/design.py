"""The configurations of operators."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

from cutlass_api import metadata
from cutlass_api._core import Status
from cutlass_api.operators._unserved import Unserved
from cutlass_api.operators.arch import TargetSm
from cutlass_api.operators.mma import MmaInstruction


@dataclass
class DesignMetadata(ABC):
    """The base of configurations."""

    @abstractmethod
    def supports(self, args: Any) -> Status:
        """Whether the configuration serves the ``performance`` of arguments."""


@dataclass(kw_only=True)
class BLASDesignMetadata(DesignMetadata):
    """The configuration of a tiled kernel.

    - ``mma_instruction_type``: a class of :mod:`cutlass_api.operators.mma`; None for a kernel that
      multiplies without tensor cores.
    - ``tile_shape``: M, N and K of a CTA's tile, in elements.
    - ``cluster_shape``: the CTAs of a cluster along M, N and K.
    - ``num_smem_stages``: pipeline stages in shared memory, or None.

    Raises ValueError unless both shapes are three positive numbers.
    """

    mma_instruction_type: type[MmaInstruction] | None
    tile_shape: tuple[int, ...]
    cluster_shape: tuple[int, ...]
    num_smem_stages: int | None = None

    def __post_init__(self) -> None:
        for name in ("tile_shape", "cluster_shape"):
            shape = getattr(self, name)
            if len(shape) != 3 or min(shape) <= 0:
                raise ValueError(f"{name} is {shape}; pass three positive numbers")

    def supports(self, args: Any) -> Status:
        """Fails for arguments with ``performance``, which a subclass may serve."""
        if args.performance is None:
            return Status.success()
        return Status.fail(f"performance is {args.performance}; the operator takes None")


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


class Sm100DesignMetadata(Unserved, BLASDesignMetadata):
    """The configuration of a kernel of Blackwell. The constructor raises NotImplementedError."""

    _nearest = "BLASDesignMetadata"


class Sm107DesignMetadata(Sm100DesignMetadata):
    """The configuration of a kernel of Rubin. The constructor raises NotImplementedError."""


@dataclass(kw_only=True, frozen=True, slots=True)
class TileSchedulerMetadata(ABC):
    """The base of descriptions of tile schedulers."""

    @classmethod
    @abstractmethod
    def supported_targets(cls, design: Any = None, operands: Any = None) -> list[TargetSm]:
        """The targets with the scheduler, for an optional design and operands' metadata."""


@dataclass(kw_only=True, frozen=True, slots=True)
class StaticPersistentTileSchedulerMetadata(TileSchedulerMetadata):
    """CTAs that compute tiles in an order that is fixed at the launch."""

    @classmethod
    def supported_targets(cls, design: Any = None, operands: Any = None) -> list[TargetSm]:
        """From compute capability 8.0 on."""
        return [TargetSm("80")]


class CLCDynamicPersistentTileSchedulerMetadata(Unserved, TileSchedulerMetadata):
    """Cluster launch control of Blackwell. The constructor raises NotImplementedError."""

    _nearest = "StaticPersistentTileSchedulerMetadata"

    @classmethod
    def supported_targets(cls, design: Any = None, operands: Any = None) -> list[TargetSm]:
        """No target that this package serves."""
        return []


__all__ = [
    "BLASDesignMetadata",
    "CLCDynamicPersistentTileSchedulerMetadata",
    "DesignMetadata",
    "Sm100DesignMetadata",
    "Sm107DesignMetadata",
    "StaticPersistentTileSchedulerMetadata",
    "TileSchedulerMetadata",
]
