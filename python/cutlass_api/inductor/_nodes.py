"""Nodes of a post-grad graph: what they hold, and how the pass adds them."""

from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

aten = torch.ops.aten

RESHAPES = (aten.reshape.default, aten.view.default)
CAST = torch.ops.prims.convert_element_type.default

#: The key in the metadata of nodes of a copied graph (`copied`) of the node that was copied.
_ORIGIN = "cutlass_api_origin"


def copied(graph: fx.Graph) -> fx.Graph:
    """A copy of a graph whose nodes know their origins."""
    copy = fx.Graph(owning_module=graph.owning_module)
    copies: dict[fx.Node, fx.Node] = {}
    copy.output(copy.graph_copy(graph, copies))
    for node, its_copy in copies.items():
        its_copy.meta[_ORIGIN] = node
    return copy


def origin_of(node: fx.Node) -> fx.Node | None:
    """The node of which this one is a copy, or whose copy it has replaced."""
    return node.meta.get(_ORIGIN)


def keep_origin(node: fx.Node, replaced: fx.Node) -> None:
    """Passes the origin of a node on to the one that replaces it."""
    if _ORIGIN in replaced.meta:
        node.meta[_ORIGIN] = replaced.meta[_ORIGIN]


def needed_users(node: fx.Node) -> list[fx.Node]:
    """The users of a node but for operations that none needs: the graph still contains some."""
    return [user for user in node.users if user.users or user.op == "output"]


def value_of(node: Any) -> Any:
    """The FakeTensor of a node, or None."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def is_static(value: torch.Tensor) -> bool:
    return all(isinstance(extent, int) for extent in (*value.shape, *value.stride()))


def has_hints(value: torch.Tensor) -> bool:
    """Whether each size is a number, or a symbol with the size of an example. Sizes that depend on
    data have none."""
    return not free_unbacked_symbols(value)


def is_known_as(sizes: Any, expected: Any) -> bool:
    """Whether sizes have these values in every call of the compiled graph. A comparison by ``==``
    would add a guard, and the graph would serve fewer sizes."""
    return len(sizes) == len(expected) and all(
        statically_known_true(one == other) for one, other in zip(sizes, expected, strict=True)
    )


def has_one_element(value: torch.Tensor) -> bool:
    """Whether a tensor is known to have one element."""
    return is_known_as([value.numel()], [1])


def arguments_of(node: fx.Node) -> list[Any]:
    """The arguments of a call in the order of the operator's schema, defaults included."""
    schema = node.target._schema.arguments
    rest = schema[len(node.args) :]
    return [*node.args, *(node.kwargs.get(each.name, each.default_value) for each in rest)]


def is_call(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is target


def is_input(node: fx.Node) -> bool:
    """Whether a node is an input of the graph, or a permutation of one."""
    while is_call(node, aten.permute.default):
        node = node.args[0]
    return node.op in ("placeholder", "get_attr")


def unexpanded(node: Any) -> Any:
    """What a node expands, which broadcasts to the same shape. Inductor would store the expanded
    tensor for a kernel of ours."""
    while is_call(node, aten.expand.default):
        node = node.args[0]
    return node


def add_call(graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
    """Adds a call with its FakeTensor."""
    node = graph.call_function(target, args)
    node.meta["val"] = target(*fx.node.map_arg(args, lambda arg: arg.meta["val"]))
    return node
