"""Grouped GEMM along K on the GPU, every kernel, against torch in float64.

Floats behind the last group are NaN, and outputs are filled with NaN.
"""

import random
from dataclasses import replace
from functools import partial
from itertools import accumulate

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import EpilogueArguments
from support import memory
from support.eight_bits import factors, of_blocks
from support.gpu_helpers import fail_with
from support.groups import (
    ENDS_OUT_OF_ORDER,
    FLOAT8,
    FORMS_ALONG_K,
    HALF,
    GroupsAlongK,
    fill_group,
    forms_of,
    grouped_kernels,
    with_wrong_ends,
)
from support.helpers import served
from support.memory import Form, Output
from support.problems import check
from support.properties import (
    Types,
    family_of,
    first_of_families,
    float32_precision,
    rounds_to_tf32,
)

pytestmark = pytest.mark.gpu

KERNELS = grouped_kernels("k")
#: Extents of K of the groups, M and N: empty groups first, last and in a row; one index; groups of
#: whole and of partial K blocks; more groups than a warp has lanes, and than eight views of them.
CASES = {
    "uneven": ([0, 1, 261, 0, 0, 64, 3, 128, 77, 0], 264, 136),
    "odd": ([131, 5, 0, 66], 259, 131),
    "one group": ([0, 300, 0], 520, 392),
    "many": ([(7 * group) % 5 if group % 9 else 0 for group in range(300)], 72, 40),
    "deep": ([1000, 24, 2000], 392, 264),
    "no K": ([0, 0, 0], 72, 136),
}
FORMS = FORMS_ALONG_K[HALF.a]
ALIGNED = Form("t", multiple=8)
narrow = pytest.mark.parametrize(
    "types",
    [replace(each, out=out) for each in (HALF, FLOAT8) for out in (HALF.out, torch.float32)],
    ids=str,
)


def bf16_problem(sizes, shape=(392, 264), **options) -> GroupsAlongK:
    return GroupsAlongK(HALF, sizes, shape, FORMS, **options)


def bf16_args(problem: GroupsAlongK, out: torch.Tensor | None = None):
    if out is None:
        out = torch.empty(problem.shape, dtype=torch.bfloat16, device=memory.DEVICE)
    return problem.arguments(out)


@pytest.mark.parametrize(("family", "types"), KERNELS, ids=str)
def test_every_kernel(family: str, types: Types, artifacts) -> None:
    problems: dict[object, GroupsAlongK] = {}
    failures = []
    kernels = KERNELS[family, types]
    for kernel, artifact in zip(kernels, artifacts.of(kernels), strict=True):
        if isinstance(artifact, Exception):
            failures.append(f"{kernel.metadata.kernel_name}: does not compile: {artifact}")
            continue
        *forms, out_form = forms_of(kernel)
        tf32 = rounds_to_tf32(kernel)
        for what, (sizes, m, n) in CASES.items():
            m, n, _ = served(kernel, m, n, 1)
            spare = 0 if what == "no K" else 19
            key = (what, m, n, *forms, tf32)
            with float32_precision("high" if tf32 else "highest"):
                if key not in problems:
                    problems[key] = GroupsAlongK(types, sizes, (m, n), forms, tf32, spare)
                for form in dict.fromkeys([out_form, ALIGNED]):
                    failures.append(check(kernel, artifact, problems[key], form, f"{what} {form}"))
    fail_with([failure for failure in failures if failure])


def test_any_groups(artifacts) -> None:
    """The kernel that ranks first, on random sizes, layouts and alignments."""
    chance = random.Random(5)
    failures = []
    for _ in range(150):
        types = chance.choice([HALF, HALF, *(types for _, types in KERNELS)])
        most = chance.choice([4, 70, 300])
        sizes = [
            chance.choice([0, 1, chance.randint(0, most)]) for _ in range(chance.randint(1, 40))
        ]
        m, n = (
            chance.choice([8 * chance.randint(1, 40), chance.randint(1, 300)]) for _ in range(2)
        )
        forms = [
            Form(
                chance.choice(letters),
                multiple=chance.choice([1, 8, 16]),
                offset=chance.choice([0, 0, 0, 1, 8]),
            )
            for letters in ("nnt", "ttn", "ttn")
        ]
        problem = GroupsAlongK(types, sizes, (m, n), forms[:2])
        args = problem.arguments(Output(problem.shape, types.out, forms[2]).tensor)
        with float32_precision("highest"):
            kernel = cutlass_api.get_kernels(args)[0]
        failures.append(
            check(kernel, artifacts.of([kernel])[0], problem, forms[2], f"{sizes} {m} {n} {forms}")
        )
    fail_with([failure for failure in failures if failure])


@narrow
def test_nan_in_a_group_stays_in_it(types: Types) -> None:
    """Every kernel of sm90, which overwrites the K of other groups in shared memory."""
    sizes = [70, 50, 64, 1, 200, 63, 65, 129]
    forms = FORMS_ALONG_K[types.a]
    problem = GroupsAlongK(types, sizes, (392, 520), forms).with_fast_sums
    for group in (1, 3, 5):
        fill_group(problem, group, torch.nan)
    out = Output(problem.shape, types.out, ALIGNED).tensor
    args = problem.arguments(out)
    expected = problem.each(lambda a, b: a.double() @ b.double())
    kernels = [each for each in cutlass_api.get_kernels(args) if family_of(each) == "sm90"]
    assert kernels or cutlass_api.utils.device_cc() != 90
    for kernel in [*kernels, *first_of_families(args)]:
        artifact = kernel.compile(args)
        for _ in range(20):
            out.fill_(0)
            kernel.run(args, artifact)
            torch.testing.assert_close(
                out.double(),
                expected,
                rtol=0.02,
                atol=0.1,
                equal_nan=True,
                msg=partial("{}: {}".format, kernel.metadata.kernel_name),
            )


