"""The kernels of slots, in a process without a GPU, executed by the emulator."""

import pytest
import torch
from cutlass_api.nn import _experts

from support.emulated_quantize import Emulated

#: Of rows and weights; None: without weights.
TYPES = (
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float16),
    (torch.float32, None),
    (torch.float64, torch.float64),
)


class EmulatedSums(Emulated):
    make = staticmethod(_experts.program)


class EmulatedSort(Emulated):
    make = staticmethod(_experts.sorting)


def check_sort():
    """No expert, one and many; a slot, a chunk, and more; slots of no expert and of wrong ones."""
    generator = torch.Generator().manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_experts, "sorting", EmulatedSort)
        for tokens, top_k, count in ((1, 1, 1), (5, 3, 4), (341, 3, 33), (700, 4, 511), (64, 8, 0)):
            index = torch.randint(count + 2, (tokens, top_k), generator=generator)
            index = index if tokens % 2 else index.int().mT.contiguous().mT
            expected = _experts.route(index.clamp(max=count), count)
            found = _experts.sort(index, count)
            for name, ours, wanted in zip(found._fields, found, expected, strict=True):
                assert ours.shape == wanted.shape and torch.equal(ours.long(), wanted.long()), name
    print("done")


def check():
    """Rows of whole vectors and others, of several CTAs; slots of no expert, whose rows are NaN."""
    generator = torch.Generator().manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_experts, "program", EmulatedSums)
        for value, weight in TYPES:
            for tokens, top_k, columns in ((3, 1, 8), (5, 3, 2056), (2, 9, 259)):
                index = torch.randint(6, (tokens, top_k), generator=generator)
                routing = _experts.route(index, 5)
                rows = tokens * top_k
                values = torch.randn(rows, columns, generator=generator).to(value)
                values[routing.offsets[-1] :] = torch.nan
                weights = torch.rand(tokens, top_k, generator=generator)
                weights = None if weight is None else weights.to(weight)
                found = _experts.launch(values, weights, routing)
                expected = _experts.add_slots(values, weights, routing)
                assert found.dtype is value and expected.isfinite().all()
                torch.testing.assert_close(found, expected)
    print("done")
