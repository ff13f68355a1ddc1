"""``grouped_gated_mm``: gate and up of a mixture of experts in one launch."""

from typing import Any

import torch
from torch import Tensor

from cutlass_api.ops import _epilogues, _vmap
from cutlass_api.ops._dense import check_differentiable
from cutlass_api.ops._evaluate import evaluate
from cutlass_api.ops._grouped import offsets_of
from cutlass_api.ops._labels import Rule
from cutlass_api.ops._library import empty, launch, refuse, sum_dtype
from cutlass_api.ops._operator import OPS, Call, Gradient, Operator


def grouped_gated_mm(
    A: Tensor, gate: Tensor, up: Tensor, offs: Tensor, activation: str = "silu"
) -> Tensor:
    """activation(A @ gate[g]) * (A @ up[g]) for rows offs[g-1] to offs[g] of A (TotalM, K), with
    gate and up (G, K, N). activation: a name of cutlass_api.fusion.activation.

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
    out = empty(A, gate, (A.shape[0], gate.shape[2]), None)
    epilogue = _epilogues.gated(activation)
    try:
        return launch("grouped_gated_mm", A, gate, up, out=out, epilogue=epilogue, offsets=offs)
    except ValueError:
        # No kernel takes both factors. Operands that fit none raise again below.
        wide = sum_dtype(A.dtype)
        products = [
            launch(
                "grouped_gated_mm", A, factor, out=empty(A, factor, out.shape, wide), offsets=offs
            )
            for factor in (gate, up)
        ]
        return evaluate(epilogue, products[0], products[1:]).to(out.dtype)


# ---- rules ---------------------------------------------------------------------------------------


def save(ctx: Any, call: Call, output: Any) -> None:
    check_differentiable(call)
    ctx.save_for_backward(call.A, call.gate, call.up, call.offs)
    ctx.activation = call.activation


def backward(ctx: Any, needs: Call, grad: Tensor) -> dict[str, Any]:
    """Computes both products again, and differentiates the epilogue in their dtype with torch. Rows
    past the last group hold any numbers, which the products below do not read."""
    A, gate, up, offs = ctx.saved_tensors
    dtype = sum_dtype(A.dtype)
    products = [OPS.grouped_mm(A, factor, offs, None, dtype) for factor in (gate, up)]
    epilogue = _epilogues.gated(ctx.activation)
    _, pullback = torch.func.vjp(lambda gate, up: evaluate(epilogue, gate, [up]), *products)
    gradients = [each.to(A.dtype) for each in pullback(grad.to(dtype))]
    of_a = None
    if needs.A:
        pairs = zip(gradients, (gate, up), strict=True)
        parts = [OPS.grouped_mm(x, factor.mT, offs, None, dtype, True) for x, factor in pairs]
        of_a = (parts[0] + parts[1]).to(A.dtype)
    wanted = zip(gradients, (needs.gate, needs.up), strict=True)
    of_gate, of_up = (
        OPS.grouped_mm_weight_grad(A, each, offs) if needed else None for each, needed in wanted
    )
    return {"A": of_a, "gate": of_gate, "up": of_up}


def flops(call: Call) -> Any:
    """Each row of A (TotalM, K) times one matrix of each of two (G, K, N)."""
    rows, depth = call.A
    return 4 * rows * depth * call.gate[-1]


def labels(call: Call) -> Rule:
    # Offsets count the rows of all shards. The activation takes whole sums over `k`.
    inputs = {"A": ("m", "k"), "gate": ("g", "k", "n"), "up": ("g", "k", "n"), "offs": ("g",)}
    return Rule([("m", "n")], inputs, whole=["m", "k"])


OPERATORS = (
    Operator(
        schema="grouped_gated_mm(Tensor A, Tensor gate, Tensor up, Tensor offs, "
        'str activation="silu") -> Tensor',
        compute=grouped_gated_mm,
        factors=("A", "gate"),
        gradient=Gradient(save, backward),
        vmap=_vmap.one_by_one,  # as of grouped_mm
        flops=flops,
        sharding=labels,
        autocast=("A", "gate", "up"),
        has_out=False,
        summary="activation(A @ gate) * (A @ up) of groups of A's rows",
    ),
)
