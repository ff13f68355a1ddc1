"""Products in a post-grad graph for which Inductor's handler offers no choices: grouped and scaled
products, and those of a float matrix and one that was cast from 8 bits, become operators of ours,
whose lowering (`_lowering`) also times the operations that they replace. Products of a single row
or column, which Inductor decomposes, are restored if a factor is of 8 bits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from cutlass_api._dtypes import E8M0, FLOAT8, FLOATS, HALF
from cutlass_api.inductor import _lowering
from cutlass_api.inductor._nodes import (
    CAST,
    add_call,
    arguments_of,
    has_hints,
    has_one_element,
    is_call,
    is_known_as,
    keep_origin,
    value_of,
)
from cutlass_api.inductor._widened import is_of_eight_bits, widened_factor
from cutlass_api.ops import OPS
from cutlass_api.weights._scales import OF_FLOAT8, TENSOR

aten = torch.ops.aten

MIXED = OPS.mixed_mm.default
#: The key in the metadata of an ``aten.mm`` that Inductor decomposed (`restore_vector_product`).
_DECOMPOSED = "cutlass_api_decomposed"

INT_MM = aten._int_mm.default
#: ``ScalingType.RowWise`` of ``aten._scaled_grouped_mm_v2``.
_ROWS = [1]


def scaled_mm(*inputs: Any) -> None:
    """Stands in a graph for ``A @ B`` or ``C + A @ B`` of a factor of 8 bits that the graph scales.
    inputs: C, if there is one, the scale, A and B. `_fuse` replaces it: the epilogue computes C and
    the scale."""


_PRODUCTS = (
    *(aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
    *(MIXED, scaled_mm),
)


def is_product(node: fx.Node) -> bool:
    """Whether a node is a product that an epilogue can follow."""
    value = value_of(node)
    if is_call(node, INT_MM):
        return value is not None and _is_served(value, (torch.int32,))
    return (
        node.op == "call_function"
        and node.target in _PRODUCTS
        and value is not None
        and _is_served(value)
        and (
            # Scales of a call by the user are no part of the epilogue.
            node.target is not MIXED or not any(arguments_of(node)[2:])
        )
        and (is_mixed(node) or all(value_of(arg).dtype == value.dtype for arg in node.args))
        and not any(isinstance(factor, fx.Node) for factor in node.kwargs.values())
    )


def _is_served(value: torch.Tensor, dtypes: Sequence[torch.dtype] = FLOATS) -> bool:
    """Whether an output may be that of a product with an epilogue."""
    return (
        value.device.type == "cuda"
        and value.dtype in dtypes
        and has_hints(value)
        and not is_known_as([value.numel()], [0])
    )


def is_mixed(node: fx.Node) -> bool:
    """Whether a product has a factor of 8 bits: `replace_mixed` has replaced its cast."""
    return node.target is MIXED or needs_epilogue(node)


def needs_epilogue(node: fx.Node) -> bool:
    """Whether a mixed product has an addend or a scale, which an epilogue must compute."""
    return node.target is scaled_mm or (
        is_call(node, aten.addmm.default) and _lowering.REPLACED in node.meta
    )


def is_vector_product(node: fx.Node) -> bool:
    """Whether a node is an ``aten.mm`` that Inductor decomposed."""
    return _DECOMPOSED in node.meta


def restore_vector_product(graph: fx.Graph, total: fx.Node) -> fx.Node | None:
    """Puts ``aten.mm`` in place of the multiplications and the sum into which Inductor decomposes a
    product of a single row or column if it tunes by coordinate descent, as max-autotune does.
    Returns it; None if the node is no such sum, or if no factor is of 8 bits."""
    if not _is_of_mm(total, aten.sum.dim_IntList) or total.args[1:] != ([1],):
        return None
    value = value_of(total)
    if value is None or value.dtype != torch.float32 or not _is_served(value):
        return None
    product = total.args[0]
    if not _is_of_mm(product, aten.mul.Tensor) or len(product.users) != 1:
        return None
    factors = []
    for view, dim in zip(product.args, (2, 0), strict=True):
        if not _is_of_mm(view, aten.unsqueeze.default) or view.args[1] != dim:
            return None
        factors.append(view.args[0])
    if any(value_of(factor) is None for factor in factors):
        return None
    # The decomposition casts factors of 16 bits to float32. Inductor may have merged this cast with
    # an earlier one of the same factor, but not with that of the other factor, too.
    is_cast = [is_call(factor, CAST) for factor in factors]
    dtypes = {
        value_of(factor.args[0]).dtype
        for factor in factors
        if _is_of_mm(factor, CAST) and value_of(factor.args[0]).dtype in HALF
    }
    if len(dtypes) > 1 or (not dtypes and any(is_cast)):
        return None
    if not any(map(is_of_eight_bits, factors)):
        return None
    with graph.inserting_before(total):
        if dtypes:
            (dtype,) = dtypes
            sources = [
                factor.args[0] if cast else factor
                for factor, cast in zip(factors, is_cast, strict=True)
            ]
            factors = [
                source if value_of(source).dtype == dtype else add_call(graph, CAST, source, dtype)
                for source in sources
            ]
        restored = add_call(graph, aten.mm.default, *factors)
        restored.meta[_DECOMPOSED] = True
        keep_origin(restored, total)
        widened = add_call(graph, CAST, restored, torch.float32) if dtypes else restored
        keep_origin(widened, total)
    for user in list(total.users):
        if dtypes and is_call(user, CAST) and user.args[1] in dtypes:
            user.replace_all_uses_with(restored)
            graph.erase_node(user)
    total.replace_all_uses_with(widened)
    erase_unused(graph, total)
    return restored


def erase_unused(graph: fx.Graph, node: fx.Node) -> None:
    """Erases a node that nothing uses, and what only this node used."""
    if node.op != "call_function" or node.users:
        return
    inputs = node.all_input_nodes
    graph.erase_node(node)
    for each in inputs:
        erase_unused(graph, each)


def is_of_mm(node: fx.Node) -> bool:
    """Whether a node is a part of ``aten.mm`` that Inductor decomposed."""
    # By name: passes of Inductor copy the operator together with the metadata.
    name = str(node.meta.get("original_aten"))
    return name == "aten.mm.default" and node.target is not aten.mm.default


def _is_of_mm(node: Any, target: Any) -> bool:
    """Whether a node calls this operation as a part of a decomposed ``aten.mm``."""
    return is_call(node, target) and is_of_mm(node)


def add_product(graph: fx.Graph, node: fx.Node, inputs: Sequence[Any]) -> fx.Node:
    """Adds the operation of a product, of other inputs; decomposed if Inductor had decomposed
    it."""
    if is_vector_product(node):
        return _decomposed(node, inputs, lambda target, *args: graph.call_function(target, args))
    return graph.call_function(node.target, tuple(inputs), dict(node.kwargs))


def _decomposed(node: fx.Node, factors: Sequence[Any], add: Callable[..., fx.Node]) -> fx.Node:
    """The product of a node as Inductor decomposes it. add: adds a call of an operator."""
    dtype = value_of(node).dtype
    is_half = dtype in HALF
    row, column = (add(CAST, each, torch.float32) if is_half else each for each in factors)
    views = add(aten.unsqueeze.default, row, 2), add(aten.unsqueeze.default, column, 0)
    total = add(aten.sum.dim_IntList, add(aten.mul.Tensor, *views), [1])
    return add(CAST, total, dtype) if is_half else total


def replace_unhandled(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    """Replaces a product for which Inductor calls no handler by our operator, and returns the
    operator's node. None if the node is no such product."""
    if _is_int8pack(node):
        x, weight, scales = node.args
        with graph.inserting_before(node):
            columns = add_call(graph, aten.permute.default, weight, [1, 0])
        return _replace(
            *(graph, node, MIXED, [x, columns, scales]),
            arguments=lambda inputs: [inputs[0], _transposed(inputs[1]), inputs[2]],
        )
    if is_grouped(node):
        return _replace(graph, node, OPS.grouped_mm.default, arguments_of(node)[:3])
    inputs = _scaled_grouped_inputs(node)
    if inputs is not None:

        def arguments(copies: Sequence[Any]) -> list[Any]:
            copy_of = dict(zip(inputs, copies, strict=True))
            return list(fx.node.map_arg(tuple(node.args), copy_of.__getitem__))

        return _replace(graph, node, OPS.scaled_grouped_mm.default, inputs, arguments)
    if _is_scaled(node):
        return _replace(graph, node, OPS.scaled_mm.default, _scaled_inputs(graph, node))
    return None


