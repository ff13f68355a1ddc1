"""Launches that the CPU executes, in a process that ``stand_in.run(..., emulated=True)`` starts.

The stand-in passes programs and launches to the emulator (tests/emulator). Kernels compute on torch
tensors in host memory that :func:`operand` wraps. Import this module before torch: Rutlass takes
the NVRTC that the process has loaded, and torch loads the real one.
"""

import ctypes
import os
import weakref
from pathlib import Path

_emulator = ctypes.CDLL(os.environ["EMULATOR"])
_nvrtc = ctypes.CDLL("libnvrtc.so.13")

import cutlass_api  # noqa: E402

_found = Path(cutlass_api._core.nvrtc_info()[0])
assert _found.parent == Path(os.environ["STAND_IN"]).parent, f"import this first: uses {_found}"

import torch  # noqa: E402

from stand_in import device  # noqa: E402

_functions = ("load", "launch", "fault", "allow", "forbid")
device.library.stand_in_emulate(
    *(ctypes.cast(getattr(_emulator, f"emulator_{name}"), ctypes.c_void_p) for name in _functions)
)
device.library.stand_in_set_current_stream(ctypes.c_uint64(0x5010))
# The emulator executes launches, not the stand-in's graphs.
cutlass_api.config.GlobalOptions().launch_graphs = False

#: DLPack's type codes.
_CODES = {
    torch.int8: 0,
    torch.int32: 0,
    torch.uint8: 1,
    torch.float16: 2,
    torch.float32: 2,
    torch.float64: 2,
    torch.bfloat16: 4,
    torch.float8_e4m3fn: 10,
    torch.float8_e5m2: 12,
}


def operand(tensor: torch.Tensor) -> device.Tensor:
    """The same memory as a tensor on the simulated device. Kernels may use the storage of the
    tensor while the result lives.
    """
    wrapped = device.Tensor(
        tensor.data_ptr(),
        tuple(tensor.shape),
        strides=tensor.stride(),
        code=_CODES[tensor.dtype],
        bits=8 * tensor.itemsize,
    )
    storage = tensor.untyped_storage()
    _emulator.emulator_allow(
        ctypes.c_uint64(storage.data_ptr()), ctypes.c_uint64(storage.nbytes())
    )
    # The finalizer keeps the storage, and so the memory, alive.
    weakref.finalize(wrapped, _forbid, storage)
    return wrapped


def _forbid(storage: torch.UntypedStorage) -> None:
    _emulator.emulator_forbid(ctypes.c_uint64(storage.data_ptr()))
