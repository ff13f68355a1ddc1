"""``cutlass_api.linear``, and ``cutlass_api.matmul`` where torch differentiates or traces."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function

import cutlass_api
from cutlass_api._batches import (
    check_out,
    check_ranks,
    of_other_dtype,
    output_shape,
    over_batches,
    second_factor,
)
from cutlass_api._core import DType, trace_epilogue
from cutlass_api.ops import _epilogues
from cutlass_api.ops._activation import activation_name
from cutlass_api.ops._broadcast import product
from cutlass_api.ops._checks import checked
from cutlass_api.ops._joint import split
from cutlass_api.ops._library import proxies_of, sum_dtype
from cutlass_api.ops._operator import OPS
from cutlass_api.weights._classes import Weight


@checked
def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | Callable[..., Any] | None = None,
) -> Tensor:
    """activation(input @ weight.T + bias), in one launch; ``torch.nn.functional.linear`` and more.

    ``input`` has shape (*, K), ``weight`` (N, K), or (K,) for an output (*). ``bias`` broadcasts to
    the output. ``activation``: a name of :mod:`cutlass_api.fusion.activation`, a usual spelling
    such as "swish" or "gelu_pytorch_tanh", the function or torch's function of that name, or a
    module such as ``torch.nn.GELU(approximate="tanh")``. The accumulator, the bias and the
    activation are float32 (float64 for float64), and are rounded once. Differentiates, traces and
    follows autocast, as torch's function does.

    Raises ValueError if shapes do not match, no kernel serves the dtypes, or the activation is
    unknown.
    """
    return OPS.linear(input, weight, bias, activation_name(activation))


@checked
def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor,
    *,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    zero_rest: bool = False,
    index: Tensor | None = None,
) -> Tensor:
    """``a[s:e] @ b[g] + bias[g]`` for each group g of rows s to e: the products of a mixture of
    experts, in one launch.

    - ``a``: shape (TotalM, K), the rows of all groups. ``b``: (G, K, N), a matrix for each group,
      of any strides. Float16, bfloat16, float32 or float64.
    - ``offs``: int32 or int64 of shape (G,), the end row of each group, read on the device. A group
      may be empty.
    - ``bias``: shape (G, N), a row for each group, in any float dtype. It is added before a result
      is rounded.
    - ``out_dtype``: of the result, (TotalM, N); by default that of ``a``.
    - ``zero_rest``: whether rows of the result past ``offs[-1]`` are zeros. They are uninitialized
      otherwise, as those of ``torch._grouped_mm``.
    - ``index``: int32 or int64 of shape (TotalM,): row i of the groups is ``a[index[i]]``, for
      ``a`` of any number of rows. Kernels for compute capability 9.0 read such rows of float16 and
      bfloat16 where they are; elsewhere they are copied first.

    Differentiates, traces and follows autocast. The gradient of ``a`` is zero past ``offs[-1]``;
    with ``index``, it is the sum of the gradients of a row's copies. That of ``bias`` is the sum of
    each group's rows, by a product with ones. Sums repeat bit for bit.

    Raises ValueError if shapes do not match or no kernel serves the dtypes; on the CPU, also if
    offsets decrease or exceed the rows, or an index is no row of ``a``. GPU kernels clamp offsets,
    and take another row, or zeros, for an index of no row.
    """
    return OPS.grouped_mm(a, b, offs, bias, out_dtype, zero_rest, index)


@checked
def masked_grouped_mm(
    a: Tensor,
    b: Tensor,
    counts: Tensor,
    *,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``a[g, :counts[g]] @ b[g] + bias[g]`` for each group g: the products of a mixture of experts
    that receives a number of rows known on the device alone, as in CUDA graphs and in low-latency
    expert parallelism. No CTA computes other rows.

    - ``a``: shape (G, M, K), M rows of room for each group. ``b``: (G, K, N). Any strides; float16,
      bfloat16, float32 or float64.
    - ``counts``: int32 or int64 of shape (G,), the rows of each group, read on the device.
    - ``bias``: shape (G, N), a row for each group, in any float dtype.
    - ``out``: the result, (G, M, N), whose other rows stay unchanged. None: a new tensor, whose
      other rows are uninitialized.
    - ``out_dtype``: of a new result; by default that of ``a``.

    Traces and follows autocast. There is no gradient: :func:`grouped_mm` has one.

    Raises ValueError if shapes do not match, no kernel serves the dtypes, or both ``out`` and
    ``out_dtype`` are passed; on the CPU, also if a count is negative or exceeds M. GPU kernels
    clamp counts.
    """
    if out is None:
        return OPS.masked_grouped_mm(a, b, counts, bias, out_dtype=out_dtype)
    if out_dtype is not None:
        raise ValueError("masked_grouped_mm takes out or out_dtype, not both; omit out_dtype")
    OPS.masked_grouped_mm.out(a, b, counts, bias, out=out)
    return out


