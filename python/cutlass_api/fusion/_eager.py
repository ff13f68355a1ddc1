"""Epilogue functions that are called instead of traced: they compute with torch."""

from typing import Any


def torch_function(name: str, *values: Any, **options: Any) -> Any:
    """Calls a function of torch or torch.nn.functional by name. Numbers become float32 tensors."""
    import torch

    function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    return function(
        *(v if isinstance(v, torch.Tensor) else torch.tensor(float(v)) for v in values), **options
    )
