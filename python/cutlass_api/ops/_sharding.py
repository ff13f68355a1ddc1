"""Sharding rules: how DTensors place the operands and results of the operators.

A rule names the dimensions of a product: ``l`` (batch), ``m``, ``n``, ``k`` and ``g`` (groups).
Each tensor has a label for each of its dimensions, None for one that broadcasts. A mesh dimension
shards one dimension of the product: tensors with that label are sharded there, others are
replicated. If ``k`` is sharded, the results are partial sums, which requires a linear epilogue.
DTensor picks the way to place the tensors that moves the least data.

Importing this module imports torch.distributed.tensor and registers the rules.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy
from torch.distributed.tensor.experimental import register_sharding

from cutlass_api._dtypes import E8M0, FLOAT8, INT8, INTEGER
from cutlass_api.ops import _epilogues
from cutlass_api.ops._library import batch_of
from cutlass_api.ops._products import OPS, product_dtype
from cutlass_api.ops._scales import groups_of
from cutlass_api.weights._scales import (
    BLOCK,
    OF_FLOAT8,
    SWIZZLED_TILE,
    TENSOR,
    WHOLE,
    WIDE_BLOCK,
    Scales,
    find,
    oriented,
    shape_of_one,
)

#: What a rule gets in place of a DTensor: its global shape, its mesh and ``tensor_meta``.
Spec = Any
Placement = Any
#: The dimension of the product that each dimension of a tensor is.
Labels = tuple[str | None, ...]
Placements = tuple[list[Placement], list[Placement]]


#: What a product sums over.
SUMS = ("k",)


@dataclass
class Rule:
    """The labels of the tensors of a call, in the order of the arguments.

    ``whole``: the dimensions of the first output that no mesh dimension shards. ``sums``: those of
    which the outputs of parts add up to the output. ``factors``: inputs in which the output is
    linear, so that they may be partial sums. ``addends``: inputs that the output adds to the
    product. ``blocks``: for dimensions of which a shard must consist of whole blocks, the extent of
    a block; 0 if the dimension must stay whole.
    """

    outputs: Sequence[Labels]
    inputs: Sequence[Labels]
    whole: Sequence[str | None] = (None,)
    sums: Sequence[str] = ()
    factors: Sequence[int] = ()
    addends: Sequence[int] = ()
    blocks: Mapping[str, int] = field(default_factory=dict)

    def placements(self, extents: Mapping[str, Any], devices: int) -> Iterator[Placements]:
        """Outputs and inputs of each way to place the tensors along one mesh dimension."""
        yield [Replicate() for _ in self.outputs], [Replicate() for _ in self.inputs]
        for name in self.outputs[0]:
            if name is not None and name not in self.whole and self.divides(name, extents, devices):
                yield (
                    [sharded(labels, name) for labels in self.outputs],
                    [sharded(labels, name) for labels in self.inputs],
                )
        for name in self.sums:
            if self.divides(name, extents, devices):
                yield self.partial([sharded(labels, name) for labels in self.inputs])
        for factor in self.factors:
            inputs: list[Placement] = [Replicate() for _ in self.inputs]
            inputs[factor] = Partial()
            yield self.partial(inputs)

    def divides(self, name: str, extents: Mapping[str, Any], devices: int) -> bool:
        block = self.blocks.get(name, 1)
        return block == 1 or (block > 0 and extents[name] % (block * devices) == 0)

    def partial(self, inputs: list[Placement]) -> Placements:
        """Placements of which the outputs are partial sums."""
        for at in self.addends:
            inputs[at] = Partial()
        # An output without dimensions is an empty one.
        return [Partial() if labels else Replicate() for labels in self.outputs], inputs


def sharded(labels: Labels, name: str) -> Placement:
    return Shard(labels.index(name)) if name in labels else Replicate()


def extents_of(specs: Sequence[Spec], inputs: Sequence[Labels]) -> dict[str, Any]:
    """The extent of each dimension, from the first tensor that has it."""
    found: dict[str, Any] = {}
    for spec, labels in zip(specs, inputs, strict=True):
        for name, extent in zip(labels, spec.shape, strict=True):
            if name is not None:
                found.setdefault(name, extent)
    return found


def tensors_of(args: Sequence[Any]) -> list[Spec]:
    """The tensors among the arguments, also in lists, in order."""
    found: list[Spec] = []
    for arg in args:
        if isinstance(arg, (list, tuple)):
            found.extend(tensors_of(arg))
        elif hasattr(arg, "tensor_meta"):
            found.append(arg)
    return found


def dtype_of(spec: Spec) -> torch.dtype:
    dtype: torch.dtype = spec.tensor_meta.dtype
    return dtype


# ---- labels --------------------------------------------------------------------------------------


@dataclass
class Product:
    """The labels of A @ B, and the extents of its dimensions."""

    a: Labels
    b: Labels
    out: Labels
    batch: Any
    extents: dict[str, Any]

    def broadcast(self, operand: Spec) -> Labels:
        """The labels of an operand that broadcasts to the output."""
        rank = len(operand.shape)
        names = ((None,) * rank + self.out)[-rank:] if rank else ()
        return tuple(
            None if extent == 1 else name for name, extent in zip(names, operand.shape, strict=True)
        )

    def one(self, operand: Spec) -> tuple[Any, ...]:
        """The shape of an operand for one product, without the batch dimension."""
        return shape_of_one(Ranked(operand), self.batch)

    def behind_batch(self, operand: Spec, labels: Labels) -> Labels:
        """The labels of an operand, from those that it has for one product."""
        if len(labels) == len(operand.shape):
            return labels
        return (batch_label(operand, self.batch), *labels)


def product_of(A: Spec, B: Spec) -> Product:
    """A @ B as (M, N), or (L, M, N) if an operand has a batch."""
    batch = batch_of(Ranked(A), Ranked(B))

    def labels(matrix: Spec, names: Labels) -> Labels:
        return names if len(matrix.shape) == 2 else (batch_label(matrix, batch), *names)

    a, b = labels(A, ("m", "k")), labels(B, ("k", "n"))
    out: Labels = ("m", "n") if batch is None else ("l", "m", "n")
    return Product(a, b, out, batch, extents_of((A, B), (a, b)))


def batch_label(operand: Spec, batch: Any) -> str | None:
    return "l" if operand.shape[0] == batch else None


class Ranked:
    """A tensor's shape and rank, for functions that take tensors."""

    def __init__(self, spec: Spec) -> None:
        self.shape = spec.shape

    def dim(self) -> int:
        return len(self.shape)


