"""Types for annotations."""

from typing import Any, Protocol, TypeAlias, runtime_checkable


@runtime_checkable
class TensorLike(Protocol):
    """Anything that implements DLPack, such as torch, NumPy, CuPy and JAX arrays."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


#: An element type: a torch or NumPy dtype, a name such as "float16", a ``cutlass_api.DType``, or a
#: class of NVIDIA's ``cutlass`` package.
NumericLike: TypeAlias = Any

__all__ = ["NumericLike", "TensorLike"]
