"""The record of ``quantize``, whose computation is in ``_quantize.py``."""

from cutlass_api.ops._labels import Blocks, Labels, Rule
from cutlass_api.ops._operator import Call, Operator
from cutlass_api.ops._quantize import quantize
from cutlass_api.ops._vmap import Result, front, one_by_one
from cutlass_api.weights._formats import find_format
from cutlass_api.weights._scales import SWIZZLED_TILE, WHOLE


def labels(call: Call) -> Rule:
    # A group of the whole matrix along a dimension keeps that dimension whole.
    extents = dict(zip(("m", "k"), call.block, strict=True))
    blocks = Blocks({name: 0 if extent == WHOLE else extent for name, extent in extents.items()})
    scales: Labels = tuple(name if extents[name] != WHOLE else None for name in extents)
    if all(extent == WHOLE for extent in call.block):
        scales = ()
    elif call.swizzle:
        outer, deep = ("m", "k") if call.block[0] == 1 else ("k", "m")
        scales = (outer,)
        blocks.require(outer, SWIZZLED_TILE[0])
        blocks.require(deep, 0)
    format, _ = find_format(call.dtype, tuple(call.block), bool(call.swizzle))
    others: list[Labels] = [scales] * (1 if format.zero is None else 2)
    return Rule([("m", "k"), *others], {"input": ("m", "k")}, blocks=blocks)


def examples(call: Call, dims: Call, size: int) -> Result:
    """Groups within rows are those of one matrix with the rows of all examples."""
    if call.block[0] != 1 or call.swizzle or call.input.dim() != 3:
        return one_by_one(call, dims, size)
    matrices = front(call.input, dims.input)
    outs = call.replace(input=matrices.flatten(0, 1)).run()
    return [out.unflatten(0, matrices.shape[:2]) for out in outs], [0] * len(outs)


def no_products(call: Call) -> int:
    return 0


OPERATORS = (
    Operator(
        schema="quantize(Tensor input, ScalarType dtype, int[2] block, bool swizzle=False) "
        "-> Tensor[]",
        compute=quantize,
        gradient="compute a straight-through estimate with torch",
        vmap=examples,
        flops=no_products,
        sharding=labels,
        has_out=False,
        summary="float8 or integers of 8 bits, with scales of a tensor, rows, columns, blocks or "
        "groups, and zero points",
    ),
)
