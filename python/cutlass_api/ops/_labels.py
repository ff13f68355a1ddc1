"""Sharding rules, as labels of dimensions.

A rule names the dimensions of a product: ``l`` (batch), ``m``, ``n``, ``k`` and ``g`` (groups).
Each tensor has a label for each of its dimensions, None for one that broadcasts. A mesh dimension
shards one dimension of the product: tensors with that label are sharded there, others are
replicated. If ``k`` is sharded, the results are partial sums, which requires a linear epilogue.
``_sharding.py`` makes DTensor's placements of the rules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cutlass_api.ops._library import batch_of
from cutlass_api.ops._operator import Call
from cutlass_api.weights._scales import SWIZZLED_TILE, Scales, oriented

#: What a rule gets in place of a DTensor: its global shape, its mesh and ``tensor_meta``.
Spec = Any
#: The dimension of the product that each dimension of a tensor is.
Labels = tuple[str | None, ...]
#: An argument of a call, or a member of a list: the name and the position.
Key = Any

#: What a product sums over.
SUMS = ("k",)


@dataclass
class Rule:
    """The labels of the tensors of a call.

    ``inputs``: by argument. The arguments that a rule leaves out are replicated. ``whole``: the
    dimensions of the first output that no mesh dimension shards. ``sums``: those of which the
    outputs of parts add up to the output. ``factors``: inputs in which the output is linear, so
    that they may be partial sums. ``addends``: inputs that the output adds to the product.
    ``blocks``: for dimensions of which a shard must consist of whole blocks, the extent of a block;
    0 if the dimension must stay whole.
    """

    outputs: Sequence[Labels]
    inputs: Mapping[Key, Labels]
    whole: Sequence[str | None] = (None,)
    sums: Sequence[str] = ()
    factors: Sequence[Key] = ()
    addends: Sequence[Key] = ()
    blocks: Mapping[str, int] = field(default_factory=dict)


class Blocks(dict[str, int]):
    """The extent of a block of each dimension; 0 for one that stays whole."""

    def require(self, name: str, extent: int) -> None:
        """Adds blocks to those of a dimension. Extents are powers of two."""
        extents = (extent, self.get(name, 1))
        self[name] = 0 if 0 in extents else max(extents)

    def add(self, scales: Scales, outer: str, deep: str, is_a: bool, rank: int) -> Labels:
        """Adds the blocks of scales that differ between rows. Returns the labels of the scales."""
        if scales.is_swizzled:  # tiles of 128 rows, each of which holds all of K
            self.require(deep, 0)
            self.require(outer, SWIZZLED_TILE[0])
            return (*(None for _ in range(rank - 1)), outer)
        self.require(outer, scales.extent)
        if scales.varies_along_k:
            self.require(deep, scales.depth)
        return oriented(outer, deep if scales.varies_along_k else None, is_a)


def dtype_of(spec: Spec) -> torch.dtype:
    dtype: torch.dtype = spec.tensor_meta.dtype
    return dtype


def extents_of(specs: Mapping[Key, Spec], inputs: Mapping[Key, Labels]) -> dict[str, Any]:
    """The extent of each dimension, from the first tensor that has it."""
    found: dict[str, Any] = {}
    for key, labels in inputs.items():
        for name, extent in zip(labels, specs[key].shape, strict=True):
            if name is not None:
                found.setdefault(name, extent)
    return found


class Product:
    """The labels of the factors A and B and of A @ B, and the extents of its dimensions."""

    def __init__(self, call: Call) -> None:
        A, B = call.factors
        self.batch = batch_of(A, B)
        self.a = self.behind_batch(A, ("m", "k"))
        self.b = self.behind_batch(B, ("k", "n"))
        self.out: Labels = ("m", "n") if self.batch is None else ("l", "m", "n")
        self.inputs: dict[Key, Labels] = dict(
            zip(call.operator.factors, (self.a, self.b), strict=True)
        )
        specs = dict(zip(call.operator.factors, (A, B), strict=True))
        self.extents = extents_of(specs, self.inputs)

    def behind_batch(self, operand: Spec, labels: Labels) -> Labels:
        """The labels of an operand, from those that it has for one product."""
        if len(labels) == len(operand.shape):
            return labels
        return ("l" if operand.shape[0] == self.batch else None, *labels)


def broadcast(operand: Spec, out: Labels) -> Labels:
    """The labels of an operand that broadcasts to an output with these labels."""
    rank = len(operand.shape)
    names = ((None,) * rank + out)[-rank:] if rank else ()
    return tuple(
        None if extent == 1 else name for name, extent in zip(names, operand.shape, strict=True)
    )


def product(call: Call) -> Rule:
    """The rule of products of floats or integers, to which the other operands are added."""
    labels = Product(call)
    addends = {name: broadcast(spec, labels.out) for name, spec in call.others.items()}
    is_float = dtype_of(call.factors[0]).is_floating_point
    return Rule(
        [labels.out],
        {**labels.inputs, **addends},
        sums=SUMS,
        factors=call.operator.factors if is_float else (),
        addends=list(addends),
    )
