"""Elements of 4 bits in memory: two in a byte, and the order that kernels read.

The functions run on CPU and GPU.
"""

from typing import TypeAlias

import torch
from torch import Tensor

#: The dtype of values in the order that kernels read: a word of 8 elements. torch has no
#: communication of uint32, which would differ from the words of checkpoints; the rank differs.
REPACKED = torch.int32
#: The low halves of the bytes of a word.
LOW = 0x0F0F0F0F

Bits: TypeAlias = tuple[tuple[int, int], ...]
#: For the four e2m1 of a half of a word: where its sign and its other three bits begin, as kernels
#: read them.
FLOAT_BITS: Bits = ((15, 6), (12, 3), (13, 9), (14, 0))
#: The same in storage.
NIBBLE_BITS: Bits = tuple((at + 3, at) for at in (0, 4, 8, 12))


def pack(codes: Tensor) -> Tensor:
    """Codes of 4 bits (..., K), one in an element of an integer tensor, as bytes (..., K / 2): the
    ``values`` of a weight. The first of two codes is in the low bits.

    A code of :class:`Int4` is the number plus 8. Raises ValueError for other dtypes and odd K.
    """
    if codes.is_floating_point() or codes.is_complex() or codes.dtype is torch.bool:
        raise ValueError(f"pack: the codes are {codes.dtype}; pass integers from 0 to 15")
    if codes.dim() == 0 or codes.shape[-1] % 2:
        raise ValueError(
            f"pack: the codes have shape {list(codes.shape)}; pass an even last extent"
        )
    return packed((codes & 15).to(torch.uint8))


def packed(codes: Tensor) -> Tensor:
    """:func:`pack` of uint8."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def nibbles(values: Tensor) -> Tensor:
    """The codes of bytes, or of words that hold 8 elements from the low bits up."""
    values = values.contiguous().view(torch.uint8)
    return torch.stack([values & 15, values >> 4], -1).flatten(-2)


def repacked(values: Tensor, is_float: bool) -> Tensor:
    """Bytes (N, K / 2) as words (N, K / 32, 4) in the order of kernels. K is a multiple of 32.
    ``is_float``: of e2m1, whose bits then lie at those of a bfloat16, or at the same distance.

    :meth:`Weight.repack` states the order. A lane of ``mma`` or ``wgmma`` finds the pairs
    (2q, 2q + 1) and (2q + 8, 2q + 9) of two instructions in the word q, and the elements of a pair
    16 bits apart.
    """
    if values.shape[-1] == 0:
        return values.new_empty((values.shape[0], 0, 4), dtype=REPACKED)
    values = values.contiguous()
    # A view as words begins at a multiple of 4 bytes. Dynamo does not trace the offset.
    if not torch.compiler.is_compiling() and values.storage_offset() % 4:
        values = values.clone()
    # Word 2i + j of 4 holds the bytes 8i + 4j + q. Byte q of the sums of words 2i and 2i + 1 is
    # byte i, or 2 + i, of the output's word q.
    even, odd = values.view(REPACKED).unflatten(-1, (-1, 2, 2)).unbind(-1)
    halves = torch.stack(_exchanged(even, odd), -2)  # (N, K / 32, half, i)
    words = _transposed(halves.flatten(-2))
    return _moved(words, NIBBLE_BITS, FLOAT_BITS) if is_float else words


def unpacked(values: Tensor, is_float: bool) -> Tensor:
    """The inverse of :func:`repacked`."""
    if values.shape[1] == 0:
        return values.new_empty((values.shape[0], 0), dtype=torch.uint8)
    values = _moved(values, FLOAT_BITS, NIBBLE_BITS) if is_float else values
    words = _transposed(values)
    low, high = words.unflatten(-1, (2, 2)).unbind(-2)
    return torch.stack(_exchanged(low, high), -1).flatten(-3).view(torch.uint8)


def _moved(words: Tensor, places: Bits, new_places: Bits) -> Tensor:
    """Words whose halves have the bits of four numbers at other places."""
    result = torch.zeros_like(words)
    for place, new_place in zip(places, new_places, strict=True):
        for at, new, mask in zip(place, new_place, (0x00010001, 0x00070007), strict=True):
            result |= (words >> at & mask) << new
    return result


def _exchanged(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The low halves of the bytes of two words in one, their high halves in the other; the first
    operand's in the low bits. Its own inverse.
    """
    low = (one & LOW) | (other & LOW) << 4
    return low, (one >> 4 & LOW) | (other & ~LOW)


def _transposed(words: Tensor) -> Tensor:
    """The bytes of each four words as a transposed matrix of 4 x 4."""
    quads = words.contiguous().view(torch.uint8).unflatten(-1, (4, 4))
    return quads.transpose(-1, -2).contiguous().flatten(-2).view(REPACKED)
