"""Properties of kernels, by their metadata."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import environ
from typing import Any

import cutlass_api
import torch
from cutlass_api.arguments import GemmArguments, GroupedGemmArguments, PerformanceControls
from cutlass_api.metadata import GroupedGemmOperandsMetadata

from support.helpers import FLOAT8

#: One of so many kernels of a sample is compiled, or executed by the emulator: all with
#: TEST_KERNELS=all (`make test-kernels`), since NVRTC takes half a second of each.
SPARSE = 1 if environ.get("TEST_KERNELS") == "all" else 48


def some(cases: Iterable[Any]) -> list[Any]:
    """Every eighth one of the cases, or all with all kernels."""
    return list(cases)[:: 1 if SPARSE == 1 else 8]


def diagonals(rows: Iterable[Any], columns: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Each row with one column, in turn, so that each column has a row; all pairs with all
    kernels.
    """
    every = range(len(columns) if SPARSE == 1 else 1)
    return [
        (row, columns[(at + turn) % len(columns)]) for turn in every for at, row in enumerate(rows)
    ]


# ---- kernels -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Types:
    a: torch.dtype
    b: torch.dtype
    accumulator: torch.dtype
    out: torch.dtype

    def __str__(self) -> str:
        short = [
            str(dtype).removeprefix("torch.")
            for dtype in (self.a, self.b, self.accumulator, self.out)
        ]
        return "{}x{}->{}->{}".format(*short)

    @property
    def integer(self) -> bool:
        """Whether sums are integers, which are exact modulo 2^32."""
        return self.accumulator == torch.int32


def types_of(kernel: cutlass_api.Kernel) -> Types:
    operands = kernel.metadata.operands
    sides = (operands.A.dtype, operands.B.dtype, operands.accumulator_type, operands.out.dtype)
    names = (dtype.name for dtype in sides)
    return Types(*(getattr(torch, name, None) or getattr(torch, name + "_x2") for name in names))


def family_of(kernel: cutlass_api.Kernel) -> str:
    return kernel.metadata.kernel_name.split("_")[0]


def first_of_families(args) -> list[cutlass_api.Kernel]:
    """The kernel that ranks first in each family."""
    kernels = cutlass_api.get_kernels(args)
    return list({family_of(kernel): kernel for kernel in reversed(kernels)}.values())


def rounds_to_tf32(kernel: cutlass_api.Kernel) -> bool:
    return family_of(kernel) in ("sm80", "sm90") and types_of(kernel).a == torch.float32


def truncates(kernel: cutlass_api.Kernel) -> bool:
    """Whether tensor cores add up float8 products, of which they keep 14 bits."""
    if family_of(kernel) not in ("sm80", "sm90"):
        return False
    types = types_of(kernel)
    return types.a in FLOAT8 and types.b in FLOAT8


def sums_fast(kernel: cutlass_api.Kernel) -> bool:
    """Whether a kernel adds up float8 products in one chain."""
    return getattr(kernel.metadata.design, "fast_sums", False)


def layouts_of(kernel: cutlass_api.Kernel) -> list[str]:
    """A kernel's layouts of A, B and out, such as "tnt": t row-major, n column-major."""
    operands = kernel.metadata.operands
    letters = {(0, 0, 1): "t", (0, 1, 0): "n", None: "tn"}
    a, b, out = (letters[side.stride] for side in (operands.A, operands.B, operands.out))
    return [i + j + k for i in a for j in b for k in out]


def from_registers(kernel: cutlass_api.Kernel) -> bool:
    """Whether a kernel loads an operand into registers: float32 that wgmma cannot read from shared
    memory.
    """
    if family_of(kernel) != "sm90" or types_of(kernel).a != torch.float32:
        return False
    operands, packed = kernel.metadata.operands, kernel.metadata.design.packed
    by_rows = not packed[0] and operands.A.stride == (0, 1, 0)
    by_columns = not packed[1] and operands.B.stride == (0, 0, 1)
    return by_rows or by_columns


