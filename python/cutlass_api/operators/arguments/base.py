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

#: What reading an operand raises that the core does not take.
UNREADABLE = (BufferError, TypeError, ValueError)


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
        value = getattr(holder, each.name)
        if isinstance(value, TensorWrapper):
            continue
        try:
            _convert(holder, each.name, kinds[each.name], {**(options or {}), **each.metadata})
        except UNREADABLE as error:
            if each.name == "tensor":  # what the error names
                raise
            raise unreadable(each.name, error) from error


def _convert(holder: Any, name: str, kind: Any, options: Mapping[str, Any]) -> None:
    value = getattr(holder, name)
    if kind is TensorLike:
        setattr(holder, name, TensorWrapper(value, **options))
    elif kind is NumericLike:
        setattr(holder, name, to_cutlass_type(value))
    elif isinstance(value, Operand):
        convert_fields(value, options)


def no_arguments(args: Any) -> TypeError:
    """The error for what are no arguments of this interface."""
    return TypeError(
        f"args is {args!r}; pass arguments of cutlass_api.operators, such as GemmArguments"
    )


def no_subject() -> ValueError:
    """The error of a check without arguments and target."""
    return ValueError("args and target_sm are None; pass one of them")


def unreadable(name: str, error: Exception) -> Exception:
    """The error of an operand that cannot be read, one of ``UNREADABLE``, with its name."""
    kind = next(known for known in UNREADABLE if isinstance(error, known))
    return kind(f"{name}: {error}")


@lru_cache(256)
def _annotations(holder: Any) -> dict[str, Any]:
    return get_type_hints(holder)


__all__ = [
    "UNREADABLE",
    "Operand",
    "PerformanceControls",
    "RuntimeArguments",
    "check_performance",
    "convert_fields",
    "no_arguments",
    "no_subject",
    "unreadable",
]
