"""Launches that the CPU executes, in a process that ``stand_in.run(..., emulated=True)`` starts.

The stand-in passes programs and launches to the emulator (tests/emulator). Arguments of CPU tensors
become arguments of tensors on the simulated device, with the same memory, so that the helpers of
the GPU tests work with ``memory.DEVICE = torch.device("cpu")``. A launch ends before ``run``
returns.

Processes import this module before torch and test modules: Rutlass uses the NVRTC that the process
has loaded, and torch loads the real one.
"""

import ctypes
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

_emulator = ctypes.CDLL(os.environ["EMULATOR"])
_nvrtc = ctypes.CDLL("libnvrtc.so.13")

import cutlass_api  # noqa: E402
from cutlass_api import arguments  # noqa: E402

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
    torch.int64: 0,
    torch.uint8: 1,
    torch.float16: 2,
    torch.float32: 2,
    torch.float64: 2,
    torch.bfloat16: 4,
    torch.float8_e4m3fn: 10,
    torch.float8_e5m2: 12,
    torch.float8_e8m0fnu: 14,
}


def operand(value: Any) -> Any:
    """A CPU tensor as a tensor on the simulated device, with the same memory; a list of them, too;
    any other value unchanged. Kernels may use the tensor's storage while the result lives.
    """
    if isinstance(value, list):
        return [operand(each) for each in value]
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return value
    storage = value.untyped_storage()
    on_device = device.Tensor(
        value.data_ptr(),
        tuple(value.shape),
        strides=value.stride(),
        code=_CODES[value.dtype],
        bits=8 * value.itemsize,
    )
    _emulator.emulator_allow(ctypes.c_uint64(storage.data_ptr()), ctypes.c_uint64(storage.nbytes()))
    # The finalizer also keeps the storage alive.
    weakref.finalize(on_device, _forbid, storage)
    on_device.transpose = lambda *dims: operand(value.transpose(*dims))
    return on_device


def _forbid(storage: torch.UntypedStorage) -> None:
    _emulator.emulator_forbid(ctypes.c_uint64(storage.data_ptr()))


def _on_device(kind: Callable[..., Any]) -> Callable[..., Any]:
    def make(*positional: Any, **named: Any) -> Any:
        return kind(*map(operand, positional), **{key: operand(of) for key, of in named.items()})

    return make


class _Weights:
    """In place of ``ScaledTensor``: weights with fields on the simulated device."""

    def __new__(cls, base: Any, scale: Any, *of_scales: Any) -> Any:
        return arguments.ScaledTensor(operand(base), operand(scale), *of_scales)

    @staticmethod
    def of_weight(*fields: Any) -> arguments.ScaledTensor:
        return arguments.ScaledTensor.of_weight(*map(operand, fields))


cutlass_api.weights._classes.ScaledTensor = _Weights
for _kind in ("Gemm", "GroupedGemm", "Elementwise", "Epilogue", "Prologue"):
    setattr(arguments, f"{_kind}Arguments", _on_device(getattr(arguments, f"{_kind}Arguments")))
torch.cuda.synchronize = lambda: None
