"""A post-grad pass: pointwise operations behind a product become one operator with an epilogue, and
products for which Inductor's handler offers no choices an operator of ours: grouped and scaled
products, and those of a float matrix and one that was cast from 8-bit integers.

The pass only proposes. The operator's lowering (`_lowering`) lets Inductor time the fused kernels
beside the operations that they replace, and keeps what is faster.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.virtualized import V

from cutlass_api.inductor import _lowering
from cutlass_api.utils import ceil_div

aten = torch.ops.aten
prims = torch.ops.prims

_FLOATS = (torch.float16, torch.bfloat16, torch.float32)
_HALVES = (torch.float16, torch.bfloat16)
_BYTES = (torch.int8, torch.uint8)
_RESHAPES = (aten.reshape.default, aten.view.default)
_CAST = prims.convert_element_type.default

#: Pointwise operations, and the expressions of the epilogue language that compute them.
_EXPRESSIONS: dict[Any, Callable[..., str]] = {
    aten.add.Tensor: lambda x, y, alpha=1: f"{x} + {y}" if alpha == 1 else f"{x} + {alpha} * {y}",
    aten.sub.Tensor: lambda x, y, alpha=1: f"{x} - {y}" if alpha == 1 else f"{x} - {alpha} * {y}",
    aten.mul.Tensor: lambda x, y: f"{x} * {y}",
    aten.div.Tensor: lambda x, y: f"{x} / {y}",
    aten.neg.default: lambda x: f"-{x}",
    aten.exp.default: lambda x: f"exp({x})",
    aten.abs.default: lambda x: f"abs({x})",
    aten.sqrt.default: lambda x: f"sqrt({x})",
    aten.rsqrt.default: lambda x: f"rsqrt({x})",
    aten.relu.default: lambda x: f"relu({x})",
    aten.sigmoid.default: lambda x: f"sigmoid({x})",
    aten.tanh.default: lambda x: f"tanh({x})",
    aten.maximum.default: lambda x, y: f"maximum({x}, {y})",
    aten.minimum.default: lambda x, y: f"minimum({x}, {y})",
}
#: Operations that the pass replaces as part of a longer expression (`_gelu`) only.
_PARTS = (aten.erf.default,)


class ProductPass(CustomGraphPass):
    """fuse: whether pointwise operations are fused. identity: what else compiled graphs depend on.
    earlier: the pass or passes that were configured before, which run first."""

    def __init__(self, fuse: bool, identity: tuple[Any, ...], earlier: Any) -> None:
        self.fuse = fuse
        self.identity = identity
        self.earlier: Sequence[Any] = (
            () if earlier is None else earlier if isinstance(earlier, list | tuple) else (earlier,)
        )

    def __call__(self, graph: fx.Graph) -> None:
        for earlier in self.earlier:
            earlier(graph)
        if not (config.max_autotune or config.max_autotune_gemm):
            return
        # Our operators run from Python: ahead-of-time code cannot call them.
        if config.cpp_wrapper or V.aot_compilation is True or torch.version.hip is not None:
            return
        for node in list(graph.nodes):
            if node._erased:  # the second product of a region
                continue
            if _is_grouped_product(node):
                _replace(graph, node, torch.ops.cutlass_api.grouped_mm.default, _inputs(node)[:3])
                continue
            if _is_scaled_product(node):
                inputs = _scaled_inputs(graph, node)
                _replace(graph, node, torch.ops.cutlass_api.scaled_mm.default, inputs)
                continue
            node = _replace_mixed(graph, node)
            if not _is_product(node):
                continue
            # With emulated casts, Inductor rounds between operations; a fused epilogue does not.
            if self.fuse and not config.emulate_precision_casts:
                _fuse(graph, node)
            elif _is_mixed_addmm(node):
                _fuse_region(graph, _Region(node, None, [node]))

    def uuid(self) -> Any:
        """Part of Inductor's cache keys; None, which disables the cache, if an earlier pass has
        none."""
        earlier = [getattr(earlier, "uuid", lambda: None)() for earlier in self.earlier]
        return None if None in earlier else ("cutlass_api", *self.identity, *earlier)


def _value(node: Any) -> Any:
    """The FakeTensor of a node, or None."""
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _is_static(value: torch.Tensor) -> bool:
    return all(isinstance(extent, int) for extent in (*value.shape, *value.stride()))


_MIXED = torch.ops.cutlass_api.mixed_mm.default
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default, _MIXED)


def _is_product(node: fx.Node) -> bool:
    value = _value(node)
    return (
        node.op == "call_function"
        and node.target in _PRODUCTS
        and value is not None
        and value.device.type == "cuda"
        and value.dtype in _FLOATS
        and value.numel() > 0
        and _is_static(value)
        and (
            # Scales of a call by the user are no part of the epilogue.
            node.target is not _MIXED or len(_inputs(node)) == 2
        )
        and (_is_mixed(node) or all(_value(arg).dtype == value.dtype for arg in node.args))
    )


def _is_mixed(node: fx.Node) -> bool:
    """Whether a product has a factor of 8-bit integers: `_replace_mixed` has replaced its cast."""
    return node.target is _MIXED or _is_mixed_addmm(node)


def _is_mixed_addmm(node: fx.Node) -> bool:
    return _is(node, aten.addmm.default) and _lowering.REPLACED in node.meta


def _inputs(node: fx.Node) -> list[Any]:
    """A node's arguments: positional, then keywords."""
    return [*node.args, *node.kwargs.values()]


