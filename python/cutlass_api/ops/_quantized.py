"""``int_mm``, ``mixed_mm``, ``scaled_mm`` and ``scaled_grouped_mm``: products of 8-bit operands."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from cutlass_api._dtypes import FLOAT8, INT8
from cutlass_api.ops import _dense, _epilogues, _labels, _vmap
from cutlass_api.ops._grouped import grouped_flops, offsets_of
from cutlass_api.ops._labels import SUMS, Blocks, Labels, Product, Rule, Spec, broadcast, dtype_of
from cutlass_api.ops._library import batch_of, check_k, empty, launch, product_shape, refuse
from cutlass_api.ops._operator import Call, Gradient, Lowering, NoDerivative, Operator
from cutlass_api.ops._scales import (
    add_bias,
    check_factor,
    find_scales,
    grouped_operands,
    layout_along_k,
    mixed_layout,
    mixed_operands,
    scalar_as_vector,
    scaled_groups_along_k,
    scaled_operands,
)
from cutlass_api.weights._scales import (
    BLOCK,
    ROW,
    TENSOR,
    WIDE_BLOCK,
    find,
    is_widened,
    of_float8,
    oriented,
    shape_of_one,
)


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


def mixed_mm(
    A: Tensor,
    B: Tensor,
    scale: Tensor | None = None,
    zero_point: Tensor | None = None,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """activation(A @ B + bias) of one operand in float16 or bfloat16, and one in int8 or uint8 that
    counts as (operand - zero_point) * scale.

    A (M, K) or (L, M, K), B (K, N) or (L, K, N). scale: None, one factor, one per column, (N,) or
    (1, N), one per row, (M, 1), or one per group along K of the integers: (K / group, N) of B,
    (M, K / group) of A. Integers of one row or column: no matrix of scales for the float operand,
    which would look like groups. zero_point: None, or of the shape of scale, or one per column of B
    (row of A). Matrices of scales and zero points may have the batch dimension. The output has the
    dtype of the float operand.
    """
    shape = product_shape("mixed_mm", A, B)
    operands, blocks = mixed_operands(A, B, scale, zero_point)
    operands = add_bias("mixed_mm", operands, bias, B.shape[-1], batch_of(A, B))
    if out is None:
        out = empty(A, B, shape, out_dtype)
    if not operands and activation is None:
        return launch("mixed_mm", A, B, out=out)
    epilogue = scaled_epilogue("mixed_mm", operands, blocks, activation)
    return launch("mixed_mm", A, B, *operands.values(), out=out, epilogue=epilogue)


def scaled_mm(
    A: Tensor,
    B: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
    activation: str | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """activation((A * scale_a) @ (B * scale_b) + bias), of float8 A (M, K) or (L, M, K), B (K, N)
    or (L, K, N).

    scale_a: one float32 factor, one per row, (M, 1), or one per block of 1 x 128 or 128 x 128
    elements of A. scale_b: one, one per column, (1, N), or one per block of 128 x 1 or 128 x 128
    elements of B. Either in float8_e8m0fnu: one per 32 elements along K, as a matrix, or swizzled,
    as a vector; or one per block of 128, which is converted to float32. Matrices of scales may have
    the batch dimension. scale_result: a factor of an output in float8. out_dtype: by default that
    of A. use_fast_accum: whether sums may keep 14 bits.
    """
    check_float8("scaled_mm", A, B)
    shape = product_shape("scaled_mm", A, B)
    if out is None:
        out = A.new_empty(shape, dtype=out_dtype)
    operands, blocks = scaled_operands("scaled_mm", A, B, scale_a, scale_b, bias)
    if scale_result is not None:
        check_factor("scaled_mm", "scale_result", scale_result, A, batch_of(A, B))
        if out.dtype in FLOAT8 and operands:
            operands["scale_result"] = scalar_as_vector(scale_result)
    epilogue = scaled_epilogue("scaled_mm", operands, blocks, activation)
    values = operands.values()
    return launch("scaled_mm", A, B, *values, out=out, epilogue=epilogue, fast_sums=use_fast_accum)


def scaled_epilogue(
    operator: str,
    operands: Collection[str],
    blocks: Mapping[str, str],
    activation: str | None,
    bounds: tuple[int, int] | None = None,
) -> str:
    if activation is not None:
        activation = _epilogues.known_activation(operator, activation)
    return _epilogues.scaled(*operands, blocks=blocks, activation=activation, bounds=bounds)


def check_float8(operator: str, A: Tensor, B: Tensor) -> None:
    if A.dtype not in FLOAT8 or B.dtype not in FLOAT8:
        raise refuse(operator, f"A is {A.dtype} and B {B.dtype}; pass float8_e4m3fn or float8_e5m2")


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
    B (G, K, N), and offs (G,), int32 or int64.

    scale_a: as of scaled_mm, also (TotalM,). scale_b: one, one per group, (G,) or (G, 1, 1), one
    per column, (G, 1, N) or (G, N), or one per block of 128 x 1 or 128 x 128 elements of each
    B[g]. use_fast_accum: as of scaled_mm. Rows of the output past offs[-1] are uninitialized.

    Or for A (M, TotalK) and B (TotalK, N): a matrix of the output (G, M, N) for each group, the
    product of A[:, offs[g-1]:offs[g]] and B[offs[g-1]:offs[g]]. scale_a: one, one per group, (G,)
    or (G, 1, 1), one per group and row, (G, M, 1) or (G * M,), or one per block of 1 x 128 or
    128 x 128 elements of A. scale_b: the same of B's columns, (G, 1, N) or (G * N,).
    """
    check_float8("scaled_grouped_mm", A, B)
    if A.dim() != 2 or B.dim() not in (2, 3):
        raise refuse(
            "scaled_grouped_mm",
            f"A has rank {A.dim()} and B rank {B.dim()}; pass A (TotalM, K) and B (G, K, N), or "
            "A (M, TotalK) and B (TotalK, N)",
        )
    check_k("scaled_grouped_mm", A, B)
    offs = offsets_of("scaled_grouped_mm", offs, B.shape[0] if B.dim() == 3 else None)
    if B.dim() == 3:
        operands, blocks = grouped_operands("scaled_grouped_mm", A, B, scale_a, scale_b)
        out = A.new_empty((A.shape[0], B.shape[2]), dtype=out_dtype)
    else:
        groups = offs.shape[0]
        operands, blocks = scaled_groups_along_k(
            "scaled_grouped_mm", A, B, scale_a, scale_b, groups
        )
        out = A.new_empty((groups, A.shape[0], B.shape[1]), dtype=out_dtype)
    epilogue = _epilogues.scaled(*operands, blocks=blocks)
    return launch(
        *("scaled_grouped_mm", A, B, *operands.values()),
        out=out,
        epilogue=epilogue,
        offsets=offs,
        fast_sums=use_fast_accum,
    )


