"""Kernels with a fused epilogue, compiled for every architecture without a GPU."""

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from support.compiling import check_code, demanding
from support.epilogues import CASES, REDUCTIONS, fake_fused, fused, shape_of
from support.helpers import fake, run_python, spilled_bytes
from support.properties import some

#: Types with code paths of their own in the epilogue: how values are held, how many neighbours are
#: processed at once.
COMPILED = [
    (torch.float16, torch.float16, torch.float32),
    (torch.float16, torch.float16, torch.float16),
    (torch.bfloat16, torch.float32, torch.float32),
    (torch.float32, torch.float32, torch.float32),
    (torch.float64, torch.float64, torch.float64),
    (torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float32),
    (torch.int8, torch.float16, torch.int32),
    (torch.int8, torch.int8, torch.int32),
]


BIAS = "def f(accum, bias):\n    D = accum + bias\n    return D\n"


def assert_compiles(kernel, args, cc=90):
    """Compiles without warnings, and finds the kernel again from the serialized artifact."""
    artifact = kernel.compile(args, cc=cc)
    assert artifact.compiled_obj.log == ""
    assert artifact.compiled_obj.kernel_name == kernel.metadata.kernel_name
    restored = cutlass_api.artifact.CompiledArtifact.from_bytes(artifact.to_bytes())
    assert restored.kernel_obj is kernel


def compile_families(arguments, cc):
    """Compiles a kernel of each family for arguments of M and N; returns these with theirs."""
    families = {}
    for args in (arguments(64, 48), arguments(4, 48), arguments(64, 4)):
        for kernel in cutlass_api.get_kernels(args, cc=cc):
            family = type(kernel), getattr(kernel.metadata.design, "narrow", None)
            families.setdefault(family, (kernel, args))
    for kernel, args in families.values():
        assert_compiles(kernel, args, cc)
    return list(families.values())


@pytest.mark.usefixtures("tf32_allowed")
@pytest.mark.parametrize(
    "cc, dtype, out_dtype, accumulator",
    some(
        (cc, *types)
        for cc in (80, 89, 90, 120)
        # Elsewhere, float16, and float8, which not every capability converts by instructions.
        for types in (COMPILED if cc == 90 else [COMPILED[0], COMPILED[5]])
    ),
    ids=str,
)
def test_every_family_compiles_with_an_epilogue(dtype, out_dtype, accumulator, cc):
    case = CASES[COMPILED.index((dtype, out_dtype, accumulator)) + 5]

    def arguments(m, n):
        operands = {
            name: fake(*shape_of(kind, (m, n)) or (1,), dtype=dtype)
            for name, kind in case.tensors.items()
        }
        others = {name: fake(m, n, dtype=out_dtype) for name in case.others}
        a, b, out = fake(m, 32, dtype=dtype), fake(32, n, dtype=dtype), fake(m, n, dtype=out_dtype)
        return fused(a, b, out, case.function, accumulator, **operands, **others, **case.numbers)

    families = compile_families(arguments, cc)
    assert len(families) > 1 or dtype not in (torch.float16, torch.float32)


@pytest.mark.parametrize("factor", [(1, 48), (64, 1)], ids=["row", "column"])
def test_factors_behind_float16_accumulators_compile(factor):
    """A register of `sm90` holds two of these accumulators, which it does not multiply as one."""
    a, b, out = fake(64, 64), fake(64, 48), fake(64, 48)
    source = "def scaled(accum, factor):\n    D = accum * factor\n    return D\n"
    args = fused(a, b, out, source, torch.float16, factor=fake(*factor))
    kernels = {
        (type(kernel), kernel.metadata.design.swapped): kernel
        for kernel in cutlass_api.get_kernels(args, cc=90)
        if kernel.metadata.kernel_name.startswith("sm90")
    }
    assert len(kernels) == 2
    for kernel in kernels.values():
        assert kernel.compile(args, cc=90).compiled_obj.log == ""


REDUCED = [
    (torch.float16, torch.float32),
    (torch.float32, torch.float32),
    (torch.float64, torch.float64),
    (torch.int8, torch.int32),
]


@pytest.mark.usefixtures("tf32_allowed")
@pytest.mark.parametrize(
    "cc, dtype, accumulator",
    some([(90, *types) for types in REDUCED] + [(80, *REDUCED[0]), (120, *REDUCED[0])]),
    ids=str,
)
def test_every_family_compiles_with_reductions(dtype, accumulator, cc):
    case, kinds = REDUCTIONS[1]

    def arguments(m, n):
        tensors = {name: fake(m, n, dtype=dtype) for name in ("C", *case.others)}
        tensors |= {
            name: fake(*shape_of(kind, (m, n)), dtype=accumulator) for name, kind in kinds.items()
        }
        a, b, out = fake(m, 32, dtype=dtype), fake(32, n, dtype=dtype), fake(m, n, dtype=dtype)
        return fused(a, b, out, case.function, accumulator, **tensors, **case.numbers)

    families = compile_families(arguments, cc)
    assert families and all(kernel.get_workspace_size(args) > 0 for kernel, args in families)


