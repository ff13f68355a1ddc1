"""Masked grouped GEMMs: each group has a matrix of A and of the output, whose first rows exist."""

from collections.abc import Sequence
from functools import partial

import torch
from cutlass_api.arguments import EpilogueArguments, GroupedGemmArguments, PerformanceControls

from support import memory
from support.epilogues import assert_close
from support.groups import forms_of
from support.helpers import coarse, served
from support.memory import Form, Output, random_operand
from support.properties import Types, types_of

#: Counts of rows, the rows of a matrix, N and K: no row, one, all; ends inside a tile; more groups
#: than a warp has lanes; more than a tile; no K.
CASES = [
    ([0, 1, 140, 0, 64, 139], 140, 72, 72),
    ([33, 5], 67, 67, 45),
    ([(7 * group) % 5 if group % 9 else 0 for group in range(70)], 4, 40, 24),
    ([300, 3], 320, 136, 40),
    ([3, 70, 0], 70, 72, 0),
]
#: Counts of three groups that kernels clamp.
WRONG_COUNTS = [[-5, 2**31 - 1, 7], [-(2**31), 71, 70]]


class MaskedGroups:
    """Random groups, `rows` rows a matrix. Rows that do not exist are NaN in A."""

    def __init__(
        self,
        types: Types,
        counts: Sequence[int],
        rows: int,
        n: int,
        k: int,
        forms: Sequence[Form] = (Form(multiple=8), Form("n", multiple=8), Form(multiple=8)),
    ) -> None:
        generator = torch.Generator().manual_seed(rows)
        self.counts, self.types, (a_form, b_form, out_form) = list(counts), types, forms
        groups = len(counts)

        def operand(shape, dtype, form):
            around = torch.Generator(memory.DEVICE).manual_seed(0)
            made = random_operand(shape, dtype, form, around)
            return made.copy_(coarse(*shape, dtype=dtype, generator=generator))

        self.values = partial(coarse, generator=generator)
        self.a = operand((groups, rows, k), types.a, a_form)
        self.b = operand((groups, k, n), types.b, b_form)
        if types.a.is_floating_point:
            for matrix, count in zip(self.a, counts, strict=True):
                matrix[count:] = torch.full_like(matrix[count:], torch.nan, dtype=torch.float32)
        self.offsets = torch.tensor(counts, dtype=torch.int32, device=memory.DEVICE)
        self.out = Output((groups, rows, n), types.out, out_form)

    def arguments(self, epilogue=None) -> GroupedGemmArguments:
        return GroupedGemmArguments(
            *(self.a, self.b, self.out.tensor, self.types.accumulator, self.offsets, epilogue),
            performance=PerformanceControls(fast_sums=True),
        )

    def wanted(self) -> torch.Tensor:
        """In float64; rows that do not exist hold any numbers. Integers of 8 bits wrap around."""
        exact, out = self.a.double() @ self.b.double(), self.types.out
        return exact.int().to(out).double() if out in (torch.int8, torch.uint8) else exact

    def check(self, kernel, args, wanted: torch.Tensor | None = None, artifact=None) -> None:
        """Compares the rows that exist, and checks that nothing else is written."""
        self.out.memory.bytes.fill_(self.out.poison)
        kernel.run(args, artifact)
        self.compare(kernel, wanted)

    def compare(self, kernel, wanted: torch.Tensor | None = None) -> None:
        wanted = self.wanted() if wanted is None else wanted
        what = f"{self.counts} of {list(self.out.tensor.shape)}, {kernel.metadata.kernel_name}"
        for matrix, values, count in zip(self.out.tensor, wanted, self.counts, strict=True):
            assert_close(matrix[:count], values[:count], what)
            rest = matrix[count:].contiguous().flatten().view(torch.uint8)
            assert (rest == self.out.poison).all(), f"written behind a group: {what}"
        assert self.out.intact_around(), f"written around the output: {what}"

    def set_counts(self, counts: Sequence[int]) -> None:
        """Counts that kernels clamp to the rows of a matrix."""
        self.offsets.copy_(torch.tensor(counts, dtype=torch.int32))
        rows = self.a.shape[1]
        self.counts = [min(max(count, 0), rows) for count in counts]
        self.a.copy_(self.values(*self.a.shape, dtype=self.types.a))


def of_kernel(kernel, case) -> MaskedGroups:
    """A problem in layouts that a kernel requires."""
    counts, rows, n, k = case
    _, n, k = served(kernel, 1, n, k)
    return MaskedGroups(types_of(kernel), counts, rows, n, k, forms_of(kernel))


GATED = """
def gated(accum, up, bias, row, C):
    gate = accum + bias
    D = silu(gate) * product(up) * row + C
    return D
"""
ADDED = GATED.replace("up, ", "").replace(" * product(up)", "")


def with_epilogue(
    trial: MaskedGroups, has_product: bool
) -> tuple[GroupedGemmArguments, torch.Tensor]:
    """Arguments with operands of groups, of rows and of elements, and the values."""
    groups, rows, n = trial.out.tensor.shape
    dtype = trial.types.a
    given = {
        "bias": trial.values(groups, 1, n, dtype=dtype),
        "row": trial.values(groups, rows, 1, dtype=torch.float32),
        "C": trial.values(groups, rows, n, dtype=dtype),
    }
    given = {name: x.to(memory.DEVICE) for name, x in given.items()}
    factor = 1.0
    if has_product:
        up = torch.empty_strided(trial.b.shape, trial.b.stride(), dtype=dtype, device=memory.DEVICE)
        given["up"] = up.copy_(trial.values(*trial.b.shape, dtype=dtype))
        factor = trial.a.double() @ up.double()
    source = GATED if has_product else ADDED
    epilogue = EpilogueArguments(source, D=trial.out.tensor, **given)
    gate = trial.wanted() + given["bias"].double()
    wanted = torch.nn.functional.silu(gate) * factor * given["row"].double() + given["C"].double()
    return trial.arguments(epilogue), wanted


def with_scales(trial: MaskedGroups, blocks: bool) -> tuple[GroupedGemmArguments, torch.Tensor]:
    """Of float8: scales of 1 x 128 and 128 x 128, or of rows and columns."""
    groups, rows, n = trial.out.tensor.shape
    k = trial.a.shape[-1]
    of_a, of_b = ((1, 128), (128, 128)) if blocks else ((1, -1), (-1, 1))
    deep = -(-k // 128) if blocks else 1
    shapes = (groups, rows, deep), (groups, deep, -(-n // 128) if blocks else n)
    scale_a, scale_b = (
        (trial.values(*shape, dtype=torch.float32).abs() + 0.5).to(memory.DEVICE)
        for shape in shapes
    )
    source = (
        f"def f(accum, x, y):\n    D = scale_blocks(accum, a=x, a_block={of_a}, b=y, "
        f"b_block={of_b})\n    return D\n"
    )
    epilogue = EpilogueArguments(source, x=scale_a, y=scale_b, D=trial.out.tensor)
    wide_a, wide_b = scale_a.double(), scale_b.double()
    if blocks:
        wide_a = wide_a.repeat_interleave(128, 2)[..., :k]
        wide_b = wide_b.repeat_interleave(128, 1)[:, :k].repeat_interleave(128, 2)[..., :n]
    wanted = (trial.a.double() * wide_a) @ (trial.b.double() * wide_b)
    return trial.arguments(epilogue), wanted