def test_offsets_change_between_replays_of_a_graph() -> None:
    problem = bf16_problem([100, 0, 31, 200, 64], spare=0)
    out = torch.empty(problem.shape, dtype=torch.bfloat16, device=memory.DEVICE)
    args = problem.arguments(out)
    families = set()
    for kernel in first_of_families(args):
        families.add(family_of(kernel))
        artifact = kernel.compile(args)
        kernel.run(args, artifact)  # the first launch loads the program
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel.run(args, artifact)
        for sizes in ([100, 0, 31, 200, 64], [0, 0, 0, 0, 395], [1, 2, 3, 4, 5], [0] * 5, [79] * 5):
            problem.ends = list(accumulate(sizes))
            problem.offsets.copy_(torch.tensor(problem.ends, dtype=torch.int32))
            out.fill_(float("nan"))
            graph.replay()
            expected = problem.each(lambda a, b: a.double() @ b.double())
            torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.1)
    assert families == {"sm90", "sm80", "simt"}


def test_offsets_change_between_launches_that_follow_each_other() -> None:
    """The next grid may start early, but must read offsets written between the two launches."""
    problem = bf16_problem([100, 0, 31, 200, 64], (64, 64), spare=0)
    chance = random.Random(3)
    dealt = [sorted(chance.randint(0, 395) for _ in range(5)) for _ in range(100)]
    ends = torch.tensor(dealt, dtype=torch.int32, device=memory.DEVICE)
    outs = torch.full(
        (100, *problem.shape), float("nan"), dtype=torch.bfloat16, device=memory.DEVICE
    )
    kernel = cutlass_api.get_kernels(problem.arguments(outs[0]))[0]
    calls = [problem.arguments(out) for out in outs]
    artifact = kernel.compile(calls[0])
    torch.cuda.synchronize()
    for call, wanted in zip(calls, ends, strict=True):
        problem.offsets.copy_(wanted)
        kernel.run(call, artifact, assume_supported_args=True)
    for out, own_ends in zip(outs, dealt, strict=True):
        problem.ends = own_ends
        expected = problem.each(lambda a, b: a.double() @ b.double())
        torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("wrong_ends", ENDS_OUT_OF_ORDER, ids=str)
def test_offsets_out_of_order_are_clamped(wrong_ends) -> None:
    problem = with_wrong_ends(wrong_ends, bf16_problem([100, 100, 100], spare=0))
    failures = []
    for form in (ALIGNED, Form("t", pad=3)):
        out = Output(problem.shape, torch.bfloat16, form).tensor
        for kernel in first_of_families(problem.arguments(out)):
            failures.append(check(kernel, None, problem, form, f"{wrong_ends} {form}"))
    fail_with([failure for failure in failures if failure])


def test_no_groups_and_no_outputs() -> None:
    for sizes, shape in (([], (64, 64)), ([3, 4], (0, 64)), ([3, 4], (64, 0))):
        problem = bf16_problem(sizes, shape)
        args = bf16_args(problem)
        for kernel in first_of_families(args):
            kernel.run(args)


@narrow
def test_accumulation_in_place_repeats_its_bits(types: Types) -> None:
    sizes, forms = [0, 500, 77, 1, 300], FORMS_ALONG_K[types.a]
    problem = GroupsAlongK(types, sizes, (520, 392), forms)
    before = torch.randn(problem.shape, device=memory.DEVICE).to(types.out)
    out = Output(problem.shape, types.out, ALIGNED).tensor
    add = "def add(accum, C):\n    D = accum + C\n    return D"
    args = problem.arguments(out, EpilogueArguments(add, C=out, D=out))
    expected = before.double() + problem.each(lambda a, b: a.double() @ b.double())
    for kernel in cutlass_api.get_kernels(args):
        artifact = kernel.compile(args)
        results = []
        for _ in range(3):
            out.copy_(before)
            kernel.run(args, artifact)
            results.append(out.clone())
        assert all(torch.equal(results[0], other) for other in results), kernel
        torch.testing.assert_close(results[0].double(), expected, rtol=0.02, atol=0.1)


@pytest.mark.parametrize("kind", ["rows", "blocks"])
def test_scaled_gradients_of_weights(kind: str) -> None:
    """Scales of rows and columns of each group, and of blocks, with groups of whole blocks."""
    sizes = [128, 0, 384, 256] if kind == "blocks" else [100, 0, 31, 200]
    problem = GroupsAlongK(FLOAT8, sizes, (264, 392), FORMS_ALONG_K[FLOAT8.a], spare=0)
    (m, depth), (_, n) = problem.a.shape, problem.b.shape
    if kind == "blocks":
        scale_a, scale_b = (factors(*of, device="cuda") for of in ((m, 6), (6, n)))
        of_groups = 1.0
        wide_a, wide_b = of_blocks(scale_a, (m, depth)), of_blocks(scale_b, (depth, n))
    else:
        scale_a, scale_b = (factors(*of, device="cuda") for of in ((4 * m,), (4 * n,)))
        of_groups = scale_a.double().view(4, m, 1) * scale_b.double().view(4, 1, n)
        wide_a = wide_b = torch.ones((), dtype=torch.float64, device="cuda")
    problem.a, problem.b, operands = (
        problem.a.double() * wide_a,
        problem.b.double() * wide_b,
        (problem.a, problem.b),
    )
    expected = problem.each(lambda a, b: a @ b) * of_groups
    for fast in (False, True):
        out = cutlass_api.scaled_grouped_mm(
            *operands, scale_a, scale_b, problem.offsets, use_fast_accum=fast
        )
        torch.testing.assert_close(out.double(), expected, rtol=0.02, atol=0.1)
