"""As emulation.py: float8 products of sm80 on a chip whose `mma.sync` multiplies float8 (8.9), and
on Hopper, where the program converts the operands.
"""

import math
from collections.abc import Iterator
from itertools import product

import cutlass_api
import torch
from cutlass_api.arguments import (
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    PerformanceControls,
)
from cutlass_api.metadata import GroupedGemmOperandsMetadata
from stand_in import device
from stand_in.emulated import operand

from support import float8_fragments
from support.eight_bits import blocks, factors, spread
from support.emulation import Kernel, check_design, few, finish, grouped_parts, parts
from support.emulation_scales import all_swizzled, in_order, is_wrong
from support.groups import GroupedProblem, forms_of
from support.helpers import FLOAT8, LAYOUTS
from support.problems import check
from support.properties import SPARSE, every_kernel, family_of, types_of

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
PAIRS = list(product((E4M3, E5M2), repeat=2))


def kernels_of_sm80(cc: int, is_grouped: bool) -> list[Kernel]:
    """All float8 kernels of sm80. The stand-in's device has this compute capability from now on."""
    device.library.stand_in_set_capability(cc)
    return [
        kernel
        for kernel in every_kernel(cc)
        if family_of(kernel) == "sm80"
        and types_of(kernel).a in FLOAT8
        and isinstance(kernel.metadata.operands, GroupedGemmOperandsMetadata) == is_grouped
    ]


def fragments(cc: int) -> None:
    """One instruction, and the code of `ptx::Mma` in its place."""
    device.library.stand_in_set_capability(cc)
    finish(float8_fragments.failures("cpu", operand))


def designs(cc: int) -> None:
    """A sample of all designs, types and layouts, on partial tiles."""
    kernels = few(kernels_of_sm80(cc, False), parts)
    finish([check_design(kernel, at) for at, kernel in enumerate(kernels)])


def grouped(cc: int) -> None:
    """Empty groups, groups of one row and of more than a tile, rows after the last group."""
    failures = []
    cases = [([0, 1, 131, 0, 64], 72, 72), ([37, 0, 66], 67, 45), ([3, 70, 0], 72, 0)]
    for at, kernel in enumerate(few(kernels_of_sm80(cc, True), grouped_parts)):
        sizes, n, k = cases[at % len(cases)]
        a_form, b_form, out_form = forms_of(kernel)
        problem = GroupedProblem(types_of(kernel), sizes, n, k, a_form, b_form)
        failures.append(check(kernel, None, problem, out_form, f"{sizes} {n} {k}"))
    finish(failures)


def of_sm80(args: object) -> list[Kernel]:
    return [kernel for kernel in cutlass_api.get_kernels(args) if family_of(kernel) == "sm80"]


#: (M, N, K): ones, K = 0, K = 1, a remainder of one, more than a chain of 512.
SHAPES = [(1, 1, 1), (5, 7, 0), (3, 29, 1), (33, 17, 129), (65, 66, 700), (2, 130, 31)]


