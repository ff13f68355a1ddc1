"""What the kernels of the core and the arguments of a call are."""

from typing import Any

from cutlass_api import _core
from cutlass_api._core import Kernel
from cutlass_api.metadata import (
    ElementwiseOperandsMetadata,
    GemmOperandsMetadata,
    KernelMetadata,
)
from cutlass_api.operators.arguments import RuntimeArguments
from cutlass_api.operators.arguments.base import no_arguments
from cutlass_api.operators.artifact import CompiledArtifact
from cutlass_api.utils import device_cc, is_torch_fake_tensor


def check_arguments(args: Any) -> None:
    """Raises TypeError for what are no arguments of this interface."""
    if not isinstance(args, RuntimeArguments):
        raise no_arguments(args)


def check_run(args: Any, compiled_artifact: Any) -> None:
    """Raises TypeError for what are no arguments, or no artifact, of this interface."""
    check_arguments(args)
    if compiled_artifact is not None and not isinstance(compiled_artifact, CompiledArtifact):
        raise TypeError(
            f"compiled_artifact is {compiled_artifact!r}; pass the result of compile(args), or None"
        )


def fake_cc(args: Any) -> int | None:
    """The compute capability of the GPU of FakeTensors; None for other operands."""
    out = args.out.tensor
    tensor = out._fake if out._runtime_tensor is None else out._runtime_tensor
    if not is_torch_fake_tensor(tensor) or tensor.device.type != "cuda":
        return None
    return device_cc(tensor.device.index or 0)


def refuse_groups(args: Any) -> None:
    """Raises NotImplementedError for arguments with which PyTorch also reduces groups of outputs.

    ``args``: of either package. PyTorch sets their attribute ``local_reduce``.
    """
    if getattr(getattr(args, "local_reduce", None), "enabled", False):
        raise NotImplementedError("no kernel of this package reduces groups of its output")


def is_fused_later(of_core: KernelMetadata) -> bool:
    """Whether PyTorch fuses epilogues into a kernel: of a GEMM, with at least 128 rows."""
    is_gemm = isinstance(of_core.operands, GemmOperandsMetadata)
    return is_gemm and of_core.epilogue is None and tile_of(of_core)[0] >= 128


def tile_of(of_core: KernelMetadata) -> tuple[int, ...]:
    """The extents of a kernel's tile; empty for a kernel without tiles."""
    return getattr(of_core.design, "tile_shape", ())


def is_elementwise(kernel: Kernel) -> bool:
    """Whether a kernel is of the elementwise operation, which the original does not have."""
    return isinstance(kernel, (_core.ElementwiseKernel, _core.ReferenceKernel)) and isinstance(
        kernel.metadata.operands, ElementwiseOperandsMetadata
    )


__all__ = [
    "check_arguments",
    "check_run",
    "fake_cc",
    "is_elementwise",
    "is_fused_later",
    "refuse_groups",
    "tile_of",
]
