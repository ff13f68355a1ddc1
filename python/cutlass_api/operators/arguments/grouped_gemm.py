"""The arguments of a grouped GEMM."""

import warnings
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cutlass_api import _core
from cutlass_api.operators._unserved import refuse
from cutlass_api.operators.arguments.base import Operand, PerformanceControls
from cutlass_api.operators.arguments.gemm import (
    AccumulatorField,
    CoreArguments,
    EpilogueField,
    OperandField,
)
from cutlass_api.typing import NumericLike, TensorLike

if TYPE_CHECKING:
    from typing_extensions import Self


class IndexPtrGroupedGemmProblemSize(NamedTuple):
    """The extents of a grouped GEMM. The one of ``offsets_along`` counts all groups.

    - ``G``: the number of groups.
    - ``offsets``: the end of each group along ``offsets_along``.
    """

    M: int
    N: int
    K: int
    G: int
    offsets: tuple[int, ...]
    offsets_along: Literal["m", "n", "k"]


#: The rank of B, and of out, by the dimension that the groups divide.
_RANKS = {"m": (3, 2), "k": (2, 3)}


class IndexPtrGroupedGemmArguments(_core.GroupedGemmArguments, CoreArguments):
    """One GEMM per group. ``offsets``, int32 of shape (G,), has the end of each group.

    - ``offsets_along="m"``: A has shape (TotalM, K), B (G, K, N), out (TotalM, N).
    - ``offsets_along="k"``: A has shape (M, TotalK), B (TotalK, N), out (G, M, N).

    Otherwise as :class:`cutlass_api.arguments.GroupedGemmArguments`.

    Raises ValueError for another ``offsets_along`` and for operands of other ranks, and
    NotImplementedError for "n", which is "m" of the transposed operands.
    """

    __init__ = object.__init__
    __repr__ = _core.RuntimeArguments.__repr__
    _class = _core.GroupedGemmArguments
    _operands = ("A", "B", "out", "offsets")

    A: Any = OperandField()
    B: Any = OperandField()
    out: Any = OperandField()
    offsets: Any = OperandField()
    accumulator_type: Any = AccumulatorField(_core.GroupedGemmArguments.accumulator_type)
    epilogue: Any = EpilogueField(_core.GroupedGemmArguments.epilogue)
    performance: Any = _core.RuntimeArguments.performance
    offsets_along: Literal["m", "k"]

    def __new__(
        cls,
        A: TensorLike | Operand,
        B: TensorLike | Operand,
        out: TensorLike | Operand,
        accumulator_type: NumericLike,
        offsets: TensorLike | Operand,
        offsets_along: Literal["m", "n", "k"],
        epilogue: Any = None,
        *,
        performance: PerformanceControls | None = None,
    ) -> "Self":
        if offsets_along == "n":
            refuse(
                'offsets_along="n"',
                'offsets_along="m" with B.mT for A, A.mT for B and out.mT for out',
            )
        if offsets_along not in _RANKS:
            raise ValueError(f"offsets_along is {offsets_along!r}; pass 'm' or 'k'")
        tensors: Any = (A, B, out, accumulator_type, offsets)
        new: Any = super().__new__
        self = new(cls, *tensors, epilogue, performance)
        for name, rank in zip(("B", "out"), _RANKS[offsets_along], strict=True):
            shape = getattr(cls._class, name).__get__(self).shape
            # A leading 1 of `out` beside A (1, TotalM, K) counts as none.
            if len(shape) != rank and not (name == "out" and rank == 2 and shape[0] == 1):
                raise ValueError(
                    f"{name} has shape {shape}; offsets_along={offsets_along!r} takes rank {rank}"
                )
        self.offsets_along = offsets_along
        made: Self = self
        return made


class GroupedGemmArguments(IndexPtrGroupedGemmArguments):
    """:class:`IndexPtrGroupedGemmArguments` with ``offsets_along="m"``. Warns: it is deprecated."""

    def __new__(
        cls,
        A: TensorLike | Operand,
        B: TensorLike | Operand,
        out: TensorLike | Operand,
        accumulator_type: NumericLike,
        offsets: TensorLike | Operand,
        epilogue: Any = None,
    ) -> "Self":
        warnings.warn(
            "GroupedGemmArguments is deprecated; use IndexPtrGroupedGemmArguments with "
            "offsets_along='m'",
            DeprecationWarning,
            stacklevel=2,
        )
        return super().__new__(cls, A, B, out, accumulator_type, offsets, "m", epilogue)


__all__ = [
    "GroupedGemmArguments",
    "IndexPtrGroupedGemmArguments",
    "IndexPtrGroupedGemmProblemSize",
]
