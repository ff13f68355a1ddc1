"""The element types of NVIDIA's ``cutlass``: their names, and what the classes say of themselves.

The classes have no instances: values of these types belong to the CuTe DSL.
"""

from typing import Any

#: The abstract classes, and the others with their widths in bits.
_ABSTRACT = ("Numeric", "Float", "Integer")
_FLOATS = {
    "Float64": 64,
    "Float32": 32,
    "TFloat32": 32,
    "Float16": 16,
    "BFloat16": 16,
    "Float8E5M2": 8,
    "Float8E4M3FN": 8,
    "Float8E4M3B11FNUZ": 8,
    "Float8E4M3": 8,
    "Float8E8M0FNU": 8,
    "FloatNV8E5M3FNU": 8,
    "Float4E2M1FN": 4,
    "Float4E2M1FNx2": 8,
    "Float6E3M2FN": 6,
    "Float6E3M2FNx4": 24,
    "Float6E2M3FN": 6,
    "Float6E2M3FNx4": 24,
}
_SIGNED = {"Boolean": 1, "Int4": 4, "Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64, "Int128": 128}
_UNSIGNED = {"Uint8": 8, "Uint16": 16, "Uint32": 32, "Uint64": 64, "Uint128": 128}


class NumericMeta(type):
    """The type of element types.

    - ``width``, ``bytes``: the bits of one element, and the bytes that hold it.
    - ``is_float``, ``is_integer``: what its values are; None for ``Numeric``.
    - ``zero``: its zero, as a number of Python.
    """

    width = 8
    is_float: bool | None = None
    is_integer: bool | None = None
    zero: float | None = None

    @property
    def bytes(cls) -> int:
        return -(-cls.width // 8)

    @property
    def is_abstract(cls) -> bool:
        return cls.__name__ in _ABSTRACT

    def n_bytes(cls, n_elements: int) -> int:
        """The bytes that hold elements."""
        return n_elements * cls.bytes

    def is_same_kind(cls, other: Any) -> bool:
        """Whether both are floating-point types, or both integer types."""
        return bool(cls.is_float == other.is_float)

    def isinstance(cls, value: Any) -> bool | None:
        """Whether a number of Python is of the kind of the type."""
        if isinstance(value, int):
            return cls.is_integer
        return cls.is_float if isinstance(value, float) else False

    def __call__(cls, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(
            f"{cls.__name__} of the stand-in for cutlass has no values; use it as an element type, "
            "or install NVIDIA's package: pip install nvidia-cutlass-dsl"
        )

    def __str__(cls) -> str:
        return repr(cls) if cls.__name__ == "Numeric" else cls.__name__


class FloatMeta(NumericMeta):
    """The type of floating-point types."""

    width = 32
    is_float, is_integer = True, False
    zero, inf, nan = 0.0, float("inf"), float("nan")


class IntegerMeta(NumericMeta):
    """The type of integer types. ``signed``: whether they have negative numbers."""

    width = 32
    is_float, is_integer = False, True
    zero = 0
    signed = True


def element_types(module: str) -> dict[str, type]:
    """``Numeric``, ``Float``, ``Integer`` and their subclasses by name, as classes of a module."""
    found: dict[str, type] = {}

    def make(meta: type, name: str, base: type, **attributes: Any) -> type:
        found[name] = meta(name, (base,), {"__module__": module, **attributes})
        return found[name]

    numeric = make(NumericMeta, "Numeric", object)
    of_floats, of_integers = (
        make(FloatMeta, "Float", numeric),
        make(IntegerMeta, "Integer", numeric),
    )
    for name, width in _FLOATS.items():
        make(FloatMeta, name, of_floats, width=width)
    for widths, signed in ((_SIGNED, True), (_UNSIGNED, False)):
        for name, width in widths.items():
            make(IntegerMeta, name, of_integers, width=width, signed=signed)
    return found


__all__ = ["FloatMeta", "IntegerMeta", "NumericMeta", "element_types"]
