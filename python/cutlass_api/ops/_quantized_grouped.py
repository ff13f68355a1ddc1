"""``quantized_grouped_mm``: groups of rows times a stack of weights of ``cutlass_api.weights``."""

from typing import Any

from torch import Tensor

from cutlass_api._dtypes import FLOATS
from cutlass_api.ops import _epilogues, _vmap
from cutlass_api.ops._grouped import offsets_of
from cutlass_api.ops._labels import SUMS, Labels, Rule
from cutlass_api.ops._library import launch, refuse
from cutlass_api.ops._operator import OPS, Call, Gradient, Operator
from cutlass_api.ops._quantized_linear import (
    any_weight_of,
    check_factor,
    check_fields,
    factor_of,
    field_labels,
)
from cutlass_api.ops._scales import scales_of_sums
from cutlass_api.weights._classes import Weight
from cutlass_api.weights._formats import Fields


def quantized_grouped_mm(
    A: Tensor,
    values: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    factor: Tensor | None,
    format: str,
    offs: Tensor,
    zero_rest: bool = False,
) -> Tensor:
    """Rows offs[g-1] to offs[g] of A (TotalM, K) times weight[g].T, for a stack of weights
    (G, N, K) and offs (G,), int32 or int64.

    A is float16 or bfloat16. format: the name of the class of ``cutlass_api.weights`` whose fields
    follow A. Values of 4 bits that are not repacked are repacked in each call. zero_rest: as of
    grouped_mm. One launch: on compute capability 9.0 on tensor cores, elsewhere by ``simt``.
    """
    name = "quantized_grouped_mm"
    stack = stack_of(name, values, scales, zeros, factor, format)
    offs = check_operands(name, "A", A, stack, stack.shape[2], offs)
    out = A.new_empty((A.shape[0], stack.shape[1]))
    is_sum_of_nothing = stack.shape[2] == 0
    if zero_rest or is_sum_of_nothing:
        out.zero_()
    if is_sum_of_nothing:
        return out
    factor_b = factor_of(stack)
    operands, blocks = scales_of_sums(A, factor_b.operands, factor_b.blocks)
    return launch(
        *(name, A, factor_b.values, *operands.values()),
        out=out,
        epilogue=_epilogues.scaled(*operands, blocks=blocks),
        offsets=offs,
        element=factor_b.element,
    )


def quantized_grouped_mm_grad(
    grad: Tensor,
    values: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    factor: Tensor | None,
    format: str,
    offs: Tensor,
) -> Tensor:
    """Rows of grad (TotalM, N) times weight[g]: the gradient of A. Rows past the last group are
    zeros.
    """
    name = "quantized_grouped_mm_grad"
    stack = stack_of(name, values, scales, zeros, factor, format)
    offs = check_operands(name, "grad", grad, stack, stack.shape[1], offs, FLOATS)
    out = grad.new_zeros((grad.shape[0], stack.shape[2]))
    return launch(name, grad, stack.dequantize(grad.dtype), out=out, offsets=offs)


def stack_of(operator: str, *fields_and_format: Any) -> Weight:
    """The stack of weights that has these fields."""
    stack = any_weight_of(operator, *fields_and_format)
    if not stack.is_stack:
        raise refuse(
            operator,
            f"the weight is a matrix {list(stack.shape)}; pass the fields of a stack of weights, "
            "one for each group",
        )
    return stack


def check_operands(
    operator: str,
    name: str,
    rows: Tensor,
    stack: Weight,
    depth: int,
    offs: Tensor,
    served: Any = None,
) -> Tensor:
    """Refuses rows and offsets that do not fit a stack. Returns the offsets in int32."""
    check_factor(operator, name, rows, stack, depth, *([] if served is None else [served]))
    if rows.dim() != 2:
        raise refuse(
            operator, f"{name} has shape {list(rows.shape)}; pass (TotalM, {depth}), all rows"
        )
    return offsets_of(operator, offs, stack.shape[0])


# ---- rules ---------------------------------------------------------------------------------------


def save(ctx: Any, call: Call, output: Tensor) -> None:
    check_fields(call, "grouped_mm")
    ctx.format = call.format
    ctx.save_for_backward(*(getattr(call, name) for name in Fields._fields), call.offs)


def backward(ctx: Any, needs: Call, grad: Tensor) -> dict[str, Any]:
    *fields, offs = ctx.saved_tensors
    return {"A": OPS.quantized_grouped_mm_grad(grad, *fields, ctx.format, offs)}


def gradient_backward(ctx: Any, needs: Call, of_a: Tensor) -> dict[str, Any]:
    *fields, offs = ctx.saved_tensors
    return {"grad": OPS.quantized_grouped_mm(of_a, *fields, ctx.format, offs, zero_rest=True)}


def flops(call: Call) -> Any:
    """Each row of A (TotalM, K) times one matrix of (G, N, K)."""
    rows, depth = call.A
    return 2 * rows * depth * call.values[1]


def gradient_flops(call: Call) -> Any:
    rows, columns = call.grad
    return 2 * rows * columns * call.out_shape[-1]


def labels(call: Call) -> Rule:
    # Offsets count the rows of all shards, so that `m` and `g` stay whole.
    fields, blocks = field_labels(call)
    inputs: dict[Any, Labels] = {"A": ("m", "k"), **fields, "offs": ("g",)}
    return Rule([("m", "n")], inputs, whole=["m"], sums=SUMS, factors=["A"], blocks=blocks)


def gradient_labels(call: Call) -> Rule:
    fields, blocks = field_labels(call, counts_values=True)
    inputs: dict[Any, Labels] = {"grad": ("m", "n"), **fields, "offs": ("g",)}
    return Rule([("m", "k")], inputs, whole=["m"], sums=["n"], factors=["grad"], blocks=blocks)


FIELDS = "Tensor values, Tensor scales, Tensor? zeros, Tensor? factor, str format, Tensor offs"

OPERATORS = (
    Operator(
        schema=f"quantized_grouped_mm(Tensor A, {FIELDS}, bool zero_rest=False) -> Tensor",
        compute=quantized_grouped_mm,
        gradient=Gradient(save, backward),
        vmap=_vmap.one_by_one,  # as of grouped_mm
        flops=flops,
        sharding=labels,
        autocast=("A",),
        has_out=False,
        summary="`grouped_mm` of float16 or bfloat16 and a stack of "
        "[weights](four_bits.md#experts) of 4 or 8 bits",
    ),
    Operator(
        schema=f"quantized_grouped_mm_grad(Tensor grad, {FIELDS}) -> Tensor",
        compute=quantized_grouped_mm_grad,
        gradient=Gradient(save, gradient_backward),
        vmap=_vmap.one_by_one,
        flops=gradient_flops,
        sharding=gradient_labels,
        autocast=("grad",),
        has_out=False,
    ),
)
