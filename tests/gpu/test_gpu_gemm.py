"""Every GPU kernel against torch in float64.

Outputs are filled with NaN and surrounded by guard bytes, inputs are surrounded by NaN. This
detects missing writes, writes outside the output, and products with values outside an input. One
test runs many kernels and shapes, and reports each failure with the kernel's name, the case and the
error.
"""

from itertools import product

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GemmArguments
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import memory
from support.gemms import (
    ALL_TYPES,
    GROUPS,
    SHAPES,
    THOROUGH,
    check_infinities,
    check_nothing,
    in_all_forms,
    make_problem,
    sample,
    try_all,
)
from support.gpu_helpers import fail_with
from support.helpers import INTEGERS, LAYOUTS, run_python, served
from support.memory import Form, Output, just_aligned
from support.problems import ROUNDOFF, Problem, check, exact_integer_product
from support.properties import (
    Types,
    float32_precision,
    from_registers,
    layouts_of,
    rounds_to_tf32,
    splits_over_cluster,
)

pytestmark = pytest.mark.gpu


def parts_of(family: str, types: Types) -> list[tuple[str, list[cutlass_api.Kernel]]]:
    """A group, or five parts of a large group for parallel workers. Kernels that share a program,
    as those of transposed products do, have the same sum of tile extents, and so the same part.
    """
    kernels = GROUPS[family, types]
    count = 5 if len(kernels) > 300 else 1
    parts = [
        [k for k in kernels if sum(k.metadata.design.tile_shape) // 8 % count == at]
        for at in range(count)
    ]
    return [
        (f"{family}-{types}" + (f"-{at}" if count > 1 else ""), part)
        for at, part in enumerate(parts)
    ]


@pytest.mark.parametrize(
    ("family", "types", "group"),
    [pytest.param(*key, part, id=name) for key in GROUPS for name, part in parts_of(*key)],
)
def test_every_kernel(
    family: str, types: Types, group: list[cutlass_api.Kernel], artifacts
) -> None:
    """An aligned shape, an odd shape larger than a tile, and a batch; inputs have the minimum
    alignment.
    """
    cases = [("aligned", (192, 320, 256)), ("odd", (387, 259, 131)), ("batch", (3, 67, 45, 39))]
    if family == "skinny":  # whose blocks of K are long, and many are on their way at once
        cases += [("deep", (320, 320, 4999)), ("fewer", (3, 3, 700))]
    problems: dict[object, Problem] = {}
    failures = []
    for kernel, artifact in zip(group, artifacts.of(group), strict=True):
        if isinstance(artifact, Exception):
            failures.append(f"{kernel.metadata.kernel_name}: does not compile: {artifact}")
            continue
        operands = kernel.metadata.operands
        load_bytes = [operands.A.ptr_alignment_bytes, operands.B.ptr_alignment_bytes, 1]
        tf32 = rounds_to_tf32(kernel)
        # `get_kernels` offers a cluster split for few tiles only, because more fill the chip
        # without one. A launch computes more tiles, too, and small tiles make many of these shapes.
        beyond_range = splits_over_cluster(kernel)
        with float32_precision("high" if tf32 else "highest"):
            for (case, wanted), layout in product(cases, layouts_of(kernel)):
                shape = (*wanted[:-3], *served(kernel, *wanted[-3:]))
                if case == "aligned":
                    forms = [Form(order) for order in layout]
                else:
                    sides = (types.a, types.b, types.out)
                    forms = [
                        just_aligned(*side) for side in zip(layout, sides, load_bytes, strict=True)
                    ]
                if operands.out.divisibility > 1:
                    forms[2] = Form(layout[2], multiple=operands.out.divisibility)
                else:  # it may be anywhere: its rows are never aligned
                    forms[2] = Form(
                        layout[2],
                        pad=3 if case == "odd" else 0,
                        offset=0 if case == "aligned" else 1,
                    )
                key = (shape, *forms[:2])
                if key not in problems:
                    problems[key] = make_problem(types, shape, *forms[:2], tf32)
                what = f"{case} {shape} {layout}"
                failure = check(kernel, artifact, problems[key], forms[2], what, beyond_range)
                if failure:
                    failures.append(failure)
    fail_with(failures)


@pytest.mark.parametrize("pad", [0, 3], ids=["aligned", "unaligned"])
def test_tiles_that_follow_each_other(pad: int, artifacts) -> None:
    """More tiles than run at once, with small K: a tile must not overwrite another that is being
    stored.
    """
    types = Types(torch.float16, torch.float16, torch.float32, torch.float16)
    kernels = [
        kernel
        for kernel in GROUPS.get(("sm90", types), [])
        if layouts_of(kernel) == ["ttt"]
        and kernel.metadata.design.split == 1  # a split of K is for few tiles
    ]
    problem = make_problem(types, (1501, 8192, 64), Form(), Form())
    failures = [
        check(kernel, artifact, problem, Form(pad=pad), "1501x8192x64")
        for kernel, artifact in zip(kernels, artifacts.of(kernels), strict=True)
        if not isinstance(artifact, Exception)  # `test_every_kernel` reports it
    ]
    fail_with([failure for failure in failures if failure])


@pytest.mark.parametrize(
    "m, n, k", [(328, 1536, 4096), (584, 1856, 3072), (1016, 1000, 4096), (1024, 1024, 4096)]
)
def test_a_tile_for_each_multiprocessor(m: int, n: int, k: int, artifacts) -> None:
    """Kernels without clusters, on operands with rows aligned to cache lines: tiles are ordered by
    GPC.
    """
    types = Types(torch.float16, torch.float16, torch.float32, torch.float16)
    kernels = [
        kernel
        for kernel in GROUPS.get(("sm90", types), [])
        if layouts_of(kernel) == ["tnt"]
        and kernel.metadata.design.cluster_shape == (1, 1, 1)
        and not kernel.metadata.design.over_grid
    ]
    problem = make_problem(types, (m, n, k), Form("t"), Form("n"))
    failures = [
        check(kernel, artifact, problem, Form(), f"{m}x{n}x{k}")
        for kernel, artifact in zip(kernels, artifacts.of(kernels), strict=True)
        if not isinstance(artifact, Exception)  # `test_every_kernel` reports it
    ]
    assert len(failures) > 20 or not kernels
    fail_with([failure for failure in failures if failure])


def test_clusters_that_overhang_stay_in_step() -> None:
    """Thousands of launches with operands larger than L2, where some tiles of a cluster lie outside
    the output. CTAs of such tiles receive no data and must still wait for the others; otherwise a
    launch can hang. Hence the subprocess with a time limit.
    """
    if cutlass_api.utils.device_cc() // 10 != 9:
        pytest.skip("sm90 is for Hopper")
    code = """
    from concurrent.futures import ThreadPoolExecutor
    from math import prod

    import cutlass_api
    import torch
    from cutlass_api.arguments import GemmArguments

    half = {"dtype": torch.float16, "device": "cuda"}
    for m, n, k in [(576, 360, 5888), (312, 952, 2952)]:
        sets = [
            (torch.randn(m, k, **half), torch.randn(k, n, **half), torch.empty(m, n, **half))
            for _ in range(10)
        ]
        all_args = [GemmArguments(*one_set, torch.float32) for one_set in sets]
        kernels = [
            kernel
            for kernel in cutlass_api.get_kernels(all_args[0])
            if kernel.metadata.kernel_name.startswith("sm90")
            and prod(kernel.metadata.design.cluster_shape) > 1
        ][:40]
        with ThreadPoolExecutor() as pool:
            artifacts = list(pool.map(lambda kernel: kernel.compile(all_args[0]), kernels))
        for kernel, artifact in zip(kernels, artifacts, strict=True):
            size = kernel.get_workspace_size(all_args[0])
            workspace = torch.empty(size, dtype=torch.uint8, device="cuda") if size else None
            run = lambda: [kernel.run(args, artifact, workspace=workspace) for args in all_args]
            run()
            first = [out.clone() for *_, out in sets]
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                run()
            for *_, out in sets:
                out.fill_(torch.nan)
            for _ in range(100):
                graph.replay()
            torch.cuda.synchronize()
            same = [torch.equal(out, result) for (*_, out), result in zip(sets, first, strict=True)]
            assert all(same), kernel.metadata.kernel_name
        print(len(kernels))
    """
    assert run_python(code, timeout=180).split() == ["40", "40"]


@pytest.mark.parametrize("types", ALL_TYPES, ids=str)
def test_shapes(types: Types, artifacts) -> None:
    """Every shape, in every layout for some types and in three for the others."""
    failures = []
    for shape, layout in product(SHAPES, LAYOUTS if types in THOROUGH else ["ttt", "tnn", "ntt"]):
        forms = {"tight": in_all_forms(layout, len(shape) == 4)["tight"]}
        failures += try_all(types, shape, forms, layout, artifacts, tf32=False)
    fail_with(failures)


@pytest.mark.parametrize("types", THOROUGH, ids=str)
def test_views(types: Types, artifacts) -> None:
    """Gaps, offsets, no unit strides, strides of 0, batches that overlap."""
    failures = []
    for shape, layout in product([(67, 131, 61), (3, 37, 53, 29)], LAYOUTS):
        forms = in_all_forms(layout, len(shape) == 4)
        failures += try_all(types, shape, forms, layout, artifacts, tf32=False)
    fail_with(failures)


# ---- tf32 ----------------------------------------------------------------------------------------

FLOAT32 = Types(torch.float32, torch.float32, torch.float32, torch.float32)


@pytest.mark.skipif(("sm80", FLOAT32) not in GROUPS, reason="there is no tf32 kernel")
def test_tf32_over_all_shapes_and_views(artifacts) -> None:
    failures = []
    with float32_precision("high"):
        for shape, layout in product(SHAPES, LAYOUTS):
            forms = in_all_forms(layout, len(shape) == 4)
            if shape not in {(67, 131, 61), (5, 130, 67, 24)}:
                forms = {"tight": forms["tight"]}
            failures += try_all(FLOAT32, shape, forms, layout, artifacts, tf32=True)
    fail_with(failures)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout[:2] != "tn"])
