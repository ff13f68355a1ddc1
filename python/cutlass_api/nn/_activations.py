"""Products of activations that are quantized at run time, and their gradient."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlass_api.ops import OPS, int8_mm, scaled_mm
from cutlass_api.weights import Float8, Int8, Weight
from cutlass_api.weights._formats import Format, find_format
from cutlass_api.weights._scales import WHOLE


class Activations(NamedTuple):
    """A way to quantize activations: one kernel, and one product, with scales and bias."""

    name: str
    dtype: torch.dtype
    #: The class of weights that it multiplies.
    weight: type[Weight]
    #: ``product(a, b, scale_a, scale_b, out_dtype=, bias=)``.
    product: Callable[..., Tensor]
    #: Whether weights may have scales that vary along K. Activations then have one for each 128
    #: elements of a row, else one for each row.
    has_blocks: bool


ACTIVATIONS = {
    each.name: each
    for each in (
        Activations("fp8", torch.float8_e4m3fn, Float8, scaled_mm, has_blocks=True),
        Activations("int8", torch.int8, Int8, int8_mm, has_blocks=False),
    )
}


def check(activations: str, weight: Weight | Tensor) -> None:
    """Raises ValueError if a product of such activations takes no such weight."""
    if activations not in ACTIVATIONS:
        served = ", ".join(map(repr, (*ACTIVATIONS, None)))
        raise ValueError(f"Linear: activations is {activations!r}; pass one of {served}")
    record = ACTIVATIONS[activations]
    if not isinstance(weight, record.weight):
        raise ValueError(
            f"Linear: activations {activations!r} need a weight of {record.weight.__name__}, and "
            f"the weight is {type(weight).__name__}; pass activations=None"
        )
    if record.has_blocks:
        return
    if has_blocks(weight.values, weight.scales) or weight.scales.dtype is not torch.float32:
        raise ValueError(
            f"Linear: activations {activations!r} need a float32 scale for each row, and the "
            f"weight has scales {weight.scales.dtype} {list(weight.scales.shape)}; pass "
            "activations=None"
        )


def has_blocks(values: Tensor, scales: Tensor) -> bool:
    """Whether scales vary along K, or along K and N."""
    return scales.dim() > 0 and tuple(scales.shape) != (values.shape[0], 1)


def format_of(activations: str, values: Tensor, scales: Tensor) -> Format:
    """The format of the quantized input of a weight with these values and scales."""
    block = (1, 128) if has_blocks(values, scales) else (1, WHOLE)
    return find_format(ACTIVATIONS[activations].dtype, block, False)[0]


def linear(
    input: Tensor,
    values: Tensor,
    scales: Tensor,
    permutation: Tensor | None,
    bias: Tensor | None,
    activations: str,
) -> Tensor:
    """input @ weight.T + bias, with the input (*, K) quantized as ``activations`` says. The result
    has the dtype of the input, or that of autocast.
    """
    operands = (input, bias, values, scales, permutation, activations, output_dtype(input))
    if torch.is_grad_enabled():
        return WithGradient.apply(*operands)
    return product(*operands)


def output_dtype(input: Tensor) -> torch.dtype:
    """The dtype of the input, or that of autocast."""
    device, dtype = input.device.type, input.dtype
    # Autocast leaves float64 as it is, and has no meta tensors.
    is_cast = device != "meta" and dtype is not torch.float64
    if is_cast and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return dtype


def product(
    input: Tensor,
    bias: Tensor | None,
    values: Tensor,
    scales: Tensor,
    permutation: Tensor | None,
    activations: str,
    dtype: torch.dtype,
) -> Tensor:
    record = ACTIVATIONS[activations]
    rows = input if input.dim() == 2 else input.reshape(-1, input.shape[-1])
    if permutation is not None:
        rows = rows.index_select(1, permutation)
    format = format_of(activations, values, scales)
    a, scale = OPS.quantize(rows, record.dtype, format.scales.block())
    weight_scales = scales.t() if scales.dim() else scales
    out = record.product(a, values.t(), scale, weight_scales, out_dtype=dtype, bias=bias)
    return out if input.dim() == 2 else out.reshape(*input.shape[:-1], out.shape[-1])


class WithGradient(torch.autograd.Function):
    """The gradient of the product without quantization of the activations, which has none."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*operands: Any) -> Tensor:
        return product(*operands)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        input, bias, values, scales, permutation, activations, _ = inputs
        ctx.save_for_backward(values, scales, permutation)
        ctx.format = ACTIVATIONS[activations].weight.__name__
        ctx.dtype = input.dtype
        ctx.bias = None if bias is None else (bias.shape, bias.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,) = grads
        values, scales, permutation = ctx.saved_tensors
        of_input = of_bias = None
        if ctx.needs_input_grad[0]:
            fields = (values, scales, None, None, permutation)
            of_input = OPS.quantized_linear_grad(grad, *fields, ctx.format).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            shape, dtype = ctx.bias
            of_bias = (grad if grad.dim() > 1 else grad[None]).sum_to_size(shape).to(dtype)
        return of_input, of_bias, None, None, None, None, None
