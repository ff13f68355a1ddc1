"""Products of groups of rows by a stack of weights."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlass_api.nn import _activations
from cutlass_api.ops import OPS
from cutlass_api.weights import Float8, Weight
from cutlass_api.weights._classes import CLASSES
from cutlass_api.weights._formats import Fields

#: The activations in 8 bits that a grouped product takes, and the class of their weights.
SERVED = {"fp8": Float8}


class Stack(NamedTuple):
    """The fields of a stack of weights, and how it multiplies. ``torch.compile`` traces tensors,
    and no objects of ``cutlass_api.weights``.

    ``format``: the name of the class. ``activations``: as of :class:`Linear`.
    """

    fields: Fields
    format: str
    activations: str | None

    def weight(self) -> Any:
        """The object of ``cutlass_api.weights``."""
        named = self.fields._asdict().items()
        return CLASSES[self.format](**{name: x for name, x in named if x is not None})

    def multiply(self, rows: Tensor, offsets: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Each group's rows (rows, K) times its matrix, transposed: (rows, N). ``numbers``: those
        of the groups' rows among ``rows``; None: all, in order.
        """
        out: Tensor
        if self.activations is None:
            rows = rows if numbers is None else rows[numbers]
            out = OPS.quantized_grouped_mm(rows, *self.fields, self.format, offsets)
            return out
        values, scales, *_ = self.fields
        operands = (rows, values, scales, offsets, numbers, _activations.output_dtype(rows))
        if torch.is_grad_enabled() and rows.requires_grad:
            out = Float8Product.apply(*operands)
            return out
        return float8_product(*operands)


def check(activations: str | None, *weights: Weight | Tensor) -> None:
    """Raises ValueError if no weight is one that these activations multiply."""
    if activations is None:
        return
    if activations not in SERVED:
        served = ", ".join(map(repr, (*SERVED, None)))
        raise ValueError(f"activations is {activations!r}; pass one of {served}")
    kind = SERVED[activations]
    if not any(isinstance(weight, kind) for weight in weights):
        raise ValueError(
            f"activations {activations!r} need weights of {kind.__name__}; pass activations=None"
        )


def of_format(format: str, activations: str | None) -> str | None:
    """The activations that multiply weights of a class: None if those in 8 bits do not."""
    is_served = activations in SERVED and SERVED[activations].__name__ == format
    return activations if is_served else None


# ---- Float8 --------------------------------------------------------------------------------------


def float8_product(
    rows: Tensor,
    values: Tensor,
    scales: Tensor,
    offsets: Tensor,
    numbers: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """Rows are quantized in this call, by one kernel, as ``activations="fp8"`` of
    :class:`Linear`, and then gathered.
    """
    of_one = scales[0] if scales.dim() > 1 else scales.reshape(-1)[0]
    format = _activations.format_of("fp8", values[0], of_one)
    a, scale = OPS.quantize(rows, torch.float8_e4m3fn, format.scales.block())
    if numbers is not None:
        a = a.view(torch.uint8)[numbers].view(a.dtype)
        scale = scale[numbers]
    scale_b = scales.mT if scales.dim() > 1 else scales
    out: Tensor = OPS.scaled_grouped_mm(a, values.mT, scale, scale_b, offsets, dtype, False)
    return out


class Float8Product(torch.autograd.Function):
    """The gradient of the rows is that of the product without quantization of the rows. Without
    numbers: `_experts.Gather` has a gradient.
    """

    @staticmethod
    def forward(*operands: Any) -> Tensor:
        return float8_product(*operands)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        rows, *saved, _, _ = inputs
        ctx.save_for_backward(*saved)
        ctx.dtype = rows.dtype

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        values, scales, offsets = ctx.saved_tensors
        fields = (values, scales, None, None, "Float8", offsets)
        return OPS.quantized_grouped_mm_grad(grads[0].to(ctx.dtype), *fields), *(None,) * 5
