"""``joint_linear``: linear layers of one input, in one launch."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from cutlass_api._core import launch_gemm
from cutlass_api._dtypes import FLOAT8
from cutlass_api.ops import _linear
from cutlass_api.ops._epilogues import BIAS
from cutlass_api.ops._labels import SUMS, Rule
from cutlass_api.ops._library import empty, launch, refuse, rows_of
from cutlass_api.ops._linear import matrix
from cutlass_api.ops._operator import OPS, Call, Gradient, Lowering, NoDerivative, Operator
from cutlass_api.ops._vmap import Result

LINEAR = _linear.OPERATORS[0]
#: The most weights of a launch.
MOST = 4
#: Calls that no kernel of several matrices B serves, by shapes, strides, dtypes and alignments.
_UNSERVED: set[Any] = set()
_MOST_UNSERVED = 4096


def joint_linear(input: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """input @ torch.cat(weights).T + torch.cat(biases) without the concatenations: the outputs of
    the layers side by side.

    input (*, K), weights (N_i, K), biases (N_i,), or none of them. One launch where a kernel serves
    the weights, else one for each.
    """
    if not weights or input.dim() == 0 or any(weight.dim() != 2 for weight in weights):
        raise refuse(
            "joint_linear",
            f"input has shape {list(input.shape)} and the weights "
            f"{[list(weight.shape) for weight in weights]}; pass an input (*, K) and weights "
            "(N, K)",
        )
    if biases and [bias.shape for bias in biases] != [weight.shape[:1] for weight in weights]:
        raise refuse(
            "joint_linear",
            f"the biases have shapes {[list(bias.shape) for bias in biases]} and the weights "
            f"{[list(weight.shape) for weight in weights]}; pass a bias (N,) for each weight",
        )
    columns = sum(weight.shape[0] for weight in weights)
    out = empty(input, weights[0], (*input.shape[:-1], columns), None)
    rows, target = rows_of(input), matrix(out)
    if not _launched_at_once(rows, weights, biases, target):
        for at, part in enumerate(split(target, weights)):
            operands, epilogue = (biases[at : at + 1], BIAS) if biases else ((), None)
            launch("joint_linear", rows, weights[at].t(), *operands, out=part, epilogue=epilogue)
    return out


def split(out: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """The output of each weight, as views of that of all."""
    ends = accumulate((weight.shape[0] for weight in weights), initial=0)
    return [out.narrow(-1, start, end - start) for start, end in pairwise(ends)]


def launch_at_once(
    rows: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    out: Tensor,
    kernel: str | None = None,
) -> None:
    """Launches a kernel of several matrices B. Raises if none serves them."""
    operands, epilogue = ((list(biases),), BIAS) if biases else ((), None)
    columns = [weight.t() for weight in weights]
    launch_gemm(rows, columns, *operands, out=out, epilogue=epilogue, kernel=kernel)


def _launched_at_once(
    rows: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], out: Tensor
) -> bool:
    """Launches a kernel of several matrices B; False if none serves the weights."""
    if not 2 <= len(weights) <= MOST or isinstance(rows, FakeTensor):
        return False
    if any(
        x.is_meta or x.dtype != rows.dtype or (x.stride(1) != 1 and x.shape[1] > 1) for x in weights
    ):
        return False
    key, tensors = None, (rows, *weights, *biases)
    if _UNSERVED and (key := _key(tensors)) in _UNSERVED:
        return False
    try:
        launch_at_once(rows, weights, biases, out)
    except (TypeError, ValueError, BufferError):
        if len(_UNSERVED) >= _MOST_UNSERVED:
            _UNSERVED.clear()
        _UNSERVED.add(key or _key(tensors))
        return False
    return True


def _key(tensors: Sequence[Tensor]) -> Any:
    return tuple((x.device, x.dtype, x.shape, x.stride(), x.data_ptr() % 16) for x in tensors)


# ---- rules ---------------------------------------------------------------------------------------


def save(ctx: Any, call: Call, output: Any) -> None:
    for name in call.operator.tensors:
        tensors = [call.input] if name == "input" else getattr(call, name)
        for tensor in tensors:
            if tensor.requires_grad and tensor.dtype in FLOAT8:
                raise NoDerivative("pass a wider dtype", f" of {tensor.dtype}", [name])
    ctx.save_for_backward(call.input, *call.weights)
    ctx.bias_dtypes = [bias.dtype for bias in call.biases]


def backward(ctx: Any, needs: Call, grad: Tensor) -> dict[str, Any]:
    input, *weights = ctx.saved_tensors
    gradients: dict[str, Any] = {"weights": [None] * len(weights)}
    if any(needs.biases):
        sums = split(grad.sum_to_size(grad.shape[-1:]), weights)
        gradients["biases"] = [
            part.to(dtype) if needed else None
            for part, dtype, needed in zip(sums, ctx.bias_dtypes, needs.biases, strict=True)
        ]
    grad = grad.to(input.dtype)
    if needs.input:
        parts = zip(split(grad, weights), weights, strict=True)
        gradients["input"] = sum(OPS.linear(part, weight.t()) for part, weight in parts)
    if any(needs.weights):
        of_all = OPS.linear_weight_grad(grad, input)
        parts = of_all.split([weight.shape[0] for weight in weights])
        gradients["weights"] = [
            part if needed else None for part, needed in zip(parts, needs.weights, strict=True)
        ]
    return gradients


def examples(call: Call, dims: Call, size: int) -> Result:
    """The rule of `linear` for each weight, unless all examples share the layers."""
    if all(dim is None for dim in (*dims.weights, *dims.biases)):
        return call.replace(input=call.input.movedim(dims.input, 0)).run(), 0
    none = [None] * len(call.weights)
    layers = zip(call.weights, call.biases or none, strict=True)
    dims_of_layers = zip(dims.weights, dims.biases or none, strict=True)
    outs = []
    for layer, of_layer in zip(layers, dims_of_layers, strict=True):
        own = LINEAR.bind((call.input, *layer), {})
        if any(dim is not None for dim in (dims.input, *of_layer)):
            outs.append(LINEAR.vmap(own, Call(LINEAR, [dims.input, *of_layer, None]), size)[0])
        else:
            out = own.run()
            outs.append(out.expand(size, *out.shape))
    return torch.cat(outs, -1), 0


def flops(call: Call) -> Any:
    return 2 * math.prod(call.input) * sum(weight[0] for weight in call.weights)


def labels(call: Call) -> Rule:
    """Shards of the weights' rows would not be shards of the output."""
    rows = tuple(f"m{at}" for at in range(len(call.input.shape) - 1))
    inputs: dict[Any, Any] = {"input": (*rows, "k")}
    inputs |= {("weights", at): (None, "k") for at in range(len(call.weights))}
    addends = [("biases", at) for at in range(len(call.biases))]
    inputs |= dict.fromkeys(addends, (None,))
    return Rule([(*rows, None)], inputs, sums=SUMS, factors=("input",), addends=addends)


def autocast(call: Call, cast: Callable[[Any], Any]) -> Call:
    lists = {name: list(map(cast, getattr(call, name))) for name in ("weights", "biases")}
    return call.replace(input=cast(call.input), **lists)


def lowering(call: Call) -> Lowering:
    return Lowering(["input", "weights", "biases"], joint=len(call.weights))


OPERATORS = (
    Operator(
        schema="joint_linear(Tensor input, Tensor[] weights, Tensor[] biases) -> Tensor",
        compute=joint_linear,
        gradient=Gradient(save, backward),
        vmap=examples,
        flops=flops,
        sharding=labels,
        autocast=autocast,
        has_out=False,
        lowering=lowering,
        summary="input @ weight.T + bias of 2 to 4 weights side by side, which "
        "`cutlass_api.linears` returns as views",
    ),
)
