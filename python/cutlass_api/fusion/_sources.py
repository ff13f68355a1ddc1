"""The epilogue of a linear layer as source text, and the derivatives of activations."""

from functools import cache

from cutlass_api.fusion._functions import ACTIVATIONS, FUNCTIONS

#: Activations by name: the spellings of the table, and names in configurations of transformers.
SPELLINGS = {
    **{spelling: name for name in ACTIVATIONS for spelling in FUNCTIONS[name].names},
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_new", "gelu_fast"), "gelu_tanh"),
    **{"hard_swish": "hardswish", "linear": "identity"},
}
#: Activations whose derivative depends on their argument. That of the others is a function of the
#: output.
PREACTIVATION_DERIVATIVES = tuple(name for name in ACTIVATIONS if FUNCTIONS[name].reads_argument)
#: Derivatives of activations, as expressions of the argument ``gate`` and of the result ``value``.
GATE_DERIVATIVES = {
    "identity": "1.0",
    "relu": "where(gate > 0, 1.0, 0.0)",
    "leaky_relu": "where(gate > 0, 1.0, 0.01)",
    "sigmoid": "value * (1 - value)",
    "tanh": "1 - value * value",
    "silu": "sigmoid(gate) * (1 + gate - value)",
    "gelu": "0.5 + 0.5 * erf(gate * 0.7071067811865476) "
    "+ gate * 0.3989422804014327 * exp(-0.5 * gate * gate)",
    "gelu_tanh": "0.5 + 0.5 * tanh(0.7978845608028654 * gate * (1 + 0.044715 * gate * gate)) "
    "+ gate * (0.3989422804014327 + 0.05351611220445019 * gate * gate) "
    "* (1 - square(tanh(0.7978845608028654 * gate * (1 + 0.044715 * gate * gate))))",
    "hardswish": "where(gate > 3, 1.0, where(gate < -3, 0.0, gate / 3 + 0.5))",
}


@cache
def linear(activation: str | None, has_bias: bool, returns_preactivation: bool = False) -> str:
    """D = activation(accum + bias), and the argument of the activation as a second output."""
    name = known_activation("linear", activation)
    bias, added = (", bias", " + bias") if has_bias else ("", "")
    outputs = "D, preactivation" if returns_preactivation else "D"
    return (
        f"def epilogue(accum{bias}): preactivation = accum{added}; D = {name}(preactivation); "
        f"return {outputs}"
    )


def known_activation(operator: str, activation: str | None) -> str:
    """The name of an activation. Raises ValueError for others."""
    name = activation or "identity"
    if name not in ACTIVATIONS:
        known = ", ".join(sorted(ACTIVATIONS))
        raise ValueError(
            f"cutlass_api::{operator}: activation is {activation!r}; pass None or one of {known}"
        )
    return name
