"""Helpers of several test files: tensors of every type and layout, kernels for arguments,
subprocesses.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from itertools import product
from pathlib import Path
from unittest import mock

import cutlass_api
import torch
from cutlass_api.arguments import GemmArguments, GroupedGemmArguments
from cutlass_api.metadata import Sm90DesignMetadata
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck as check_operator

from support import TESTS, warm

#: What a process imports for its first compilation.
INDUCTOR = "torch, torch._inductor.compile_fx, torch._inductor.select_algorithm"
#: Every supported element type.
DTYPES = {
    name: getattr(torch, name)
    for name in (
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "int8",
        "uint8",
        "int32",
    )
}
INTEGERS = (torch.int8, torch.uint8, torch.int32)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
#: (A, B, accumulator, out) of the GEMMs that only simt and the reference serve.
SELDOM_STORED = [
    (torch.float16, torch.float16, torch.float16, torch.bfloat16),
    *(
        (half, half, torch.float32, out)
        for half in (torch.float16, torch.bfloat16)
        for out in (*FLOAT8, torch.int32)
    ),
    (torch.float32, torch.float32, torch.float32, torch.int32),
    (torch.float64, torch.float64, torch.float64, torch.int32),
    *((a, b, torch.float32, torch.int32) for a in FLOAT8 for b in FLOAT8),
    *((a, a, torch.float32, out) for a, out in (FLOAT8, FLOAT8[::-1])),
]
#: The orders of A, B and out: t row-major, n column-major.
LAYOUTS = ["".join(letters) for letters in product("tn", repeat=3)]


def accumulator_of(dtype):
    """An accumulator type that every GEMM of this type supports."""
    if dtype == torch.float64:
        return torch.float64
    return torch.int32 if dtype in INTEGERS else torch.float32


def output_of(dtype):
    """An output type that every GEMM of this type supports."""
    return accumulator_of(dtype)


def laid_out(tensor, letter):
    """The same values with this memory order of the last two dimensions: t row-major, n
    column-major.
    """
    return tensor.contiguous() if letter == "t" else tensor.mT.contiguous().mT


def coarse(*shape, dtype=torch.float32, generator=None):
    """Random values of few bits: sums of their products are exact in float32 and float64, in any
    order.
    """
    if dtype in INTEGERS:
        low = 0 if dtype == torch.uint8 else -100
        return torch.randint(low, 100, shape, generator=generator, dtype=torch.int32).to(dtype)
    return (torch.randint(-8, 9, shape, generator=generator).to(torch.float64) / 4).to(dtype)


def exact(a, b, out_dtype):
    """a @ b computed in float64, or int64 modulo 2^32, and rounded once."""
    if a.dtype in INTEGERS and b.dtype in INTEGERS:
        return (a.to(torch.int64) @ b.to(torch.int64)).to(torch.int32).to(out_dtype)
    return (a.to(torch.float64) @ b.to(torch.float64)).to(out_dtype)


def fake(*shape, dtype=torch.float16, device="cuda", layout="t"):
    """A FakeTensor."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        tensor = torch.empty(shape, dtype=dtype, device=device)
        return (
            tensor
            if layout == "t"
            else torch.empty_like(tensor.mT, memory_format=torch.contiguous_format).mT
        )


def fake_gemm(
    m=256,
    n=256,
    k=256,
    dtype=torch.float16,
    out=None,
    accumulator=None,
    layout="ttt",
    device="cuda",
):
    """Arguments of a GEMM of FakeTensors."""
    return GemmArguments(
        fake(m, k, dtype=dtype, device=device, layout=layout[0]),
        fake(k, n, dtype=dtype, device=device, layout=layout[1]),
        fake(m, n, dtype=out or dtype, device=device, layout=layout[2]),
        accumulator_type=accumulator or accumulator_of(dtype),
    )


