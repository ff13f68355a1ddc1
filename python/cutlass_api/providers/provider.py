"""Providers: the base class, and the registry."""

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
        """Registers a kernel class: ``get_kernels`` then includes its ``generate_kernels``.

        Works as a decorator. A class replaces an earlier class of the same module and name, so that
        a notebook cell can run twice. Raises TypeError if ``kernel_class`` is not derived from
        ``Kernel``, or is a ``CudaKernel`` with missing attributes.
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
        """The kernels of this provider whose metadata passes the filter."""
        return _core.get_kernels(None, metadata_filter, cc, [cls.name])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {getattr(self, 'name', 'without a name')!r}>"


def register_provider(name: str) -> Callable[[ProviderType], ProviderType]:
    """A class decorator that registers a provider. Raises ValueError if the name is taken."""

    def register(provider: ProviderType) -> ProviderType:
        if name in available_providers:
            raise ValueError(
                f"there is already a provider named {name!r}: {available_providers[name].__name__}"
            )
        provider.name = name
        available_providers[name] = provider
        return provider

    return register


__all__ = ["ProviderBase", "available_providers", "register_provider"]
