"""Matrices side by side in memory, which count as one matrix with the rows of all."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

#: Bytes to which the matrices are aligned, as those that torch allocates are for kernels.
ALIGNMENT = 16


def whole(parts: Sequence[Tensor]) -> Tensor | None:
    """The tensor whose rows are those of all parts, in their order; None if the parts are not
    contiguous and one behind the other in one storage.
    """
    first, *others = parts
    storage = first.untyped_storage().data_ptr()
    if not first.is_contiguous():
        return None
    for before, part in pairwise(parts):
        if (
            part.untyped_storage().data_ptr() != storage
            or part.storage_offset() != before.storage_offset() + before.numel()
            or not part.is_contiguous()
            or part.shape[1:] != first.shape[1:]
            or part.dtype != first.dtype
        ):
            return None
    rows = first.shape[0] + sum(part.shape[0] for part in others)
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def beside(parts: Sequence[Tensor]) -> list[Tensor] | None:
    """Copies of the parts one behind the other; None if one of them would not be aligned."""
    copies = torch.cat(list(parts)).split([part.shape[0] for part in parts])
    aligned = all(copy.storage_offset() * copy.itemsize % ALIGNMENT == 0 for copy in copies)
    return list(copies) if aligned else None
