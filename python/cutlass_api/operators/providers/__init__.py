"""Sources of operators: ``CuTeDSLProvider`` has those of this package."""

from cutlass_api.operators.providers.built_in import CuTeDSLProvider
from cutlass_api.operators.providers.provider import (
    Provider,
    available_providers,
    register_provider,
)

__all__ = ["CuTeDSLProvider", "Provider", "available_providers", "register_provider"]
