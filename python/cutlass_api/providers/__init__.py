"""Sources of kernels: ``nvrtc`` provides GPU kernels, ``reference`` CPU kernels."""

from cutlass_api.cuda import CudaKernel
from cutlass_api.providers import provider
from cutlass_api.providers.provider import ProviderBase, available_providers, register_provider


@register_provider("nvrtc")
class NvrtcProvider(ProviderBase):
    """CUDA C++ kernels, which NVRTC compiles. User kernels derive from :class:`CudaKernel`."""


@register_provider("reference")
class ReferenceProvider(ProviderBase):
    """CPU kernels, written in Rust."""


__all__ = [
    "CudaKernel",
    "NvrtcProvider",
    "ProviderBase",
    "ReferenceProvider",
    "available_providers",
    "provider",
    "register_provider",
]
