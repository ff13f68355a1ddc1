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


def joint_linear(input: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """input @ torch.cat(weights).T without the concatenation: the outputs of the layers side by
    side.

    input (*, K), weights (N_i, K). One launch where a kernel serves the weights, else one for each.
    """
    if not weights or input.dim() == 0 or any(weight.dim() != 2 for weight in weights):
        raise refuse(
            "joint_linear",
            f"input has shape {list(input.shape)} and the weights "
            f"{[list(weight.shape) for weight in weights]}; pass an input (*, K) and weights "
            "(N, K)",
        )
    columns = sum(weight.shape[0] for weight in weights)
    out = empty(input, weights[0], (*input.shape[:-1], columns), None)
    rows, target = rows_of(input), matrix(out)
    if not _launched_at_once(rows, weights, target):
        for weight, part in zip(weights, split(target, weights), strict=True):
            launch("joint_linear", rows, weight.t(), out=part)
    return out


def split(out: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """The output of each weight, as views of that of all."""
    ends = accumulate((weight.shape[0] for weight in weights), initial=0)
    return [out.narrow(-1, start, end - start) for start, end in pairwise(ends)]


def _launched_at_once(rows: Tensor, weights: Sequence[Tensor], out: Tensor) -> bool:
    """Launches a kernel of several matrices B; False if none serves the weights."""
    if not 2 <= len(weights) <= MOST or isinstance(rows, FakeTensor):
        return False
    if any(
        x.is_meta or x.dtype != rows.dtype or (x.stride(1) != 1 and x.shape[1] > 1) for x in weights
    ):
        return False
    key = None
    if _UNSERVED and (key := _key(rows, weights)) in _UNSERVED:
        return False
    try:
        launch_gemm(rows, [weight.t() for weight in weights], out=out)
    except (TypeError, ValueError, BufferError):
        if len(_UNSERVED) >= _MOST_UNSERVED:
            _UNSERVED.clear()
        _UNSERVED.add(key or _key(rows, weights))
        return False
    return True


def _key(rows: Tensor, weights: Sequence[Tensor]) -> Any:
    return tuple(
        (x.device, x.dtype, x.shape, x.stride(), x.data_ptr() % 16) for x in (rows, *weights)
    )


# ---- rules ---------------------------------------------------------------------------------------


def save(ctx: Any, call: Call, output: Any) -> None:
    for name, tensors in (("input", [call.input]), ("weights", call.weights)):
        for tensor in tensors:
            if tensor.requires_grad and tensor.dtype in FLOAT8:
                raise NoDerivative("pass a wider dtype", f" of {tensor.dtype}", [name])
    ctx.save_for_backward(call.input, *call.weights)


def backward(ctx: Any, needs: Call, grad: Tensor) -> dict[str, Any]:
    input, *weights = ctx.saved_tensors
    grad = grad.to(input.dtype)
    gradients: dict[str, Any] = {"weights": [None] * len(weights)}
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
    """The rule of `linear` for each weight, unless all examples share the weights."""
    if all(dim is None for dim in dims.weights):
        return call.replace(input=call.input.movedim(dims.input, 0)).run(), 0
    outs = []
    for weight, dim in zip(call.weights, dims.weights, strict=True):
        if dim is dims.input is None:
            out = OPS.linear(call.input, weight)
            outs.append(out.expand(size, *out.shape))
        else:
            own = LINEAR.bind((call.input, weight), {})
            outs.append(LINEAR.vmap(own, Call(LINEAR, [dims.input, dim, None, None]), size)[0])
    return torch.cat(outs, -1), 0


def flops(call: Call) -> Any:
    return 2 * math.prod(call.input) * sum(weight[0] for weight in call.weights)


def labels(call: Call) -> Rule:
    """Shards of the weights' rows would not be shards of the output."""
    rows = tuple(f"m{at}" for at in range(len(call.input.shape) - 1))
    inputs: dict[Any, Any] = {"input": (*rows, "k")}
    inputs |= {("weights", at): (None, "k") for at in range(len(call.weights))}
    return Rule([(*rows, None)], inputs, sums=SUMS, factors=("input",))


def autocast(call: Call, cast: Callable[[Any], Any]) -> Call:
    return call.replace(input=cast(call.input), weights=[cast(each) for each in call.weights])


def lowering(call: Call) -> Lowering:
    return Lowering(["input", "weights"], is_joint=True)


OPERATORS = (
    Operator(
        schema="joint_linear(Tensor input, Tensor[] weights) -> Tensor",
        compute=joint_linear,
        gradient=Gradient(save, backward),
        vmap=examples,
        flops=flops,
        sharding=labels,
        autocast=autocast,
        has_out=False,
        lowering=lowering,
        summary="input @ weight.T of 2 to 4 weights side by side, which `cutlass_api.linears` "
        "returns as views",
    ),
)
