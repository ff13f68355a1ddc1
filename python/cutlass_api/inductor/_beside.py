"""Products of one input by quantized weights, as q, k and v of attention: one launch if the weights
lie side by side in memory, as those of `cutlass_api.nn.convert` and `load` do.

Where memory lies is known when the graph runs. Weights that lie apart are multiplied one by one, as
without the pass; so nothing is timed.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx

from cutlass_api.inductor import _candidates as ours
from cutlass_api.inductor._joint import is_returned
from cutlass_api.inductor._nodes import add_call, arguments_of, is_call, needed_users, value_of
from cutlass_api.inductor._torch import (
    V,
    fallback_handler,
    realize_inputs,
    register_lowering,
    row_major_layout,
)
from cutlass_api.ops import OPERATORS
from cutlass_api.ops._operator import Lowering

aten = torch.ops.aten
QUANTIZED = OPERATORS["quantized_linear"]


@torch.library.custom_op(
    "cutlass_api_inductor::quantized_linears",
    mutates_args=(),
    schema="(Tensor input, Tensor[] values, Tensor[] scales, Tensor[] zeros, str format) -> Tensor",
)
def quantized_linears(
    input: Tensor,
    values: Sequence[Tensor],
    scales: Sequence[Tensor],
    zeros: Sequence[Tensor],
    format: str,
) -> Tensor:
    """The outputs of `quantized_linear` side by side, where no kernel of ours is wanted."""
    calls = calls_of(input, values, scales, zeros, format)
    return torch.cat([QUANTIZED.overload(*each) for each in calls], -1)


@quantized_linears.register_fake
def _(input: Tensor, values: Sequence[Tensor], *_: Any) -> Tensor:
    return input.new_empty((*input.shape[:-1], sum(part.shape[0] for part in values)))


def calls_of(
    input: Any, values: Sequence[Any], scales: Sequence[Any], zeros: Sequence[Any], format: str
) -> list[tuple[Any, ...]]:
    """The arguments of `quantized_linear`, for a weight each."""
    layers = zip(values, scales, zeros or [None] * len(values), strict=True)
    return [(input, *fields, None, None, format) for fields in layers]


def join_weights(graph: fx.Graph) -> None:
    """Products of one input by weights of one format become one operator."""
    groups: dict[Any, list[fx.Node]] = {}
    for node in graph.nodes:
        if is_call(node, QUANTIZED.overload) and (key := _alike(node)) is not None:
            groups.setdefault(key, []).append(node)
    for products in groups.values():
        if len(products) > 1:
            _join(graph, products)


def _alike(node: fx.Node) -> Any:
    """What products have in common that are joined; None for a product that stays."""
    input, *fields, format, bias, activation = arguments_of(node)
    *plain, factor, permutation = fields
    if not (factor is permutation is bias is activation is None):
        return None
    plain = [field for field in plain if field is not None]
    if any(field.op not in ("placeholder", "get_attr") for field in plain):
        return None
    if not needed_users(node) or is_returned(node) or _lowered(node.args) is None:
        return None
    values = map(value_of, plain)
    return input, format, *((value.dtype, *value.shape[1:]) for value in values)


def _lowered(args: Sequence[Any]) -> Lowering | None:
    """What Inductor is offered for a product alone, if that launches a kernel of its fields."""
    assert QUANTIZED.lowering is not None
    fakes = fx.node.map_arg(tuple(args), value_of)
    found = QUANTIZED.lowering(QUANTIZED.bind(fakes, {}))
    return None if found is None or found.epilogue is None else found


def _join(graph: fx.Graph, products: Sequence[fx.Node]) -> None:
    first = min(products)
    columns = zip(*(product.args[1:4] for product in products), strict=True)
    fields = [[field for field in column if field is not None] for column in columns]
    input, format = first.args[0], first.args[6]
    with graph.inserting_before(first):
        target = torch.ops.cutlass_api_inductor.quantized_linears.default
        joined = add_call(graph, target, input, *fields, format)
    start = 0
    for product in products:
        value = value_of(product)
        end = start + value.shape[-1]
        with graph.inserting_before(product):
            part = add_call(graph, aten.slice.Tensor, joined, value.dim() - 1, start, end)
        product.replace_all_uses_with(part)
        graph.erase_node(product)
        start = end


_fallback = fallback_handler(
    torch.ops.cutlass_api_inductor.quantized_linears.default, add_to_fallback_set=False
)


@register_lowering(
    torch.ops.cutlass_api_inductor.quantized_linears.default, type_promotion_kind=None
)
def _lower(input: Any, values: Any, scales: Any, zeros: Any, format: str) -> Any:
    """The kernel that ranks first for all weights as one."""
    x, *fields = (list(map(ours.symbolic, each)) for each in ([input], values, scales, zeros))
    offer = _lowered(calls_of(x[0], fields[0], fields[1], fields[2], format)[0])
    layout = row_major_layout(V.graph.current_node.meta["val"])
    if offer is None or not ours.are_wanted() or layout.device.type != "cuda":
        return _fallback(input, values, scales, zeros, format)
    nodes = list(realize_inputs(input, *values, *scales, *zeros))
    shared: dict[str, Any] = {"weights": len(values), "names": tuple(offer.operands)}
    options = {**shared, "epilogue": offer.epilogue, "element": offer.element}
    arguments = partial(ours.quantized_linears_arguments, **shared, format=format)
    found = ours.callers(1, ours.QUANTIZED_LINEARS, nodes, layout, arguments, **options)
    if not found:
        return _fallback(input, values, scales, zeros, format)
    return found[0].output_node()
