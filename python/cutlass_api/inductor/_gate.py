"""Gate and up of a mixture of experts: a grouped product and an expression of its gate columns and
its up columns, or two grouped products of the same rows, become one launch of ``grouped_gated_mm``.

Only the products and the expression are replaced. Inductor gathers the rows in front of them, since
a product of rows by their index is no faster in the mean (docs/design/sm90.md). It also computes
biases that the graph gathers for each row: the pass does not prove that the index of a row is the
group of the row.
"""

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from cutlass_api.inductor import _candidates as ours
from cutlass_api.inductor import _lowering
from cutlass_api.inductor._epilogue import Epilogue, Region
from cutlass_api.inductor._nodes import (
    RESHAPES,
    add_call,
    arguments_of,
    is_call,
    is_input,
    is_known_as,
    is_static,
    needed_users,
    value_of,
)
from cutlass_api.inductor._products import is_grouped
from cutlass_api.inductor._regions import ends_well, grown, has_fused_users, is_same
from cutlass_api.inductor._torch import V, realize_inputs, row_major_layout
from cutlass_api.inductor._trials import Trial
from cutlass_api.ops import OPS, _epilogues
from cutlass_api.ops._operator import Lowering

aten = torch.ops.aten

_SPLITS = (aten.split.Tensor, aten.split_with_sizes.default)
#: The most characters of an expression, which repeats what an operation reads twice.
_LONGEST = 2000


def fuse_gates(graph: fx.Graph) -> None:
    """Replaces grouped products and the gate behind them, where one launch is faster."""
    for node in list(graph.nodes):
        if not node._erased and is_grouped(node):
            for gate in _gates(node):
                kernel = gate.fastest_kernel()
                if kernel is not None:
                    gate.apply(graph, kernel)
                    break


def _gates(product: fx.Node) -> Iterator["Gate"]:
    """The gates behind a product: of two parts of its columns, or of the product and a later one
    of the same rows."""
    if not _is_served(product):
        return
    parts = _parts(product)
    if parts is not None:
        (first, second), columns = zip(*sorted(parts.items()), strict=True)
        pairs = [(first, second, [product], columns)]
    else:
        others = [node for node in product.args[0].users if _is_beside(node, product)]
        pairs = [(product, other, [product, other], ()) for other in others]
    for first, second, products, columns in pairs:
        region = grown(first, second)
        while second in region.inside:
            gate = Gate(region, products, columns)
            if gate.is_served:
                yield gate
                break
            region.inside.pop()


def _is_served(product: fx.Node) -> bool:
    """Whether kernels of two matrices may serve the columns of a grouped product."""
    weight = product.args[1]
    value = value_of(weight)
    return is_input(weight) and is_static(value) and value.stride(-2) == 1


def _parts(product: fx.Node) -> dict[fx.Node, range] | None:
    """The two nodes that read all that is read of a product, and the columns that they read."""
    width, users = value_of(product).shape[1], needed_users(product)
    if len(users) == 1 and users[0].target in _SPLITS:
        users = needed_users(users[0])
    found = {user: _columns(user, width) for user in users}
    # Kernels refuse one matrix in both places.
    if len(found) != 2 or len({None, *found.values()}) != 3:
        return None
    return found  # type: ignore[return-value]


def _columns(node: fx.Node, width: int) -> range | None:
    """The columns that a node reads of a matrix of this width; None if it is no part of columns."""
    if is_call(node, aten.slice.Tensor):
        _, dim, start, stop, step = arguments_of(node)
        if dim not in (1, -1) or any(isinstance(at, fx.Node) for at in (start, stop, step)):
            return None
        return range(width)[start:stop:step]
    if is_call(node, operator.getitem):
        (_, sizes, *dim), at = node.args[0].args, node.args[1]
        sizes = sizes if isinstance(sizes, list | tuple) else [sizes] * (at + 1)
        if dim not in ([1], [-1]) or any(isinstance(size, fx.Node) for size in sizes):
            return None
        return range(width)[sum(sizes[:at]) : sum(sizes[: at + 1])]
    return None


def _is_beside(node: fx.Node, product: fx.Node) -> bool:
    """Whether a node is a later grouped product of the same rows and offsets, by matrices of the
    same layout, and nothing between both changes an operand."""
    if not product < node or not is_grouped(node) or not _is_served(node):
        return False
    weights = value_of(product.args[1]), value_of(node.args[1])
    if not all(product.args[at] is node.args[at] for at in (0, 2)):
        return False
    if is_same(product.args[1], node.args[1]):  # kernels refuse one matrix in both places
        return False
    if not is_known_as(weights[1].shape, weights[0].shape):
        return False
    if weights[0].stride() != weights[1].stride():
        return False
    between: Any = product.next
    while between is not node and _is_pure(between):
        between = between.next
    return between is node


def _is_pure(node: fx.Node) -> bool:
    """Whether an operation is known to change no tensor."""
    if isinstance(node.target, torch._ops.OpOverload):
        return not bool(node.target._schema.is_mutable)
    return node.op != "call_function" or node.target is operator.getitem


