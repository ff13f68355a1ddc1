"""Fused epilogues: a Python function of the accumulator that the kernel computes before it stores.

An epilogue function is not called. :func:`trace` parses its source into an expression graph, which
becomes part of the kernel's CUDA code. The function may use ``+ - * /``, comparisons, ``where``,
the functions of this module and of :mod:`cutlass_api.fusion.activation`, and torch's functions of
the same names. Called on tensors, the function computes the same with torch::

    def epilogue(accum, bias, scale):
        biased = accum * scale + bias
        D = relu(biased)
        return D, biased

:func:`scale_blocks` takes the place of ``accum`` if scales of A or B vary along K. The kernel then
applies them while it sums up::

    def epilogue(accum, scale_a, scale_b, bias):
        product = scale_blocks(
            accum, a=scale_a, b=scale_b, a_block=(1, 128), b_block=(128, 128)
        )
        D = product + bias
        return D

Names resolve in the scope of the function: to functions of torch, NumPy, ``math`` and this package,
under any alias. Calls of other functions raise ValueError. Undefined names, and the builtins
``sum`` and ``max``, resolve to this module. So do all names in source that is a string.
"""

from collections.abc import Callable, Mapping
from typing import Any

from cutlass_api import _core
from cutlass_api._core import EpilogueArguments, TracedEpilogue
from cutlass_api.fusion import activation
from cutlass_api.fusion._functions import compute


def trace(
    fn: Callable[..., Any] | str, example_tensors: Mapping[str, Any] | None = None
) -> TracedEpilogue:
    """The expression graph of an epilogue function, or of its source.

    ``example_tensors``: a mapping with the names of the parameters and outputs. The values are not
    read.

    Raises ValueError for code that an epilogue cannot contain, with the line, and for a name that
    is missing in ``example_tensors``. Raises SyntaxError for source that does not parse.
    """
    traced = _core.trace_epilogue(fn)
    if example_tensors is not None:
        for name in [*traced.inputs, *traced.outputs]:
            if name not in example_tensors:
                raise ValueError(f"Example input for {name} is not provided.")
    return traced


def trace_in_out(fn: Callable[..., Any] | str) -> tuple[list[str], list[str]]:
    """The names of an epilogue function's inputs, except ``accum``, and of its outputs."""
    traced = _core.trace_epilogue(fn)
    return traced.inputs, traced.outputs


def maximum(x: Any, y: Any) -> Any:
    """The elementwise maximum. NaN if either value is NaN."""
    return compute("maximum", x, y)


def minimum(x: Any, y: Any) -> Any:
    """The elementwise minimum. NaN if either value is NaN."""
    return compute("minimum", x, y)


def exp(x: Any) -> Any:
    """The elementwise exponential."""
    return compute("exp", x)


def round(x: Any) -> Any:
    """To the nearest integer, ties to even."""
    return compute("round", x)


def product(B: Any) -> Any:
    """The product of A and a second matrix of B's shape, dtype and strides, by the same kernel.

    `B` is a parameter of the epilogue function, which may read it in no other way and call
    `product` once::

        def epilogue(accum, up):
            D = silu(accum) * product(up)
            return D

    The function is traced only: without A, a call raises RuntimeError.
    """
    raise RuntimeError("product(B) stands for A @ B in an epilogue function, which is traced")


def sum(x: Any, dim: int | tuple[int, ...] | list[int] = ()) -> Any:
    """The sum along dimensions of the output: -1 sums each row, -2 each column, () all elements.

    An epilogue can return a reduction but not compute with it.
    """
    return compute("sum", x, dim=dim)


def max(x: Any, dim: int | tuple[int, ...] | list[int] = ()) -> Any:
    """The maximum along dimensions of the output, as torch's ``amax``. NaN if any value is NaN.

    () is the maximum of all elements.

    An epilogue can return a reduction but not compute with it.
    """
    return compute("max", x, dim=dim)


def scale_blocks(
    accum: Any,
    a: Any = None,
    b: Any = None,
    a_block: tuple[int, int] | None = None,
    b_block: tuple[int, int] | None = None,
    a_zero: Any = None,
    b_zero: Any = None,
    a_swizzle: str | None = None,
    b_swizzle: str | None = None,
) -> Any:
    """The accumulator of factors whose scales vary along K, in an epilogue function only.

    The element ``A[m, k]`` counts as ``(A[m, k] - a_zero[i, j]) * a[i, j]``, with ``i, j`` the
    block that holds ``m, k``. ``a_block`` is (rows, depth along K) and ``b_block`` (depth along K,
    columns), as in :func:`cutlass_api.quantize.per_block`. A depth of -1 is all of K: such scales
    may differ between the groups of a grouped GEMM, which other operands of an epilogue cannot. The
    sum is float32.

    - ``a``: None, or scales of shape (ceil(M / rows), ceil(K / depth)), of any strides, in float32,
      float16, bfloat16 or float8_e8m0fnu. One scale along K holds for all of K, also if K is 0. A
      leading batch dimension is optional. In a grouped GEMM, M counts the rows of all groups.
    - ``b``: None, or scales of shape (ceil(K / depth), ceil(N / columns)). The leading dimension,
      optional, is the batch or the groups.
    - ``a_zero``, ``b_zero``: None, or zero points of int8 or uint8 factors, of the same shape, in
      int8, uint8, int32, float32, float16 or bfloat16.
    - ``a_swizzle``, ``b_swizzle``: None, or ``"32x4x4"`` for scales that lie in tiles of 128 x 4,
      padded, as ``ScaleSwizzleMode.Swizzle32x4x4`` orders them. Those of B are swizzled as its
      transpose, with rows along N.

    Scales and zero points are parameters of the epilogue function, which cannot use them, or
    ``accum``, elsewhere. The extents of blocks are part of the kernel.
    """
    raise TypeError("scale_blocks is applied inside the sum over K; only a kernel can compute it")


__all__ = [
    "EpilogueArguments",
    "TracedEpilogue",
    "activation",
    "exp",
    "max",
    "maximum",
    "minimum",
    "product",
    "round",
    "scale_blocks",
    "sum",
    "trace",
    "trace_in_out",
]
