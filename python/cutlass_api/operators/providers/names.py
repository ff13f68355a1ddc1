"""The kernels of the core by name."""

from contextlib import suppress
from typing import Any

from cutlass_api import _core
from cutlass_api._core import Kernel

#: How many kernels :func:`remember` keeps.
MOST_REMEMBERED = 1 << 14
#: Kernels that fuse the epilogue of earlier arguments, with that epilogue. To read their names
#: would take most of a search's time.
_FUSING: dict[Kernel, Any] = {}
#: The latest kernels of users. A search makes them anew.
_OF_USERS: dict[str, Kernel] = {}


def remember(kernel: Kernel, epilogue: Any) -> None:
    """Makes :func:`kernel_named` find a kernel with an epilogue, or of a user with None.

    The oldest kernel is dropped if there are too many.
    """
    if epilogue is None:
        _keep(_OF_USERS, kernel.metadata.kernel_name, kernel)
    else:
        _keep(_FUSING, kernel, epilogue)


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    kept[key] = value
    while len(kept) > MOST_REMEMBERED:
        with suppress(RuntimeError):  # Another thread adds a kernel.
            kept.pop(next(iter(kept)), None)


def kernel_named(name: str) -> tuple[Kernel, Any]:
    """The kernel of a name, and its epilogue or None. Raises ValueError if there is none."""
    kernel = _OF_USERS.get(name)
    if kernel is not None:
        return kernel, None
    with suppress(ValueError):
        return _core.kernel_by_name(name.replace("_tile", "_", 1)), None
    for fusing, epilogue in list(_FUSING.items()):
        if fusing.metadata.kernel_name == name:
            return fusing, epilogue
    raise ValueError(
        f"operator_name is {name!r}, which no operator that this process knows has; keep the name "
        "of the metadata, and search with the epilogue of an operator that fuses one"
    )


__all__ = ["MOST_REMEMBERED", "kernel_named", "remember"]
