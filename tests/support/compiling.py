"""Compilation in processes without packages, and checks of code."""

from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path

import cutlass_api
import torch
from cutlass_api.arguments import GroupedGemmArguments
from cutlass_api.metadata import ElementwiseOperandsMetadata, GroupedGemmOperandsMetadata

from support.helpers import DTYPES, fake, fake_gemm, served, spilled_bytes
from support.properties import SPARSE

PACKAGE = Path(cutlass_api.__file__).parent


def args_of(kernel, fast_sums=None):
    """Arguments with the operands that a kernel's metadata requires. fast_sums: whether they permit
    fast sums; None: if the kernel has them.
    """
    operands = kernel.metadata.operands
    if isinstance(operands, ElementwiseOperandsMetadata):
        dtypes = (DTYPES[getattr(operands, name).dtype.name] for name in ("A", "B", "out"))
        return cutlass_api.arguments.ElementwiseArguments(
            *(fake(33, 64, dtype=dtype) for dtype in dtypes)
        )
    layout = "".join(
        "n" if getattr(operands, name).stride == (0, 1, 0) else "t" for name in ("A", "B", "out")
    )
    if fast_sums is None:
        fast_sums = getattr(kernel.metadata.design, "fast_sums", False)
    controls = cutlass_api.arguments.PerformanceControls(fast_sums)
    if isinstance(operands, GroupedGemmOperandsMetadata):
        sides = [getattr(operands, name) for name in ("A", "B", "out")]
        return fake_grouped_gemm(sides, layout, operands, controls)
    args = fake_gemm(*served(kernel, 256, 256, 256), layout=layout)
    a, b, out = (getattr(operands, name).dtype.name for name in ("A", "B", "out"))
    tensors = [
        getattr(args, name).tensor.compile_time_tensor.to(DTYPES[dtype])
        for name, dtype in zip(("A", "B", "out"), (a, b, out), strict=True)
    ]
    return cutlass_api.arguments.GemmArguments(
        *(*tensors, operands.accumulator_type), performance=controls
    )


def fake_grouped_gemm(sides, layout, operands, controls):
    a, b, out = (DTYPES[side.dtype.name] for side in sides)
    shapes = (3, 256, 256), (256, 256)
    of_b, of_out = shapes if operands.offsets_along == "m" else reversed(shapes)
    return GroupedGemmArguments(
        fake(256, 256, dtype=a, layout=layout[0]),
        fake(*of_b, dtype=b, layout=layout[1]),
        fake(*of_out, dtype=out, layout=layout[2]),
        operands.accumulator_type,
        fake(3, dtype=torch.int32),
        performance=controls,
    )


# Artifacts in other processes.


def without_packages(tmp_path):
    """The environment and the flags of a process that sees no other distribution."""
    for package in (PACKAGE, PACKAGE.with_name("nvidia_cutlass_stub")):
        (tmp_path / package.name).symlink_to(package)
    return {
        "flags": ("-S",),
        "PYTHONPATH": str(tmp_path),
        "LD_LIBRARY_PATH": None,
        "CUDA_HOME": None,
        "CUDA_PATH": None,
    }


def demanding(kernels, step, first=4):
    """The ``first`` kernels with the most sums a thread, and every ``step``-th of the others."""
    kernels = sorted(kernels, key=lambda kernel: -prod(kernel.metadata.design.tile_shape))
    return [*kernels[:first], *kernels[first::step]]


def check_code(kernels, args, cc=90):
    """Asserts that the kernels compile without a warning and spill no register. In CI, the two
    with the most sums a thread, and a fourth of the others.
    """
    if SPARSE > 1:
        kernels = demanding(kernels, 4, first=2)
    with ThreadPoolExecutor() as pool:
        artifacts = list(pool.map(lambda kernel: kernel.compile(args, cc), kernels))
    for kernel, artifact in zip(kernels, artifacts, strict=True):
        program = artifact.compiled_obj
        assert program.log == "", kernel.metadata.kernel_name
        assert spilled_bytes(program) == 0, kernel.metadata.kernel_name
