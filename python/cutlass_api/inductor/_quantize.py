"""Quantization of activations at run time, in a post-grad graph.

Layers of one input quantize it each, and nothing merges equal operations of inference graphs. A row
with one scale becomes Inductor's own operations where they fuse with what computes it, as a norm.
"""

import operator
from collections.abc import Sequence

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from cutlass_api._dtypes import FLOAT8
from cutlass_api.inductor._nodes import arguments_of, is_call, value_of
from cutlass_api.inductor._regions import is_same, unviewed
from cutlass_api.inductor._torch import V, select_decomp_table
from cutlass_api.ops import OPS
from cutlass_api.weights._formats import Format, find_format
from cutlass_api.weights._scales import ROW

QUANTIZE = OPS.quantize.default
#: The most elements of a row that Inductor reduces in one kernel, whatever the number of rows; of
#: longer ones it may make three (`InductorChoices.reduction_split_factor`, PyTorch 2.11 to 2.15).
_MOST_COLUMNS = 8192
#: The compute capability from which Triton converts to float8_e4m3fn.
_CONVERTS_FLOAT8 = (8, 9)


def merge_quantizations(graph: fx.Graph) -> None:
    """Quantizes each matrix once."""
    found: list[fx.Node] = []
    for node in graph.nodes:
        if not is_call(node, QUANTIZE):
            continue
        same = next((each for each in found if _are_equal(node, each)), None)
        if same is None:
            found.append(node)
        else:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    for node in found:
        firsts: dict[int, fx.Node] = {}
        for output in [user for user in node.users if is_call(user, operator.getitem)]:
            first = firsts.setdefault(output.args[1], output)
            if first is not output:
                output.replace_all_uses_with(first)
                graph.erase_node(output)


def _are_equal(node: fx.Node, other: fx.Node) -> bool:
    (input, *settings), (other_input, *others) = arguments_of(node), arguments_of(other)
    return settings == others and is_same(input, other_input)


def fuse_quantizations(graph: fx.Graph) -> None:
    """Puts Inductor's operations in place of ours where they fuse with those before them."""
    for node in graph.nodes:
        format = _fusible(node) if is_call(node, QUANTIZE) else None
        if format is None:
            continue
        outputs = [user for user in node.users if is_call(user, operator.getitem)]
        if len(outputs) < len(node.users):
            continue
        with graph.inserting_before(node):
            fields = _fields(graph, node.args[0], format)
        for output in outputs:
            output.replace_all_uses_with(fields[output.args[1]])
            graph.erase_node(output)
        graph.erase_node(node)


def _fusible(node: fx.Node) -> Format | None:
    """The format of rows that Inductor quantizes in the kernel that computes them; None if it would
    launch no fewer kernels."""
    input, dtype, block, swizzle = arguments_of(node)
    value, source = value_of(input), unviewed(input)
    if value is None or value.device.type != "cuda" or value.stride(1) != 1:
        return None
    format, is_a = find_format(dtype, tuple(block), swizzle)
    if format.scales != ROW or not is_a or format.zero is not None:
        return None
    if not isinstance(value.shape[1], int) or not 0 < value.shape[1] <= _MOST_COLUMNS:
        return None
    capability = torch.cuda.get_device_properties(value.device)
    if dtype in FLOAT8 and (capability.major, capability.minor) < _CONVERTS_FLOAT8:
        return None
    return format if torch.Tag.pointwise in getattr(source.target, "tags", ()) else None


def _fields(graph: fx.Graph, input: fx.Node, format: Format) -> Sequence[fx.Node]:
    """The operations of `Format.quantized`, as Inductor decomposes them."""

    def quantized(rows: torch.Tensor) -> list[torch.Tensor]:
        return [each for each in format.quantized(rows) if each is not None]

    with V.fake_mode:  # it makes constants
        traced = make_fx(quantized, select_decomp_table())(value_of(input)).graph
    (rows,) = traced.find_nodes(op="placeholder")
    fields: Sequence[fx.Node] = graph.graph_copy(traced, {rows: input})
    return fields
