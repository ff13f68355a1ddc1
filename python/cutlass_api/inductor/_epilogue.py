"""The source of an epilogue that computes a region of pointwise operations behind a product."""

import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from cutlass_api.fusion._functions import FUNCTIONS
from cutlass_api.inductor import _lowering
from cutlass_api.inductor._nodes import (
    CAST,
    RESHAPES,
    add_call,
    is_call,
    is_known_as,
    unexpanded,
    value_of,
)
from cutlass_api.inductor._products import INT_MM, MIXED, add_product, scaled_mm

aten = torch.ops.aten

#: Pointwise operations, and the functions of the epilogue language that compute them.
EXPRESSIONS = {
    attrgetter(function.aten)(aten): name for name, function in FUNCTIONS.items() if function.aten
}
EXPRESSIONS |= {aten.clamp_min.default: "maximum", aten.clamp_max.default: "minimum"}
#: Those whose results are truth values, also of two tensors.
COMPARISONS = tuple(
    getattr(getattr(aten, name), overload)
    for name in ("lt", "le", "gt", "ge", "eq", "ne")
    for overload in ("Scalar", "Tensor")
)
EXPRESSIONS |= {each: each._opname for each in COMPARISONS}
#: Exponents of ``aten.pow``, and the products that Inductor computes, too.
POWERS = {2: "square({0})", 3: "square({0}) * {0}"}

_X = object()
#: What Inductor decomposes functions of x into: silu to x / (1 + exp(-x)), hardswish to
#: x * clamp(x + 3, 0, 6) / 6, exact GELU to (x * 0.5) * (1 + erf(x * sqrt(0.5))). Models also
#: write GELU with x / sqrt(2).
_DECOMPOSITIONS: list[tuple[str, Any]] = [
    (
        "silu",
        (
            aten.div.Tensor,
            _X,
            (aten.add.Tensor, (aten.exp.default, (aten.neg.default, _X)), 1),
        ),
    ),
    (
        "hardswish",
        (
            aten.div.Tensor,
            (
                aten.mul.Tensor,
                _X,
                (aten.clamp_max.default, (aten.clamp_min.default, (aten.add.Tensor, _X, 3), 0), 6),
            ),
            6,
        ),
    ),
    *(
        (
            "gelu",
            (
                aten.mul.Tensor,
                (aten.mul.Tensor, _X, 0.5),
                (aten.add.Tensor, (aten.erf.default, scaled), 1),
            ),
        )
        for scaled in (
            (aten.mul.Tensor, _X, math.sqrt(0.5)),
            (aten.div.Tensor, _X, math.sqrt(2)),
        )
    ),
]


def is_pointwise(node: fx.Node) -> bool:
    """Whether the pass replaces an operation, if its operands fit."""
    if node.target is aten.pow.Tensor_Scalar:
        return node.args[1] in POWERS
    return node.target is CAST or node.target in EXPRESSIONS


@dataclass
class Region:
    """A product and pointwise operations behind it; of a dual GEMM, two products."""

    product: fx.Node
    #: The second product, of the same first factor.
    second: fx.Node | None = None
    #: In the order of the graph.
    inside: list[fx.Node] = field(default_factory=list)

    @property
    def shape(self) -> torch.Size:
        return value_of(self.product).shape


def is_unflattened(shape: torch.Size, flat: torch.Size) -> bool:
    """Whether the shape is that of a matrix whose rows are split into more dimensions."""
    return len(flat) == 2 and len(shape) > 2 and is_known_as(shape[-1:], flat[-1:])


def flattened(shape: torch.Size, result: torch.Size, flat: torch.Size) -> list[int] | None:
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