@checked
def grouped_mm_weight_grad(
    a: Tensor,
    grad: Tensor,
    offs: Tensor,
    *,
    out: Tensor | None = None,
    accumulate: bool = False,
) -> Tensor:
    """``a[s:e].mT @ grad[s:e]`` for each group of rows s to e: the gradient of a mixture's weights.

    - ``a`` (TotalM, K) and ``grad`` (TotalM, N): one dtype, any strides. Float16 and bfloat16 with
      rows at multiples of 16 bytes are fastest.
    - ``offs``: int32 or int64 of shape (G,), the end row of each group, read on the device. Rows
      behind the last group are not used.
    - ``out`` (G, K, N): the output, in any float dtype. None: a new one in the dtype of ``a``.
    - ``accumulate``: adds the products to ``out``, which must be passed. Products and additions are
      float32 (float64 for float64), and are rounded once.

    A group without rows yields zeros, and leaves an accumulated ``out`` as it is. One launch:
    nothing is filled or copied before. With ``out``, the operands have no gradients.

    Raises ValueError if shapes do not match, no kernel serves the dtypes, or ``accumulate`` has no
    ``out``; on the CPU, also if offsets decrease or exceed the rows. GPU kernels clamp them.
    """
    if out is None:
        if accumulate:
            raise ValueError("accumulate=True adds to out, which is None; pass the tensor as out")
        return OPS.grouped_mm_weight_grad(a, grad, offs)
    OPS.grouped_mm_weight_grad.out(a, grad, offs, out if accumulate else None, out=out)
    return out


