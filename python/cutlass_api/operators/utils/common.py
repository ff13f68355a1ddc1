"""Helpers for numbers and packages."""

from cutlass_api.utils import (
    ceil_div,
    is_numpy_available,
    is_package_available,
    is_torch_available,
    round_up,
    tuple_to_string,
)


def is_jax_available() -> bool:
    """Whether JAX can be imported. Does not import JAX."""
    return is_package_available("jax")


__all__ = [
    "ceil_div",
    "is_jax_available",
    "is_numpy_available",
    "is_torch_available",
    "round_up",
    "tuple_to_string",
]