# ---- rules ---------------------------------------------------------------------------------------


def mm(A: Spec, B: Spec, **options: Any) -> Rule:
    product = product_of(A, B)
    is_float = dtype_of(A) not in INTEGER
    factors = (0, 1) if is_float else ()
    return Rule([product.out], [product.a, product.b], sums=SUMS, factors=factors)


def addmm(input: Spec, A: Spec, B: Spec, **options: Any) -> Rule:
    product = product_of(A, B)
    inputs = [product.broadcast(input), product.a, product.b]
    return Rule([product.out], inputs, sums=SUMS, factors=(1, 2), addends=[0])


def linear(
    input: Spec, weight: Spec, bias: Spec | None = None, activation: str | None = None
) -> Rule:
    rows = tuple(f"m{at}" for at in range(len(input.shape) - 1))
    inputs: list[Labels] = [(*rows, "k"), ("n", "k")]
    if bias is not None:
        inputs.append(("n",))
    is_linear = activation in (None, "identity")
    return Rule(
        [(*rows, "n")],
        inputs,
        sums=SUMS if is_linear else (),
        factors=(0, 1) if is_linear else (),
        addends=[] if bias is None else [2],
    )


def linear_forward(
    input: Spec, weight: Spec, bias: Spec | None = None, activation: str | None = None
) -> Rule:
    rule = linear(input, weight, bias, activation)
    stores = activation in _epilogues.PREACTIVATION_DERIVATIVES
    rule.outputs = [rule.outputs[0], rule.outputs[0] if stores else ()]
    return rule


def linear_weight_grad(grad: Spec, input: Spec) -> Rule:
    # The sum is over all rows: each of their dimensions counts as `k` of a product.
    rows = tuple(f"k{at}" for at in range(len(grad.shape) - 1))
    inputs: list[Labels] = [(*rows, "n"), (*rows, "k")]
    return Rule([("n", "k")], inputs, sums=rows, factors=(0, 1))


def grouped_mm(A: Spec, B: Spec, offs: Spec, *options: Any) -> Rule:
    # Offsets count the rows of all shards, so that `m` and `g` stay whole.
    inputs: list[Labels] = [("m", "k"), ("g", "k", "n"), ("g",)]
    return Rule([("m", "n")], inputs, whole=["m"], sums=SUMS, factors=(0, 1))


