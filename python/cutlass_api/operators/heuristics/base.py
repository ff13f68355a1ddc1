"""Heuristics: orders of operators for arguments."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from cutlass_api.operators.arch import TargetSm
    from cutlass_api.operators.base import Operator

HeuristicType = TypeVar("HeuristicType", bound="type[Heuristic]")


class Heuristic(ABC):
    """An order of operators. ``get_operators`` without a heuristic has the cost model's order."""

    @abstractmethod
    def rank(
        self,
        args: Any,
        operators: "list[Operator]",
        *,
        target_sm: "TargetSm | str | None" = None,
        limit: int | None = None,
    ) -> "list[Operator]":
        """The operators, best first. Some may be left out; none may be new or repeated.

        - ``args``: the arguments, or None.
        - ``operators``: the operators that serve them.
        - ``target_sm``: the target that they are ranked for, or None.
        - ``limit``: how many of the result the caller keeps, or None for all.
        """


#: The classes of heuristics by name.
available_heuristics: dict[str, type[Heuristic]] = {}


def register_heuristic(name: str) -> Callable[[HeuristicType], HeuristicType]:
    """A class decorator that registers a heuristic, in place of an earlier one of that name."""

    def register(heuristic: HeuristicType) -> HeuristicType:
        available_heuristics[name] = heuristic
        return heuristic

    return register


def get_heuristic(name: str) -> type[Heuristic]:
    """The heuristic of a name. Raises KeyError with the known names."""
    try:
        return available_heuristics[name]
    except KeyError:
        known = ", ".join(sorted(available_heuristics))
        raise KeyError(f"no heuristic has the name {name!r}; registered: {known}") from None


__all__ = ["Heuristic", "available_heuristics", "get_heuristic", "register_heuristic"]
