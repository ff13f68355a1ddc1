"""Types for annotations."""

from typing import Protocol

from cutlass_api.typing import TensorLike


class NumericLike(Protocol):
    """An element type, as :data:`cutlass_api.typing.NumericLike`.

    A class of its own, which a field of :class:`RuntimeArguments` may be annotated with.
    """


__all__ = ["NumericLike", "TensorLike"]
