"""Makes ``import cutlass`` work where NVIDIA's package is not installed (``rutlass_stand_in``)."""

import sys

import rutlass_stand_in
from rutlass_stand_in import NAMES
from rutlass_stand_in.releases import NVGEMM


def install() -> None:
    """Installs the stand-in for ``cutlass``, and makes torch look for both packages again.

    torch keeps the answer to its first look, which may precede the import of this package.
    """
    rutlass_stand_in.install()
    torch = sys.modules.get("torch")
    if "torch._inductor.utils" in sys.modules and NVGEMM.holds(getattr(torch, "__version__", "")):
        from cutlass_api.inductor import _torch

        _torch.forget_probes()


__all__ = ["NAMES", "install"]
