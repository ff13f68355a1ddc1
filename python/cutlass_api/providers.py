"""Where kernels come from. ``nvrtc`` has those for GPUs, ``reference`` those for the CPU."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from cutlass_api import _core
from cutlass_api._core import Kernel
from cutlass_api.cuda import CudaKernel

ProviderType = TypeVar("ProviderType", bound="type[ProviderBase]")
KernelType = TypeVar("KernelType", bound=type[Kernel])

#: The provider classes by name.
available_providers: dict[str, "type[ProviderBase]"] = {}


class ProviderBase:
    """A source of kernels. Subclass it under :func:`register_provider`."""

    name: ClassVar[str]

    @classmethod
    def register(cls, kernel_class: KernelType) -> KernelType:
        """Adds a kernel class (a decorator): ``get_kernels`` asks its ``generate_kernels`` from then on.

        A class of the same module and name as an earlier one takes its place, so that a notebook's cell can be run
        again. Raises TypeError for what is no class derived from ``Kernel``, or a ``CudaKernel`` that lacks attributes.
        """
        if isinstance(kernel_class, type) and issubclass(kernel_class, CudaKernel):
            kernel_class.check_declaration()
        _core.register_kernel_class(cls.name, kernel_class)
        return kernel_class

    @classmethod
    def generate_kernels(
        cls,
        metadata_filter: Callable[[Any], bool] | None = None,
        epilogue_args: Any = None,
        cc: int | None = None,
    ) -> Iterable[Kernel]:
        """All kernels of this provider that pass the filter."""
        return _core.get_kernels(None, metadata_filter, cc, [cls.name])


def register_provider(name: str) -> Callable[[ProviderType], ProviderType]:
    """A class decorator: makes a provider known by this name. Raises ValueError if the name is taken."""

    def register(provider: ProviderType) -> ProviderType:
        if name in available_providers:
            raise ValueError(
                f"there is already a provider named {name!r}: {available_providers[name].__name__}"
            )
        provider.name = name
        available_providers[name] = provider
        return provider

    return register


@register_provider("nvrtc")
class NvrtcProvider(ProviderBase):
    """CUDA C++ kernels, compiled by NVRTC when they are first used. One's own derive from :class:`CudaKernel`."""


@register_provider("reference")
class ReferenceProvider(ProviderBase):
    """Kernels that run on the CPU."""


__all__ = [
    "CudaKernel",
    "NvrtcProvider",
    "ProviderBase",
    "ReferenceProvider",
    "available_providers",
    "register_provider",
]
