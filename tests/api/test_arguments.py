"""Arguments: matching operands, errors of mismatched operands, and attributes."""

import gc
import types
import weakref
from pathlib import Path

import cutlass
import cutlass_api
import ml_dtypes
import numpy as np
import pytest
import torch
from cutlass_api.arguments import (
    DenseTensor,
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    KernelOperand,
    PerformanceControls,
    RuntimeArguments,
    ScaledTensor,
)
from cutlass_api.library import ScaleMode, ScaleSwizzleMode
from cutlass_api.metadata import DenseTensorAttributes, GroupedGemmOperandsMetadata
from support.helpers import DTYPES, coarse, exact, run_first


def gemm(a, b, out, **kwargs):
    return GemmArguments(
        torch.ones(a), torch.ones(b), torch.ones(out), **{"accumulator_type": "float32"} | kwargs
    )


def grouped(a=(8, 4), b=(2, 4, 3), out=(8, 3), offsets=None, accumulator_type=torch.float32):
    offsets = torch.tensor([3, 8], dtype=torch.int32) if offsets is None else offsets
    return GroupedGemmArguments(
        torch.ones(a), torch.ones(b), torch.ones(out), accumulator_type, offsets
    )


@pytest.mark.parametrize(
    "shapes, words",
    [
        ([(3, 4), (5, 6), (3, 6)], ["K", "A", "4", "[3, 4]", "B", "5", "[5, 6]"]),
        ([(3, 4), (4, 6), (2, 6)], ["M", "out", "2", "[2, 6]", "A", "3", "[3, 4]"]),
        ([(3, 4), (4, 6), (3, 7)], ["N", "out", "7", "[3, 7]", "B", "6", "[4, 6]"]),
        ([(2, 3, 4), (5, 4, 6), (2, 3, 6)], ["L", "B", "5", "[5, 4, 6]", "A", "2", "[2, 3, 4]"]),
        ([(2, 3, 4), (2, 4, 6), (3, 3, 6)], ["L", "out", "3", "[3, 3, 6]", "A", "2", "[2, 3, 4]"]),
        ([(2, 3, 4), (2, 5, 6), (2, 3, 6)], ["K", "A", "4", "[2, 3, 4]", "B", "5", "[2, 5, 6]"]),
        ([(1, 3, 4), (2, 4, 6), (2, 3, 6)], ["L", "B", "2", "[2, 4, 6]", "A", "1", "[1, 3, 4]"]),
        ([(2, 3, 4), (4, 6), (2, 3, 6)], ["rank", "B", "[4, 6]", "A", "[2, 3, 4]"]),
        ([(3, 4), (4, 6), (1, 3, 6)], ["rank", "out", "[1, 3, 6]", "A", "[3, 4]"]),
        ([(4,), (4, 6), (6,)], ["rank", "A", "1", "[4]"]),
        ([(0, 4), (5, 6), (0, 6)], ["K", "A", "4", "B", "5"]),
    ],
    ids=lambda value: " ".join(map(str, value[:2])),
)
def test_gemm_mismatches_name_operand_dimension_and_shapes(shapes, words):
    with pytest.raises(ValueError) as error:
        gemm(*shapes)
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, str(error.value)


@pytest.mark.parametrize(
    "shapes", [[(3, 4), (4, 6), (3, 6)], [(2, 3, 4), (2, 4, 6), (2, 3, 6)]], ids=["2", "batched"]
)
def test_gemm_attributes(shapes):
    a, b, out = map(torch.ones, shapes)
    epilogue = EpilogueArguments("def f(accum):\n    D = accum\n    return D", D=out)
    args = GemmArguments(a, b, out, torch.float32, epilogue)
    for name, tensor in {"A": a, "B": b, "out": out}.items():
        operand = getattr(args, name)
        assert isinstance(operand, DenseTensor)
        assert isinstance(operand, KernelOperand)
        assert (operand.shape, operand.stride) == (tuple(tensor.shape), tensor.stride())
        assert (operand.element_type, operand.data_ptr) == (torch.float32, tensor.data_ptr())
        assert operand.numel() == tensor.numel()
        assert operand.tensor.runtime_tensor is tensor
        assert operand.tensor.compile_time_tensor is tensor
    assert args.accumulator_type == torch.float32
    assert args.epilogue is epilogue
    assert args.performance is None
    assert isinstance(args, RuntimeArguments)


def test_attributes_cannot_be_replaced():
    args = gemm((3, 4), (4, 6), (3, 6))
    for name in ("A", "B", "out", "accumulator_type", "epilogue"):
        with pytest.raises(AttributeError):
            setattr(args, name, None)


