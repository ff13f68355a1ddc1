"""Serves ``import cutlass`` where NVIDIA's package is missing (``nvidia_cutlass_stub``)."""

import nvidia_cutlass_stub
from nvidia_cutlass_stub import NAMES, probes


def install() -> None:
    """Installs the stand-in for ``cutlass``, if ``import torch`` has not done so, and then makes
    torch look for the packages again: it keeps the answer to its first look.
    """
    if nvidia_cutlass_stub.install():
        probes.forget()


__all__ = ["NAMES", "install"]
