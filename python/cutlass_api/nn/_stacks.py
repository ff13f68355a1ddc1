"""Quantized weights of experts, stacked, and their products in groups.

:data:`PRODUCTS` has the formats that a grouped product takes. One more is a record there.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlass_api.nn import _activations
from cutlass_api.ops import OPS
from cutlass_api.weights import Weight
from cutlass_api.weights._classes import CLASSES
from cutlass_api.weights._formats import names
from cutlass_api.weights._scales import BLOCK, WIDE_BLOCK


class Stack(NamedTuple):
    """The weights (N, K) of all experts. ``format``: their class, by name. ``fields``: theirs, with
    a dimension of experts in front.
    """

    format: str
    fields: dict[str, Tensor]

    @property
    def shape(self) -> torch.Size:
        """(experts, N, K)."""
        return torch.Size((len(self.fields["values"]), *self.weight(0).shape))

    def weight(self, expert: int) -> Any:
        """The weight of an expert, whose fields are views."""
        return CLASSES[self.format](**{name: x[expert] for name, x in self.fields.items()})

    def weights(self) -> list[Any]:
        """Those of all experts."""
        return [self.weight(expert) for expert in range(len(self.fields["values"]))]

    def multiply(self, rows: Tensor, offsets: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Each group's rows (rows, K) times its matrix, transposed: (rows, N). ``numbers``: those
        of the groups' rows among ``rows``; None: all, in order.
        """
        return PRODUCTS[self.format].multiply(rows, self.fields, offsets, numbers)


class Product(NamedTuple):
    """A product in groups: ``multiply(rows, fields, offsets, numbers)``, with activations as those
    of :class:`Linear`.
    """

    multiply: Callable[[Tensor, dict[str, Tensor], Tensor, Tensor | None], Tensor]
    activations: str | None


def stacked(weights: Sequence[Weight]) -> Stack:
    """The weights of experts in one stack. Raises ValueError for those that no product in groups
    takes, and for weights of several formats or shapes.
    """
    first = weights[0]
    for weight in weights:
        kind = type(weight).__name__
        if kind not in PRODUCTS:
            raise ValueError(f"{refusal(kind, None)}; pass {names(PRODUCTS)}")
        if weight.permutation is not None:
            raise ValueError("a weight has a permutation, and a product in groups takes none")
        if kind != type(first).__name__ or weight.shape != first.shape:
            raise ValueError(f"weights are {first} and {weight}; pass one format and one shape")
        if weight.format != first.format or weight.device != first.device:
            raise ValueError(
                f"weights are {first} and {weight}; pass scales of one kind, on one device"
            )
    fields = {
        name: stacked_tensors([x.tensors()[name] for x in weights]) for name in first.tensors()
    }
    return Stack(type(first).__name__, fields)


def refusal(format: str, activations: str | None) -> str | None:
    """Why no product in groups takes such weights and activations; None if one does."""
    if format not in PRODUCTS:
        return f"{format} has no product in groups"
    served = PRODUCTS[format].activations
    if activations != served:
        return f"products in groups of {format} have activations {served!r}"
    return None


def stacked_tensors(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.stack`` of any dtype, also of float8 on the CPU."""
    dtype = tensors[0].dtype
    if dtype.itemsize > 1:
        return torch.stack(list(tensors))
    return torch.stack([each.view(torch.uint8) for each in tensors]).view(dtype)


# ---- Float8 --------------------------------------------------------------------------------------


def multiply_float8(
    rows: Tensor, fields: dict[str, Tensor], offsets: Tensor, numbers: Tensor | None
) -> Tensor:
    """Rows are quantized in this call, by one kernel, as ``activations="fp8"`` of
    :class:`Linear`, and then gathered.
    """
    dtype = _activations.output_dtype(rows)
    operands = (rows, fields["values"], fields["scales"], offsets, numbers, dtype)
    if torch.is_grad_enabled() and rows.requires_grad:
        out: Tensor = Float8Product.apply(*operands)
        return out
    return float8_product(*operands)


def float8_product(
    rows: Tensor,
    values: Tensor,
    scales: Tensor,
    offsets: Tensor,
    numbers: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
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
        (grad,) = grads
        grad = grad.to(ctx.dtype)
        matrices = dequantized(values, scales, grad.dtype)
        return OPS.grouped_mm(grad, matrices, offsets, zero_rest=True), *(None,) * 5


def dequantized(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrices (experts, N, K) of a stack of Float8. Classes of weights are not traced."""
    _, n, k = values.shape
    factors = scales_of_rows(scales, n)
    if factors.shape[2] > 1:
        factors = factors.repeat_interleave(BLOCK.depth, 2)[..., :k]
    return (values.float() * factors).to(dtype)


def scales_of_rows(scales: Tensor, n: int) -> Tensor:
    """Scales of (experts, N, K) with one for each row, or for each 128 elements of a row."""
    if scales.dim() == 1:
        return scales[:, None, None].expand(-1, n, 1)
    if scales.shape[1] == n:
        return scales
    return scales.repeat_interleave(WIDE_BLOCK.extent, 1)[:, :n]


#: By the format of the weights.
PRODUCTS = {"Float8": Product(multiply_float8, "fp8")}
