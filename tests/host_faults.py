"""Faults outside of the driver, in processes of the stand-in: NVRTC."""

import ctypes
import itertools
import json
import os
import sys
from collections.abc import Callable

import cutlass_api
import faults

# NVRTC, replaced by nvrtc_faults.c.

NVRTC_ERRORS = {1: "NVRTC_ERROR_OUT_OF_MEMORY", 11: "NVRTC_ERROR_INTERNAL_ERROR"}


def check_nvrtc() -> None:
    """Prints the names of the calls that fail."""
    nvrtc = ctypes.CDLL("libnvrtc.so.13")
    nvrtc.name_of.restype = ctypes.c_char_p
    number = itertools.count()

    def new() -> Callable[[], str]:
        """What compiles a source that no cache has, to machine code and to PTX."""
        source = f"__global__ void f(float* x) {{ *x = {os.getpid()} + {next(number)}; }}"
        kernel = cutlass_api.cuda_kernel(source, "f", grid=1)
        return lambda: kernel.compile(cc=90).ptx

    def calls() -> list[str]:
        return [nvrtc.name_of(at).decode() for at in range(1, nvrtc.calls() + 1)]

    def clean() -> list[str]:
        nvrtc.fault(0, 0)
        assert ".entry" in new()()
        return calls()

    def with_fault(at: int, code: int) -> str:
        """Returns the call that fails."""
        compiled, before = new(), nvrtc.open_programs()
        nvrtc.fault(at, code)
        try:
            compiled()
        except RuntimeError as error:
            message = str(error)
        else:
            message = ""
        name = calls()[at - 1]
        if name == "nvrtcDestroyProgram":
            assert message == "", message
        else:
            # A message names the result, not its size.
            expected = f"{name.removesuffix('Size')} failed with {NVRTC_ERRORS[code]}"
            assert expected in message, (name, message)
        nvrtc.fault(0, 0)
        assert ".entry" in compiled()
        assert nvrtc.open_programs() - before == (name == "nvrtcDestroyProgram")
        return name

    opening = faults.forked(clean)
    failed = {faults.forked(with_fault, at, code) for at in (1, 2, 3) for code in NVRTC_ERRORS}
    assert failed == set(opening[:3]), failed
    clean()
    later = clean()
    assert later == opening[3:], (opening, later)
    codes = itertools.cycle(NVRTC_ERRORS)
    failed |= {with_fault(at, next(codes)) for at in range(1, len(later) + 1)}
    json.dump(sorted(failed), sys.stdout)
