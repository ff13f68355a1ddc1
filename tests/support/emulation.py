"""Tests of kernels in a process without a GPU, whose launches the emulator executes.

test_emulated.py runs each function in a process of its own. The functions use the operands, limits
and checks of the GPU tests, on smaller problems. Of the kernels that a function names, one of
`SPARSE` runs.
"""

import gc
import json
from collections.abc import Callable, Iterable, Iterator
from math import prod

import cutlass_api
import torch
from cutlass_api import cuda_kernel
from cutlass_api.arguments import GemmArguments
from cutlass_api.bench import ladder as steps
from cutlass_api.metadata import (
    GemmOperandsMetadata,
    GroupedGemmOperandsMetadata,
    SimtDesignMetadata,
)
from stand_in import device
from stand_in.emulated import operand

from support import memory, problems, sums
from support.epilogue_trials import DUAL, DualTrial, Trial
from support.epilogues import CASES, REDUCTIONS
from support.gemms import (
    SHAPES,
    THOROUGH,
    check_infinities,
    check_nothing,
    in_all_forms,
    make_problem,
    try_all,
)
from support.gpu_helpers import fail_with
from support.groups import GroupedProblem, check_no_groups, forms_of
from support.helpers import DTYPES, LAYOUTS, served
from support.memory import Form, Output, just_aligned, random_operand
from support.problems import check
from support.properties import (
    SPARSE,
    every_kernel,
    family_of,
    first_of_families,
    float32_precision,
    from_registers,
    layouts_of,
    rounds_to_tf32,
    sample,
    some,
    types_of,
)

# The collector need not look at what the imports made.
gc.freeze()
memory.DEVICE = torch.device("cpu")
# A launch that fails leaves the emulator usable.
problems.FATAL = ()

Kernel = cutlass_api.Kernel


def parts(kernel: Kernel) -> Iterator[object]:
    """What a sample has at least once, for each family: the types of products and of results, each
    layout for each width of A, orders of A and B for their types, and the parts of designs: the
    tile with what divides it among warps, the cluster with what adds up its sums, and how operands
    are loaded. Stages and the tile's extent along K follow from these and the types.
    """
    family, types, design = family_of(kernel), types_of(kernel), kernel.metadata.design
    is_swapped = getattr(design, "swapped", False)
    yield family, types.a, types.b, types.accumulator, is_swapped
    yield family, types.accumulator, types.out
    for layout in layouts_of(kernel):
        yield family, types.a.itemsize, layout
        yield family, types.a, types.b, layout[:2]
    if family == "sm90":
        yield family, design.tile_shape[:2], design.schedule, design.consumers
        yield family, design.cluster_shape, design.split, design.over_grid
        yield family, design.packed, design.load_bytes, is_swapped
        yield family, design.schedule, design.consumers, design.split, design.fast_sums, is_swapped
    elif family == "skinny":
        yield family, design.tile_shape[:2], design.warp_shape, design.narrow
        yield family, design.cluster_shape, design.narrow
        yield family, design.load_bytes, design.narrow
    else:
        yield family, design.tile_shape, design.cluster_shape
        yield family, type(design), design.tile_shape[:2], getattr(design, "load_bytes", None)
    if from_registers(kernel):
        yield design.tile_shape, is_swapped


def few(kernels: Iterable[Kernel], parts: Callable[[Kernel], Iterable[object]]) -> list[Kernel]:
    """A few kernels that together have every part, or some of these."""
    chosen = sample([[kernel] for kernel in kernels], parts, steps=range(8, 0, -1))
    return [kernel for (kernel,) in chosen[::SPARSE]]


def kernels_of(operands: type) -> list[Kernel]:
    """The kernels for an H100 whose operands' metadata are of a kind."""
    return [each for each in every_kernel(90) if isinstance(each.metadata.operands, operands)]


def layout_of(kernel: Kernel, at: int) -> str:
    """One of a kernel's layouts."""
    layouts = layouts_of(kernel)
    return layouts[at % len(layouts)]


def designs(part: int, count: int) -> None:
    """One part of a sample of all kernels."""
    kernels = few(kernels_of(GemmOperandsMetadata), parts)
    finish([check_design(kernel, at) for at, kernel in list(enumerate(kernels))[part::count]])


