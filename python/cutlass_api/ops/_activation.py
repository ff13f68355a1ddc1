"""The activations that operators take: names, usual spellings, functions and modules."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from cutlass_api.fusion import activation as activations
from cutlass_api.fusion._functions import ACTIVATIONS
from cutlass_api.fusion._sources import SPELLINGS

#: The classes of modules, of torch and of transformers, without parameters.
MODULES = {
    **{"ReLU": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "SiLU": "silu", "GELU": "gelu"},
    **{"Hardswish": "hardswish", "Identity": "identity", "LeakyReLU": "leaky_relu"},
    **{"SiLUActivation": "silu", "GELUActivation": "gelu", "LinearActivation": "identity"},
    **dict.fromkeys(
        ("NewGELUActivation", "FastGELUActivation", "PytorchGELUTanh", "GELUTanh"), "gelu_tanh"
    ),
}
#: Functions, and modules, with an argument that has other defaults.
DEFAULTS: dict[str, Any] = {"approximate": "none", "negative_slope": 0.01, "inplace": False}


def activation_name(activation: str | Callable[..., Any] | None) -> str | None:
    """The name of an activation in the table. Other strings stay, for the operator to refuse."""
    if activation is None or isinstance(activation, str):
        return SPELLINGS.get(activation, activation) if activation else activation
    return function_name(activation)


def function_name(function: Callable[..., Any]) -> str:
    """The name of a function of ``cutlass_api.fusion.activation`` or torch, or of a module."""
    plain, options = function, {}
    if isinstance(function, partial) and not function.args:
        plain, options = function.func, function.keywords
    if isinstance(plain, torch.nn.Module):
        name = MODULES.get(type(plain).__name__, "")
        options = {key: value for key, value in vars(plain).items() if key in DEFAULTS}
        is_known = type(plain).__module__.partition(".")[0] in ("torch", "transformers")
    else:
        name = getattr(plain, "__name__", "")
        homes = (activations, torch, torch.nn.functional)
        is_known = any(plain is getattr(home, name, None) for home in homes)
    changed = {key: value for key, value in options.items() if value != DEFAULTS.get(key)}
    changed.pop("inplace", None)
    if name == "gelu" and changed == {"approximate": "tanh"}:
        name, changed = "gelu_tanh", {}
    if is_known and name in ACTIVATIONS and not changed:
        return name
    raise ValueError(
        f"activation is {function!r}; pass one of {', '.join(activations.__all__)}, as a name, as "
        "the function of cutlass_api.fusion.activation or torch, or as a module of torch"
    )