def _values(node: fx.Node, target: Any, tensors: int) -> list[torch.Tensor] | None:
    """The FakeTensors of the first arguments of a node that calls an operator; None if it calls
    another one, or if an argument is none or has sizes without hints."""
    if not is_call(node, target):
        return None
    values = [value_of(arg) for arg in arguments_of(node)[:tensors]]
    return None if any(value is None or not has_hints(value) for value in values) else values


def _is_int8pack(node: fx.Node) -> bool:
    """Whether a node multiplies rows in 16 bits by the columns of int8, with a scale each."""
    values = _values(node, aten._weight_int8pack_mm.default, 3)
    if values is None:
        return False
    x, _, scales = values
    return x.device.type == "cuda" and x.dtype in HALF and scales.dtype in FLOATS


def _transposed(node: fx.Node) -> fx.Node:
    return node.graph.call_function(aten.permute.default, (node, [1, 0]))


def is_grouped(node: fx.Node) -> bool:
    """Whether a node multiplies groups of rows by one matrix each, in 16-bit types."""
    values = _values(node, aten._grouped_mm.default, 3)
    # Torch declares a bias and refuses it.
    if values is None or arguments_of(node)[3] is not None:
        return False
    return (
        [value.dim() for value in values] == [2, 3, 1]
        and values[0].device.type == "cuda"
        and values[0].dtype == values[1].dtype == value_of(node).dtype
        and values[0].dtype in HALF
    )


