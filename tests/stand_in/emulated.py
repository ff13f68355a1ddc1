"""Launches that the CPU executes, in a process whose driver is the stand-in.

Importing this module makes the stand-in pass programs and launches to the emulator
(tests/emulator). Kernels are compiled to PTX, so such a process needs a cache of its own.
"""

import ctypes
import os
from typing import Any

import numpy as np

from stand_in import device

#: DLPack's type codes: integers, unsigned integers, and the names of ml_dtypes.
CODES = {"i": 0, "u": 1, "f": 2, "bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}

_emulator = ctypes.CDLL(os.environ["EMULATOR"])
# Rutlass takes the NVRTC that the process has loaded.
_nvrtc = ctypes.CDLL("libnvrtc.so.13")
device.library.stand_in_emulate(
    ctypes.cast(_emulator.emulator_load, ctypes.c_void_p),
    ctypes.cast(_emulator.emulator_launch, ctypes.c_void_p),
    ctypes.cast(_emulator.emulator_allow, ctypes.c_void_p),
)


class Array(device.Tensor):
    """A NumPy array that claims to be on a CUDA device. Kernels may use its memory."""

    def __init__(self, array: np.ndarray[Any, Any]):
        self.array = array
        kind = array.dtype
        code = CODES.get(kind.name, CODES.get(kind.kind, -1))
        strides = tuple(stride // kind.itemsize for stride in array.strides)
        super().__init__(
            array.ctypes.data, array.shape, strides=strides, code=code, bits=8 * kind.itemsize
        )
        base = array if array.base is None else array.base
        assert isinstance(base, np.ndarray)
        _emulator.emulator_allow(ctypes.c_uint64(base.ctypes.data), ctypes.c_uint64(base.nbytes))
