"""Tests of products with groups along K, and of epilogues and two products with groups along M, in
a process without a GPU, as those of emulation.py.
"""

from dataclasses import replace
from itertools import product

import cutlass_api
import torch
from cutlass_api.arguments import EpilogueArguments
from cutlass_api.metadata import GroupedGemmOperandsMetadata
from cutlass_api.ops import _epilogues
from cutlass_api.ops._scales import scaled_groups_along_k

from support import gated_mlp as mlp
from support.dual_groups import CASES, WEIGHTS, DualGroups
from support.eight_bits import assert_close, factors, of_blocks
from support.emulation import few, finish, grouped_parts, kernels_of
from support.group_rows import CASES as ROWS
from support.group_rows import GroupRows
from support.groups import (
    ENDS_OUT_OF_ORDER,
    FLOAT8,
    FORMS_ALONG_K,
    HALF,
    GroupsAlongK,
    fill_group,
    forms_of,
    with_wrong_ends,
)
from support.helpers import served
from support.masked_groups import CASES as MASKED
from support.masked_groups import (
    WRONG_COUNTS,
    MaskedGroups,
    of_kernel,
    with_epilogue,
    with_scales,
)
from support.memory import Form, Output
from support.problems import check
from support.properties import (
    SPARSE,
    Types,
    family_of,
    first_of_families,
    float32_precision,
    rounds_to_tf32,
    types_of,
)

Kernel = cutlass_api.Kernel
BF16 = torch.bfloat16

#: Extents of K: empty groups first, last and in a row; one index; more than one K block; more
#: groups than a warp has lanes; all of K in one group; no K.
SIZES = [
    [0, 1, 131, 0, 0, 64, 0],
    [37, 0, 66],
    [(7 * group) % 5 if group % 9 else 0 for group in range(70)],
    [0, 0, 200, 0],
    [0, 0],
]


def kernels_along_k() -> list[Kernel]:
    kernels = kernels_of(GroupedGemmOperandsMetadata)
    return [each for each in kernels if each.metadata.operands.offsets_along == "k"]


def along_k() -> None:
    """Every design, on outputs with partial tiles."""
    failures = []
    for at, kernel in enumerate(few(kernels_along_k(), grouped_parts)):
        sizes = SIZES[at % len(SIZES)]
        m, n = (300, 24) if sizes == SIZES[2] else ((67, 140), (140, 67))[at % 2]
        m, n, _ = served(kernel, m, n, 1)
        *forms, out_form = forms_of(kernel)
        tf32, spare = rounds_to_tf32(kernel), 0 if sum(sizes) == 0 else 19
        with float32_precision("high" if tf32 else "highest"):
            problem = GroupsAlongK(types_of(kernel), sizes, (m, n), forms, tf32, spare)
            failures.append(check(kernel, None, problem, out_form, f"{sizes} {m} {n}"))
    finish(failures)


#: Of 16 and of 8 bits; the sums of 8 bits are promoted more often if the output is float32.
NARROW = [replace(each, out=out) for each in (HALF, FLOAT8) for out in (BF16, torch.float32)]


def tried(args, turn: int) -> list[Kernel]:
    """All kernels of sm90, which overwrite K of other groups, and the first of other families; or
    the first of one family, another one each turn.
    """
    firsts = first_of_families(args)
    if SPARSE > 1:
        return [firsts[turn % len(firsts)]]
    of_sm90 = [kernel for kernel in cutlass_api.get_kernels(args) if family_of(kernel) == "sm90"]
    return of_sm90 + [kernel for kernel in firsts if family_of(kernel) != "sm90"]


def neighbours() -> None:
    """NaN in a group stays in it."""
    failures = []
    for turn, types in enumerate(NARROW):
        forms = FORMS_ALONG_K[types.a]
        problem = GroupsAlongK(types, [70, 50, 64, 1], (136, 264), forms).with_fast_sums
        out = Output(problem.shape, types.out, Form("t", multiple=8)).tensor
        args = problem.arguments(out)
        for group in (1, 3):
            fill_group(problem, group, torch.nan)
        expected = problem.each(lambda a, b: a.double() @ b.double())
        for kernel in tried(args, turn):
            out.fill_(0)
            kernel.run(args)
            close = torch.isclose(out.double(), expected, rtol=0.02, atol=0.1, equal_nan=True)
            if not close.all():
                failures.append(kernel.metadata.kernel_name)
    finish(failures)


