"""``aten._weight_int4pack_mm`` of constants: our kernels beside torch's.

The packed weight of tinygemm has another order than ours. A constant one, as in a frozen graph, is
converted once, while the graph is lowered; compiled code holds the copy. A weight that is an input
of the graph stays torch's: each call would convert it.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from cutlass_api import _core, weights
from cutlass_api.arguments import GemmArguments
from cutlass_api.inductor import _candidates as ours
from cutlass_api.inductor._lowering import ReplacedCaller, candidate_count
from cutlass_api.inductor._nodes import has_hints, is_call, value_of
from cutlass_api.inductor._timing import time_alike
from cutlass_api.inductor._torch import (
    V,
    autotune_select_algorithm,
    fallback_handler,
    make_fallback,
    realize_inputs,
    register_lowering,
    require_contiguous,
    row_major_layout,
)
from cutlass_api.ops import _epilogues

log = logging.getLogger(__name__)

aten = torch.ops.aten

INT4PACK = aten._weight_int4pack_mm.default
#: The key in the metadata of a call of `INT4PACK` whose weight is a constant.
IS_CONSTANT = "cutlass_api_is_constant"


def mark_constant(graph: fx.Graph, node: fx.Node) -> bool:
    """Marks a product by a constant weight of tinygemm that `_lower_int4pack` serves. Returns
    whether the node is one."""
    if not is_call(node, INT4PACK):
        return False
    x, (packed, group, both) = value_of(node.args[0]), node.args[1:]
    constants = [_constant(graph, each) for each in (packed, both)]
    if x is None or not has_hints(x) or x.device.type != "cuda" or x.dtype != torch.bfloat16:
        return False
    if any(each is None for each in constants) or group not in (32, 64, 128):
        return False
    node.meta[IS_CONSTANT] = True
    return True


def _constant(graph: fx.Graph, node: Any) -> torch.Tensor | None:
    """The tensor of a node that is an attribute of the graph's module."""
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    found: Any = graph.owning_module
    for name in str(node.target).split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, torch.Tensor) and value_of(node) is not None else None


def _lower_int4pack(x: Any, packed: Any, group: int, both: Any) -> Any:
    """The fastest of our kernels, which read a converted copy of a constant, and torch's."""
    node = V.graph.current_node
    if IS_CONSTANT in node.meta and ours.are_wanted():
        before = list(V.graph.constants)
        try:
            result = _fastest(node, x, packed, both)
        except Exception:
            log.debug("no kernels of ours for %s", INT4PACK, exc_info=True)
            result = None
        if result is None or not _calls_ours(result):
            for name in set(V.graph.constants).difference(before):
                del V.graph.constants[name], V.graph.constant_reprs[name]
        if result is not None:
            return result
    return _fallback(x, packed, group, both)


def _fastest(node: fx.Node, x: Any, packed: Any, both: Any) -> Any:
    layout = row_major_layout(node.meta["val"])
    of_packed, of_both = (V.graph.constants[each.get_name()] for each in (packed, both))
    with _disable_current_modes():
        shape = (int(layout.size[1]), node.args[0].meta["val"].shape[1])
        weight = weights.from_torchao(of_packed, of_both, shape)
        operands, blocks = weight.format.of_product(weight.fields)
        copies = [weight.values, *operands.values()]
    boxes = [x, *map(V.graph.add_tensor_constant, copies), packed, both]
    nodes = list(realize_inputs(*boxes))

    def arguments(out: torch.Tensor, a: torch.Tensor, *copy: torch.Tensor) -> GemmArguments:
        words, scale, zero = copy
        b = _core.ScaledTensor.of_weight(words, "uint4", scale.t(), weight.group, zero.t())
        return GemmArguments(a, b, out, "float32")

    options = {"epilogue": _epilogues.scaled(*operands, blocks=blocks), "element": "uint4"}
    count = candidate_count()
    choices: list[Any] = list(
        ours.callers(count, ours.GEMM, nodes[:4], layout, arguments, **options)
    )
    if not choices:
        return None
    replaced = fx.Graph()
    inputs = [replaced.placeholder(name) for name in ("x", "packed", "both")]
    args = (inputs[0], inputs[1], node.args[2], inputs[2])
    replaced.output(replaced.call_function(INT4PACK, args))
    module = fx.GraphModule(torch.nn.Module(), replaced)
    torchs = [0, 4, 5]
    choices.append(
        ReplacedCaller(
            *(0, module, [nodes[at] for at in torchs], layout, [boxes[at] for at in torchs], "ATEN")
        )
    )
    time_alike(choices)
    for choice in choices:
        places = range(4) if isinstance(choice, ours.Caller) else torchs
        choice.benchmark = partial(_benchmark, choice.benchmark, places)
    values = dict(enumerate([*copies, of_packed, of_both], start=1))
    found = autotune_select_algorithm(
        "cutlass_api_int4pack_mm",
        choices,
        nodes,
        layout,
        input_gen_fns={at: partial(_same, value) for at, value in values.items()},
        return_multi_template=False,
    )
    return found[0] if isinstance(found, tuple) else found


def _benchmark(
    benchmark: Callable[..., float], places: Sequence[int], *inputs: Any, out: torch.Tensor
) -> float:
    """Times a choice that has these of the inputs."""
    return benchmark(*(inputs[at] for at in places), out=out)


def _same(value: torch.Tensor, _: Any) -> torch.Tensor:
    return value


def _calls_ours(result: Any) -> bool:
    while hasattr(result, "data"):
        result = result.data
    return "cutlass_api" in str(getattr(result, "python_kernel_name", ""))


make_fallback(INT4PACK, layout_constraint=require_contiguous, warn=False, override_decomp=True)
_fallback = fallback_handler(INT4PACK, add_to_fallback_set=False)
register_lowering(INT4PACK, type_promotion_kind=None)(_lower_int4pack)
