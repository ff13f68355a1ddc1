"""Tensors side by side in memory, which count as one tensor with the rows of all."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

#: Bytes to which the parts are aligned, as tensors that torch allocates are for kernels.
ALIGNMENT = 16
#: What `alone` has returned, by the tensor, each with the memory that the tensor had then.
_ALONE: Any = WeakTensorKeyDictionary()


def identity(tensor: Tensor) -> Any:
    """What tensors have in common that are the same memory."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        return id(tensor)
    # Also of meta tensors.
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.numel(), tensor.dtype


def are_beside(parts: Sequence[Tensor]) -> bool:
    """Whether the parts are contiguous and one behind the other in one storage, in their order.
    FakeTensors have storages, too.
    """
    return _rows(parts) is not None


def whole(parts: Sequence[Tensor]) -> Tensor | None:
    """The tensor with the rows of all parts, if they lie side by side; else None."""
    rows = _rows(parts)
    if rows is None:
        return None
    first = parts[0]
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def _rows(parts: Sequence[Tensor]) -> int | None:
    """The rows of parts side by side; None for others. Compiled code calls this in each call."""
    first, rows = parts[0], 0
    if first.dim() == 0:
        return None
    end, dtype, (_, *extents) = first.storage_offset(), first.dtype, first.shape
    storage = first.untyped_storage()._cdata
    for part in parts:
        count, *others = part.shape
        if (
            part.storage_offset() != end
            or part.untyped_storage()._cdata != storage
            or part.dtype is not dtype
            or others != extents
            or not part.is_contiguous()
        ):
            return None
        end += part.numel()
        rows += count
    return rows


def copied(parts: Sequence[Tensor]) -> list[Tensor]:
    """Copies of the parts, one behind the other."""
    dtype = parts[0].dtype
    # Not all types of 8 bits have a kernel of torch's.
    bits = [part.view(torch.uint8) if dtype.itemsize == 1 else part for part in parts]
    copies = torch.cat(bits).split([part.shape[0] for part in parts])
    return [copy.view(dtype) for copy in copies]


def beside(parts: Sequence[Tensor]) -> list[Tensor] | None:
    """Copies of the parts, one behind the other; None if one of them would not be aligned."""
    copies = copied(parts)
    aligned = all(copy.storage_offset() * copy.itemsize % ALIGNMENT == 0 for copy in copies)
    return copies if aligned else None


def is_part(tensor: Tensor) -> bool:
    """Whether a tensor is a part of a larger storage."""
    is_plain = type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta
    return is_plain and tensor.untyped_storage().nbytes() > tensor.nbytes


def alone(tensor: Tensor) -> Tensor:
    """The memory of a part of a larger storage, in a storage that ends where the part does; another
    tensor itself. safetensors' ``save_model`` refuses a part, and pickle writes all of the storage.
    """
    is_shared = tensor.device.type == "cpu" and tensor.is_shared()  # by processes
    if not is_part(tensor) or is_shared or tensor.numel() == 0 or not tensor.is_contiguous():
        return tensor
    memory, found = _ALONE.get(tensor, (None, None))
    if memory != identity(tensor):
        bits = tensor.detach().view(torch.uint8)
        with torch.cuda.device_of(tensor):  # torch exports tensors of the current device alone
            found = torch.from_dlpack(bits).view(tensor.dtype)
        _ALONE[tensor] = identity(tensor), found
    own: Tensor = found
    return own