def over_grid(args: GemmArguments) -> list[cutlass_api.Kernel]:
    """The kernels for these arguments that have a grid split."""
    kernels = cutlass_api.get_kernels(args)
    return [kernel for kernel in kernels if getattr(kernel.metadata.design, "over_grid", False)]


def splits_over_cluster(kernel: cutlass_api.Kernel) -> bool:
    design = kernel.metadata.design
    return getattr(design, "split", 1) > 1 and not getattr(design, "over_grid", False)


@contextmanager
def float32_precision(precision: str):
    """torch's tf32 setting, which our kernels follow."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# ---- helpers for tests of many kernels -----------------------------------------------------------


def multiplies_codes(kernel: cutlass_api.Kernel) -> bool:
    """Whether B is a weight of 4 bits, not a tensor (support/codes.py)."""
    return kernel.metadata.operands.B.dtype.width < 8


def every_kernel(cc: int) -> list[cutlass_api.Kernel]:
    """The kernels of tensors that `get_kernels` lists, and those with fast sums, which it lists for
    arguments that permit them.
    """
    listed = [kernel for kernel in cutlass_api.get_kernels(cc=cc) if not multiplies_codes(kernel)]
    alike = {
        (isinstance(kernel.metadata.operands, GroupedGemmOperandsMetadata), types_of(kernel), order)
        for kernel in filter(truncates, listed)
        for order in layouts_of(kernel)
    }
    found = (cutlass_api.get_kernels(permissive_args(*key), cc=cc) for key in alike)
    fast = (kernel for kernels in found for kernel in kernels if sums_fast(kernel))
    return listed + sorted(set(fast), key=lambda kernel: kernel.metadata.kernel_name)


def permissive_args(is_grouped: bool, types: Types, layout: str) -> GemmArguments:
    """Arguments that permit fast sums. FakeTensors would take seconds for all types and layouts."""

    def matrix(dtype: torch.dtype, order: str, *batch: int) -> torch.Tensor:
        x = torch.empty(*batch, 256, 256, dtype=dtype)
        return x.mT if order == "n" else x

    a, out = matrix(types.a, layout[0]), matrix(types.out, layout[2])
    b = matrix(types.b, layout[1], *[3] * is_grouped)
    permit = PerformanceControls(fast_sums=True)
    if is_grouped:
        offsets = torch.empty(3, dtype=torch.int32)
        return GroupedGemmArguments(a, b, out, types.accumulator, offsets, performance=permit)
    return GemmArguments(a, b, out, types.accumulator, performance=permit)


def by_family_and_types(kind: type) -> dict[tuple[str, Types], list[cutlass_api.Kernel]]:
    """All kernels for an H100 whose operands' metadata are of a kind."""
    groups = defaultdict(list)
    for kernel in every_kernel(90):
        if isinstance(kernel.metadata.operands, kind):
            groups[family_of(kernel), types_of(kernel)].append(kernel)
    return dict(groups)


def sample(
    groups: Iterable[list[cutlass_api.Kernel]],
    parts: Callable[[cutlass_api.Kernel], Iterable[object]],
    steps: Sequence[int] = (3, 2, 1),
) -> list[list[cutlass_api.Kernel]]:
    """Kernels of few groups that together have every part: those groups first that bring as many
    new parts as the first step. Of each group, the kernels that bring a part.
    """
    known = [[(kernel, set(parts(kernel))) for kernel in group] for group in groups]
    brings = [set().union(*(found for _, found in group)) for group in known]
    chosen, covered = [], set()
    for least in steps:
        for group, brought in zip(known, brings, strict=True):
            if len(brought - covered) < least:
                continue
            chosen.append([])
            for kernel, found in group:
                if found - covered:
                    chosen[-1].append(kernel)
                    covered |= found
    return chosen
