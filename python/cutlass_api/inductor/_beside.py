"""Products of one input by quantized weights, as q, k and v of attention: one launch if the weights
lie side by side in memory, as those of `cutlass_api.nn.convert` and `load` do.

FakeTensors of weights in one storage share a storage, too, so that the pass sees where they lie.
Compiled code looks again: its graph may run with other weights (`_candidates.beside`).
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from cutlass_api.inductor import _candidates as ours
from cutlass_api.inductor import _lowering
from cutlass_api.inductor._joint import needs_own_memory
from cutlass_api.inductor._nodes import (
    add_call,
    has_hints,
    is_call,
    is_input,
    is_static,
    needed_users,
    value_of,
)
from cutlass_api.inductor._products import erase_unused
from cutlass_api.inductor._regions import is_same
from cutlass_api.inductor._torch import V, realize_inputs, register_lowering, row_major_layout
from cutlass_api.inductor._trials import Trial
from cutlass_api.ops import OPERATORS
from cutlass_api.ops._operator import Lowering
from cutlass_api.weights._scales import WIDE_BLOCK

aten = torch.ops.aten
#: The operators of products by weights of 4 and 8 bits.
SERVED = {
    OPERATORS[n].overload: OPERATORS[n] for n in ("quantized_linear", "scaled_mm", "mm_epilogue")
}
#: The key in the metadata of a node of what it computes: a `Lowering`, and the counts of `_counts`.
_COMPUTED = "cutlass_api_beside"


@torch.library.custom_op(
    "cutlass_api_inductor::beside",
    mutates_args=(),
    schema="(Tensor[] tensors, int columns, ScalarType dtype) -> Tensor",
)
def beside(tensors: Sequence[Tensor], columns: int, dtype: torch.dtype) -> Tensor:
    """Products of the first tensor side by side. What they compute is in the node's metadata."""
    raise NotImplementedError("cutlass_api_inductor::beside runs in compiled graphs only")


@beside.register_fake
def _(tensors: Sequence[Tensor], columns: int, dtype: torch.dtype) -> Tensor:
    return tensors[0].new_empty((*tensors[0].shape[:-1], columns), dtype=dtype)


BESIDE = torch.ops.cutlass_api_inductor.beside.default


class Product(NamedTuple):
    """A product. tensors: its arguments in the order of the kernel's, A and B first."""

    node: fx.Node
    offer: Lowering
    tensors: Sequence[fx.Node]

    @property
    def columns(self) -> int:
        return int(value_of(self.node).shape[-1])

    @property
    def place(self) -> int:
        """Where B begins in its storage."""
        return int(value_of(self.tensors[1]).storage_offset())


def join_products(graph: fx.Graph) -> None:
    """Products of one input by weights that lie side by side become one operator."""
    groups: list[list[Product]] = []
    for node in graph.nodes:
        product = _product(node)
        if product is None:
            continue
        group = next((each for each in groups if _are_alike(product, each[0])), None)
        if group is None:
            groups.append([product])
        else:
            group.append(product)
    for group in groups:
        run: list[Product] = []
        for product in sorted(group, key=lambda each: each.place):
            if run and _counts([*run, product]) is None:
                _join(graph, run)
                run = []
            run.append(product)
        _join(graph, run)


def _product(node: fx.Node) -> Product | None:
    """The product that a node computes with a kernel of its arguments, if it may be joined."""
    operator = SERVED.get(node.target) if node.op == "call_function" else None
    if operator is None or not needed_users(node) or needs_own_memory(node):
        return None
    call = operator.bind(node.args, node.kwargs)
    nodes = [each for name in operator.tensors for each in _lowering.flat(getattr(call, name))]
    values = [value_of(each) for each in nodes]
    if any(each is None or each.device.type != "cuda" or not has_hints(each) for each in values):
        return None
    assert operator.lowering is not None
    fakes = {name: _lowering.mapped(value_of, getattr(call, name)) for name in operator.tensors}
    offer = operator.lowering(call.replace(**fakes))
    if offer is None or offer.epilogue is None:
        return None
    names = [*operator.factors, *offer.operands]
    tensors = [each for name in names for each in _lowering.flat(getattr(call, name))]
    b = value_of(tensors[1])
    is_narrow = offer.element is not None or b.dtype.itemsize == 1
    if not is_narrow or b.dim() - (offer.element is not None) != 2 or not is_static(b):
        return None
    return Product(node, offer, tensors)


def _are_alike(product: Product, other: Product) -> bool:
    """Whether two products differ in the weight and what belongs to it alone."""
    b, other_b = (value_of(each.tensors[1]) for each in (product, other))
    return (
        repr(product.offer) == repr(other.offer)
        and is_same(product.tensors[0], other.tensors[0])
        and len(product.tensors) == len(other.tensors)
        and value_of(product.node).dtype == value_of(other.node).dtype
        and b.untyped_storage()._cdata == other_b.untyped_storage()._cdata
    )


