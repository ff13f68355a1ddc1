"""As emulation.py: products by weights of 4 and 8 bits."""

from collections.abc import Iterator

import cutlass_api
import torch
from cutlass_api.arguments import GemmArguments, PerformanceControls

from support import codes, grouped_codes
from support.emulation import finish
from support.properties import SPARSE, family_of


def check(shape: tuple[int, int, int], is_thorough: bool) -> None:
    """Some kernels of each case, in turn; if ``is_thorough``, every kernel of the first case."""
    failures = []
    for at, name in enumerate(codes.CASES):
        step = SPARSE if is_thorough and at == 0 else 12 if SPARSE == 1 else 48
        failures += codes.failures_of(name, shape, at, step)
    finish(failures)


#: Multiprocessors of the simulated device, and those that persistent kernels leave free.
MULTIPROCESSORS = 132
ALL_BUT_ONE, ALL_BUT_SIX = MULTIPROCESSORS - 1, MULTIPROCESSORS - 6


def ranges(shape: tuple[int, int, int]) -> None:
    """Persistent CTAs of several tiles each: some kernels of each case on one multiprocessor. The
    bits are those of CTAs of a tile each, on all multiprocessors.
    """
    failures = []
    for at, name in enumerate(codes.CASES):
        torch.manual_seed(at)
        few = codes.product(codes.CASES[name], *shape, free_multiprocessors=ALL_BUT_ONE)
        out = torch.empty_like(few.out)
        many = GemmArguments(few.args.A, few.args.B, out, "float32")
        found = cutlass_api.get_kernels(few.args)
        kernels = [kernel for kernel in found if family_of(kernel) == "skinny"]
        for kernel in kernels[at % 6 :: 6 * SPARSE]:
            few.out.fill_(torch.nan)
            kernel.run(few.args)
            out.fill_(torch.nan)
            kernel.run(many)
            if not few.is_right():
                failures.append(f"{kernel.metadata.kernel_name}, {name}, {shape}")
            elif not torch.equal(few.out, out):
                failures.append(f"{kernel.metadata.kernel_name}, {name}: other bits")
    finish(failures)


def ranges_of_batches() -> None:
    """Batches of weights of 8 bits: several CTAs for each matrix, one each, or fewer slots than
    matrices.
    """
    finish([failure for free in (0, ALL_BUT_SIX, ALL_BUT_ONE) for failure in batches(free)])


def batches(free: int) -> Iterator[str]:
    x = torch.randint(-9, 10, (3, 5, 1056)).half()
    w = torch.randint(-9, 10, (3, 100, 1056)).to(torch.int8)
    out = torch.empty(3, 5, 100).half()
    controls = PerformanceControls(free_multiprocessors=free)
    args = GemmArguments(x, w.mT, out, "float32", performance=controls)
    expected = (x.double() @ w.double().mT).half()
    kernels = [each for each in cutlass_api.get_kernels(args) if family_of(each) == "skinny"]
    assert kernels, "no kernel"
    for kernel in kernels[free % 2 :: 2 * SPARSE]:
        out.fill_(torch.nan)
        kernel.run(args)
        if not torch.equal(out, expected):
            yield f"{kernel.metadata.kernel_name}, {free} multiprocessors are free"


#: Rows of groups: of none, first, last and in a row; of one; of several tiles of few columns.
SIZES = [0, 9, 37, 0, 0, 1, 0]


def groups() -> None:
    """Groups of rows by stacks of weights: one kernel of each second case, another one each time;
    or every kernel of the first case, and one of each other case.
    """
    failures = []
    for at, name in list(enumerate(codes.CASES))[min(1, SPARSE - 1) :: min(2, SPARSE)]:
        sizes, step = (SIZES, 1) if at == 0 else ([SIZES, [150, 0, 2]][at // 2 % 2], 5)
        failures += grouped_codes.failures_of(name, sizes, 136, 352, at, step)
    finish(failures)
