"""What stands around a region of a graph: the operations that Inductor may fuse with it.

A region that torch computes may fuse with the norm before it, or with the one behind it. A kernel
of ours fuses with neither. The choice between both is therefore made as follows.

A product of a single row, which Inductor decomposes, may fuse with both: the times are those of the
region together with these operations. Any other product is a kernel of its own, and only what
follows it may fuse with operations behind the region: torch's time is that of the product alone.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

import torch
from torch import fx

from cutlass_api.inductor._nodes import CAST, is_input, is_static, needed_users, value_of
from cutlass_api.inductor._products import is_of_mm
from cutlass_api.inductor._timing import milliseconds_of
from cutlass_api.inductor._torch import V, compile_for_benchmark, rand_strided

log = logging.getLogger(__name__)

aten = torch.ops.aten

#: The most operations before a region, and behind it: a norm has ten.
_MOST = 24
#: Operations that Inductor fuses, beside pointwise ones.
_FUSED = {
    *(CAST, aten.sum, aten.mean, aten.amax, aten.amin, aten.var_mean, aten.var),
    *(aten.view, aten.reshape, aten.permute, aten.unsqueeze, aten.squeeze, aten.expand),
    *(aten.slice, aten.select, aten.clone, aten.cat, aten.full, aten._unsafe_view),
}
#: Settings for small operations: to tune them takes seconds and gains a fraction of a microsecond.
_UNTUNED = {
    "max_autotune": False,
    "max_autotune_pointwise": False,
    "coordinate_descent_tuning": False,
}
#: By `Surroundings.key`: the times of `Surroundings.times`.
_TIMES: dict[str, tuple[float, float] | None] = {}


class Surroundings:
    """whole: the region and what stands around it, as torch computes it. rest: the same without the
    region, of its result, which stores the inputs of the region."""

    def __init__(self, whole: fx.GraphModule, rest: fx.GraphModule) -> None:
        self.whole, self.rest = whole, rest
        text = "\n".join(_text(module) for module in (whole, rest))
        #: Part of the keys of choices in Inductor's autotuning cache.
        self.key = hashlib.sha256(text.encode()).hexdigest()

    def times(self) -> tuple[float, float] | None:
        """The milliseconds of both; None if they cannot be timed."""
        if self.key not in _TIMES:
            try:
                rest = _milliseconds(self.rest, is_tuned=False)
                _TIMES[self.key] = (_milliseconds(self.whole), rest)
            except Exception:
                log.debug("no times of what stands around a region", exc_info=True)
                _TIMES[self.key] = None
        return _TIMES[self.key]

    def add_to(self, choice: Any, *, is_whole: bool) -> None:
        """Makes a choice's time that with what stands around. is_whole: whether the choice is the
        region as torch computes it."""
        choice.surroundings = self.key
        choice.benchmark = partial(self._benchmark, choice.benchmark, is_whole)

    def _benchmark(
        self, benchmark: Callable[..., float], is_whole: bool, *inputs: Any, out: torch.Tensor
    ) -> float:
        times = self.times()
        if times is None:
            return benchmark(*inputs, out=out)
        whole, rest = times
        return whole if is_whole else benchmark(*inputs, out=out) + rest


def has_fused_users(inside: Sequence[fx.Node], others: Set[fx.Node]) -> bool:
    """Whether Inductor may fuse the last operations of a region with some behind it. The arguments
    are those of `surroundings`."""
    return any(map(_computes, _behind(inside, others)))


def surroundings(
    inside: Sequence[fx.Node], inputs: Sequence[fx.Node], others: Set[fx.Node]
) -> Surroundings | None:
    """What stands around a region of a graph; None if there is nothing, or sizes are symbols.

    inside: the region, whose last node alone is used outside of it. inputs: what an operator in its
    place reads. others: the nodes of other regions.
    """
    before = _before(inside, others)
    behind = _behind(inside, others)
    nodes = sorted({*before, *inside, *behind})
    values = [value_of(arg) for node in nodes for arg in (node, *node.all_input_nodes)]
    if any(value is not None and not is_static(value) for value in values):
        return None
    if not any(_computes(node) for node in behind) and not any(map(_computes, before)):
        return None
    found = set(nodes)
    results = [node for node in nodes if any(user not in found for user in needed_users(node))]
    last = inside[-1]
    stored = [node for node in inputs if node in before and not is_input(node)]
    outer = [node for node in results if node is not last]
    whole = _module(nodes, results, ())
    rest = _module(nodes, list(dict.fromkeys([*stored, *outer])), (last,))
    return Surroundings(whole, rest) if whole is not None and rest is not None else None


def _before(inside: Sequence[fx.Node], others: Set[fx.Node]) -> list[fx.Node]:
    """The operations that only the region needs. They end at other products."""
    found: list[fx.Node] = []
    known = set(inside)
    own = {node for node in inside if is_of_mm(node)}
    waiting = {arg for node in inside for arg in node.all_input_nodes}
    while waiting and len(found) < _MOST:
        node = max(waiting)  # behind all nodes that are left, hence also its users
        waiting.remove(node)
        if node in known or node in others or not all(user in known for user in needed_users(node)):
            continue
        # A product that Inductor decomposed is the region's, or stands outside.
        if not _is_fused(node) or (is_of_mm(node) and not own.intersection(node.users)):
            continue
        if is_of_mm(node):
            own.add(node)
        known.add(node)
        found.append(node)
        waiting.update(node.all_input_nodes)
    return found


def _behind(inside: Sequence[fx.Node], others: Set[fx.Node]) -> list[fx.Node]:
    """The operations on the region's result up to the next products."""
    known, found = set(inside), list[fx.Node]()
    tainted = set[fx.Node]()
    node: Any = inside[-1].next
    while node.op != "root" and len(found) < _MOST:
        depends = [arg for arg in node.all_input_nodes if arg in known or arg in tainted]
        if depends:
            fits = _is_fused(node) and not is_of_mm(node) and node not in others
            if fits and not tainted.intersection(depends):
                known.add(node)
                found.append(node)
            else:
                tainted.add(node)
        node = node.next
    return found


