"""Conversions between the element types of frameworks and the classes of ``cutlass``."""

from functools import cache
from typing import Any

from cutlass_api._core import ELEMENT_TYPES, DType, described_dtype
from cutlass_api.utils import cutlass_type_from_torch_type

#: The name of torch's dtype whose elements are bytes of two numbers.
PAIRS_OF_FOUR_BITS = "float4_e2m1fn_x2"
#: Names by class. Some element types have no class.
_NAMES = {each.cutlass_name: each.name for each in ELEMENT_TYPES if each.cutlass_name} | {
    "Boolean": "bool",
    "Float8E8M0FNU": "float8_e8m0fnu",
    "Float4E2M1FN": PAIRS_OF_FOUR_BITS,
}
_NAMES |= {
    f"{kind}{bits}": f"{kind}{bits}".lower() for kind in ("Int", "Uint") for bits in (16, 32, 64)
}
#: The names of classes by that of the element type.
_CLASSES = {each.name: each.cutlass_name for each in ELEMENT_TYPES}
_CLASSES |= {own: theirs for theirs, own in _NAMES.items()}


def of_core(dtype: Any) -> Any:
    """The ``DType`` of a class of ``cutlass``. Other objects are returned."""
    name = _NAMES.get(getattr(dtype, "__name__", ""))
    return dtype if name is None else described_dtype(name)


def _name(dtype: Any) -> str:
    """The name of a framework's dtype for a class of ``cutlass`` or another element type."""
    name = _NAMES.get(getattr(dtype, "__name__", ""))
    try:
        return name or DType(dtype).name
    except TypeError as error:
        raise KeyError(f"dtype is {dtype!r}, which is no element type: {error}") from None


def class_named(name: str) -> type | None:
    """The class of ``cutlass`` for an element type; None if it has none."""
    import cutlass  # NVIDIA's package, or the stand-in

    return getattr(cutlass, _CLASSES.get(name, ""), None)


@cache
def to_cutlass_type(dtype: Any) -> Any:
    """The class of ``cutlass`` for an element type, such as ``cutlass.Float32``.

    ``dtype``: a dtype of torch, NumPy or JAX, a name, a ``DType``, or a class, which is returned.
    Where no ``cutlass`` can be imported, or it has no class for the type, returns a ``DType``.

    Raises TypeError for an object that names no element type.
    """
    try:
        import cutlass
    except ModuleNotFoundError:
        return DType(dtype)
    if isinstance(dtype, type) and getattr(cutlass, dtype.__name__, None) is dtype:
        return dtype
    # DType knows the types that kernels compute with, and operands of others have a DType.
    found = class_named(str(dtype).removeprefix("torch."))
    if found is None and not isinstance(dtype, DType):
        dtype = DType(dtype)
        found = class_named(dtype.name)
    return dtype if found is None else found


def shown_type(dtype: Any) -> Any:
    """As :func:`to_cutlass_type`, but objects that name no element type are returned."""
    try:
        return to_cutlass_type(dtype)
    except TypeError:
        return dtype


def cutlass_class(dtype: Any) -> Any:
    """The class of ``cutlass`` for an element type of at least one byte.

    Raises KeyError if there is none.
    """
    found = to_cutlass_type(dtype)
    if isinstance(found, DType) or found.width < 8:
        raise KeyError(f"cutlass has no class for {dtype}")
    return found


def get_torch_to_cutlass_dtype_map() -> dict[Any, type]:
    """The classes of ``cutlass`` by torch dtype."""
    import torch

    found = {getattr(torch, name, None): class_named(name) for name in _NAMES.values()}
    return {dtype: known for dtype, known in found.items() if dtype and known}


def torch_type_from_cutlass_type(dtype: Any) -> Any:
    """The torch dtype of a class of ``cutlass``. Raises KeyError if torch has none."""
    import torch

    found = getattr(torch, _name(dtype), None)
    if found is None:
        raise KeyError(f"torch has no dtype for {dtype!r}")
    return found


def get_jax_to_cutlass_dtype_map() -> dict[Any, type]:
    """The classes of ``cutlass`` by JAX dtype."""
    import jax.numpy as jnp

    names = [name for name in _NAMES.values() if hasattr(jnp, name)]
    found = {jnp.dtype(getattr(jnp, name)): class_named(name) for name in names}
    return {dtype: known for dtype, known in found.items() if known}


def cutlass_type_from_jax_type(dtype: Any) -> type:
    """The class of ``cutlass`` for a JAX dtype. Raises KeyError if there is none."""
    found = get_jax_to_cutlass_dtype_map().get(dtype)
    if found is None:
        raise KeyError(f"dtype is {dtype!r}, for which cutlass has no class")
    return found


def jax_type_from_cutlass_type(dtype: Any) -> Any:
    """The JAX dtype of a class of ``cutlass``. Raises KeyError if JAX has none."""
    import jax.numpy as jnp

    found = getattr(jnp, _name(dtype), None)
    if found is None:
        raise KeyError(f"JAX has no dtype for {dtype!r}")
    return jnp.dtype(found)


def torch_storage_packing_factor(dtype: Any) -> int:
    """The elements of a class of ``cutlass`` in one element of torch's tensor: 2 for four bits.

    Raises KeyError if torch has no dtype for the class.
    """
    name = getattr(dtype, "__name__", str(dtype))
    if name in ("Int4", "Float4E2M1FN"):
        return 2
    if not name.startswith("Float6"):
        torch_type_from_cutlass_type(dtype)
    return 1


__all__ = [
    "cutlass_type_from_jax_type",
    "cutlass_type_from_torch_type",
    "get_jax_to_cutlass_dtype_map",
    "get_torch_to_cutlass_dtype_map",
    "jax_type_from_cutlass_type",
    "to_cutlass_type",
    "torch_storage_packing_factor",
    "torch_type_from_cutlass_type",
]
