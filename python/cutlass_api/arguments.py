"""What kernels are asked to compute: operands with an operation."""

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
    """Hints on how arguments are to be computed; none of them changes what is computed. There are none yet."""


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
