"""Makes ``import cutlass`` work where NVIDIA's package is not installed (``rutlass_stand_in``)."""

import sys

import rutlass_stand_in
from rutlass_stand_in import NAMES


def install() -> None:
    """Installs the stand-in for ``cutlass``, and makes torch look for both packages again.

    torch keeps the answer to its first look, which may precede the import of this package.
    """
    rutlass_stand_in.install()
    inductor = sys.modules.get("torch._inductor.utils")
    for name in ("ensure_cute_available", "ensure_nv_universal_gemm_available"):
        clear = getattr(getattr(inductor, name, None), "cache_clear", None)
        if clear is not None:
            clear()


__all__ = ["NAMES", "install"]