def special(cc: int) -> None:
    """Bad extents in every layout; a NaN and an infinity, which must stay in their row and column;
    sums beyond the largest float8.
    """
    device.library.stand_in_set_capability(cc)
    failures = []
    for at, (m, n, k) in enumerate(SHAPES):
        a_type, b_type = PAIRS[at % len(PAIRS)]
        layout = LAYOUTS[at % len(LAYOUTS)]
        a, b = torch.randn(m, k).to(a_type), torch.randn(k, n).to(b_type)
        out = torch.empty(m, n, dtype=(torch.float32, torch.bfloat16)[at % 2])
        a, b, out = (in_order(x, letter) for x, letter in zip((a, b, out), layout, strict=True))
        controls = PerformanceControls(fast_sums=True)
        args = GemmArguments(a, b, out, "float32", performance=controls)
        expected = a.double() @ b.double()
        kernels = of_sm80(args)
        assert kernels, (m, n, k)
        for kernel in kernels[:: max(1, SPARSE // 2)]:
            if is_wrong(kernel, args, out, expected):
                failures.append(f"{kernel.metadata.kernel_name}, {(m, n, k)} {layout}")
    for a_type, b_type in PAIRS:
        m, n, k = 65, 67, 145
        a, b = torch.ones(m, k).to(a_type), torch.ones(n, k).to(b_type).mT
        a[3, 144] = math.nan
        expected = torch.full((m, n), float(k))
        if b_type is E5M2:
            b[0, 66] = expected[:, 66] = math.inf
        expected[3] = math.nan
        out = torch.empty(m, n)
        args = GemmArguments(a, b, out, "float32")
        for kernel in of_sm80(args)[:: max(1, SPARSE // 2)]:
            out.fill_(-1)
            kernel.run(args)
            if not torch.equal(out.nan_to_num(-2, 9e9), expected.nan_to_num(-2, 9e9)):
                failures.append(f"{kernel.metadata.kernel_name}: NaN and infinity")
    a, b, out = torch.full((4, 64), 32.0).to(E4M3), torch.ones(64, 8).to(E4M3), None
    out = torch.zeros(4, 8, dtype=E4M3)
    args = GemmArguments(a, b, out, "float32")
    of_sm80(args)[0].run(args)
    if not out.float().isnan().all():
        failures.append("a sum of 2048 is no NaN in float8_e4m3fn")
    finish(failures)


#: Types of A, B, the scales and the output; blocks of A and B. -1: all of K.
SCALES = [
    ((E4M3, E4M3, torch.float32, torch.bfloat16), (1, 128), (128, 128)),
    ((E4M3, E5M2, torch.float32, torch.float32), (1, 128), (128, 1)),
    ((E5M2, E4M3, E8M0, torch.bfloat16), (1, 32), (32, 1)),
    ((E4M3, E4M3, torch.float32, torch.float32), (64, 64), (256, 24)),
    ((E4M3, E4M3, torch.float32, torch.float16), (1, -1), (-1, 128)),
    ((E4M3, E4M3, torch.float32, torch.float32), (3, 128), None),
]


def scaled_problems() -> Iterator[tuple[object, torch.Tensor, torch.Tensor, str]]:
    """Arguments with block scales, the output, the expected one, and a description: matrices,
    batches and groups; K-major operands and others.
    """
    m, n, k = 70, 90, 304
    kinds = ("matrix", "batch", "groups")
    for at, ((types, a_block, b_block), kind) in enumerate(product(SCALES, kinds)):
        a_type, b_type, dtype, to = types
        batch = {"matrix": (), "batch": (2,), "groups": (2,)}[kind]
        of_a = () if kind == "groups" else batch
        layout = ("tnt", "ntt", "tnn")[at % 3 if kind != "groups" else 0]
        a, b = torch.randn(*of_a, m, k).to(a_type), torch.randn(*batch, k, n).to(b_type)
        out = torch.empty(*of_a, m, n, dtype=to)
        a, b, out = (in_order(x, letter) for x, letter in zip((a, b, out), layout, strict=True))
        left, right, operands, calls = a.double(), b.double(), {}, []
        is_swizzled = dtype is E8M0 and kind == "matrix"
        scale = factors(*of_a, *blocks((m, k), a_block), dtype=dtype)
        operands["x"] = all_swizzled(scale) if is_swizzled else scale
        left = left * spread(scale, *a_block, (m, k))
        calls.append(f"a=x, a_block={a_block}")
        if b_block is not None:
            scale = factors(*batch, *blocks((k, n), b_block), dtype=dtype)
            operands["y"] = all_swizzled(scale.mT) if is_swizzled else scale
            right = right * spread(scale, *b_block, (k, n))
            calls.append(f"b=y, b_block={b_block}")
        if is_swizzled:
            calls.append('a_swizzle="32x4x4", b_swizzle="32x4x4"')
        source = (
            f"def f(accum, {', '.join(operands)}):\n"
            f"    D = scale_blocks(accum, {', '.join(calls)})\n    return D\n"
        )
        epilogue = EpilogueArguments(source, D=out, **operands)
        if kind == "groups":
            ends = torch.tensor([33, m], dtype=torch.int32)
            args = GroupedGemmArguments(a, b, out, "float32", ends, epilogue=epilogue)
            expected = torch.cat([left[:33] @ right[0], left[33:] @ right[1]])
        else:
            args = GemmArguments(a, b, out, "float32", epilogue=epilogue)
            expected = left @ right
        yield args, out, expected, f"{types} {a_block} {b_block} {kind} {layout}"


def scales(cc: int) -> None:
    """Block scales, by every kernel; or of each scale one kind in turn, by an eighth of them."""
    device.library.stand_in_set_capability(cc)
    failures = []
    for at, (args, out, expected, what) in enumerate(scaled_problems()):
        if SPARSE > 1 and at % 3 != at // 3 % 3:
            continue
        kernels = of_sm80(args)
        assert kernels, what
        for kernel in kernels[at % 2 :: 1 if SPARSE == 1 else 8] or kernels[:1]:
            if is_wrong(kernel, args, out, expected):
                failures.append(f"{kernel.metadata.kernel_name}, {what}")
    finish(failures)
