"""Products of 16-bit floats and 8-bit weights by the kernels of sm80, beside float64."""

from collections.abc import Iterator
from itertools import product

import cutlass_api
import torch
from cutlass_api.arguments import EpilogueArguments, GemmArguments

from support.eight_bits import factors, integers
from support.helpers import LAYOUTS, laid_out
from support.properties import family_of

F16, BF16, S8, U8 = torch.float16, torch.bfloat16, torch.int8, torch.uint8
E4M3 = torch.float8_e4m3fn

#: Types of A and B. Weights in float8 are operand B.
PAIRS = [
    *product((F16, BF16), (S8, U8)),
    *product((S8, U8), (BF16, F16)),
    *product((F16, BF16), (E4M3,)),
]
#: (M, N, K): ones, K = 0, remainders of one, rows whose alignment is that of elements, of 4 bytes
#: and of 16, several K blocks, partial tiles of every size.
SHAPES = [
    *[(1, 1, 1), (5, 7, 0), (3, 29, 1), (33, 17, 129)],
    *[(68, 132, 204), (144, 80, 208), (65, 66, 31), (160, 128, 64)],
]


def operand(rows: int, columns: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """Integers of the type's whole range, or normal numbers."""
    if not dtype.is_floating_point:
        return integers(rows, columns, dtype=dtype, device=device)
    return torch.randn(rows, columns, device=device).to(dtype)


def problems(device: str) -> Iterator[tuple[GemmArguments, torch.Tensor, torch.Tensor, str]]:
    """Arguments, their output, the expected one, and a description. Every second problem has
    scales, of rows or of columns, and a NaN and an infinity, each of which stays in its row or
    column.
    """
    for at, ((a_type, b_type), layout) in enumerate(product(PAIRS, LAYOUTS)):
        m, n, k = SHAPES[(at + at // len(SHAPES)) % len(SHAPES)]
        a, b = operand(m, k, a_type, device), operand(k, n, b_type, device)
        out = torch.empty(m, n, dtype=a_type if a_type.itemsize == 2 else b_type, device=device)
        a, b, out = (laid_out(x, letter) for x, letter in zip((a, b, out), layout, strict=True))
        epilogue, scale = None, None
        if at // 2 % 2 == 0:
            rows = at // 4 % 2 == 0
            scale = factors(m, 1, device=device) if rows else factors(1, n, device=device)
            source = "def f(accum, scale):\n    D = accum * scale\n    return D\n"
            epilogue = EpilogueArguments(source, D=out, scale=scale)
            if k > 1:
                half = a if a_type.itemsize == 2 else b.mT
                half[0, k - 1], half[half.shape[0] // 2, 0] = torch.nan, torch.inf
        expected = a.double() @ b.double() * (1 if scale is None else scale.double())
        args = GemmArguments(a, b, out, "float32", epilogue=epilogue)
        yield args, out, expected, f"{a_type} {b_type} {(m, n, k)} {layout}"


def failures(device: str, is_sample: bool = False, part: int = 0, parts: int = 1) -> list[str]:
    """The kernels of sm80 whose output is wrong: float32 sums, once rounded. A sample takes one of
    eight kernels of every eighth problem, among them all types. ``part``: of ``parts`` equal shares
    of the problems.
    """
    found, step = [], 8 if is_sample else 1
    for at, (args, out, expected, what) in enumerate(problems(device)):
        if at % parts != part:
            continue
        if is_sample and (at + at // (2 * len(LAYOUTS))) % 8:
            continue
        kernels = [each for each in cutlass_api.get_kernels(args) if family_of(each) == "sm80"]
        if not kernels:
            found.append(f"no kernel for {what}")
        finite = expected[expected.isfinite()].abs()
        least = 1e-5 * float(finite.max()) if finite.numel() else 0.0
        for kernel in kernels[at % step % max(1, len(kernels)) :: step]:
            out.fill_(-1)
            kernel.run(args)
            eps = torch.finfo(out.dtype).eps
            # A sum beyond the largest float16 is infinite.
            rounded = expected.to(out.dtype).double()
            if not torch.allclose(out.double(), rounded, eps, least, equal_nan=True):
                found.append(f"{kernel.metadata.kernel_name}, {what}")
    return found
