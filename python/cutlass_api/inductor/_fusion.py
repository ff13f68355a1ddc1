"""A post-grad pass: pointwise operations behind a product become one operator with an epilogue, and
products for which Inductor's handler offers no choices an operator of ours (`_products`).

The pass only proposes. The operator's lowering (`_lowering`) lets Inductor time the fused kernels
beside the operations that they replace, and keeps what is faster.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from cutlass_api._dtypes import FLOATS, HALF
from cutlass_api.inductor import Options, _lowering
from cutlass_api.inductor._nodes import (
    CAST,
    RESHAPES,
    add_call,
    has_hints,
    inputs_of,
    is_call,
    is_known_as,
    is_static,
    value_of,
)
from cutlass_api.inductor._options import identity, options_in_force
from cutlass_api.inductor._products import (
    INT_MM,
    MIXED,
    add_product,
    decompose_again,
    is_grouped,
    is_mixed_addmm,
    is_product,
    is_scaled,
    is_scaled_grouped,
    is_vector_product,
    replace,
    replace_mixed,
    restore_vector_products,
    scaled_grouped_arguments,
    scaled_grouped_inputs,
    scaled_inputs,
)
from cutlass_api.inductor._torch import CustomGraphPass, V, autotunes, config

aten = torch.ops.aten

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
            if is_grouped(node):
                replace(graph, node, torch.ops.cutlass_api.grouped_mm.default, inputs_of(node)[:3])
                continue
            if is_scaled_grouped(node):
                operator = torch.ops.cutlass_api.scaled_grouped_mm.default
                inputs = scaled_grouped_inputs(node)
                replace(graph, node, operator, inputs, scaled_grouped_arguments)
                continue
            if is_scaled(node):
                inputs = scaled_inputs(graph, node)
                replace(graph, node, torch.ops.cutlass_api.scaled_mm.default, inputs)
                continue
            node = replace_mixed(graph, node)
            if not is_product(node):
                continue
            if fuses:
                _fuse(graph, node)
            elif is_mixed_addmm(node):
                _fuse_region(graph, _Region(node, None, [node]))
            if not node._erased and is_vector_product(node):
                decompose_again(graph, node)

    def uuid(self) -> Any:
        """Part of Inductor's cache keys; None, which disables the cache, if an earlier pass has
        none. Threads without the handler compile differently; in PyTorch 2.11 only this uuid
        separates them in the key."""
        earlier = [getattr(earlier, "uuid", lambda: None)() for earlier in self.earlier]
        options = options_in_force()
        own = identity(options, self.version) if options else ("cutlass_api", "not in force")
        return None if None in earlier else (*own, *earlier)


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
        return value_of(self.product).shape


def _fuse(graph: fx.Graph, product: fx.Node) -> None:
    for second in _seconds(product):
        if _fuse_region(graph, _grow(product, second)):
            return
    _fuse_region(graph, _grow(product))


def _fuse_region(graph: fx.Graph, region: _Region) -> bool:
    """Replaces the products and as much of the region as an epilogue computes. Returns whether it
    did. A product without further operations stays, except for ``aten.addmm`` of 8-bit integers,
    whose addend is computed in an epilogue."""
    least = 1 if is_mixed_addmm(region.product) else 2
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
    value = value_of(node)
    if node.op != "call_function" or value is None or value.dtype not in FLOATS:
        return False
    if not is_known_as([value.numel()], [value_of(region.product).numel()]):
        return False
    if node.target in RESHAPES:
        return _is_unflattened(value.shape, region.shape) or is_known_as(value.shape, region.shape)
    if node.target is not CAST and node.target not in _EXPRESSIONS and node.target not in _PARTS:
        return False
    for arg in node.args:
        if isinstance(arg, fx.Node) and arg not in inside:
            other = value_of(arg)
            if other is None or other.dtype not in FLOATS or other.device != value.device:
                return False
            if not has_hints(other) or _flattened(other.shape, value.shape, region.shape) is None:
                return False
        elif not isinstance(arg, fx.Node | int | float | torch.dtype):
            return False
    return all(isinstance(number, int | float) for number in node.kwargs.values())


def _is_unflattened(shape: torch.Size, flat: torch.Size) -> bool:
    """Whether the shape is that of a matrix whose rows are split into more dimensions."""
    return len(flat) == 2 and len(shape) > 2 and is_known_as(shape[-1:], flat[-1:])


def _flattened(shape: torch.Size, result: torch.Size, flat: torch.Size) -> list[int] | None:
    """The sizes to which a tensor that is broadcast to the shape `result` is reshaped to be an
    operand of the epilogue, whose output has the shape `flat`; none if it is an operand as it is.
    None if it cannot be one."""
    if is_known_as(result, flat) or len(shape) < 2:
        return []
    padded = (1,) * (len(result) - len(shape)) + tuple(shape)
    if is_known_as(padded[:-1], [1] * len(padded[:-1])):
        return [-1]
    if is_known_as(padded[:-1], result[:-1]) and isinstance(padded[-1], int):
        return [-1, padded[-1]]
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
        #: External tensors, and the sizes to which they are reshaped (`_flattened`).
        self.operands: dict[fx.Node, str] = {}
        self.reshaped: dict[fx.Node, list[int]] = {}
        #: The reshape of the output to the shape of the last result; None if it has that shape.
        self.reshape = self._reshape()
        self.is_complete = self.reshape is not None or self._is_flat(self.last)
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

    def _is_flat(self, node: fx.Node) -> bool:
        return is_known_as(value_of(node).shape, self.region.shape)

    def _reshape(self) -> fx.Node | None:
        """A reshape in the region to the shape of the last result, whose sizes may be nodes."""
        if self._is_flat(self.last):
            return None
        shape = value_of(self.last).shape
        reshapes = (node for node in self.region.inside if node.target in RESHAPES)
        return next((node for node in reshapes if is_known_as(value_of(node).shape, shape)), None)

    def _expression(self, node: fx.Node) -> str:
        if node not in self.names:
            self.names[node] = self._compute(node)
        return self.names[node]

    def _compute(self, node: fx.Node) -> str:
        if node is self.region.product or node is self.region.second:
            self.used_products.add(node)
            return self._product(node)
        if node.target in RESHAPES or node.target is CAST:
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
            accum = self._assign(f"product({self._operand(node.args[-1], node)})")
        if node.target in (aten.mm.default, aten.bmm.default, MIXED):
            return accum
        if node.target is INT_MM:
            # What follows computes in floats: `_fits` admits no integers.
            return self._assign(f"1.0 * {accum}")
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
        return self._operand(arg, node)

    def _operand(self, arg: fx.Node, node: fx.Node) -> str:
        if arg not in self.operands:
            sizes = _flattened(value_of(arg).shape, value_of(node).shape, self.region.shape)
            if sizes:
                self.reshaped[arg] = sizes
            self.operands[arg] = f"x{len(self.operands)}"
        return self.operands[arg]

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
            for arg in self.operands:
                if arg in self.reshaped:
                    arg = add_call(graph, aten.reshape.default, arg, self.reshaped[arg])
                operands.append(arg)
            value = value_of(last)
            fused = graph.call_function(
                torch.ops.cutlass_api.mm_epilogue.default,
                (*factors, operands, self.source),
                {"out_dtype": value.dtype},
            )
            fused.meta["val"] = torch.empty_like(
                value_of(product), dtype=value.dtype, memory_format=torch.contiguous_format
            )
            fused.meta[_lowering.REPLACED] = self._replaced()
            if self.region.second is not None and not is_vector_product(product):
                fused.meta[_lowering.PARTLY_REPLACED] = self._partly_replaced()
            result = fused
            if self.reshape is not None:
                result = add_call(graph, aten.reshape.default, fused, self.reshape.args[1])
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
        """The region as a function of the factors and the operands, without its reshapes: each
        result has the shape of the product."""
        graph = fx.Graph()
        copies: dict[Any, fx.Node] = {}
        product, second = self.region.product, self.region.second

        def placeholder(name: str, value: torch.Tensor) -> fx.Node:
            node = graph.placeholder(name)
            node.meta["val"] = value
            return node

        for at, factor in enumerate(product.args[-2:]):
            copies.setdefault(factor, placeholder("AB"[at], value_of(factor)))
        inputs = {}
        for arg, name in self.operands.items():
            value = value_of(arg)
            reshaped = value.reshape(self.reshaped[arg]) if arg in self.reshaped else value
            inputs[arg] = placeholder(name, reshaped)

        def copied(arg: Any, node: fx.Node) -> Any:
            if arg in self.inside:
                return copies[arg]
            if node is product and arg in product.args[-2:]:
                return copies[arg]
            if node is second and arg is second.args[-2]:
                return copies[product.args[-2]]
            return inputs[arg]

        for node in self.region.inside:
            if node.target in RESHAPES:
                copies[node] = copies[node.args[0]]
                continue
            before = node.meta.get(_lowering.REPLACED)
            if before is not None:  # a product of 8-bit integers
                inner = [node for node in before.graph.nodes if node.op == "placeholder"]
                values = (copied(arg, node) for arg in node.args)
                copies[node] = graph.graph_copy(before.graph, dict(zip(inner, values, strict=True)))
                copies[node].meta["val"] = value_of(node)
                continue
            arguments = fx.node.map_arg(node.args, lambda arg, node=node: copied(arg, node))
            copies[node] = add_product(graph, node, arguments)
            dtype = value_of(node).dtype
            copies[node].meta["val"] = torch.empty_like(value_of(product), dtype=dtype)
        graph.output(copies[self.last])
        return fx.GraphModule(torch.nn.Module(), graph)


def _number(value: float) -> str:
    """A number as source text. The epilogue language has no literal for infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "(1e308 * 10)", -math.inf: "(-1e308 * 10)"}.get(value, "(0 * 1e308 * 10)")
    return repr(value)


