"""The product of a layer in eager mode, prepared once: torch's dispatcher and the checks of the
operator take longer than the launch.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlass_api._core import computes_alone, launch_linear
from cutlass_api._dtypes import E8M0
from cutlass_api.nn._activations import format_of
from cutlass_api.ops import _epilogues
from cutlass_api.ops._quantize import INPUTS, quantized
from cutlass_api.ops._quantized_linear import factor_of
from cutlass_api.weights._formats import Format


class Arguments(NamedTuple):
    """What ``launch_linear`` takes behind the input; the operands without the bias."""

    b: Tensor
    operands: tuple[Tensor, ...]
    options: dict[str, Any]
    #: The dtype of inputs that the scales of the weight exceed.
    refused: torch.dtype | None = None
    #: The format of the quantized input.
    quantized: Format | None = None


class Prepared:
    """The arguments of a layer's product, while its buffers are the same tensors at the same
    addresses.

    Copies are empty: the arguments are views of the layer's buffers.
    """

    def __init__(self) -> None:
        self.clear()

    def __reduce__(self) -> Any:
        return Prepared, ()

    def clear(self) -> None:
        """Forgets the tensors, whose memory is then free if the layer has others."""
        self.key: tuple[int, ...] = ()
        self.tensors: list[Tensor] = []
        self.addresses: list[int] = []
        self.arguments: Arguments | None = None

    def multiply(self, layer: Any, input: Tensor) -> Tensor | None:
        """The result of ``nn.Linear``; None if an operator has to compute it."""
        bias = layer.bias
        key = (id(bias), *map(id, layer._buffers.values()))
        if key != self.key or [x.data_ptr() for x in self.tensors] != self.addresses:
            self.prepare(layer, key)
        arguments = self.arguments
        if arguments is None or input.dtype is arguments.refused:
            return None
        added = () if bias is None else (bias,)
        if arguments.quantized is not None:
            return multiply_quantized(arguments, arguments.quantized, input, added)
        operands = (*arguments.operands, *added)
        return launch_linear(input, arguments.b, *operands, **arguments.options)

    def prepare(self, layer: Any, key: tuple[int, ...]) -> None:
        self.clear()
        tensors = [x for x in layer._buffers.values() if x is not None]
        if any(type(x) is not Tensor or x.is_meta for x in tensors):
            return
        try:
            self.addresses = [x.data_ptr() for x in tensors]
        except RuntimeError:  # tensors of a transform have no memory
            return
        self.key, self.tensors = key, tensors
        self.arguments = arguments_of(layer.weight, layer.bias is not None, layer.activations)


def multiply_quantized(
    arguments: Arguments, format: Format, input: Tensor, bias: tuple[Tensor, ...]
) -> Tensor | None:
    """Two launches: the first one quantizes the input."""
    if not computes_alone(input, *bias) or input.dtype not in INPUTS:
        return None
    if input.numel() == 0 or input.dim() < 2 or not input.is_contiguous():
        return None
    rows = input if input.dim() == 2 else input.view(-1, input.shape[-1])
    fields = quantized(rows, format, is_a=True)
    out: Tensor | None = launch_linear(
        *(fields.values, arguments.b, fields.scales, *arguments.operands, *bias),
        **arguments.options,
        out_dtype=input.dtype,
    )
    if out is None or input.dim() == 2:
        return out
    return out.view(*input.shape[:-1], out.shape[-1])


def arguments_of(weight: Any, has_bias: bool, activations: str | None) -> Arguments | None:
    """None for a weight whose product needs more than views of its fields."""
    if weight.shape[1] == 0:
        return None
    if isinstance(weight, Tensor):
        epilogue = _epilogues.linear(None, True) if has_bias else None
        return Arguments(weight.t(), (), {"epilogue": epilogue})
    format = weight.format
    is_copied = format.packing > 1 and not weight.is_repacked
    if is_copied or weight.permutation is not None or format.adds_zero:
        return None
    values, operands, blocks, element = factor_of(weight)
    names = (*operands, "bias") if has_bias else tuple(operands)
    options: dict[str, Any] = {"element": element}
    of_input = None
    if activations is not None:
        if weight.scales.dtype is not torch.float32:
            return None
        of_input = format_of(activations, weight.values, weight.scales)
        if of_input.scales.varies_along_k:
            blocks = {"a": of_input.scales.arguments("a"), **blocks}
        names = ("scale_a", *names)
    options["epilogue"] = _epilogues.scaled(*names, blocks=blocks)
    refused = torch.float16 if format.scales.dtype is E8M0 else None
    return Arguments(values, tuple(operands.values()), options, refused, of_input)
