"""Factors of products that a post-grad graph computes from 8 bits: casts, and a scale."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from cutlass_api._dtypes import FLOAT8, FLOATS, INT8
from cutlass_api.inductor._nodes import (
    CAST,
    add_call,
    has_hints,
    is_call,
    is_input,
    is_known_as,
    needed_users,
    unexpanded,
    value_of,
)

aten = torch.ops.aten

#: What kernels multiply by 16 bits.
DTYPES = (*INT8, torch.float8_e4m3fn)


class Widened(NamedTuple):
    """A factor that operations compute from an input of 8 bits.

    steps: transposes, casts and at most one multiplication by a scale, the last one first; the
    first of all is a cast. contracted: the dimension that the product sums."""

    steps: list[fx.Node]
    contracted: int

    @property
    def scales(self) -> list[fx.Node]:
        """What the steps multiply by."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return [
            unexpanded(other)
            for step, factor in pairs
            if is_call(step, aten.mul.Tensor)
            for other in step.args
            if other is not factor
        ]

    @property
    def is_served(self) -> bool:
        """Whether kernels read the dtype, of float8 as the second factor, and an epilogue can apply
        the scale, if there is one: it is the same along the sum."""
        dtype = value_of(self.steps[-1].args[0]).dtype
        scaled = [at for at, step in enumerate(self.steps) if is_call(step, aten.mul.Tensor)]
        if not scaled:
            return dtype in INT8
        if len(scaled) > 1 or len(self.scales) != 1 or (dtype in FLOAT8 and self.contracted == 1):
            return False
        scale = value_of(self.scales[0])
        if scale is None or scale.dtype not in FLOATS or not has_hints(scale):
            return False
        transposes = sum(is_call(step, aten.permute.default) for step in self.steps[: scaled[0]])
        extents = (1, 1, *scale.shape)[-2:]
        return is_known_as([extents[(self.contracted + transposes) % 2]], [1])

    def operands(self, graph: fx.Graph) -> list[fx.Node]:
        """Adds the scale, if there is one, and the factor in 8 bits, as the product needs them."""
        found = [self.steps[-1].args[0]]
        for step in reversed(self.steps):
            if is_call(step, aten.permute.default):
                found = [add_call(graph, step.target, each, [1, 0]) for each in found]
            elif is_call(step, aten.mul.Tensor):
                (scale,) = self.scales
                if value_of(scale).dim() < 2:
                    scale = add_call(graph, aten.reshape.default, scale, [1, -1])
                found.insert(0, scale)
        if len(found) > 1 and self.contracted == 0:
            found[0] = add_call(graph, aten.reshape.default, found[0], [-1])
        return found

    def copied(self, graph: fx.Graph, operands: Sequence[fx.Node]) -> fx.Node:
        """Adds the operations but for the transposes, of copies of the operands."""
        *scale, factor = operands
        for step in reversed(self.steps):
            if not is_call(step, aten.permute.default):
                others = scale if is_call(step, aten.mul.Tensor) else step.args[1:]
                factor = graph.call_function(step.target, (factor, *others))
        return factor


def widened_factor(node: Any, dtype: torch.dtype, contracted: int) -> Widened | None:
    """The operations that compute a factor of a product from an input of 8 bits. None if the factor
    is another one, or if a step is needed elsewhere, too. Integers that the graph computes stay
    part of Inductor's own kernels."""
    steps = _steps(node)
    if not steps or value_of(node).dtype != dtype:
        return None
    found = Widened(steps, contracted)
    return found if found.is_served else None


def is_of_eight_bits(node: Any) -> bool:
    """Whether casts, transposes and multiplications compute a node from an input of 8 bits."""
    waiting, known = [node], set[fx.Node]()
    while waiting:
        node = waiting.pop()
        value = value_of(node)
        if value is None or node in known:
            continue
        known.add(node)
        if value.dtype in DTYPES:
            if is_input(node):
                return True
        elif any(is_call(node, each) for each in (CAST, aten.permute.default, aten.mul.Tensor)):
            waiting += node.all_input_nodes
    return False


def _steps(node: Any) -> list[fx.Node]:
    """The steps of `Widened`. Empty if a node is no such factor."""
    value = value_of(node)
    if value is None or value.dtype not in FLOATS or not _is_used_once(node):
        return []
    inner: list[Any] = []
    if is_call(node, CAST):
        source = value_of(node.args[0])
        if source is not None and source.dtype in DTYPES and is_input(node.args[0]):
            return [node]
        inner = [node.args[0]]
    elif is_call(node, aten.permute.default) and list(node.args[1]) == [1, 0]:
        inner = [node.args[0]]
    elif is_call(node, aten.mul.Tensor):
        inner = [each for each in node.args if _is_as(each, value)]
    found = (_steps(each) for each in inner)
    return next(([node, *steps] for steps in found if steps), [])


def _is_as(node: Any, value: torch.Tensor) -> bool:
    """Whether a node has the shape of a tensor."""
    other = value_of(node)
    return other is not None and is_known_as(other.shape, value.shape)


def _is_used_once(node: Any) -> bool:
    """Whether one operation needs the node."""
    return len(needed_users(node)) == 1