@pytest.mark.parametrize(
    "case, layout",
    some([(CASES[1], "ttt"), (CASES[2], "tnn"), (CASES[5], "tnn"), (CASES[5], "ttt")]),
    ids=lambda value: getattr(value, "name", value),
)
def test_hopper_s_large_tiles_spill_nothing(case, layout):
    m, n = 4096, 4096
    operands = {name: fake(*shape_of(kind, (m, n))) for name, kind in case.tensors.items()}
    operands |= {name: fake(m, n) for name in case.others} | case.numbers
    a, b, out = (fake(m, n, layout=letter) for letter in layout)
    kernels = cutlass_api.get_kernels(fused(a, b, out, case.function, **operands), cc=90)
    large = [
        kernel
        for kernel in kernels
        if getattr(kernel.metadata.design, "schedule", None) == "pingpong"
    ]
    for kernel in large[:: len(large) // 4]:
        program = kernel.compile(fused(a, b, out, case.function, **operands), cc=90).compiled_obj
        assert spilled_bytes(program) == 0, kernel


SWIGLU = "def epilogue(accum, up):\n    D = silu(accum) * product(up)\n    return D\n"


def dual_arguments(m, n=11008, k=4096, dtype=torch.bfloat16):
    b, up = (fake(k, n, dtype=dtype, layout="n") for _ in range(2))
    return fused(fake(m, k, dtype=dtype), b, fake(m, n, dtype=dtype), SWIGLU, up=up)


@pytest.mark.parametrize("m", [16, 2048])
def test_kernels_of_two_products_spill_nothing(m):
    args = dual_arguments(m)
    kernels = cutlass_api.get_kernels(args, cc=90)
    designs = {}
    for kernel in kernels:
        design = kernel.metadata.design
        designs.setdefault((design.swapped, design.tile_shape, design.split), kernel)
    assert len(designs) > 20 and {design[0] for design in designs} == {False, True}
    check_code(demanding(designs.values(), 12), args)


@pytest.mark.parametrize("m, epilogue", [(16, None), (2048, BIAS)], ids=["plain", "biases"])
def test_kernels_of_several_matrices_b_spill_nothing(m, epilogue):
    args = joint_arguments(m, epilogue)
    designs = {}
    for kernel in cutlass_api.get_kernels(args, cc=90):
        design = kernel.metadata.design
        key = (
            type(kernel),
            getattr(design, "swapped", None),
            design.tile_shape,
            design.cluster_shape,
        )
        designs.setdefault(key, kernel)
    assert len(designs) > 20
    check_code(demanding(designs.values(), 12), args)


def joint_arguments(m, epilogue=None):
    a, out = fake(m, 4096, dtype=torch.bfloat16), fake(m, 6144, dtype=torch.bfloat16)
    matrices = [fake(4096, n, dtype=torch.bfloat16, layout="n") for n in (4096, 1024, 1024)]
    if epilogue:
        bias = [fake(matrix.shape[1], dtype=torch.bfloat16) for matrix in matrices]
        epilogue = EpilogueArguments(epilogue, bias=bias, D=out)
    return GemmArguments(a, matrices, out, torch.float32, epilogue=epilogue)


def test_an_artifact_of_several_matrices_b_finds_its_kernel():
    args = joint_arguments(64, BIAS)
    assert_compiles(cutlass_api.get_kernels(args, cc=90)[0], args)


def test_an_artifact_of_two_products_finds_its_kernel():
    args = dual_arguments(64)
    assert_compiles(cutlass_api.get_kernels(args, cc=90)[0], args)


def test_an_artifact_brings_its_epilogue_along(tmp_path):
    args = fake_fused()
    kernel = cutlass_api.get_kernels(args, cc=90)[0]
    (tmp_path / "artifact").write_bytes(kernel.compile(args, cc=90).to_bytes())
    code = """
        import sys
        from cutlass_api.artifact import CompiledArtifact
        kernel = CompiledArtifact.from_bytes(open(sys.argv[1], "rb").read()).kernel_obj
        print(kernel.metadata.kernel_name)
        print(kernel.metadata.epilogue.epilogue)
    """
    metadata = kernel.metadata
    assert run_python(code, tmp_path / "artifact").splitlines() == [
        metadata.kernel_name,
        metadata.epilogue.epilogue,
    ]
