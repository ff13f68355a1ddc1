"""Mixtures of experts in checkpoints: float8 weights that become stacks, and their scales."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cutlass_api._dtypes import FLOATS
from cutlass_api.nn._checkpoints import Header
from cutlass_api.nn._expert_modules import is_mixture, names_of, operands, unfit
from cutlass_api.nn._layers import original
from cutlass_api.nn._mixture import Experts
from cutlass_api.nn._names import Names
from cutlass_api.nn._stacks import Stack, refusal, scales_of_rows
from cutlass_api.weights import Weight
from cutlass_api.weights._scales import WIDE_BLOCK

E4M3 = torch.float8_e4m3fn
#: Behind the name of a stacked weight: its scales, which transformers does not split by expert when
#: it saves a model.
SUFFIX = "_scale_inv"
#: Operations of a converter that scales pass as their weights do.
MERGING = ("MergeModulelist", "Concatenate")
#: Makes the stacked tensor of those of the experts, by their names in the file.
Merge = Callable[[dict[str, Tensor]], Tensor]


class Mixtures:
    """The mixtures of a model that a checkpoint fills. ``stacks``: quantized weights by the names
    of the plain tensors.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.stacks: dict[str, Stack] = {}
        #: Names of stacked weights, each with the reason why its module stays.
        self.weights: dict[str, str | None] = {}
        #: Names of scales in the file by that of the stacked weight.
        self.scales: dict[str, str] = {}
        for home, module in model.named_modules(remove_duplicate=False):
            is_own = isinstance(module, Experts)
            if not is_own and not is_mixture(module):
                continue
            if not (module.transposed if is_own else module.is_transposed):
                dot = f"{original(home)}." if home else ""
                reason = unfit(module) if home else "is the model itself"
                self.weights |= {dot + name: reason for name in layers_of(module)}

    def find_scales(
        self, headers: Mapping[str, Header], names: Names, expected: Mapping[str, Tensor]
    ) -> list[str]:
        """Finds scales of stacked weights. Returns what is wrong with them."""
        problems = []
        for name, header in headers.items():
            target = names.find(name)[0]
            weight = target.removesuffix(SUFFIX)
            if target == weight or weight not in self.weights or target in expected:
                continue
            self.scales[weight] = name
            try:
                found = torch.empty(header.shape, device="meta")
                values = torch.empty(expected[weight].shape, dtype=E4M3, device="meta")
                stack_of(values, found).weight(0)
            except ValueError as error:
                problems.append(f"{name} {header}: {error}")
        return problems

    def served(self, target: str, weights: list[tuple[Weight, str | None]], merges: bool) -> bool:
        """Whether weights of experts, with activations, become a stack. ``merges``: whether a
        converter does nothing but merge them.
        """
        if self.weights.get(target, "other") is not None or not merges:
            return False
        return all(refusal(type(weight).__name__, kind) is None for weight, kind in weights)

    def replace(self) -> None:
        """Puts :class:`Experts` in place of the modules."""
        replaced: dict[int, Experts] = {}
        for home, module in list(self.model.named_modules(remove_duplicate=False)):
            if not home or not (isinstance(module, Experts) or is_mixture(module)):
                continue
            if id(module) not in replaced:
                if unfit(module) is not None:
                    continue
                replaced[id(module)] = self._layer(original(home), module)
            parent, _, name = home.rpartition(".")
            self.model.get_submodule(parent)._modules[name] = replaced[id(module)]

    def _layer(self, home: str, module: Any) -> Experts:
        names = layers_of(module)
        stacks = [self.stacks.get(f"{home}.{name}") for name in names]
        if isinstance(module, Experts) and stacks == [None, None]:
            own: Experts = module
            return own
        found = operands(module)
        pairs = zip(stacks, found[:2], strict=True)
        up, down = (plain if stack is None else stack for stack, plain in pairs)
        flags = {"interleaved": found.interleaved, "transposed": found.transposed}
        layer = Experts(up, down, found.up_bias, found.down_bias, found.activation, **flags)
        layer.train(module.training)
        return layer


def layers_of(module: Any) -> tuple[str, ...]:
    """The names of up and down."""
    return tuple(module.formats) if isinstance(module, Experts) else names_of(module)


def stack_of(values: Tensor, scales: Tensor) -> Stack:
    """The stack of values (experts, N, K) and scales, of any float dtype."""
    if values.dtype in FLOATS:
        raise ValueError(f"the weight is {values.dtype}, which has no scale")
    if scales.shape[:1] != values.shape[:1]:
        raise ValueError(f"the weight has {len(values)} experts")
    is_one = scales.numel() == values.shape[0]
    scales = scales.float().reshape(-1) if is_one else scales.float()
    return Stack("Float8", {"values": values, "scales": scales})


def merged(weights: Mapping[str, Weight], merge: Merge, has_parts: bool) -> Stack:
    """The stack of float8 weights by their names. ``has_parts``: whether each expert has several,
    as gate and up, whose scales are then merged like their rows.
    """
    bytes_of = {name: weight.values.view(torch.uint8) for name, weight in weights.items()}
    values = merge(bytes_of).view(E4M3)
    scales = {name: weight.scales for name, weight in weights.items()}
    shapes = {each.shape for each in scales.values()}
    if has_parts or len(shapes) > 1 or not shapes.pop():
        scales = parts_of(weights)
    return Stack("Float8", {"values": values, "scales": merge(scales)})


def parts_of(weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    """Scales of which a row counts for equally many rows of the weight, in any of them."""
    found = weights.values()
    is_whole = all(
        weight.format.scales.extent == WIDE_BLOCK.extent
        and weight.format.scales.varies_along_k
        and weight.shape[0] % WIDE_BLOCK.extent == 0
        for weight in found
    )
    if is_whole:
        return {name: weight.scales for name, weight in weights.items()}
    rows = {}
    for name, weight in weights.items():
        scales = weight.scales if weight.scales.dim() else weight.scales.reshape(1)
        of_one = scales[None] if scales.dim() > 1 else scales
        rows[name] = scales_of_rows(of_one, weight.shape[0])[0]
    columns = max(each.shape[1] for each in rows.values())
    return {name: each.expand(-1, columns) for name, each in rows.items()}
