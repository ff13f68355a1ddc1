"""A short tour: create arguments, find kernels, compile one, run it, check the result.

`make demo` runs it: with torch if it is installed, else NumPy; on a GPU if torch finds one, else on
the CPU.
"""

import time
from importlib.util import find_spec
from typing import Any

import cutlass_api
import numpy as np


def milliseconds(start: float) -> str:
    return f"{1e3 * (time.perf_counter() - start):.2f} ms"


def operands(m: int, n: int, k: int) -> tuple[str, Any, Any, Any, Any]:
    """The framework and device, A, B, an output of NaN, and the float64 product."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    out = np.full((m, n), np.nan, np.float16)
    reference = a.astype(np.float64) @ b.astype(np.float64)
    if find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            a, b, out = (torch.from_numpy(array).cuda() for array in (a, b, out))
            return f"torch on {torch.cuda.get_device_name()}", a, b, out, reference
        a, b, out = (torch.from_numpy(array) for array in (a, b, out))
        return "torch on the CPU (it finds no GPU): reference backend", a, b, out, reference
    return "NumPy on the CPU (torch is not installed): reference backend", a, b, out, reference


def main() -> None:
    m, n, k = 512, 1024, 768
    place, a, b, out, reference = operands(m, n, k)
    print(f"cutlass_api {cutlass_api.__version__} (rutlass)\nrunning on: {place}\n")

    start = time.perf_counter()
    args = cutlass_api.arguments.GemmArguments(a, b, out, accumulator_type="float32")
    print(f"arguments   {args.A} @ {args.B}, created in {milliseconds(start)}")

    start = time.perf_counter()
    kernels = cutlass_api.get_kernels(args)
    found = milliseconds(start)
    print(f"kernels     {len(kernels)} of {len(cutlass_api.get_kernels())}, found in {found}:")
    for kernel in kernels[:3]:
        print(f"              {kernel.metadata.kernel_name}")

    kernel = kernels[0]
    start = time.perf_counter()
    artifact = kernel.compile(args)
    print(f"compile     {milliseconds(start)} (from the disk cache; NVRTC compiles at first use)")

    start = time.perf_counter()
    kernel.run(args, artifact)
    result = np.asarray(out.cpu() if hasattr(out, "cpu") else out).astype(np.float64)
    print(f"run         {milliseconds(start)}, including the copy of the result to NumPy")

    error = np.linalg.norm(result - reference) / np.linalg.norm(reference)
    print(f"error       {error:.1e} relative to float64; the unit roundoff of float16 is 4.9e-04")
    if not error < 1e-3:
        raise SystemExit("the result is wrong")

    # GPU kernels compile for any architecture, also without a GPU.
    for_hopper = cutlass_api.get_kernels(args, cc=90)
    if for_hopper and artifact.compiled_obj is None:
        start = time.perf_counter()
        program = for_hopper[0].compile(args, cc=90).compiled_obj
        print(f"\nfor a GPU   {program.kernel_name}")
        size, spent = len(program.cubin), milliseconds(start)
        print(f"              compiled for {program.architecture}: {size} bytes in {spent}")


if __name__ == "__main__":
    main()
