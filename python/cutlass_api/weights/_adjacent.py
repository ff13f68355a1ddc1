"""Tensors side by side in memory, which count as one tensor with the rows of all."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

#: Bytes to which the parts are aligned, as tensors that torch allocates are for kernels.
ALIGNMENT = 16


def whole(parts: Sequence[Tensor]) -> Tensor | None:
    """The tensor whose rows are those of all parts, in their order; None if the parts are not
    contiguous and one behind the other in one storage.
    """
    first, *others = parts
    storage = first.untyped_storage()._cdata  # FakeTensors have one, too
    if first.dim() == 0 or not first.is_contiguous():
        return None
    for before, part in pairwise(parts):
        if (
            part.untyped_storage()._cdata != storage
            or part.storage_offset() != before.storage_offset() + before.numel()
            or not part.is_contiguous()
            or part.shape[1:] != first.shape[1:]
            or part.dtype != first.dtype
        ):
            return None
    rows = first.shape[0] + sum(part.shape[0] for part in others)
    return first.as_strided((rows, *first.shape[1:]), first.stride())


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


def alone(tensor: Tensor) -> Tensor:
    """The same memory, in a storage that ends where the tensor does: safetensors' ``save_model``
    refuses a part of a storage, and ``torch.save`` writes all of it.
    """
    is_plain = type(tensor) in (Tensor, torch.nn.Parameter) and not tensor.is_meta
    if not is_plain or not tensor.is_contiguous() or tensor.dim() == 0:
        return tensor
    if tensor.numel() == 0 or tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return torch.from_dlpack(tensor.detach().view(torch.uint8)).view(tensor.dtype)
