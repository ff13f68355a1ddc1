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

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from nvidia_cutlass_stub.hooks import after_import

from cutlass_api import (
    _checks,
    _core,
    _cutlass_stub,
    arguments,
    artifact,
    config,
    cuda,
    explanation,
    fusion,
    kernel,
    library,
    manifest,
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
    from cutlass_api import (
        distributed,
        inductor,
        nn,
        operators,
        ops,
        profiling,
        quantize,
        tuning,
        weights,
    )
    from cutlass_api import jax as jax
    from cutlass_api import transformers as transformers
    from cutlass_api.ops import (
        grouped_mm,
        grouped_mm_weight_grad,
        int8_mm,
        linear,
        linears,
        masked_grouped_mm,
        mixed_mm,
        quantized_grouped_mm,
        quantized_linear,
        scaled_grouped_mm,
        scaled_mm,
    )
    from cutlass_api.tuning import autotune, autotuned

_checks.warn_of_other_owners()
_cutlass_stub.install()

#: The public names, those that are imported at first use too. ``import *`` and ``dir`` show them.
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
    "autotune",
    "autotuned",
    "config",
    "cuda",
    "cuda_kernel",
    "distributed",
    "explain",
    "explanation",
    "fusion",
    "get_kernels",
    "grouped_mm",
    "grouped_mm_weight_grad",
    "inductor",
    "int8_mm",
    "kernel",
    "library",
    "linear",
    "linears",
    "manifest",
    "masked_grouped_mm",
    "matmul",
    "metadata",
    "mixed_mm",
    "nn",
    "operators",
    "ops",
    "profiling",
    "providers",
    "quantize",
    "quantized_grouped_mm",
    "quantized_linear",
    "scaled_grouped_mm",
    "scaled_mm",
    "status",
    "tuning",
    "typing",
    "utils",
    "weights",
]
#: The modules that are imported at first use, with what each of them imports.
_MODULES = {
    **dict.fromkeys(("distributed", "inductor", "nn", "ops", "quantize", "weights"), "torch"),
    **dict.fromkeys(("operators", "profiling", "tuning"), ""),
}
#: The modules of the functions that are imported at first use.
_HOMES = {name: "ops" for name in __all__ if name not in globals() and name not in _MODULES}
_HOMES |= dict.fromkeys(("autotune", "autotuned"), "tuning")
if sys.modules.get("torch") is None and find_spec("torch") is None:
    __all__ = [name for name in __all__ if _MODULES.get(_HOMES.get(name, name)) != "torch"]
#: `import *` does not import these packages, nor replace the user's names of them.
_MODULES |= {"jax": "jax", "transformers": "transformers"}


def _import_ops() -> None:
    _core.watch_torch_profiler(vars(import_module("torch.autograd.profiler")))
    import_module("cutlass_api.ops")


def _register_operators() -> None:
    import_module("cutlass_api.operators.export").register_unless_switched_off()


# A type checker knows the names from the imports above, and reports others.
if not TYPE_CHECKING:

    def __getattr__(name):
        if name in _MODULES:
            # Not `from cutlass_api import ops`, which calls __getattr__.
            return import_module(f"cutlass_api.{name}")
        if name in _HOMES:
            globals()[name] = getattr(import_module(f"cutlass_api.{_HOMES[name]}"), name)
            return globals()[name]
        text = f"module 'cutlass_api' has no attribute '{name}'"
        # Python suggests a similar name of `dir(obj)`.
        raise AttributeError(text, name=name, obj=sys.modules[__name__])

    def __dir__():
        special = (name for name in globals() if name.startswith("__") and name not in __all__)
        return sorted({*special, *_MODULES, *__all__})


after_import("torch", _import_ops)
after_import("cutlass.operators", _register_operators)
