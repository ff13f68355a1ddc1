"""The configurations of tiled kernels."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from cutlass_api._core import Status
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


__all__ = ["BLASDesignMetadata", "DesignMetadata"]
