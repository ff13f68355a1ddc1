"""``cutlass_api.scaled_mm``, ``scaled_grouped_mm``, ``int8_mm`` and ``mixed_mm``: products of 8-bit
operands.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

from cutlass_api.ops._activation import activation_name
from cutlass_api.ops._checks import checked
from cutlass_api.ops._library import proxies_of, refuse
from cutlass_api.ops._operator import OPS
from cutlass_api.ops._quantized import check_bytes, scaled_epilogue
from cutlass_api.ops._ranks import of_any_rank, of_columns, of_integers, of_rows
from cutlass_api.ops._scales import output_zero_point, scales_and_bias
from cutlass_api.weights._scales import OF_INTEGERS, of_float8

#: A name of :mod:`cutlass_api.fusion.activation`, a function or a module, or None.
Activation = str | Callable[..., Any] | None

#: The integer output dtypes that saturate, and their range.
SATURATING = {torch.int8: (-128, 127), torch.uint8: (0, 255)}
#: The output dtypes of integer products.
INTEGER_OUTPUTS = (torch.int32, torch.float32, torch.float16, torch.bfloat16, *SATURATING)


@checked
def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: torch.dtype | None = torch.bfloat16,
    bias: Tensor | None = None,
    use_fast_accum: bool = False,
    scale_result: Tensor | None = None,
    activation: Activation = None,
) -> Tensor:
    """activation((a * scale_a) @ (b * scale_b) + bias), of float8 operands; ``torch._scaled_mm``
    and more. The positional order behind ``scale_b`` is not that of ``torch._scaled_mm``: pass
    ``bias``, ``out_dtype`` and what follows by name.

    - ``a`` (*, K) and ``b`` (K, N): float8_e4m3fn or float8_e5m2, each; any sizes and strides.
      Dimensions of ``a`` in front are rows; scales of rows and blocks (1, 128) have them, too.
      ``b`` may have batch dimensions in front, which broadcast with those of ``a``; matrices of
      scales then may, too. A matrix without them is part of all products.
    - ``scale_a``: float32, one factor of shape () or (1,), one for each row of shape (M, 1), or one
      for each block of (1, 128) or (128, 128) elements, of shape (M, ceil(K / 128)) or
      (ceil(M / 128), ceil(K / 128)). The last blocks may be partial. Any strides.
    - ``scale_b``: the same, or one for each column of shape (1, N), or one for each block of
      (128, 1) or (128, 128), of shape (ceil(K / 128), N) or (ceil(K / 128), ceil(N / 128)).
    - Either may be float8_e8m0fnu (MXFP8), with one scale for each 32 elements along K: as a matrix
      (M, ceil(K / 32)), or (ceil(K / 32), N) for ``b``; or as a vector, swizzled and padded as
      ``torch._scaled_mm`` takes it. A matrix is never swizzled: flatten it. A batch of L vectors
      has shape (L, 1, length). Or with one for each block of 128, as in float32, to which each call
      converts them.
    - ``out_dtype``: bfloat16, float16, float32, float8_e4m3fn or float8_e5m2. None: that of ``a``.
    - ``bias``: shape (N,) or (1, N), in any float dtype; behind a batch dimension, one a product.
    - ``scale_result``: one float32 factor of a float8 output, as on a GPU in torch. Other outputs
      ignore it.
    - ``use_fast_accum``: permits sums of 14 bits, whose error grows with K. Otherwise, parts of the
      sum are added in float32.
    - ``activation``: as for :func:`linear`; ``scale_result`` multiplies its result.

    The sum, scales and bias are float32, and are rounded once. NaN scales pass through. float8
    outputs do not saturate: what is too large becomes NaN (e4m3fn) or infinity (e5m2).
    :mod:`cutlass_api.quantize` computes operands and scales. The source of the operator
    ``torch.ops.cutlass_api.scaled_mm`` is ``ops/_quantized.py``.

    Scales of blocks apply inside the sum over K.

    Raises ValueError if a scale has another shape, dtype or device, if the bias does not fit, or if
    no kernel serves the dtypes. Operands have no gradients: backward raises RuntimeError.
    """
    name = activation_name(activation)

    def product(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Any) -> Tensor:
        options = (scale_result, out_dtype, use_fast_accum, name)
        return OPS.scaled_mm(a, b, scale_a, scale_b, bias, *options)

    rows = of_rows(of_float8(scale_a.dtype), a)
    return of_any_rank(product, a, b, (scale_a, rows), (scale_b, of_columns), (bias, of_columns))


@checked
def scaled_grouped_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offs: Tensor,
    out_dtype: torch.dtype | None = torch.bfloat16,
    use_fast_accum: bool = False,
) -> Tensor:
    """``scaled_mm`` of groups: rows ``offs[g - 1]`` to ``offs[g]`` of ``a`` times ``b[g]``; or of
    groups along K, as the gradient of ``b`` sums over the rows of each group.

    - ``a`` (TotalM, K) and ``b`` (G, K, N): float8_e4m3fn or float8_e5m2, each; any strides.
    - ``scale_a``: as for :func:`scaled_mm`, with M = TotalM; one for each row also of shape (M,).
      Blocks of (128, 128) count the rows of all groups.
    - ``scale_b``: float32, one factor, one for each group of shape (G,) or (G, 1, 1), one for each
      column of shape (G, 1, N) or (G, N), or one for each block of (128, 1) or (128, 128) elements,
      of shape (G, ceil(K / 128), N) or (G, ceil(K / 128), ceil(N / 128)).
    - ``offs``: int32 or int64 of shape (G,), the end row of each group. Rows of the result past
      ``offs[-1]`` are uninitialized.
    - ``out_dtype`` and ``use_fast_accum``: as for :func:`scaled_mm`.

    Groups along K: ``out[g] = a[:, offs[g - 1]:offs[g]] @ b[offs[g - 1]:offs[g]]``.

    - ``a`` (M, TotalK) and ``b`` (TotalK, N). Tensor cores multiply them if both are contiguous
      along K, in rows (columns) of whole 16 bytes.
    - ``scale_a``: float32, one factor, one for each group of shape (G,) or (G, 1, 1), one for each
      row and group of shape (G, M, 1) or (G * M,), or one for each block of (1, 128) or (128, 128)
      elements, of shape (M, ceil(TotalK / 128)) or (ceil(M / 128), ceil(TotalK / 128)). Blocks
      count the K of all groups; a group may begin inside one.
    - ``scale_b``: the same of columns: (G, 1, N) or (G * N,), and blocks of (128, 1) or (128, 128).
    - ``offs``: the end of each group along K. The result has shape (G, M, N); what lies past
      ``offs[-1]`` belongs to no group.

    Raises ValueError and RuntimeError as :func:`scaled_mm`.
    """
    return OPS.scaled_grouped_mm(a, b, scale_a, scale_b, offs, out_dtype, use_fast_accum)


@checked
def int8_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    zero_point: Tensor | None = None,
    activation: Activation = None,
) -> Tensor:
    """activation((a @ b) * scale_a * scale_b + bias), of int8 or uint8 operands; ``torch._int_mm``
    and more.

    - ``a`` (*, K) and ``b`` (K, N): int8 or uint8, each; any sizes and strides. Rows and batch
      dimensions as for :func:`scaled_mm`.
    - ``scale_a``: None, or float32: one factor of shape () or (1,), or one for each row of shape
      (M, 1). ``scale_b``: the same, or one for each column, of shape (1, N).
    - ``bias``: None, or as for :func:`scaled_mm`.
    - ``out_dtype``: int32, float32, float16, bfloat16, int8 or uint8. None: bfloat16 if there are
      scales, else int32.
    - ``zero_point``: None, or of an output in int8 or uint8: one element, or shape (N,), in int8,
      uint8 or int32.
    - ``activation``: as for :func:`linear`, in float32.

    The sum is int32. The same launch applies scales and bias in float32 and rounds once, to int32
    towards zero. Outputs in int8 and uint8 are rounded to nearest, ties to even, and saturate after
    the zero point is added: for an output with a scale, divide ``scale_a`` and ``bias`` by it. An
    operand's zero point is a bias: that of ``a`` subtracts ``zero_point * scale_a * scale_b *
    b.sum(0)``. The sources of the operators are in ``ops/_quantized.py``.

    Raises ValueError if the scales, the bias or the zero point have another shape, dtype or device,
    or if no kernel serves the dtypes.
    """
    tensors = (a, b, scale_a, scale_b, bias)
    if proxies := proxies_of(*tensors, zero_point):
        return handle_torch_function(int8_mm, proxies, *tensors, out_dtype, zero_point, activation)
    name = activation_name(activation)
    if out_dtype is None:
        has_scales = scale_a is not None or scale_b is not None
        out_dtype = torch.bfloat16 if has_scales or name else torch.int32
    if scale_a is scale_b is bias is zero_point is name is None and out_dtype is torch.int32:
        return of_any_rank(OPS.int_mm, a, b)

    def product(a: Tensor, b: Tensor, *others: Tensor | None) -> Tensor:
        return scaled_integers(a, b, *others, out_dtype=out_dtype, activation=name)

    return of_any_rank(
        *(product, a, b, (scale_a, of_rows(OF_INTEGERS, a)), (scale_b, of_columns)),
        *((bias, of_columns), (zero_point, of_columns)),
    )


def scaled_integers(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None,
    zero_point: Tensor | None,
    *,
    out_dtype: torch.dtype,
    activation: str | None,
) -> Tensor:
    """``int8_mm`` of matrices, and of batches of one dimension."""
    check_bytes("int8_mm", a, b)
    if out_dtype not in INTEGER_OUTPUTS:
        served = ", ".join(map(str, INTEGER_OUTPUTS))
        raise refuse("int8_mm", f"out_dtype is {out_dtype}; pass one of {served}")
    operands = scales_and_bias("int8_mm", a, b, scale_a, scale_b, bias)
    if zero_point is not None:
        if out_dtype not in SATURATING:
            raise refuse("int8_mm", f"zero_point is for int8 and uint8; out_dtype is {out_dtype}")
        operands["zero_point"] = output_zero_point("int8_mm", a, b, zero_point)
    epilogue = scaled_epilogue("int8_mm", operands, {}, activation, SATURATING.get(out_dtype))
    return OPS.mm_epilogue(a, b, list(operands.values()), epilogue, out_dtype=out_dtype)


@checked
def mixed_mm(
    a: Tensor,
    b: Tensor,
    scale: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    zero_point: Tensor | None = None,
    bias: Tensor | None = None,
    activation: Activation = None,
) -> Tensor:
    """activation(a @ b + bias) of one operand in float16 or bfloat16, and one in int8 or uint8 that
    counts as (operand - zero_point) * scale.

    - ``a`` (*, K) and ``b`` (K, N): any sizes and strides. Integers are converted in registers.
      Rows and batch dimensions as for :func:`scaled_mm`, also of ``zero_point``.
    - ``scale``: None, one factor, one for each column of shape (N,) or (1, N), one for each row of
      shape (M, 1), or one for each group along K of the integers, of shape (K / group, N) if they
      are ``b`` and (M, K / group) if they are ``a``; in float32, float16 or bfloat16. The group is
      a multiple of 16 that the shape implies. (1, N) and (M, 1) are columns and rows, but integers
      of one column (row) take no (M, 1) ((1, N)) except for groups: the meaning never depends on
      the number of rows of the float operand.
    - ``out_dtype``: by default that of the float operand.
    - ``zero_point``: None, or of the shape of ``scale``, or one for each column of ``b`` (row of
      ``a``); in int8, uint8, int32 or a dtype of scales. Requires ``scale``.
    - ``bias``: as for :func:`scaled_mm`. ``activation``: as for :func:`linear`.

    The sum, scale, bias and activation are float32, and are rounded once. With groups or zero
    points, a kernel may first round (operand - zero_point) * scale to the dtype of the float
    operand, once. The float operand and the bias have gradients, unless there are groups, zero
    points or an activation. The source of the operator
    ``torch.ops.cutlass_api.mixed_mm`` is ``ops/_quantized.py``.

    Raises ValueError if the scale, the zero point or the bias has another shape, dtype or device,
    or if no kernel serves the dtypes. The backward of other operands raises RuntimeError.
    """
    name = activation_name(activation)

    def product(a: Tensor, b: Tensor, scale: Any, zero_point: Any, bias: Any) -> Tensor:
        return OPS.mixed_mm(a, b, scale, zero_point, bias, name, out_dtype=out_dtype)

    fits = of_integers(a, b)
    return of_any_rank(product, a, b, (scale, fits), (zero_point, fits), (bias, of_columns))
