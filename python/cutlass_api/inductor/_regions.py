"""The regions of pointwise operations behind a product that an epilogue may compute."""

from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import fx

from cutlass_api._dtypes import FLOATS, HALF
from cutlass_api.inductor._epilogue import (
    COMPARISONS,
    Epilogue,
    Region,
    flattened,
    is_pointwise,
    is_unflattened,
)
from cutlass_api.inductor._nodes import (
    CAST,
    RESHAPES,
    has_hints,
    is_known_as,
    is_static,
    needed_users,
    value_of,
)
from cutlass_api.inductor._products import is_of_mm, is_product, needs_epilogue

aten = torch.ops.aten

_REDUCTIONS = (aten.sum, aten.mean, aten.amax, aten.amin, aten.var_mean, aten.var)
_SAME_ELEMENTS = (aten.view, aten.reshape, aten.permute, aten.unsqueeze, aten.squeeze)
#: Operations that Inductor fuses without arithmetic.
_VIEWS = (
    *_SAME_ELEMENTS,
    *(aten.expand, aten.slice, aten.select, aten.clone, aten.cat, aten._unsafe_view),
)


def fitting(region: Region) -> Epilogue | None:
    """The epilogue of as much of the region as one can compute; shortens the region. None if there
    is none. A product without further operations stays, unless it needs an epilogue itself."""
    least = 1 if needs_epilogue(region.product) else 2
    while len(region.inside) >= least and (region.second is None or region.second in region.inside):
        epilogue = served(region)
        if epilogue is not None:
            return epilogue
        region.inside.pop()
    return None


def served(region: Region) -> Epilogue | None:
    """The epilogue that computes a region; None if none does."""
    if not ends_well(region) or value_of(region.inside[-1]).dtype not in FLOATS:
        return None
    epilogue = Epilogue(region)
    is_served = epilogue.is_complete and epilogue.has_arithmetic and epilogue.has_products
    return epilogue if is_served else None


def partly_replaced(epilogue: Epilogue) -> tuple[fx.GraphModule, fx.Node | None] | None:
    """The region of two products with the epilogue fused into one of them, and the node of the
    operator that is all of the epilogue, if one is. None for one product."""
    region = epilogue.region
    if region.second is None:
        return None
    graph = epilogue.replaced().graph
    product = next(node for node in graph.nodes if node.op == "call_function")
    inner = fitting(grown(product))
    fused = inner.replace(graph) if inner is not None else None
    is_all = fused is not None and all(user.op == "output" for user in fused.users)
    return fx.GraphModule(torch.nn.Module(), graph), fused if is_all else None


def seconds(product: fx.Node) -> list[fx.Node]:
    """The products that a kernel of two matrices B may compute together with this one: of the same
    first factor, and a second factor of the same shape, dtype and strides."""
    plain = (aten.mm.default, aten.addmm.default)
    a, b = product.args[-2:]
    if product.target not in plain or value_of(b).dtype not in HALF or not is_static(value_of(b)):
        return []
    # N in blocks of 8 columns, and rows of K that TMA can address.
    k, n = value_of(b).shape
    if n % 8 or k % 8 or value_of(b).stride() != (1, k):
        return []

    def fits(other: Any) -> bool:
        if other is product or other.target not in plain or not is_product(other):
            return False
        factor = other.args[-1]
        return (
            factor is not b
            and is_same(other.args[-2], a)
            and value_of(factor).dtype == value_of(b).dtype
            and is_known_as(value_of(factor).shape, value_of(b).shape)
            and is_known_as(value_of(factor).stride(), value_of(b).stride())
        )

    views = [a]
    if a.all_input_nodes:
        views += [node for node in a.all_input_nodes[0].users if node is not a and is_same(node, a)]
    return [node for view in views for node in view.users if fits(node)]


