"""The product of a layer in eager mode, prepared once: torch's dispatcher and the checks of the
operator take longer than the launch.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlass_api._core import launch_linear
from cutlass_api._dtypes import E8M0
from cutlass_api.ops import _epilogues


class Arguments(NamedTuple):
    """What ``launch_linear`` takes behind the input; the operands without the bias."""

    b: Tensor
    operands: tuple[Tensor, ...]
    options: dict[str, Any]
    #: The dtype of inputs that the scales of the weight exceed.
    refused: torch.dtype | None


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
        operands = arguments.operands if bias is None else (*arguments.operands, bias)
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
        self.arguments = arguments_of(layer.weight, layer.bias is not None)


def arguments_of(weight: Any, has_bias: bool) -> Arguments | None:
    """None for a weight whose product needs more than views of its fields."""
    if weight.shape[1] == 0:
        return None
    if isinstance(weight, Tensor):
        epilogue = _epilogues.linear(None, True) if has_bias else None
        return Arguments(weight.t(), (), {"epilogue": epilogue}, None)
    format, is_packed = weight.format, weight.format.packing > 1
    if weight.permutation is not None or format.adds_zero:
        return None
    if is_packed and not weight.is_repacked:
        return None
    operands, blocks = format.of_product(weight.fields)
    names = (*operands, "bias") if has_bias else tuple(operands)
    options = {"epilogue": _epilogues.scaled(*names, blocks=blocks)}
    if is_packed:
        options["element"] = format.kernel_element
    refused = torch.float16 if format.scales.dtype is E8M0 else None
    values = weight.values if is_packed else weight.values.t()
    return Arguments(values, tuple(operands.values()), options, refused)
