"""Puts the weights of a module's layers side by side in memory: compiled graphs multiply an input
by several of them, as q, k and v of attention, in one launch.
"""

from collections import Counter, defaultdict
from typing import Any

import torch
from torch import Tensor

from cutlass_api.nn._linear import Linear
from cutlass_api.weights import _adjacent


def place_side_by_side(model: torch.nn.Module) -> None:
    """Moves the tensors of the layers of each module that `_alike` describes alike. Layers that
    share a weight or a bias with others stay where they are.
    """
    shared = Counter(
        id(tensor)
        for layer in model.modules()
        if isinstance(layer, Linear) and layer.format is not None
        for tensor in _tensors(layer).values()
    )
    for module in list(model.modules()):
        groups: dict[Any, list[Linear]] = defaultdict(list)
        for layer in dict.fromkeys(module.children()):
            key = _alike(layer) if isinstance(layer, Linear) else None
            if key is not None and all(shared[id(x)] == 1 for x in _tensors(layer).values()):
                groups[key].append(layer)
        for layers in groups.values():
            if len(layers) > 1:
                _place(layers)


def _tensors(layer: Linear) -> dict[str, Tensor]:
    """The fields of the weight, and the bias."""
    named = {**layer._buffers, "bias": layer.bias}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _alike(layer: Linear) -> Any:
    """What layers have in common that are placed. None for a layer that stays: of a plain matrix, a
    permutation, a factor, or one scale for all of the weight.
    """
    tensors = _tensors(layer)
    if layer.format is None or not tensors.keys().isdisjoint(("permutation", "factor")):
        return None
    plain = (torch.Tensor, torch.nn.Parameter)
    if any(type(x) not in plain or x.is_meta or x.dim() == 0 for x in tensors.values()):
        return None
    described = ((name, x.dtype, x.shape[1:], x.device) for name, x in tensors.items())
    return layer.format, layer.activations, layer.in_features, *described


def _place(layers: list[Linear]) -> None:
    named = [_tensors(layer) for layer in layers]
    lists = {name: [tensors[name] for tensors in named] for name in named[0]}
    if all(_adjacent.whole(parts) is not None for parts in lists.values()):
        return
    with torch.inference_mode(False), torch.no_grad():
        moved = {name: _adjacent.beside(parts) for name, parts in lists.items()}
    if any(copies is None for copies in moved.values()):
        return
    for name, copies in moved.items():
        for layer, copy in zip(layers, copies or (), strict=True):
            if name == "bias":
                assert layer.bias is not None
                layer.bias.data = copy
            else:
                layer._buffers[name] = copy
            layer._prepared.clear()