def _is_grouped_product(node: fx.Node) -> bool:
    """Whether a node multiplies groups of rows by one matrix each, in 16-bit types."""
    if node.op != "call_function" or node.target is not aten._grouped_mm.default:
        return False
    values = [_value(arg) for arg in _inputs(node)[:3]]
    if any(value is None or not _is_static(value) for value in values) or any(_inputs(node)[3:]):
        return False
    return (
        [value.dim() for value in values] == [2, 3, 1]
        and values[0].device.type == "cuda"
        and values[0].dtype == values[1].dtype == _value(node).dtype
        and values[0].dtype in (torch.float16, torch.bfloat16)
    )


#: The parameters of ``aten._scaled_mm`` and of our operator.
_SCALED_PARAMETERS = (
    *("self", "mat2", "scale_a", "scale_b"),
    *("bias", "scale_result", "out_dtype", "use_fast_accum"),
)


def _scaled_arguments(node: fx.Node) -> list[Any]:
    values = dict(zip(_SCALED_PARAMETERS, node.args, strict=False)) | node.kwargs
    return [values.get(name) for name in _SCALED_PARAMETERS]


def _is_scaled_product(node: fx.Node) -> bool:
    """Whether a node is ``aten._scaled_mm`` with float32 scales: one per tensor, one per row of A
    and per column of B, or one per block of 1 x 128 or 128 x 128."""
    if node.op != "call_function" or node.target is not aten._scaled_mm.default:
        return False
    values = [_value(arg) for arg in _scaled_arguments(node)[:4]]
    if any(value is None or not _is_static(value) for value in values):
        return False
    a, b, *scales = values
    (m, k), n = a.shape, b.shape[1]
    deep = ceil_div(k, 128)
    shapes = (
        ((m, 1), (m, deep), (ceil_div(m, 128), deep)),
        ((1, n), (deep, n), (deep, ceil_div(n, 128))),
    )
    return a.device.type == "cuda" and all(
        scale.dtype == torch.float32 and (scale.numel() == 1 or tuple(scale.shape) in served)
        for scale, served in zip(scales, shapes, strict=True)
    )


def _scaled_inputs(graph: fx.Graph, node: fx.Node) -> list[Any]:
    """The arguments for our operator: scales of a tensor have the shape (1,), and the scale of a
    result is for float8 only."""
    inputs = _scaled_arguments(node)
    # Beside (1, N) or (M, 1), torch requires (1, 1) of a single row or column.
    if all(_value(scale).numel() == 1 for scale in inputs[2:4]):
        with graph.inserting_before(node):
            for at in (2, 3):
                inputs[at] = _call(graph, aten.reshape.default, inputs[at], [1])
    if _value(node).dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
        inputs[5] = None
    inputs[7] = bool(inputs[7])
    return inputs


