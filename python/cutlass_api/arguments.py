"""The arguments of an operation: its operands and its accumulator type."""

from dataclasses import dataclass

from cutlass_api._core import (
    DenseTensor,
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    KernelOperand,
    RuntimeArguments,
    ScaledTensor,
)


@dataclass(frozen=True)
class PerformanceControls:
    """Hints that affect speed but not results. Rutlass defines none."""


__all__ = [
    "DenseTensor",
    "ElementwiseArguments",
    "EpilogueArguments",
    "GemmArguments",
    "GroupedGemmArguments",
    "KernelOperand",
    "PerformanceControls",
    "RuntimeArguments",
    "ScaledTensor",
]
