"""Launches of users' kernels on the stand-in driver."""

import textwrap

import stand_in

SQUARE = "__global__ void square(const float* x, float* out, int n) { *out = *x * n; }"

PRELUDE = textwrap.dedent(
    """
    import ctypes, struct
    import cutlass_api
    from cutlass_api import cuda_kernel
    from stand_in import device
    from stand_in.device import FLOAT, INT, Tensor, raises

    X, OUT = 0x10000000, 0x30000000
    def f32(data, *shape, device=0):
        return Tensor(data, shape, bits=32, device=device)
    x, out = f32(X, 6, 128), f32(OUT, 6, 128)
    device.library.stand_in_set_current_stream(ctypes.c_uint64(0x5010))
    device.expect_words(1)
    def as_float(word):
        return struct.unpack("<f", struct.pack("<I", word & 0xFFFFFFFF))[0]
    """
)


def run(script):
    return stand_in.run(PRELUDE + textwrap.dedent(script))