def served(kernel, m, n, k):
    """Extents near M, N and K that a kernel supports: some kernels are for few rows or columns,
    some need whole 128-byte lines.
    """
    design, operands = kernel.metadata.design, kernel.metadata.operands
    narrow = getattr(design, "narrow", None)
    extents = {
        "m": min(m, design.tile_shape[0]) if narrow == "m" else m,
        "n": min(n, design.tile_shape[1]) if narrow == "n" else n,
        "k": k,
    }
    if getattr(design, "over_grid", False):
        least = 32 * 128 * 8 // operands.A.dtype.width
        extents["k"] += least if k < least else 0
    if operands.out.divisibility > 1:
        for side, (rows, columns) in (("A", "mk"), ("B", "kn"), ("out", "mn")):
            operand = getattr(operands, side)
            contiguous = rows if operand.stride == (0, 1, 0) else columns
            extents[contiguous] = (
                -(-extents[contiguous] // operand.divisibility) * operand.divisibility
            )
        # The accuracy of torch's own product depends on N.
        extents["n"] = -(-extents["n"] // 8) * 8
    if isinstance(design, Sm90DesignMetadata) and design.load_bytes < 16:
        # Threads load whole pieces of a row along K, of 16-bit elements.
        extents["k"] = -(-k // (design.load_bytes // 2)) * (design.load_bytes // 2)
    return extents["m"], extents["n"], extents["k"]


def cuobjdump():
    """A tool of the package nvidia-cuda-cuobjdump or of a CUDA toolkit; None if neither has it."""
    found = sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin/cuobjdump"))
    return str(found[-1]) if found else shutil.which("cuobjdump")


def spilled_bytes(program):
    """Bytes of local memory per thread of a compiled program: stack and register spills."""
    assert program.resources.registers
    return program.resources.stack_bytes


def run_first(args, **kwargs):
    """Runs the kernel that ranks first."""
    kernels = cutlass_api.get_kernels(args)
    assert kernels, "no kernel found"
    kernels[0].run(args, **kwargs)


def gemm(a, b, out, accumulator_type=torch.float32):
    """out = a @ b by the first kernel; returns out."""
    run_first(GemmArguments(a, b, out, accumulator_type=accumulator_type))
    return out


def same(left, right):
    """Checks the types and all values for equality. NaN equals NaN, and 0 equals -0: the sign
    depends on the order of a sum.
    """
    if (left.dtype, left.shape) != (right.dtype, right.shape):
        return False
    left, right = left.to(torch.float64), right.to(torch.float64)
    return torch.equal(left.nan_to_num(nan=1e300), right.nan_to_num(nan=1e300))


def names(kernels):
    return [kernel.metadata.kernel_name for kernel in kernels]


def run_python(code, *arguments, timeout=60, check=True, flags=(), is_warm=False, **environment):
    """The output of a script in a subprocess. An environment variable of None is removed.

    ``is_warm``: the subprocess has imported torch and Inductor before (warm.py), for scripts whose
    result does not depend on when this happens.
    """
    if is_warm:
        server = warm.server(INDUCTOR, with_tests_on_path())
        variables = changed_environment(environment)
        text = textwrap.dedent(code)
        done = server.run(text, *arguments, environment=variables, timeout=timeout)
        status, out, err = done.returncode, done.stdout, done.stderr
    else:
        process = start_python(code, *arguments, flags=flags, **environment)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        status = process.returncode
    if check:
        assert status == 0, f"exit status {status}\n{out}\n{err}"
    return out


def changed_environment(changes):
    """This process's variables with some changes. A variable of None is removed."""
    return {name: value for name, value in (os.environ | changes).items() if value is not None}


def with_tests_on_path():
    """The environment of a process that imports `support`."""
    path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path)}


def start_python(code, *arguments, flags=(), **environment):
    """A script started in a separate process."""
    env = changed_environment(environment)
    command = [sys.executable, *flags, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )


def opcheck(operator, args, options=None):
    """torch's `opcheck`. Its comparison, `torch.allclose`, does not take float8 tensors."""

    def allclose(x, y, **options):
        return torch.isclose(x.double(), y.double(), **options).all().item()

    with mock.patch.object(torch, "allclose", allclose):
        check_operator(operator, args, options)


def cpu_gemm(dtype=torch.float32, m=8, n=8, k=8):
    a, b = torch.ones(m, k).to(dtype), torch.ones(k, n).to(dtype)
    return GemmArguments(
        a, b, torch.ones(m, n).to(output_of(dtype)), accumulator_type=accumulator_of(dtype)
    )


def fake_grouped(rows=300, n=256, k=128, groups=4, dtype=torch.bfloat16, layout="ttt", **kwargs):
    return GroupedGemmArguments(
        fake(rows, k, dtype=dtype, layout=layout[0]),
        fake(groups, k, n, dtype=dtype, layout=layout[1]),
        fake(rows, n, dtype=output_of(dtype) if dtype in INTEGERS else dtype, layout=layout[2]),
        accumulator_of(dtype),
        fake(groups, dtype=torch.int32),
        **kwargs,
    )


def fake_groups_along_k(
    m=256, n=128, k=300, groups=4, dtype=torch.bfloat16, layout="ntt", **kwargs
):
    return GroupedGemmArguments(
        fake(m, k, dtype=dtype, layout=layout[0]),
        fake(k, n, dtype=dtype, layout=layout[1]),
        fake(groups, m, n, dtype=output_of(dtype) if dtype in INTEGERS else dtype),
        accumulator_of(dtype),
        fake(groups, dtype=torch.int32),
        **kwargs,
    )


REFUSED = (ValueError, TypeError, BufferError)
