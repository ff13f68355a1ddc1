"""NVRTC compiles every kernel for every architecture; artifacts are portable. None needs a GPU."""

import dataclasses
import time
from functools import partial

import cutlass_api
import pytest
import torch
from cutlass_api.metadata import Sm90DesignMetadata
from support.compiling import args_of
from support.helpers import SELDOM_STORED, fake, fake_gemm, names, spilled_bytes
from support.properties import SPARSE, every_kernel, sample

ARCHITECTURES = {80: "sm_80", 86: "sm_86", 89: "sm_89", 90: "sm_90a", 100: "sm_100", 120: "sm_120"}


def parts(kernel, cc):
    """What a sample must contain at least once. On Hopper: types, layouts, and together what
    decides a program's registers. The other properties of sm90's designs occur apart from the tile.
    Elsewhere: families and, where conversions have code of their own, types. On the first and the
    last capability, which share no machine code, also layouts, and each design that sums up 16-bit
    products in float32 and stores them so: it has code of its own there, and the fewest registers
    to spare. Each design of float8 products of sm80, which 8.9 and 12.0 multiply as they are.
    """
    operands, family, design = kernel.metadata.operands, type(kernel), kernel.metadata.design
    types = {name: getattr(operands, name).dtype.name for name in ("A", "B", "out")}
    layout = tuple(getattr(operands, name).stride for name in types)
    operation = type(operands), getattr(operands, "offsets_along", None)
    if cc != 90:
        found = {(family, types["A"] if cc not in (86, 100) else None)}
        is_float8 = types["A"].startswith("float8") and types["B"].startswith("float8")
        if family is cutlass_api._core.Sm80GemmKernel and is_float8:
            found |= {(operation, design, "float8"), (types["A"], types["B"])}
        if cc not in (80, 120):
            return found
        found.add((family, operation, layout))
        rounds_steps = types["A"] in ("float16", "bfloat16") and types["out"] == "float32"
        if family is cutlass_api._core.Sm80GemmKernel and rounds_steps:
            found.add((operation, design))
        return found
    types["accumulator"] = getattr(operands, "accumulator_type", operands.out.dtype).name
    found = {(family, place, dtype) for place, dtype in types.items()}
    found |= {(family, types["A"], types["B"]), (family, layout)}
    if not isinstance(design, Sm90DesignMetadata):
        return found | {(family, operation, types["accumulator"], design)}
    tile = design.tile_shape[:2], design.schedule, design.consumers
    widths = operands.A.dtype.width, operands.B.dtype.width
    cluster = design.cluster_shape, design.split, design.over_grid
    return found | {
        # Row-major and column-major outputs are stored by different code.
        (operation, types["accumulator"], tile, operands.out.stride),
        (operation, widths, tile),
        (operation, cluster, design.fast_sums),
        (operation, design.packed, design.load_bytes, design.swapped),
        (operation, design.tile_shape[2], design.stages),
    }


def sample_of(cc):
    """Kernels that together have every part, of few programs. Kernels that share a program with an
    earlier one are last, when that one is in the cache.
    """
    programs = {}
    for kernel in every_kernel(cc):
        programs.setdefault(kernel.source, []).append(kernel)
    chosen = sample(programs.values(), partial(parts, cc=cc), (8, 6, 5, 4, 3, 2, 1))
    return [kernels[0] for kernels in chosen] + [k for kernels in chosen for k in kernels[1:]]


PLAN = [(cc, kernel) for cc in ARCHITECTURES for kernel in sample_of(cc)]
planned = pytest.mark.parametrize(
    "cc, kernel",
    PLAN[::SPARSE],
    ids=[f"{cc}-{k.metadata.kernel_name}" for cc, k in PLAN[::SPARSE]],
)


@pytest.mark.parametrize(
    "types", SELDOM_STORED, ids=lambda types: "_".join(str(dtype)[6:] for dtype in types)
)
def test_outputs_that_are_seldom_stored_compile(types):
    a, b, accumulator, out = types
    args = cutlass_api.arguments.GemmArguments(
        fake(65, 33, dtype=a), fake(33, 17, dtype=b), fake(65, 17, dtype=out), accumulator
    )
    (kernel,) = cutlass_api.get_kernels(args, cc=90)
    assert kernel.compile(args, cc=90).compiled_obj.cubin


