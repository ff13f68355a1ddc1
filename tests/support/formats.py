"""Weights in each format, and products with them."""

import math

import torch
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from cutlass_api.ops import OPS, _epilogues
from cutlass_api.weights._formats import FORMATS, Fields

from support.quantized import whole

#: The names of formats.
NAMED = {each.name: each for each in FORMATS}
#: N and K of a weight with partial blocks: 304 is no multiple of 32, but of 16, so that sm90 packs
#: no operand. M of the products.
N, K, M = 140, 304, 20
#: The largest relative error of a product by the element type and the rounding of one element.
ERRORS = {torch.float8_e4m3fn: 0.06, torch.float8_e5m2: 0.1, torch.int8: 0.03, torch.uint8: 0.01}


def random_weight(generator):
    """Rows of other magnitudes, and off zero."""
    rows = torch.logspace(-0.5, 0.5, N)[:, None]
    return (torch.randn(N, K, generator=generator) + 0.2) * rows


def quantized(format, weight):
    block = format.scales.block()
    return Fields(*OPS.quantize(weight, format.dtype, block, format.scales.is_swizzled))


def operand_for(format, generator):
    """A of a product with a weight in a format."""
    is_float = format.dtype.is_floating_point
    x = torch.randn(M, K, generator=generator)
    return x.to(torch.float8_e4m3fn if is_float else torch.float16)


def product(format, fields, x, out):
    """The arguments of x times the transposed weight."""
    operands, blocks = format.of_product(fields)
    source = _epilogues.scaled(*operands, blocks=blocks)
    epilogue = EpilogueArguments(source, D=out, **operands)
    return GemmArguments(x, fields.values.t(), out, "float32", epilogue=epilogue)


def composed(format, fields):
    """The weight in float64, element by element of a block."""
    values, scales = fields.values.double(), fields.scales
    if format.scales.is_swizzled:
        # cuBLAS, "1D Block Scaling Factors Layout".
        across = math.ceil(math.ceil(K / 32) / 4)
        row, deep = torch.meshgrid(torch.arange(N), torch.arange(math.ceil(K / 32)), indexing="ij")
        tile = row // 128 * across + deep // 4
        scales = scales[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + deep % 4]

    def each(tensor):
        if tensor.dim() == 0:
            return tensor.double()
        height, width = whole(format.scales.block(), (N, K))
        rows, columns = torch.arange(N) // height, torch.arange(K) // width
        return tensor.double()[rows[:, None], columns]

    return (values - (0 if fields.zeros is None else each(fields.zeros))) * each(scales)
