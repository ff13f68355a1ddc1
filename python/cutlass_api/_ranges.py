"""Ranges of calls in profilers: torch's profilers, Nsight Systems and other readers of NVTX. The
core imports this module when the first range begins.
"""

import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


def enter(name: str, inputs: tuple[Any, ...], kernel: str | None, nvtx: bool) -> Callable[[], None]:
    """Begins a range of this name, and returns the function that ends it.

    ``inputs``: the call's operands, whose shapes profilers show. ``kernel``: the kernel's name, if
    it is known. ``nvtx``: whether NVTX records, too.
    """
    ranges = ExitStack()
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is not None and profiler._is_profiler_enabled:
        import torch

        keywords = {"kernel": kernel} if kernel else {}
        ranges.enter_context(torch._C._profiler._RecordFunctionFast(name, inputs, keywords))
    if nvtx:
        push, pop = _nvtx()
        push(" ".join([name, *filter(None, map(_shape, inputs)), kernel or ""]).rstrip())
        ranges.callback(pop)
    return ranges.close


def _shape(operand: Any) -> str:
    """dtype and shape of a tensor, such as ``float16[64, 128]``; empty for anything else."""
    shape = getattr(operand, "shape", None)
    if shape is None:
        return ""
    return f"{str(operand.dtype).removeprefix('torch.')}{list(shape)}"


_functions: tuple[Callable[[str], Any], Callable[[], Any]] | None = None


def _nvtx() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    """The functions that begin and end an NVTX range: torch's, else those of package nvtx."""
    global _functions
    if _functions is None:
        _functions = _find_nvtx()
    return _functions


def _find_nvtx() -> tuple[Callable[[str], Any], Callable[[], Any]]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda:
        return torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    try:
        import nvtx
    except ImportError:
        warnings.warn(
            "CUTLASS_API_NVTX=1 has no effect without a CUDA build of torch or the package nvtx: "
            "pip install nvtx",
            stacklevel=2,
        )
        return lambda text: None, lambda: None
    return nvtx.push_range, nvtx.pop_range
