"""What objects print: `repr` of each public class, and tables in notebooks."""

import importlib
import inspect
import pkgutil
import re
from enum import Enum
from pathlib import Path

import cutlass_api
import pytest
import torch
from cutlass_api import _core, arguments, metadata, profiling, quantize, tuning, weights
from cutlass_api.arguments import GemmArguments, PerformanceControls
from cutlass_api.inductor import Options
from cutlass_api.utils import TensorWrapper
from support.helpers import fake, fake_gemm, fake_grouped
from support.shown import (
    RESULT,
    STORED,
    TIMING,
    Square,
    artifact,
    cpu_kernel,
    epilogue,
    function,
    gemm,
    grouped,
    kernel,
    operands,
    own_kernel,
    requirements,
    scaled,
)
from support.weights import KINDS


def weight(kind):
    """Of ones."""
    made = kind.quantize(torch.ones(4, 64))
    scales = f"{made.scales.dtype}{list(made.scales.shape)}".removeprefix("torch.")
    return lambda: made, f"<{kind.cls.__name__} [4, 64], scales {scales}, on cpu>"


#: Of each public class, a function that makes an instance, and its `repr`, or parts of the `repr`.
SHOWN = {
    # Operands and arguments.
    "DType": (lambda: cutlass_api.DType("fp16"), "DType('float16')"),
    "DenseTensor": (lambda: gemm().A, "<DenseTensor float32[4, 8] on cpu>"),
    "ScaledTensor": (
        scaled,
        "<ScaledTensor float8_e4m3fn[4, 64], scales float32[4, 2], mode=ScaleMode.Blockwise1x32, "
        "swizzle=ScaleSwizzleMode.SwizzleNone, on cpu>",
    ),
    "TensorWrapper": (
        lambda: TensorWrapper(torch.zeros(4, 8)),
        "<TensorWrapper of 32 elements float32 on cpu, aligned to 4 bytes>",
    ),
    "TensorMap": (
        lambda: cutlass_api.TensorMap(fake(8, 64), (4, 32), swizzle=64),
        "<TensorMap float16[8, 64], box=[4, 32], swizzle=64, on cuda:0 (FakeTensor)>",
    ),
    **{kind.cls.__name__: weight(kind) for kind in KINDS.values()},
    "Int4": (
        lambda: quantize.int4(torch.ones(4, 64), 32).repack(),
        "<Int4 [4, 64], scales float32[4, 2], repacked, on cpu>",
    ),
    "Int8": (
        lambda: weights.Int8(
            *quantize.per_row(torch.ones(4, 64), torch.int8),
            permutation=torch.arange(64).int(),
        ),
        "<Int8 [4, 64], scales float32[4, 1], permuted, on cpu>",
    ),
    "RuntimeArguments": (
        lambda: arguments.RuntimeArguments(performance=PerformanceControls()),
        "<RuntimeArguments performance=PerformanceControls(fast_sums=False, "
        "free_multiprocessors=0)>",
    ),
    "GemmArguments": (
        gemm,
        "<GemmArguments A=float32[4, 8], B=float32[8, 6], out=float32[4, 6], "
        "accumulator_type=float32, on cpu>",
    ),
    "GroupedGemmArguments": (
        grouped,
        "<GroupedGemmArguments A=float32[4, 8], B=float32[2, 8, 6], offsets=int32[2], "
        "out=float32[4, 6], accumulator_type=float32, on cpu>",
    ),
    "ElementwiseArguments": (
        lambda: arguments.ElementwiseArguments(*[torch.zeros(3, 5)] * 3),
        "<ElementwiseArguments A=float32[3, 5], B=float32[3, 5], out=float32[3, 5], on cpu>",
    ),
    "EpilogueArguments": (
        epilogue,
        "<EpilogueArguments D = ((accum * alpha) + bias): alpha=2.5, bias=float32[6], "
        "D=float32[4, 6] on cpu>",
    ),
    "PrologueArguments": (
        lambda: arguments.PrologueArguments(
            "def half(A, scale):\n    A = A * scale\n    return A\n", scale=0.5
        ),
        "<PrologueArguments A = (A * scale): scale=0.5>",
    ),
    "TracedEpilogue": (
        lambda: epilogue().traced_epilogue,
        "<TracedEpilogue D = ((accum * alpha) + bias)>",
    ),
    "PerformanceControls": (
        PerformanceControls,
        "PerformanceControls(fast_sums=False, free_multiprocessors=0)",
    ),
    # Kernels.
    "Kernel": (
        lambda: type("Bare", (cutlass_api.Kernel,), {"__init__": lambda self: None})(),
        "<Bare without metadata>",
    ),
    "SimtGemmKernel": (lambda: kernel("simt"), ("<SimtGemmKernel simt_gemm_",)),
    "SkinnyGemmKernel": (lambda: kernel("skinny"), ("<SkinnyGemmKernel skinny_gemm_",)),
    "Sm80GemmKernel": (lambda: kernel("sm80"), ("<Sm80GemmKernel sm80_gemm_",)),
    "Sm90GemmKernel": (lambda: kernel("sm90"), ("<Sm90GemmKernel sm90_gemm_",)),
    "ElementwiseKernel": (
        lambda: kernel("simt_elem"),
        ("<ElementwiseKernel simt_elementwise_add_",),
    ),
    "ReferenceKernel": (cpu_kernel, "<ReferenceKernel reference_gemm_f32xf32_f32_f32>"),
    "CudaKernel": (own_kernel, "<Square Square>"),
    "CudaFunction": (
        function,
        ("<CudaFunction f(x, n) of ", ', grid=[4, 1, 1], block=[32, 2, 1], options=["-DA=<B>"]>'),
    ),
    "AutotunedKernel": (
        lambda: tuning.autotuned([{"n": 1}, {"n": 2}])(function),
        "<AutotunedKernel function of 2 configs>",
    ),
    "NvrtcProvider": (cutlass_api.providers.NvrtcProvider, "<NvrtcProvider 'nvrtc'>"),
    "ReferenceProvider": (
        cutlass_api.providers.ReferenceProvider,
        "<ReferenceProvider 'reference'>",
    ),
    "ProviderBase": (cutlass_api.providers.ProviderBase, "<ProviderBase 'without a name'>"),
    # Results.
    "CompiledArtifact": (
        artifact,
        ("<CompiledArtifact of sm90_gemm_", " for sm_90a: ", " bytes, ", " registers, no spills>"),
    ),
    "Program": (
        lambda: artifact().compiled_obj,
        ("<Program of sm90_gemm_", " for sm_90a: ", " bytes, ", " registers, no spills>"),
    ),
    "Resources": (
        lambda: artifact().resources,
        ("Resources(registers=", "spill_store_bytes=0, ", "threads=256, ctas_per_sm=1)"),
    ),
    "PreparedLaunch": (
        lambda: cpu_kernel().bind(gemm()),
        "<PreparedLaunch of reference_gemm_f32xf32_f32_f32: A=float32[4, 8], B=float32[8, 6], "
        "out=float32[4, 6], accumulator_type=float32, on cpu>",
    ),
    "Estimate": (
        lambda: kernel("sm90", fake_gemm()).estimate(fake_gemm(), cc=90),
        ("Estimate(total_seconds=", "waves=1.00, ", "bytes="),
    ),
    "Status": (
        lambda: cutlass_api.Status.fail("too\nlarge"),
        r"Status.fail(ValueError('too\nlarge'))",
    ),
    "KernelList": (
        lambda: cutlass_api.get_kernels(gemm()),
        "[<ReferenceKernel reference_gemm_f32xf32_f32_f32>]",
    ),
    "NoKernels": (
        lambda: cutlass_api.get_kernels(gemm(), providers=["nvrtc"]),
        (
            "<NoKernels for <GemmArguments A=float32[4, 8], ",
            "; cutlass_api.explain prints the reasons>",
        ),
    ),
    "Manifest": (cutlass_api.Manifest, "<Manifest of 0 kernels>"),
    "GlobalOptions": (
        cutlass_api.config.GlobalOptions,
        "GlobalOptions(use_tvm_ffi=True, launch_graphs=True)",
    ),
    "Options": (Options, ("Options(",)),
    "Timing": (lambda: TIMING, "<2.00 us, quartiles 1.50 to 2.50, 3 calls on a GPU>"),
    "Comparison": (
        lambda: profiling.Comparison({"<ours>": TIMING}),
        "3 calls on a GPU\n  us     quartiles  ratio\n2.00  1.50 to 2.50  1.000  <ours>",
    ),
    "Trial": (lambda: RESULT.trials[1], ("Trial(kernel='b', microseconds=3.0, ",)),
    "TuningResult": (
        lambda: RESULT,
        "exact gemm on a GPU\n        us  to best  kernel\n      2.00    1.000  <kernel>\n"
        "      3.00    1.500  b\n7 further kernels were not timed",
    ),
    "StoredResult": (lambda: STORED, ("StoredResult(device='a GPU', ", "seconds=2e-06)")),
    "ImportReport": (lambda: tuning.ImportReport(3), "ImportReport(added=3, skipped=())"),
    # Metadata.
    "TensorAttributes": (
        lambda: metadata.TensorAttributes("float16"),
        "TensorAttributes(dtype='float16', stride=None, divisibility=1, ptr_alignment_bytes=2)",
    ),
    "DenseTensorAttributes": (
        requirements,
        "DenseTensorAttributes(dtype='float16', stride=(0, 0, 1), divisibility=8, "
        "ptr_alignment_bytes=16)",
    ),
    "ScaledTensorAttributes": (
        lambda: metadata.ScaledTensorAttributes(requirements(), "float32", (1, 32), "none"),
        ("ScaledTensorAttributes(base=DenseTensorAttributes(", "scale='float32', mode=(1, 32), "),
    ),
    "OperandsMetadata": (metadata.OperandsMetadata, "OperandsMetadata()"),
    "GemmOperandsMetadata": (
        lambda: kernel("sm90").metadata.operands,
        ("GemmOperandsMetadata(A=DenseTensorAttributes(dtype=DType('", "accumulator_type=DType('"),
    ),
    "GroupedGemmOperandsMetadata": (
        lambda: kernel("sm90", fake_grouped()).metadata.operands,
        ("GroupedGemmOperandsMetadata(A=", "offsets=", "offsets_along='m')"),
    ),
    "ElementwiseOperandsMetadata": (
        lambda: Square.operands,
        ("ElementwiseOperandsMetadata(A=", "B=", "out="),
    ),
    "ElementType": (lambda: _core.ELEMENT_TYPES[2], "ElementType(float16, 16 bits)"),
    "EpilogueFunction": (
        lambda: next(each for each in _core.epilogue_functions() if "silu" in each.names),
        "EpilogueFunction(silu, swish)",
    ),
    "DesignMetadata": (metadata.DesignMetadata, "DesignMetadata()"),
    "BLASDesignMetadata": (
        lambda: metadata.BLASDesignMetadata((64, 64, 32), (1, 1, 1)),
        "BLASDesignMetadata(tile_shape=(64, 64, 32), cluster_shape=(1, 1, 1))",
    ),
    "SimtDesignMetadata": (
        lambda: kernel("simt_gemm_f32xf32_f32_bf16_nnn").metadata.design,
        ("SimtDesignMetadata(tile_shape=(", "stages="),
    ),
    "SkinnyDesignMetadata": (
        lambda: kernel("skinny").metadata.design,
        ("SkinnyDesignMetadata(tile_shape=(", "stages="),
    ),
    "Sm80DesignMetadata": (
        lambda: kernel("sm80").metadata.design,
        ("Sm80DesignMetadata(tile_shape=(", "stages="),
    ),
    "Sm90DesignMetadata": (
        lambda: kernel("sm90").metadata.design,
        ("Sm90DesignMetadata(tile_shape=(", "schedule="),
    ),
    "Sm100DesignMetadata": (
        lambda: metadata.Sm100DesignMetadata((1, 2, 3), (1, 1, 1), True, False),
        ("Sm100DesignMetadata(tile_shape=(1, 2, 3), ", "use_2cta_mma=True, use_tma_store=False)"),
    ),
    "EpilogueMetadata": (
        lambda: metadata.EpilogueMetadata("D = accum"),
        "EpilogueMetadata(epilogue='D = accum')",
    ),
    "KernelMetadata": (
        lambda: kernel("sm90").metadata,
        ("KernelMetadata(kernel_name='sm90_gemm_", "min_cc=90, ", "design=Sm90DesignMetadata("),
    ),
}
#: Classes without instances here: those without a constructor, and those that test_tuning.py
#: prints, because they need a device.
ELSEWHERE = {
    *("KernelOperand", "Weight", "CudaBenchmark", "TimedLaunches", "TuningBenchmark"),
    *("Linear", "Experts", "Conversion", "Loading", "Config"),  # tests/nn
    "OpenGemmArguments",  # the base of a class of `operators`
}
TABLES = {"Comparison", "TuningResult"}


