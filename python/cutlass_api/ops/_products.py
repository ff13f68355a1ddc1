"""The operators: their schemas, and what they compute. The functions run for real tensors and for
FakeTensors.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cutlass_api._dtypes import FLOAT8, INT8, INTEGER
from cutlass_api.ops import _epilogues
from cutlass_api.ops._library import batch_of, launch, operator, product_shape, refuse
from cutlass_api.ops._scales import (
    check_factor,
    grouped_operands,
    mixed_operands,
    scalar_as_vector,
    scaled_operands,
)

#: The operators that this module defines.
OPS: Any = torch.ops.cutlass_api


def product_dtype(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The dtype of A @ B unless the caller passes one: that of ``cutlass_api.matmul``."""
    if a in INTEGER:
        return torch.int32 if b in INTEGER else b
    return torch.bfloat16 if a in FLOAT8 and b in FLOAT8 else a


def empty(A: Tensor, B: Tensor, shape: Sequence[int], out_dtype: torch.dtype | None) -> Tensor:
    """A row-major tensor for A @ B."""
    return A.new_empty(shape, dtype=out_dtype or product_dtype(A.dtype, B.dtype))


@operator("mm(Tensor A, Tensor B, *, ScalarType? out_dtype=None) -> Tensor")
def mm(
    A: Tensor, B: Tensor, *, out_dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """A @ B for A (M, K) and B (K, N)."""
    if out is None:
        out = empty(A, B, (A.shape[0], B.shape[-1]), out_dtype)
    return launch("mm", A, B, out=out)


@operator("bmm(Tensor A, Tensor B, *, ScalarType? out_dtype=None) -> Tensor")
def bmm(
    A: Tensor, B: Tensor, *, out_dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """A @ B for A (L, M, K) and B (L, K, N)."""
    check_batches("bmm", "A", A, "B", B)
    if out is None:
        out = empty(A, B, (A.shape[0], A.shape[1], B.shape[2]), out_dtype)
    return launch("bmm", A, B, out=out)


def check_batches(operator: str, a: str, A: Tensor, b: str, B: Tensor) -> None:
    if A.dim() != 3 or B.dim() != 3 or A.shape[0] != B.shape[0]:
        raise refuse(
            operator,
            f"{a} has shape {list(A.shape)} and {b} {list(B.shape)}; pass tensors of rank 3 and "
            "of one batch size, or call cutlass_api.matmul, which broadcasts",
        )


@operator(
    "addmm(Tensor input, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
)
def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2), in one launch. input broadcasts to (M, N)."""
    if out is None:
        out = empty(mat1, mat2, (mat1.shape[0], mat2.shape[-1]), None)
    return add_product("addmm", input, mat1, mat2, beta, alpha, out)


@operator(
    "baddbmm(Tensor input, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) "
    "-> Tensor"
)
def baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """beta * input + alpha * (batch1 @ batch2), in one launch. input broadcasts to (L, M, N)."""
    check_batches("baddbmm", "batch1", batch1, "batch2", batch2)
    if out is None:
        out = empty(batch1, batch2, (*batch1.shape[:2], batch2.shape[2]), None)
    return add_product("baddbmm", input, batch1, batch2, beta, alpha, out)


def add_product(
    operator: str,
    input: Tensor,
    A: Tensor,
    B: Tensor,
    beta: float,
    alpha: float,
    out: Tensor,
) -> Tensor:
    # beta = 0: input may be uninitialized memory, and is not read.
    if beta == 0:
        return launch(operator, A, B, alpha, out=out, epilogue=_epilogues.SCALED)
    if beta == 1 and alpha == 1:
        return launch(operator, A, B, input, out=out, epilogue=_epilogues.SUM)
    return launch(operator, A, B, input, beta, alpha, out=out, epilogue=_epilogues.SCALED_SUM)


@operator("linear(Tensor input, Tensor weight, Tensor? bias=None, str? activation=None) -> Tensor")
def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """activation(input @ weight.T + bias), in one launch.

    input (*, K), weight (N, K), bias (N,) or None, activation a name of
    ``cutlass_api.fusion.activation`` or None.
    """
    out = linear_output(input, weight) if out is None else out
    epilogue = None
    if bias is not None or activation is not None:
        epilogue = _epilogues.linear(activation, bias is not None)
    launch_linear("linear", input, weight, bias, matrix(out), epilogue)
    return out


@operator(
    "linear_forward(Tensor input, Tensor weight, Tensor? bias=None, str? activation=None) "
    "-> (Tensor, Tensor)",
    has_out=False,
)
def linear_forward(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None
) -> tuple[Tensor, Tensor]:
    """``linear`` where a gradient is needed: the output, and what its derivative depends on.

    The second output is input @ weight.T + bias, stored by the same launch, or empty if the
    derivative of the activation depends on the output alone.
    """
    if activation not in _epilogues.PREACTIVATION_DERIVATIVES:
        return linear(input, weight, bias, activation), input.new_empty(0)
    out, preactivation = linear_output(input, weight), linear_output(input, weight)
    epilogue = _epilogues.linear(activation, bias is not None, returns_preactivation=True)
    outs = (matrix(out), matrix(preactivation))
    launch_linear("linear", input, weight, bias, outs, epilogue)
    return out, preactivation


@operator("linear_weight_grad(Tensor grad, Tensor input) -> Tensor", has_out=False)
def linear_weight_grad(grad: Tensor, input: Tensor) -> Tensor:
    """The gradient of linear's weight: the sum of the outer products of the rows of grad (*, N) and
    input (*, K). The shape is (N, K).
    """
    if grad.dim() == 0 or grad.shape[:-1] != input.shape[:-1]:
        raise refuse(
            "linear_weight_grad",
            f"grad has shape {list(grad.shape)} and input {list(input.shape)}; pass tensors that "
            "agree in all dimensions but the last",
        )
    rows, factors = rows_of(grad).mT, rows_of(input)
    out = empty(rows, factors, (rows.shape[0], factors.shape[1]), None)
    return launch("linear_weight_grad", rows, factors, out=out)


def linear_output(input: Tensor, weight: Tensor) -> Tensor:
    if input.dim() == 0 or weight.dim() != 2:
        raise refuse(
            "linear",
            f"input has shape {list(input.shape)} and weight {list(weight.shape)}; pass an input "
            "(*, K) and a weight (N, K)",
        )
    return empty(input, weight, (*input.shape[:-1], weight.shape[0]), None)


def launch_linear(
    operator: str,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor | tuple[Tensor, ...],
    epilogue: str | None,
) -> None:
    operands = () if bias is None else (bias,)
    launch(operator, rows_of(input), weight.t(), *operands, out=out, epilogue=epilogue)


def rows_of(tensor: Tensor) -> Tensor:
    """All rows of a tensor as a matrix, a view if the strides permit."""
    if tensor.dim() == 2:
        return tensor
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def matrix(out: Tensor) -> Tensor:
    """All rows of an output as a matrix. Raises RuntimeError if they do not form a view."""
    return out if out.dim() == 2 else out.view(math.prod(out.shape[:-1]), out.shape[-1])


@operator(
    "grouped_mm(Tensor A, Tensor B, Tensor? offs=None, Tensor? bias=None, "
    "ScalarType? out_dtype=None) -> Tensor",
    has_out=False,
)
def grouped_mm(
    A: Tensor,
    B: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Rows offs[g-1] to offs[g] of A (TotalM, K) times B[g], for B (G, K, N) and int32 offs (G,).

    Rows of the output past offs[-1] are uninitialized, as those of ``torch._grouped_mm``.
    """
    if A.dim() != 2 or B.dim() != 3 or offs is None:
        raise refuse(
            "grouped_mm",
            f"A has rank {A.dim()}, B rank {B.dim()}, and offs is "
            f"{'missing' if offs is None else 'passed'}; pass A (TotalM, K), B (G, K, N) and offs "
            "(G,), or call torch._grouped_mm, which computes other forms",
        )
    if bias is not None:
        raise refuse("grouped_mm", "bias is not supported; add the rows of each group's bias")
    check_offsets("grouped_mm", offs, B.shape[0])
    out = empty(A, B, (A.shape[0], B.shape[2]), out_dtype)
    return launch("grouped_mm", A, B, out=out, offsets=offs)


def check_offsets(operator: str, offs: Tensor, groups: int) -> None:
    if offs.dim() != 1 or offs.shape[0] != groups:
        raise refuse(
            operator,
            f"offs has shape {list(offs.shape)}; pass the end row of each of {groups} groups",
        )


@operator("grouped_mm_weight_grad(Tensor A, Tensor grad, Tensor offs) -> Tensor", has_out=False)
def grouped_mm_weight_grad(A: Tensor, grad: Tensor, offs: Tensor) -> Tensor:
    """The gradient of grouped_mm's B: for each group, its rows of A, transposed, times its rows of
    grad. The shape is (G, K, N).
    """
    if offs.dtype is not torch.int32:
        raise refuse("grouped_mm_weight_grad", f"offs is {offs.dtype}; pass torch.int32")
    groups, k, n = offs.shape[0], A.shape[1], grad.shape[1]
    out = A.new_zeros(groups, k, n)
    if isinstance(A, FakeTensor) or A.is_meta:
        if groups > 0:  # check a group of all rows
            launch("grouped_mm_weight_grad", A.mT, grad, out=out[0])
        return out
    # torch's kernel reads 16-byte rows of bfloat16, and the host need not know the offsets.
    if A.is_cuda and A.dtype is grad.dtype is torch.bfloat16 and k % 8 == n % 8 == 0:
        result: Tensor = torch.ops.aten._grouped_mm(A.mT, grad.contiguous(), offs=offs)
        return result
    start = 0
    for group, end in enumerate(offs.tolist()):
        if end > start:
            rows = slice(start, end)
            launch("grouped_mm_weight_grad", A[rows].mT, grad[rows], out=out[group])
        start = end
    return out


@operator("int_mm(Tensor A, Tensor B) -> Tensor")
def int_mm(A: Tensor, B: Tensor, *, out: Tensor | None = None) -> Tensor:
    """A @ B in int32, for A (M, K) or (L, M, K) and B (K, N) or (L, K, N) of int8 or uint8."""
    check_bytes("int_mm", A, B)
    shape = product_shape("int_mm", A, B)
    if out is None:
        out = A.new_empty(shape, dtype=torch.int32)
    return launch("int_mm", A, B, out=out)


def check_bytes(operator: str, A: Tensor, B: Tensor) -> None:
    if A.dtype not in INT8 or B.dtype not in INT8:
        raise refuse(
            operator,
            f"A is {A.dtype} and B {B.dtype}; pass int8 or uint8, or call cutlass_api.matmul",
        )


@operator(
    "mixed_mm(Tensor A, Tensor B, Tensor? scale=None, Tensor? zero_point=None, *, "
    "ScalarType? out_dtype=None) -> Tensor"
)
def mixed_mm(
    A: Tensor,
    B: Tensor,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A @ B of one operand in float16 or bfloat16, and one in int8 or uint8 that counts as
    (operand - zero_point) * scale.

    A (M, K) or (L, M, K), B (K, N) or (L, K, N). scale: None, one factor, one per column, (N,) or
    (1, N), one per row, (M, 1), or one per group along K of the integers: (K / group, N) of B,
    (M, K / group) of A. zero_point: None, or of the shape of scale, or one per column of B (row of
    A). Matrices of scales and zero points may have the batch dimension. The output has the dtype
    of the float operand.
    """
    shape = product_shape("mixed_mm", A, B)
    operands, blocks = mixed_operands(A, B, scale, zero_point)
    if out is None:
        out = empty(A, B, shape, out_dtype)
    if not operands:
        return launch("mixed_mm", A, B, out=out)
    epilogue = _epilogues.scaled(*operands, blocks=blocks)
    return launch("mixed_mm", A, B, *operands.values(), out=out, epilogue=epilogue)


@operator(
    "scaled_mm(Tensor A, Tensor B, Tensor scale_a, Tensor scale_b, Tensor? bias=None, "
    "Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor",
)
def scaled_mm(
    A: Tensor,
    B: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """(A * scale_a) @ (B * scale_b) + bias, of float8 A (M, K) or (L, M, K), B (K, N) or (L, K, N).

    scale_a: one float32 factor, one per row, (M, 1), or one per block of 1 x 128 or 128 x 128
    elements of A. scale_b: one, one per column, (1, N), or one per block of 128 x 1 or 128 x 128
    elements of B. Either in float8_e8m0fnu: one per 32 elements along K, as a matrix, or swizzled,
    as a vector. Matrices of scales may have the batch dimension. scale_result: a factor of an
    output in float8. out_dtype: by default that of A. use_fast_accum: whether sums may keep 14
    bits.
    """
    check_float8("scaled_mm", A, B)
    shape = product_shape("scaled_mm", A, B)
    if out is None:
        out = A.new_empty(shape, dtype=out_dtype)
    operands, blocks = scaled_operands("scaled_mm", A, B, scale_a, scale_b, bias)
    if scale_result is not None:
        check_factor("scaled_mm", "scale_result", scale_result, A, batch_of(A, B))
        if out.dtype in FLOAT8:
            operands["scale_result"] = scalar_as_vector(scale_result)
    epilogue = _epilogues.scaled(*operands, blocks=blocks)
    values = operands.values()
    return launch("scaled_mm", A, B, *values, out=out, epilogue=epilogue, fast_sums=use_fast_accum)


def check_float8(operator: str, A: Tensor, B: Tensor) -> None:
    if A.dtype not in FLOAT8 or B.dtype not in FLOAT8:
        raise refuse(operator, f"A is {A.dtype} and B {B.dtype}; pass float8_e4m3fn or float8_e5m2")


@operator(
    "scaled_grouped_mm(Tensor A, Tensor B, Tensor scale_a, Tensor scale_b, Tensor offs, "
    "ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor",
    has_out=False,
)
def scaled_grouped_mm(
    A: Tensor,
    B: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    offs: Tensor,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """Rows offs[g-1] to offs[g] of A * scale_a times (B * scale_b)[g], of float8 A (TotalM, K) and
    B (G, K, N), and int32 offs (G,).

    scale_a: as of scaled_mm, also (TotalM,). scale_b: one, one per group, (G,) or (G, 1, 1), one
    per column, (G, 1, N) or (G, N), or one per block of 128 x 1 or 128 x 128 elements of each
    B[g]. use_fast_accum: as of scaled_mm. Rows of the output past offs[-1] are uninitialized.
    """
    check_float8("scaled_grouped_mm", A, B)
    if A.dim() != 2 or B.dim() != 3:
        raise refuse(
            "scaled_grouped_mm",
            f"A has rank {A.dim()} and B rank {B.dim()}; pass A (TotalM, K) and B (G, K, N)",
        )
    check_offsets("scaled_grouped_mm", offs, B.shape[0])
    operands, blocks = grouped_operands("scaled_grouped_mm", A, B, scale_a, scale_b)
    out = A.new_empty((A.shape[0], B.shape[2]), dtype=out_dtype)
    epilogue = _epilogues.scaled(*operands, blocks=blocks)
    return launch(
        *("scaled_grouped_mm", A, B, *operands.values()),
        out=out,
        epilogue=epilogue,
        offsets=offs,
        fast_sums=use_fast_accum,
    )


@operator(
    "mm_epilogue(Tensor A, Tensor B, Tensor[] operands, str epilogue, *, "
    "ScalarType? out_dtype=None) -> Tensor"
)
def mm_epilogue(
    A: Tensor,
    B: Tensor,
    operands: Sequence[Tensor],
    epilogue: str,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """D = epilogue(A @ B, *operands), in one launch.

    A (M, K) or (L, M, K), B (K, N) or (L, K, N); a batch of 1 broadcasts. epilogue: the source of
    an epilogue function (:mod:`cutlass_api.fusion`) that returns D. The operands follow the order
    of its parameters and broadcast to D.
    """
    if out is None:
        out = empty(A, B, product_shape("mm_epilogue", A, B), out_dtype)
    try:
        return launch("mm_epilogue", A, B, *operands, out=out, epilogue=epilogue)
    except (TypeError, ValueError):
        _epilogues.check_outputs("mm_epilogue", epilogue)
        raise
