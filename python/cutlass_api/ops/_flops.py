"""FLOP formulas for torch's FlopCounterMode: two operations for each multiplication, as torch."""

from typing import Any

from torch.utils.flop_counter import register_flop_formula

from cutlass_api.ops._operator import OPS, Operator
from cutlass_api.ops._operators import OPERATORS


def register(operator: Operator) -> None:
    def formula(*args: Any, out_shape: Any = None, **options: Any) -> Any:
        call = operator.bind(args, options)
        call.out_shape = out_shape
        return operator.flops(call)

    register_flop_formula(getattr(OPS, operator.name))(formula)


for operator in OPERATORS.values():
    register(operator)
