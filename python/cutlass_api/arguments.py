"""The arguments of an operation: its operands and its accumulator type."""

from dataclasses import dataclass

from cutlass_api._core import (
    DenseTensor,
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    KernelOperand,
    PrologueArguments,
    RuntimeArguments,
    ScaledTensor,
)


@dataclass(frozen=True)
class PerformanceControls:
    """What kernels may do to be faster.

    fast_sums: whether sums of float8 products may keep 14 bits, as torch's ``use_fast_accum``
    permits. The error then grows with K; without it, parts of the sum are added in float32.
    free_multiprocessors: how many multiprocessors persistent kernels of a GEMM leave to work on
    other streams, such as communication. Kernels that start a CTA for each tile use what is free.
    """

    fast_sums: bool = False
    free_multiprocessors: int = 0


__all__ = [
    "DenseTensor",
    "ElementwiseArguments",
    "EpilogueArguments",
    "GemmArguments",
    "GroupedGemmArguments",
    "KernelOperand",
    "PerformanceControls",
    "PrologueArguments",
    "RuntimeArguments",
    "ScaledTensor",
]
