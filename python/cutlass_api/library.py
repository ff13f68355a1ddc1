"""Scale granularities and scale layouts of scaled operands."""

from collections.abc import Iterator
from enum import Enum, auto
from functools import total_ordering
from math import prod
from typing import Any


@total_ordering
class ScaleMode(Enum):
    """The block of values that shares a scale, as extents of (batch, row, column).

    A mode behaves like the tuple of its three extents: it has a length, an index selects an extent,
    and modes and tuples compare. Comparisons ignore leading ones:
    ``ScaleMode.Blockwise1x32 == (1, 32)``. The order is that of the tuples, with leading ones in
    front of the shorter one.
    """

    Blockwise1x16 = (1, 1, 16)
    Blockwise1x32 = (1, 1, 32)

    @staticmethod
    def compare(one: "ScaleMode | tuple[int, ...]", other: "ScaleMode | tuple[int, ...]") -> bool:
        """Whether two modes, or tuples, are equal but for leading ones."""
        mine, theirs = _of_equal_length(one, other)
        return mine == theirs

    @staticmethod
    def numel(scale: "ScaleMode | tuple[int, ...]") -> int:
        """The number of values that share a scale."""
        return prod(scale)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> Any:
        return self.value[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self.value)

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, (ScaleMode, tuple)):
            return NotImplemented
        mine, theirs = _of_equal_length(self, other)
        return mine == theirs

    def __lt__(self, other: Any) -> bool:
        if not isinstance(other, (ScaleMode, tuple)):
            return NotImplemented
        mine, theirs = _of_equal_length(self, other)
        return mine < theirs

    def __hash__(self) -> int:
        return hash(self.value)


def _of_equal_length(*extents: Any) -> list[tuple[int, ...]]:
    """The extents as tuples of one length, with ones in front."""
    longest = max(map(len, extents))
    return [(1,) * (longest - len(each)) + tuple(each) for each in extents]


class ScaleSwizzleMode(Enum):
    """The memory layout of an operand's scales."""

    SwizzleNone = auto()
    Swizzle32x4x4 = auto()


__all__ = ["ScaleMode", "ScaleSwizzleMode"]