def grouped_mm_weight_grad(A: Spec, grad: Spec, offs: Spec) -> Rule:
    # The sum is over `m`, and `k` is a dimension of the output.
    inputs: list[Labels] = [("m", "k"), ("m", "n"), ("g",)]
    return Rule([("g", "k", "n")], inputs, whole=["g"], factors=(0, 1))


def mixed_mm(
    A: Spec,
    B: Spec,
    scale: Spec | None = None,
    zero_point: Spec | None = None,
    *,
    out_dtype: torch.dtype | None = None,
) -> Rule:
    product = product_of(A, B)
    m, n, depth = (product.extents[name] for name in ("m", "n", "k"))
    is_a = dtype_of(A) in INT8
    vectors: dict[tuple[Any, ...], Labels] = {
        (n,): ("n",),
        (1, n): (None, "n"),
        (m, 1): ("m", None),
    }
    inputs, blocks = [product.a, product.b], {}
    for operand in (scale, zero_point):
        if operand is None:
            continue
        one = product.one(operand)
        labels = vectors.get(one, (None,) * len(one))
        groups = groups_of(one, m if is_a else n, depth, is_a)
        if one not in vectors and groups is not None:
            labels = ("m", "k") if is_a else ("k", "n")
            blocks["k"] = groups.depth
        inputs.append(product.behind_batch(operand, labels))
    return Rule([product.out], inputs, sums=SUMS, factors=[int(is_a)], blocks=blocks)