def _replace(graph: fx.Graph, node: fx.Node, operator: Any, inputs: Sequence[Any]) -> None:
    """Puts an operator of ours in place of a node. The tensors among the inputs, in their order,
    are the inputs of the operation that is replaced."""
    replaced = fx.Graph()
    copies = [
        replaced.placeholder(f"x{at}") if isinstance(arg, fx.Node) else arg
        for at, arg in enumerate(inputs)
    ]
    replaced.output(replaced.call_function(node.target, tuple(copies)))
    with graph.inserting_before(node):
        ours = graph.call_function(operator, tuple(inputs))
    _substitute(graph, node, ours, replaced)


def _substitute(graph: fx.Graph, node: fx.Node, ours: fx.Node, replaced: fx.Graph) -> fx.Node:
    ours.meta["val"] = node.meta["val"]
    ours.meta[_lowering.REPLACED] = fx.GraphModule(torch.nn.Module(), replaced)
    if "eager_input_vals" in node.meta:
        # Inductor keeps these strides for an operator that requires them, as aten._scaled_mm does.
        values = tuple(_value(arg) if isinstance(arg, fx.Node) else arg for arg in ours.args)
        ours.meta["eager_input_vals"] = (values, {})
    node.replace_all_uses_with(ours)
    graph.erase_node(node)
    return ours


