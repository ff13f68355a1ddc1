"""Mixtures of experts in checkpoints: quantized weights that become stacks."""

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
from cutlass_api.nn._stacks import SERVED, of_format
from cutlass_api.weights import Float8, Weight, from_gpt_oss
from cutlass_api.weights._scales import WIDE_BLOCK

E4M3 = torch.float8_e4m3fn
#: Behind the name of a stacked weight: its scales, which transformers does not split by expert when
#: it saves a model.
SUFFIX = "_scale_inv"
#: Behind the name of a stacked weight: the elements and the scales of gpt-oss's MXFP4.
BLOCKS, BLOCK_SCALES = "_blocks", "_scales"
#: Operations of a converter that scales pass as their weights do.
MERGING = ("MergeModulelist", "Concatenate")
#: The classes of weights that multiply activations in 8 bits.
TYPES = tuple(SERVED.values())
#: Makes the stacked tensor of those of the experts, by their names in the file.
Merge = Callable[[dict[str, Tensor]], Tensor]


class Mixtures:
    """The mixtures of a model that a checkpoint fills. ``stacks``: quantized weights by the names
    of the plain tensors, with their activations.
    """

    def __init__(self, model: torch.nn.Module, expected: Mapping[str, Tensor]) -> None:
        self.model, self.expected = model, expected
        self.stacks: dict[str, tuple[Weight, str | None]] = {}
        #: Names of stacked weights, each with the reason why its module stays.
        self.weights: dict[str, str | None] = {}
        #: Those whose plain tensors are (experts, K, N).
        self.transposed: set[str] = set()
        #: Names of scales in the file by that of the stacked weight.
        self.scales: dict[str, str] = {}
        #: Names of stacked weights by those of their blocks of MXFP4 in the file.
        self.blocks: dict[str, str] = {}
        for home, module in model.named_modules(remove_duplicate=False):
            is_own = isinstance(module, Experts)
            if not is_own and not is_mixture(module):
                continue
            dot = f"{original(home)}." if home else ""
            reason = unfit(module) if home else "is the model itself"
            found = {dot + name: reason for name in layers_of(module)}
            self.weights |= found
            if module.transposed if is_own else module.is_transposed:
                self.transposed |= found.keys()

    def find_scales(self, headers: Mapping[str, Header], names: Names) -> list[str]:
        """Finds scales of stacked weights. Returns what is wrong with them."""
        problems = []
        for name, header in headers.items():
            target = names.find(name)[0]
            weight = target.removesuffix(SUFFIX)
            if target == weight or weight not in self.weights or target in self.expected:
                continue
            if weight in self.transposed:
                continue
            self.scales[weight] = name
            try:
                found = torch.empty(header.shape, device="meta")
                values = torch.empty(self.expected[weight].shape, dtype=E4M3, device="meta")
                stack_of(values, found)
            except ValueError as error:
                problems.append(f"{name} {header}: {error}")
        return problems

    def find_blocks(self, headers: Mapping[str, Header], names: Names) -> list[str]:
        """Finds stacked weights in MXFP4. Returns what is wrong with them."""
        problems = []
        for name, header in headers.items():
            target = names.find(name)[0]
            weight = target.removesuffix(BLOCKS)
            if target == weight or weight not in self.weights or target in self.expected:
                continue
            scales = name.removesuffix(BLOCKS) + BLOCK_SCALES
            if scales not in headers:
                problems.append(f"{name} {header}: the file has no {scales}")
                continue
            self.blocks[name], self.scales[weight] = weight, scales
            try:
                self.check_shape(weight, from_gpt_oss(on_meta(header), on_meta(headers[scales])))
            except ValueError as error:
                problems.append(f"{name} {header}: {error}")
        return problems

    def check_shape(self, target: str, stack: Weight) -> None:
        """Raises ValueError for a stack of another shape than that of the model's tensor."""
        count, *extents = self.expected[target].shape
        n, k = extents[::-1] if target in self.transposed else extents
        if tuple(stack.shape) != (count, n, k):
            raise ValueError(f"the file has {list(stack.shape)}, and the model {[count, n, k]}")

    def dequantized(self, target: str, stack: Weight) -> Tensor:
        """A stack as the model's plain tensor."""
        matrices = stack.dequantize(self.expected[target].dtype)
        return matrices.mT if target in self.transposed else matrices

    def refusal(self, target: str, weights: list[tuple[Weight, str | None]]) -> str | None:
        """Why weights of experts, with activations, become no stack; None if they do."""
        if target not in self.weights or target in self.transposed:
            return f"is a part of {target}"
        if (reason := self.weights[target]) is not None:
            return reason
        if any(weight.permutation is not None for weight, _ in weights):
            return "has a permutation, which a stack does not take"
        first, kind = weights[0]
        for weight, other in weights:
            is_alike = type(weight) is type(first) and other == kind
            # Scales of float8 become those of rows.
            if not is_alike or not (isinstance(first, Float8) or weight.format == first.format):
                return "the experts have several formats"
        return None

    def replace(self, only: str | None = None) -> None:
        """Puts :class:`Experts` in place of the modules. ``only``: the name of one; None: all."""
        replaced: dict[int, Experts] = {}
        for home, module in list(self.model.named_modules(remove_duplicate=False)):
            if only not in (None, original(home)):
                continue
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
        stacks = {name: self.stacks.get(f"{home}.{name}") for name in names}
        if isinstance(module, Experts) and not any(stacks.values()):
            own: Experts = module
            return own
        found = operands(module)
        pairs = zip(stacks.values(), found[:2], strict=True)
        up, down = (plain if given is None else given[0] for given, plain in pairs)
        kinds = {given[1] for given in stacks.values() if given and type(given[0]) in TYPES}
        flags: dict[str, Any] = {
            "interleaved": found.interleaved,
            "transposed": found.transposed,
            "activations": kinds.pop() if len(kinds) == 1 else None,
        }
        layer = Experts(up, down, found.up_bias, found.down_bias, found.activation, **flags)
        layer.train(module.training)
        return layer


