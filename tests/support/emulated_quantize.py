"""The kernels of quantization and of repacking in a process without a GPU, whose launches the
emulator executes.
"""

import pytest
import torch
from cutlass_api.ops import OPS, _quantize
from cutlass_api.weights import _kernels, _reordering
from cutlass_api.weights._packing import repacked, unpacked
from stand_in import device
from stand_in.emulated import operand

from support.properties import SPARSE
from support.quantized import INPUTS, check_kernels


class Emulated:
    """A program whose tensors the stand-in describes."""

    make = staticmethod(_kernels.program)

    def __init__(self, *key):
        self.kernel = self.make(*key)

    def launch(self, args, grid):
        self.kernel.launch(tuple(map(operand, args)), grid)


class EmulatedReordering(Emulated):
    make = staticmethod(_reordering.program)


def launch(input, out, *format):
    for tensor in out:
        if tensor is not None:
            (tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor).fill_(0x55)
    _kernels.launch(input, out, *format)


def emulated(*arguments):
    """The results of ``OPS.quantize`` by one kernel, by two for a scale of a matrix or of long
    columns.
    """
    before = device.library.stand_in_launches()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernels, "program", Emulated)
        patch.setattr(_quantize, "compute", launch)
        results = OPS.quantize(*arguments)
    launches = device.library.stand_in_launches() - before
    wanted = 1 + (list(arguments[2]) == [-1, -1])
    assert launches == wanted or len(arguments[0]) > 1000, arguments[1:]
    return results


def check(output):
    """Each problem with one input type: the programs of the others differ in the conversion."""
    for at, input in enumerate(INPUTS):
        check_kernels(emulated, input, getattr(torch, output), at, SPARSE * len(INPUTS))
    print("done")


def check_reordering():
    """Less than a CTA, and some of them; also values that begin inside of a vector."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_reordering, "program", EmulatedReordering)
        for n, k in ((1, 32), (7, 96), (70, 288)):
            for is_float in (False, True):
                values = torch.randint(0, 256, (n * k // 2 + 4,), dtype=torch.uint8)
                for part in (values[:-4], values[4:]):
                    stored = part.view(n, k // 2)
                    words = _reordering.launch(stored, True, is_float)
                    assert torch.equal(words, repacked(stored, is_float)), (n, k, is_float)
                    again = _reordering.launch(words, False, is_float)
                    assert torch.equal(again, unpacked(words, is_float)), (n, k, is_float)
                    assert torch.equal(again, stored)
    print("done")