def public_classes():
    """The classes in `__all__` of public modules and of the extension, by name."""
    folder = [str(Path(cutlass_api.__file__).parent)]
    names = [found.name for found in pkgutil.walk_packages(folder, "cutlass_api.")]
    # `bench` is a program. tests/operators_face has the classes of `operators`.
    public = [name for name in names if not re.search(r"\._|\.bench|\.operators", name)]
    modules = [cutlass_api, _core, *map(importlib.import_module, public)]
    values = [
        getattr(module, name) for module in modules for name in getattr(module, "__all__", ())
    ]
    return {
        value.__name__
        for value in values
        if inspect.isclass(value)
        and value.__module__.startswith("cutlass_api")
        and not issubclass(value, Enum | BaseException)
        and not getattr(value, "_is_protocol", False)
    }


def test_each_public_class_is_here():
    assert public_classes() == set(SHOWN) | ELSEWHERE


@pytest.mark.parametrize("name", SHOWN)
def test_objects_print_what_they_hold(name):
    make, expected = SHOWN[name]
    text = repr(make())
    if isinstance(expected, str):
        assert text == expected
    else:
        assert text.startswith(expected[0]) and all(part in text for part in expected), text
    assert name in TABLES or "\n" not in text
    assert " object at 0x" not in text


def test_a_program_shows_its_size_and_registers():
    program = artifact().compiled_obj
    facts = f"{len(program.cubin)} bytes, {program.resources.registers} registers"
    assert f"{program.kernel_name} for {program.architecture}: {facts}" in repr(program)


