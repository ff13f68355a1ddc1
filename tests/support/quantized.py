"""Inputs of quantization, and the ways to quantize: each format, of a matrix and of a transpose."""

import itertools
import math

import torch
from cutlass_api.ops import OPS
from cutlass_api.weights._formats import FORMATS

INPUTS = [torch.float32, torch.float16, torch.bfloat16]
#: The extents that share a scale, and whether scales are swizzled, by the output.
WAYS = {
    output: list(
        dict.fromkeys(
            (each.scales.block(is_a), each.scales.is_swizzled)
            for each in FORMATS
            if each.dtype is output
            for is_a in (True, False)
        )
    )
    for output in dict.fromkeys(each.dtype for each in FORMATS)
}
VIEWS = {
    "rows": lambda x: x,
    "columns": lambda x: x.mT.contiguous().mT,
    "sliced": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "offset": lambda x: torch.nn.functional.pad(x, (1, 2))[:, 1:-2],
    "padded": lambda x: torch.nn.functional.pad(x, (0, 16))[:, :-16],
    "expanded": lambda x: x[:1].expand(x.shape),
}
NAN, INF = math.nan, math.inf
#: Shapes for all kinds of scales.
SHAPES = [(1, 1), (5, 8), (37, 131), (130, 304)]
TENSOR, ROW, COLUMN = ((-1, -1), False), ((1, -1), False), ((-1, 1), False)
#: Shapes for the other tiles of a kind: rows of a CTA and of several tiles, and so on.
LONG = [
    ((3, 2048), ROW),
    ((2, 9000), ROW),
    ((1, 70000), ROW),
    ((2200, 16), COLUMN),
    ((2100, 9), COLUMN),
    ((5, 8192), TENSOR),
]


def randn(rows, columns, dtype=torch.float32, spread=4, device="cpu"):
    """Random values. The magnitudes of rows differ by 10^spread at most."""
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    values = torch.randn(rows, columns, generator=generator)
    factors = torch.logspace(-spread / 2, spread / 2, rows)
    return (values * factors[torch.randperm(rows, generator=generator), None]).to(device, dtype)


def special(dtype):
    """NaN, infinities, zeros, subnormal numbers and the largest ones."""
    x = randn(7, 256, dtype)
    x[0, 3], x[1, 5], x[2, 6], x[2, 7] = NAN, INF, -INF, NAN
    x[3] = 0
    x[4] = 1e-7 if dtype is torch.float16 else 1e-39
    x[5] = torch.finfo(dtype).max
    x[5, ::3] *= -1
    return x


def whole(extents, shape):
    """The extents of a group; -1 is a whole dimension."""
    return [size if extent == -1 else extent for size, extent in zip(shape, extents, strict=True)]


def grouped(x, extents):
    """The elements of each group, padded with zeros: the dimensions 1 and 3."""
    height, width = whole(extents, x.shape)
    x = torch.nn.functional.pad(x, (0, -x.shape[1] % width, 0, -x.shape[0] % height))
    return x.view(x.shape[0] // height, height, x.shape[1] // width, width)


def expanded(scales, shape, extents):
    """The scale of each element."""
    if scales.dim() == 2:
        for dim, extent in enumerate(whole(extents, shape)):
            scales = scales.repeat_interleave(extent, dim).narrow(dim, 0, shape[dim])
    return scales.expand(shape)


def problems(output):
    """Shapes with the extents and the swizzle of groups."""
    yield from ((shape, way) for way in WAYS[output] for shape in SHAPES)
    yield from ((shape, way) for shape, way in LONG if way in WAYS[output])


def outcome(result):
    """The bits of a result, with one pattern for NaN."""
    return [tensor.float().nan_to_num(nan=-1e30, posinf=-2e30) for tensor in result]


def compare(x, output, way, run, where):
    """Compares a kernel with the CPU, to the bit. ``run``: ``OPS.quantize`` by the kernel."""
    expected = OPS.quantize(x, output, *way)
    found = [tensor.cpu() for tensor in run(x, output, *way)]
    for one, other in zip(outcome(found), outcome(expected), strict=True):
        assert one.stride() == other.stride() and torch.equal(one, other), (x.dtype, *where)


def check_kernels(run, input, output, first=0, step=1):
    """Every group, tile and view of these types, or every ``step``-th one from ``first`` on;
    special values in each group, or those that are left to this one of the input types.
    """
    cases = [*problems(output), *itertools.product(VIEWS, WAYS[output])]
    for case, way in cases[first::step]:
        x = VIEWS[case](randn(33, 272, input)) if case in VIEWS else randn(*case, input)
        compare(x, output, way, run, (case, way))
    for way in list(WAYS[output])[first :: min(step, len(INPUTS))]:
        compare(special(input), output, way, run, ("special", way))