def scaled_mm(
    A: Spec,
    B: Spec,
    scale_a: Spec,
    scale_b: Spec,
    bias: Spec | None = None,
    scale_result: Spec | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Rule:
    product = product_of(A, B)
    inputs, blocks = [product.a, product.b], Blocks()
    for factor, scale in (("a", scale_a), ("b", scale_b)):
        labels = scale_labels(product, factor, scale, blocks)
        inputs.append(product.behind_batch(scale, labels))
    addends = []
    if bias is not None:
        addends.append(len(inputs))
        inputs.append(product.broadcast(bias))
    if scale_result is not None:
        inputs.append((None,) * len(scale_result.shape))
    is_linear = (out_dtype or dtype_of(A)) not in FLOAT8
    return Rule(
        [product.out], inputs, sums=SUMS if is_linear else (), addends=addends, blocks=blocks
    )


def scale_labels(product: Product, factor: str, scale: Spec, blocks: "Blocks") -> Labels:
    """The labels of the scales of a factor of one product. Adds the extents of their blocks."""
    is_a, outer = factor == "a", "m" if factor == "a" else "n"
    along, depth = product.extents[outer], product.extents["k"]
    served = [each for each in OF_FLOAT8 if (each.dtype is E8M0) == (dtype_of(scale) is E8M0)]
    found = find(served, scale, product.batch, along, depth, is_a)
    if found is None or found == TENSOR:
        return (None,) * len(product.one(scale))
    return blocks.add(found, outer, "k", is_a, len(product.one(scale)))


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


def scaled_grouped_mm(
    A: Spec,
    B: Spec,
    scale_a: Spec,
    scale_b: Spec,
    offs: Spec,
    out_dtype: torch.dtype | None = None,
) -> Rule:
    inputs: list[Labels] = [("m", "k"), ("g", "k", "n")]
    extents = extents_of((A, B), inputs)
    product = Product(inputs[0], inputs[1], ("m", "n"), None, extents)
    blocks = Blocks()
    inputs.append(scale_labels(product, "a", scale_a, blocks))
    shape = tuple(scale_b.shape)
    of_b: Labels = (None,) * len(shape)
    if len(shape) == 3 and shape[1:] != (1, 1):
        of_b = ("g", None, "n") if shape[1] == 1 else ("g", "k", "n")
        if shape[1] != 1:
            blocks.require("k", BLOCK.depth)
        if shape[2] != extents["n"]:
            blocks.require("n", WIDE_BLOCK.extent)
    inputs += [of_b, ("g",)]
    sums = SUMS if (out_dtype or dtype_of(A)) not in FLOAT8 else ()
    return Rule([("m", "n")], inputs, whole=["m"], sums=sums, blocks=blocks)


def mm_epilogue(
    A: Spec,
    B: Spec,
    operands: Sequence[Spec],
    epilogue: str,
    *,
    out_dtype: torch.dtype | None = None,
) -> Rule:
    product = product_of(A, B)
    if _epilogues.scales_blocks(epilogue):
        # The shapes of the scales do not say which factor they belong to.
        whole: list[Labels] = [(None,) * len(spec.shape) for spec in (A, B, *operands)]
        return Rule([product.out], whole, whole=product.out)
    factor = _epilogues.factor(epilogue)
    inputs = [product.a, product.b] + [
        product_of(A, operand).b if at == factor else product.broadcast(operand)
        for at, operand in enumerate(operands)
    ]
    addends = _epilogues.addends(epilogue)
    dtype = out_dtype or product_dtype(dtype_of(A), dtype_of(B))
    is_linear = addends is not None and dtype not in (*INTEGER, *FLOAT8)
    is_float = not {dtype_of(A), dtype_of(B)} & {*INTEGER, *FLOAT8}
    return Rule(
        [product.out],
        inputs,
        sums=SUMS if is_linear else (),
        factors=(0, 1) if is_linear and is_float else (),
        addends=[2 + at for at in addends or ()],
    )


def quantize(input: Spec, dtype: torch.dtype, block: Sequence[int], swizzle: bool = False) -> Rule:
    # A group of the whole matrix along a dimension keeps that dimension whole.
    extents = dict(zip(("m", "k"), block, strict=True))
    blocks = Blocks({name: 0 if extent == WHOLE else extent for name, extent in extents.items()})
    scales: Labels = tuple(name if extents[name] != WHOLE else None for name in extents)
    if all(extent == WHOLE for extent in block):
        scales = ()
    elif swizzle:
        outer, deep = ("m", "k") if block[0] == 1 else ("k", "m")
        scales = (outer,)
        blocks.require(outer, SWIZZLED_TILE[0])
        blocks.require(deep, 0)
    zeros = [scales] if dtype is torch.uint8 else []
    return Rule([("m", "k"), scales, *zeros], [("m", "k")], blocks=blocks)


# ---- registration --------------------------------------------------------------------------------


RULES: dict[str, Callable[..., Rule]] = {
    **dict.fromkeys(("mm", "bmm", "int_mm"), mm),
    **dict.fromkeys(("addmm", "baddbmm"), addmm),
    "linear": linear,
    "linear_forward": linear_forward,
    "linear_weight_grad": linear_weight_grad,
    "grouped_mm": grouped_mm,
    "grouped_mm_weight_grad": grouped_mm_weight_grad,
    "mixed_mm": mixed_mm,
    "scaled_mm": scaled_mm,
    "scaled_grouped_mm": scaled_grouped_mm,
    "mm_epilogue": mm_epilogue,
    "quantize": quantize,
}


def placements(rule: Callable[..., Rule], *args: Any, **options: Any) -> list[Placements]:
    """All ways to place the tensors of a call along one mesh dimension."""
    specs, found = tensors_of(args), rule(*args, **options)
    return list(found.placements(extents_of(specs, found.inputs), specs[0].mesh.size()))


def quantize_strategy(schema: Any) -> Any:
    """``register_sharding`` serves no operator that returns a list."""
    source, *options = schema.args_schema
    spec = source.strategies[0].output_spec
    ways = placements(quantize, spec, *options)
    outputs = len(ways[0][0])
    lists = [[*results, *inputs] for results, inputs in ways]
    return expand_to_full_mesh_op_strategy(spec.mesh, schema, lists, input_index=outputs)


def register(name: str, rule: Callable[..., Rule]) -> None:
    operator = getattr(OPS, name).default
    propagator = DTensor._op_dispatcher.sharding_propagator
    register_sharding(operator)(partial(placements, rule))
    if rule is quantize:
        propagator.register_op_strategy(operator, quantize_strategy)
    # DTensor caches what it computes for a call. By default, the key has the tensors and integers
    # alone, but dtypes, activations and epilogues count, too.
    arguments = operator._schema.arguments
    keywords = [each.name for each in arguments if each.kwarg_only]
    has_list = any(str(each.type) == "List[Tensor]" for each in arguments)
    propagator.op_to_schema_info[operator] = RuntimeSchemaInfo(
        0, keywords or None, needs_pytree=has_list
    )


for name, rule in RULES.items():
    register(name, rule)
