"""Scale granularities and scale layouts of scaled operands."""

from enum import Enum
from typing import Any


class ScaleMode(Enum):
    """The block of values that shares a scale, as extents of (batch, row, column).

    A mode equals any tuple with the same extents after leading ones:
    ``ScaleMode.Blockwise1x32 == (1, 32)``.
    """

    Blockwise1x16 = (1, 1, 16)
    Blockwise1x32 = (1, 1, 32)

    def _extents(self) -> tuple[int, ...]:
        return _without_leading_ones(self.value)

    def __eq__(self, other: Any) -> bool:
        if isinstance(other, ScaleMode):
            return self is other
        if isinstance(other, tuple):
            return self._extents() == _without_leading_ones(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._extents())


def _without_leading_ones(extents: tuple[int, ...]) -> tuple[int, ...]:
    first = next((at for at, extent in enumerate(extents) if extent != 1), len(extents))
    return extents[first:]


class ScaleSwizzleMode(Enum):
    """The memory layout of an operand's scales."""

    SwizzleNone = "none"
    Swizzle32x4x4 = "32x4x4"


__all__ = ["ScaleMode", "ScaleSwizzleMode"]