def test_operands_already_wrapped_are_taken_as_they_are():
    a, b, out = torch.ones(3, 4), torch.ones(4, 6), torch.zeros(3, 6)
    args = GemmArguments(DenseTensor(a), b, DenseTensor(out), "float32")
    assert args.A.tensor.runtime_tensor is a
    run_first(args)
    assert torch.equal(out, a @ b)


def test_performance_controls_are_kept():
    controls = PerformanceControls()
    assert gemm((3, 4), (4, 6), (3, 6), performance=controls).performance is controls
    assert RuntimeArguments(performance=controls).performance is controls


@pytest.mark.parametrize("count", [-1, "two"])
def test_free_multiprocessors_are_a_count(count):
    controls = PerformanceControls(free_multiprocessors=count)
    with pytest.raises(ValueError, match=f"^free_multiprocessors is {count}; pass an integer"):
        gemm((3, 4), (4, 6), (3, 6), performance=controls)
    gemm((3, 4), (4, 6), (3, 6), performance=PerformanceControls(free_multiprocessors=8))


def test_required_parameters_by_name():
    with pytest.raises(TypeError, match="accumulator_type"):
        GemmArguments(torch.ones(3, 3), torch.ones(3, 3), torch.ones(3, 3))
    with pytest.raises(TypeError, match="beta"):
        gemm((3, 3), (3, 3), (3, 3), beta=1)


class Float32:
    """A class as in NVIDIA's cutlass; only its name matters."""


FORMS = [
    torch.float32,
    np.float32,
    np.dtype("float32"),
    "float32",
    "torch.float32",
    "Float32",
    cutlass.Float32,
    Float32,
]


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_accumulator_forms(form):
    args = gemm((3, 4), (4, 6), (3, 6), accumulator_type=form)
    assert args.accumulator_type == form
    assert args.accumulator_type == torch.float32
    assert args.accumulator_type != torch.float16
    assert len(cutlass_api.get_kernels(args)) == 1


@pytest.mark.parametrize(
    "form",
    [None, 3, "float7", "", torch.int64, np.dtype("complex64"), object(), dict],
    ids=lambda form: "object" if type(form) is object else repr(form),
)
def test_bad_accumulators(form):
    with pytest.raises(TypeError, match=r"^accumulator_type") as error:
        gemm((3, 4), (4, 6), (3, 6), accumulator_type=form)
    assert repr(form) in str(error.value)


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_under_all_their_names(name):
    dtype = cutlass_api.DType(name)
    assert dtype.name == str(dtype) == name
    assert dtype == DTYPES[name] == dtype
    assert dtype == f"torch.{name}"
    assert dtype.width == DTYPES[name].itemsize * 8
    assert hash(dtype) == hash(cutlass_api.DType(DTYPES[name]))
    kind = getattr(ml_dtypes, name, None) or getattr(np, name)
    assert dtype == kind
    assert dtype == np.dtype(kind)
    assert name in repr(dtype)
    others = [other for other in DTYPES if other != name]
    assert all(dtype != cutlass_api.DType(other) for other in others)
    assert dtype != "nonsense"
    assert dtype != 3


def test_python_s_float_is_that_of_numpy_and_torch():
    assert cutlass_api.DType(float) == np.dtype(float) == "float64"
    for wrong in (int, bool, Path("model.half")):
        with pytest.raises(TypeError, match="does not name a supported element type"):
            cutlass_api.DType(wrong)


@pytest.mark.parametrize("cls", [n for n in dir(cutlass) if n[0].isupper()])
def test_classes_of_cutlass(cls):
    supported = {name.replace("_", "") for name in DTYPES}
    if cls.lower() in supported:
        assert cutlass_api.DType(getattr(cutlass, cls)).name.replace("_", "") == cls.lower()
    else:
        with pytest.raises(TypeError, match=cls):
            cutlass_api.DType(getattr(cutlass, cls))


@pytest.mark.parametrize("a, out", [((8, 4), (8, 3)), ((1, 8, 4), (1, 8, 3)), ((8, 4), (1, 8, 3))])
def test_grouped(a, out):
    args = grouped(a=a, out=out)
    shapes = [x.shape for x in (args.A, args.B, args.out, args.offsets)]
    assert shapes == [a, (2, 4, 3), out, (2,)]
    assert (args.offsets.element_type, args.accumulator_type) == (torch.int32, torch.float32)
    assert args.epilogue is None
    assert len(cutlass_api.get_kernels(args)) == 1