def test_tf32_operands_from_registers(layout: str, artifacts) -> None:
    """Whole tiles and remainders, batches, small and zero K; aligned and unaligned output rows."""
    failures = []
    shapes = [(776, 1032, 200), (3, 260, 388, 68), (64, 128, 4), (2, 132, 68, 0)]
    for shape, loose in product(shapes, (False, True)):
        batches = "same" if loose and len(shape) == 4 else "apart"
        forms = [
            Form(layout[0], multiple=4, offset=4, batches=batches),
            Form(layout[1], multiple=4, pad=4),
        ]
        out_form = Form(layout[2], pad=3, offset=1) if loose else Form(layout[2], multiple=4)
        problem = make_problem(FLOAT32, shape, *forms, tf32=True)
        out = Output(problem.shape, torch.float32, out_form)
        with float32_precision("high"):
            found = cutlass_api.get_kernels(
                GemmArguments(problem.a, problem.b, out.tensor, torch.float32)
            )
            kernels = [kernel for kernel in found if from_registers(kernel)]
            assert len({kernel.metadata.design.tile_shape for kernel in kernels}) >= 3, (
                layout,
                shape,
            )
            for kernel, artifact in zip(kernels, artifacts.of(kernels), strict=True):
                failure = check(
                    kernel, artifact, problem, out_form, f"{shape} {layout} loose {loose}"
                )
                if failure:
                    failures.append(failure)
    fail_with(failures)


