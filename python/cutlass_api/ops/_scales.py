"""The scales of products: the shapes that are served, and what a kernel computes with them.

Scales of a tensor, a row of A or a column of B multiply the sum over K. Those of blocks along K are
arguments of ``scale_blocks`` (:mod:`cutlass_api.fusion`). The records of scales are in
``cutlass_api.weights``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlass_api._dtypes import E8M0, FLOATS, HALF, INT8, INTEGER
from cutlass_api.ops._library import batch_of, product_shape, refuse
from cutlass_api.utils import ceil_div
from cutlass_api.weights._scales import (
    BLOCK,
    OF_FLOAT8,
    OF_INTEGERS,
    ROW,
    TENSOR,
    WIDE_BLOCK,
    Scales,
    find,
    is_widened,
    of_float8,
    oriented,
    shape_of_one,
)

#: The least extent along K of a group of ``mixed_mm``.
LEAST_GROUP = 16

#: The operands of ``_epilogues.scaled`` by name.
Operands = dict[str, Tensor]
#: The scales of blocks: arguments of ``scale_blocks``, by the factor, ``a`` or ``b``.
Blocks = dict[str, str]
#: Shapes, by what has one scale.
Served = Mapping[str, Sequence[tuple[int, ...]]]


def scales_and_bias(
    operator: str,
    A: Tensor,
    B: Tensor,
    scale_a: Tensor | None,
    scale_b: Tensor | None,
    bias: Tensor | None,
) -> Operands:
    """The operands of an epilogue that scales the sum, by name, without those that are None."""
    *_, n = product_shape(operator, A, B)
    batch = batch_of(A, B)
    operands: Operands = {}
    for factor, scale, matrix in (("a", scale_a, A), ("b", scale_b, B)):
        if scale is not None:
            find_scales(operator, factor, scale, matrix, A, batch, OF_INTEGERS)
            operands[f"scale_{factor}"] = scalar_as_vector(scale)
    operands, _ = scales_of_sums(A, operands, {})
    return add_bias(operator, operands, bias, n, batch)


def scales_of_sums(A: Tensor, operands: Operands, blocks: Blocks) -> tuple[Operands, Blocks]:
    """The scales, and none for K = 0: the sums are 0, and NaN times an infinite scale."""
    return ({}, {}) if A.shape[-1] == 0 else (operands, blocks)


def output_zero_point(operator: str, A: Tensor, B: Tensor, zero_point: Tensor) -> Tensor:
    """The zero point of an integer output, as an operand of an epilogue."""
    n, batch = B.shape[-1], batch_of(A, B)
    one = shape_of_one(zero_point, batch)
    if math.prod(one) != 1 and one not in ((n,), (1, n)):
        raise refuse(
            operator,
            f"zero_point has shape {list(zero_point.shape)}; pass one element, or shape [{n}]"
            + behind_batch(batch),
        )
    check_kind(operator, "zero_point", zero_point, A, INTEGER)
    return scalar_as_vector(zero_point)


def add_bias(
    operator: str, operands: Operands, bias: Tensor | None, n: int, batch: int | None
) -> Operands:
    """The operands with the bias, if there is one."""
    if bias is None:
        return operands
    if shape_of_one(bias, batch) not in ((n,), (1, n)):
        raise refuse(
            operator, f"bias has shape {list(bias.shape)}; pass shape [{n}]{behind_batch(batch)}"
        )
    return {**operands, "bias": bias}


def scalar_as_vector(tensor: Tensor) -> Tensor:
    """A factor of one element broadcasts, whatever its rank."""
    return tensor.reshape(1) if tensor.numel() == 1 else tensor


def check_factor(operator: str, name: str, scale: Tensor, A: Tensor, batch: int | None) -> None:
    """Refuses a factor of more than one element for each product."""
    if not TENSOR.fits(scale, batch, 1, 1):
        raise refuse_shape(operator, name, scale, {}, batch)
    check_kind(operator, name, scale, A, (torch.float32,))


def refuse_shape(
    operator: str, name: str, scale: Tensor, served: Served, batch: int | None
) -> ValueError:
    served_shapes = "one factor, of shape [] or [1]" + listed(served) + behind_batch(batch)
    return refuse(operator, f"{name} has shape {list(scale.shape)}; pass {served_shapes}")


def listed(served: Served) -> str:
    return "".join(
        f", or one for each {each}, of shape {' or '.join(str(list(shape)) for shape in shapes)}"
        for each, shapes in served.items()
    )


def behind_batch(batch: int | None) -> str:
    return "" if batch is None else f", for all products or behind a dimension of {batch}"


def check_kind(
    operator: str, name: str, scale: Tensor, A: Tensor, dtypes: Sequence[torch.dtype]
) -> None:
    if scale.dtype not in dtypes:
        expected = " or ".join(map(str, dtypes))
        raise refuse(operator, f"{name} is {scale.dtype}; pass {expected}")
    if scale.device != A.device:
        raise refuse(operator, f"{name} is on {scale.device} and A on {A.device}; move {name}")


def find_scales(
    operator: str,
    factor: str,
    scale: Tensor,
    matrix: Tensor,
    A: Tensor,
    batch: int | None,
    served: Sequence[Scales] = OF_FLOAT8,
) -> Scales:
    """The record of the scales of a factor, ``a`` or ``b``. Refuses scales of other shapes, dtypes
    and devices.
    """
    name, is_a = f"scale_{factor}", factor == "a"
    outer, depth = oriented(matrix.shape[-2], matrix.shape[-1], is_a)
    is_mx = scale.dtype is E8M0 and served is OF_FLOAT8
    served = of_float8(scale.dtype) if served is OF_FLOAT8 else served
    found = find(served, scale, batch, outer, depth, is_a)
    if found is None:
        plain = {each: each.shape(outer, depth, is_a) for each in served}
        if not is_mx:
            shapes = {each.name(is_a): [plain[each]] for each in served if each != TENSOR}
            raise refuse_shape(operator, name, scale, shapes, batch)
        block, tiles, *wide = served
        (padded,) = plain[tiles]
        raise refuse(
            operator,
            f"{name} has shape {list(scale.shape)}; pass one for each {block.name(is_a)}, of shape "
            f"{list(plain[block])}, or swizzled in tiles of 128 x 4, of shape [{padded}]"
            + ("" if batch is None else f", or [{batch}, 1, {padded}]")
            + listed({each.name(is_a): [plain[each]] for each in wide}),
        )
    check_kind(operator, name, scale, A, (found.dtype,))
    return found


# ---- scaled_mm -----------------------------------------------------------------------------------


def scaled_operands(
    operator: str, A: Tensor, B: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None
) -> tuple[Operands, Blocks]:
    """The operands of ``_epilogues.scaled``, and the blocks of those scales that vary along K."""
    batch = batch_of(A, B)
    operands: Operands = {}
    blocks: Blocks = {}
    for factor, scale, matrix in (("a", scale_a, A), ("b", scale_b, B)):
        add_scales(operands, blocks, operator, factor, scale, matrix, A, batch)
    operands, blocks = scales_of_sums(A, operands, blocks)
    return add_bias(operator, operands, bias, B.shape[-1], batch), blocks


def add_scales(
    operands: Operands,
    blocks: Blocks,
    operator: str,
    factor: str,
    scale: Tensor,
    matrix: Tensor,
    A: Tensor,
    batch: int | None,
) -> None:
    """Adds the scales of a factor to the operands, and to the blocks if they vary along K."""
    found = find_scales(operator, factor, scale, matrix, A, batch)
    if is_widened(found):
        scale = scale.float()
    if found.varies_along_k:
        blocks[factor] = found.arguments(factor)
    operands[f"scale_{factor}"] = scale if found.varies_along_k else scalar_as_vector(scale)


# ---- mixed_mm ------------------------------------------------------------------------------------


def check_mixed(A: Tensor, B: Tensor) -> None:
    mixed = (A.dtype in HALF and B.dtype in INT8) or (A.dtype in INT8 and B.dtype in HALF)
    if not mixed:
        raise refuse(
            "mixed_mm",
            f"A is {A.dtype} and B {B.dtype}; pass one in float16 or bfloat16 and the other in "
            "int8 or uint8",
        )


def mixed_operands(
    A: Tensor, B: Tensor, scale: Tensor | None, zero_point: Tensor | None
) -> tuple[Operands, Blocks]:
    """The operands of ``_epilogues.scaled``, and the blocks of scales that vary along K."""
    check_mixed(A, B)
    if scale is None:
        if zero_point is not None:
            raise refuse("mixed_mm", "zero_point is passed without scale; pass the scale, too")
        return {}, {}
    is_a = A.dtype in INT8
    factor, weight = ("a", A) if is_a else ("b", B)
    m, n, depth, batch = A.shape[-2], B.shape[-1], A.shape[-1], batch_of(A, B)
    outer = m if is_a else n
    check_kind("mixed_mm", "scale", scale, A, FLOATS)
    one = shape_of_one(scale, batch)
    found = mixed_layout(one, m, n, depth, is_a)
    groups = found.groups if found is not None else None
    if found is None:
        vectors = {"column": [(n,), (1, n)], "row": [(m, 1)]}
        if outer == 1:
            vectors = {"column": [(n,)]} if is_a else {}
        of_groups = "[{}, {}]".format(*(("K / group", outer)[:: -1 if is_a else 1]))
        raise refuse(
            "mixed_mm",
            f"scale has shape {list(scale.shape)}; pass one factor, of shape [] or [1]"
            f"{listed(vectors)}, or one for each group of a multiple of {LEAST_GROUP} along "
            f"K = {depth}, of shape {of_groups}{behind_batch(batch)}",
        )
    if groups is None and zero_point is None:
        return scales_of_sums(A, {"scale_b": scalar_as_vector(scale)}, {})
    # Scales and zero points of a whole row or column repeat along K.
    scales = groups or BLOCK
    if zero_point is None:
        return {f"scale_{factor}": scale}, {factor: scales.arguments(factor)}
    of_all = [(outer,), (1, outer)] if not is_a else [(outer, 1)]
    zero = shape_of_one(zero_point, batch)
    if math.prod(zero) != 1 and zero not in (*of_all, one):
        shapes = " or ".join(str(list(shape)) for shape in (one, *of_all))
        raise refuse(
            "mixed_mm",
            f"zero_point has shape {list(zero_point.shape)}; pass the shape of scale, or one for "
            f"each {ROW.name(is_a)}: {shapes}{behind_batch(batch)}",
        )
    check_kind("mixed_mm", "zero_point", zero_point, A, (*INTEGER, *FLOATS))
    if groups is None and math.prod(one) != 1 and one not in of_all:
        raise refuse(
            "mixed_mm",
            f"scale has shape {list(scale.shape)}; with zero_point, pass one factor or one for "
            f"each {ROW.name(is_a)} of the {weight.dtype} operand",
        )
    shape = scales.shape(outer, depth, is_a)
    expanded = {
        name: tensor.expand(*tensor.shape[:-2], *shape)
        for name, tensor in ((f"scale_{factor}", scale), (f"zero_{factor}", zero_point))
    }
    return scales_of_sums(A, expanded, {factor: scales.arguments(factor, has_zero=True)})


class MixedLayout(NamedTuple):
    """What each dimension of scales is, as a label of ``_labels``, and their groups along K."""

    labels: tuple[str | None, ...]
    groups: Scales | None = None


def mixed_layout(
    shape: tuple[int, ...], m: int, n: int, depth: int, is_a: bool
) -> MixedLayout | None:
    """The layout of scales of this shape, ``is_a`` if A holds the integers; None for another shape.

    Scales of the integers differ by their shape from those of the float operand's rows or columns,
    unless the integers are one row or column. Then only scales of the integers are served: what
    scales mean must not depend on the size of a batch.
    """
    if math.prod(shape) == 1:
        return MixedLayout((None,) * len(shape))
    of_rows, of_columns = ((m, 1), ("m", None)), ((1, n), (None, "n"))
    outer, own, other = (m, of_rows, of_columns) if is_a else (n, of_columns, of_rows)
    vectors = [((n,), ("n",)), own, *([other] if outer != 1 else [])]
    if len(shape) == 1 or 1 in shape:  # otherwise, no guard compares groups with rows
        for served, labels in vectors:
            if shape == served:
                return MixedLayout(labels)
    groups = groups_of(shape, outer, depth, is_a)
    return groups and MixedLayout(oriented("m" if is_a else "n", "k", is_a), groups)


def groups_of(shape: tuple[int, ...], outer: int, depth: int, is_a: bool) -> Scales | None:
    """The scales of groups along K that have this shape; None if the shape is another."""
    if len(shape) != 2 or depth <= 0:
        return None
    rows, groups = oriented(*shape, is_a)
    if rows != outer or groups <= 0 or depth % groups or depth // groups % LEAST_GROUP:
        return None
    return Scales(1, int(depth // groups))


# ---- scaled_grouped_mm ---------------------------------------------------------------------------


def grouped_operands(
    operator: str, A: Tensor, B: Tensor, scale_a: Tensor, scale_b: Tensor
) -> tuple[Operands, Blocks]:
    """The operands of ``_epilogues.scaled`` for a grouped product of A (TotalM, K) and B (G, K, N),
    and the blocks of scales that vary along K or differ between groups.
    """
    groups, depth, n = B.shape
    operands: Operands = {}
    blocks: Blocks = {}
    if tuple(scale_a.shape) == (A.shape[0],):  # as torch's operator takes scales of rows
        scale_a = scale_a[:, None]
    add_scales(operands, blocks, operator, "a", scale_a, A, A, None)
    served = {
        scales: [(groups, *scales.shape(n, depth, is_a=False))]
        for scales in (TENSOR, ROW, WIDE_BLOCK, BLOCK)
    }
    served[TENSOR].insert(0, (groups,))
    served[ROW].append((groups, n))
    names = {TENSOR: "group", ROW: "group and column"}
    shape = tuple(scale_b.shape)
    # Of columns of one element, those of blocks of 128 x 1 come before those of 128 x 128.
    found = next((each for each in (TENSOR, ROW, BLOCK, WIDE_BLOCK) if shape in served[each]), None)
    if found is None and scale_b.numel() != 1:
        shapes = {names.get(each, each.name(is_a=False)): of for each, of in served.items()}
        raise refuse_shape(operator, "scale_b", scale_b, shapes, None)
    check_kind(operator, "scale_b", scale_b, A, (torch.float32,))
    if found is None or scale_b.numel() == 1:
        operands["scale_b"] = scalar_as_vector(scale_b)
        return scales_of_sums(A, operands, blocks)
    # An operand of the epilogue cannot differ between groups. Scales of blocks can.
    if found == TENSOR:
        scale_b = scale_b.reshape(groups, 1, 1).expand(groups, 1, ceil_div(n, WIDE_BLOCK.extent))
        found = found._replace(extent=WIDE_BLOCK.extent)
    elif found == ROW:
        scale_b = scale_b.reshape(groups, 1, n)
    operands["scale_b"] = scale_b
    blocks["b"] = found.arguments("b")
    return scales_of_sums(A, operands, blocks)


def scaled_groups_along_k(
    operator: str, A: Tensor, B: Tensor, scale_a: Tensor, scale_b: Tensor, groups: int
) -> tuple[Operands, Blocks]:
    """The same for groups along K of A (M, TotalK) and B (TotalK, N), whose blocks count the K of
    all groups. Scales of groups are operands of the epilogue, as the output has a matrix for each
    group.
    """
    operands: Operands = {}
    blocks: Blocks = {}
    for factor, scale, matrix in (("a", scale_a, A), ("b", scale_b, B)):
        name, is_a = f"scale_{factor}", factor == "a"
        check_kind(operator, name, scale, A, (torch.float32,))
        if scale.numel() == 1:
            operands[name] = scalar_as_vector(scale)
            continue
        outer, depth = oriented(matrix.shape[0], matrix.shape[1], is_a)
        found = layout_along_k(operator, name, scale, outer, depth, is_a, groups)
        if found.varies_along_k:
            blocks[factor] = found.arguments(factor)
        else:
            scale = scale.reshape(groups, *found.shape(outer, depth, is_a))
        operands[name] = scale
    return scales_of_sums(A, operands, blocks)


def layout_along_k(
    operator: str, name: str, scale: Any, outer: int, depth: int, is_a: bool, groups: int
) -> Scales:
    """The record of the scales of a factor. Refuses other shapes. Those of blocks have two
    dimensions and others do not: a number of groups may be a number of blocks.
    """
    served: dict[Scales, Sequence[tuple[int, ...]]] = {
        TENSOR: [(groups,), (groups, 1, 1)],
        ROW: [(groups, *ROW.shape(outer, depth, is_a)), (groups * outer,)],
        BLOCK: [BLOCK.shape(outer, depth, is_a)],
        WIDE_BLOCK: [WIDE_BLOCK.shape(outer, depth, is_a)],
    }
    names = {TENSOR: "group", ROW: f"group and {ROW.name(is_a)}"}
    for each, shapes in served.items():
        if tuple(scale.shape) in shapes:
            return each
    named = {names.get(each, each.name(is_a)): shapes for each, shapes in served.items()}
    raise refuse_shape(operator, name, scale, named, None)
