"""A post-grad pass: pointwise operations behind a product become one operator with an epilogue, and
products for which Inductor's handler offers no choices an operator of ours (`_products`).

The pass only proposes. The operator's lowering (`_lowering`) lets Inductor time the fused kernels
beside the operations that they replace, and keeps what is faster.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from cutlass_api._dtypes import FLOATS, HALF
from cutlass_api.inductor import Options
from cutlass_api.inductor._epilogue import (
    Epilogue,
    Region,
    flattened,
    is_pointwise,
    is_unflattened,
)
from cutlass_api.inductor._nodes import RESHAPES, has_hints, is_known_as, is_static, value_of
from cutlass_api.inductor._options import identity, options_in_force
from cutlass_api.inductor._products import (
    decompose_again,
    is_product,
    is_vector_product,
    needs_epilogue,
    replace_mixed,
    replace_unhandled,
    restore_vector_products,
)
from cutlass_api.inductor._torch import CustomGraphPass, V, autotunes, config

aten = torch.ops.aten


class ProductPass(CustomGraphPass):
    """version: of the package. replaced: the pass or passes that were configured before, which run
    first."""

    def __init__(self, options: Options, version: str, replaced: Any) -> None:
        self.cutlass_api_options = options
        self.version = version
        self.replaced = replaced

    @property
    def earlier(self) -> Sequence[Any]:
        """The passes that run first."""
        if self.replaced is None:
            return ()
        return self.replaced if isinstance(self.replaced, list | tuple) else (self.replaced,)

    def __call__(self, graph: fx.Graph) -> None:
        for earlier in self.earlier:
            earlier(graph)
        options = options_in_force()
        if options is None or not autotunes():
            return
        # Our operators run from Python: ahead-of-time code cannot call them.
        if config.cpp_wrapper or V.aot_compilation is True or torch.version.hip is not None:
            return
        # With emulated casts, Inductor rounds between operations; a fused epilogue does not.
        fuses = options.fuse and not config.emulate_precision_casts
        if fuses:
            restore_vector_products(graph)
        for node in list(graph.nodes):
            if node._erased:  # the second product of a region
                continue
            if replace_unhandled(graph, node):
                continue
            node = replace_mixed(graph, node)
            if not is_product(node):
                continue
            if fuses:
                _fuse(graph, node)
            elif needs_epilogue(node):
                _fuse_region(graph, Region(node, None, [node]))
            if not node._erased and is_vector_product(node):
                decompose_again(graph, node)

    def uuid(self) -> Any:
        """Part of Inductor's cache keys; None, which disables the cache, if an earlier pass has
        none. Threads without the handler compile differently; in PyTorch 2.11 only this uuid
        separates them in the key.

        None as well for frozen graphs: a weight that `_packed` converts would be stored with the
        code, while the key does not depend on the values of parameters."""
        if config.freezing:
            return None
        earlier = [getattr(earlier, "uuid", lambda: None)() for earlier in self.earlier]
        options = options_in_force()
        own = identity(options, self.version) if options else ("cutlass_api", "not in force")
        return None if None in earlier else (*own, *earlier)


def _fuse(graph: fx.Graph, product: fx.Node) -> None:
    for second in _seconds(product):
        if _fuse_region(graph, _grow(product, second)):
            return
    _fuse_region(graph, _grow(product))


def _fuse_region(graph: fx.Graph, region: Region) -> bool:
    """Replaces the products and as much of the region as an epilogue computes. Returns whether it
    did. A product without further operations stays, unless it needs an epilogue itself."""
    least = 1 if needs_epilogue(region.product) else 2
    while len(region.inside) >= least and (region.second is None or region.second in region.inside):
        if _ends_well(region):
            epilogue = Epilogue(region)
            if epilogue.is_complete and epilogue.has_arithmetic and epilogue.has_products:
                epilogue.replace(graph, _partly_replaced(epilogue))
                return True
        region.inside.pop()
    return False


def _partly_replaced(epilogue: Epilogue) -> fx.GraphModule | None:
    """The region of two products with the epilogue fused into one of them; None for one product."""
    region = epilogue.region
    if region.second is None or is_vector_product(region.product):
        return None
    graph = epilogue.replaced().graph
    product = next(node for node in graph.nodes if node.op == "call_function")
    _fuse_region(graph, _grow(product))
    return fx.GraphModule(torch.nn.Module(), graph)


def _seconds(product: fx.Node) -> list[fx.Node]:
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
            and _is_same(other.args[-2], a)
            and value_of(factor).dtype == value_of(b).dtype
            and is_known_as(value_of(factor).shape, value_of(b).shape)
            and is_known_as(value_of(factor).stride(), value_of(b).stride())
        )

    views = [a]
    if a.all_input_nodes:
        views += [
            node for node in a.all_input_nodes[0].users if node is not a and _is_same(node, a)
        ]
    return [node for view in views for node in view.users if fits(node)]


def _is_same(one: Any, other: Any) -> bool:
    """Whether two nodes are one node, or equal views of one."""
    if one is other:
        return True
    views = (*RESHAPES, aten.permute.default)
    return (
        isinstance(one, fx.Node)
        and isinstance(other, fx.Node)
        and one.target in views
        and (one.target, one.args[1:], one.kwargs) == (other.target, other.args[1:], other.kwargs)
        and _is_same(one.args[0], other.args[0])
    )


def _grow(product: fx.Node, second: fx.Node | None = None) -> Region:
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
    if node.op != "call_function" or value is None or value.dtype not in FLOATS:
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


def _ends_well(region: Region) -> bool:
    """Whether only the last operation's result is used outside the region."""
    inside = set(region.inside)
    *others, _ = region.inside
    return all(user in inside for node in others for user in node.users)


__all__ = ["ProductPass"]