# ---- properties of some types --------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtypes", [(torch.int8,) * 2, (torch.uint8,) * 2, (torch.int8, torch.uint8)], ids=str
)
def test_integer_sums_wrap_around(dtypes, artifacts) -> None:
    """Like torch's sums: modulo 2^32, without saturation. Only large numbers over a long K reach
    2^31.
    """
    extreme = {torch.int8: -128, torch.uint8: 255}
    m, n, k = 17, 33, 140_000
    a = torch.full((m, k), extreme[dtypes[0]], dtype=dtypes[0], device=memory.DEVICE)
    b = torch.full((n, k), extreme[dtypes[1]], dtype=dtypes[1], device=memory.DEVICE).mT
    expected = exact_integer_product(a, b)
    assert abs(extreme[dtypes[0]] * extreme[dtypes[1]]) * k > 2**31
    chosen = sample(
        cutlass_api.get_kernels(GemmArguments(a, b, expected.clone(), accumulator_type=torch.int32))
    )
    for kernel, artifact in zip(chosen, artifacts.of(chosen), strict=True):
        out = torch.full((m, n), 0x5A5A5A5A, dtype=torch.int32, device=memory.DEVICE)
        args = GemmArguments(a, b, out, accumulator_type=torch.int32)
        kernel.run(args, artifact)
        assert torch.equal(out, expected), kernel.metadata.kernel_name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_infinities_and_nans_stay_in_their_rows(dtype: torch.dtype) -> None:
    check_infinities(dtype)


@pytest.mark.parametrize("shape", [(0, 5, 7), (5, 0, 7), (0, 0, 0), (0, 5, 6, 7)], ids=str)
def test_nothing_to_compute_is_computed(shape) -> None:
    check_nothing(shape)


def test_results_are_the_same_bits_every_time(artifacts) -> None:
    types = Types(torch.float16, torch.float16, torch.float32, torch.float32)
    problem = make_problem(types, (517, 389, 771), Form(), Form(multiple=16))
    for kernel in sample(
        cutlass_api.get_kernels(
            GemmArguments(
                problem.a,
                problem.b,
                Output(problem.shape, types.out, Form()).tensor,
                accumulator_type=types.accumulator,
            )
        )
    ):
        results = []
        for _ in range(5):
            out = Output(problem.shape, types.out, Form()).tensor
            args = GemmArguments(problem.a, problem.b, out, accumulator_type=types.accumulator)
            kernel.run(args, artifacts.of([kernel])[0])
            results.append(out)
        assert all(torch.equal(result, results[0]) for result in results), (
            kernel.metadata.kernel_name
        )


