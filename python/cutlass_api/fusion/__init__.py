"""Fused epilogues: a Python function of the accumulator, computed by the kernel that made it.

An epilogue function is read, not called: :func:`trace` turns its source into an expression graph, which becomes part
of the kernel's CUDA code. It may use ``+ - * /``, comparisons, ``where``, the functions of this module and of
:mod:`cutlass_api.fusion.activation`, and torch's by the same names. Called on tensors as it stands, such a function
computes the same with torch::

    def epilogue(accum, bias, scale):
        biased = accum * scale + bias
        D = relu(biased)
        return D, biased

Names mean what they mean to the function: functions of torch, NumPy, ``math`` and this package, by whatever name the
function calls them. A function of one's own is refused. A name that is not defined there, and ``sum`` and ``max`` where
they are Python's, mean this module's; so do all names in source given as a string.
"""

from collections.abc import Callable, Mapping
from typing import Any

from cutlass_api import _core
from cutlass_api._core import EpilogueArguments, TracedEpilogue
from cutlass_api.fusion import activation
from cutlass_api.fusion._eager import torch_function


def trace(
    fn: Callable[..., Any] | str, example_tensors: Mapping[str, Any] | None = None
) -> TracedEpilogue:
    """The expression graph of an epilogue function, or of its source.

    ``example_tensors``: by name, what will stand for its parameters and outputs; only the names are looked at. Raises
    ValueError, with the line, for what an epilogue cannot do, and for a name without an example; SyntaxError for source
    that does not parse.
    """
    traced = _core.trace_epilogue(fn)
    if example_tensors is not None:
        for name in [*traced.inputs, *traced.outputs]:
            if name not in example_tensors:
                raise ValueError(f"Example input for {name} is not provided.")
    return traced


def trace_in_out(fn: Callable[..., Any] | str) -> tuple[list[str], list[str]]:
    """The names of an epilogue function's inputs, without ``accum``, and of its outputs."""
    traced = _core.trace_epilogue(fn)
    return traced.inputs, traced.outputs


def maximum(x: Any, y: Any) -> Any:
    """The larger of two values, element by element; NaN where either is."""
    return torch_function("maximum", x, y)


def minimum(x: Any, y: Any) -> Any:
    """The smaller of two values, element by element; NaN where either is."""
    return torch_function("minimum", x, y)


def exp(x: Any) -> Any:
    """e to the power of each element."""
    return torch_function("exp", x)


def sum(x: Any, dim: int | tuple[int, ...] | list[int]) -> Any:
    """The sum along dimensions of the output: -1 for that of each row, -2 for that of each column.

    An epilogue can return it, and not compute with it.
    """
    return torch_function("sum", x, dim=dim)


def max(x: Any, dim: int | tuple[int, ...] | list[int]) -> Any:
    """The largest value along dimensions of the output, as torch's ``amax``: NaN where one is. Like :func:`sum`."""
    return torch_function("amax", x, dim=dim)


__all__ = [
    "EpilogueArguments",
    "TracedEpilogue",
    "activation",
    "exp",
    "max",
    "maximum",
    "minimum",
    "sum",
    "trace",
    "trace_in_out",
]