@planned
@pytest.mark.usefixtures("cache_directory", "tf32_allowed")
def test_every_family_compiles_without_spills(cc, kernel):
    assert kernel.supports(args_of(kernel)), kernel.supports(args_of(kernel)).error
    artifact = kernel.compile(args_of(kernel), cc)
    program = artifact.compiled_obj
    assert artifact.kernel_obj is kernel
    assert program.kernel_name == kernel.metadata.kernel_name
    assert program.architecture == ARCHITECTURES[cc]
    assert program.cubin[:4] == b"\x7fELF"
    assert program.log == "", "NVRTC has nothing to warn of"
    assert spilled_bytes(program) == 0


def test_the_sample_covers_all():
    everything = every_kernel(90)
    taken = [kernel for cc, kernel in PLAN if cc == 90]

    def values(kernels):
        """The values of each property."""
        return {
            (type(kernel), *item)
            for kernel in kernels
            for design, a in [(kernel.metadata.design, kernel.metadata.operands.A)]
            for item in [*dataclasses.asdict(design).items(), ("A", a.dtype)]
        }

    assert values(everything) == values(taken)
    for cc in ARCHITECTURES:
        assert {type(kernel) for at, kernel in PLAN if at == cc} == set(
            map(type, cutlass_api.get_kernels(cc=cc))
        )


# The properties of a program.


def test_a_program(artifact):
    program = artifact.compiled_obj
    assert "rutlass_sm80_gemm_f16xf16_f32_f16_" in program.source
    assert "#include" in program.source
    assert program.shared_bytes >= 0
    assert program.nvrtc_version >= (12, 0)
    assert program.kernel_name in repr(program)
    assert "sm_90a" in repr(artifact)


def test_the_source_differs_from_kernel_to_kernel():
    texts = {}
    for kernel in every_kernel(90):
        texts.setdefault(kernel.source, []).append(kernel)

    # A column-major output is the row-major output of the transposed product, and a packed operand
    # is read like a K-major one. Only such kernels share a program.
    def shared(kernel):
        design = kernel.metadata.design
        if isinstance(design, Sm90DesignMetadata):
            shape = (sorted(design.tile_shape[:2]), sorted(design.cluster_shape[:2]))
            design = dataclasses.replace(design, packed=(), tile_shape=(), cluster_shape=())
            return repr((shape, design, kernel.metadata.operands.out.dtype))
        return None

    for kernels in texts.values():
        assert len(kernels) <= 2 or len({shared(kernel) for kernel in kernels} | {None}) == 2, (
            names(kernels)
        )


def test_a_compiled_kernel_is_kept_in_memory(artifact):
    args = fake_gemm(3, 3, 3)

    def seconds():
        start = time.perf_counter()
        artifact.kernel_obj.compile(args, cc=90)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(20)) < 100e-6


# Compilation errors.


@pytest.mark.parametrize("cc", [0, 70, 75, 79, 95, 130, 900])
def test_an_unknown_capability(cc, artifact):
    with pytest.raises(ValueError, match=rf"compute capability {cc}\b.*80"):
        artifact.kernel_obj.compile(fake_gemm(3, 3, 3), cc=cc)


@pytest.mark.parametrize("cc", [-1, 2**32, 2**70])
def test_what_is_no_capability(cc, artifact):
    for ask in (
        lambda: artifact.kernel_obj.compile(fake_gemm(3, 3, 3), cc=cc),
        lambda: cutlass_api.get_kernels(cc=cc),
        lambda: cutlass_api.cuda_kernel("__global__ void f(float* x) {}", "f", grid=1).compile(
            cc=cc
        ),
    ):
        with pytest.raises(ValueError, match=f"cc is {cc}; pass ten times major plus minor"):
            ask()


def test_cpu_operands_need_a_capability(artifact):
    a = torch.ones(8, 8, dtype=torch.float16)
    args = cutlass_api.arguments.GemmArguments(a, a, torch.ones_like(a), "float32")
    kernel = cutlass_api.get_kernels(args, cc=90)[0]
    with pytest.raises(ValueError, match=r"on the CPU.*cc=90"):
        kernel.compile(args)
    assert kernel.compile(args, cc=90).compiled_obj.architecture == "sm_90a"
    for assumed in (False, True):
        with pytest.raises(ValueError, match="out is on cpu"):
            kernel.run(args, kernel.compile(args, cc=90), assume_supported_args=assumed)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what is said where there is no GPU")
def test_fake_tensors_without_a_gpu_need_a_capability(artifact):
    with pytest.raises(RuntimeError) as error:
        artifact.kernel_obj.compile(fake_gemm(3, 3, 3))
    assert len(str(error.value)) > 20, "the reason in words"