def _counts(products: Sequence[Product]) -> tuple[int, ...] | None:
    """How many tensors each argument of the joined product has: one that all products share, or a
    part of each. None if parts do not lie side by side, in the order of the products."""
    choice = _lowering.offered(products[0].offer).choice
    counts = [1]  # of A
    for parts in list(zip(*(product.tensors for product in products), strict=True))[1:]:
        if all(is_same(part, parts[0]) for part in parts):
            counts.append(1)
            continue
        columns = {_columns_of_one(choice, *pair) for pair in zip(parts, products, strict=True)}
        whole = ours.whole_of(choice, [value_of(part) for part in parts])
        if None in columns or len(columns) > 1 or whole is None:
            return None
        counts.append(len(parts))
    is_one_weight = counts[1] == 1
    return None if is_one_weight else tuple(counts)


def _columns_of_one(choice: Any, part: fx.Node, product: Product) -> int | None:
    """How many columns of a product share one element of an operand: one, or the 128 of a block of
    scales. None if the operand is no input of the graph, or if its last block has fewer columns."""
    value = value_of(part)
    if not is_input(part) or not is_static(value) or value.dim() == 0:
        return None
    count = ours.by_columns(choice, value).shape[0]
    served = (1, WIDE_BLOCK.extent)
    return next((each for each in served if count * each == product.columns), None)


def _join(graph: fx.Graph, products: Sequence[Product]) -> None:
    """Puts one operator in place of products that lie side by side in this order, if it is faster
    than they are."""
    if len(products) < 2:
        return
    counts = _counts(products)
    assert counts is not None
    first = min(products, key=lambda each: each.node)
    columns = sum(product.columns for product in products)
    tensors: list[fx.Node] = []
    with graph.inserting_before(first.node):
        for at, count in enumerate(counts):
            parts = [first.tensors[at]] if count == 1 else [each.tensors[at] for each in products]
            tensors += [_input(graph, part) if count > 1 else part for part in parts]
        joined = add_call(graph, BESIDE, tensors, columns, value_of(first.node).dtype)
    joined.meta[_COMPUTED] = first.offer, counts
    joined.meta[_lowering.REPLACED] = _separate(products, counts, at_once=True)
    winner = Trial(joined, alone=_separate(products, counts, at_once=False)).winner()
    if not isinstance(winner, ours.Caller):
        erase_unused(graph, joined)
        return
    joined.meta[_lowering.CHOSEN] = winner.description
    start = 0
    for product in products:
        end, node = start + product.columns, product.node
        with graph.inserting_before(node):
            part = add_call(graph, aten.slice.Tensor, joined, value_of(node).dim() - 1, start, end)
        node.replace_all_uses_with(part)
        graph.erase_node(node)
        start = end


def _input(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """An input of the graph, with the permutations of a node."""
    if not is_call(node, aten.permute.default):
        return node
    return add_call(graph, aten.permute.default, _input(graph, node.args[0]), node.args[1])


def _separate(
    products: Sequence[Product], counts: Sequence[int], *, at_once: bool
) -> fx.GraphModule:
    """The products of the joined operator's tensors, as one matrix or each."""
    graph = fx.Graph()
    inputs = [graph.placeholder(f"x{at}") for at in range(sum(counts))]
    arguments = ours.by_argument(inputs, counts)
    outs = []
    for at, product in enumerate(products):
        own = [parts[at] if len(parts) > 1 else parts[0] for parts in arguments]
        inside = dict(zip(product.tensors, own, strict=True))
        args, kwargs = fx.node.map_arg((product.node.args, product.node.kwargs), inside.get)
        outs.append(graph.call_function(product.node.target, args, kwargs))
    result: Any = tuple(outs)
    graph.output(graph.call_function(aten.cat.default, (outs, -1)) if at_once else result)
    return fx.GraphModule(torch.nn.Module(), graph)


@register_lowering(BESIDE, type_promotion_kind=None)
def _lower(tensors: Sequence[Any], columns: int, dtype: torch.dtype) -> Any:
    """The fastest kernel for all weights as one, and in a trial also the products one by one."""
    node = V.graph.current_node
    offer, counts = node.meta[_COMPUTED]
    nodes, layout = list(realize_inputs(*tensors)), row_major_layout(node.meta["val"])
    choice, make, options = _lowering.offered(offer)
    make = partial(ours.arguments_beside, counts=counts, choice=choice, make=make)
    options = {"counts": counts, "product": choice.name, **options}
    count = _lowering.candidate_count()
    choices = ours.callers(count, ours.BESIDE, nodes, layout, make, **options)
    arrange = partial(ours.side_by_side, counts=counts, choice=choice)
    return _lowering.fastest("beside", choices, nodes, layout, tensors, arrange=arrange)
