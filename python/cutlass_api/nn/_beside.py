"""Puts the weights of a module's layers side by side in memory: compiled graphs multiply an input
by several of them, as q, k and v of attention, in one launch.
"""

from collections import Counter, defaultdict
from typing import Any

import torch

from cutlass_api.nn._linear import FIELDS, Linear
from cutlass_api.weights import _adjacent


def place_side_by_side(model: torch.nn.Module) -> None:
    """Moves the fields of the layers of each module which have one format and one K. Layers that
    share their weight with others stay where they are, and so do those of quantized activations,
    of a permutation and of a factor.
    """
    shared = Counter(
        id(layer._buffers["values"])
        for layer in model.modules()
        if isinstance(layer, Linear) and layer.format is not None
    )
    for module in list(model.modules()):
        groups: dict[Any, list[Linear]] = defaultdict(list)
        for layer in dict.fromkeys(module.children()):
            key = _alike(layer) if isinstance(layer, Linear) else None
            if key is not None and shared[id(layer._buffers["values"])] == 1:
                groups[key].append(layer)
        for layers in groups.values():
            if len(layers) > 1:
                _place(layers)


def _alike(layer: Linear) -> Any:
    """What layers have in common that are placed; None for a layer that stays."""
    fields = layer._buffers
    if layer.format is None or layer.activations is not None:
        return None
    if fields["permutation"] is not None or fields["factor"] is not None:
        return None
    present = {name: field for name in FIELDS if (field := fields[name]) is not None}
    if any(type(x) is not torch.Tensor or x.is_meta or x.dim() == 0 for x in present.values()):
        return None
    of_fields = ((name, x.dtype, x.shape[1:], x.device) for name, x in present.items())
    return layer.format, layer.in_features, *of_fields


def _place(layers: list[Linear]) -> None:
    named = {name: [layer._buffers[name] for layer in layers] for name in FIELDS}
    fields = {name: parts for name, parts in named.items() if parts[0] is not None}
    if all(_adjacent.whole(parts) is not None for parts in fields.values()):
        return
    with torch.inference_mode(False), torch.no_grad():
        moved = [_adjacent.beside(parts) for parts in fields.values()]
    found = [copies for copies in moved if copies is not None]
    if len(found) < len(moved):
        return
    for name, copies in zip(fields, found, strict=True):
        for layer, copy in zip(layers, copies, strict=True):
            layer._buffers[name] = copy
            layer._prepared.clear()