class Epilogue:
    """A region as source of the epilogue language, and as a graph of its own."""

    def __init__(self, region: Region) -> None:
        self.region = region
        self.inside = set(region.inside)
        self.last = region.inside[-1]
        self.lines: list[str] = []
        self.names: dict[fx.Node, str] = {}
        #: External tensors, and the sizes to which they are reshaped (`flattened`).
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
        self.source = f"def epilogue({parameters}): {'; '.join(body)}"

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
        for function, pattern in _DECOMPOSITIONS:
            inner: list[fx.Node] = []
            if _matches(pattern, node, inner) and inner[0] in self.inside:
                return self._assign(f"{function}({self._expression(inner[0])})")
        if node.target is aten.pow.Tensor_Scalar:
            base, exponent = node.args
            return self._assign(POWERS[exponent].format(self._argument(base, node)))
        if node.target not in EXPRESSIONS:
            self.is_complete = False
            return "accum"
        values = [self._argument(arg, node) for arg in node.args]
        # Of addition and subtraction: the factor of the second value.
        alpha = node.kwargs.get("alpha", 1)
        if alpha != 1:
            values[1] = f"{alpha} * {values[1]}"
        return self._assign(f"{EXPRESSIONS[node.target]}({', '.join(values)})")

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
        if node.target is scaled_mm:
            accum = self._assign(f"multiply({accum}, {self._operand(node.args[-3], node)})")
            if len(node.args) == 3:
                return accum
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
        shapes = value_of(node).shape, self.region.shape
        source = unexpanded(arg)
        if source is not arg and flattened(value_of(source).shape, *shapes) is not None:
            return self._operand(source, node)
        if arg not in self.operands:
            sizes = flattened(value_of(arg).shape, *shapes)
            if sizes:
                self.reshaped[arg] = sizes
            self.operands[arg] = f"x{len(self.operands)}"
        return self.operands[arg]

    def _assign(self, expression: str) -> str:
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {expression}")
        return name

    def replace(self, graph: fx.Graph, partly: fx.GraphModule | None = None) -> fx.Node:
        """Puts the operator in place of the region, and returns its node. partly: the region with
        the epilogue fused into one of its two products, a further alternative to the operator."""
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
            fused.meta[_lowering.REPLACED] = self.replaced()
            if partly is not None:
                fused.meta[_lowering.PARTLY_REPLACED] = partly
            result = fused
            if self.reshape is not None:
                result = add_call(graph, aten.reshape.default, fused, self.reshape.args[1])
        last.replace_all_uses_with(result)
        for node in reversed(self.region.inside):
            for unneeded in list(node.users):
                graph.erase_node(unneeded)
            graph.erase_node(node)
        return fused

    def replaced(self) -> fx.GraphModule:
        """The region as a function of the factors and the operands, without its reshapes: each
        result has the shape of the product."""
        graph, copies = self._copied()
        graph.output(copies[self.last])
        return fx.GraphModule(torch.nn.Module(), graph)

    def products_alone(self) -> fx.GraphModule:
        """The products of the region as a function of the same."""
        graph, copies = self._copied()
        products = (self.region.product, self.region.second)
        graph.output(tuple(copies[each] for each in products if each is not None))
        graph.eliminate_dead_code()
        return fx.GraphModule(torch.nn.Module(), graph)

    def _copied(self) -> tuple[fx.Graph, dict[Any, fx.Node]]:
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
            return inputs[arg if arg in inputs else unexpanded(arg)]

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
        return graph, copies


def _number(value: float) -> str:
    """A number as source text. The epilogue language has no literal for infinity and NaN."""
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "(1e308 * 10)", -math.inf: "(-1e308 * 10)"}.get(value, "(0 * 1e308 * 10)")
    return repr(value)


def _matches(pattern: Any, arg: Any, x: list[fx.Node]) -> bool:
    """Whether an argument is the result of a pattern of operations. Appends what stands for x."""
    if pattern is _X:
        x.append(arg)
        return isinstance(arg, fx.Node) and arg is x[0]
    if isinstance(pattern, tuple):
        operation, *inputs = pattern
        return (
            is_call(arg, operation)
            and not arg.kwargs
            and len(arg.args) == len(inputs)
            and all(_matches(*pair, x) for pair in zip(inputs, arg.args, strict=True))
        )
    return isinstance(arg, int | float) and math.isclose(arg, pattern)