A, B, OUT = "A=float16[256, 256]", "B=float16[256, 256]", "out=float16[256, 256]"


@pytest.mark.parametrize(
    "make, expected",
    [
        (
            lambda: fake_gemm(layout="tnt"),
            f"<GemmArguments {A}, {B} strides [1, 256], {OUT}, accumulator_type=float32, "
            "on cuda:0 (FakeTensor)>",
        ),
        (
            lambda: GemmArguments(
                *[torch.zeros(2, 4, 4), torch.zeros(1, 4, 4).expand(2, 4, 4)],
                torch.zeros(2, 4, 8)[..., ::2],
                "float32",
            ),
            "<GemmArguments A=float32[2, 4, 4], B=float32[2, 4, 4] strides [0, 4, 1], "
            "out=float32[2, 4, 4] strides [32, 8, 2], accumulator_type=float32, on cpu>",
        ),
        (
            lambda: GemmArguments(
                scaled(),
                torch.zeros(64, 6).to(torch.float8_e4m3fn),
                torch.zeros(4, 6),
                "float32",
                performance=PerformanceControls(fast_sums=True),
            ),
            "<GemmArguments A=float8_e4m3fn[4, 64], B=float8_e4m3fn[64, 6], out=float32[4, 6], "
            "accumulator_type=float32, on cpu, scales of A: float32[4, 2], "
            "mode=ScaleMode.Blockwise1x32, swizzle=ScaleSwizzleMode.SwizzleNone, "
            "performance=PerformanceControls(fast_sums=True, free_multiprocessors=0)>",
        ),
        (
            lambda: gemm(epilogue=epilogue()),
            "<GemmArguments A=float32[4, 8], B=float32[8, 6], out=float32[4, 6], "
            f"accumulator_type=float32, on cpu, epilogue={SHOWN['EpilogueArguments'][1]}>",
        ),
        (
            lambda: gemm(epilogue=Unprintable(), performance=Unprintable()),
            "<GemmArguments A=float32[4, 8], B=float32[8, 6], out=float32[4, 6], "
            "accumulator_type=float32, on cpu, epilogue=<Unprintable>, performance=<Unprintable>>",
        ),
        (lambda: type("Mine", (arguments.RuntimeArguments,), {})(1, x=2), "<Mine>"),
        (lambda: profiling.Timing((), "CPU"), "<no calls on CPU>"),
        (
            lambda: _core.CompiledArtifact(object(), Square.__new__(Square)),
            "<CompiledArtifact of <Square>>",
        ),
    ],
)
def test_what_the_repr_depends_on(make, expected):
    assert repr(make()) == expected


class Unprintable:
    """Like a class whose `repr` prints the elements of a tensor."""

    def __repr__(self):
        raise AssertionError("the repr of a user's object was called")


def test_freed_tensors_stay_in_a_repr():
    tensors = operands()
    args = GemmArguments(*tensors, "float32")
    tensors[0].untyped_storage().resize_(0)
    assert repr(args) == SHOWN["GemmArguments"][1]
