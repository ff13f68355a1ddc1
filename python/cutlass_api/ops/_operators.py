"""All operators of ``torch.ops.cutlass_api``, and the loop that registers them."""

from cutlass_api.ops import (
    _autocast,
    _autograd,
    _dense,
    _fused,
    _gated,
    _gated_mlp,
    _grouped,
    _joint,
    _linear,
    _quantization,
    _quantized,
    _quantized_grouped,
    _quantized_linear,
    _vmap,
)
from cutlass_api.ops._operator import Operator

GROUPS = (
    *(_dense, _linear, _joint, _grouped, _gated, _gated_mlp),
    *(_quantized, _quantized_linear, _quantized_grouped, _quantization, _fused),
)
#: The records by name, in the order of the guide's table.
OPERATORS: dict[str, Operator] = {
    operator.name: operator for group in GROUPS for operator in group.OPERATORS
}

for operator in OPERATORS.values():
    operator.register()
    _autograd.register(operator)
    _autocast.register(operator)
    _vmap.register(operator)