@pytest.mark.parametrize(
    "change, words",
    [
        ({"a": (2, 8, 4)}, ["G", "out", "1", "[8, 3]", "B", "2", "[2, 4, 3]"]),
        ({"a": (3, 8, 4)}, ["G", "A", "3", "[3, 8, 4]", "B", "2", "[2, 4, 3]"]),
        ({"a": (8,)}, ["A", "rank", "[8]"]),
        ({"out": (8,)}, ["out", "rank", "[8]"]),
        ({"a": (8, 5)}, ["K", "A", "5", "[8, 5]", "B", "4", "[2, 4, 3]"]),
        ({"out": (7, 3)}, ["TotalM", "out", "7", "[7, 3]", "A", "8", "[8, 4]"]),
        ({"out": (8, 2)}, ["N", "out", "2", "[8, 2]", "B", "3", "[2, 4, 3]"]),
        ({"offsets": torch.tensor([3, 8])}, ["offsets", "int32", "int64"]),
    ],
    ids=[
        "out of masked groups",
        "A of masked groups",
        "A rank",
        "out rank",
        "K",
        "TotalM",
        "N",
        "offsets dtype",
    ],
)
def test_grouped_mismatches(change, words):
    with pytest.raises(ValueError) as error:
        grouped(**change)
    missing = [word for word in words if word not in str(error.value)]
    assert not missing, str(error.value)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"b": (4, 3)}, "B has rank 2 (shape [4, 3])"),
        ({"b": (3,)}, "B has rank 1 (shape [3])"),
        ({"b": (7, 5)}, "B has rank 2 (shape [7, 5])"),
        ({"offsets": torch.tensor([[3, 8]]).int()}, "offsets has rank 2 (shape [1, 2])"),
        ({"offsets": torch.tensor(8).int()}, "offsets has rank 0 (shape [])"),
    ],
)
def test_grouped_operands_of_another_rank_find_no_kernels(change, reason):
    args = grouped(**change)
    (operand,) = change
    assert len(getattr(args, operand.replace("b", "B")).shape) == int(reason.split()[3])
    for cc in (None, 90):
        assert cutlass_api.get_kernels(args, cc=cc) == []
    kernel = cutlass_api.get_kernels(grouped())[0]
    assert reason in str(kernel.supports(args).error)
    with pytest.raises(ValueError, match="has rank"):
        kernel.run(args, assume_supported_args=True)
    dense, ends = DenseTensorAttributes("float32"), DenseTensorAttributes("int32")
    operands = GroupedGemmOperandsMetadata(dense, dense, dense, ends, "float32")
    assert operands.supports(grouped())
    assert reason.replace("[", "(").split(" (")[0] in str(operands.supports(args).error)
    with pytest.raises(IndexError, match="has rank"):
        cutlass_api.get_kernels(args)[0]


@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_wrong_number_of_offsets_finds_no_kernels(length):
    args = grouped(offsets=torch.zeros(length, dtype=torch.int32))
    assert cutlass_api.get_kernels(args) == []
    kernel = cutlass_api.get_kernels(grouped())[0]
    assert f"offsets has {length} entries for 2 groups" in str(kernel.supports(args).error)
    with pytest.raises(ValueError, match="offsets"):
        kernel.run(args, assume_supported_args=True)


@pytest.mark.parametrize("offsets", [[5, 3], [-1, 8], [3, 9]], ids=str)
def test_wrong_offsets_are_refused_before_anything_is_written(offsets):
    args = grouped(offsets=torch.tensor(offsets, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"offsets .*row"):
        run_first(args)
    assert (args.out.tensor.runtime_tensor == 1).all()


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4)])
def test_elementwise(shape):
    a, b, out = torch.ones(shape), torch.ones(shape), torch.zeros(shape)
    args = ElementwiseArguments(a, b, out)
    assert (args.A.shape, args.B.shape, args.out.shape) == (shape,) * 3
    assert args.accumulator_type is None
    run_first(args)
    assert torch.equal(out, a + b)


@pytest.mark.parametrize("shape", [(3, 5), (4, 3), (3,), (1, 3, 4)])
@pytest.mark.parametrize("name", ["B", "out"])
def test_elementwise_mismatches(name, shape):
    operands = {"A": torch.ones(3, 4), "B": torch.ones(3, 4), "out": torch.ones(3, 4)} | {
        name: torch.ones(shape)
    }
    with pytest.raises(ValueError) as error:
        ElementwiseArguments(**operands)
    assert name in str(error.value)
    assert str(list(shape)) in str(error.value)
    assert "[3, 4]" in str(error.value)
    assert "rank 2 or all have rank 3" not in str(error.value), "rank 1 is fine"


