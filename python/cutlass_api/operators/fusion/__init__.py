"""Epilogue functions: the language of :mod:`cutlass_api.fusion`."""

from collections.abc import Callable, Mapping
from typing import Any

from cutlass_api import fusion
from cutlass_api._core import TracedEpilogue
from cutlass_api.operators.fusion import activation
from cutlass_api.operators.fusion.empty_tensor import EmptyTensor
from cutlass_api.operators.fusion.generated import translate


def trace(
    fn: Callable[..., Any] | str, example_tensors: Mapping[str, Any], **options: Any
) -> TracedEpilogue:
    """The expression graph of an epilogue function, or of its source.

    ``example_tensors``: a mapping with the names of the parameters and outputs. ``options``:
    ``requires_conversion_to_tree``, which has no effect on a graph.

    Raises as :func:`cutlass_api.fusion.trace`, and TypeError for other options.
    """
    unknown = options.keys() - {"requires_conversion_to_tree"}
    if unknown:
        raise TypeError(f"trace has no option {', '.join(sorted(unknown))}; leave it out")
    return fusion.trace(fn, example_tensors)


def trace_in_out(fn: Callable[..., Any] | str) -> tuple[list[str], list[str]]:
    """The names of an epilogue function's inputs, except ``accum``, and of its outputs.

    ``fn``: a function, or source, which may be what PyTorch generates for the CuTe DSL.
    """
    return fusion.trace_in_out(translate(fn) if isinstance(fn, str) else fn)


__all__ = ["EmptyTensor", "activation", "trace", "trace_in_out"]
