"""Classes of weights, and their matrices by the rules of their formats."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from cutlass_api import quantize, weights

from support.eight_bits import spread

F16, BF16 = torch.float16, torch.bfloat16
E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu


def e2m1(code):
    """OCP Microscaling Formats (MX) Specification 1.0, table 5."""
    exponent, mantissa = code >> 1 & 3, code & 1
    magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return -magnitude if code & 8 else magnitude


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


class Kind(NamedTuple):
    """What tests state about a class of weights."""

    cls: type[weights.Weight]
    #: Of a matrix and, unless the depth of scales is fixed, a group.
    quantize: Callable[..., weights.Weight]
    #: The number of a code of 4 bits.
    number: Callable[[int], float] | None = None
    #: How many elements of a row share a scale, and its dtype. 0: callers choose.
    depth: int = 0
    scales: torch.dtype | None = None
    has_zeros: bool = False
    has_factor: bool = False
    #: Whether words have the bits of a code in the order of e2m1.
    is_float: bool = False
    #: The dtypes of activations.
    dtypes: tuple[torch.dtype, ...] = (BF16, F16)

    def of_group(self, matrix, group):
        """Of a class of 4 bits. ``group``: unless the depth of scales is fixed."""
        return self.quantize(matrix) if self.depth else self.quantize(matrix, group)


def uint8(matrix, group=32):
    return weights.UInt8(*quantize.per_group_asymmetric(matrix, group))


#: By the name of the quantizer.
KINDS = {
    "int4": Kind(weights.Int4, quantize.int4, lambda q: q - 8),
    "uint4": Kind(weights.UInt4, quantize.uint4, int, has_zeros=True),
    "mxfp4": Kind(
        weights.MXFP4, quantize.mxfp4, e2m1, depth=32, scales=E8M0, is_float=True, dtypes=(BF16,)
    ),
    "nvfp4": Kind(
        weights.NVFP4, quantize.nvfp4, e2m1, depth=16, scales=E4M3, is_float=True, has_factor=True
    ),
    "fp8": Kind(weights.Float8, quantize.fp8),
    "int8": Kind(weights.Int8, quantize.int8),
    "uint8": Kind(weights.UInt8, uint8),
}
#: Those of 4 bits.
PACKED = {name: kind for name, kind in KINDS.items() if kind.number}
#: Groups of those that take one.
GROUPS = (32, 64, 128, None)


def kind_of(name):
    """By the name of the class."""
    return next(kind for kind in KINDS.values() if kind.cls.__name__ == name)


def matrix(values, scales, zeros, factor, permutation, format, block=None):
    """The matrix of a weight in float64. Fields may be float64 and int64. ``block``: the extents of
    blocks that share a scale, if they do not divide the matrix.
    """
    if (kind := kind_of(format)).number:
        if values.dtype is torch.int32:
            words = values.flatten(1)
            places = [place(k, kind.is_float) for k in range(8 * words.shape[1])]
            at = torch.tensor([word for word, _ in places], device=values.device)
            bits = torch.tensor([bits for _, bits in places], device=values.device)
            codes = ((words[:, at, None] >> bits & 1) << torch.arange(4, device=bits.device)).sum(2)
        else:
            codes = torch.stack([values & 15, values >> 4 & 15], -1).flatten(1)
        table = torch.tensor([kind.number(q) for q in range(16)], device=values.device)
        numbers = table.double()[codes.long()]
    else:
        numbers = values.double()

    def each(x):
        if x.dim() == 0:
            return x.double()
        extents = block or [size // n for size, n in zip(numbers.shape, x.shape, strict=True)]
        return spread(x.double(), *extents, numbers.shape)

    if zeros is None:
        out = numbers * each(scales)
    elif zeros.is_floating_point():
        out = numbers * each(scales) + each(zeros)
    else:
        out = (numbers - each(zeros)) * each(scales)
    out = out if factor is None else out * factor.double()
    return out if permutation is None else out[:, permutation.long().argsort()]


def decoded(weight, block=None):
    """The matrix of a weight in float64. ``block``: unless parts of rows share a scale."""
    name = type(weight).__name__
    block = block or (1, kind_of(name).depth or weight.group)
    return matrix(*weight.fields, weight.permutation, name, block)
