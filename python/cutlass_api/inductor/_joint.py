"""Products of one matrix A, as q, k and v of attention: one launch whose output has the columns of
all of them, in place of a launch each.

The results become slices of the output, which Inductor reads where they are. A result that the
graph returns would be copied: such a product keeps a launch of its own.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from cutlass_api._dtypes import HALF
from cutlass_api.inductor import _candidates as ours
from cutlass_api.inductor import _lowering
from cutlass_api.inductor._nodes import (
    RESHAPES,
    add_call,
    is_call,
    is_input,
    is_static,
    needed_users,
    origin_of,
    value_of,
)
from cutlass_api.inductor._products import is_product, is_vector_product
from cutlass_api.inductor._regions import is_same
from cutlass_api.inductor._trials import Trial
from cutlass_api.ops import OPS
from cutlass_api.ops._joint import MOST

aten = torch.ops.aten

#: The fewest columns of a tile: those of all weights but the last are a multiple of them.
_COLUMNS = 16
_VIEWS = (
    *(*RESHAPES, aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim),
    *(aten.slice.Tensor, aten.select.int),
)


class JointProposal:
    """A joint product in a copy of the graph, in place of products of the graph itself."""

    def __init__(self, graph: fx.Graph, products: Sequence[fx.Node]) -> None:
        origins = [origin_of(product) for product in products]
        self._products = [each for each in origins if each is not None]
        node = _added(graph, products)
        self._trial = Trial(node, alone=node.meta[_lowering.ALONE])
        self._kernel = ""

    def decided(self) -> "JointProposal | None":
        """The proposal, if it is faster than the separate products."""
        winner = self._trial.winner()
        if not isinstance(winner, ours.Caller):
            return None
        self._kernel = winner.description
        return self

    def apply(self, graph: fx.Graph) -> None:
        node = _added(graph, self._products)
        node.meta[_lowering.CHOSEN] = self._kernel
        start = 0
        for product in self._products:
            end = start + value_of(product).shape[1]
            with graph.inserting_before(product):
                part = add_call(graph, aten.slice.Tensor, node, 1, start, end)
            product.replace_all_uses_with(part)
            graph.erase_node(product)
            start = end


def joint_proposals(graph: fx.Graph) -> list[JointProposal]:
    """Joint products for those in a copy of the graph that no other proposal has replaced."""
    found = []
    for products in _groups(graph):
        for at in range(0, len(products), MOST):
            some = products[at : at + MOST]
            if len(some) > 1:
                found.append(JointProposal(graph, some))
    return found


def _groups(graph: fx.Graph) -> list[list[fx.Node]]:
    """The products of each A, in the order of the graph. Weights of which no kernel takes a further
    one behind them are last."""
    groups: list[list[fx.Node]] = []
    for node in graph.nodes:
        if not _is_plain(node):
            continue
        for group in groups:
            if _is_beside(node, group[0]):
                group.append(node)
                break
        else:
            groups.append([node])
    for group in groups:
        uneven = [node for node in group if value_of(node).shape[1] % _COLUMNS]
        group[:] = [node for node in group if node not in uneven] + uneven[:1]
    return groups


def _is_plain(node: fx.Node) -> bool:
    """Whether a node is a product by an input of the graph whose columns are contiguous, and the
    graph does not return its result."""
    if not is_call(node, aten.mm.default) or not is_product(node) or is_vector_product(node):
        return False
    b = node.args[1]
    value = value_of(b)
    return (
        _lowering.REPLACED not in node.meta
        and value.dtype in HALF
        and is_input(b)
        and is_static(value)
        and value.stride(0) == 1
        and value.stride(1) >= value.shape[0]
        and bool(needed_users(node))
        and not needs_own_memory(node)
    )


def _is_beside(node: fx.Node, other: fx.Node) -> bool:
    return (
        is_same(node.args[0], other.args[0])
        and value_of(node.args[1]).dtype == value_of(other.args[1]).dtype
        and value_of(node.args[1]).shape[0] == value_of(other.args[1]).shape[0]
    )


def needs_own_memory(node: fx.Node) -> bool:
    """Whether a node must not be a slice of another tensor: the graph returns it, which would copy
    the slice, or reads its storage by other strides, where the slice does not lie. Also of a view
    of it."""
    return any(
        user.op == "output"
        or is_call(user, aten.as_strided.default)
        or (user.target in _VIEWS and needs_own_memory(user))
        for user in node.users
    )


def _added(graph: fx.Graph, products: Sequence[fx.Node]) -> fx.Node:
    """Adds the joint product in front of these products, which stay."""
    first = min(products)
    value = value_of(first)
    with graph.inserting_before(first):
        weights = [_weight(graph, product.args[1]) for product in products]
        node = graph.call_function(OPS.joint_linear.default, (first.args[0], weights, []))
    columns = sum(value_of(product).shape[1] for product in products)
    node.meta["val"] = value.new_empty((value.shape[0], columns))
    node.meta[_lowering.REPLACED] = _separate(len(products), at_once=True)
    node.meta[_lowering.ALONE] = _separate(len(products), at_once=False)
    return node


def _weight(graph: fx.Graph, b: Any) -> fx.Node:
    """The weight (N, K) of which a factor (K, N) is the transpose."""
    if is_call(b, aten.permute.default):
        weight: fx.Node = b.args[0]
        return weight
    return add_call(graph, aten.permute.default, b, [1, 0])


def _separate(count: int, *, at_once: bool) -> fx.GraphModule:
    """The products of A and so many weights, as one matrix or each."""
    graph = fx.Graph()
    a = graph.placeholder("A")
    weights = [graph.placeholder(f"weight{at}") for at in range(count)]
    products = []
    for weight in weights:
        b = graph.call_function(aten.permute.default, (weight, [1, 0]))
        products.append(graph.call_function(aten.mm.default, (a, b)))
    result: Any = tuple(products)
    graph.output(graph.call_function(aten.cat.default, (products, 1)) if at_once else result)
    return fx.GraphModule(torch.nn.Module(), graph)
