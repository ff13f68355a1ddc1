"""Grouped GEMM along M on the GPU, every kernel, against torch in float64.

The output and A have rows behind those of the last group, and outputs are filled with NaN: a write
beyond the last group's end is detected. A write beyond another group's end may not be, because the
next group overwrites it.
"""

import random
from itertools import accumulate

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import EpilogueArguments
from support import memory
from support.gpu_helpers import fail_with
from support.group_rows import CASES as CASES_OF_ROWS
from support.group_rows import GroupRows
from support.groups import (
    ENDS_OUT_OF_ORDER,
    HALF,
    GroupedProblem,
    bf16_problem,
    check_no_groups,
    forms_of,
    grouped_kernels,
)
from support.helpers import run_python, served
from support.memory import Form, Output
from support.problems import check
from support.properties import (
    Types,
    family_of,
    first_of_families,
    float32_precision,
)

pytestmark = pytest.mark.gpu


KERNELS = grouped_kernels("m")


#: Group sizes, N and K: more groups than threads in a warp; empty groups first, last and in a row;
#: one row.
CASES = {
    "uneven": ([0, 1, 261, 0, 0, 64, 3, 128, 77, 0], 264, 136),
    "odd": ([131, 5, 0, 66], 259, 131),
    "one group": ([300], 200, 72),
    "many": ([(7 * group) % 5 if group % 9 else 0 for group in range(150)], 72, 40),
    "no K": ([3, 70, 0], 72, 0),
}


@pytest.mark.parametrize("case", CASES_OF_ROWS, ids=lambda case: f"{case[0].__name__} {case[1:]}")
def test_epilogues_with_rows_of_groups(case):
    for seed in (0, 1):  # outputs that TMA can address, and others
        trial = GroupRows(*case, seed)
        kernels = list(cutlass_api.get_kernels(trial.args))
        assert kernels
        for kernel in kernels:
            trial.check(kernel, kernel.compile(trial.args))


HALVES = [case for case in CASES_OF_ROWS if case[-1].itemsize == 2 and case[3] % 8 == 0]


@pytest.mark.parametrize("case", HALVES, ids=lambda case: f"{case[0].__name__} {case[1:]}")
def test_rows_by_an_index(case):
    if cutlass_api.utils.device_cc() // 10 != 9:
        pytest.skip("sm90 is for Hopper")
    for seed in (0, 1):
        trial = GroupRows(*case, seed, has_index=True)
        kernels = list(cutlass_api.get_kernels(trial.args))
        assert len(kernels) >= 3
        for kernel in kernels:
            trial.check(kernel, kernel.compile(trial.args))


@pytest.mark.parametrize(("family", "types"), KERNELS, ids=str)
def test_every_kernel(family: str, types: Types, artifacts) -> None:
    problems: dict[object, GroupedProblem] = {}
    failures = []
    kernels = KERNELS[family, types]
    for kernel, artifact in zip(kernels, artifacts.of(kernels), strict=True):
        if isinstance(artifact, Exception):
            failures.append(f"{kernel.metadata.kernel_name}: does not compile: {artifact}")
            continue
        a_form, b_form, out_form = forms_of(kernel)
        for what, (sizes, n, k) in CASES.items():
            _, n, k = served(kernel, 1, n, k)
            if (key := (what, n, k, a_form, b_form)) not in problems:
                problems[key] = GroupedProblem(types, sizes, n, k, a_form, b_form)
            # An output that TMA can address, and one that TMA cannot.
            for form in dict.fromkeys([out_form, Form("t", multiple=8)]):
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
        n, k = (
            chance.choice([8 * chance.randint(1, 40), chance.randint(1, 300)]) for _ in range(2)
        )
        forms = [
            Form(
                chance.choice("tn"),
                multiple=chance.choice([1, 8, 16]),
                offset=chance.choice([0, 0, 0, 1, 8]),
            )
            for _ in range(3)
        ]
        problem = GroupedProblem(types, sizes, n, k, *forms[:2], step=chance.choice([1, 1, 2]))
        problem.leading_one = chance.random() < 0.3
        args = problem.arguments(Output(problem.shape, types.out, forms[2]).tensor)
        with float32_precision("highest"):
            kernel = cutlass_api.get_kernels(args)[0]
        failures.append(
            check(kernel, artifacts.of([kernel])[0], problem, forms[2], f"{sizes} {n} {k} {forms}")
        )
    fail_with([failure for failure in failures if failure])


def test_offsets_change_between_replays_of_a_graph() -> None:
    problem = bf16_problem([100, 0, 31, 200, 64])
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
            torch.testing.assert_close(
                out[: problem.ends[-1]].double(), expected, rtol=0.02, atol=0.1
            )
            assert out[problem.ends[-1] :].isnan().all(), kernel.metadata.kernel_name
    assert families == {"sm90", "sm80", "simt"}


