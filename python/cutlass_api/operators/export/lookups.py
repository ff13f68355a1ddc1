"""How PyTorch's NVGEMM finds operators of this package again by the names in its caches."""

import sys
from functools import wraps
from typing import Any

from nvidia_cutlass_stub.hooks import after_import
from nvidia_cutlass_stub.nvgemm import SEARCHES


def serve() -> None:
    """Makes NVGEMM look up names of this package here, now or when its module is imported.

    PyTorch searches an operator by the arguments, and then makes all of NVIDIA's operators, which
    takes 14 s. A search by arguments with an epilogue finds other kernels than NVGEMM has named.
    """
    after_import(SEARCHES, _replace)


def _replace() -> None:
    module: Any = sys.modules[SEARCHES]
    module.get_kernel_by_name = _looking_here(module.get_kernel_by_name)


def _looking_here(look_up: Any) -> Any:
    """The function of NVGEMM, which takes operators of this package from here.

    Raises RuntimeError for an operator of this package if its provider is not registered.
    """
    import cutlass.operators as nvidia

    @wraps(look_up)
    def found(kernel_name: str) -> Any:
        from cutlass_api.operators.export.provider import operator_named

        try:
            operator = operator_named(kernel_name)
        except ValueError:
            return look_up(kernel_name)
        if "rutlass" not in nvidia.available_providers:
            raise RuntimeError(
                f"code that PyTorch has cached runs the operator {kernel_name} of the provider "
                "rutlass, which is not registered: unset CUTLASS_API_PROVIDER, or compile anew "
                "with another TORCHINDUCTOR_CACHE_DIR"
            )
        return operator

    return found


__all__ = ["serve"]
