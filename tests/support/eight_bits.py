"""8-bit operands, their scales, and sums to compare with."""

import math

import pytest
import torch
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from cutlass_api.utils import ceil_div, round_up

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
devices = pytest.mark.parametrize("device", DEVICES)
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


def spread(scales, rows, columns, shape):
    """Scales of blocks, repeated to one for each element, in float64."""
    rows, columns = extents_of(shape, (rows, columns))
    wide = number(scales).repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return wide[..., : shape[0], : shape[1]]


def product_of_blocks(a, scale_a, block_a, b, scale_b, block_b):
    """A @ B in float64, of matrices whose blocks are multiplied by scales."""
    left = a.double() * spread(scale_a, *block_a, a.shape[-2:])
    return left @ (b.double() * spread(scale_b, *block_b, b.shape[-2:]))


def number(scales):
    if scales.dtype is not E8M0:
        return scales.double()
    bits = scales.view(torch.uint8).double()
    return torch.where(bits == 255, math.nan, 2.0 ** (bits - 127))


def factors(*shape, dtype=torch.float32, device="cpu"):
    if dtype is E8M0:
        return torch.randint(120, 134, shape, dtype=torch.uint8, device=device).view(E8M0)
    return (torch.rand(shape, device=device) + 0.5).to(dtype)


def float8(*shape, dtype=E4M3, device="cpu"):
    return torch.randn(shape, device=device).to(dtype)


def integers(*shape, dtype=torch.int8, device="cpu"):
    low = 0 if dtype is torch.uint8 else -128
    return torch.randint(low, low + 256, shape, device=device).to(dtype)


def extents_of(shape, block):
    """The extents of a block; -1 is a whole dimension."""
    return tuple(
        size if extent == -1 else extent for size, extent in zip(shape, block, strict=True)
    )


def blocks(shape, block):
    return tuple(map(ceil_div, shape, extents_of(shape, block)))


def swizzled(scales):
    """Scales (rows, columns) in tiles of 128 x 4, as torch's documentation of MXFP8 computes."""
    rows, columns = scales.shape
    padded = torch.zeros(
        round_up(rows, 128), round_up(columns, 4), dtype=torch.uint8, device=scales.device
    )
    padded[:rows, :columns] = scales.view(torch.uint8)
    tiles = padded.view(-1, 128, padded.shape[1] // 4, 4).permute(0, 2, 1, 3)
    return tiles.reshape(-1, 4, 32, 4).transpose(1, 2).flatten().view(E8M0)


def of_blocks(scale, shape):
    """Scales that the shape identifies, one for each element."""
    if scale.dim() == 0:
        return scale.double()
    extents = [
        size if count == 1 else 1 if count == size else 128
        for count, size in zip(scale.shape[-2:], shape, strict=True)
    ]
    return spread(scale, *extents, shape)


CLOSE = {"rtol": 1e-5, "atol": 1e-4}
#: M, N and K of products with partial blocks.
M, N, K = 140, 150, 300
#: A K of which sm90 need not pack the operands, so that sm90 ranks first on Hopper.
ALIGNED = 304
depths = pytest.mark.parametrize("k", [K, ALIGNED])


def assert_close(out, expected):
    """Compares sums of float8 products, or their rounded values, with exact sums."""
    is_float32 = out.dtype is torch.float32
    if out.device.type == "cpu":
        relative, absolute = 1e-5 if is_float32 else 8e-3, 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(out.double(), expected, rtol=relative, atol=absolute)
    else:  # the tensor cores keep 14 bits of a sum: problems.TRUNCATION, and bfloat16 8 bits
        error = (out.double() - expected).norm() / expected.norm()
        assert error < (5e-4 if is_float32 else 3e-3)


def fused(a, b, out, source, **operands):
    epilogue = EpilogueArguments(source, D=out, **operands)
    return GemmArguments(a, b, out, "float32", epilogue=epilogue)


BOTH = """
def epilogue(accum, left, right):
    D = scale_blocks(accum, a=left, b=right, a_block={}, b_block={})
    return D
"""


def one(call, parameters="s"):
    return f"def f(accum, {parameters}):\n    D = {call}\n    return D"


A8, B8, OUT = float8(4, 300), float8(300, 6), torch.empty(4, 6)
ROWS = one("scale_blocks(accum, a=s, a_block=(1, 128))")
