"""Why kernels serve arguments or not: :func:`explain`, and what an empty search says."""

from typing import Any, NoReturn, SupportsIndex

from cutlass_api import _core
from cutlass_api._core import Kernel, RuntimeArguments


def explain(args: RuntimeArguments, cc: int | None = None) -> None:
    """Prints why each kernel family serves the arguments or not, and the first kernels.

    The kernels are in the order of :func:`get_kernels`, each with the terms of its estimated time
    in microseconds. ``cc``: the compute capability to explain for (90: an H100); None: that of the
    operands' device. Terms are those of ``kernel.estimate(args)``.
    """
    print(_core.explanation(args, cc))


class NoKernels(list[Kernel]):
    """The empty list that :func:`get_kernels` returns if no kernel serves the arguments.

    An index raises IndexError with the reasons.
    """

    def __init__(self, args: RuntimeArguments, cc: int | None) -> None:
        super().__init__()
        self._args, self._cc = args, cc

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            return []
        self._raise()

    def _raise(self) -> NoReturn:
        reasons = _core.explanation(self._args, self._cc)
        raise IndexError(f"get_kernels found no kernel for these arguments:\n{reasons}")


__all__ = ["NoKernels", "explain"]
