"""The orders in which CTAs compute tiles."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from cutlass_api.operators._unserved import Unserved
from cutlass_api.operators.arch import TargetSm


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
    "CLCDynamicPersistentTileSchedulerMetadata",
    "StaticPersistentTileSchedulerMetadata",
    "TileSchedulerMetadata",
]
