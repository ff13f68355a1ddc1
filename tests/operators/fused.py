"""Products with epilogues and activations, and products of groups, compared with compositions."""

from functools import partial
from itertools import pairwise
from typing import Any

import cutlass_api
import torch
from cutlass_api.fusion import activation as activations
from cutlass_api.ops import OPS
from support.operator_calls import BIAS_RELU, MANY, SHAPES, SWIGLU
from torch import Tensor
from torch.nn import functional

from operators.calls import FLOATS
from operators.case import DERIVATIVES, Case, Make, operator
from operators.dense import linear

NUMBERS = """
def epilogue(accum, x, scale, offset):
    D = accum * scale + x * offset
    return D
"""


def fused(a: Tensor, b: Tensor, source: str, **operands: Any) -> Tensor:
    return cutlass_api.matmul(a, b, epilogue=source, **operands)


def fused_into(a: Tensor, b: Tensor, source: str, out: Tensor, **operands: Any) -> None:
    cutlass_api.matmul(a, b, out=out, epilogue=source, **operands)


def bias_relu(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(a @ b + bias)


def many(a: Tensor, b: Tensor, bias: Tensor, other: Tensor) -> Tensor:
    accum = a @ b
    x = accum * 0.5 + bias
    y = torch.where(
        x > other,
        functional.gelu(x) - other,
        functional.silu(-x) / (1 + other.abs()),
    )
    z = torch.maximum(y, x.tanh()) + torch.minimum(x, other) * accum.sigmoid()
    return z + torch.exp(-x.square()) + torch.sqrt(x.square() + 1)


def swiglu(a: Tensor, b: Tensor, up: Tensor) -> Tensor:
    return functional.silu(a @ b) * (a @ up)


def numbers(a: Tensor, b: Tensor, x: Tensor, scale: float, offset: float) -> Tensor:
    return (a @ b) * scale + x * offset


COMPOSED = {BIAS_RELU: bias_relu, MANY: many, SWIGLU: swiglu, NUMBERS: numbers}


def composed(a: Tensor, b: Tensor, source: str, **operands: Any) -> Tensor:
    """In the dtype of the product: under autocast, that of autocast."""
    kind = a.device.type
    is_cast = torch.is_autocast_enabled(kind) and a.dtype is not torch.float64
    dtype = torch.get_autocast_dtype(kind) if is_cast else a.dtype
    return COMPOSED[source](a, b, **operands).to(dtype)


def fused_samples(t: Make) -> Any:
    """On a GPU without second factors, whose kernels have rows of 16 bytes."""
    yield t(3, 4), t(4, 2), BIAS_RELU, {"bias": t(2)}
    yield t(3, 4), t(4, 2), MANY, {"bias": t(2), "other": t(3, 2)}
    yield t(3, 4), t(4, 2), NUMBERS, {"x": t(3, 2), "scale": 0.5, "offset": 3}
    yield t(2, 3, 4), t(4, 2), BIAS_RELU, {"bias": t(2, 1, 2)}
    yield t(2, 1, 3, 4), t(2, 4, 2), BIAS_RELU, {"bias": t(3, 1)}
    for a, b in SHAPES:
        out = torch.matmul(torch.empty(a), torch.empty(b))
        yield t(*a), t(*b), NUMBERS, {"x": t(*out.shape), "scale": 0.5, "offset": 3}
        yield t(*a), t(*b), NUMBERS, {"x": t(*out.shape[-1:]), "scale": 0.5, "offset": 3}
    if t().device.type == "cpu":
        for a, b in SHAPES:
            yield t(*a), t(*b), SWIGLU, {"up": t(*b)}


def activated(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    return getattr(activations, activation)(linear(x, weight, bias))


def activated_samples(t: Make) -> Any:
    """Arguments of activations at which the derivatives are not negligible."""
    for name in ("gelu", "relu", *activations.__all__):
        # On a GPU, torch's has 1/6 in float32 for float64, too.
        if name == "hardswish" and t().is_cuda and t().dtype is torch.float64:
            continue
        yield t(3, 4, low=-1, high=1), t(2, 4), t(2), name
        yield t(2, 3, 4, low=-1, high=1), t(2, 4), None, name
        yield t(4, low=-1, high=1), t(2, 4), t(2), name
    yield t(2, 3, 4, low=-1, high=1), t(2, 4), t(3, 2), "gelu"
    yield t(3, 4, low=-1, high=1), t(4), t(), "gelu"
    yield t(4, low=-1, high=1), t(2, 4), t(1, 2), "relu"


def grouped(a: Tensor, b: Tensor, offs: Tensor, bias: Tensor | None = None) -> Tensor:
    spans = pairwise([0, *offs.tolist()])
    products = torch.cat([a[i:j] @ b[g] for g, (i, j) in enumerate(spans)])
    if bias is None:
        return products
    sizes = torch.diff(offs, prepend=offs.new_zeros(1)).tolist()
    rows = torch.cat([bias[g].expand(size, -1) for g, size in enumerate(sizes)])
    return products + rows.to(products.dtype)


def grouped_samples(t: Make) -> Any:
    ends = partial(torch.tensor, dtype=torch.int32, device=t().device)
    yield t(6, 4), t(3, 4, 2), ends([2, 2, 6])
    yield t(5, 8), t(2, 8, 6), ends([0, 5])
    yield t(5, 8), t(2, 8, 6), ends([3, 5]), t(2, 6)


def masked(
    a: Tensor,
    b: Tensor,
    counts: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Of counts that are all rows."""
    products = a @ b if bias is None else a @ b + bias.unsqueeze(1).to(a.dtype)
    return products if out_dtype is None else products.to(out_dtype)


def masked_samples(t: Make) -> Any:
    counts = partial(torch.full, dtype=torch.int32, device=t().device)
    yield t(3, 2, 4), t(3, 4, 2), counts((3,), 2)
    yield t(2, 5, 8), t(2, 8, 6), counts((2,), 5), t(2, 6)


def gated(
    a: Tensor,
    gate: Tensor,
    up: Tensor,
    offs: Tensor,
    activation: str,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
) -> Tensor:
    function = getattr(torch.nn.functional, activation)
    return function(grouped(a, gate, offs, gate_bias)) * grouped(a, up, offs, up_bias)


def gated_samples(t: Make) -> Any:
    for activation in ("silu", "gelu"):
        for a, gate, offs, *bias in grouped_samples(t):
            yield a, gate, t(*gate.shape), offs, activation, *bias, *(t(*x.shape) for x in bias)


def by_index(a: Tensor, b: Tensor, offs: Tensor, index: Tensor) -> Tensor:
    return OPS.grouped_mm(a, b, offs, index=index)


def copied(a: Tensor, b: Tensor, offs: Tensor, index: Tensor) -> Tensor:
    return grouped(a[index], b, offs)


def index_samples(t: Make) -> Any:
    ends = partial(torch.tensor, dtype=torch.int32, device=t().device)
    yield t(4, 8), t(3, 8, 6), ends([2, 2, 6]), ends([3, 0, 0, 1, 3, 3])
    yield t(9, 8), t(2, 8, 6), ends([1, 3]), ends([8, 2, 8]).long()


def gated_by_index(a: Tensor, gate: Tensor, up: Tensor, offs: Tensor, index: Tensor) -> Tensor:
    return OPS.grouped_gated_mm(a, gate, up, offs, index=index)


def gated_copy(a: Tensor, gate: Tensor, up: Tensor, offs: Tensor, index: Tensor) -> Tensor:
    return gated(a[index], gate, up, offs, "silu")


def gated_index_samples(t: Make) -> Any:
    for a, gate, *others in index_samples(t):
        yield a, gate, t(*gate.shape), *others


def layers(x: Tensor, count: int, *tensors: Tensor) -> Any:
    weights, biases = tensors[:count], tensors[count:] or [None] * count
    return torch.cat(list(map(partial(torch.nn.functional.linear, x), weights, biases)), -1)


def joint(x: Tensor, count: int, *tensors: Tensor) -> Any:
    return torch.cat(cutlass_api.linears(x, tensors[:count], tensors[count:] or None), -1)


def joint_samples(t: Make) -> Any:
    yield t(4, 8), 2, t(6, 8), t(2, 8)
    yield t(2, 3, 8), 3, t(6, 8), t(6, 8), t(1, 8), t(6), t(6), t(1)
    yield t(8), 4, t(2, 8), t(3, 8), t(4, 8), t(5, 8)


CASES = (
    Case(
        name="matmul, epilogues",
        ours=fused,
        theirs=composed,
        into=fused_into,
        own=fused_samples,
        dtypes=FLOATS,
    ),
    Case(
        name="linear, activations",
        ours=cutlass_api.linear,
        theirs=activated,
        into=OPS.linear.out,
        own=activated_samples,
        dtypes=FLOATS,
    ),
    Case(
        name="linears",
        ours=joint,
        theirs=layers,
        own=joint_samples,
        dtypes=FLOATS,
        lacks=["out="],
    ),
    Case(
        name="grouped_mm",
        ours=operator("grouped_mm"),
        theirs=grouped,
        own=grouped_samples,
        dtypes=FLOATS,
        lacks=["out="],
    ),
    Case(
        name="grouped_mm, an index",
        ours=by_index,
        theirs=copied,
        own=index_samples,
        dtypes=FLOATS,
        lacks=["out="],
    ),
    Case(
        name="masked_grouped_mm",
        ours=operator("masked_grouped_mm"),
        theirs=masked,
        into=OPS.masked_grouped_mm.out,
        own=masked_samples,
        dtypes=FLOATS,
        refuses=(*DERIVATIVES, "gradcheck", "gradgradcheck"),
    ),
    Case(
        name="grouped_gated_mm",
        ours=operator("grouped_gated_mm"),
        theirs=gated,
        own=gated_samples,
        dtypes=FLOATS,
        lacks=["out="],
    ),
    Case(
        name="grouped_gated_mm, an index",
        ours=gated_by_index,
        theirs=gated_copy,
        own=gated_index_samples,
        dtypes=FLOATS,
        lacks=["out="],
    ),
)
