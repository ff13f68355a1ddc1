"""Functions of the local shards of DTensors."""

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor


def is_dtensor(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor. Does not import them."""
    distributed = sys.modules.get("torch.distributed.tensor")
    return distributed is not None and isinstance(tensor, distributed.DTensor)


def of_shard(function: Callable[[Tensor], Tensor], tensor: Any, like: Tensor) -> Tensor:
    """The DTensor whose shards are the function of those of a tensor. It has the placements of the
    tensor, and the shape and strides of ``like``.
    """
    return tensor.from_local(
        *(function(tensor.to_local()), tensor.device_mesh, tensor.placements),
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