def check_design(kernel: Kernel, at: int) -> str | None:
    """The failure of a kernel on a problem with partial tiles, or on a batch. Operands have the
    alignment that the kernel requires and no more.
    """
    types, operands = types_of(kernel), kernel.metadata.operands
    if isinstance(kernel.metadata.design, SimtDesignMetadata):  # several K blocks for each split
        wanted = (2, 35, 20, 137) if at % 4 == 0 else (67, 35, 203)
    elif family_of(kernel) == "simt":  # executes many instructions for each product
        wanted = (2, 35, 20, 17) if at % 4 == 0 else (67, 35, 41)
    else:
        wanted = (2, 67, 45, 39) if at % 4 == 0 else (131, 67, 75)
    shape = (*wanted[:-3], *served(kernel, *wanted[-3:]))
    load_bytes = (operands.A.ptr_alignment_bytes, operands.B.ptr_alignment_bytes)
    layout = layout_of(kernel, at)
    a_form, b_form = map(just_aligned, layout[:2], (types.a, types.b), load_bytes)
    multiple = operands.out.divisibility
    out_form = Form(layout[2], multiple=multiple, pad=0 if multiple > 1 else 3)
    tf32 = rounds_to_tf32(kernel)
    with float32_precision("high" if tf32 else "highest"):
        problem = make_problem(types, shape, a_form, b_form, tf32)
        return check(kernel, None, problem, out_form, f"{shape} {layout}")


def on_ampere() -> None:
    """The kernels of sm80 that have code of their own on 9.0, here on 8.0: float64, whose tensor
    cores have another instruction, and float32 sums of 16-bit products, which divide K blocks.
    """
    device.library.stand_in_set_capability(80)
    kernels = [
        kernel
        for kernel in cutlass_api.get_kernels(cc=80)
        if family_of(kernel) == "sm80"
        and isinstance(kernel.metadata.operands, GemmOperandsMetadata)
        and (
            types_of(kernel).a == torch.float64
            or (types_of(kernel).a.itemsize == 2 and types_of(kernel).out == torch.float32)
        )
    ]
    finish([check_design(kernel, at) for at, kernel in enumerate(few(kernels, parts))])


def float32_sums() -> None:
    """The error of float32 sums, without and with slices of K: chains of 32 products. One chain
    over K (or over a slice) has twice the error.
    """
    kernels = {
        kernel.metadata.design.tile_shape: kernel
        for kernel in kernels_of(GemmOperandsMetadata)
        if isinstance(kernel.metadata.design, SimtDesignMetadata)
        and types_of(kernel).out == torch.float32
        and kernel.metadata.design.cluster_shape[2] == 1
    }
    failures = []
    for tile, k in [((128, 128, 16), 256), ((64, 64, 64), 1024)]:
        kernel, shape = kernels[tile], (tile[0], tile[1], k)
        forms = [Form(order) for order in layout_of(kernel, 0)]
        problem = make_problem(types_of(kernel), shape, *forms[:2], False)
        out = Output(shape[:2], torch.float32, forms[2]).tensor
        kernel.run(GemmArguments(problem.a, problem.b, out, torch.float32))
        error = problem.error(out) / problem.scale
        if not error < 1.5e-7:
            failures.append(f"{kernel.metadata.kernel_name}: {error}")
    finish(failures)


def finish(failures: list[str | None]) -> None:
    """Fails with the failures, or prints the number of launches in this process."""
    fail_with([failure for failure in failures if failure])
    print(device.launches())


class Uncompiled:
    """In place of `gpu_helpers.Artifacts`: kernels compile when they run."""

    def of(self, kernels: list[Kernel]) -> list[None]:
        return [None] * len(kernels)


