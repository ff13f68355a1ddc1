"""The results of a search, and why kernels serve arguments or not: :func:`explain`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, SupportsIndex

from cutlass_api import _core
from cutlass_api._calls import products_of
from cutlass_api._core import Kernel, RuntimeArguments
from cutlass_api._tables import Listing


def explain(
    args: RuntimeArguments | Callable[..., Any],
    *operands: Any,
    cc: int | None = None,
    **options: Any,
) -> None:
    """Prints why each kernel family serves the arguments or not, and the first kernels.

    The kernels are in the order of :func:`get_kernels`, each with the terms of
    ``kernel.estimate(args)`` in microseconds. ``cc``: the compute capability to explain for (90: an
    H100); None: the compute capability of the operands' device.

    ``args`` may be a function that launches products, with its operands and options, as
    ``explain(cutlass_api.linear, x, weight)``: the function is called, and each of its products is
    explained.

    Raises TypeError for operands without a function, ValueError for a function that launches no
    product.
    """
    if callable(args):
        for product in products_of(args, *operands, **options):
            print(_core.explanation(product, cc))
        return
    if len(operands) == 1 and isinstance(args, RuntimeArguments) and cc is None:
        (cc,) = operands
    elif operands or options:
        raise TypeError(
            f"args is a {type(args).__name__}, and operands follow; pass arguments such as "
            "GemmArguments alone, or a function in front: explain(cutlass_api.linear, x, weight)"
        )
    print(_core.explanation(args, cc))


class KernelList(Listing[Kernel]):
    """The list that :func:`get_kernels` returns. Notebooks show its first 50 kernels as a table,
    and so do they show its slices and ``KernelList(kernels)`` of other kernels.

    ``seconds``: the estimated time of a kernel, None if it is unknown.
    """

    def __init__(
        self,
        kernels: Iterable[Kernel] = (),
        seconds: Callable[[Kernel], float | None] | None = None,
    ) -> None:
        super().__init__(kernels)
        self._seconds = seconds

    def _with(self, elements: list[Kernel]) -> "KernelList":
        return KernelList(elements, self._seconds)

    def _titles(self) -> Sequence[str]:
        from cutlass_api.inspection import HEADER

        return HEADER if self._seconds is None else (*HEADER, "us, estimated")

    def _cells(self, element: Kernel) -> Sequence[str]:
        from cutlass_api.inspection import kernel_cells

        cells = kernel_cells(element)
        if self._seconds is None:
            return cells
        seconds = self._seconds(element)
        return (*cells, "" if seconds is None else f"{1e6 * seconds:.2f}")


class NoKernels(KernelList):
    """The empty list that :func:`get_kernels` returns if no kernel serves the arguments.

    Indexing it raises IndexError with the reasons.
    """

    def __init__(self, args: RuntimeArguments, cc: int | None) -> None:
        super().__init__()
        self._args, self._cc = args, cc

    def __repr__(self) -> str:
        return f"<NoKernels for {self._args!r}; cutlass_api.explain prints the reasons>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<p>{escape(repr(self))}</p>"

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            return []
        self._raise()

    def _raise(self) -> NoReturn:
        reasons = _core.explanation(self._args, self._cc)
        raise IndexError(f"get_kernels found no kernel for these arguments:\n{reasons}")


__all__ = ["KernelList", "NoKernels", "explain"]
