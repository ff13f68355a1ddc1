"""The fields of quantized weights as buffers of a module: they keep their dtypes."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from cutlass_api._dtypes import E8M0, FLOAT8
from cutlass_api.weights import Weight
from cutlass_api.weights._packing import REPACKED
from cutlass_api.weights._shards import is_dtensor, of_shard

#: The dtypes that hold the bits of elements of so many bytes.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def keeping(
    fn: Callable[[Tensor], Tensor], fields: Iterable[Tensor | None], owner: str
) -> Callable[[Tensor], Tensor]:
    """``fn`` for ``torch.nn.Module._apply`` that moves the fields and keeps their dtypes. ``owner``
    begins the message of the TypeError for an ``fn`` that converts even their bits.
    """
    kept = {id(field) for field in fields if field is not None}

    def moved(tensor: Tensor) -> Tensor:
        if id(tensor) not in kept:
            return fn(tensor)
        # A DTensor caches the dtype of its first view.
        if is_dtensor(tensor):
            return of_shard(of_bits, tensor, tensor)
        return of_bits(tensor)

    def of_bits(tensor: Tensor) -> Tensor:
        bits = BITS[tensor.itemsize]
        result = fn(tensor.view(bits))
        if result.dtype is not bits:
            raise TypeError(
                f"{owner} keep their dtypes; {result.dtype} is refused. weight.dequantize(dtype) "
                "returns the matrix"
            )
        return result.view(tensor.dtype)

    return moved


def bits_of(buffers: Mapping[str, Tensor | None]) -> tuple[dict[str, Any], dict[str, torch.dtype]]:
    """Buffers with the bits of float8, and the dtypes of these: torch pickles float8, but does not
    load it.
    """
    float8 = {k: x for k, x in buffers.items() if x is not None and x.dtype in (*FLOAT8, E8M0)}
    dtypes = {name: x.dtype for name, x in float8.items()}
    return {**buffers, **{name: x.view(torch.uint8) for name, x in float8.items()}}, dtypes


def restore(buffers: dict[str, Any], dtypes: Mapping[str, torch.dtype]) -> None:
    """The inverse of :func:`bits_of`, in place."""
    for name, dtype in dtypes.items():
        buffers[name] = buffers[name].view(dtype)


def in_order(values: Tensor, weight: Weight) -> Tensor:
    """Values of the shape of a weight in its order; others as they are."""
    record = weight.format
    if record.packing == 1 or values.dtype not in (record.stored, REPACKED):
        return values
    if values.dim() != len(weight.shape) + (values.dtype is REPACKED):
        return values
    if tuple(record.extents(values)) != tuple(weight.shape):
        return values
    order = record.repack if weight.is_repacked else record.unpack
    return order(weight.fields._replace(values=values)).values
