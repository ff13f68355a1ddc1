"""PyTorch's NVGEMM backend over `cutlass.operators`, from PyTorch 2.14 on, for the tests of it.

`cutlass.operators` is NVIDIA's, with the provider of this package, where that is installed. An
import of this module skips the importing test module for other releases of PyTorch.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from nvidia_cutlass_stub import is_served
from nvidia_cutlass_stub.releases import INDUCTOR, NVGEMM

if NVGEMM.holds(torch.__version__) or not INDUCTOR.holds(torch.__version__):
    pytest.skip(
        f"NVGEMM of torch {torch.__version__} does not import cutlass.operators",
        allow_module_level=True,
    )
import cutlass.operators as ops
from torch._inductor.codegen.nv_universal_gemm import (
    kernel_cache,
    nv_universal_gemm_kernel,
    nv_universal_gemm_scheduling,
)
from torch._inductor.codegen.nv_universal_gemm.nv_universal_gemm import NVUniversalGemmCaller

from support.pretended_gpu import Lowered, loaded_on_the_cpu

needs_stand_in = pytest.mark.skipif(not is_served(), reason="cutlass is NVIDIA's")
#: NVGEMM makes all operators for products other than dense ones, and for names that it lacks.
makes_all_operators = pytest.mark.skipif(
    not is_served(), reason="to make all of NVIDIA's operators takes minutes"
)
#: PyTorch 2.15 generates the epilogues of more functions than 2.14.
IS_2_14 = torch.__version__ < (2, 15)
#: The default of `torch._inductor.config.nvgemm_max_profiling_configs`.
TRIED = torch._inductor.config.nvgemm_max_profiling_configs


@pytest.fixture(autouse=True)
def fresh_kernel_cache() -> Iterator[None]:
    """torch keeps the operators that it found for the life of the process."""
    kernel_cache.clear_cache()
    yield
    kernel_cache.clear_cache()


def fuses(choice: Any) -> bool:
    """Whether a choice is an operator that may fuse an epilogue."""
    return bool(getattr(choice, "supports_epilogue_fusion", False))


def is_nvgemm(choice: Any) -> bool:
    return isinstance(choice, NVUniversalGemmCaller)


def is_fused(lowered: Lowered) -> bool:
    """Whether a kernel computes all that a graph has."""
    return "_EPILOGUE_FN_SRC" in lowered.code and "async_compile.triton(" not in lowered.code


def source_of(lowered: Lowered) -> tuple[str, str]:
    """The name and the source of the one NVGEMM kernel in generated code."""
    _, text = lowered.code.split("async_compile.nv_universal_gemm(")
    name, source = text.split(", r'''", 1)
    return name.strip("'\""), source.split("'''", 1)[0]


@contextmanager
def operators_of_the_cpu(looked_up: list[str] | None = None) -> Iterator[None]:
    """Operators without an epilogue are replaced by those of the CPU that serve the arguments.

    An operator that fuses any epilogue selects its kernel for the arguments' device. ``looked_up``:
    receives the names by which generated code looks up operators.
    """
    look_up = kernel_cache.get_kernel_by_name_via_args

    def found(name: str, args: Any, cc: int, **options: Any) -> Any:
        if looked_up is not None:
            looked_up.append(name)
        if args.epilogue is not None:
            return look_up(name, args, cc, **options)
        return ops.get_operators(args)[0]

    with ExitStack() as stack:
        for target, name, value in [
            (kernel_cache, "get_kernel_by_name_via_args", found),
            (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        ]:
            stack.enter_context(mock.patch.object(target, name, value))
        yield


def run_operators(lowered: Lowered, inputs: Any) -> tuple[list[torch.Tensor], list[str]]:
    """The outputs of generated code, computed on the CPU, and the operators that it looks up."""
    looked_up: list[str] = []
    with operators_of_the_cpu(looked_up), loaded_on_the_cpu(lowered) as call:
        return list(call(list(inputs))), looked_up


@contextmanager
def capability_of_hopper() -> Iterator[None]:
    """The compute capability of the GPU that FakeTensors are on."""
    with mock.patch("cutlass_api.operators.providers.checks.device_cc", lambda _: 90):
        yield


def compiled_artifacts(compile_: Callable[[], Any]) -> list[Any]:
    """The artifacts that operators compile during a call."""
    artifacts = []
    compiled = ops.Operator.compile

    def keep(*args: Any, **options: Any) -> Any:
        artifacts.append(compiled(*args, **options))
        return artifacts[-1]

    with mock.patch.object(ops.Operator, "compile", keep):
        compile_()
    return artifacts


__all__ = [
    "IS_2_14",
    "TRIED",
    "capability_of_hopper",
    "compiled_artifacts",
    "fresh_kernel_cache",
    "fuses",
    "is_fused",
    "is_nvgemm",
    "kernel_cache",
    "makes_all_operators",
    "needs_stand_in",
    "nv_universal_gemm_kernel",
    "nv_universal_gemm_scheduling",
    "operators_of_the_cpu",
    "ops",
    "run_operators",
    "source_of",
]