def unviewed(node: Any) -> Any:
    """The node whose elements a node shows in another shape."""
    while getattr(node.target, "overloadpacket", None) in _SAME_ELEMENTS:
        node = node.args[0]
    return node


def is_same(one: Any, other: Any) -> bool:
    """Whether two nodes are one node, or equal views of one."""
    if one is other:
        return True
    views = (*RESHAPES, aten.permute.default)
    return (
        isinstance(one, fx.Node)
        and isinstance(other, fx.Node)
        and one.target in views
        and (one.target, one.args[1:], one.kwargs) == (other.target, other.args[1:], other.kwargs)
        and is_same(one.args[0], other.args[0])
    )


def grown(product: fx.Node, second: fx.Node | None = None) -> Region:
    """The largest set of operations that depend on the products and can be their epilogue."""
    region = Region(product, second, [product])
    inside, tainted = {product}, set[fx.Node]()
    node: Any = product.next
    while node.op != "root":
        is_second = second is not None and node is second
        if is_second and not any(arg in tainted for arg in node.all_input_nodes):
            inside.add(node)
            region.inside.append(node)
            node = node.next
            continue
        depends = [arg for arg in node.all_input_nodes if arg in inside or arg in tainted]
        if depends:
            if all(arg in inside for arg in depends) and _fits(node, region, inside):
                inside.add(node)
                region.inside.append(node)
            else:
                tainted.add(node)
        node = node.next
    return region


def _fits(node: fx.Node, region: Region, inside: set[fx.Node]) -> bool:
    value = value_of(node)
    if node.op != "call_function" or value is None:
        return False
    if value.dtype not in FLOATS and node.target not in COMPARISONS:
        return False
    # Truth values only select.
    if any(
        value_of(arg) is not None
        and value_of(arg).dtype == torch.bool
        and (node.target is not aten.where.self or at > 0)
        for at, arg in enumerate(node.args)
    ):
        return False
    if not is_known_as([value.numel()], [value_of(region.product).numel()]):
        return False
    if node.target in RESHAPES:
        return is_unflattened(value.shape, region.shape) or is_known_as(value.shape, region.shape)
    if not is_pointwise(node):
        return False
    for arg in node.args:
        if isinstance(arg, fx.Node) and arg not in inside:
            other = value_of(arg)
            if other is None or other.dtype not in FLOATS or other.device != value.device:
                return False
            if not has_hints(other) or flattened(other.shape, value.shape, region.shape) is None:
                return False
        elif not isinstance(arg, fx.Node | int | float | torch.dtype):
            return False
    return all(isinstance(number, int | float) for number in node.kwargs.values())


def ends_well(region: Region) -> bool:
    """Whether only the last operation's result is used outside the region."""
    inside = set(region.inside)
    *others, _ = region.inside
    return all(user in inside for node in others for user in needed_users(node))


def has_fused_users(inside: Sequence[fx.Node], others: Set[fx.Node]) -> bool:
    """Whether Inductor may fuse the last operations of a region with arithmetic behind it, such as
    a norm. others: the nodes of other regions."""
    known, tainted = set(inside), set[fx.Node]()
    node: Any = inside[-1].next
    while node.op != "root":
        depends = [arg for arg in node.all_input_nodes if arg in known or arg in tainted]
        if depends:
            computes = _computes(node)
            fits = (computes or _is_view(node)) and not is_of_mm(node) and node not in others
            if not fits or tainted.intersection(depends):
                tainted.add(node)
            elif computes:
                return True
            else:
                known.add(node)
        node = node.next
    return False


def _computes(node: fx.Node) -> bool:
    """Whether Inductor fuses an operation, and it is more than a view or a cast."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target is CAST:
        return False
    return torch.Tag.pointwise in node.target.tags or node.target.overloadpacket in _REDUCTIONS


def _is_view(node: fx.Node) -> bool:
    packet = getattr(node.target, "overloadpacket", None)
    return node.target is CAST or packet in _VIEWS