# ---- rules ---------------------------------------------------------------------------------------


def save_mixed(ctx: Any, call: Call, output: Any) -> None:
    A, B, scale = call.A, call.B, call.scale
    has_groups = scale is not None and mixed_operands(A, B, scale, None)[1]
    if call.zero_point is not None or has_groups:
        raise NoDerivative(
            "dequantize the integers and call cutlass_api.matmul",
            " with scales of groups or zero points",
        )
    if call.activation not in (None, "identity"):
        raise NoDerivative("apply the activation with torch", " with an activation")
    if scale is not None and scale.requires_grad:
        raise NoDerivative("multiply the product by it with torch", names=["scale"])
    ctx.save_for_backward(A, B, scale)
    if call.bias is not None:
        ctx.bias_dtype, ctx.bias_shape = call.bias.dtype, call.bias.shape


def mixed_backward(ctx: Any, needs: Call, grad: Tensor) -> dict[str, Any]:
    A, B, scale = ctx.saved_tensors
    of_bias = {}
    if needs.bias:
        of_bias["bias"] = grad.sum_to_size(ctx.bias_shape).to(ctx.bias_dtype)
    grad = grad if scale is None else (grad * scale).to(grad.dtype)
    return of_bias | _dense.named_factors(
        needs, *_dense.factor_gradients(needs.factors, grad, A, B)
    )


def scaled_examples(call: Call, dims: Call, size: int) -> _vmap.Result:
    """The rule of products. A bias for each example is added to one product."""
    dtype = call.out_dtype or call.A.dtype
    mapped = [name for name in call.operator.tensors if getattr(dims, name) is not None]
    # torch rounds to float8 otherwise, and would differentiate the sum.
    if mapped != ["bias"] or dtype in FLOAT8 or call.bias.requires_grad:
        return _vmap.product(call, dims, size)
    bias = _vmap.front(call.bias, dims.bias)
    one = bias.new_empty(bias.shape[1:])
    add_bias("scaled_mm", {}, one, call.B.shape[-1], batch_of(call.A, call.B))
    out = call.replace(bias=None, out_dtype=torch.float32).run()
    return (out + _vmap.front(bias, 0, out.dim()).float()).to(dtype), 0