def wrong_offsets() -> None:
    """Offsets out of order or of range: clamped and made monotonic."""
    failures = []
    for turn, (wrong_ends, types) in enumerate(product(ENDS_OUT_OF_ORDER, (HALF, FLOAT8))):
        forms = FORMS_ALONG_K[types.a]
        problem = with_wrong_ends(
            wrong_ends, GroupsAlongK(types, [40] * 3, (72, 80), forms, spare=0)
        )
        args = problem.arguments(torch.empty(problem.shape, dtype=torch.bfloat16))
        for kernel in tried(args, turn):
            failures.append(check(kernel, None, problem, Form("t", multiple=8), f"{wrong_ends}"))
    finish(failures)


ADD = "def add(accum, C):\n    D = accum + C\n    return D\n"


def accumulation() -> None:
    """An epilogue that adds the product to the output in place; empty groups add zeros."""
    failures = []
    for turn, types in enumerate(NARROW):
        problem = GroupsAlongK(types, [0, 70, 50], (136, 136), FORMS_ALONG_K[types.a])
        before = torch.randn(problem.shape).to(types.out)
        out = Output(problem.shape, types.out, Form("t", multiple=8)).tensor
        args = problem.arguments(out, EpilogueArguments(ADD, C=out, D=out))
        expected = before.double() + problem.each(lambda a, b: a.double() @ b.double())
        for kernel in tried(args, turn):
            out.copy_(before)
            kernel.run(args)
            if not torch.allclose(out.double(), expected, rtol=0.01, atol=0.01):
                failures.append(kernel.metadata.kernel_name)
    finish(failures)


def scales_along_k() -> None:
    """The scales of `scaled_grouped_mm` with groups along K: of all, of groups, of rows and columns
    of each group, and of blocks, inside which groups begin and end. All pairs, or one of each kind:
    by sm90 and by simt in turn.
    """
    failures = []
    (m, n), sizes = (140, 152), [0, 100, 128, 0, 70]
    of_a = [(), (5, 1, 1), (5, m, 1), (m, 3), (2, 3)]
    of_b = [(), (5, 1, 1), (5, 1, n), (3, n), (3, 2)]
    turns = range(len(of_b) if SPARSE == 1 else 1)
    pairs = [(at, at + turn) for at in range(len(of_a)) for turn in turns]
    for of, (at, to) in enumerate(pairs):
        shapes = of_a[at], of_b[to % len(of_b)]
        types = NARROW[2 + at % 2]
        problem = GroupsAlongK(types, sizes, (m, n), FORMS_ALONG_K[types.a]).with_fast_sums
        depth = problem.a.shape[1]
        scales = [factors(*shape) for shape in shapes]
        operands, blocks = scaled_groups_along_k("", problem.a, problem.b, *scales, len(sizes))
        wide = [
            matrix.double() * (of_blocks(scale, matrix.shape) if factor in blocks else 1)
            for factor, scale, matrix in zip("ab", scales, (problem.a, problem.b), strict=True)
        ]
        spans = zip([0, *problem.ends[:-1]], problem.ends, strict=True)
        expected = torch.stack([wide[0][:, start:end] @ wide[1][start:end] for start, end in spans])
        for factor, scale in zip("ab", scales, strict=True):
            expected *= 1 if factor in blocks else scale.double()
        source = _epilogues.scaled(*operands, blocks=blocks)
        out = torch.empty(problem.shape, dtype=types.out)
        args = problem.arguments(out, EpilogueArguments(source, D=out, **operands))
        found = {"sm90": [], "simt": []}
        for kernel in cutlass_api.get_kernels(args):
            found.setdefault(family_of(kernel), []).append(kernel)
        assert depth == 317 and found["sm90"]
        every = found["sm90"][of % 2 :: 2] + found["simt"][:1]
        for kernel in every if SPARSE == 1 else [every[-(of % 2)]]:
            out.fill_(torch.nan)
            kernel.run(args)
            try:
                assert_close(out, expected)
            except AssertionError as error:
                failures.append(f"{kernel.metadata.kernel_name} {shapes}: {error}")
    finish(failures)


