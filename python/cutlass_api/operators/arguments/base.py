"""The bases of arguments and operands."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import final, get_type_hints

from cutlass_api import _core
from cutlass_api.operators.utils.dtype import to_cutlass_type
from cutlass_api.operators.utils.tensor import TensorWrapper
from cutlass_api.typing import NumericLike, TensorLike


class Operand(ABC):
    """An operand of an operation: one or more tensors."""

    @final
    def copy(self) -> "Operand":
        """A new operand of the same tensors."""
        return self.__copy__()

    @abstractmethod
    def __copy__(self) -> "Operand": ...


@dataclass(kw_only=True)
class PerformanceControls:
    """What operators may do to be faster, as :class:`cutlass_api.arguments.PerformanceControls`.

    A subclass may add controls for operators of one's own.
    """

    fast_sums: bool = False
    free_multiprocessors: int = 0


@dataclass(eq=False)
class RuntimeArguments(_core.RuntimeArguments):
    """The base of arguments. They accept new attributes.

    A subclass that is a dataclass describes an operation of its own: its fields annotated with
    ``TensorLike`` become :class:`~cutlass_api.operators.utils.tensor.TensorWrapper`, those
    annotated with ``NumericLike`` become classes of ``cutlass``.

    ``performance``: :class:`PerformanceControls`, or None.
    """

    performance: PerformanceControls | None = field(default=None, kw_only=True)

    #: Whether an operand has changed since the construction.
    is_changed = False

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for each in fields(self):
            value, hint = getattr(self, each.name), hints.get(each.name)
            if hint is TensorLike and not isinstance(value, TensorWrapper):
                setattr(self, each.name, TensorWrapper(value, **each.metadata))
            elif each.type in (NumericLike, "NumericLike") and each.name != "performance":
                setattr(self, each.name, to_cutlass_type(value))

    def current(self) -> _core.RuntimeArguments:
        """These arguments, or those of the tensors that have replaced theirs."""
        return self


__all__ = ["Operand", "PerformanceControls", "RuntimeArguments"]