@checked
def linears(
    input: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """input @ weight.T + bias of each weight, in one launch: the projections of attention, for
    example.

    ``input`` has shape (*, K), the weights (N_i, K), the biases (N_i,), one for each weight. The
    results are views of one tensor: its columns side by side. Kernels take 2 to 4 weights in
    float16 or bfloat16 whose rows are contiguous, with a multiple of 16 rows each, but for the last
    one, and contiguous biases of one dtype; for many rows of ``input``, multiples of 64 to 256 are
    faster. Other layers take a launch each. Differentiates, traces and follows autocast, as
    :func:`linear` does.

    Raises ValueError if shapes do not match or no kernel serves the dtypes.
    """
    return split(OPS.joint_linear(input, list(weights), list(biases or ())), weights)


@checked
def quantized_linear(
    input: Tensor,
    weight: Weight,
    bias: Tensor | None = None,
    activation: str | Callable[..., Any] | None = None,
) -> Tensor:
    """activation(input @ weight.dequantize().T + bias), in one launch, which reads the weight's
    stored elements.

    - ``input``: shape (*, K), float16 or bfloat16, on the device of the weight. The result has
      shape (*, N), and this dtype.
    - ``weight``: any class of :mod:`cutlass_api.weights`. ``weight.repack()`` returns it in the
      order that kernels read; of another order, each call makes a copy in that order. The columns
      of ``input`` are copied in the order of a ``permutation``. Of :class:`Float8
      <cutlass_api.weights.Float8>`, each call makes a copy in the dtype of ``input``.
    - ``bias``, ``activation``: as for :func:`linear`.

    The accumulator, scales, bias and activation are float32, and are rounded once. Zero points,
    scales of groups and scales of :class:`NVFP4 <cutlass_api.weights.NVFP4>` may first apply to the
    elements, which are then rounded to the dtype of ``input`` once.

    ``input`` and ``bias`` have gradients. That of ``input`` is computed with a copy of the weight
    in its dtype. Autocast casts ``input`` and ``bias``. Compiled and exported graphs hold one
    operator.

    Raises TypeError if ``weight`` is of no such class, and ValueError if shapes, dtypes or devices
    do not match, or the activation is unknown. :class:`MXFP4 <cutlass_api.weights.MXFP4>` and
    float16 raise ValueError: float16 does not have the range of the scales. The backward of fields
    of the weight raises RuntimeError.
    """
    if not isinstance(weight, Weight):
        raise TypeError(
            f"cutlass_api.quantized_linear: weight is {type(weight).__name__}; pass a weight of "
            "cutlass_api.weights, or call cutlass_api.linear"
        )
    fields = (*weight.fields, weight.permutation)
    return OPS.quantized_linear(
        input, *fields, type(weight).__name__, bias, activation_name(activation)
    )


@checked
def quantized_grouped_mm(
    a: Tensor, weight: Weight, offs: Tensor, *, zero_rest: bool = False
) -> Tensor:
    """``a[s:e] @ weight[g].dequantize().T`` for each group g of rows s to e: the products of a
    mixture of experts whose weights are quantized.

    - ``a``: (TotalM, K), float16 or bfloat16, on the device of the weights. The result is
      (TotalM, N), in this dtype.
    - ``weight``: a stack (G, N, K) of any class of :mod:`cutlass_api.weights`: one for each group.
      ``weight.repack()`` returns it in the order that kernels read; of another order, each call
      makes a copy in that order.
    - ``offs``: (G,), int32 or int64, on the device of ``a``: the end row of each group. Kernels
      read the offsets on the device, also at the replay of a CUDA graph.
    - ``zero_rest``: whether rows past the last group are zeros. By default, they are uninitialized.

    One launch on compute capability 9.0. A GPU for which no kernel reads the weights multiplies by
    a copy in the dtype of ``a``. Rounding is that of :func:`quantized_linear`.

    ``a`` has a gradient, which is computed with a copy of the weights in its dtype and is zero past
    the last group. Autocast casts ``a``. Compiled and exported graphs hold one operator.

    Raises TypeError if ``weight`` is of no such class, and ValueError if it is no stack, or shapes,
    dtypes or devices do not match; on the CPU, also for offsets that decrease or exceed the rows.
    The backward of fields of the weight raises RuntimeError.
    """
    if not isinstance(weight, Weight):
        raise TypeError(
            f"cutlass_api.quantized_grouped_mm: weight is {type(weight).__name__}; pass a stack of "
            "weights of cutlass_api.weights, or call cutlass_api.grouped_mm"
        )
    name = type(weight).__name__
    return OPS.quantized_grouped_mm(a, *weight.fields, name, offs, zero_rest)


def matmul(
    A: Tensor,
    B: Tensor,
    out: Tensor | None = None,
    accumulator_type: Any = None,
    *,
    out_dtype: torch.dtype | None = None,
    epilogue: Callable[..., Any] | str | None = None,
    **operands: Any,
) -> Tensor:
    """``cutlass_api.matmul`` through the operators, which torch differentiates and traces."""
    if proxies := proxies_of(A, B, out):
        options = {"out_dtype": out_dtype, "epilogue": epilogue, **operands}
        positional = (A, B, out, accumulator_type)
        return handle_torch_function(cutlass_api.matmul, proxies, *positional, **options)
    if accumulator_type is not None:
        raise ValueError(
            f"accumulator_type is {accumulator_type}, but torch differentiates or traces the call "
            "of matmul, and the operators choose the accumulator type: omit accumulator_type"
        )
    if A.is_nested or B.is_nested:
        return OPS.mm(A, B)  # which refuses them
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        try:
            out_dtype = getattr(torch, DType(out_dtype).name)
        except TypeError as error:
            raise TypeError(f"out_dtype: {error}") from None
    check_ranks(A, B)
    if out is not None and torch.is_grad_enabled() and requires_grad(A, B, out, operands):
        raise RuntimeError(
            "matmul with out= computes no gradients, but an operand requires grad: omit out, or "
            "call it under torch.no_grad()"
        )
    if out is not None:
        check_out(out, output_shape(A, B))
        if out_dtype is not None and out_dtype is not out.dtype:
            names = (str(dtype).removeprefix("torch.") for dtype in (out.dtype, out_dtype))
            raise of_other_dtype(*names)
        if torch.is_autocast_enabled(A.device.type):  # which casts no operands of such a call
            with torch.autocast(A.device.type, enabled=False):
                return matmul(A, B, out, epilogue=epilogue, **operands)
        out_dtype = out.dtype
    if epilogue is None:
        if operands:
            raise TypeError(f"{next(iter(operands))} is passed without an epilogue; pass epilogue=")
        result = product(A, B, out_dtype)
    else:
        source, inputs, second = epilogue_source(epilogue)
        missing = [name for name in inputs if name not in operands]
        extra = [name for name in operands if name not in inputs]
        if missing or extra:
            raise TypeError(
                f"the epilogue takes {', '.join(inputs) or 'no operands'}, but "
                f"{', '.join(operands) or 'nothing'} is passed"
            )
        tensors = [as_tensor(name, operands[name], A) for name in inputs]
        result = fused_product(A, B, tensors, source, second, out_dtype)
    return result if out is None else out.copy_(result)


def fused_product(
    A: Tensor,
    B: Tensor,
    operands: Sequence[Tensor],
    epilogue: str,
    second: int | None,
    out_dtype: torch.dtype | None,
) -> Tensor:
    """epilogue(A @ B, *operands). The operands broadcast to the output, except for a second B."""

    def fused(a: Tensor, b: Tensor, *operands: Tensor) -> Any:
        return OPS.mm_epilogue(a, b, operands, epilogue, out_dtype=out_dtype)

    if {A.dim(), B.dim()} <= {2, 3}:
        return fused(A, B, *operands)
    is_factor = [at == second for at in range(len(operands))]
    return over_batches(fused, A, B, *operands, is_factor=is_factor)


def requires_grad(A: Tensor, B: Tensor, out: Tensor, operands: dict[str, Any]) -> bool:
    values = (A, B, out, *operands.values())
    return any(isinstance(value, Tensor) and value.requires_grad for value in values)


def epilogue_source(epilogue: Callable[..., Any] | str) -> tuple[str, list[str], int | None]:
    """The source of an epilogue without outputs other than D, its operands' names, and the position
    of a second matrix B among them.
    """
    traced = trace_epilogue(epilogue)
    if [reduced for _, _, reduced in traced.results] != [False]:
        raise ValueError(
            f"the epilogue returns {', '.join(traced.outputs)}, but torch differentiates or traces "
            "the call of matmul, which then returns D alone and reduces nothing"
        )
    return _epilogues.one_line(traced.source), traced.inputs, second_factor(traced)


def as_tensor(name: str, operand: Tensor | float, like: Tensor) -> Tensor:
    """An operand of an epilogue. The kernels read a number and a tensor of one element alike."""
    if isinstance(operand, Tensor):
        return operand
    dtype = sum_dtype(like.dtype)
    if isinstance(operand, (int, torch.SymInt)):
        if -(2**31) <= operand < 2**31:
            dtype = torch.int32
        elif not like.is_floating_point():
            raise ValueError(
                f"{name} is {operand}, which exceeds int32; with an integer accumulator, write it "
                "as a float"
            )
    return like.new_full((), operand, dtype=dtype)
