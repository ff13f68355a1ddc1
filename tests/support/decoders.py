"""Weights decoded bit by bit from the rules of their formats, in plain Python."""

import math
from functools import partial

import torch


def e2m1(code):
    """OCP Microscaling Formats (MX) Specification 1.0, table 5."""
    exponent, mantissa = code >> 1 & 3, code & 1
    magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return -magnitude if code & 8 else magnitude


def e8m0(byte):
    return math.nan if byte == 255 else 2.0 ** (byte - 127)


def e4m3(byte):
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte & 127 == 127:
        return math.nan
    low = exponent == 0
    magnitude = mantissa / 8 * 2.0**-6 if low else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -magnitude if byte & 128 else magnitude


def as_bytes(tensor):
    """The bytes of a tensor of one-byte elements, as nested lists."""
    return tensor.contiguous().view(torch.uint8).tolist()


def nibble(row, k):
    """Element k of bytes that hold two, the first in the low bits."""
    return row[k // 2] >> 4 * (k % 2) & 15


#: Of the four e2m1 of a half of a word: the lowest of three bits, and the sign.
E2M1_BITS = ((6, 15), (3, 12), (9, 13), (0, 14))


def place(k, is_float=False):
    """The word that holds element k in the order of kernels, and its bits from the lowest up.
    ``is_float``: of e2m1.
    """
    group, e = divmod(k, 32)
    for q in range(4):
        order = [2 * q + shift + 8 * i for shift in (0, 1) for i in range(4)]
        if e in order:
            half, i = divmod(order.index(e), 4)
            lowest, sign = E2M1_BITS[i] if is_float else (4 * i, 4 * i + 3)
            bits = (lowest, lowest + 1, lowest + 2, sign)
            return 4 * group + q, [16 * half + bit for bit in bits]
    raise AssertionError


def of_word(row, k, is_float=False):
    """Element k of words in the order of kernels."""
    word, bits = place(k, is_float)
    return sum((row[word] >> bit & 1) << i for i, bit in enumerate(bits))


def decoded(weight, group=None):
    """The matrix of a weight in float64. ``group``: the extents of blocks that share a scale."""
    name = type(weight).__name__
    n, k = weight.shape
    height, width = group or (1, {"MXFP4": 32, "NVFP4": 16}.get(name, weight.group))
    if "4" in name:
        is_repacked, is_float = weight.values.dtype is torch.int32, "Int" not in name
        read = partial(of_word, is_float=is_float) if is_repacked else nibble
        rows = weight.values.flatten(1).tolist()
        values = [[read(row, j) for j in range(k)] for row in rows]
        if name == "Int4":
            values = [[q - 8 for q in row] for row in values]
        elif name != "UInt4":
            values = [[e2m1(q) for q in row] for row in values]
    elif name == "Float8":
        values = [[e4m3(q) for q in row] for row in as_bytes(weight.values)]
    else:
        values = weight.values.tolist()
    if name == "MXFP4":
        scales = [[e8m0(x) for x in row] for row in as_bytes(weight.scales)]
    elif name == "NVFP4":
        scales = [[e4m3(x) for x in row] for row in as_bytes(weight.scales)]
    else:
        scales = weight.scales.double().tolist()
    zeros = getattr(weight, "zeros", None)
    is_added = zeros is not None and zeros.dtype.is_floating_point
    zeros = None if zeros is None else zeros.double().tolist()
    out = torch.empty(n, k, dtype=torch.float64)
    order = range(k) if weight.permutation is None else weight.permutation.tolist()
    for i in range(n):
        for j in range(k):
            at = (i // height, j // width)
            scale = scales if isinstance(scales, float) else scales[at[0]][at[1]]
            number = values[i][j]
            if zeros is not None and not is_added:
                number -= zeros[at[0]][at[1]]
            number *= scale
            if is_added:
                number += zeros[at[0]][at[1]]
            if name == "NVFP4":
                number *= float(weight.factor if weight.factor.dim() == 0 else weight.factor[i, 0])
            out[i, order[j]] = number
    return out
