"""What the functions of an epilogue compute on torch tensors, as a reference for tests.

An epilogue cannot contain ``permute`` and ``reshape``, and has ``x * y + z`` for ``multiply_add``.
"""

from typing import Any

from cutlass_api.fusion import exp, max, maximum, minimum, sum


def multiply_add(x: Any, y: Any, z: Any) -> Any:
    """``x * y + z``, elementwise."""
    return x * y + z


def permute(x: Any, indices: tuple[int, ...]) -> Any:
    """The tensor with its dimensions in another order."""
    return x.permute(indices)


def reshape(x: Any, new_shape: tuple[int, ...]) -> Any:
    """The elements in another shape."""
    return x.reshape(new_shape)


__all__ = ["exp", "max", "maximum", "minimum", "multiply_add", "permute", "reshape", "sum"]