@pytest.mark.parametrize("layout", ["tt", "tn", "nt"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_kernel_for_few_rows_computes_every_row_of_many(dtype, layout: str, artifacts) -> None:
    """Code compiled for one size runs at others with `assume_supported_args`."""
    types = Types(dtype, dtype, torch.float32, dtype)

    def problem_of(m: int) -> Problem:
        return make_problem(types, (m, 1032, 2112), *(Form(order) for order in layout))

    def arguments(problem: Problem) -> tuple[GemmArguments, Output]:
        output = Output(problem.shape, dtype, Form())
        return GemmArguments(problem.a, problem.b, output.tensor, torch.float32), output

    few, _ = arguments(problem_of(16))
    many = [problem_of(m) for m in (1000, 4096)]
    kernels = [
        kernel
        for kernel in cutlass_api.get_kernels(few)
        if any(not kernel.supports(arguments(problem)[0]) for problem in many)
    ]
    hopper = cutlass_api.utils.device_cc() // 10 == 9
    assert len(kernels) >= (10 if hopper and dtype != torch.float32 else 3)
    failures = []
    for kernel, artifact in zip(kernels, artifacts.of(kernels), strict=True):
        for problem in many:
            args, output = arguments(problem)
            size = kernel.get_workspace_size(few)
            workspace = torch.empty(size, dtype=torch.uint8, device=memory.DEVICE)
            kernel.run(
                args,
                artifact,
                workspace=workspace if size else None,
                assume_supported_args=True,
            )
            torch.cuda.synchronize()
            error = problem.error(output.tensor)
            if not (error <= problem.limit and output.intact_around()):
                failures.append(f"{kernel.metadata.kernel_name} {problem.shape}: {error:.3e}")
    fail_with(failures)


# ---- random problems -----------------------------------------------------------------------------

extents = st.one_of(
    st.integers(1, 40), st.integers(1, 300), st.sampled_from([16, 32, 64, 128, 256])
)
forms = st.builds(
    Form,
    order=st.sampled_from("tn"),
    multiple=st.sampled_from([1, 2, 4, 8, 16]),
    pad=st.integers(0, 9),
    offset=st.sampled_from([0, 0, 1, 2, 4, 8, 16, 3]),
    step=st.sampled_from([1, 1, 1, 1, 2, 3]),
    broadcast=st.sampled_from([(), (), (), (), (-1,), (-2,), (-1, -2)]),
    batches=st.sampled_from(["apart", "apart", "same", "overlapping"]),
)
#: Layouts of outputs, in which no two indices address the same element.
output_forms = st.builds(
    Form,
    order=st.sampled_from("tn"),
    multiple=st.sampled_from([1, 2, 8]),
    pad=st.integers(0, 9),
    offset=st.integers(0, 17),
    step=st.sampled_from([1, 1, 2, 3]),
)


@settings(
    max_examples=400,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    types=st.sampled_from(ALL_TYPES),
    batch=st.one_of(st.none(), st.integers(1, 5)),
    m=extents,
    n=extents,
    k=st.one_of(extents, st.integers(0, 3)),
    a_form=forms,
    b_form=forms,
    out_form=output_forms,
)
def test_anything(artifacts, types, batch, m, n, k, a_form, b_form, out_form) -> None:
    """The kernel that ranks first, on problems that hypothesis generates."""
    shape = (m, n, k) if batch is None else (batch, m, n, k)
    with float32_precision("highest"):
        problem = make_problem(types, shape, a_form, b_form)
        out = Output(problem.shape, types.out, out_form)
        args = GemmArguments(problem.a, problem.b, out.tensor, accumulator_type=types.accumulator)
        kernels = cutlass_api.get_kernels(args)
        assert kernels, "no kernel serves this"
        (artifact,) = artifacts.of(kernels[:1])
        assert not isinstance(artifact, Exception), artifact
        failure = check(
            kernels[0], artifact, problem, out_form, f"{shape} {a_form} {b_form} {out_form}"
        )
    assert failure is None, failure


def test_every_type_is_covered() -> None:
    """Every element type takes part; integers are compared exactly, floats by error."""
    seen = {dtype for types in ALL_TYPES for dtype in (types.a, types.b, types.out)}
    assert seen == {*INTEGERS, *ROUNDOFF}
    assert len(THOROUGH) == 10
