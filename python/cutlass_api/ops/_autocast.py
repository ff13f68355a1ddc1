"""Autocast: the operators cast their operands as torch's products do.

``int_mm``, ``scaled_mm`` and ``scaled_grouped_mm`` cast nothing, not even the bias, as
``torch._int_mm`` and ``torch._scaled_mm``. Nor do the overloads ``out``, as those of torch.
"""

from typing import Any

import torch

from cutlass_api.ops import _epilogues
from cutlass_api.ops._library import LIBRARY
from cutlass_api.ops._products import OPS

#: The number of leading operands that are cast if they hold floats. An epilogue reads its operands
#: in any dtype, except for a second matrix B.
CAST = {
    "mm": 2,
    "bmm": 2,
    "addmm": 3,
    "baddbmm": 3,
    "linear": 3,
    "linear_forward": 3,
    "linear_weight_grad": 2,
    "grouped_mm": 2,
    "grouped_mm_weight_grad": 2,
    "mixed_mm": 2,
    "mm_epilogue": 2,
}


def autocast(name: str, count: int, device: str) -> None:
    operator = getattr(OPS, name).default
    key = getattr(torch._C.DispatchKey, f"Autocast{device.upper()}")
    keys = torch._C.DispatchKeySet(key)

    def kernel(*args: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            operands = [cast(value, device, dtype) for value in args[:count]]
            others = list(args[count:])
            if name == "mm_epilogue" and (at := _epilogues.factor(args[3])) is not None:
                others[0] = list(others[0])
                others[0][at] = cast(others[0][at], device, dtype)
            return operator(*operands, *others, **options)

    LIBRARY.impl(name, kernel, f"Autocast{device.upper()}")


def cast(value: Any, device: str, dtype: torch.dtype) -> Any:
    """A float tensor in autocast's dtype; float64, other devices and other values unchanged."""
    is_cast = (
        isinstance(value, torch.Tensor)
        and value.is_floating_point()
        and value.dtype is not torch.float64
        and value.device.type == device
    )
    return value.to(dtype) if is_cast else value


for name, count in CAST.items():
    for device in ("cpu", "cuda"):
        autocast(name, count, device)
