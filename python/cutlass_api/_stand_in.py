"""Makes ``import cutlass`` work where NVIDIA's package is not installed (``rutlass_stand_in``)."""

import sys

import rutlass_stand_in
from rutlass_stand_in import NAMES
from rutlass_stand_in.releases import NVGEMM


def install() -> None:
    """Installs the stand-in for ``cutlass``, if ``import torch`` has not done so, and then makes
    torch look for both packages again: it keeps the answer to its first look.
    """
    is_new = rutlass_stand_in.install()
    torch = sys.modules.get("torch")
    has_looked = "torch._inductor.utils" in sys.modules
    if is_new and has_looked and NVGEMM.holds(getattr(torch, "__version__", "")):
        from cutlass_api.inductor import _torch

        _torch.forget_probes()


__all__ = ["NAMES", "install"]