def _silu(node: fx.Node) -> fx.Node | None:
    """x of x / (1 + exp(-x)), as which Inductor decomposes silu."""
    if not is_call(node, aten.div.Tensor):
        return None
    x, divisor = node.args[:2]
    if not (is_call(divisor, aten.add.Tensor) and divisor.args[1] == 1):
        return None
    power = divisor.args[0]
    if is_call(power, aten.exp.default) and is_call(power.args[0], aten.neg.default):
        return x if power.args[0].args[0] is x else None
    return None


def _gelu(node: fx.Node) -> fx.Node | None:
    """x of (x * 0.5) * (1 + erf(x * sqrt(0.5))), as which Inductor decomposes exact GELU."""
    if not is_call(node, aten.mul.Tensor):
        return None
    half, shifted = node.args[:2]
    if not (is_call(half, aten.mul.Tensor) and half.args[1] == 0.5):
        return None
    if not (is_call(shifted, aten.add.Tensor) and shifted.args[1] == 1):
        return None
    error = shifted.args[0]
    if not (is_call(error, aten.erf.default) and is_call(error.args[0], aten.mul.Tensor)):
        return None
    x, factor = error.args[0].args[:2]
    is_root = isinstance(factor, float) and math.isclose(factor, math.sqrt(0.5))
    return x if is_root and half.args[0] is x else None


__all__ = ["ProductPass"]
