"""``grouped_gated_mlp``: the layers of a mixture of experts where a gradient is needed, and the
operator by which it differentiates."""

from typing import Any

import torch
from torch import Tensor

from cutlass_api.ops import _epilogues, _vmap
from cutlass_api.ops._dense import check_differentiable
from cutlass_api.ops._evaluate import evaluate
from cutlass_api.ops._grouped import offsets_of, rows_of_groups, sums_of_groups
from cutlass_api.ops._labels import Labels, Rule
from cutlass_api.ops._library import empty, launch, refuse, sum_dtype
from cutlass_api.ops._operator import OPS, Call, Gradient, Operator


def gate_and_up(columns: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """The columns of gate and those of up, which alternate if ``interleaved``."""
    if interleaved:
        return columns[..., ::2], columns[..., 1::2]
    gate, up = columns.chunk(2, -1)
    return gate, up


def grouped_gated_mlp(
    A: Tensor,
    up: Tensor,
    down: Tensor,
    offs: Tensor,
    activation: str = "silu",
    interleaved: bool = False,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Rows offs[g-1] to offs[g] of A (TotalM, K) pass through the layers of group g: sums = A @
    up[g] + up_bias[g], and (activation(sums of gate) * sums of up) @ down[g] + down_bias[g].

    up (G, K, 2N) has the columns of gate, then those of up; they alternate if interleaved. down
    (G, N, H), biases (G, 2N) and (G, H). activation: a name of cutlass_api.fusion.activation.
    Returns the result and the sums, of which the derivative is a function. Rows of both past
    offs[-1] are uninitialized.

    Sums and activation are one launch on compute capability 9.0, of float16 and bfloat16 and of
    matrices up contiguous along K; elsewhere torch computes the activation from rounded sums.
    """
    _epilogues.known_activation("grouped_gated_mlp", activation)
    if A.dim() != 2 or not up.dim() == down.dim() == 3 or up.shape[2] != 2 * down.shape[1]:
        raise refuse(
            "grouped_gated_mlp",
            f"A has shape {list(A.shape)}, up {list(up.shape)} and down {list(down.shape)}; pass A "
            "(TotalM, K), up (G, K, 2N) and down (G, N, H)",
        )
    ends = offsets_of("grouped_gated_mlp", offs, up.shape[0])
    result = launched_at_once(A, up, ends, activation, interleaved, up_bias)
    if result is None:
        sums = product(A, up, ends, "up_bias", up_bias)
        gate, other = gate_and_up(sums, interleaved)
        result = evaluate(_epilogues.gated(activation), gate, [other]), sums
    activated, sums = result
    return product(activated, down, ends, "down_bias", down_bias), sums


def product(A: Tensor, B: Tensor, offs: Tensor, name: str, bias: Tensor | None) -> Tensor:
    """A @ B[g] + bias[g], as ``grouped_mm``. ``name``: that of the bias."""
    operands = [] if bias is None else [rows_of_groups("grouped_gated_mlp", name, bias, B)]
    out: Tensor = launch(
        *("grouped_gated_mlp", A, B, *operands),
        out=empty(A, B, (A.shape[0], B.shape[2]), None),
        epilogue=_epilogues.BIAS if operands else None,
        offsets=offs,
    )
    return out


def launched_at_once(
    A: Tensor, up: Tensor, offs: Tensor, activation: str, interleaved: bool, bias: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """The activated rows and the sums, from one launch; None if no kernel takes gate and up."""
    if up.stride(1) != 1 or up.element_size() != 2:
        return None
    biases = {}
    if bias is not None:
        rows = rows_of_groups("grouped_gated_mlp", "up_bias", bias, up)
        biases = dict(zip(("gate_bias", "up_bias"), gate_and_up(rows, interleaved), strict=True))
    sums = empty(A, up, (A.shape[0], up.shape[2]), None)
    activated = sums.new_empty(A.shape[0], up.shape[2] // 2)
    try:
        launch(
            *("grouped_gated_mlp", A, *gate_and_up(up, interleaved), *biases.values()),
            out=(activated, *gate_and_up(sums, interleaved)),
            epilogue=_epilogues.gated(activation, *biases, returns_sums=True),
            offsets=offs,
        )
    except ValueError:  # operands that fit no kernel raise again, from the product of `up`
        return None
    return activated, sums


def grouped_gated_mlp_grad(
    grad: Tensor, down: Tensor, sums: Tensor, offs: Tensor, activation: str, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """The activated rows, which the gradient of down multiplies, and the gradient of the sums, from
    that of the result of grouped_gated_mlp, in one launch. Rows past offs[-1] are uninitialized.
    """
    if not grad.dim() == sums.dim() == 2 or down.dim() != 3:
        raise refuse(
            "grouped_gated_mlp_grad",
            f"grad has shape {list(grad.shape)}, down {list(down.shape)} and sums "
            f"{list(sums.shape)}; pass grad (TotalM, H), down (G, N, H) and sums (TotalM, 2N)",
        )
    ends = offsets_of("grouped_gated_mlp_grad", offs, down.shape[0])
    activated, of_sums = sums.new_empty(sums.shape[0], down.shape[1]), torch.empty_like(sums)
    launch(
        *("grouped_gated_mlp_grad", grad, down.mT, *gate_and_up(sums, interleaved)),
        out=(activated, *gate_and_up(of_sums, interleaved)),
        epilogue=_epilogues.gated_gradient(activation),
        offsets=ends,
    )
    return activated, of_sums


# ---- rules ---------------------------------------------------------------------------------------


def save(ctx: Any, call: Call, output: Any) -> None:
    check_differentiable(call)
    ctx.save_for_backward(call.A, call.up, call.down, call.offs, output[1])
    ctx.activation, ctx.interleaved = call.activation, call.interleaved
    biases = call.up_bias, call.down_bias
    ctx.bias_dtypes = [None if bias is None else bias.dtype for bias in biases]
    ctx.set_materialize_grads(False)


def backward(ctx: Any, needs: Call, grad: Tensor | None, of_sums: Tensor | None) -> dict[str, Any]:
    """Rows past the last group hold any numbers, which the products do not read."""
    A, up, down, offs, sums = ctx.saved_tensors
    gradients: dict[str, Any] = {}
    if grad is not None:
        of_rows = grad.to(A.dtype)
        # A launch has no derivative: a backward that is differentiated again is composed.
        compute = composed if torch.is_grad_enabled() else OPS.grouped_gated_mlp_grad
        activated, of_own = compute(of_rows, down, sums, offs, ctx.activation, ctx.interleaved)
        of_sums = of_own if of_sums is None else of_own + of_sums
        if needs.down:
            gradients["down"] = OPS.grouped_mm_weight_grad(activated, of_rows, offs)
        if needs.down_bias:
            gradients["down_bias"] = sums_of_groups(grad, offs, ctx.bias_dtypes[1])
    if of_sums is None:
        return gradients
    if needs.A:
        gradients["A"] = OPS.grouped_mm(of_sums, up.mT, offs, zero_rest=True)
    if needs.up:
        gradients["up"] = OPS.grouped_mm_weight_grad(A, of_sums, offs)
    if needs.up_bias:
        gradients["up_bias"] = sums_of_groups(of_sums, offs, ctx.bias_dtypes[0])
    return gradients


def composed(
    grad: Tensor, down: Tensor, sums: Tensor, offs: Tensor, activation: str, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """``grouped_gated_mlp_grad``, of operations that have derivatives, and rounded as there."""
    wide, epilogue = sum_dtype(sums.dtype), _epilogues.gated(activation)

    def activate(sums: Tensor) -> Tensor:
        gate, up = gate_and_up(sums, interleaved)
        return evaluate(epilogue, gate, [up])

    activated, pullback = torch.func.vjp(activate, sums.to(wide))
    (of_sums,) = pullback(OPS.grouped_mm(grad, down.mT, offs, None, wide))
    return activated.to(sums.dtype), of_sums.to(sums.dtype)


def flops(call: Call) -> Any:
    """Each row of A (TotalM, K) times matrices of up (G, K, 2N) and of down (G, N, H)."""
    rows, depth = call.A
    return 2 * rows * (depth * call.up[-1] + call.down[-2] * call.down[-1])


def gradient_flops(call: Call) -> Any:
    rows, depth = call.grad
    return 2 * rows * depth * call.down[-2]


def labels(call: Call) -> Rule:
    # Offsets count the rows of all shards. The activation takes whole sums, of gate and of up.
    inputs: dict[Any, Labels] = {
        **{"A": ("m", "k"), "up": ("g", "k", "both"), "down": ("g", "n", "h"), "offs": ("g",)},
        **({} if call.up_bias is None else {"up_bias": ("g", "both")}),
        **({} if call.down_bias is None else {"down_bias": ("g", "h")}),
    }
    return Rule([("m", "h"), ("m", "both")], inputs, whole=["m"])


def gradient_labels(call: Call) -> Rule:
    return Rule([("m", "n"), ("m", "both")], {}, whole=["m", "n"])


OPERATORS = (
    Operator(
        schema="grouped_gated_mlp(Tensor A, Tensor up, Tensor down, Tensor offs, "
        'str activation="silu", bool interleaved=False, Tensor? up_bias=None, '
        "Tensor? down_bias=None) -> (Tensor, Tensor)",
        compute=grouped_gated_mlp,
        factors=("A", "up"),
        gradient=Gradient(save, backward),
        vmap=_vmap.one_by_one,
        flops=flops,
        sharding=labels,
        autocast=("A", "up", "down"),
        has_out=False,
    ),
    Operator(
        schema="grouped_gated_mlp_grad(Tensor grad, Tensor down, Tensor sums, Tensor offs, "
        "str activation, bool interleaved) -> (Tensor, Tensor)",
        compute=grouped_gated_mlp_grad,
        factors=("grad", "down"),
        gradient="differentiate grouped_gated_mlp, whose backward has a derivative",
        vmap=_vmap.one_by_one,
        flops=gradient_flops,
        sharding=gradient_labels,
        autocast=("grad", "down", "sums"),
        has_out=False,
    ),
)
