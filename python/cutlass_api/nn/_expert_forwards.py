"""The forward of transformers' modules of experts by grouped products."""

from typing import Any

import torch
from torch import Tensor

from cutlass_api._dtypes import FLOATS
from cutlass_api.nn import _experts
from cutlass_api.nn._expert_modules import activation_of
from cutlass_api.nn._stacks import Stack
from cutlass_api.utils import ceil_div
from cutlass_api.weights._formats import Fields


def experts_forward(module: Any, hidden_states: Tensor, index: Tensor, weights: Tensor) -> Tensor:
    """The forward of transformers' modules of experts, by grouped products.

    - ``hidden_states``: (tokens, hidden). ``index``, ``weights``: (tokens, top_k).
    - ``module``: a module that ``transformers.integrations.moe.use_experts_implementation``
      describes. Its ``_apply_gate``, or ``act_fn`` without a gate, computes the activation.

    Slots whose index is the module's number of experts or above count nothing: expert parallelism
    masks the experts of other processes so. Raises ValueError for a negative index on the CPU.
    """

    def layer(name: str) -> tuple[Tensor | Stack, Tensor | None]:
        weight = getattr(module, name)
        bias = getattr(module, f"{name}_bias") if module.has_bias else None
        if weight.dtype is torch.float8_e4m3fn:
            return float8_stack(module, name), bias
        return weight if module.is_transposed else weight.mT, bias

    return _experts.experts(
        *(hidden_states, index, weights),
        up=layer("gate_up_proj" if module.has_gate else "up_proj"),
        down=layer("down_proj"),
        activate=activation_of(module),
        finish=module.post_expert_norm if module.has_post_expert_norm else None,
    )


def fp8_experts_forward(
    module: Any, hidden_states: Tensor, index: Tensor, weights: Tensor
) -> Tensor:
    """The forward of transformers' ``FP8Experts``, as :func:`experts_forward`: for float8_e4m3fn
    with scales of the matrix, of 1 x 128 or of 128 x 128, in float32 or float8_e8m0fnu. The input
    of each product is quantized in each call. Others, as FP4 in int8, go to transformers'
    "grouped_mm".

    Raises NotImplementedError for static scales of activations.
    """
    if module.activation_scheme == "static":
        raise NotImplementedError(
            'cutlass_api: activation_scheme="static" of experts is not served; call '
            'model.set_experts_implementation("eager")'
        )
    block, dtype = module.block_size, module.down_proj.dtype
    is_served = block is None or tuple(block) in ((128, 128), (1, 128))
    if dtype in FLOATS or (dtype is torch.float8_e4m3fn and is_served):
        return experts_forward(module, hidden_states, index, weights)
    from transformers.integrations import finegrained_fp8

    out: Tensor = finegrained_fp8.fp8_grouped_mm_experts_forward(
        module, hidden_states, index, weights
    )
    return out


def float8_stack(module: Any, name: str) -> Stack:
    """A weight of ``FP8Experts`` with its scales (experts, rows, columns). If there are two rows in
    place of one, they are those of gate and of up.
    """
    values = getattr(module, name).detach()
    scales = getattr(module, f"{name}_scale_inv").detach().float()
    n, rows = values.shape[1], scales.shape[1]
    if rows > (1 if module.block_size is None else ceil_div(n, module.block_size[0])):
        scales = scales.repeat_interleave(n // rows, 1)
    elif module.block_size is None:
        scales = scales.flatten()
    return Stack(Fields(values, scales), "Float8", "fp8")
