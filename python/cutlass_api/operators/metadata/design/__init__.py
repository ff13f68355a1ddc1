"""The configurations of operators."""

from cutlass_api.operators.metadata.design.base import BLASDesignMetadata, DesignMetadata
from cutlass_api.operators.metadata.design.sm100 import Sm100DesignMetadata
from cutlass_api.operators.metadata.design.sm107 import Sm107DesignMetadata
from cutlass_api.operators.metadata.design.tile_scheduler import (
    CLCDynamicPersistentTileSchedulerMetadata,
    StaticPersistentTileSchedulerMetadata,
    TileSchedulerMetadata,
)

__all__ = [
    "BLASDesignMetadata",
    "CLCDynamicPersistentTileSchedulerMetadata",
    "DesignMetadata",
    "Sm100DesignMetadata",
    "Sm107DesignMetadata",
    "StaticPersistentTileSchedulerMetadata",
    "TileSchedulerMetadata",
]
