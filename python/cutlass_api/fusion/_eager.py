"""What an epilogue's functions do when they are called, rather than traced: the same in torch."""

from typing import Any


def torch_function(name: str, *values: Any, **options: Any) -> Any:
    """Calls the function of this name of torch, or of torch.nn.functional. Numbers become tensors of float32."""
    import torch

    function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
    return function(
        *(v if isinstance(v, torch.Tensor) else torch.tensor(float(v)) for v in values), **options
    )
