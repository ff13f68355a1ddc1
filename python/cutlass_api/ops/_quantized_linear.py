"""``quantized_linear``: 16 bits times a weight of ``cutlass_api.weights``, and its gradient."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cutlass_api._dtypes import E8M0, FLOATS, HALF
from cutlass_api.ops import _epilogues, _vmap
from cutlass_api.ops._evaluate import DERIVATIVES
from cutlass_api.ops._labels import SUMS, Blocks, Labels, Rule, broadcast, dtype_of
from cutlass_api.ops._library import launch, refuse, rows_of
from cutlass_api.ops._linear import bias_of_rows, has_rows, linear, matrix
from cutlass_api.ops._operator import OPS, Call, Gradient, Lowering, NoDerivative, Operator
from cutlass_api.ops._scales import scales_of_sums
from cutlass_api.weights._classes import CLASSES, Weight
from cutlass_api.weights._formats import Fields, Format
from cutlass_api.weights._scales import TENSOR

#: The arguments that hold the fields of a weight.
FIELDS = (*Fields._fields, "permutation")
#: Kernels read four words of 8 elements at once, so that a shard of K has whole ones.
WORDS = 32
#: The format of fields that fit, by the name of the class, and the names, shapes, dtypes and
#: devices of the fields: to check them takes longer than a launch.
CHECKED: dict[Any, Format] = {}
MOST_CHECKED = 4096


def quantized_linear(
    input: Tensor,
    values: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    factor: Tensor | None,
    permutation: Tensor | None,
    format: str,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    out: Tensor | None = None,
    kernel: str | None = None,
) -> Tensor:
    """activation(input @ weight.T + bias), in one launch.

    input (*, K) in float16 or bfloat16. format: the name of the class of ``cutlass_api.weights``
    whose fields follow the input. Values of 4 bits that are not repacked are repacked in each call.
    bias and activation: as of ``linear``. kernel: as of ``launch``.
    """
    name = "quantized_linear"
    weight = weight_of(name, values, scales, zeros, factor, permutation, format)
    n, k = weight.shape
    check_factor(name, "input", input, weight, k)
    shape = (*input.shape[:-1], n)
    if out is None:
        out = input.new_empty(shape)
    elif out.shape != shape:
        raise refuse(name, f"out has shape {list(out.shape)}; pass shape {list(shape)}")
    elif not has_rows(out):
        fields = (values, scales, zeros, factor, permutation)
        whole = out.new_empty(shape)
        return out.copy_(quantized_linear(input, *fields, format, bias, activation, out=whole))
    _epilogues.known_activation(name, activation)
    if bias is not None:
        bias = bias_of_rows(name, bias, shape)
    rows, target = rows_of(input), matrix(out)
    if permutation is not None:
        rows = rows.index_select(1, permutation)
    factor_b = factor_of(weight)
    operands, blocks = scales_of_sums(rows, factor_b.operands, factor_b.blocks)
    if bias is not None:
        operands["bias"] = bias
    launch(
        *(name, rows, factor_b.values, *operands.values()),
        out=target,
        epilogue=_epilogues.scaled(*operands, blocks=blocks, activation=activation),
        element=factor_b.element,
        kernel=kernel,
    )
    return out


class Factor(NamedTuple):
    """A weight as B of ``launch``: the operand, those of ``_epilogues.scaled`` and its blocks, and
    the type of elements of 4 bits.
    """

    values: Tensor
    operands: dict[str, Tensor]
    blocks: dict[str, str]
    element: str | None


def factor_of(weight: Weight) -> Factor:
    """Repacks values of 4 bits that are not."""
    format, repacked = weight.format, weight.format.repack(weight.fields)
    operands, blocks = format.of_product(repacked)
    if format.packing > 1:
        values = repacked.values.flatten(-2) if weight.is_stack else repacked.values
        return Factor(values, operands, blocks, format.kernel_element)
    return Factor(repacked.values.mT, operands, blocks, None)


def quantized_linear_grad(
    grad: Tensor,
    values: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    factor: Tensor | None,
    permutation: Tensor | None,
    format: str,
) -> Tensor:
    """grad @ weight, the gradient of the input (*, K), from that of input @ weight.T (*, N)."""
    name = "quantized_linear_grad"
    weight = weight_of(name, values, scales, zeros, factor, permutation, format)
    check_factor(name, "grad", grad, weight, weight.shape[0], FLOATS)
    return linear(grad, weight.dequantize(grad.dtype).t())


def weight_of(operator: str, *fields_and_format: Any) -> Weight:
    """The weight (N, K) that has these fields."""
    weight = any_weight_of(operator, *fields_and_format)
    if weight.is_stack:
        raise refuse(
            operator,
            f"the weight is a stack {list(weight.shape)}; pass one of its matrices, or call "
            "cutlass_api.quantized_grouped_mm",
        )
    return weight


def any_weight_of(operator: str, *fields_and_format: Any) -> Weight:
    """The weight, or the stack of weights, that has these fields. Those of a stack are without a
    permutation.
    """
    *fields, format = fields_and_format
    if format not in CLASSES:
        raise refuse(operator, f"format is {format!r}; pass one of {', '.join(CLASSES)}")
    pairs = zip(FIELDS, fields, strict=False)
    passed = {name: x.contiguous() for name, x in pairs if x is not None}
    key = None
    if not isinstance(passed["values"], FakeTensor):  # symbolic sizes have no hash
        described = ((name, x.shape, x.dtype, x.device) for name, x in passed.items())
        key = (format, *described)
        if key in CHECKED:
            return CLASSES[format]._of_checked(passed, CHECKED[key])
    try:
        weight = CLASSES[format].from_tensors(passed)
    except ValueError as error:
        raise refuse(operator, str(error)) from None
    if key is not None and len(CHECKED) < MOST_CHECKED:
        CHECKED[key] = weight.format
    return weight


def check_factor(
    operator: str,
    name: str,
    factor: Tensor,
    weight: Weight,
    depth: int,
    served: Sequence[torch.dtype] = HALF,
) -> None:
    """Refuses a factor of other shapes, dtypes and devices than those for a weight."""
    if factor.dtype not in served:
        dtypes = " or ".join(map(str, served))
        raise refuse(operator, f"{name} is {factor.dtype}; pass {dtypes}")
    if weight.format.scales.dtype is E8M0 and factor.dtype is torch.float16:
        raise refuse(
            operator,
            f"{name} is torch.float16, whose range the scales of {type(weight).__name__} exceed; "
            "pass torch.bfloat16",
        )
    if factor.dim() == 0 or factor.shape[-1] != depth:
        raise refuse(
            operator,
            f"{name} has shape {list(factor.shape)}; pass (*, {depth}) for a weight "
            f"{list(weight.shape)}",
        )
    if factor.device != weight.device:
        raise refuse(
            operator, f"{name} is on {factor.device} and the weight on {weight.device}; move one"
        )


# ---- rules ---------------------------------------------------------------------------------------


def fields_of(call: Call) -> list[Any]:
    return [getattr(call, name) for name in FIELDS]


def check_fields(call: Call, product: str = "linear") -> None:
    """Refuses fields that require a gradient. ``product``: what has one."""
    named = ((name, getattr(call, name, None)) for name in FIELDS)
    if names := [name for name, x in named if x is not None and x.requires_grad]:
        raise NoDerivative(f"dequantize the weight and call cutlass_api.{product}", names=names)


def save_fields(ctx: Any, call: Call, *others: Tensor | None) -> None:
    check_fields(call)
    fields = fields_of(call)
    ctx.format = call.format
    ctx.save_for_backward(*fields, *others)


def save_linear(ctx: Any, call: Call, output: Tensor) -> None:
    ctx.activation = call.activation or "identity"
    ctx.computes_again = ctx.activation in _epilogues.PREACTIVATION_DERIVATIVES
    others: list[Tensor | None] = [None if ctx.activation == "identity" else output]
    if ctx.computes_again:
        others = [call.input, call.bias]
    if call.bias is not None:
        ctx.bias_dtype, ctx.bias_shape = call.bias.dtype, call.bias.shape
    save_fields(ctx, call, *others)


def linear_backward(ctx: Any, needs: Call, grad: Tensor) -> dict[str, Any]:
    fields, others = split_fields(ctx)
    saved = others[0]
    if ctx.computes_again:
        input, bias = others
        saved = OPS.quantized_linear(input, *fields, ctx.format, bias)
    grad = DERIVATIVES[ctx.activation](grad, saved)
    gradients: dict[str, Any] = {}
    if needs.input:
        gradients["input"] = OPS.quantized_linear_grad(grad, *fields, ctx.format)
    if needs.bias:
        whole = grad if len(ctx.bias_shape) <= grad.dim() else grad[None]
        gradients["bias"] = whole.sum_to_size(ctx.bias_shape).to(ctx.bias_dtype)
    return gradients


def split_fields(ctx: Any) -> tuple[Any, Any]:
    saved = ctx.saved_tensors  # read once: each access unpacks what a checkpoint saved
    return saved[: len(FIELDS)], saved[len(FIELDS) :]


def save_gradient(ctx: Any, call: Call, output: Tensor) -> None:
    save_fields(ctx, call)


def gradient_backward(ctx: Any, needs: Call, of_input: Tensor) -> dict[str, Any]:
    return {"grad": OPS.quantized_linear(of_input, *split_fields(ctx)[0], ctx.format)}


def examples(call: Call, dims: Call, size: int) -> _vmap.Result:
    """One launch if the first operand alone is mapped, else one for each example."""
    first, *others = call.operator.tensors
    if any(getattr(dims, name) is not None for name in others):
        return _vmap.one_by_one(call, dims, size)
    operand = _vmap.front(getattr(call, first), getattr(dims, first))
    return call.replace(**{first: operand}).run(), 0


def lowering(call: Call) -> Lowering | None:
    weight = weight_of("quantized_linear", *fields_of(call), call.format)
    # Of others, each call copies the weight.
    if weight.format.packing > 1 and not weight.is_repacked:
        return None
    names = [name for name in call.operator.tensors if getattr(call, name) is not None]
    found = Lowering(names, weight={"format": call.format, "activation": call.activation})
    is_view = call.bias is None or call.bias.dim() <= 1
    adds_zero = weight.format.adds_zero and call.zeros is not None
    if not is_view or adds_zero or call.permutation is not None or weight.shape[1] == 0:
        return found
    factor_b = factor_of(weight)
    operands = [*factor_b.operands, *(["bias"] if call.bias is not None else [])]
    epilogue = _epilogues.scaled(*operands, blocks=factor_b.blocks, activation=call.activation)
    return found._replace(epilogue=epilogue, element=factor_b.element)


def linear_flops(call: Call) -> Any:
    return 2 * math.prod(call.input) * call.values[0]


def gradient_flops(call: Call) -> Any:
    return 2 * math.prod(call.grad) * call.out_shape[-1]


def field_labels(call: Call, counts_values: bool = False) -> tuple[dict[Any, Labels], Blocks]:
    """The labels of the fields, and the blocks of N and K of which shards must consist.
    ``counts_values``: whether the extent of K is that of ``values``, not that of the input.
    """
    formats = CLASSES[call.format]._formats(dtype_of(call.scales))
    values = torch.empty(call.values.shape, dtype=dtype_of(call.values), device="meta")
    *outer, k = formats[0].extents(values)
    shapes = [each.layout(*outer, k)["scales"][0] for each in formats]
    pairs = zip(formats, shapes, strict=True)
    found = (each.scales for each, shape in pairs if shape == tuple(call.scales.shape))
    shared, blocks = next(found, TENSOR), Blocks()
    stack: Labels = ("g",) if len(outer) > 1 else ()
    of_scales = stack + (() if shared == TENSOR else blocks.add(shared, "n", "k", True, 2))
    blocks.require("k", WORDS if getattr(call, "permutation", None) is None else 0)
    if counts_values:
        blocks["k"] //= max(1, k // max(1, values.shape[len(outer)]))
    known: dict[str, Labels] = {
        "values": (*stack, "n", "k", None)[: values.dim()],
        "scales": of_scales,
        "zeros": of_scales,
        "factor": (*stack, "n", None),
    }
    labels: dict[Any, Labels] = {}
    for name in FIELDS:
        if (spec := getattr(call, name, None)) is not None:
            whole = (None,) * len(spec.shape)
            of_field = known.get(name, whole)
            labels[name] = of_field if len(of_field) == len(whole) else whole
    return labels, blocks


def leading(spec: Any) -> Labels:
    return tuple(f"m{at}" for at in range(len(spec.shape) - 1))


def linear_labels(call: Call) -> Rule:
    fields, blocks = field_labels(call)
    rows = leading(call.input)
    out = (*rows, "n")
    inputs: dict[Any, Labels] = {"input": (*rows, "k"), **fields}
    if call.bias is not None:
        inputs["bias"] = broadcast(call.bias, out)
    is_linear = call.activation in (None, "identity")
    return Rule(
        [out],
        inputs,
        sums=SUMS if is_linear else (),
        factors=["input"] if is_linear else (),
        addends=[] if call.bias is None else ["bias"],
        blocks=blocks,
    )


def gradient_labels(call: Call) -> Rule:
    fields, blocks = field_labels(call, counts_values=True)
    rows = leading(call.grad)
    inputs: dict[Any, Labels] = {"grad": (*rows, "n"), **fields}
    return Rule([(*rows, "k")], inputs, sums=["n"], factors=["grad"], blocks=blocks)


OPERATORS = (
    Operator(
        schema="quantized_linear(Tensor input, Tensor values, Tensor scales, Tensor? zeros, "
        "Tensor? factor, Tensor? permutation, str format, Tensor? bias=None, "
        "str? activation=None) -> Tensor",
        compute=quantized_linear,
        gradient=Gradient(save_linear, linear_backward),
        vmap=examples,
        flops=linear_flops,
        sharding=linear_labels,
        lowering=lowering,
        autocast=("input", "bias"),
        summary="`linear` of float16 or bfloat16 and a [weight](four_bits.md) of 4 or 8 bits",
    ),
    Operator(
        schema="quantized_linear_grad(Tensor grad, Tensor values, Tensor scales, Tensor? zeros, "
        "Tensor? factor, Tensor? permutation, str format) -> Tensor",
        compute=quantized_linear_grad,
        gradient=Gradient(save_gradient, gradient_backward),
        vmap=examples,
        flops=gradient_flops,
        sharding=gradient_labels,
        autocast=("grad",),
        has_out=False,
    ),
)
