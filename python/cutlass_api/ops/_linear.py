"""``linear``, and the two operators by which it differentiates."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from cutlass_api.fusion import activation as activations
from cutlass_api.ops import _epilogues
from cutlass_api.ops._dense import check_differentiable
from cutlass_api.ops._evaluate import DERIVATIVES
from cutlass_api.ops._labels import SUMS, Labels, Rule, broadcast
from cutlass_api.ops._library import empty, launch, refuse, rows_of
from cutlass_api.ops._operator import OPS, Call, Gradient, Operator
from cutlass_api.ops._vmap import (
    Epilogue,
    Result,
    compose,
    front,
    is_composable,
)

VmapRule = Callable[[Call, Call, int], Result]


def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """activation(input @ weight.T + bias), in one launch.

    input (*, K), weight (N, K), or (K,) for an output (*), bias None or of a shape that broadcasts
    to the output, activation a name of ``cutlass_api.fusion.activation`` or None.
    """
    if out is None:
        out = linear_output(input, weight)
    elif out.shape != (shape := linear_shape(input, weight)):
        raise refuse("linear", f"out has shape {list(out.shape)}; pass shape {list(shape)}")
    elif not has_rows(out if weight.dim() == 2 else out[..., None]):
        return out.copy_(linear(input, weight, bias, activation, out=out.new_empty(shape)))
    epilogue = None
    if bias is not None or activation is not None:
        epilogue = _epilogues.linear(activation, bias is not None)
    launch_linear(input, weight, bias, epilogue, out)
    return out


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
    launch_linear(input, weight, bias, epilogue, out, preactivation)
    return out, preactivation


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
    return empty(input, weight, linear_shape(input, weight), None)


def linear_shape(input: Tensor, weight: Tensor) -> tuple[Any, ...]:
    if input.dim() == 0 or weight.dim() not in (1, 2):
        raise refuse(
            "linear",
            f"input has shape {list(input.shape)} and weight {list(weight.shape)}; pass an input "
            "(*, K) and a weight (N, K) or (K,)",
        )
    return (*input.shape[:-1], *weight.shape[:-1])


def has_rows(out: Tensor) -> bool:
    """Whether the rows of an output form a matrix that is a view."""
    if out.dim() <= 2:
        return True
    try:
        matrix(out)
    except RuntimeError:
        return False
    return True


def launch_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    epilogue: str | None,
    *outs: Tensor,
) -> None:
    if weight.dim() == 1:
        weight, bias = weight[None], of_one_column(bias)
        outs = tuple(out[..., None] for out in outs)
    operands = () if bias is None else (bias_of_rows("linear", bias, outs[0].shape),)
    matrices = tuple(map(matrix, outs))
    out = matrices if len(matrices) > 1 else matrices[0]
    launch("linear", rows_of(input), weight.t(), *operands, out=out, epilogue=epilogue)


def of_one_column(bias: Tensor | None) -> Tensor | None:
    """A bias of an output without the dimension N, for one with N = 1."""
    return bias if bias is None or bias.dim() == 0 else bias[..., None]


def bias_of_rows(operator: str, bias: Tensor, shape: Sequence[int]) -> Tensor:
    """A bias that broadcasts to an output of this shape, for the matrix of the output's rows."""
    if bias.dim() <= 1 or bias.dim() == len(shape) == 2:
        return bias
    try:
        return rows_of(bias.expand(tuple(shape) if len(shape) > 1 else (1, *shape)))
    except RuntimeError:
        reason = "does not broadcast to the output's shape"
        raise refuse(
            operator, f"bias with shape {list(bias.shape)} {reason} {list(shape)}"
        ) from None


def matrix(out: Tensor) -> Tensor:
    """All rows of an output as a matrix. Raises RuntimeError if they do not form a view."""
    return out if out.dim() == 2 else out.view(math.prod(out.shape[:-1]), out.shape[-1])


# ---- gradients -----------------------------------------------------------------------------------


def storing(call: Call) -> str | None:
    """The operator that stores the argument of the activation, if the derivative depends on it."""
    return "linear_forward" if call.activation in _epilogues.PREACTIVATION_DERIVATIVES else None


