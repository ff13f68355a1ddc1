"""Autocast: the operators cast their operands as torch's products do."""

from typing import Any

import torch

from cutlass_api.ops._operator import LIBRARY, Operator


def register(operator: Operator) -> None:
    for device in ("cpu", "cuda"):
        if operator.autocast:
            add_kernel(operator, device)


def add_kernel(operator: Operator, device: str) -> None:
    key = f"Autocast{device.upper()}"
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    overload, operands = operator.overload, operator.autocast

    def kernel(*args: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)

        def cast(value: Any) -> Any:
            """A float tensor in autocast's dtype; float64, other devices and values unchanged."""
            is_cast = (
                isinstance(value, torch.Tensor)
                and value.is_floating_point()
                and value.dtype is not torch.float64
                and value.device.type == device
            )
            return value.to(dtype) if is_cast else value

        with torch._C._ExcludeDispatchKeyGuard(keys):
            if callable(operands):
                return operands(operator.bind(args, options), cast).run()
            pairs = zip(operator.names, args, strict=False)
            return overload(*(cast(x) if name in operands else x for name, x in pairs), **options)

    LIBRARY.impl(operator.name, kernel, key)