def test_scaled_tensors():
    base, scale = torch.ones(32, 64).to(torch.float8_e4m3fn), torch.ones(32, 2)
    mode, swizzle = ScaleMode.Blockwise1x32, ScaleSwizzleMode.SwizzleNone
    scaled = ScaledTensor(base, scale, mode, swizzle)
    assert isinstance(scaled, KernelOperand)
    assert scaled.base.tensor.runtime_tensor is base
    assert scaled.scale.tensor.runtime_tensor is scale
    assert (scaled.mode, scaled.swizzle) == (mode, swizzle)
    assert (scaled.shape, scaled.stride, scaled.numel()) == ((32, 64), (64, 1), 2048)
    assert (scaled.element_type, scaled.data_ptr) == (torch.float8_e4m3fn, base.data_ptr())
    assert scaled.tensor.runtime_tensor is base
    args = GemmArguments(scaled, base.T, torch.zeros(32, 32), "float32")
    assert args.A is scaled
    assert args.epilogue is None
    assert len(cutlass_api.get_kernels(args)) == 1
    plain = GemmArguments(base, base.T, torch.zeros(32, 32), "float32")
    kernel = cutlass_api.get_kernels(plain)[0]
    assert "A has scales" in str(kernel.supports(args).error)


def test_scaled_tensors_name_their_parts():
    with pytest.raises(TypeError, match=r"^base is a int"):
        ScaledTensor(3, torch.ones(3), ScaleMode.Blockwise1x16, ScaleSwizzleMode.SwizzleNone)
    with pytest.raises(TypeError, match=r"^scale is a int"):
        ScaledTensor(torch.ones(3), 3, ScaleMode.Blockwise1x16, ScaleSwizzleMode.SwizzleNone)


def test_arguments_of_a_class_of_ones_own():
    class Mine(RuntimeArguments):
        def __init__(self, x, *, y):
            self.x, self.y = x, y

    args = Mine(1, y=2)
    assert (args.x, args.y) == (1, 2)
    assert cutlass_api.get_kernels(args) == []
    kernel = cutlass_api.get_kernels()[0]
    assert not kernel.supports(args)
    with pytest.raises((TypeError, ValueError)):
        kernel.run(args)


@pytest.mark.parametrize(
    "wrong", [None, 3, "A @ B", torch.ones(3, 3)], ids=lambda v: type(v).__name__
)
def test_what_is_no_arguments(wrong):
    kernel = cutlass_api.get_kernels()[0]
    for call in (kernel.supports, kernel.run, kernel.compile, kernel.get_workspace_size):
        with pytest.raises(TypeError, match=rf"^args is a {type(wrong).__name__}"):
            call(wrong)


def test_an_argument_subclass_of_gemm():
    class Named(GemmArguments):
        pass

    out = torch.zeros(3, 6)
    a, b = coarse(3, 4), coarse(4, 6)
    run_first(Named(a, b, out, accumulator_type="float32"))
    assert torch.equal(out, exact(a, b, torch.float32))


# Reference cycles through arguments.


def bound(tensor):
    args = GemmArguments(tensor, torch.ones(2, 2), torch.ones(2, 2), "float32")
    return cutlass_api.get_kernels(args)[0].bind(args)


def behind(tensor):
    """An epilogue with a function that leads back to the tensor."""

    def function(accum):
        D = accum * 2
        return D

    function.owner = tensor
    return EpilogueArguments(function, D=torch.ones(2, 2))


SQUARES, SUM = [(2, 2)] * 3, "def f(accum, C):\n    D = accum + C\n    return D"
CYCLES = {
    "performance": lambda x: gemm(*SQUARES, performance=x),
    "arguments": lambda x: GemmArguments(x, x, torch.ones(2, 2), "float32"),
    "fused": lambda x: gemm(*SQUARES, epilogue=behind(x)),
    "operands": lambda x: gemm(*SQUARES, epilogue=EpilogueArguments(SUM, C=x, D=x.clone())),
    "bound": bound,
    "epilogue": behind,
    "scaled": lambda x: ScaledTensor(x, torch.ones(2, 1), (1, 16), ScaleSwizzleMode.SwizzleNone),
    "dense": DenseTensor,
    "wrapped": cutlass_api.utils.TensorWrapper,
    "artifact": lambda x: cutlass_api.artifact.CompiledArtifact(None, types.SimpleNamespace(x=x)),
    "cuda_kernel": lambda x: cutlass_api.cuda_kernel("__global__ void f() {}", "f", grid=lambda: x),
}


@pytest.mark.parametrize("make", CYCLES.values(), ids=CYCLES)
def test_a_cycle_of_a_tensor_and_an_object_made_from_it_is_collected(make):
    tensor = torch.ones(2, 2)
    tensor.holds = make(tensor)
    gone = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert gone() is None
