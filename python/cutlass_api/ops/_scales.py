"""The scales of products: the shapes that are served, and what a kernel computes with them.

Scales of a tensor, a row of A or a column of B multiply the sum over K. Those of blocks along K are
arguments of ``scale_blocks`` (:mod:`cutlass_api.fusion`).
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from cutlass_api._dtypes import E8M0, FLOATS, HALF, INT8, INTEGER
from cutlass_api.ops._library import batch_of, product_shape, refuse
from cutlass_api.utils import ceil_div, round_up

#: The extent along K of a block of float32 scales, and of a block of MX formats.
DEPTH, MX_DEPTH = 128, 32
#: The extent along K of a block that has all of K.
WHOLE = -1
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
    *_, m, n = product_shape(operator, A, B)
    batch = batch_of(A, B)
    operands = {"scale_a": scale_a, "scale_b": scale_b, "bias": bias}
    given = {name: value for name, value in operands.items() if value is not None}
    served = {"scale_a": {"row": [(m, 1)]}, "scale_b": {"column": [(1, n)]}}
    for name, scale in given.items():
        if name in served:
            check_factor(operator, name, scale, A, served[name], batch)
            given[name] = scalar_as_vector(scale)
    check_bias(operator, bias, n, batch)
    return given


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


def shape_of_one(tensor: Tensor, batch: int | None) -> tuple[int, ...]:
    """The shape of a tensor for one product: without the batch dimension, if there is one."""
    shape = tuple(tensor.shape)
    has_batch = batch is not None and len(shape) == 3 and shape[0] in (1, batch)
    return shape[1:] if has_batch else shape


def check_bias(operator: str, bias: Tensor | None, n: int, batch: int | None) -> None:
    if bias is not None and shape_of_one(bias, batch) not in ((n,), (1, n)):
        raise refuse(
            operator, f"bias has shape {list(bias.shape)}; pass shape [{n}]{behind_batch(batch)}"
        )


def scalar_as_vector(tensor: Tensor) -> Tensor:
    """A factor of one element broadcasts, whatever its rank."""
    return tensor.reshape(1) if tensor.numel() == 1 else tensor


def check_factor(
    operator: str,
    name: str,
    scale: Tensor,
    A: Tensor,
    served: Served,
    batch: int | None = None,
) -> None:
    """Refuses scales other than one element, or a shape in ``served``, for each product."""
    shapes = [shape for shapes in served.values() for shape in shapes]
    one = shape_of_one(scale, batch)
    if math.prod(one) != 1 and one not in shapes:
        served_shapes = "one factor, of shape [] or [1]" + listed(served, batch)
        raise refuse(operator, f"{name} has shape {list(scale.shape)}; pass {served_shapes}")
    check_kind(operator, name, scale, A, (torch.float32,))


def listed(served: Served, batch: int | None) -> str:
    return "".join(
        f", or one for each {each}, of shape {' or '.join(str(list(shape)) for shape in shapes)}"
        for each, shapes in served.items()
    ) + behind_batch(batch)


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


# ---- scaled_mm -----------------------------------------------------------------------------------


def scaled_operands(
    operator: str, A: Tensor, B: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None
) -> tuple[Operands, Blocks]:
    """The operands of ``_epilogues.scaled``, and the blocks of those scales that vary along K."""
    n, batch = B.shape[-1], batch_of(A, B)
    operands: Operands = {}
    blocks: Blocks = {}
    for factor, scale, matrix in (("a", scale_a, A), ("b", scale_b, B)):
        block = block_of(operator, factor, scale, matrix, A, batch)
        if block is not None:
            blocks[factor] = block
        operands[f"scale_{factor}"] = scale if block else scalar_as_vector(scale)
    check_bias(operator, bias, n, batch)
    if bias is not None:
        operands["bias"] = bias
    return operands, blocks


def block_of(
    operator: str, factor: str, scale: Tensor, matrix: Tensor, A: Tensor, batch: int | None
) -> str | None:
    """The arguments of ``scale_blocks`` for the scales of a factor; None if they do not vary along
    K. Refuses scales of other shapes, dtypes and devices.
    """
    name, is_a = f"scale_{factor}", factor == "a"
    *_, rows, columns = matrix.shape
    outer, depth = (rows, columns) if is_a else (columns, rows)
    one = shape_of_one(scale, batch)

    def oriented(along: int, deep: int) -> tuple[int, int]:
        return (along, deep) if is_a else (deep, along)

    def block(along: int, deep: int) -> str:
        return f"{factor}_block={oriented(along, deep)}"

    if scale.dtype is E8M0:
        deep = ceil_div(depth, MX_DEPTH)
        plain, padded = oriented(outer, deep), round_up(outer, 128) * round_up(deep, 4)
        is_flat = one == (padded,) or (scale.dim() == 3 and one == (1, padded))
        if not is_flat and one != plain:
            raise refuse(
                operator,
                f"{name} has shape {list(scale.shape)}; pass one for each block of "
                f"{block_name(oriented(1, MX_DEPTH))}, of shape {list(plain)}, or swizzled in "
                f"tiles of 128 x 4, of shape [{padded}]"
                + ("" if batch is None else f", or [{batch}, 1, {padded}]"),
            )
        check_kind(operator, name, scale, A, (E8M0,))
        return block(1, MX_DEPTH) + (f', {factor}_swizzle="32x4x4"' if is_flat else "")
    deep, whole = ceil_div(depth, DEPTH), oriented(outer, 1)
    along = {1: oriented(outer, deep), DEPTH: oriented(ceil_div(outer, DEPTH), deep)}
    served = {"row" if is_a else "column": [whole]}
    for extent, shape in along.items():
        served[f"block of {block_name(oriented(extent, DEPTH))}"] = [shape]
    check_factor(operator, name, scale, A, served, batch)
    # A block that holds all of K multiplies the sum, which is cheaper.
    if math.prod(one) == 1 or one == whole:
        return None
    extent = next(extent for extent, shape in along.items() if shape == one)
    return block(extent, DEPTH)


def block_name(extents: tuple[int, int]) -> str:
    return f"{extents[0]} x {extents[1]}"


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
    groups = groups_of(one, outer, depth, is_a)
    vectors = {"column": [(n,), (1, n)], "row": [(m, 1)]}
    is_vector = math.prod(one) == 1 or any(one in of for of in vectors.values())
    if is_vector:
        groups = None
    elif groups is None:
        of_groups = f"[{outer}, K / group]" if is_a else f"[K / group, {outer}]"
        raise refuse(
            "mixed_mm",
            f"scale has shape {list(scale.shape)}; pass one factor, of shape [] or [1]"
            f"{listed(vectors, None)}, or one for each group of a multiple of {LEAST_GROUP} along "
            f"K = {depth}, of shape {of_groups}{behind_batch(batch)}",
        )
    if groups is None and zero_point is None:
        return {"scale_b": scalar_as_vector(scale)}, {}
    if zero_point is None:
        return {f"scale_{factor}": scale}, {factor: group_block(factor, depth, groups)}
    of_all = [(outer,), (1, outer)] if not is_a else [(outer, 1)]
    zero = shape_of_one(zero_point, batch)
    if math.prod(zero) != 1 and zero not in (*of_all, one):
        shapes = " or ".join(str(list(shape)) for shape in (one, *of_all))
        raise refuse(
            "mixed_mm",
            f"zero_point has shape {list(zero_point.shape)}; pass the shape of scale, or one for "
            f"each {'row' if is_a else 'column'}: {shapes}{behind_batch(batch)}",
        )
    check_kind("mixed_mm", "zero_point", zero_point, A, (*INTEGER, *FLOATS))
    if is_vector and math.prod(one) != 1 and one not in of_all:
        raise refuse(
            "mixed_mm",
            f"scale has shape {list(scale.shape)}; with zero_point, pass one factor or one for "
            f"each {'row' if is_a else 'column'} of the {weight.dtype} operand",
        )
    # Scales and zero points of a whole row or column repeat along K.
    count = ceil_div(depth, DEPTH) if groups is None else groups
    shape = (outer, count) if is_a else (count, outer)
    expanded = {
        name: tensor.expand(*tensor.shape[:-2], *shape)
        for name, tensor in ((f"scale_{factor}", scale), (f"zero_{factor}", zero_point))
    }
    block = group_block(factor, depth, groups)
    return expanded, {factor: f"{block}, {factor}_zero=zero_{factor}"}


def groups_of(shape: tuple[int, ...], outer: int, depth: int, is_a: bool) -> int | None:
    """The number of groups along K of scales of groups; None if the shape is another."""
    if len(shape) != 2 or shape[0 if is_a else 1] != outer:
        return None
    groups = shape[1 if is_a else 0]
    fits = groups > 0 and depth % groups == 0 and depth // groups % LEAST_GROUP == 0
    return groups if fits and depth > 0 else None


def group_block(factor: str, depth: int, groups: int | None) -> str:
    group = DEPTH if groups is None else int(depth // groups)
    return f"{factor}_block={(1, group) if factor == 'a' else (group, 1)}"


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
    block = block_of(operator, "a", scale_a, A, A, None)
    operands["scale_a"] = scale_a if block else scalar_as_vector(scale_a)
    if block is not None:
        blocks["a"] = block
    deep = ceil_div(depth, DEPTH)
    wide, narrow = (groups, deep, ceil_div(n, DEPTH)), (groups, deep, n)
    served = {
        "group": [(groups,), (groups, 1, 1)],
        "group and column": [(groups, 1, n), (groups, n)],
        "block of 128 x 128": [wide],
        "block of 128 x 1": [narrow],
    }
    check_factor(operator, "scale_b", scale_b, A, served)
    if scale_b.numel() == 1:
        operands["scale_b"] = scalar_as_vector(scale_b)
        return operands, blocks
    shape = tuple(scale_b.shape)
    # An operand of the epilogue cannot differ between groups. Scales of blocks can.
    if shape in served["group"]:
        scale_b = scale_b.reshape(groups, 1, 1).expand(groups, 1, ceil_div(n, DEPTH))
        of_b = WHOLE, DEPTH
    elif shape in served["group and column"]:
        scale_b = scale_b.reshape(groups, 1, n)
        of_b = WHOLE, 1
    else:
        of_b = DEPTH, 1 if shape == narrow else DEPTH
    operands["scale_b"] = scale_b
    blocks["b"] = f"b_block={of_b}"
    return operands, blocks
