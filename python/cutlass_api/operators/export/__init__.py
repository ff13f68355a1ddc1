"""Adds the kernels of this package to NVIDIA's ``cutlass.operators``, where that is installed.

``cutlass_api`` calls :func:`register` when both packages are imported. Neither imports the other.
"""

import sys
import warnings
from typing import Any

from nvidia_cutlass_stub.hooks import is_switched_off

from cutlass_api.operators.export import lookups

#: The environment variable that leaves NVIDIA's package as it is if it is 0, false, no or off.
VARIABLE = "CUTLASS_API_PROVIDER"
#: The package whose providers :func:`register` changes, and its releases that are known.
PACKAGE = "cutlass.operators"
RELEASES = "0.3"


def register() -> bool:
    """Adds the kernels to NVIDIA's ``cutlass.operators`` as the provider ``rutlass``.

    The provider comes first in ``cutlass.operators.available_providers``: clients such as PyTorch
    time the first ten operators. Imports nothing of NVIDIA's.

    Returns False, and changes nothing, if NVIDIA's package is not imported. The same, with a
    warning that names the version, for releases other than 0.3.
    """
    nvidia = imported()
    if nvidia is None or not is_known(nvidia):
        return False
    from cutlass_api.operators.export.provider import RutlassProvider

    others = {name: each for name, each in nvidia.available_providers.items() if name != "rutlass"}
    nvidia.available_providers.clear()
    nvidia.available_providers.update({"rutlass": RutlassProvider, **others})
    return True


def register_unless_switched_off() -> None:
    """:func:`register`, unless ``CUTLASS_API_PROVIDER`` switches that off.

    Serves lookups of PyTorch's NVGEMM in any case.
    """
    if imported() is not None:
        lookups.serve()
    if not is_switched_off(VARIABLE):
        register()


def imported() -> Any:
    """NVIDIA's ``cutlass.operators`` if it is imported, else None."""
    module = sys.modules.get(PACKAGE)
    # Where NVIDIA's package is missing, the name stands for this package.
    return None if module is sys.modules.get("cutlass_api.operators") else module


def is_known(nvidia: Any) -> bool:
    """Whether NVIDIA's package is of a release that the provider knows. Warns if it is not."""
    version = str(getattr(nvidia, "__version__", "of an unknown version"))
    if version.split(".")[:2] == RELEASES.split("."):
        return True
    warnings.warn(
        f"nvidia-cutlass-operators {version} is installed, and cutlass_api adds its kernels to "
        f"{RELEASES}.x only: they are left out of cutlass.operators. Install "
        f"nvidia-cutlass-operators=={RELEASES}.*, or import cutlass_api.operators",
        stacklevel=3,
    )
    return False


__all__ = ["register"]