def save_linear(ctx: Any, call: Call, output: Any) -> None:
    check_differentiable(call)
    out, preactivation = (output, None) if isinstance(output, Tensor) else output
    ctx.is_preactivation = storing(call) is not None
    ctx.activation = call.activation or "identity"
    saved = preactivation if ctx.is_preactivation else out
    # Without a stored argument, the backward computes it of the operands.
    operands = [call.bias] if ctx.is_preactivation and preactivation is None else []
    ctx.save_for_backward(
        call.input, call.weight, saved if ctx.activation != "identity" else None, *operands
    )
    if call.bias is not None:
        ctx.bias_dtype, ctx.bias_shape = call.bias.dtype, call.bias.shape
    ctx.set_materialize_grads(False)


def linear_backward(ctx: Any, needs: Call, *grads: Tensor | None) -> dict[str, Any]:
    grad, grad_preactivation = (*grads, None)[:2]
    input, weight, saved, *operands = ctx.saved_tensors
    if operands:
        saved = OPS.linear(input, weight, *operands)
    if grad is not None:
        grad = DERIVATIVES[ctx.activation](grad, saved)
    if ctx.is_preactivation and grad_preactivation is not None:
        grad = grad_preactivation if grad is None else grad + grad_preactivation
    gradients: dict[str, Any] = {}
    if grad is None:
        return gradients
    # Nothing is flattened: a DTensor may be sharded along any dimension.
    if needs.bias:
        whole = grad if len(ctx.bias_shape) <= grad.dim() else grad[None]
        gradients["bias"] = whole.sum_to_size(ctx.bias_shape).to(ctx.bias_dtype)
    columns = weight
    if weight.dim() == 1:
        grad, columns = grad[..., None], weight[None]
    if needs.input:
        gradients["input"] = OPS.linear(grad.to(weight.dtype), columns.t()).to(input.dtype)
    if needs.weight:
        of_columns = OPS.linear_weight_grad(grad.to(input.dtype), input)
        gradients["weight"] = of_columns if weight.dim() == 2 else of_columns[0]
    return gradients


def save_weight_gradient(ctx: Any, call: Call, output: Any) -> None:
    ctx.save_for_backward(call.grad, call.input)


def weight_gradient_backward(ctx: Any, needs: Call, of_weight: Tensor) -> dict[str, Any]:
    grad, input = ctx.saved_tensors
    gradients = {}
    if needs.grad:
        gradients["grad"] = OPS.linear(input, of_weight)
    if needs.input:
        gradients["input"] = OPS.linear(grad, of_weight.t())
    return gradients


# ---- vmap ----------------------------------------------------------------------------------------


def of_columns(rule: VmapRule) -> VmapRule:
    """A rule that also serves weights (K,), from one for weights (N, K)."""

    def examples(call: Call, dims: Call, size: int) -> Result:
        if call.weight.dim() - (dims.weight is not None) != 1:
            return rule(call, dims, size)
        weight, bias = front(call.weight, dims.weight)[..., None, :], call.bias
        if bias is not None and bias.dim() > (dims.bias is not None):
            bias = front(bias, dims.bias)[..., None]
        mapped = (None if dim is None else 0 for dim in (dims.weight, dims.bias))
        dims = dims.replace(**dict(zip(("weight", "bias"), mapped, strict=True)))
        outs, out_dims = rule(call.replace(weight=weight, bias=bias), dims, size)
        if isinstance(outs, Tensor):
            return outs.squeeze(-1), out_dims
        # A second output that is not mapped is empty.
        pairs = zip(outs, out_dims, strict=True)
        return tuple(x if at is None else x.squeeze(-1) for x, at in pairs), out_dims

    return examples


@of_columns
def linear_examples(call: Call, dims: Call, size: int) -> Result:
    if dims.weight is dims.bias is None:
        return call.replace(input=front(call.input, dims.input)).run(), 0
    return of_weights(call, dims, size, call.activation), 0


def of_weights(call: Call, dims: Call, size: int, activation: str | None) -> Tensor:
    """`linear` with a weight or bias for each example."""
    rows, weight = front(call.input, dims.input), front(call.weight, dims.weight)
    leading = rows.shape[:-1] if dims.input is None else rows.shape[1:-1]
    batch = () if dims.input is None else (size,)
    rows = rows.reshape(*batch, math.prod(leading), rows.shape[-1])
    bias = call.bias
    if bias is not None:
        shape = (*leading, weight.shape[-2])
        if dims.bias is None:
            bias = bias_of_rows("linear", bias, shape)
        else:
            bias = front(bias, dims.bias, max(1, len(leading)) + 1)
            if len(leading) > 1:
                bias = bias.expand(size, *shape).flatten(1, -2)
    source = _epilogues.linear(activation, bias is not None)
    operands = [] if bias is None else [bias]
    epilogue = Epilogue(source, operands)
    if dims.input is dims.weight is None:
        if is_composable(rows, weight, epilogue):
            out = compose("linear", rows, weight.mT, epilogue, (size, len(rows), len(weight)))
            return out.view(size, *leading, len(weight))
        rows = rows.expand(size, *rows.shape)
    out = OPS.mm_epilogue(rows, weight.mT, operands, source)
    return out.view(size, *leading, out.shape[-1])


