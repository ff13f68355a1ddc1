"""The products that a call launches, as arguments: for ``explain`` and ``autotune`` of a call."""

from collections.abc import Callable
from typing import Any

from cutlass_api import _core
from cutlass_api._core import EpilogueArguments, GemmArguments, GroupedGemmArguments

#: Where the operators note their launches: a list of each call that is observed.
OBSERVED: list[list[dict[str, Any]]] = []


def products_of(function: Callable[..., Any], *operands: Any, **options: Any) -> list[Any]:
    """Calls a function, and returns the arguments of each product that it launched.

    Raises ValueError if it launched none, or one whose operands arguments do not hold.
    """
    if function is _core.matmul:
        return [_of_matmul(*operands, **options)]
    OBSERVED.append([])
    try:
        function(*operands, **options)
    finally:
        launches = OBSERVED.pop()
    if not launches:
        raise ValueError(
            f"{function!r} launched no product of the operators of cutlass_api; pass a function "
            "such as cutlass_api.linear, or arguments such as GemmArguments"
        )
    return [_arguments(**launch) for launch in launches]


def _of_matmul(A: Any, B: Any, out: Any = None, **options: Any) -> Any:
    result = _core.matmul(A, B, out, **options)
    accumulator, epilogue = options.pop("accumulator_type", None), options.pop("epilogue", None)
    options.pop("out_dtype", None)
    accumulator = _core.product_dtypes(A.dtype, B.dtype)[1] if accumulator is None else accumulator
    fused = None if epilogue is None else EpilogueArguments(epilogue, D=result, **options)
    return GemmArguments(A, B, result, accumulator, fused)


def _arguments(
    A: Any, B: Any, operands: Any, out: Any, epilogue: Any, offsets: Any, index: Any, element: Any
) -> Any:
    if element is not None:
        raise ValueError(
            "the call reads a weight of 4 bits; pass GemmArguments with the weight as B"
        )
    outs = out if isinstance(out, tuple) else (out,)
    fused = None
    if epilogue is not None:
        traced = _core.trace_epilogue(epilogue)
        named = dict(zip((*traced.inputs, *traced.outputs), (*operands, *outs), strict=True))
        fused, outs = EpilogueArguments(epilogue, **named), (named["D"],)
    factor = B[0] if isinstance(B, (list, tuple)) else B
    accumulator = _core.product_dtypes(A.dtype, factor.dtype)[1]
    if offsets is None:
        return GemmArguments(A, B, outs[0], accumulator, fused)
    return GroupedGemmArguments(A, B, outs[0], accumulator, offsets, fused, index=index)


__all__ = ["OBSERVED", "products_of"]
