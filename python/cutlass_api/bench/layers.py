"""Layers of transformers' models, and whole models, with random weights in bfloat16."""

import inspect
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from cutlass_api.bench.architectures import Architecture
from cutlass_api.bench.limits import WEIGHT_BYTES
from cutlass_api.nn import Linear

#: With fewer, no layer reads the output of another one.
LEAST_LAYERS = 2
#: How names of the last linear layer of an MLP end.
LAST = ("down", "fc2", "down_proj", "mlp.c_proj")


class Layers(nn.Module):
    """A stack of layers without a cache: the tokens of a call attend to each other."""

    def __init__(self, architecture: Architecture, count: int) -> None:
        super().__init__()
        self.config = config = architecture.make_config()
        layer = architecture.class_of("modeling", architecture.layer)
        # Layers of encoders without a cache do not know their place.
        has_place = "layer_idx" in inspect.signature(layer).parameters
        places = [{"layer_idx": at} if has_place else {} for at in range(count)]
        self.layers = nn.ModuleList(layer(config, **place) for place in places)
        self.rotary = None
        if architecture.rotary:
            self.rotary = architecture.class_of("modeling", architecture.rotary)(config)

    def forward(self, hidden: Tensor, *tables: Tensor) -> Tensor:
        """The output for (batch, tokens, hidden). ``tables``: of `tables`."""
        others = {"position_embeddings": tables} if tables else {}
        for layer in self.layers:
            out = layer(hidden, **others)
            hidden = out[0] if isinstance(out, tuple) else out
        return hidden

    def tables(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """The cosines and sines of the positions; nothing for models without rotary embeddings."""
        if self.rotary is None:
            return ()
        # Computed in float32 by the layer's own formula, then rounded.
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        cos, sin = self.rotary(hidden, positions[None])
        return cos, sin


def in_bfloat16(make: Callable[[], nn.Module], device: str) -> nn.Module:
    """A module whose parameters are random and in bfloat16."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            module = make()
    finally:
        torch.set_default_dtype(before)
    scale_weights(module)
    return module.eval().requires_grad_(False)


def scale_weights(module: nn.Module) -> None:
    """Random weights: a linear layer keeps the norm, and the last one of an MLP halves it, so that
    no layer's output vanishes beside its residual."""
    for name, layer in module.named_modules():
        # Conv1D of transformers is linear.
        is_transposed = type(layer).__name__ == "Conv1D"
        if isinstance(layer, nn.Linear) or is_transposed:
            gain = 0.5 if name.endswith(LAST) else 1.0
            inputs = layer.weight.shape[0 if is_transposed else 1]
            nn.init.normal_(layer.weight, std=gain * inputs**-0.5)
            if layer.bias is not None:
                nn.init.normal_(layer.bias, std=0.1)


def stack_size(architecture: Architecture) -> int:
    """How many layers hold `WEIGHT_BYTES` or more."""
    layer = in_bfloat16(lambda: Layers(architecture, 1), "meta")
    return max(LEAST_LAYERS, math.ceil(WEIGHT_BYTES / weight_bytes(layer)))


def weight_bytes(module: nn.Module) -> int:
    """Bytes of the parameters and of quantized weights. What is shared counts once."""
    tensors = {id(each): each.nbytes for each in module.parameters()}
    for layer in module.modules():
        if isinstance(layer, Linear):
            tensors |= {id(each): each.nbytes for each in layer.buffers()}
    return sum(tensors.values())
