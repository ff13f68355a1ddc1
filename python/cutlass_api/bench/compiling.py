"""How benchmarks compile: caches of each method, Inductor's settings, and errors of the results."""

import importlib
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest import mock

import torch
from torch import nn

from cutlass_api.inductor import _torch as inductor

#: Inductor's backends of a method that names no others.
BACKENDS = "ATEN,TRITON"
#: The largest relative norm error of a row of the output, against eager, in bfloat16.
ERROR_LIMIT = 2e-2


@contextmanager
def cache_folder(cache: Path | None, name: str) -> Iterator[Path]:
    """A folder of this name in ``cache``, or a temporary one without."""
    if cache:
        yield cache / name.replace(" ", "_")
        return
    # A worker of Inductor may still write into the folder when it is removed.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)


@contextmanager
def own_caches(folder: Path, triton: Path, programs: Path | None) -> Iterator[None]:
    """Puts the caches of Inductor and Triton, and optionally of our programs, into folders."""
    # Inductor's caches in memory refer to files of the previous folder.
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(triton)}
    if programs:
        variables["CUTLASS_API_CACHE_DIR"] = str(programs)
    inductor.utils.clear_caches()
    try:
        with mock.patch.dict(os.environ, variables):
            yield
    finally:
        inductor.utils.clear_caches()


@contextmanager
def settings(with_ours: bool, backends: str = BACKENDS) -> Iterator[None]:
    """Inductor's settings while a method compiles. ``with_ours``: whether our kernels are
    offered."""
    with ExitStack() as stack:
        stack.enter_context(inductor.config.patch(max_autotune_gemm_backends=backends))
        if with_ours:
            stack.enter_context(importlib.import_module("cutlass_api.inductor").enabled())
        yield


def own_entry(module: Any, name: str) -> Any:
    """A function that calls the module. It has a code object of its own.

    Dynamo keeps compiled code by code object, so that several compilations of one module exist
    side by side only if each has its own.
    """

    def entry(*inputs: Any) -> Any:
        return module(*inputs)

    code = entry.__code__.replace(co_name=name)
    return FunctionType(code, entry.__globals__, name, None, entry.__closure__)


def synchronize(device: str) -> None:
    """Waits for the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(call: Callable[[], Any], device: str) -> float:
    """Seconds of a call until the GPU is done."""
    synchronize(device)
    begin = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - begin


def largest_error(out: Any, expected: Any) -> float:
    """The largest relative norm error of a row, over all tensors of an output."""
    if isinstance(expected, (list, tuple)):
        return max(largest_error(*pair) for pair in zip(out, expected, strict=True))
    reference = expected.reshape(-1, expected.shape[-1]).float()
    difference = out.reshape(reference.shape).float() - reference
    # NaN in one row makes the maximum NaN.
    return float((difference.norm(dim=1) / reference.norm(dim=1)).max())


def check_error(error: float, limit: float = ERROR_LIMIT) -> None:
    """Raises ArithmeticError for a larger error, and for NaN."""
    if not error <= limit:
        raise ArithmeticError(f"relative error {error:.3g} exceeds {limit:.3g}")


def failure(error: Exception) -> str:
    """The first line of an error, of which the traceback is printed."""
    traceback.print_exception(error)
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def start_compiler(mode: str, device: str) -> float:
    """Compiles a small MLP with a norm: torch's first compilation also imports and starts workers.
    Returns the seconds."""
    begin = time.perf_counter()
    options: Any = {"device": device, "dtype": torch.bfloat16}
    parts = nn.LayerNorm(64, **options), nn.Linear(64, 64, **options), nn.GELU()
    mlp = nn.Sequential(*parts, nn.Linear(64, 64, **options))
    function = torch.compile(own_entry(mlp, "start"), mode=mode, dynamic=False)
    with (
        cache_folder(None, "start") as folder,
        own_caches(folder, folder / "triton", None),
        settings(with_ours=False),
    ):
        x = torch.randn(64, 64, **options)
        for _ in range(3):
            function(x)
        synchronize(device)
    torch._dynamo.reset()
    return time.perf_counter() - begin
