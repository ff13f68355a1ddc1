"""The metadata of kernels, and its comparison with arguments."""

import dataclasses
import pickle

import cutlass_api
import numpy as np
import pytest
import torch
from cutlass_api import metadata
from cutlass_api.arguments import (
    DenseTensor,
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    RuntimeArguments,
    ScaledTensor,
)
from cutlass_api.library import ScaleMode, ScaleSwizzleMode
from cutlass_api.metadata import (
    BLASDesignMetadata,
    DenseTensorAttributes,
    ElementwiseOperandsMetadata,
    EpilogueMetadata,
    GemmOperandsMetadata,
    GroupedGemmOperandsMetadata,
    KernelMetadata,
    ScaledTensorAttributes,
    Sm100DesignMetadata,
    TensorAttributes,
)
from support.helpers import fake, fake_gemm

ROW, COLUMN = (0, 0, 1), (0, 1, 0)
TENSOR = "dtype stride divisibility ptr_alignment_bytes"
FLOAT8 = DenseTensorAttributes("float8_e4m3fn", ROW, 16)
MX, NONE = ScaleMode.Blockwise1x32, ScaleSwizzleMode.SwizzleNone


def fields(cls):
    return [field.name for field in dataclasses.fields(cls)]


@pytest.mark.parametrize(
    "name, expected",
    {
        "KernelMetadata": "kernel_name kernel_class min_cc operands design epilogue",
        "GemmOperandsMetadata": "A B out accumulator_type",
        "GroupedGemmOperandsMetadata": "A B out offsets accumulator_type offsets_along",
        "ElementwiseOperandsMetadata": "A B out",
        "DenseTensorAttributes": TENSOR,
        "TensorAttributes": TENSOR,
        "ScaledTensorAttributes": f"{TENSOR} base scale mode swizzle",
        "BLASDesignMetadata": "tile_shape cluster_shape",
        "Sm100DesignMetadata": "tile_shape cluster_shape use_2cta_mma use_tma_store",
        "SimtDesignMetadata": "tile_shape cluster_shape slices stages load_bytes",
        "SkinnyDesignMetadata": "tile_shape cluster_shape warp_shape stages load_bytes narrow",
        "Sm80DesignMetadata": "tile_shape cluster_shape warp_shape stages load_bytes fast_sums",
    }.items(),
)
def test_fields_and_their_order(name, expected):
    assert " ".join(fields(getattr(metadata, name))) == expected


def test_optional_fields():
    made = KernelMetadata("mine", cutlass_api.Kernel, 80, None)
    assert (made.design, made.epilogue) == (None, None)
    assert issubclass(metadata.GemmOperandsMetadata, metadata.OperandsMetadata)
    assert issubclass(DenseTensorAttributes, TensorAttributes)
    assert issubclass(ScaledTensorAttributes, TensorAttributes)
    assert issubclass(Sm100DesignMetadata, BLASDesignMetadata)
    assert issubclass(BLASDesignMetadata, metadata.DesignMetadata)


def test_built_in_kernels_are_described_by_whole_dataclasses():
    """The objects are created without `__init__`; they compare, hash and copy like others."""
    for kernel in cutlass_api.get_kernels():
        described = kernel.metadata
        values = {field: getattr(described, field) for field in fields(KernelMetadata)}
        made = KernelMetadata(**values)
        assert (
            made == described and hash(made) == hash(described) and repr(made) == repr(described)
        ), kernel
        for part in (described.operands, described.design, described.operands.A):
            assert part is None or all(hasattr(part, name) for name in fields(type(part))), kernel
    assert dataclasses.replace(described, min_cc=80).kernel_name == described.kernel_name
    with pytest.raises(dataclasses.FrozenInstanceError):
        described.min_cc = 80


@pytest.mark.parametrize(
    "kernel", cutlass_api.get_kernels()[::40], ids=lambda kernel: kernel.metadata.kernel_name
)
def test_what_built_in_kernels_say(kernel):
    described = kernel.metadata
    assert kernel.metadata is described
    assert isinstance(described, KernelMetadata)
    assert isinstance(described.kernel_name, str)
    assert described.kernel_class is type(kernel)
    for name in ("A", "B", "out"):
        attributes = getattr(described.operands, name)
        assert isinstance(attributes.dtype, cutlass_api.DType)
        assert attributes.stride in (None, ROW, COLUMN)
        assert attributes.divisibility >= 1
    if described.min_cc:
        for shape in (described.design.tile_shape, described.design.cluster_shape):
            assert len(shape) == 3
            assert all(isinstance(extent, int) and extent > 0 for extent in shape)
    with pytest.raises(AttributeError):
        kernel.metadata = None
    with pytest.raises(dataclasses.FrozenInstanceError):
        described.min_cc = 70