def _scaled_grouped_inputs(node: fx.Node) -> list[Any] | None:
    """The inputs of our operator for a node that multiplies groups of rows of float8, with scales
    in float32, one per row of A and per column of each B, and without a bias. None for others.

    On compute capability 9.0, torch computes no other scales.
    """
    if is_call(node, aten._scaled_grouped_mm.default):
        a, b, scale_a, scale_b, offs, *others, _, fast = arguments_of(node)
        if any(others):  # a bias or the scale of a result
            return None
    elif is_call(node, aten._scaled_grouped_mm_v2.default):
        a, b, *of_factors, offs, bias, _, dims, fast = arguments_of(node)
        scales_a, recipe_a, swizzle_a, scales_b, recipe_b, swizzle_b = of_factors
        if recipe_a != _ROWS or recipe_b != _ROWS or any([*swizzle_a, *swizzle_b]):
            return None
        if bias is not None or dims or not len(scales_a) == len(scales_b) == 1:
            return None
        (scale_a,), (scale_b,) = scales_a, scales_b
    else:
        return None
    tensors = [a, b, scale_a, scale_b, offs]
    values = [value_of(each) for each in tensors]
    if any(value is None or not has_hints(value) for value in values):
        return None
    of_a, of_b, rows, columns, _ = values
    is_served = (
        [of_a.dim(), of_b.dim()] == [2, 3]
        and of_a.device.type == "cuda"
        and of_a.dtype in FLOAT8
        and of_b.dtype in FLOAT8
        and is_known_as(rows.shape, of_a.shape[:1])
        and is_known_as(columns.shape, [of_b.shape[0], of_b.shape[2]])
        and rows.dtype == columns.dtype == torch.float32
    )
    return [*tensors, value_of(node).dtype, fast] if is_served else None


def _is_scaled(node: fx.Node) -> bool:
    """Whether a node is ``aten._scaled_mm`` of float8 with scales in float32, one per tensor, one
    per row of A and per column of B, or one per block of 1 x 128 or 128 x 128; or in float8_e8m0fnu
    (MXFP8), one per block of 1 x 32, swizzled."""
    values = _values(node, aten._scaled_mm.default, 4)
    if values is None:
        return False
    a, b, *scales = values
    if a.device.type != "cuda" or a.dtype not in FLOAT8 or b.dtype not in FLOAT8:
        return False
    if _is_mx(scales):
        return all(scale.is_contiguous() for scale in scales)
    (m, k), n = a.shape, b.shape[1]
    served = [each for each in OF_FLOAT8 if each.dtype == torch.float32 and each != TENSOR]
    return all(
        scale.dtype == torch.float32
        and (
            has_one_element(scale)
            or any(is_known_as(scale.shape, each.shape(outer, k, is_a)) for each in served)
        )
        for scale, outer, is_a in zip(scales, (m, n), (True, False), strict=True)
    )


