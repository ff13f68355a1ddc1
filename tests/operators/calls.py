"""Calls of a function with the arguments of samples, as one function of their tensors."""

from collections.abc import Callable, Sequence
from os import environ
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

#: Whether all samples pass through all transforms, and not a part that represents them.
RUNS_ALL = environ.get("TEST_OPERATORS") == "all"
#: The floats that torch differentiates.
FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Arguments(NamedTuple):
    """The arguments of one call."""

    args: tuple[Any, ...]
    options: dict[str, Any]


class Slot(NamedTuple):
    """Stands for a tensor in arguments."""

    at: int


#: Of the tensors of one call, the positions of those that are differentiated.
Leaves = Callable[[Sequence[torch.Tensor]], list[int]]


def all_floats(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [at for at, x in enumerate(tensors) if x.dtype in FLOATS]


class Call:
    """Calls of ``function`` with each of ``arguments``: a function of their tensors.

    It returns a list of all results. ``into``: the function with ``out=``. ``leaves``: the
    positions of the tensors that are differentiated. ``dtypes``: those of the operands whose values
    the tensors hold.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Sequence[Arguments],
        into: Callable[..., Any] | None = None,
        leaves: Leaves | list[int] = all_floats,
    ) -> None:
        self.function, self.into, self.arguments = function, into, list(arguments)
        flat, spec = tree_flatten(self.arguments)
        self.tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        slots = iter(range(len(self.tensors)))
        flat = [Slot(next(slots)) if isinstance(x, torch.Tensor) else x for x in flat]
        self.template = tree_unflatten(flat, spec)
        self.leaves = leaves if isinstance(leaves, list) else self.leaves_of_each(leaves)
        self.dtypes = [x.dtype for x in self.tensors]

    def leaves_of_each(self, leaves: Leaves) -> list[int]:
        found: list[int] = []
        start = 0
        for arguments in self.arguments:
            tensors = [x for x in tree_leaves(arguments) if isinstance(x, torch.Tensor)]
            found += [start + at for at in leaves(tensors)]
            start += len(tensors)
        return found

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        results: list[torch.Tensor] = []
        for args, options in filled(self.template, tensors):
            results += as_list(self.function(*args, **options))
        return results

    def write(self, outs: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> None:
        """Calls the function with ``out=``."""
        if self.into is None:
            raise NotImplementedError("no out=")
        for out, (args, options) in zip(outs, filled(self.template, tensors), strict=True):
            self.into(*args, **options, out=out)

    def run(self) -> list[torch.Tensor]:
        return self(*self.tensors)

    def widened(self, function: Callable[..., Any]) -> "Call":
        """The same calls of another function, in float64 and int64. Offsets stay int32."""
        return self.of(function, tree_map(widened, self.arguments))

    def of_magnitudes(self) -> "Call":
        """The same calls with the magnitudes of the operands, whose sums do not cancel."""

        def function(*args: Any, **options: Any) -> Any:
            args, options = tree_map(magnitude, (args, options))
            return self.function(*args, **options)

        return self.of(function, self.arguments)

    def of(self, function: Callable[..., Any], arguments: Sequence[Arguments]) -> "Call":
        call = Call(function, arguments, self.into and writes(function), self.leaves)
        call.dtypes = self.dtypes
        return call


def writes(function: Callable[..., Any]) -> Callable[..., None]:
    """The function with ``out=``."""

    def write(*args: Any, out: torch.Tensor, **options: Any) -> None:
        out.copy_(function(*args, **options))

    return write


def as_list(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def filled(template: Any, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(template, Slot):
        return tensors[template.at]
    if isinstance(template, Arguments):
        return filled(template.args, tensors), filled(template.options, tensors)
    if isinstance(template, (tuple, list)):
        return [filled(each, tensors) for each in template]
    if isinstance(template, dict):
        return {name: filled(each, tensors) for name, each in template.items()}
    return template


def magnitude(value: Any) -> Any:
    return value.abs() if isinstance(value, torch.Tensor) else value


def widened(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or value.dtype is torch.int32:
        return value
    return value.to(torch.float64 if value.is_floating_point() else torch.int64)
