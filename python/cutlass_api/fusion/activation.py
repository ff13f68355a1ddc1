"""Activation functions for epilogues: fused in a traced function, computed by torch if called."""

from typing import Any

from cutlass_api.fusion._functions import compute


def identity(x: Any) -> Any:
    """x itself."""
    return x


def relu(x: Any) -> Any:
    """x if x > 0, else 0."""
    return compute("relu", x)


def leaky_relu(x: Any, negative_slope: float = 0.01) -> Any:
    """x if x > 0, else ``negative_slope * x``."""
    return compute("leaky_relu", x, negative_slope=negative_slope)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return compute("sigmoid", x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    return compute("tanh", x)


def silu(x: Any) -> Any:
    """x * sigmoid(x)."""
    return compute("silu", x)


def gelu(x: Any, approximate: str = "none") -> Any:
    """x * Phi(x), with the normal distribution's Phi; ``approximate="tanh"`` approximates it."""
    return compute("gelu", x, approximate=approximate)


def gelu_tanh(x: Any) -> Any:
    """``gelu(x, approximate="tanh")``: x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))."""
    return compute("gelu_tanh", x)


def hardswish(x: Any) -> Any:
    """x * clamp(x + 3, 0, 6) / 6."""
    return compute("hardswish", x)


__all__ = [
    "gelu",
    "gelu_tanh",
    "hardswish",
    "identity",
    "leaky_relu",
    "relu",
    "sigmoid",
    "silu",
    "tanh",
]