class Gate(Epilogue):
    """An expression of gate, the first value of a region, and of up, the second one.

    products: one grouped product, or two. columns: of gate and of up in one product.
    """

    def __init__(
        self, region: Region, products: Sequence[fx.Node], columns: Sequence[range]
    ) -> None:
        self.products = products
        self.columns = [(each.start, each.stop, each.step) for each in columns]
        super().__init__(region)
        self.expression = self._expression(self.last)

    @property
    def is_served(self) -> bool:
        """Whether the operator computes the region, and Inductor would fuse no operation of it with
        what follows."""
        of_last, of_product = value_of(self.last), value_of(self.products[0])
        return (
            ends_well(self.region)
            and of_last.dtype == of_product.dtype
            and self.is_complete
            and self.has_arithmetic
            and self.has_products
            and not self.operands
            and not any(node.target in RESHAPES for node in self.inside)
            and not has_fused_users(self.region.inside, set())
        )

    def _product(self, node: fx.Node) -> str:
        return "gate" if node is self.region.product else "up"

    def _assign(self, expression: str) -> str:
        if len(expression) > _LONGEST:
            self.is_complete = False
            return "gate"
        return expression

    @property
    def tensors(self) -> list[fx.Node]:
        """A, the matrices of each product, and the offsets."""
        A, _, offs = self.products[0].args[:3]
        return [A, *(product.args[1] for product in self.products), offs]

    @property
    def value(self) -> torch.Tensor:
        return torch.empty_like(value_of(self.last), memory_format=torch.contiguous_format)

    @property
    def replaced_nodes(self) -> list[fx.Node]:
        """What the operator replaces, in the order of the graph."""
        splits = [node.args[0] for node in self.inside if is_call(node, operator.getitem)]
        return sorted({*self.products, *splits, *self.inside})

    def _placeholders(self, graph: fx.Graph) -> list[fx.Node]:
        """Placeholders of the tensors in another graph."""
        nodes = [graph.placeholder(f"x{at}") for at in range(len(self.tensors))]
        for node, tensor in zip(nodes, self.tensors, strict=True):
            node.meta["val"] = value_of(tensor)
        return nodes

    def fastest_kernel(self) -> str | None:
        """The description of the kernel that is faster than the separate operations, by torch's
        products and by ours. None if there is none."""
        graph = fx.Graph()
        A, *weights, offs = self._placeholders(graph)
        call = graph.call_function(_lower_trial, (A, weights, offs, self.expression, self.columns))
        call.meta["val"] = self.value
        call.meta[_lowering.REPLACED] = self._separate(aten._grouped_mm.default)
        call.meta[_lowering.PARTLY_REPLACED] = self._separate(OPS.grouped_mm.default)
        winner = Trial(call).winner()
        return winner.description if isinstance(winner, ours.Caller) else None

    def _separate(self, product: Any) -> fx.GraphModule:
        """The operations as a function of the tensors. product: the operator that multiplies."""
        graph = fx.Graph()
        A, *weights, offs = self._placeholders(graph)
        copies: dict[fx.Node, fx.Node] = {}
        for node in self.replaced_nodes:
            if node in self.products:
                weight = weights[self.products.index(node)]
                copies[node] = graph.call_function(product, (A, weight, offs))
            else:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(copies[self.last])
        return fx.GraphModule(torch.nn.Module(), graph)

    def apply(self, graph: fx.Graph, kernel: str) -> None:
        """Puts the operator in place of the region and its products. kernel: the description of
        the kernel to launch."""
        A, *weights, offs = self.tensors
        # In front of the last product: what follows may change an operand.
        with graph.inserting_before(self.products[-1]):
            if self.columns:
                weights = [
                    add_call(graph, aten.slice.Tensor, *weights, 2, *part) for part in self.columns
                ]
            inputs = (A, *weights, offs, self.expression)
            node = graph.call_function(OPS.grouped_gated_mm.default, inputs)
        node.meta["val"] = self.value
        node.meta[_lowering.CHOSEN] = kernel
        self.last.replace_all_uses_with(node)
        for replaced in reversed(self.replaced_nodes):
            for unneeded in list(replaced.users):
                graph.erase_node(unneeded)
            graph.erase_node(replaced)


def _lower_trial(
    A: Any, weights: Sequence[Any], offs: Any, expression: str, columns: Sequence[Any]
) -> Any:
    """The lowering of a trial, in which the columns of gate and up are those of one operand: the
    separate operations read it as a whole."""
    boxes = [A, *weights, offs]
    nodes = list(realize_inputs(*boxes))
    layout = row_major_layout(V.graph.current_node.meta["val"])
    offer = Lowering(["up"], _epilogues.gated(expression), offsets="offs")
    choice, make, options = _lowering.offered(offer)

    def arguments(out: torch.Tensor, A: torch.Tensor, *others: torch.Tensor) -> Any:
        return make(out, A, *ours.with_columns(others, columns))

    choices = ours.callers(
        _lowering.candidate_count(), choice, nodes, layout, arguments, columns=columns, **options
    )
    if not choices:
        raise ValueError("no kernel computes gate and up in one launch")
    inputs = {len(nodes) - 1: _lowering.even_groups(A)}
    return _lowering.fastest("gate", choices, nodes, layout, boxes, None, inputs=inputs)


#: Inductor lowers a function with this attribute as its own lowering.
_lower_trial._inductor_lowering_function = True  # type: ignore[attr-defined]
