"""Why kernels serve arguments or not: :func:`explain`, and the result of an empty search."""

from typing import Any, NoReturn, SupportsIndex

from cutlass_api import _core
from cutlass_api._core import Kernel, RuntimeArguments


def explain(args: RuntimeArguments, cc: int | None = None) -> None:
    """Prints why each kernel family serves the arguments or not, and the first kernels.

    The kernels are in the order of :func:`get_kernels`, each with the terms of
    ``kernel.estimate(args)`` in microseconds. ``cc``: the compute capability to explain for (90: an
    H100); None: the compute capability of the operands' device.
    """
    print(_core.explanation(args, cc))


class NoKernels(list[Kernel]):
    """The empty list that :func:`get_kernels` returns if no kernel serves the arguments.

    Indexing it raises IndexError with the reasons.
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
