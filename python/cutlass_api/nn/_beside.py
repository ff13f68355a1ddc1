"""The weights of a module's layers side by side in memory."""

from collections import Counter, defaultdict
from typing import Any

import torch
from torch import Tensor

from cutlass_api.nn._linear import Linear
from cutlass_api.weights import _adjacent


def place_side_by_side(model: torch.nn.Module) -> None:
    """Moves the weights of each module's layers to one place in memory, where compiled graphs
    multiply an input by all of them in one launch.

    Layers of one format that have the same K, size of groups, dtype of scales and activations, on
    one device, all with a bias or all without, lie one behind the other in the module's order.
    :func:`convert` and :func:`load` do so at their end. What moves the tensors one by one takes
    them apart: ``model.to``, copies of the model, ``load_state_dict(assign=True)``, a pickle. Call
    this function after it. It copies the weights of one module at a time, and changes no values.

    These layers stay where they are: with a factor (NVFP4), a permutation, or one scale for all of
    the weight; on ``meta``, or sharded; that are part of two modules, or share a weight or a bias
    with another layer; and those whose weights would not begin at multiples of 16 bytes.
    """
    modules = list(model.modules())
    parents = Counter(id(child) for module in modules for child in set(module.children()))
    memory = Counter(
        _adjacent.identity(tensor)
        for module in modules
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None
    )
    for module in modules:
        groups: dict[Any, list[Linear]] = defaultdict(list)
        for layer in dict.fromkeys(module.children()):
            if not isinstance(layer, Linear) or parents[id(layer)] > 1:
                continue
            if any(memory[_adjacent.identity(tensor)] > 1 for tensor in _tensors(layer).values()):
                continue
            groups[_alike(layer)].append(layer)
        for key, layers in groups.items():
            if key is not None and len(layers) > 1:
                _place(layers)


def _tensors(layer: Linear) -> dict[str, Tensor]:
    """The fields of the weight, and the bias."""
    named = {**layer._buffers, "bias": layer.bias}
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _alike(layer: Linear) -> Any:
    """What layers have in common that are placed. None for a layer that stays."""
    tensors = _tensors(layer)
    if layer.format is None or not tensors.keys().isdisjoint(("permutation", "factor")):
        return None
    plain = (torch.Tensor, torch.nn.Parameter)
    if any(type(x) not in plain or x.is_meta or x.dim() == 0 for x in tensors.values()):
        return None
    if layer.bias is not None and layer.bias.is_inference():
        return None
    described = ((name, x.dtype, x.shape[1:], x.device) for name, x in tensors.items())
    return layer.format, layer.activations, layer.in_features, *described


def _place(layers: list[Linear]) -> None:
    named = [_tensors(layer) for layer in layers]
    lists = {name: [tensors[name] for tensors in named] for name in named[0]}
    apart = {name: parts for name, parts in lists.items() if not _adjacent.are_beside(parts)}
    # The memory of a bias may be part of what is not the layer's.
    if any(map(_adjacent.is_part, apart.get("bias", ()))):
        return
    with torch.inference_mode(False), torch.no_grad():
        moved = {name: _adjacent.beside(parts) for name, parts in apart.items()}
    if any(copies is None for copies in moved.values()):
        return
    for name, copies in moved.items():
        for layer, copy in zip(layers, copies or (), strict=True):
            if name == "bias":
                assert layer.bias is not None
                layer.bias.data = copy
            else:
                layer._buffers[name] = copy
    for layer in layers:
        layer._prepared.clear()
