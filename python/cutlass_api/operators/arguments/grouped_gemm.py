"""The arguments of a grouped GEMM."""

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cutlass_api import _core
from cutlass_api.operators._unserved import refuse
from cutlass_api.operators.arguments.base import (
    Operand,
    PerformanceControls,
    check_performance,
)
from cutlass_api.operators.arguments.epilogue import (
    EpilogueArguments,
    check_epilogue,
    is_generated,
)
from cutlass_api.operators.arguments.gemm import CoreArguments, unread, with_fields
from cutlass_api.operators.typing import NumericLike, TensorLike

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


class AlongField:
    """The dimension that the groups divide. Assignments are checked, reads need no descriptor."""

    def __set__(self, args: Any, value: str) -> None:
        _check_along(value)
        args.unpack()
        args.__dict__["offsets_along"] = value


#: The rank of B, and of out, by the dimension that the groups divide.
_RANKS = {"m": (3, 2), "k": (2, 3)}


@with_fields
@dataclass(init=False)
class IndexPtrGroupedGemmArguments(_core.GroupedGemmArguments, CoreArguments):
    """One GEMM per group. ``offsets``, int32 of shape (G,), has the end of each group.

    - ``offsets_along="m"``: A has shape (TotalM, K), B (G, K, N), out (TotalM, N).
    - ``offsets_along="k"``: A has shape (M, TotalK), B (TotalK, N), out (G, M, N).

    Otherwise as :class:`cutlass_api.arguments.GroupedGemmArguments`.

    Raises ValueError for another ``offsets_along``, for operands of other ranks and for another
    number of offsets, and NotImplementedError for "n", which is "m" of the transposed operands.
    """

    _class = _core.GroupedGemmArguments
    _operands = ("A", "B", "out", "offsets")
    _new = _core.GroupedGemmArguments.__new__

    A: Any = field()
    B: Any = field()
    out: Any = field()
    accumulator_type: NumericLike = field()  # type: ignore[assignment]
    offsets: Any = field()
    offsets_along: Literal["m", "k"] = field()
    epilogue: EpilogueArguments | None = field()

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
        _check_along(offsets_along)
        tensors: Any = (A, B, out, accumulator_type, offsets)
        new: Any = super().__new__
        try:
            self = new(cls, *tensors, epilogue, performance)
        except BufferError:  # `__init__` replaces tensors of the meta device, and raises for others
            return unread(cls)  # type: ignore[no-any-return]
        _check_groups(self, offsets_along)
        self.__dict__["offsets_along"] = offsets_along
        made: Self = self
        return made

    def __init__(
        self,
        A: TensorLike | Operand,
        B: TensorLike | Operand,
        out: TensorLike | Operand,
        accumulator_type: NumericLike,
        offsets: TensorLike | Operand,
        offsets_along: Literal["m", "n", "k"],
        epilogue: Any = None,
        *,
        performance: PerformanceControls | None = None,
    ) -> None:
        check_epilogue(epilogue)
        check_performance(performance)
        values = {"A": A, "B": B, "out": out, "offsets": offsets, "epilogue": epilogue}
        has_own = is_generated(epilogue) or any(map(_stands_in, values.values()))
        if self.is_unpacked or has_own:
            self.initialize(
                **values,
                accumulator_type=accumulator_type,
                offsets_along=offsets_along,
                performance=performance,
            )

    def __post_init__(self) -> None:
        _check_along(self.offsets_along)
        super().__post_init__()

    def current(self) -> _core.RuntimeArguments:
        """As :meth:`CoreArguments.current`. Raises ValueError as the constructor."""
        made = super().current()
        if self.is_unpacked:
            _check_groups(made, self.offsets_along)
        return made


IndexPtrGroupedGemmArguments.offsets_along = AlongField()  # type: ignore[assignment]


def _stands_in(value: Any) -> bool:
    return hasattr(type(value), "__cutlass_operand__")


def _check_along(offsets_along: str) -> None:
    if offsets_along == "n":
        refuse(
            'offsets_along="n"',
            'offsets_along="m" with B.mT for A, A.mT for B and out.mT for out',
        )
    if offsets_along not in _RANKS:
        raise ValueError(f"offsets_along is {offsets_along!r}; pass 'm' or 'k'")


def _check_groups(args: Any, offsets_along: str) -> None:
    """Checks the ranks, and the number of groups, of arguments that the core has read."""
    operands = {
        name: getattr(_core.GroupedGemmArguments, name).__get__(args)
        for name in ("B", "out", "offsets")
    }
    if any(operand is None for operand in operands.values()):
        return  # The core has no counterpart of an operand.
    shapes = {name: tuple(operand.shape) for name, operand in operands.items()}
    for name, rank in zip(("B", "out"), _RANKS[offsets_along], strict=True):
        shape = shapes[name]
        # A leading 1 of `out` beside A (1, TotalM, K) counts as none.
        if len(shape) != rank and not (name == "out" and rank == 2 and shape[0] == 1):
            raise ValueError(
                f"{name} has shape {shape}; offsets_along={offsets_along!r} takes rank {rank}"
            )
    of_groups = "B" if offsets_along == "m" else "out"
    count = shapes[of_groups][0]
    if shapes["offsets"] != (count,):
        raise ValueError(
            f"offsets has shape {shapes['offsets']}; {of_groups} of shape {shapes[of_groups]} has "
            f"{count} groups, so pass offsets of shape ({count},)"
        )


class GroupedGemmArguments(IndexPtrGroupedGemmArguments):
    """:class:`IndexPtrGroupedGemmArguments` with ``offsets_along="m"``. Warns: it is deprecated.

    Raises ValueError for another ``offsets_along``, which ``dataclasses.replace`` passes.
    """

    def __new__(
        cls,
        A: TensorLike | Operand,
        B: TensorLike | Operand,
        out: TensorLike | Operand,
        accumulator_type: NumericLike,
        offsets: TensorLike | Operand,
        epilogue: Any = None,
        *,
        offsets_along: Literal["m"] = "m",
        performance: PerformanceControls | None = None,
    ) -> "Self":
        if offsets_along != "m":
            raise ValueError(
                f"offsets_along is {offsets_along!r}; pass IndexPtrGroupedGemmArguments for others "
                "than 'm'"
            )
        values = A, B, out, accumulator_type, offsets, "m", epilogue
        return super().__new__(cls, *values, performance=performance)  # type: ignore[arg-type]

    def __init__(
        self,
        A: TensorLike | Operand,
        B: TensorLike | Operand,
        out: TensorLike | Operand,
        accumulator_type: NumericLike,
        offsets: TensorLike | Operand,
        epilogue: Any = None,
        *,
        offsets_along: Literal["m"] = "m",
        performance: PerformanceControls | None = None,
    ) -> None:
        warnings.warn(
            "GroupedGemmArguments is deprecated; use IndexPtrGroupedGemmArguments with "
            "offsets_along='m'",
            DeprecationWarning,
            stacklevel=2,
        )
        values = A, B, out, accumulator_type, offsets, offsets_along, epilogue
        super().__init__(*values, performance=performance)


__all__ = [
    "GroupedGemmArguments",
    "IndexPtrGroupedGemmArguments",
    "IndexPtrGroupedGemmProblemSize",
]
