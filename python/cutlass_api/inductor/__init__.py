"""Our kernels in ``torch.compile``: candidates of Inductor's autotuner, and fused epilogues.

::

    import torch
    import cutlass_api.inductor

    cutlass_api.inductor.enable()
    fast = torch.compile(model, mode="max-autotune")

With max-autotune, Inductor times our kernels beside ATEN and Triton and keeps the fastest. Without
max-autotune, compiled graphs stay as they are. Requires PyTorch 2.11 to 2.15 and a CUDA GPU; under
a newer PyTorch, `enable` warns and graphs stay as they are.
"""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from nvidia_cutlass_stub.releases import INDUCTOR


@dataclass(frozen=True)
class Options:
    """candidates: kernels that Inductor times for each product. fuse: whether pointwise operations
    behind a product are offered as fused epilogues."""

    candidates: int = 6
    fuse: bool = True


def is_enabled() -> Options | None:
    """The options with which the calling thread offers our kernels; None if it offers none."""
    if not INDUCTOR.holds(torch.__version__):
        return None
    from cutlass_api.inductor import _options

    return _options.options_in_force()


def enable(*, candidates: int = 6, fuse: bool = True) -> None:
    """Offers our kernels to Inductor's autotuner, for functions that compile from now on.

    candidates: how many kernels Inductor times for each product, those that rank first for its
    shape. fuse: whether the pointwise operations behind a product (bias, activation, residual,
    another product, casts, scale) are also timed as one fused kernel.

    A second call replaces the options. Inductor keeps its handler of choices, and from PyTorch 2.12
    on its configuration, per thread: call `enable` in the thread that compiles. A graph pass or a
    class of choices that is already configured stays in force.

    Under a PyTorch newer than the supported ones, warns once and changes nothing.

    Raises ValueError if candidates is less than 1, RuntimeError for an older PyTorch.
    """
    if not isinstance(candidates, int) or candidates < 1:
        raise ValueError(f"candidates is {candidates!r}; pass an integer, 1 or more")
    if INDUCTOR.follows(torch.__version__):
        raise RuntimeError(
            f"cutlass_api.inductor needs PyTorch {INDUCTOR}, and this is {torch.__version__}: "
            "install a newer PyTorch, or call cutlass_api.matmul and torch.ops.cutlass_api"
        )
    if INDUCTOR.precedes(torch.__version__):
        _warn_of_newer(torch.__version__)
        return
    from cutlass_api.inductor import _integration

    _integration.enable(Options(candidates, fuse))


def disable() -> None:
    """Withdraws our kernels from functions that the calling thread compiles from now on. Compiled
    code stays."""
    if INDUCTOR.holds(torch.__version__):
        from cutlass_api.inductor import _integration

        _integration.disable()


@contextmanager
def enabled(*, candidates: int = 6, fuse: bool = True) -> Iterator[None]:
    """Offers our kernels to Inductor inside a ``with`` block, as `enable` does.

    What counts is the first call of a compiled function, which compiles it. Code that was compiled
    inside the block keeps our kernels after it.
    """
    before = is_enabled()
    enable(candidates=candidates, fuse=fuse)
    try:
        yield
    finally:
        if before is None:
            disable()
        else:
            enable(candidates=before.candidates, fuse=before.fuse)


@functools.cache
def _warn_of_newer(version: str) -> None:
    warnings.warn(
        f"cutlass_api.inductor supports PyTorch {INDUCTOR}, and this is {version}: torch.compile "
        "works as without cutlass_api.inductor. Install a supported PyTorch or a newer rutlass, or "
        "call cutlass_api.matmul and torch.ops.cutlass_api",
        stacklevel=3,
    )


__all__ = ["Options", "disable", "enable", "enabled", "is_enabled"]
