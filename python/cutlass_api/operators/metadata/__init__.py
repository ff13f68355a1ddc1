"""Descriptions of operators: targets, operands, design, epilogue."""

from cutlass_api.operators.metadata.base import OperatorMetadata
from cutlass_api.operators.metadata.design import (
    BLASDesignMetadata,
    CLCDynamicPersistentTileSchedulerMetadata,
    DesignMetadata,
    Sm100DesignMetadata,
    Sm107DesignMetadata,
    StaticPersistentTileSchedulerMetadata,
    TileSchedulerMetadata,
)
from cutlass_api.operators.metadata.epilogue import EpilogueMetadata
from cutlass_api.operators.metadata.operand_constraints import (
    DenseTensorConstraints,
    OperandConstraints,
    ScaledOperandConstraints,
)
from cutlass_api.operators.metadata.operands import (
    GemmOperandsMetadata,
    GroupedGemmOperandsMetadata,
    IndexPtrGroupedGemmOperandsMetadata,
    OperandsMetadata,
)

__all__ = [
    "BLASDesignMetadata",
    "CLCDynamicPersistentTileSchedulerMetadata",
    "DenseTensorConstraints",
    "DesignMetadata",
    "EpilogueMetadata",
    "GemmOperandsMetadata",
    "GroupedGemmOperandsMetadata",
    "IndexPtrGroupedGemmOperandsMetadata",
    "OperandConstraints",
    "OperandsMetadata",
    "OperatorMetadata",
    "ScaledOperandConstraints",
    "Sm100DesignMetadata",
    "Sm107DesignMetadata",
    "StaticPersistentTileSchedulerMetadata",
    "TileSchedulerMetadata",
]