def _is_fused(node: fx.Node) -> bool:
    if node.op != "call_function":
        return False
    if getattr(node.target, "__name__", "") == "getitem":
        return node.args[0].target is aten.var_mean.correction
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    is_known = node.target in _FUSED or node.target.overloadpacket in _FUSED
    return is_known or torch.Tag.pointwise in node.target.tags


def _computes(node: fx.Node) -> bool:
    """Whether an operation is more than a view or a cast."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target is CAST:
        return False
    return torch.Tag.pointwise in node.target.tags or node.target.overloadpacket in (
        *(aten.sum, aten.mean, aten.amax, aten.amin, aten.var_mean, aten.var),
    )


def _module(
    nodes: Sequence[fx.Node], results: Sequence[fx.Node], stored: Sequence[fx.Node]
) -> fx.GraphModule | None:
    """The operations that the results need, with inputs for the stored nodes and for nodes outside.
    None if an input is no tensor on a GPU, or there is nothing to compute."""
    needed: set[fx.Node] = set()
    inner = set(nodes).difference(stored)
    waiting = [node for node in results if node in inner]
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += [arg for arg in node.all_input_nodes if arg in inner]
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    ordered = [node for node in nodes if node in needed]
    for node in dict.fromkeys(arg for each in ordered for arg in each.all_input_nodes):
        if node not in needed:
            value = value_of(node)
            if value is None or value.device.type != "cuda":
                return None
            copies[node] = graph.placeholder(f"x{len(copies)}")
            copies[node].meta["val"] = value
    for node in ordered:  # without their names, by which equal layers would differ
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), copies.__getitem__)
        copies[node] = graph.call_function(node.target, args, kwargs)
        copies[node].meta = dict(node.meta)
    graph.output(tuple(copies[node] for node in results if node in needed))
    return fx.GraphModule(torch.nn.Module(), graph) if ordered else None


def _inputs(module: fx.GraphModule) -> list[torch.Tensor]:
    return [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]


def _text(module: fx.GraphModule) -> str:
    inputs = [(x.shape, x.stride(), x.dtype, x.device) for x in _inputs(module)]
    return f"{module.graph} {inputs}"


def _compiled(module: fx.GraphModule, is_tuned: bool = True) -> Any:
    with V.fake_mode:
        fakes = [
            torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device)
            for each in _inputs(module)
        ]
    settings: dict[str, Any] = {
        "pipeline_max_autotune_gemm": False,
        "max_autotune_gemm_backends": "ATEN",
        **({} if is_tuned else _UNTUNED),
    }
    return compile_for_benchmark(module, fakes, settings)


def _milliseconds(module: fx.GraphModule, is_tuned: bool = True) -> float:
    call = _compiled(module, is_tuned).call
    inputs = [
        rand_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device)
        for each in _inputs(module)
    ]
    # The call empties the list of its arguments.
    return milliseconds_of(lambda *values: lambda: call([*values]), inputs)
