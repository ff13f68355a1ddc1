"""Collects kernels from several searches."""

from collections.abc import Callable, Sequence

from cutlass_api import _core
from cutlass_api._core import Kernel, RuntimeArguments
from cutlass_api.explanation import KernelList
from cutlass_api.metadata import KernelMetadata


class Manifest:
    """A list of kernels that grows with each search."""

    def __init__(self) -> None:
        self._kernels: list[Kernel] = []

    @property
    def kernels(self) -> list[Kernel]:
        """The collected kernels in order of discovery. Each name appears once."""
        return KernelList(self._kernels)

    def add_kernels(
        self,
        args: RuntimeArguments | None = None,
        metadata_filter: Callable[[KernelMetadata], bool] | None = None,
        cc: int | None = None,
        providers: Sequence[str] | None = None,
    ) -> list[Kernel]:
        """Calls :func:`cutlass_api.get_kernels`, collects the result and returns it."""
        found = self.get_kernels(args, metadata_filter, cc, providers)
        known = {kernel.metadata.kernel_name for kernel in self._kernels}
        self._kernels.extend(kernel for kernel in found if kernel.metadata.kernel_name not in known)
        return found

    @staticmethod
    def get_kernels(
        args: RuntimeArguments | None = None,
        metadata_filter: Callable[[KernelMetadata], bool] | None = None,
        cc: int | None = None,
        providers: Sequence[str] | None = None,
    ) -> list[Kernel]:
        """The same as :func:`cutlass_api.get_kernels`."""
        return _core.get_kernels(args, metadata_filter, cc, providers)

    def __repr__(self) -> str:
        return f"<Manifest of {len(self._kernels)} kernels>"

    def _repr_html_(self) -> str:
        return KernelList(self._kernels)._repr_html_()


__all__ = ["Manifest"]