def test_the_name_describes_the_metadata():
    for kernel in cutlass_api.get_kernels(cc=90):
        described = kernel.metadata
        assert "x".join(map(str, described.design.tile_shape)) in described.kernel_name
        letters = {ROW: "t", COLUMN: "n"}
        strides = [getattr(described.operands, name).stride for name in ("A", "B", "out")]
        if None not in strides:
            assert f"_{''.join(letters[stride] for stride in strides)}_" in described.kernel_name


# Attributes against operands.


@pytest.mark.parametrize(
    "attributes, tensor, reason",
    [
        (("float32", ROW), torch.ones(4, 8), None),
        (("float32", COLUMN), torch.ones(4, 8), "strides"),
        (("float32", COLUMN), torch.ones(8, 4).T, None),
        (("float32", ROW), torch.ones(8, 4).T, "strides"),
        (("float32", None), torch.ones(8, 8)[::2, ::2], None),
        (("float32", ROW), torch.ones(8, 8)[::2, ::2], "strides"),
        (("float16", ROW), torch.ones(4, 8), "dtype float32"),
        ((torch.float32, ROW), torch.ones(2, 4, 8), None),
        ((np.float32, (0, 1)), torch.ones(4, 8), None),
        (("float32", (1, 0)), torch.ones(4, 8), "strides"),
        (("float32", COLUMN), torch.ones(1, 1), None),
        (("float32", COLUMN), torch.ones(1, 8), None),
        (("float32", ROW), torch.ones(4, 8)[:, :1], None),
        (("float32", ROW, 8), torch.ones(4, 8), None),
        (("float32", ROW, 8), torch.ones(4, 12), "divisible by 8"),
        (("float32", ROW, 4), torch.ones(4, 12), None),
        (("float32", ROW, 4), torch.ones(4, 13)[:, :12], "divisible by 4"),
        (("float32", ROW, 1, 16), torch.ones(4, 8), None),
        (("float32", ROW, 1, 16), torch.ones(4, 9)[:, 1:], "aligned to 16 bytes"),
        (("float32", ROW, 1, 4), torch.ones(4, 9)[:, 1:], None),
        (("float32", ROW, 8, 16), np.ones((4, 8), np.float32), None),
        (("float16", ROW, 8, 16), fake(4, 8), None),
    ],
    ids=lambda value: None if isinstance(value, torch.Tensor | np.ndarray) else str(value),
)
@pytest.mark.parametrize("wrap", [lambda tensor: tensor, DenseTensor], ids=["tensor", "operand"])
def test_attributes(attributes, tensor, reason, wrap):
    status = DenseTensorAttributes(*attributes).supports(wrap(tensor), "A")
    if reason is None:
        assert status, status.error
    else:
        assert not status
        assert str(status.error).startswith("A ")
        assert reason in str(status.error)


def test_tensor_attributes_have_fields():
    attributes = TensorAttributes("float32", ROW, 4)
    assert (attributes.dtype, attributes.stride, attributes.divisibility) == ("float32", ROW, 4)
    assert attributes.ptr_alignment_bytes == 16
    assert attributes.supports(torch.ones(4, 8))
    assert "A has dtype float64" in str(attributes.supports(torch.ones(4, 8).double(), "A").error)
    scaled = ScaledTensorAttributes(FLOAT8, "float32", MX, None)
    described = [getattr(scaled, name) for name in TENSOR.split()]
    assert described == ["float8_e4m3fn", ROW, 16, 16]
    assert dataclasses.replace(scaled, mode=None).base is FLOAT8


@pytest.mark.parametrize(
    "dtype, divisibility, alignment",
    [
        ("float16", 8, 16),
        (torch.float32, 1, 4),
        ("float8_e5m2", 16, 16),
        (np.float64, 2, 16),
        (type("Float4E2M1FN", (), {"width": 4}), 32, 16),
        (type("Float4E2M1FN", (), {"width": 4}), 1, 1),
        ("unknown", 8, 1),
    ],
)
@pytest.mark.parametrize("cls", [TensorAttributes, DenseTensorAttributes])
def test_the_default_alignment_is_that_of_divisible_elements(cls, dtype, divisibility, alignment):
    assert cls(dtype, ROW, divisibility).ptr_alignment_bytes == alignment
    assert cls(dtype, ROW, divisibility, 32).ptr_alignment_bytes == 32


