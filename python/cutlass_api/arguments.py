"""The arguments of an operation: its operands and its accumulator type.

Arguments and operands deep-copy and pickle: the copy holds copies of the tensors, and epilogues and
prologues are copied as source.
"""

import copyreg
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cutlass_api._core import (
    DenseTensor,
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    KernelOperand,
    PrologueArguments,
    RuntimeArguments,
    ScaledTensor,
)


@dataclass(frozen=True)
class PerformanceControls:
    """What kernels may do to be faster.

    fast_sums: whether sums of float8 products may keep 14 bits, as torch's ``use_fast_accum``
    permits. The error then grows with K; without it, parts of the sum are added in float32.
    free_multiprocessors: how many multiprocessors persistent kernels of a GEMM leave to work on
    other streams, such as communication. Kernels that start a CTA for each tile use what is free.
    """

    fast_sums: bool = False
    free_multiprocessors: int = 0


#: What rebuilds an object: a function, its parameters and its keywords.
Parts = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def _of_arguments(*names: str) -> Callable[[Any], Parts]:
    """Copies arguments whose constructor takes parameters of these names."""
    optional = ("epilogue", "prologue", "performance", "index")

    def parts(args: Any) -> Parts:
        options = {name: getattr(args, name, None) for name in optional}
        given = {name: value for name, value in options.items() if value is not None}
        return type(args), tuple(getattr(args, name) for name in names), given

    return parts


def _of_dense(operand: Any) -> Parts:
    return type(operand), (operand.tensor.runtime_tensor,), {}


def _of_scaled(operand: Any) -> Parts:
    if operand.base.element_type.width < 8 or operand.zero or operand.factor:
        raise TypeError(
            f"cannot copy or pickle {operand!r}, which is of a weight; copy the weight of "
            "cutlass_api.weights, and make new arguments"
        )
    tensors = (part.tensor.runtime_tensor for part in (operand.base, operand.scale))
    return type(operand), (*tensors, operand.mode, operand.swizzle), {}


def _of_function(epilogue: Any) -> Parts:
    named = dict(zip(epilogue.parameter_names, epilogue.parameters, strict=True))
    if isinstance(epilogue, EpilogueArguments):
        return type(epilogue), (epilogue.traced_epilogue.source,), named
    of_dtype = {} if epilogue.dtype is None else {"dtype": epilogue.dtype}
    return type(epilogue), (epilogue.traced_prologue.source,), named | of_dtype


def _reducer(parts: Callable[[Any], Parts]) -> Callable[[Any], Any]:
    def reduced(value: Any) -> Any:
        # Not by functools.partial: copy.deepcopy would not copy what it holds.
        return _rebuilt, parts(value)

    return reduced


def _rebuilt(function: Callable[..., Any], parameters: Any, options: Any) -> Any:
    return function(*parameters, **options)


_COPIED: dict[type, Callable[[Any], Parts]] = {
    GemmArguments: _of_arguments("A", "B", "out", "accumulator_type"),
    GroupedGemmArguments: _of_arguments("A", "B", "out", "accumulator_type", "offsets"),
    ElementwiseArguments: _of_arguments("A", "B", "out"),
    EpilogueArguments: _of_function,
    PrologueArguments: _of_function,
    DenseTensor: _of_dense,
    ScaledTensor: _of_scaled,
}
for _class, _parts in _COPIED.items():
    copyreg.pickle(_class, _reducer(_parts))

__all__ = [
    "DenseTensor",
    "ElementwiseArguments",
    "EpilogueArguments",
    "GemmArguments",
    "GroupedGemmArguments",
    "KernelOperand",
    "PerformanceControls",
    "PrologueArguments",
    "RuntimeArguments",
    "ScaledTensor",
]