def mixed_lowering(call: Call) -> Lowering | None:
    if call.zero_point is not None:  # it may repeat along K: the operator expands it
        return None
    named, blocks = mixed_operands(call.A, call.B, call.scale, None)
    operands = [*(["scale"] if named else []), *(["bias"] if call.bias is not None else [])]
    if not operands and call.activation is None:
        return Lowering(out_dtype=call.out_dtype)
    names = [*named, *operands[len(named) :]]
    epilogue = scaled_epilogue("mixed_mm", names, blocks, call.activation)
    return Lowering(operands, epilogue, call.out_dtype)


def scaled_lowering(call: Call) -> Lowering | None:
    batch = batch_of(call.A, call.B)
    for factor, scale, matrix in (("a", call.scale_a, call.A), ("b", call.scale_b, call.B)):
        if is_widened(find_scales("scaled_mm", factor, scale, matrix, call.A, batch)):
            return None  # the operator converts the scales
    dtype = call.out_dtype or call.A.dtype
    named, blocks = scaled_operands("scaled_mm", call.A, call.B, call.scale_a, call.scale_b, None)
    names = [*named, *(["bias"] if call.bias is not None else [])]
    if call.scale_result is not None and dtype in FLOAT8 and names:
        names.append("scale_result")
    epilogue = scaled_epilogue("scaled_mm", names, blocks, call.activation)
    return Lowering(names, epilogue, dtype, call.use_fast_accum)


def scaled_grouped_lowering(call: Call) -> Lowering | None:
    if call.B.dim() == 2:
        return None
    named, blocks = grouped_operands(
        "scaled_grouped_mm", call.A, call.B, call.scale_a, call.scale_b
    )
    if not named:  # K = 0: the operator drops the scales
        return None
    epilogue = _epilogues.scaled(*named, blocks=blocks)
    dtype = call.out_dtype or call.A.dtype
    return Lowering(list(named), epilogue, dtype, call.use_fast_accum, "offs")


def mixed_labels(call: Call) -> Rule:
    labels = Product(call)
    m, n, depth = (labels.extents[name] for name in ("m", "n", "k"))
    is_a = dtype_of(call.A) in INT8
    inputs, blocks = labels.inputs, {}
    if call.bias is not None:
        inputs["bias"] = broadcast(call.bias, labels.out)
    for name, operand in call.others.items():
        if name == "bias":
            continue
        one = shape_of_one(operand, labels.batch)
        own, groups = mixed_layout(one, m, n, depth, is_a) or ((None,) * len(one), None)
        if groups is not None:
            blocks["k"] = groups.depth
        inputs[name] = labels.behind_batch(operand, own)
    factor = call.operator.factors[int(is_a)]
    is_linear = call.activation in (None, "identity")
    return Rule(
        [labels.out],
        inputs,
        sums=SUMS if is_linear else (),
        factors=[factor] if is_linear else (),
        addends=["bias"] if call.bias is not None else [],
        blocks=blocks,
    )


def scaled_labels(call: Call) -> Rule:
    labels, blocks = Product(call), Blocks()
    inputs = labels.inputs
    for factor, name in (("a", "scale_a"), ("b", "scale_b")):
        scale = getattr(call, name)
        own = scale_labels(labels.extents, factor, scale, labels.batch, blocks)
        inputs[name] = labels.behind_batch(scale, own)
    if call.bias is not None:
        inputs["bias"] = broadcast(call.bias, labels.out)
    return Rule(
        [labels.out],
        inputs,
        sums=sums_of(call) if call.activation in (None, "identity") else (),
        addends=["bias"] if call.bias is not None else [],
        blocks=blocks,
    )


def sums_of(call: Call) -> tuple[str, ...]:
    """What a scaled product sums over. Partial sums in float8 would be rounded."""
    return SUMS if (call.out_dtype or dtype_of(call.A)) not in FLOAT8 else ()


def scale_labels(
    extents: dict[str, Any], factor: str, scale: Spec, batch: Any, blocks: Blocks
) -> Labels:
    """The labels of the scales of a factor of one product. Adds the extents of their blocks."""
    is_a, outer = factor == "a", "m" if factor == "a" else "n"
    rank = len(shape_of_one(scale, batch))
    served = of_float8(dtype_of(scale))
    found = find(served, scale, batch, extents[outer], extents["k"], is_a)
    if found is None or found == TENSOR:
        return (None,) * rank
    return blocks.add(found, outer, "k", is_a, rank)


