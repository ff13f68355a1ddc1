"""The bases of arguments and operands."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, final, get_type_hints

from cutlass_api import _core
from cutlass_api.operators.typing import NumericLike
from cutlass_api.operators.utils.dtype import to_cutlass_type
from cutlass_api.operators.utils.tensor import TensorWrapper
from cutlass_api.typing import TensorLike


class Operand(ABC):
    """An operand of an operation: one or more tensors.

    In arguments, the fields of a subclass that is a dataclass are converted as those of
    :class:`RuntimeArguments`. Kernels of this package serve :class:`DenseTensor` and
    :class:`ScaledOperand`.
    """

    @final
    def copy(self) -> "Operand":
        """A new operand of the same tensors."""
        return self.__copy__()

    @abstractmethod
    def __copy__(self) -> "Operand": ...

    def __cutlass_operand__(self) -> Any:
        """The operand of the core; None if it has no counterpart."""
        return None


@dataclass(kw_only=True)
class PerformanceControls:
    """What operators may do to be faster, as :class:`cutlass_api.arguments.PerformanceControls`.

    A subclass may add controls for operators of one's own.
    """

    fast_sums: bool = False
    free_multiprocessors: int = 0


def check_performance(performance: Any) -> None:
    """Raises TypeError for what are no performance controls."""
    if performance is not None and not hasattr(performance, "fast_sums"):
        raise TypeError(f"performance is {performance!r}; pass PerformanceControls(), or None")


@dataclass
class RuntimeArguments(_core.RuntimeArguments):
    """The base of arguments. They accept new attributes.

    A subclass that is a dataclass describes an operation of its own: its fields annotated with
    ``TensorLike`` become :class:`~cutlass_api.operators.utils.tensor.TensorWrapper`, those
    annotated with ``NumericLike`` become classes of ``cutlass``, and so do the fields of an
    :class:`Operand`.

    ``performance``: :class:`PerformanceControls`, or None.
    """

    performance: PerformanceControls | None = field(default=None, kw_only=True)

    #: Whether the attributes, and not the core, say what the arguments are.
    is_unpacked = False

    def _validate(self) -> None:
        """Checks of a subclass, called when those of the constructor have passed."""

    def __post_init__(self) -> None:
        convert_fields(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _blank, (type(self),), dict(vars(self))

    def current(self) -> _core.RuntimeArguments:
        """The arguments of the core for the attributes."""
        return self


def _blank(cls: Any) -> Any:
    return cls.__new__(cls)


def convert_fields(holder: Any, options: Mapping[str, Any] | None = None) -> None:
    """Converts the fields of a dataclass by their annotations, and those of operands in them.

    ``options``: parameters of ``TensorWrapper``. The metadata of a field has further ones.
    """
    of: Any = type(holder)
    kinds = _annotations(of)
    for each in fields(holder):
        value, kind = getattr(holder, each.name), kinds[each.name]
        own = {**(options or {}), **each.metadata}
        if isinstance(value, TensorWrapper):
            continue
        if kind is TensorLike:
            setattr(holder, each.name, TensorWrapper(value, **own))
        elif kind is NumericLike:
            setattr(holder, each.name, to_cutlass_type(value))
        elif isinstance(value, Operand):
            convert_fields(value, own)


@lru_cache(256)
def _annotations(holder: Any) -> dict[str, Any]:
    return get_type_hints(holder)


__all__ = [
    "Operand",
    "PerformanceControls",
    "RuntimeArguments",
    "check_performance",
    "convert_fields",
]
