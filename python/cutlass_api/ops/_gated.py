"""``grouped_gated_mm``: gate and up of a mixture of experts in one launch."""

from typing import Any

import torch
from torch import Tensor

from cutlass_api.ops import _epilogues, _vmap
from cutlass_api.ops._dense import check_differentiable
from cutlass_api.ops._evaluate import evaluate
from cutlass_api.ops._grouped import (
    added,
    launch_gathered,
    offsets_of,
    rows_in,
    rows_of_groups,
    sums_of_groups,
    within,
)
from cutlass_api.ops._labels import Rule
from cutlass_api.ops._library import empty, refuse, sum_dtype
from cutlass_api.ops._operator import OPS, Call, Gradient, Lowering, Operator


def grouped_gated_mm(
    A: Tensor,
    gate: Tensor,
    up: Tensor,
    offs: Tensor,
    activation: str = "silu",
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    index: Tensor | None = None,
) -> Tensor:
    """activation(A @ gate[g] + gate_bias[g]) * (A @ up[g] + up_bias[g]) for rows offs[g-1] to
    offs[g] of A (TotalM, K), with gate and up (G, K, N) and biases (G, N). activation: a name of
    cutlass_api.fusion.activation; or an expression of the values gate and up, in the language of
    epilogues: "silu(gate) * clamp(up, -7, 7)". index: as of grouped_mm.

    Sums, activation and product are float32 (float64 for float64) and rounded once. Rows of the
    output past offs[-1] are uninitialized. One launch on compute capability 9.0, of float16 and
    bfloat16 and of factors contiguous along K with equal strides; elsewhere one for each factor,
    and torch computes the activation.
    """
    if A.dim() != 2 or gate.dim() != 3:
        raise refuse(
            "grouped_gated_mm",
            f"A has rank {A.dim()} and gate rank {gate.dim()}; pass A (TotalM, K) and gate "
            "(G, K, N)",
        )
    offs = offsets_of("grouped_gated_mm", offs, gate.shape[0])
    biases = {
        name: rows_of_groups("grouped_gated_mm", name, bias, gate)
        for name, bias in (("gate_bias", gate_bias), ("up_bias", up_bias))
        if bias is not None
    }
    out = empty(A, gate, (rows_in(A, index), gate.shape[2]), None)
    epilogue = _epilogues.gated(activation, *biases)
    try:
        return launch_gathered(
            *("grouped_gated_mm", index, A, gate, up, *biases.values()),
            out=out,
            epilogue=epilogue,
            offsets=offs,
        )
    except ValueError:
        # No kernel takes both factors. Operands that fit none raise again below.
        wide = sum_dtype(A.dtype)
        products = []
        for factor, name in ((gate, "gate_bias"), (up, "up_bias")):
            operands = [biases[name]] if name in biases else []
            product = launch_gathered(
                *("grouped_gated_mm", index, A, factor, *operands),
                out=empty(A, factor, out.shape, wide),
                epilogue=_epilogues.BIAS if operands else None,
                offsets=offs,
            )
            products.append(product)
        return evaluate(_epilogues.gated(activation), products[0], products[1:]).to(out.dtype)


# ---- rules ---------------------------------------------------------------------------------------


def save(ctx: Any, call: Call, output: Any) -> None:
    check_differentiable(call)
    biases = call.gate_bias, call.up_bias
    ctx.save_for_backward(call.A, call.gate, call.up, call.offs, call.index, *biases)
    ctx.activation = call.activation


def backward(ctx: Any, needs: Call, grad: Tensor) -> dict[str, Any]:
    """Computes both products again, and differentiates the epilogue in their dtype with torch. Rows
    past the last group hold any numbers, which the products below do not read."""
    A, gate, up, offs, index, *biases = ctx.saved_tensors
    source, A = A, A if index is None else A[within(index, A)]
    dtype, pairs = sum_dtype(A.dtype), zip((gate, up), biases, strict=True)
    products = [OPS.grouped_mm(A, factor, offs, bias, dtype) for factor, bias in pairs]
    epilogue = _epilogues.gated(ctx.activation)
    _, pullback = torch.func.vjp(lambda gate, up: evaluate(epilogue, gate, [up]), *products)
    of_products = pullback(grad.to(dtype))
    of_biases = [
        sums_of_groups(each, offs, bias.dtype) if needed else None
        for each, bias, needed in zip(
            of_products, biases, (needs.gate_bias, needs.up_bias), strict=True
        )
    ]
    gradients = [each.to(A.dtype) for each in of_products]
    of_a = None
    if needs.A:
        pairs = zip(gradients, (gate, up), strict=True)
        parts = [OPS.grouped_mm(x, factor.mT, offs, None, dtype, True) for x, factor in pairs]
        of_a = (parts[0] + parts[1]).to(A.dtype)
        of_a = of_a if index is None else added(of_a, index, source)
    wanted = zip(gradients, (needs.gate, needs.up), strict=True)
    of_gate, of_up = (
        OPS.grouped_mm_weight_grad(A, each, offs) if needed else None for each, needed in wanted
    )
    of_factors = {"A": of_a, "gate": of_gate, "up": of_up}
    return {**of_factors, "gate_bias": of_biases[0], "up_bias": of_biases[1]}


def flops(call: Call) -> Any:
    """Each row of A (TotalM, K) times one matrix of each of two (G, K, N)."""
    rows, depth = call.A
    return 4 * (rows if call.index is None else call.index[0]) * depth * call.gate[-1]


def labels(call: Call) -> Rule:
    # Offsets count the rows of all shards. The activation takes whole sums over `k`.
    inputs = {"A": ("m", "k"), "gate": ("g", "k", "n"), "up": ("g", "k", "n"), "offs": ("g",)}
    whole = ["m", "k"]
    if call.index is not None:
        inputs |= {"A": ("t", "k"), "index": ("m",)}
        whole.append("t")
    biases = [name for name in ("gate_bias", "up_bias") if getattr(call, name) is not None]
    inputs |= {name: ("g", "n") for name in biases}
    return Rule([("m", "n")], inputs, whole=whole)


def lowering(call: Call) -> Lowering | None:
    # Kernels take factors of equal strides. Offsets of int64 are converted in front of the launch.
    has_others = any(of is not None for of in (call.gate_bias, call.up_bias, call.index))
    is_plain = not has_others and call.offs.dtype is torch.int32
    if not is_plain or call.gate.stride() != call.up.stride():
        return None
    return Lowering(["up"], _epilogues.gated(call.activation), offsets="offs")


OPERATORS = (
    Operator(
        schema="grouped_gated_mm(Tensor A, Tensor gate, Tensor up, Tensor offs, "
        'str activation="silu", Tensor? gate_bias=None, Tensor? up_bias=None, '
        "Tensor? index=None) -> Tensor",
        compute=grouped_gated_mm,
        factors=("A", "gate"),
        gradient=Gradient(save, backward),
        vmap=_vmap.one_by_one,  # as of grouped_mm
        flops=flops,
        sharding=labels,
        autocast=("A", "gate", "up"),
        has_out=False,
        lowering=lowering,
        summary="activation(A @ gate) * (A @ up) of groups of A's rows, with biases",
    ),
)