def test_offsets_change_between_launches_that_follow_each_other() -> None:
    """The next grid may start early, but must read data written between the two launches."""
    problem = bf16_problem([100, 0, 31, 200, 64], n=64, k=64)
    rows = problem.shape[0]
    chance = random.Random(3)
    dealt = [sorted(chance.randint(0, rows) for _ in range(5)) for _ in range(100)]
    ends = torch.tensor(dealt, dtype=torch.int32, device=memory.DEVICE)
    outs = torch.full(
        (100, *problem.shape), float("nan"), dtype=torch.bfloat16, device=memory.DEVICE
    )
    (kernel, *_) = cutlass_api.get_kernels(problem.arguments(outs[0]))
    calls = [problem.arguments(out) for out in outs]
    artifact = kernel.compile(calls[0])
    torch.cuda.synchronize()
    for call, wanted in zip(calls, ends, strict=True):
        problem.offsets.copy_(wanted)
        kernel.run(call, artifact, assume_supported_args=True)
    for out, own_ends in zip(outs, dealt, strict=True):
        problem.ends = own_ends
        expected = problem.each(lambda a, b: a.double() @ b.double())
        torch.testing.assert_close(out[: own_ends[-1]].double(), expected, rtol=0.02, atol=0.1)
        assert out[own_ends[-1] :].isnan().all()


@pytest.mark.parametrize("wrong_ends", ENDS_OUT_OF_ORDER, ids=str)
def test_whatever_offsets_say_nothing_outside_the_output_is_written(wrong_ends) -> None:
    """Kernels clamp an offset to the range from its predecessor to the number of rows."""
    problem = bf16_problem([100, 100, 100])
    problem.offsets.copy_(torch.tensor(wrong_ends, dtype=torch.int32))
    problem.ends = [min(max(0, *wrong_ends[: at + 1]), problem.shape[0]) for at in range(3)]
    problem.rows = problem.ends[-1]
    failures = []
    for form in (Form("t", multiple=8), Form("t", pad=3)):
        for kernel in first_of_families(
            problem.arguments(Output(problem.shape, torch.bfloat16, form).tensor)
        ):
            failures.append(check(kernel, None, problem, form, f"{wrong_ends} {form}"))
    fail_with([failure for failure in failures if failure])


def test_no_groups_and_no_rows() -> None:
    check_no_groups()


def test_an_epilogue_sees_rows_of_the_whole_output() -> None:
    problem = bf16_problem([100, 0, 31, 200])
    rows, n = problem.shape
    device = memory.DEVICE
    bias, scale = torch.randn(n, device=device), torch.rand(rows, 1, device=device)
    residual = torch.randn(rows, n, device=device).bfloat16()
    out, kept = (
        torch.full(problem.shape, float("nan"), dtype=torch.bfloat16, device=device)
        for _ in range(2)
    )

    def fuse(accum, bias, scale, residual):
        kept = accum * scale
        D = torch.relu(kept + bias) + residual
        return D, kept

    epilogue = EpilogueArguments(fuse, bias=bias, scale=scale, residual=residual, D=out, kept=kept)
    args = problem.arguments(out, epilogue)
    product = problem.each(lambda a, b: a.double() @ b.double())
    last = problem.rows
    families = set()
    for kernel in first_of_families(args):
        families.add(family_of(kernel))
        out.fill_(float("nan"))
        kept.fill_(float("nan"))
        kernel.run(args)
        scaled = product * scale[:last].double()
        torch.testing.assert_close(kept[:last].double(), scaled, rtol=0.02, atol=0.1)
        expected = torch.relu(scaled + bias.double()) + residual[:last].double()
        torch.testing.assert_close(out[:last].double(), expected, rtol=0.02, atol=0.1)
        assert out[last:].isnan().all() and kept[last:].isnan().all(), kernel.metadata.kernel_name
    assert families == {"sm90", "sm80", "simt"}


def test_warps_that_store_unevenly_stay_in_step() -> None:
    """Thousands of launches in which a warpgroup stores few rows of one tile and none of the next,
    so that its warps are not synchronized by a product. If the warps diverge, a launch can hang.
    Hence the subprocess with a time limit.
    """
    if cutlass_api.utils.device_cc() // 10 != 9:
        pytest.skip("sm90 is for Hopper")
    code = """
    import random
    from concurrent.futures import ThreadPoolExecutor

    import cutlass_api
    import torch
    from cutlass_api.arguments import EpilogueArguments, GroupedGemmArguments

    half = {"dtype": torch.bfloat16, "device": "cuda"}
    chance = random.Random(7)
    sizes = [chance.randint(*chance.choice([(1, 64), (65, 127), (129, 191)])) for _ in range(300)]
    ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
    rows, n, k = sum(sizes), 264, 1024
    a, b, out = (
        torch.randn(rows, k, **half),
        torch.randn(300, k, n, **half),
        torch.empty(rows, n, **half),
    )
    add = "def add(accum, table):\\n    D = accum + table\\n    return D"
    fused = EpilogueArguments(add, table=torch.randn(n, rows, device="cuda").T, D=out)
    for epilogue in (None, fused):
        args = GroupedGemmArguments(a, b, out, torch.float32, ends, epilogue)
        kernels = [
            kernel
            for kernel in cutlass_api.get_kernels(args)
            if kernel.metadata.kernel_name.startswith("sm90")
            and kernel.metadata.design.schedule == "cooperative"
            and kernel.metadata.design.consumers > 1
        ]
        with ThreadPoolExecutor() as pool:
            artifacts = list(pool.map(lambda kernel: kernel.compile(args), kernels))
        for kernel, artifact in zip(kernels, artifacts, strict=True):
            kernel.run(args, artifact)
            first = out.clone()
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                for _ in range(20):
                    kernel.run(args, artifact)
            out.fill_(torch.nan)
            for _ in range(50):
                graph.replay()
            torch.cuda.synchronize()
            assert torch.equal(out, first), kernel.metadata.kernel_name
        print(len(kernels))
    """
    assert run_python(code, timeout=120).split() == ["3", "3"]