def _is_mx(scales: Sequence[torch.Tensor]) -> bool:
    """Whether scales are those of MX formats."""
    return all(scale.dtype == E8M0 for scale in scales)


def _scaled_inputs(graph: fx.Graph, node: fx.Node) -> list[Any]:
    """The arguments for our operator: scales of a tensor have the shape (1,), swizzled scales are
    vectors, and the scale of a result is for float8 only."""
    inputs = arguments_of(node)
    scales = [value_of(scale) for scale in inputs[2:4]]
    # Beside (1, N) or (M, 1), torch requires (1, 1) of a single row or column. It takes swizzled
    # scales by their number, in any shape.
    if _is_mx(scales) or all(map(has_one_element, scales)):
        with graph.inserting_before(node):
            for at in (2, 3):
                inputs[at] = add_call(graph, aten.reshape.default, inputs[at], [-1])
    if value_of(node).dtype not in FLOAT8:
        inputs[5] = None
    return inputs


def _replace(
    graph: fx.Graph,
    node: fx.Node,
    operator: Any,
    inputs: Sequence[Any],
    arguments: Callable[[Sequence[Any]], list[Any]] = list,
) -> fx.Node:
    """Puts an operator of ours in place of a node. The tensors among the inputs, in their order,
    are the inputs of the operation that is replaced. arguments: the positional arguments of that
    operation, from the inputs."""
    replaced = fx.Graph()
    copies = [
        replaced.placeholder(f"x{at}") if isinstance(arg, fx.Node) else arg
        for at, arg in enumerate(inputs)
    ]
    replaced.output(add_product(replaced, node, arguments(copies)))
    with graph.inserting_before(node):
        ours = graph.call_function(operator, tuple(inputs))
    return _substitute(graph, node, ours, replaced)


def _substitute(graph: fx.Graph, node: fx.Node, ours: fx.Node, replaced: fx.Graph) -> fx.Node:
    ours.meta["val"] = node.meta["val"]
    keep_origin(ours, node)
    ours.meta[_lowering.REPLACED] = fx.GraphModule(torch.nn.Module(), replaced)
    if "eager_input_vals" in node.meta:
        # Inductor keeps these strides for an operator that requires them, as aten._scaled_mm does.
        values = tuple(value_of(arg) if isinstance(arg, fx.Node) else arg for arg in ours.args)
        ours.meta["eager_input_vals"] = (values, {})
    node.replace_all_uses_with(ours)
    graph.erase_node(node)
    return ours


def replace_mixed(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """``mixed_mm`` in place of ``aten.mm``, if a factor was cast from 8-bit integers; else the
    node. ``aten.addmm`` takes the integers themselves, and `scaled_mm` has a factor that was
    scaled, too: `_fuse` must replace both by an operator."""
    if node.target not in (aten.mm.default, aten.addmm.default) or not is_product(node):
        return node
    # torch does not read an addend times zero, while an epilogue would.
    if node.kwargs.get("beta", 1) == 0:
        return node
    dtype = value_of(node).dtype
    *added, first, second = node.args
    found = [widened_factor(first, dtype, 1), widened_factor(second, dtype, 0)]
    # One factor of 8 bits: torch multiplies two of them as numbers, too.
    if dtype not in HALF or sum(each is not None for each in found) != 1:
        return node
    at = 0 if found[0] else 1
    widened, other = (found[at], (second, first)[at])
    assert widened is not None
    with graph.inserting_before(node):
        *scale, factor = widened.operands(graph)
    inputs = [*added, *scale, *((other, factor) if at else (factor, other))]
    replaced = fx.Graph()
    copies = [replaced.placeholder(f"x{each}") for each in range(len(inputs))]
    factors = copies[-2:]
    factors[at] = widened.copied(replaced, [*copies[len(added) : -2], factors[at]])
    replaced.output(add_product(replaced, node, [*copies[: len(added)], *factors]))
    if added and not scale:
        node.args = tuple(inputs)
        node.meta[_lowering.REPLACED] = fx.GraphModule(torch.nn.Module(), replaced)
        return node
    with graph.inserting_before(node):
        target = scaled_mm if scale else MIXED
        ours = graph.call_function(target, tuple(inputs), dict(node.kwargs))
    return _substitute(graph, node, ours, replaced)