def _replace_mixed(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """``mixed_mm`` in place of ``aten.mm``, if a factor was cast from 8-bit integers; else the
    node. ``aten.addmm`` takes the integers themselves, which `_fuse` must replace by an operator.
    """
    if node.target not in (aten.mm.default, aten.addmm.default) or not _is_product(node):
        return node
    alpha, beta = (node.kwargs.get(name, 1) for name in ("alpha", "beta"))
    # torch does not read an addend times zero, while an epilogue would.
    if not all(isinstance(factor, int | float) for factor in (alpha, beta)) or beta == 0:
        return node
    dtype = _value(node).dtype
    *added, first, second = node.args
    chains = [_widened(factor, dtype) for factor in (first, second)]
    # One factor of 8-bit integers: torch multiplies two of them as numbers, too.
    if dtype not in _HALVES or sum(bool(chain) for chain in chains) != 1:
        return node
    inputs = []
    with graph.inserting_before(node):
        for factor, chain in zip((first, second), chains, strict=True):
            source = chain[-1].args[0] if chain else factor
            for step in reversed(chain[:-1]):
                source = _call(graph, step.target, source, step.args[1])
            inputs.append(source)
    replaced = fx.Graph()
    copies = [replaced.placeholder(name) for name in ("C", "A", "B")[-len(node.args) :]]
    for at, chain in enumerate(chains, start=len(added)):
        if chain:
            copies[at] = replaced.call_function(_CAST, (copies[at], dtype))
    replaced.output(replaced.call_function(node.target, tuple(copies), dict(node.kwargs)))
    if added:
        node.args = (*added, *inputs)
        node.meta[_lowering.REPLACED] = fx.GraphModule(torch.nn.Module(), replaced)
        return node
    with graph.inserting_before(node):
        ours = graph.call_function(_MIXED, tuple(inputs))
    return _substitute(graph, node, ours, replaced)


def _widened(node: Any, dtype: torch.dtype) -> list[fx.Node]:
    """A cast of an input of the graph from 8-bit integers, and the permutations behind it, the last
    one first. Empty if the node is none, or if the cast is needed elsewhere, too. Integers that the
    graph computes stay part of Inductor's own kernels."""
    chain = []
    while _is(node, aten.permute.default) and _is_used_once(node):
        chain.append(node)
        node = node.args[0]
    if not _is(node, _CAST) or not _is_used_once(node) or node.args[1] != dtype:
        return []
    source = node.args[0]
    while _is(source, aten.permute.default):
        source = source.args[0]
    value = _value(node.args[0])
    if source.op not in ("placeholder", "get_attr") or value is None or value.dtype not in _BYTES:
        return []
    return [*chain, node]


def _is_used_once(node: fx.Node) -> bool:
    """Whether one operation needs the node. The graph still contains operations that none needs."""
    needed = [user for user in node.users if user.users or user.op == "output"]
    return len(needed) == 1


@dataclass
class _Region:
    """A product and pointwise operations behind it; of a dual GEMM, two products."""

    product: fx.Node
    #: The second product, of the same first factor.
    second: fx.Node | None = None
    #: In the order of the graph.
    inside: list[fx.Node] = field(default_factory=list)

    @property
    def shape(self) -> torch.Size:
        return _value(self.product).shape


def _fuse(graph: fx.Graph, product: fx.Node) -> None:
    for second in _seconds(product):
        if _fuse_region(graph, _grow(product, second)):
            return
    _fuse_region(graph, _grow(product))


def _fuse_region(graph: fx.Graph, region: _Region) -> bool:
    """Replaces the products and as much of the region as an epilogue computes. Returns whether it
    did. A product without further operations stays, except for ``aten.addmm`` of 8-bit integers,
    whose addend is computed in an epilogue."""
    least = 1 if _is_mixed_addmm(region.product) else 2
    while len(region.inside) >= least and (region.second is None or region.second in region.inside):
        if _ends_well(region):
            epilogue = _Epilogue(region)
            if epilogue.is_complete and epilogue.has_arithmetic and epilogue.has_products:
                epilogue.replace(graph)
                return True
        region.inside.pop()
    return False


def _seconds(product: fx.Node) -> list[fx.Node]:
    """The products that a kernel of two matrices B may compute together with this one: of the same
    first factor, and a second factor of the same shape, dtype and strides."""
    plain = (aten.mm.default, aten.addmm.default)
    a, b = product.args[-2:]
    if product.target not in plain or _value(b).dtype not in _HALVES:
        return []
    # N in blocks of 8 columns, and rows of K that TMA can address.
    k, n = _value(b).shape
    if n % 8 or k % 8 or _value(b).stride() != (1, k):
        return []

    def fits(other: Any) -> bool:
        if other is product or other.target not in plain or not _is_product(other):
            return False
        factor = other.args[-1]
        return (
            factor is not b
            and _is_same(other.args[-2], a)
            and _value(factor).shape == _value(b).shape
            and _value(factor).dtype == _value(b).dtype
            and _value(factor).stride() == _value(b).stride()
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
    views = (*_RESHAPES, aten.permute.default)
    return (
        isinstance(one, fx.Node)
        and isinstance(other, fx.Node)
        and one.target in views
        and (one.target, one.args[1:], one.kwargs) == (other.target, other.args[1:], other.kwargs)
        and _is_same(one.args[0], other.args[0])
    )


def _grow(product: fx.Node, second: fx.Node | None = None) -> _Region:
    """The largest set of operations that depend on the products and can be their epilogue."""
    region = _Region(product, second, [product])
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


def _fits(node: fx.Node, region: _Region, inside: set[fx.Node]) -> bool:
    value = _value(node)
    if node.op != "call_function" or value is None or not _is_static(value):
        return False
    if value.numel() != region.shape.numel() or value.dtype not in _FLOATS:
        return False
    if node.target in _RESHAPES:
        return _is_unflattened(value.shape, region.shape) or value.shape == region.shape
    if node.target is not _CAST and node.target not in _EXPRESSIONS and node.target not in _PARTS:
        return False
    for arg in node.args:
        if isinstance(arg, fx.Node) and arg not in inside:
            other = _value(arg)
            if other is None or other.dtype not in _FLOATS or other.device != value.device:
                return False
            if not _is_static(other) or _operand_shape(other.shape, value, region.shape) is None:
                return False
        elif not isinstance(arg, fx.Node | int | float | torch.dtype):
            return False
    return all(isinstance(number, int | float) for number in node.kwargs.values())


def _is_unflattened(shape: torch.Size, flat: torch.Size) -> bool:
    """Whether the shape is that of a matrix whose rows are split into more dimensions."""
    return len(flat) == 2 and len(shape) > 2 and shape[-1] == flat[-1]


def _operand_shape(shape: torch.Size, result: torch.Tensor, flat: torch.Size) -> Any:
    """The shape in which a tensor that is broadcast to `result` is an operand of the epilogue,
    whose output has the shape `flat`. None if there is none."""
    if result.shape == flat:
        return shape
    padded = (1,) * (result.dim() - len(shape)) + tuple(shape)
    if all(extent == 1 for extent in padded[:-1]):
        return (padded[-1],)
    if padded[:-1] == tuple(result.shape[:-1]):
        return (flat[0], padded[-1])
    return None


def _ends_well(region: _Region) -> bool:
    """Whether only the last operation's result is used outside the region."""
    inside = set(region.inside)
    *others, _ = region.inside
    return all(user in inside for node in others for user in node.users)


class _Epilogue:
    """A region as source of the epilogue language, and as a graph of its own."""

    def __init__(self, region: _Region) -> None:
        self.region = region
        self.inside = set(region.inside)
        self.last = region.inside[-1]
        self.lines: list[str] = []
        self.names: dict[fx.Node, str] = {}
        #: External tensors, each with the shape that the epilogue takes.
        self.operands: dict[tuple[fx.Node, tuple[int, ...]], str] = {}
        self.is_complete = True
        self.has_arithmetic = False
        self.used_products: set[fx.Node] = set()
        result = self._expression(self.last)
        parameters = ", ".join(["accum", *self.operands.values()])
        body = [*self.lines, f"D = {result}", "return D"]
        self.source = f"def epilogue({parameters}):\n" + "".join(f"    {line}\n" for line in body)

    @property
    def has_products(self) -> bool:
        """Whether the result depends on each product of the region."""
        return self.region.second is None or len(self.used_products) == 2

    def _expression(self, node: fx.Node) -> str:
        if node not in self.names:
            self.names[node] = self._compute(node)
        return self.names[node]

    def _compute(self, node: fx.Node) -> str:
        if node is self.region.product or node is self.region.second:
            self.used_products.add(node)
            return self._product(node)
        if node.target in _RESHAPES or node.target is _CAST:
            return self._expression(node.args[0])
        self.has_arithmetic = True
        for pattern, function in ((_silu, "silu"), (_gelu, "gelu")):
            inner = pattern(node)
            if inner is not None and inner in self.inside:
                return self._assign(f"{function}({self._expression(inner)})")
        if node.target not in _EXPRESSIONS:
            self.is_complete = False
            return "accum"
        values = [self._argument(arg, node) for arg in node.args]
        return self._assign(_EXPRESSIONS[node.target](*values, **node.kwargs))

    def _product(self, node: fx.Node) -> str:
        accum = "accum"
        if self.region.second is not None and node is self.region.second:
            factor = node.args[-1]
            key = (factor, tuple(_value(factor).shape))
            name = self.operands.setdefault(key, f"x{len(self.operands)}")
            accum = self._assign(f"product({name})")
        if node.target in (aten.mm.default, aten.bmm.default, _MIXED):
            return accum
        self.has_arithmetic = True
        alpha, beta = (node.kwargs.get(name, 1) for name in ("alpha", "beta"))
        added = self._argument(node.args[0], node)
        scaled = accum if alpha == 1 else f"{_number(alpha)} * {accum}"
        if beta == 0:
            return self._assign(scaled)
        return self._assign(f"{scaled} + {added if beta == 1 else f'{_number(beta)} * {added}'}")

    def _argument(self, arg: Any, node: fx.Node) -> str:
        if not isinstance(arg, fx.Node):
            return _number(arg)
        if arg in self.inside:
            return self._expression(arg)
        shape = _operand_shape(_value(arg).shape, _value(node), self.region.shape)
        return self.operands.setdefault((arg, tuple(shape)), f"x{len(self.operands)}")

    def _assign(self, expression: str) -> str:
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        return name

    def replace(self, graph: fx.Graph) -> None:
        """Puts the operator in place of the region."""
        product, last = self.region.product, self.last
        factors = product.args[-2:]
        operands = []
        with graph.inserting_before(last):
            for arg, shape in self.operands:
                if tuple(_value(arg).shape) != shape:
                    arg = _call(graph, aten.reshape.default, arg, list(shape))
                operands.append(arg)
            value = _value(last)
            fused = graph.call_function(
                torch.ops.cutlass_api.mm_epilogue.default,
                (*factors, operands, self.source),
                {"out_dtype": value.dtype},
            )
            fused.meta["val"] = torch.empty_like(
                _value(product), dtype=value.dtype, memory_format=torch.contiguous_format
            )
            fused.meta[_lowering.REPLACED] = self._replaced()
            if self.region.second is not None:
                fused.meta[_lowering.PARTLY_REPLACED] = self._partly_replaced()
            result = fused
            if value.shape != self.region.shape:
                result = _call(graph, aten.reshape.default, fused, list(value.shape))
        last.replace_all_uses_with(result)
        for node in reversed(self.region.inside):
            graph.erase_node(node)

    def _partly_replaced(self) -> fx.GraphModule:
        """The same with the epilogue fused into one of the two products."""
        module = self._replaced()
        product = next(node for node in module.graph.nodes if node.op == "call_function")
        _fuse_region(module.graph, _grow(product))
        return fx.GraphModule(torch.nn.Module(), module.graph)

    def _replaced(self) -> fx.GraphModule:
        """The region as a function of the factors and the operands."""
        graph = fx.Graph()
        copies: dict[Any, fx.Node] = {}
        product, second = self.region.product, self.region.second

        def placeholder(name: str, value: torch.Tensor) -> fx.Node:
            node = graph.placeholder(name)
            node.meta["val"] = value
            return node

        for at, factor in enumerate(product.args[-2:]):
            copies.setdefault(factor, placeholder("AB"[at], _value(factor)))
        inputs = {
            (arg, shape): placeholder(name, _value(arg).reshape(shape))
            for (arg, shape), name in self.operands.items()
        }

        def copied(arg: Any, node: fx.Node) -> Any:
            if arg in self.inside:
                return copies[arg]
            if node is product and arg in product.args[-2:]:
                return copies[arg]
            if node is second and arg is second.args[-2]:
                return copies[product.args[-2]]
            if node is second and arg is second.args[-1]:
                return inputs[arg, tuple(_value(arg).shape)]
            own = tuple(_value(arg).shape)
            shape = _operand_shape(own, _value(node), self.region.shape)
            operand = inputs[(arg, tuple(shape))]
            if tuple(shape) == own:
                return operand
            return _call(graph, aten.reshape.default, operand, list(own))

        for node in self.region.inside:
            before = node.meta.get(_lowering.REPLACED)
            if before is not None:  # a product of 8-bit integers
                inner = [node for node in before.graph.nodes if node.op == "placeholder"]
                values = (copied(arg, node) for arg in node.args)
                copies[node] = graph.graph_copy(before.graph, dict(zip(inner, values, strict=True)))
                copies[node].meta["val"] = _value(node)
                continue
            copies[node] = graph.call_function(
                node.target,
                fx.node.map_arg(node.args, lambda arg, node=node: copied(arg, node)),
                dict(node.kwargs),
            )
            copies[node].meta["val"] = _value(node)
        result = copies[self.last]
        if _value(self.last).shape != self.region.shape:
            result = _call(graph, aten.reshape.default, result, list(self.region.shape))
        graph.output(result)
        return fx.GraphModule(torch.nn.Module(), graph)


def _call(graph: fx.Graph, target: Any, *args: Any) -> fx.Node:
    """Adds a call with its FakeTensor."""
    node = graph.call_function(target, args)
    node.meta["val"] = target(*fx.node.map_arg(args, lambda arg: arg.meta["val"]))
    return node


def _number(value: float) -> str:
    """A number as source text. The epilogue language has no literal for infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "(1e308 * 10)", -math.inf: "(-1e308 * 10)"}.get(value, "(0 * 1e308 * 10)")
    return repr(value)


def _is(node: Any, target: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is target


def _silu(node: fx.Node) -> fx.Node | None:
    """x of x / (1 + exp(-x)), as which Inductor decomposes silu."""
    if not _is(node, aten.div.Tensor):
        return None
    x, divisor = node.args[:2]
    if not (_is(divisor, aten.add.Tensor) and divisor.args[1] == 1):
        return None
    power = divisor.args[0]
    if _is(power, aten.exp.default) and _is(power.args[0], aten.neg.default):
        return x if power.args[0].args[0] is x else None
    return None


def _gelu(node: fx.Node) -> fx.Node | None:
    """x of (x * 0.5) * (1 + erf(x * sqrt(0.5))), as which Inductor decomposes exact GELU."""
    if not _is(node, aten.mul.Tensor):
        return None
    half, shifted = node.args[:2]
    if not (_is(half, aten.mul.Tensor) and half.args[1] == 0.5):
        return None
    if not (_is(shifted, aten.add.Tensor) and shifted.args[1] == 1):
        return None
    error = shifted.args[0]
    if not (_is(error, aten.erf.default) and _is(error.args[0], aten.mul.Tensor)):
        return None
    x, factor = error.args[0].args[:2]
    is_root = isinstance(factor, float) and math.isclose(factor, math.sqrt(0.5))
    return x if is_root and half.args[0] is x else None


__all__ = ["ProductPass"]