@of_columns
def forward_examples(call: Call, dims: Call, size: int) -> Result:
    stores = call.activation in _epilogues.PREACTIVATION_DERIVATIVES
    out_dims = (0, 0 if stores else None)
    if dims.weight is dims.bias is None:
        return call.replace(input=front(call.input, dims.input)).run(), out_dims
    preactivation = of_weights(call, dims, size, None)
    out = getattr(activations, call.activation or "identity")(preactivation)
    return (out, preactivation if stores else call.input.new_empty(0)), out_dims


def weight_gradient_examples(call: Call, dims: Call, size: int) -> Result:
    def rows(x: Tensor, dim: int | None) -> Tensor:
        if dim is None:
            return rows_of(x)
        x = front(x, dim)
        return x.reshape(size, math.prod(x.shape[1:-1]), x.shape[-1])

    factors = rows(call.grad, dims.grad).mT, rows(call.input, dims.input)
    return OPS.bmm(*factors, broadcast=True), 0


# ---- FLOPs and sharding --------------------------------------------------------------------------


def linear_flops(call: Call) -> Any:
    return 2 * math.prod(call.input) * math.prod(call.weight[:-1])


def weight_gradient_flops(call: Call) -> Any:
    return 2 * math.prod(call.grad) * call.input[-1]


def linear_labels(call: Call) -> Rule:
    rows = tuple(f"m{at}" for at in range(len(call.input.shape) - 1))
    weight: Labels = ("n", "k")[-len(call.weight.shape) :]
    out = (*rows, *weight[:-1])
    inputs: dict[Any, Labels] = {"input": (*rows, "k"), "weight": weight}
    if call.bias is not None:
        inputs["bias"] = broadcast(call.bias, out)
    is_linear = call.activation in (None, "identity")
    return Rule(
        [out],
        inputs,
        sums=SUMS if is_linear else (),
        factors=call.operator.factors if is_linear else (),
        addends=[] if call.bias is None else ["bias"],
    )


def forward_labels(call: Call) -> Rule:
    rule = linear_labels(call)
    stores = call.activation in _epilogues.PREACTIVATION_DERIVATIVES
    rule.outputs = [rule.outputs[0], rule.outputs[0] if stores else ()]
    return rule


def weight_gradient_labels(call: Call) -> Rule:
    # The sum is over all rows: each of their dimensions counts as `k` of a product.
    rows = tuple(f"k{at}" for at in range(len(call.grad.shape) - 1))
    inputs: dict[Any, Labels] = {"grad": (*rows, "n"), "input": (*rows, "k")}
    return Rule([("n", "k")], inputs, sums=rows, factors=call.operator.factors)


OPERATORS = (
    Operator(
        schema="linear(Tensor input, Tensor weight, Tensor? bias=None, str? activation=None) "
        "-> Tensor",
        compute=linear,
        factors=("input", "weight"),
        gradient=Gradient(save_linear, linear_backward, storing),
        vmap=linear_examples,
        flops=linear_flops,
        sharding=linear_labels,
        autocast=("input", "weight", "bias"),
        summary="activation(input @ weight.T + bias)",
    ),
    Operator(
        schema="linear_forward(Tensor input, Tensor weight, Tensor? bias=None, "
        "str? activation=None) -> (Tensor, Tensor)",
        compute=linear_forward,
        factors=("input", "weight"),
        gradient=Gradient(save_linear, linear_backward),
        vmap=forward_examples,
        flops=linear_flops,
        sharding=forward_labels,
        autocast=("input", "weight", "bias"),
        has_out=False,
    ),
    Operator(
        schema="linear_weight_grad(Tensor grad, Tensor input) -> Tensor",
        compute=linear_weight_grad,
        factors=("grad", "input"),
        gradient=Gradient(save_weight_gradient, weight_gradient_backward),
        vmap=weight_gradient_examples,
        flops=weight_gradient_flops,
        sharding=weight_gradient_labels,
        autocast=("grad", "input"),
        has_out=False,
    ),
)
