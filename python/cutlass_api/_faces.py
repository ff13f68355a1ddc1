"""What joins the two interfaces of the core: ``cutlass_api`` and :mod:`cutlass_api.operators`."""

from typing import Any


def core_of(operand: Any) -> Any:
    """The operand of the core, or the tensor, that an object stands for.

    Such an object has a method ``__cutlass_operand__``. Returns other objects as they are.
    """
    convert = getattr(type(operand), "__cutlass_operand__", None)
    return operand if convert is None else convert(operand)


__all__ = ["core_of"]