def scaled_grouped_labels(call: Call) -> Rule:
    if len(call.B.shape) == 2:
        return groups_along_k_labels(call)
    blocks = Blocks()
    inputs: dict[Any, Labels] = {"A": ("m", "k"), "B": ("g", "k", "n"), "offs": ("g",)}
    extents = _labels.extents_of({"A": call.A, "B": call.B, "offs": call.offs}, inputs)
    rows = tuple(call.scale_a.shape)
    if rows == (extents["m"],):
        inputs["scale_a"] = ("m",)
    else:
        inputs["scale_a"] = scale_labels(extents, "a", call.scale_a, None, blocks)
    shape = tuple(call.scale_b.shape)
    if len(shape) == 3 and shape[1:] != (1, 1):
        inputs["scale_b"] = ("g", None, "n") if shape[1] == 1 else ("g", "k", "n")
        if shape[1] != 1:
            blocks.require("k", BLOCK.depth)
        if shape[2] != extents["n"]:
            blocks.require("n", WIDE_BLOCK.extent)
    return Rule([("m", "n")], inputs, whole=["m"], sums=sums_of(call), blocks=blocks)


def groups_along_k_labels(call: Call) -> Rule:
    # Offsets count the K of all shards, so that `k` stays whole.
    blocks = Blocks()
    inputs: dict[Any, Labels] = {"A": ("m", "k"), "B": ("k", "n"), "offs": ("g",)}
    extents = _labels.extents_of({"A": call.A, "B": call.B, "offs": call.offs}, inputs)
    for outer, name, is_a in (("m", "scale_a", True), ("n", "scale_b", False)):
        scale, (deep, groups) = getattr(call, name), (extents["k"], extents["g"])
        shape, rank = tuple(scale.shape), len(scale.shape)
        inputs[name] = (None,) * rank
        if math.prod(shape) == 1:
            continue
        of = (extents[outer], deep, is_a, groups)
        found = layout_along_k("scaled_grouped_mm", name, scale, *of)
        if found == ROW and rank == 1:  # a shard of the outer dimension has no part of the vector
            blocks.require(outer, 0)
        elif found == ROW:
            inputs[name] = ("g", *oriented(outer, None, is_a))
        elif found != TENSOR:
            inputs[name] = blocks.add(found, outer, "k", is_a, rank)
    return Rule([("g", "m", "n")], inputs, whole=["g"], blocks=blocks)


OPERATORS = (
    _dense.record(
        "int_mm(Tensor A, Tensor B) -> Tensor",
        int_mm,
        gradient="cast the operands and call cutlass_api.matmul",
        autocast=(),
        summary="int8 or uint8 to int32",
    ),
    _dense.record(
        "mixed_mm(Tensor A, Tensor B, Tensor? scale=None, Tensor? zero_point=None, "
        "Tensor? bias=None, str? activation=None, *, ScalarType? out_dtype=None) -> Tensor",
        mixed_mm,
        gradient=Gradient(save_mixed, mixed_backward),
        sharding=mixed_labels,
        lowering=mixed_lowering,
        summary="float16 or bfloat16 times int8 or uint8, with scales and zero points",
    ),
    _dense.record(
        "scaled_mm(Tensor A, Tensor B, Tensor scale_a, Tensor scale_b, Tensor? bias=None, "
        "Tensor? scale_result=None, ScalarType? out_dtype=None, bool use_fast_accum=False, "
        "str? activation=None) -> Tensor",
        scaled_mm,
        gradient="cast the operands and call cutlass_api.matmul",
        sharding=scaled_labels,
        vmap=scaled_examples,
        autocast=(),
        lowering=scaled_lowering,
        summary="float8 with scales of tensors, rows and columns, or blocks",
    ),
    Operator(
        schema="scaled_grouped_mm(Tensor A, Tensor B, Tensor scale_a, Tensor scale_b, Tensor offs, "
        "ScalarType? out_dtype=None, bool use_fast_accum=False) -> Tensor",
        compute=scaled_grouped_mm,
        factors=("A", "B"),
        gradient="cast the operands and call torch.ops.cutlass_api.grouped_mm",
        vmap=_vmap.one_by_one,
        flops=grouped_flops,
        sharding=scaled_grouped_labels,
        has_out=False,
        lowering=scaled_grouped_lowering,
        summary="the same for groups of A's rows, each times its own B, or for groups along K",
    ),
)
