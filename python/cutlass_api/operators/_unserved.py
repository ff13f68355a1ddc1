"""What the original has for GPUs that this package has no kernels for."""

from typing import Any, NoReturn


def refuse(name: str, nearest: str) -> NoReturn:
    """Raises NotImplementedError with what to use in place of ``name``."""
    raise NotImplementedError(f"{name} has no counterpart in this package; use {nearest}")


class Unserved:
    """The base of classes without a counterpart: instantiation raises NotImplementedError."""

    _nearest = ""

    def __new__(cls, *_: Any, **__: Any) -> "Unserved":
        refuse(cls.__name__, cls._nearest)


__all__ = ["Unserved", "refuse"]