def layers_of(module: Any) -> tuple[str, ...]:
    """The names of up and down."""
    return tuple(module.formats) if isinstance(module, Experts) else names_of(module)


def on_meta(header: Header) -> Tensor:
    return torch.empty(header.shape, dtype=header.dtype, device="meta")


def activations_of(weight: Weight, activations: str | None) -> str | None:
    """The activations of a product in groups: 16 bits if it takes none in 8 bits."""
    return of_format(type(weight).__name__, activations)


def stack_of(values: Tensor, scales: Tensor) -> Float8:
    """The stack of values (experts, N, K) and scales, of any float dtype."""
    if values.dtype in FLOATS:
        raise ValueError(f"the weight is {values.dtype}, which has no scale")
    if scales.shape[:1] != values.shape[:1]:
        raise ValueError(f"the weight has {len(values)} experts")
    is_one = scales.numel() == values.shape[0]
    scales = scales.float().reshape(-1) if is_one else scales.float()
    return Float8(values, scales)


def merged(weights: Mapping[str, Weight], merge: Merge, has_parts: bool) -> Weight:
    """The stack of weights by their names. ``has_parts``: whether each expert has several, as gate
    and up, whose scales are then merged like their rows.
    """
    first = next(iter(weights.values()))
    fields = {
        key: {name: weight.tensors()[key] for name, weight in weights.items()}
        for key in first.tensors()
    }
    scales = fields["scales"]
    shapes = {each.shape for each in scales.values()}
    if isinstance(first, Float8) and (has_parts or len(shapes) > 1 or not shapes.pop()):
        fields["scales"] = parts_of(weights)
    if has_parts and "factor" in fields:
        fields["factor"] = {
            name: factor.reshape(-1, 1).expand(weights[name].shape[0], 1)
            for name, factor in fields["factor"].items()
        }
    return type(first)(**{key: of_bits(merge, of_all) for key, of_all in fields.items()})


def of_bits(merge: Merge, tensors: dict[str, Tensor]) -> Tensor:
    """Merges tensors of any dtype: torch merges no float8 on the CPU."""
    dtype = next(iter(tensors.values())).dtype
    if dtype.itemsize > 1:
        return merge(tensors)
    return merge({name: each.view(torch.uint8) for name, each in tensors.items()}).view(dtype)


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


def scales_of_rows(scales: Tensor, n: int) -> Tensor:
    """Scales of (experts, N, K) with one for each row, or for each 128 elements of a row."""
    if scales.dim() == 1:
        return scales[:, None, None].expand(-1, n, 1)
    if scales.shape[1] == n:
        return scales
    return scales.repeat_interleave(WIDE_BLOCK.extent, 1)[:, :n]
