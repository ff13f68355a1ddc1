"""GEMM kernels for NVIDIA GPUs, behind the interface of NVIDIA's ``cutlass_api``.

A product in ten lines::

    import torch
    import cutlass_api

    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(a)
    args = cutlass_api.arguments.GemmArguments(a, b, out, accumulator_type=torch.float32)
    kernel = cutlass_api.get_kernels(args)[0]
    artifact = kernel.compile(args)
    kernel.run(args, artifact)

The same calls work on CPU tensors: a reference backend computes them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nvidia_cutlass_stub.hooks import after_import

from cutlass_api import (
    _checks,
    _core,
    _cutlass_stub,
    arguments,
    artifact,
    config,
    fusion,
    kernel,
    library,
    metadata,
    providers,
    status,
    typing,
    utils,
)
from cutlass_api._core import (
    CudaFunction,
    DType,
    Estimate,
    Kernel,
    PreparedLaunch,
    __version__,
    get_kernels,
    matmul,
)
from cutlass_api.cuda import CudaKernel, TensorMap, cuda_kernel
from cutlass_api.explanation import explain
from cutlass_api.manifest import Manifest
from cutlass_api.metadata import KernelMetadata
from cutlass_api.status import Status

if TYPE_CHECKING:
    from cutlass_api import nn as nn
    from cutlass_api import ops as ops
    from cutlass_api import profiling as profiling
    from cutlass_api import quantize as quantize
    from cutlass_api import transformers as transformers
    from cutlass_api import tuning as tuning
    from cutlass_api import weights as weights
    from cutlass_api.ops import grouped_mm as grouped_mm
    from cutlass_api.ops import grouped_mm_weight_grad as grouped_mm_weight_grad
    from cutlass_api.ops import int8_mm as int8_mm
    from cutlass_api.ops import linear as linear
    from cutlass_api.ops import linears as linears
    from cutlass_api.ops import masked_grouped_mm as masked_grouped_mm
    from cutlass_api.ops import mixed_mm as mixed_mm
    from cutlass_api.ops import quantized_grouped_mm as quantized_grouped_mm
    from cutlass_api.ops import quantized_linear as quantized_linear
    from cutlass_api.ops import scaled_grouped_mm as scaled_grouped_mm
    from cutlass_api.ops import scaled_mm as scaled_mm
    from cutlass_api.tuning import autotune as autotune
    from cutlass_api.tuning import autotuned as autotuned

_checks.warn_of_other_owners()
_cutlass_stub.install()


#: The functions that this package exports from modules that it imports at first use.
_FUNCTIONS = {
    **dict.fromkeys(
        (
            *("grouped_mm", "grouped_mm_weight_grad", "int8_mm", "linear", "linears"),
            *("masked_grouped_mm", "mixed_mm", "quantized_grouped_mm", "quantized_linear"),
            *("scaled_grouped_mm", "scaled_mm"),
        ),
        "ops",
    ),
    **dict.fromkeys(("autotune", "autotuned"), "tuning"),
}


def _import_ops() -> None:
    _core.watch_torch_profiler(vars(import_module("torch.autograd.profiler")))
    import_module("cutlass_api.ops")


def _register_operators() -> None:
    import_module("cutlass_api.operators.export").register_unless_switched_off()


def __getattr__(name: str) -> Any:
    """What is imported at first use: ``nn``, ``ops``, ``quantize`` and ``weights``, which import
    torch, ``transformers``, ``profiling``, ``tuning``, and the functions of these modules."""
    if name in ("nn", "ops", "profiling", "quantize", "transformers", "tuning", "weights"):
        # Not `from cutlass_api import ops`, which calls __getattr__.
        return import_module(f"cutlass_api.{name}")
    if name in _FUNCTIONS:
        module = import_module(f"cutlass_api.{_FUNCTIONS[name]}")
        globals()[name] = getattr(module, name)
        return globals()[name]
    raise AttributeError(f"module 'cutlass_api' has no attribute '{name}'")


after_import("torch", _import_ops)
after_import("cutlass.operators", _register_operators)

__all__ = [
    "CudaFunction",
    "CudaKernel",
    "DType",
    "Estimate",
    "Kernel",
    "KernelMetadata",
    "Manifest",
    "PreparedLaunch",
    "Status",
    "TensorMap",
    "__version__",
    "arguments",
    "artifact",
    "config",
    "cuda_kernel",
    "explain",
    "fusion",
    "get_kernels",
    "kernel",
    "library",
    "matmul",
    "metadata",
    "providers",
    "status",
    "typing",
    "utils",
]
