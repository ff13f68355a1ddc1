"""Serves ``import cutlass`` where NVIDIA's package is missing (``nvidia_cutlass_stub``)."""

import sys

import nvidia_cutlass_stub
from nvidia_cutlass_stub import NAMES
from nvidia_cutlass_stub.releases import NVGEMM


def install() -> None:
    """Installs the stub for ``cutlass``, if ``import torch`` has not done so, and then makes
    torch look for both packages again: it keeps the answer to its first look.
    """
    is_new = nvidia_cutlass_stub.install()
    torch = sys.modules.get("torch")
    has_looked = "torch._inductor.utils" in sys.modules
    if is_new and has_looked and NVGEMM.holds(getattr(torch, "__version__", "")):
        from cutlass_api.inductor import _torch

        _torch.forget_probes()


__all__ = ["NAMES", "install"]