def turn(at: int) -> slice:
    """All kernels of a sample, or every second one: those of an even place in every second case,
    the others in the others.
    """
    return slice(None) if SPARSE == 1 else slice(at // 2 % 2, None, 2)


def views() -> None:
    """Strides and offsets that TMA cannot address, strides of 0, batches that overlap: all of them
    with float16, some with other types.
    """
    failures = []
    half, *others = THOROUGH
    assert half.a == torch.float16
    forms = [
        (shape, name)
        for shape in [(67, 131, 61), (3, 37, 53, 29)]
        for name in in_all_forms("ttt", len(shape) == 4)
    ]
    for at, (shape, name) in some(enumerate(forms)):
        layout = LAYOUTS[at % len(LAYOUTS)]
        form = {name: in_all_forms(layout, len(shape) == 4)[name]}
        for types in [half] if at % 4 else [half, others[at // 4 % len(others)]]:
            tf32 = types.a == torch.float32
            with float32_precision("high" if tf32 else "highest"):
                failures += try_all(types, shape, form, layout, Uncompiled(), tf32, turn(at))
    finish(failures)


def shapes() -> None:
    """Extents of 0, 1 and 2, K = 0, long and thin matrices; infinities and NaN in the inputs."""
    failures = []
    small = [shape for shape in SHAPES if prod(shape) < 300_000]
    for at, shape in some(enumerate(small)):
        types, layout = THOROUGH[at % len(THOROUGH)], LAYOUTS[at % len(LAYOUTS)]
        form = {"tight": in_all_forms(layout, len(shape) == 4)["tight"]}
        failures += try_all(types, shape, form, layout, Uncompiled(), False, turn(at))
    for dtype in (torch.float16, torch.float32):
        check_infinities(dtype)
    for shape in [(0, 5, 7), (5, 0, 7), (0, 5, 6, 7)]:
        check_nothing(shape)
    finish(failures)


def grouped_parts(kernel: Kernel) -> Iterator[object]:
    """What a sample of grouped kernels has at least once, for each family."""
    family, types, design = family_of(kernel), types_of(kernel), kernel.metadata.design
    yield family, types.a, types.b
    yield family, types.accumulator, types.out
    yield family, type(design), design.tile_shape[:2], getattr(design, "schedule", None)
    yield family, design.cluster_shape
    yield from ((family, layout) for layout in layouts_of(kernel))


def grouped() -> None:
    """Empty groups, groups of one row, groups larger than a tile; rows after the last group."""
    failures = []
    several, odd, empty = [0, 1, 131, 0, 0, 64, 0], [37, 0, 66], [3, 70, 0]
    cases = [(several, 72, 72), (odd, 67, 45)] * 3 + [(empty, 72, 0)]
    kernels = [
        kernel
        for kernel in kernels_of(GroupedGemmOperandsMetadata)
        if kernel.metadata.operands.offsets_along == "m"
    ]
    for at, kernel in enumerate(few(kernels, grouped_parts)):
        sizes, n, k = cases[at % len(cases)]
        _, n, k = served(kernel, 1, n, k)
        a_form, b_form, out_form = forms_of(kernel)
        problem = GroupedProblem(types_of(kernel), sizes, n, k, a_form, b_form)
        what = f"{sizes} {n} {k}"
        failures.append(check(kernel, None, problem, out_form, what))
    check_no_groups()
    finish(failures)


def epilogues() -> None:
    """Scaled sums, biases, activations, residuals, several outputs, reductions."""
    failures = []
    shapes = [((), 70, 72, 40), ((3,), 33, 40, 24), ((), 131, 67, 40), ((2,), 17, 33, 0)]
    cases = [*((case, None) for case in CASES), *REDUCTIONS]
    for seed, (case, reductions) in enumerate(cases):
        trial = Trial(case, *shapes[seed % 4], seed=seed, reductions=reductions)
        sm90, *others = first_of_families(trial.args)
        tried = [sm90, *(others if reductions else [others[seed // 2 % len(others)]])]
        for kernel in tried if SPARSE == 1 else [tried[seed % len(tried)]]:
            try:
                trial.check(kernel)
            except (AssertionError, RuntimeError) as error:
                failures.append(f"{kernel.metadata.kernel_name}, {trial.said}: {error}")
    finish(failures)


def dual_parts(kernel: Kernel) -> Iterator[object]:
    """What a sample of dual GEMMs has at least once."""
    design = kernel.metadata.design
    yield layouts_of(kernel)[0], design.swapped
    yield design.tile_shape, design.schedule, design.swapped
    yield design.cluster_shape, design.split


def dual() -> None:
    """Two matrices B in either order: partial tiles along M, N and K, batches, further operands and
    outputs.
    """
    failures = []
    for seed, case in enumerate(DUAL):
        trial = DualTrial(*case, seed=seed)
        kernels = [kernel for kernel in trial.kernels() if family_of(kernel) == "sm90"]
        if seed < 2:  # half of a sample each
            kernels.sort(key=lambda kernel: repr(kernel.metadata.design))
            kernels = few(kernels, dual_parts)[seed::2]
        for kernel in kernels if seed < 2 else kernels[:2]:
            try:
                trial.check(kernel)
            except (AssertionError, RuntimeError) as error:
                failures.append(f"{kernel.metadata.kernel_name}, {trial.said}: {error}")
    finish(failures)


def elementwise() -> None:
    """Sums in several layouts."""
    forms = [form for form in sums.FORMS if not form.broadcast]
    generator = torch.Generator().manual_seed(0)
    for dtype in DTYPES.values():
        for at, shape in enumerate([(7, 131), (3, 17, 33), (64, 64)]):
            left, right, out = (forms[(at + turn) % len(forms)] for turn in (0, 1, 3))
            a, b = (random_operand(shape, dtype, form, generator) for form in (left, right))
            what = f"{dtype} {shape} {left} {right} {out}"
            sums.check(a, b, Output(shape, dtype, out), what)
    finish([])


#: The bodies of kernels with a mistake. Their parameters are `const float* x` and `float* out`, of
#: 32 elements each; they run in one CTA of 32 threads.
MISTAKES = {
    "read outside": "out[threadIdx.x] = x[threadIdx.x + 1];",
    "write outside": "out[threadIdx.x + 1] = x[threadIdx.x];",
    "misaligned": "*reinterpret_cast<float4*>(out) = *reinterpret_cast<const float4*>(x + 1);",
    "shared memory": """
        extern __shared__ float tile[];
        tile[threadIdx.x] = x[0];
        out[threadIdx.x] = tile[threadIdx.x];
    """,
    "mbarrier": r"""
        __shared__ unsigned long long barrier;
        const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&barrier));
        unsigned done = 0;
        if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 33;" ::"r"(at));
        __syncthreads();
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at));
        while (!done)
          asm volatile(
              "{.reg .pred p;\n"
              "mbarrier.try_wait.parity.shared.b64 p, [%1], 0;\n"
              "selp.u32 %0, 1, 0, p;}"
              : "=r"(done) : "r"(at));
        out[0] = x[0];
    """,
    "barrier": """
        if (threadIdx.x < 16) asm volatile("bar.sync 1, 32;");
        out[threadIdx.x] = x[threadIdx.x];
    """,
}


def mistakes() -> None:
    """Prints the error of each kernel of :data:`MISTAKES` as JSON, null if it runs."""
    errors: dict[str, str | None] = {"none": None}
    for name, body in {"none": "out[threadIdx.x] = 1;", **MISTAKES}.items():
        source = f"__global__ void kernel(const float* x, float* out) {{{body}}}"
        x, out = torch.zeros(32), torch.zeros(32)
        try:
            cuda_kernel(source, "kernel", grid=1, block=32)(operand(x), operand(out))
            errors[name] = None if out.all() else "nothing was computed"
        except RuntimeError as error:
            errors[name] = str(error)
    print(json.dumps(errors))


def ladder() -> None:
    """The steps of ``bench ladder``. Persistent kernels have fewer CTAs than tiles."""
    steps.multiprocessors = lambda: 2
    generator = torch.Generator().manual_seed(0)
    failures = []
    for step in steps.STEPS:
        rows, columns = step.tile
        # Partial tiles and a partial block of K; whole tiles and blocks; several tiles for each
        # CTA.
        shapes = [(72, 136, 104), (rows, columns, 128)]
        shapes += [(2 * rows + 8, columns + 8, 328)] if step.persistent else []
        for m, n, k in shapes:
            a, b = (torch.randn(x, k, generator=generator).half() for x in (m, n))
            # Outputs behind the last row would show in the padding.
            memory = torch.full((m + 1, n), torch.nan).half()
            out = memory[:m]
            step.bind(operand(a), operand(b), operand(out), (m, n, k))()
            expected = a.double() @ b.double().T
            error = float((out.double() - expected).norm() / expected.norm())
            if not (error < 4e-4 and memory[m].isnan().all()):
                failures.append(f"{step.file} {(m, n, k)}: {error:.1e}")
    finish(failures)
