"""Activation functions of epilogues."""

from cutlass_api.fusion.activation import (
    gelu,
    hardswish,
    identity,
    leaky_relu,
    relu,
    sigmoid,
    silu,
    tanh,
)

__all__ = ["gelu", "hardswish", "identity", "leaky_relu", "relu", "sigmoid", "silu", "tanh"]