def test_a_misaligned_pointer_is_refused_by_default():
    storage = torch.ones(9 * 8)
    aligned, shifted = storage[:64].view(8, 8), storage[1:65].view(8, 8)
    attributes = DenseTensorAttributes("float32", ROW, 4)
    assert attributes.supports(aligned)
    status = attributes.supports(shifted, "A")
    assert str(status.error).startswith("A begins at address")
    assert "not aligned to 16 bytes" in str(status.error)
    assert DenseTensorAttributes("float32", ROW, 1).supports(shifted)
    out = torch.zeros(8, 8)
    operands = GemmOperandsMetadata(attributes, attributes, attributes, "float32")
    kernel = KernelMetadata("mine", cutlass_api.Kernel, 0, operands)
    assert kernel.supports(GemmArguments(aligned, aligned, out, "float32"))
    refused = kernel.supports(GemmArguments(aligned, shifted, out, "float32"))
    assert "B begins at address" in str(refused.error)


# Metadata against metadata.


@pytest.mark.parametrize(
    "wanted, reason",
    [
        (("float16", ROW, 8), None),
        ((torch.float16, ROW, 16), None),
        (("float16", (0, 1), 8), None),
        (("float16", ROW, 8, 32), None),
        (("bfloat16", ROW, 8), "dtype bfloat16"),
        (("float16", COLUMN, 8), "strides (0, 1, 0)"),
        (("float16", None, 8), "strides None"),
        (("float16", ROW, 12), "divisible by 12"),
        (("float16", ROW, 8, 8), "aligned to 8 bytes"),
    ],
)
def test_attributes_against_attributes(wanted, reason):
    status = DenseTensorAttributes("float16", ROW, 8).supports(DenseTensorAttributes(*wanted), "A")
    if reason is None:
        assert status, status.error
        assert DenseTensorAttributes("float16").supports(DenseTensorAttributes(*wanted))
    else:
        assert str(status.error).startswith("A is" if "is" in str(status.error) else "A has")
        assert reason in str(status.error)


def test_scaled_attributes_against_attributes():
    scaled = ScaledTensorAttributes(FLOAT8, "float32", MX, NONE)
    same = ScaledTensorAttributes(FLOAT8, DenseTensorAttributes("float32"), (1, 32), NONE)
    assert scaled.supports(same)
    assert same.supports(scaled)
    other = ScaledTensorAttributes(FLOAT8, "float16", (1, 32), NONE)
    assert "the scale of A has dtype float16" in str(scaled.supports(other, "A").error)
    assert "no scales" in str(scaled.supports(FLOAT8).error)
    assert "has scales" in str(FLOAT8.supports(scaled).error)


def test_operands_against_operands():
    half, single = DenseTensorAttributes("float16", ROW, 8), DenseTensorAttributes("float32")
    operands = GemmOperandsMetadata(half, half, single, "float32")
    assert operands.supports(operands)
    assert operands.supports(GemmOperandsMetadata(half, half, single, torch.float32))
    for change, reason in (
        ({"B": single}, "B has dtype float32"),
        ({"accumulator_type": "float16"}, "accumulator_type is float16"),
    ):
        status = operands.supports(dataclasses.replace(operands, **change))
        assert reason in str(status.error)
    grouped = GroupedGemmOperandsMetadata(
        half, half, single, DenseTensorAttributes("int32"), "float32"
    )
    assert "GemmOperandsMetadata" in str(operands.supports(grouped).error)
    assert not grouped.supports(operands)
    wanted = GemmOperandsMetadata(half, half, half, "float32")
    found = cutlass_api.get_kernels(cc=90, metadata_filter=lambda m: m.operands.supports(wanted))
    assert found
    assert {kernel.metadata.operands.A.dtype.name for kernel in found} == {"float16"}
    assert {kernel.metadata.operands.A.stride for kernel in found} <= {None, ROW}
    assert all(kernel.metadata.operands.supports(fake_gemm()) for kernel in found)


def test_designs_against_designs():
    design = BLASDesignMetadata((128, 128, 64), (2, 1, 1))
    assert design.supports(fake_gemm())
    assert design.supports(BLASDesignMetadata((128, 128, 64), (2, 1, 1)))
    assert design.supports(BLASDesignMetadata((128, 128, 64), None))
    status = design.supports(BLASDesignMetadata((128, 256, 64), (2, 1, 1)))
    assert str(status.error) == "tile_shape is (128, 128, 64), not (128, 256, 64)"
    blackwell = Sm100DesignMetadata((128, 128, 64), (2, 1, 1), True, None)
    assert blackwell.supports(design)
    assert str(design.supports(blackwell).error) == "use_2cta_mma is missing, not True"
    kernel = cutlass_api.get_kernels(cc=90)[0]
    own = BLASDesignMetadata(kernel.metadata.design.tile_shape, None)
    assert kernel.metadata.design.supports(own)


SCALED = "def f(accum, C, alpha):\n    D = accum * alpha + C\n    return D"


