"""Our kernels in ``torch.compile``: candidates of Inductor's autotuner, and fused epilogues.

::

    import torch
    import cutlass_api.inductor

    cutlass_api.inductor.enable()
    fast = torch.compile(model, mode="max-autotune")

With max-autotune, Inductor times our kernels beside ATEN and Triton and keeps the fastest. Without
max-autotune, compiled graphs stay as they are. Requires PyTorch 2.11 to 2.15 and a CUDA GPU.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from cutlass_api.inductor._integration import disable, enable, is_enabled
from cutlass_api.inductor._options import Options


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


__all__ = ["Options", "disable", "enable", "enabled", "is_enabled"]