def two_products(has_index: bool = False) -> None:
    """All kernels, each with some of the cases; each case with some of the kernels."""
    failures = []
    for seed, (case, weights) in enumerate(zip(CASES, [*WEIGHTS, *WEIGHTS], strict=False)):
        trial = DualGroups(*case, weights, seed, has_index)
        kernels = trial.kernels()
        assert len(kernels) >= 3, trial.said
        for kernel in kernels[seed % 3 :: 9] if SPARSE > 1 else kernels:
            try:
                trial.check(kernel)
            except (AssertionError, RuntimeError) as error:
                failures.append(f"{kernel.metadata.kernel_name}, {trial.said}: {error}")
    finish(failures)


def gated_mlp() -> None:
    """Both launches, by each twelfth kernel, other ones in each case, if not all run."""
    failures = []
    for at, case in enumerate(mlp.CASES):
        try:
            mlp.check(case, *((2 * at % 12, 12) if SPARSE > 1 else ()))
        except (AssertionError, RuntimeError) as error:
            failures.append(f"{case}: {error}")
    finish(failures)


def rows_of_groups(has_index: bool = False) -> None:
    """Each case with one kernel: of sm90 with either schedule, or of another family."""
    failures = []
    for seed, case in enumerate(ROWS):
        # Kernels take an index for 16 bits and rows of whole 16 bytes.
        if has_index and (case[-1] not in (torch.bfloat16, torch.float16) or case[3] % 8):
            continue
        trial = GroupRows(*case, seed, has_index)
        kernels = cutlass_api.get_kernels(trial.args)
        schedules = {getattr(k.metadata.design, "schedule", family_of(k)): k for k in kernels}
        chosen = list(schedules.values())
        for kernel in chosen if SPARSE == 1 else [chosen[seed % len(chosen)]]:
            try:
                trial.check(kernel)
            except (AssertionError, RuntimeError) as error:
                failures.append(f"{kernel.metadata.kernel_name}, {trial.said}: {error}")
    finish(failures)


def masked() -> None:
    """A sample of the kernels with groups along M; then epilogues, two products, scales, and counts
    out of range.
    """
    kernels = kernels_of(GroupedGemmOperandsMetadata)
    along_m = [each for each in kernels if each.metadata.operands.offsets_along == "m"]
    trials = []
    for at, kernel in enumerate(few(along_m, grouped_parts)):
        trial = of_kernel(kernel, MASKED[at % len(MASKED)])
        trials.append((trial, [kernel], trial.arguments(), None))
    for has_product in (False, True):
        trial = MaskedGroups(HALF, *MASKED[0])
        trials.append((trial, *fused(trial, *with_epilogue(trial, has_product))))
    for blocks in (False, True):
        dtype = torch.float8_e4m3fn
        types = Types(dtype, dtype, torch.float32, torch.bfloat16)
        forms = (Form(multiple=16), Form("n", multiple=16), Form(multiple=8))
        trial = MaskedGroups(types, [0, 70, 37], 70, 152, 304, forms)
        trials.append((trial, *fused(trial, *with_scales(trial, blocks))))
    for counts in WRONG_COUNTS:
        trial = MaskedGroups(HALF, [0, 1, 2], 70, 72, 72)
        trial.set_counts(counts)
        trials.append((trial, *fused(trial, trial.arguments(), trial.wanted())))
    failures = []
    for at, (trial, chosen, args, wanted) in enumerate(trials):
        for kernel in chosen if SPARSE == 1 else [chosen[at % len(chosen)]]:
            try:
                trial.check(kernel, args, wanted)
            except (AssertionError, RuntimeError) as error:
                failures.append(f"{kernel.metadata.kernel_name}: {error}")
    finish(failures)


def fused(trial, args, wanted):
    """A kernel of each schedule of sm90, and the first of another family."""
    kernels = cutlass_api.get_kernels(args)
    assert family_of(kernels[0]) == "sm90"
    chosen = {getattr(k.metadata.design, "schedule", None): k for k in reversed(kernels)}
    return list(chosen.values()), args, wanted