def test_epilogue_metadata_from_arguments():
    a, c, out = torch.ones(4, 4), torch.ones(4), torch.zeros(4, 4)
    epilogue = EpilogueArguments(SCALED, C=c, alpha=2.0, D=out)
    args = GemmArguments(a, a, out, "float32", epilogue)
    made = EpilogueMetadata.from_args(args)
    assert made == EpilogueMetadata.from_args(epilogue)
    assert made == cutlass_api.get_kernels(args)[0].metadata.epilogue
    assert "C: float32" in made.epilogue
    assert made.supports(args)
    assert made.supports(EpilogueMetadata(made.epilogue))
    assert "not other" in str(made.supports(EpilogueMetadata("other")).error)
    assert "no epilogue" in str(made.supports(GemmArguments(a, a, out, "float32")).error)


def test_epilogue_metadata_without_an_epilogue_of_ours():
    a, out = torch.ones(4, 4), torch.zeros(4, 4)
    assert EpilogueMetadata.from_args(GemmArguments(a, a, out, "float32")) is None
    assert EpilogueMetadata.from_args(ElementwiseArguments(a, a, out)) is None
    own = object()
    made = EpilogueMetadata.from_args(GemmArguments(a, a, out, "float32", own))
    assert made.epilogue is own

    class Mine(RuntimeArguments):
        epilogue = EpilogueArguments(SCALED, C=a, alpha=2.0, D=out)

    assert EpilogueMetadata.from_args(Mine()) == EpilogueMetadata.from_args(Mine.epilogue)
    assert EpilogueMetadata.from_args(RuntimeArguments()) is None


def test_scaled_attributes():
    wanted = ScaledTensorAttributes(FLOAT8, "float32", MX, NONE)
    base, scale = torch.ones(32, 64).to(torch.float8_e4m3fn), torch.ones(32, 2)
    assert wanted.supports(ScaledTensor(base, scale, (1, 32), NONE))
    other = ScaledTensor(base, scale, ScaleMode.Blockwise1x16, NONE)
    assert "Blockwise1x16" in str(wanted.supports(other, "A").error)
    assert "no scales" in str(wanted.supports(base, "A").error)
    assert "A has scales" in str(FLOAT8.supports(other, "A").error)
    half = ScaledTensorAttributes(FLOAT8, "float16", MX, NONE)
    error = str(half.supports(ScaledTensor(base, scale, MX, NONE), "A").error)
    assert "float16" in error and "float32" in error


def gemm_metadata(accumulator="float32"):
    half = DenseTensorAttributes("float16", ROW, 8)
    operands = GemmOperandsMetadata(half, half, half, accumulator)
    return KernelMetadata("mine", cutlass_api.Kernel, 80, operands)


def test_kernel_metadata_against_arguments():
    assert gemm_metadata().supports(fake_gemm())
    assert "B " in str(gemm_metadata().supports(fake_gemm(layout="tnt")).error)
    assert "out " in str(gemm_metadata().supports(fake_gemm(out=torch.float32)).error)
    status = gemm_metadata("float16").supports(fake_gemm())
    assert "accumulator_type is float32" in str(status.error)
    assert gemm_metadata(torch.float32).supports(fake_gemm())
    added = ElementwiseArguments(torch.ones(3), torch.ones(3), torch.ones(3))
    assert not gemm_metadata().supports(added)


def test_operands_of_each_operation():
    dense, ends = DenseTensorAttributes("float32"), torch.tensor([4], dtype=torch.int32)
    a, b, out = torch.ones(4, 4), torch.ones(4, 4), torch.ones(4, 4)
    arguments = [
        GemmArguments(a, b, out, "float32"),
        GroupedGemmArguments(a, b[None], out, "float32", ends),
        ElementwiseArguments(a, b, out),
    ]
    three = (dense, dense, dense)
    described = [
        GemmOperandsMetadata(*three, "float32"),
        GroupedGemmOperandsMetadata(*three, DenseTensorAttributes("int32"), "float32"),
        ElementwiseOperandsMetadata(*three),
    ]
    for one, operands in enumerate(described):
        assert [bool(operands.supports(args)) for args in arguments] == [
            one == other for other in range(3)
        ]
    wrong = GroupedGemmOperandsMetadata(*three, dense, "float32").supports(arguments[1])
    assert "offsets has dtype int32" in str(wrong.error)


@pytest.mark.parametrize("cc", [90, None])
def test_metadata_travel(cc):
    for kernel in (
        cutlass_api.get_kernels(fake_gemm(), cc=cc)[:3]
        + cutlass_api.get_kernels(providers=["reference"])[:1]
    ):
        assert pickle.loads(pickle.dumps(kernel.metadata)) == kernel.metadata
