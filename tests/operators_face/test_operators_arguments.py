"""Arguments and operands: what they accept, and tensors that a client replaces."""

import gc
import pickle
import weakref

import cutlass_api
import pytest
import torch
from cutlass_api import operators as ops
from cutlass_api.operators.utils.tensor import TensorWrapper
from operators_face.face import fake_arguments, real_arguments
from support.helpers import fake


def run(args, artifact=None):
    ops.get_operators(args)[0].run(args, artifact)


def test_operands_have_one_set_of_attributes():
    args, (a, b, out) = real_arguments()
    assert args.A.shape == (24, 32) and args.A.stride == (32, 1) and args.A.numel() == a.numel()
    assert args.B.data_ptr == b.data_ptr() and args.out.tensor.runtime_tensor is out
    assert args.problem_size == ops.arguments.GemmProblemSize(M=24, N=16, K=32, L=1)
    assert args.epilogue is None and args.performance is None
    assert "A=DenseTensor(tensor=<TensorWrapper float32[24, 32]>)" in repr(args)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int8, torch.float64])
def test_dtypes_have_the_text_of_the_metadata(dtype):
    args = fake_arguments(dtype=dtype)
    found = ops.get_operators(args, target_sm="90a")
    assert found
    for operator in found:
        operands = operator.metadata.operands
        for name in ("A", "B", "out"):
            assert str(getattr(args, name).dtype) == str(getattr(operands, name).dtype)


def test_everything_accepts_attributes():
    args, _ = real_arguments()
    operator = ops.get_operators(args)[0]
    artifact = operator.compile(args)
    for each in (args, args.A, args.A.tensor, artifact, operator):
        each.of_a_client = 1
        assert each.of_a_client == 1
    assert args.A.of_a_client == 1
    run(args, artifact)


@pytest.mark.parametrize("wrap", [ops.DenseTensor, TensorWrapper, lambda tensor: tensor])
def test_operands_of_every_form(wrap):
    _, (a, b, out) = real_arguments()
    args = ops.GemmArguments(wrap(a), B=wrap(b), out=wrap(out), accumulator_type="float32")
    run(args)
    torch.testing.assert_close(out, a @ b)
    again = ops.GemmArguments(args.A, args.B, args.out, args.accumulator_type)
    assert again.A is not args.A and again.A.tensor.runtime_tensor is a
    copy = args.A.copy()
    assert copy is not args.A and copy.data_ptr == a.data_ptr()


def test_errors_are_those_of_the_core():
    _, (a, b, out) = real_arguments()
    with pytest.raises(TypeError, match="A is a int"):
        ops.GemmArguments(3, b, out, "float32")
    with pytest.raises(ValueError, match="dimension K differs"):
        ops.GemmArguments(a, b.t(), out, "float32")


def test_a_replaced_tensor_is_used():
    args, (a, b, out) = real_arguments()
    operator = ops.get_operators(args)[0]
    artifact = operator.compile(args)
    other, into = torch.randn_like(a), torch.empty_like(out)
    for wrapper, tensor in ((args.A.tensor, other), (args.out.tensor, into)):
        wrapper._runtime_tensor = tensor
        wrapper._data_ptr = tensor.data_ptr()
    operator.run(args, artifact, stream=0, assume_supported_args=True)
    torch.testing.assert_close(into, other @ b)
    assert args.A.data_ptr == other.data_ptr()
    args.B = torch.ones_like(b)
    operator.run(args, artifact)
    torch.testing.assert_close(into, other @ torch.ones_like(b))


def test_a_released_tensor_is_missed_when_it_runs():
    args, _ = real_arguments()
    operator = ops.get_operators(args)[0]
    args.A.tensor._runtime_tensor = None
    assert args.A.data_ptr == 0 and args.A.shape == (24, 32)
    with pytest.raises(ValueError, match="set _runtime_tensor"):
        operator.run(args)
    with pytest.raises(ValueError, match="FakeTensor"):
        _ = fake_arguments().A.tensor.runtime_tensor


def test_arguments_are_freed_without_the_collector():
    args, (a, *_) = real_arguments()
    tensor, operand = weakref.ref(a), args.A
    operand.tensor._runtime_tensor = torch.zeros_like(a)
    run(args)
    gc.disable()
    try:
        del args, a, operand, _
        assert tensor() is None
    finally:
        gc.enable()


SOURCE = "def f(accum, bias):\n    D = relu(accum + bias)\n    return D"


def test_epilogues():
    _, (a, b, out) = real_arguments()
    bias = torch.randn(16)
    load = ops.Load(bias, via="async_gmem_load", num_bits_per_copy=32)
    epilogue = ops.EpilogueArguments(SOURCE, bias=load, D=ops.Store(out))
    assert list(epilogue.tensors) == epilogue.parameter_names == ["bias", "D"]
    assert epilogue.transports["bias"].via is ops.Transport.ASYNC_GMEM_LOAD
    args = ops.GemmArguments(a, b, out, "float32", epilogue)
    run(args)
    torch.testing.assert_close(out, (a @ b + bias).relu())
    copied = args.epilogue
    assert copied is not epilogue and isinstance(copied.tensors["bias"], TensorWrapper)
    copied.tensors["bias"]._runtime_tensor = torch.zeros(16)
    run(args)
    torch.testing.assert_close(out, (a @ b).relu())
    copied.tensors["bias"] = bias + 1
    run(args)
    torch.testing.assert_close(out, (a @ b + bias + 1).relu())
    assert torch.equal(epilogue.tensors["bias"], bias)


TWO_OUTPUTS = "def f(accum, C, alpha):\n    D = alpha * accum + C\n    F = relu(D)\n    return D, F"


def two_outputs(accum, C, alpha):
    D = alpha * accum + C
    F = relu(D)  # noqa: F821
    return D, F


@pytest.mark.parametrize("function", [TWO_OUTPUTS, two_outputs], ids=["text", "function"])
def test_epilogues_take_the_names_of_their_function(function):
    _, (a, b, out) = real_arguments()
    c, second = torch.randn_like(out), torch.empty_like(out)
    named = {"C": c, "alpha": 0.5, "D": out, "F": second}
    for missing in named:
        rest = {name: value for name, value in named.items() if name != missing}
        with pytest.raises(ValueError, match=f"{missing} is not provided"):
            ops.EpilogueArguments(function, **rest)
    with pytest.raises(ValueError, match="gamma is neither"):
        ops.EpilogueArguments(function, **named, gamma=3.0)
    epilogue = ops.EpilogueArguments(epilogue_fn=function, **named)
    assert epilogue.transports == {} and epilogue.tensors["C"] is c
    run(ops.GemmArguments(a, b, out, "float32", epilogue))
    torch.testing.assert_close(out, a @ b / 2 + c)
    assert torch.equal(second, out.relu())


@pytest.mark.parametrize(
    ("wrapper", "own"), [(ops.Load, "load"), (ops.Store, "store")], ids=["load", "store"]
)
def test_transports_of_each_direction(wrapper, own):
    tensor = torch.zeros(4)
    for via in (f"sync_gmem_{own}", "tma"):
        made = wrapper(tensor, via=via)
        assert made.via is wrapper(tensor, via=made.via).via is ops.Transport(via)
    assert wrapper(tensor).via is ops.Transport.TMA
    assert wrapper(tensor, f"sync_gmem_{own}", num_bits_per_copy=64).num_bits_per_copy == 64
    other = {"load": "sync_gmem_store", "store": "async_gmem_load"}[own]
    for via in (other, "by_hand"):
        with pytest.raises(ValueError, match=via):
            wrapper(tensor, via=via)
    for bits in (64.0, "64"):
        with pytest.raises(TypeError, match="num_bits_per_copy"):
            wrapper(tensor, f"sync_gmem_{own}", num_bits_per_copy=bits)


def test_transports_are_checked():
    tensor = torch.zeros(16)
    with pytest.raises(ValueError, match="via of Load is sync_gmem_store"):
        ops.Load(tensor, via="sync_gmem_store")
    with pytest.raises(ValueError, match="num_bits_per_copy of Store is 32"):
        ops.Store(tensor, num_bits_per_copy=32)
    with pytest.raises(TypeError, match="num_bits_per_copy of Load is True"):
        ops.Load(tensor, "sync_gmem_load", num_bits_per_copy=True)
    with pytest.raises(ValueError, match="'bias' of the epilogue is a Store; pass Load"):
        ops.EpilogueArguments(SOURCE, bias=ops.Store(tensor), D=torch.zeros(24, 16))


def test_scaled_operands():
    tensors = fake(64, 256, dtype=torch.float8_e4m3fn), fake(256, 32, dtype=torch.float8_e4m3fn)
    swizzle = ops.ScaleSwizzleMode.SwizzleNone
    mode = ops.ScaleMode.Blockwise1x32
    scaled = [
        ops.ScaledOperand(tensor, fake(*shape, dtype=torch.float32), mode, swizzle)
        for tensor, shape in zip(tensors, ((64, 8), (8, 32)), strict=True)
    ]
    args = ops.GemmArguments(*scaled, fake(64, 32, dtype=torch.bfloat16), "float32")
    assert args.A.quantized.shape == (64, 256) and args.A.scale.shape == (64, 8)
    assert args.A.mode == (1, 32) and str(args.A.dtype) == "Float8E4M3FN"
    found = ops.get_operators(args, target_sm="90a")
    assert found
    constraints = found[0].metadata.operands.A
    assert isinstance(constraints, ops.metadata.ScaledOperandConstraints)
    parts = constraints.quantized, constraints.scale, constraints.mode, constraints.swizzle
    assert ops.metadata.ScaledOperandConstraints(*parts) == constraints
    assert found[0].metadata.supports(args, target_sm="90a")
    assert ops.ScaledOperand.numel_scale((4, 100, 96), mode, swizzle) == 4 * 100 * 3
    tiled = ops.ScaleSwizzleMode.Swizzle32x4x4
    assert ops.ScaledOperand.numel_scale((100, 96), mode, tiled) == 128 * 4
    assert ops.ScaleMode.numel((1, 2, 8)) == 16 and ops.ScaleMode.compare((1, 32), mode)


#: The shape of values, and the scales of blocks of 16 and of 32, in rows and in tiles of 128 x 4.
SCALES = [
    ((256, 1024), (16384, 8192), (16384, 8192)),
    ((2, 64, 48), (384, 256), (1024, 1024)),
    ((1, 16, 33), (48, 32), (512, 512)),
    ((1, 200, 1024), (12800, 6400), (16384, 8192)),
    ((2, 200, 160), (4000, 2000), (6144, 4096)),
    ((1, 128, 128), (1024, 512), (1024, 512)),
]


@pytest.mark.parametrize(("shape", "in_rows", "in_tiles"), SCALES)
def test_numbers_of_scales(shape, in_rows, in_tiles):
    modes = ops.ScaleMode.Blockwise1x16, ops.ScaleMode.Blockwise1x32
    swizzles = ops.ScaleSwizzleMode.SwizzleNone, ops.ScaleSwizzleMode.Swizzle32x4x4
    for swizzle, counts in zip(swizzles, (in_rows, in_tiles), strict=True):
        for mode, size, count in zip(modes, (16, 32), counts, strict=True):
            for each in (mode, (1, 1, size), (1, size)):
                assert ops.ScaledOperand.numel_scale(shape, each, swizzle) == count
        with pytest.raises(ValueError, match=r"pass \(rows, K\) or \(batch, rows, K\)"):
            ops.ScaledOperand.numel_scale((1, *shape[-2:], 1), mode, swizzle)


def grouped(along, **options):
    a, b, out = {
        "m": ((40, 32), (3, 32, 16), (40, 16)),
        "k": ((24, 40), (40, 16), (3, 24, 16)),
        "n": ((3, 24, 32), (32, 40), (24, 40)),
    }[along]
    offsets = torch.tensor([8, 20, 40], dtype=torch.int32)
    tensors = (torch.randn(shape) for shape in (a, b, out))
    return ops.IndexPtrGroupedGemmArguments(*tensors, "float32", offsets, along, **options)


@pytest.mark.parametrize("along", ["m", "k"])
def test_groups(along):
    args = grouped(along)
    run(args)
    a, b, out = (getattr(args, name).tensor.runtime_tensor for name in ("A", "B", "out"))
    for group, (start, end) in enumerate([(0, 8), (8, 20), (20, 40)]):
        if along == "m":
            torch.testing.assert_close(out[start:end], a[start:end] @ b[group])
        else:
            torch.testing.assert_close(out[group], a[:, start:end] @ b[start:end])
    metadata = ops.get_operators(args)[0].metadata.operands
    assert isinstance(metadata, ops.metadata.IndexPtrGroupedGemmOperandsMetadata)
    assert metadata.offsets_along == args.offsets_along == along and args.offsets.shape == (3,)


def test_groups_that_are_refused():
    with pytest.raises(NotImplementedError, match=r"offsets_along=\"m\" with B.mT for A"):
        grouped("n")
    a, out = torch.zeros(8, 8), torch.zeros(8, 8)
    offsets = torch.tensor([8], dtype=torch.int32)
    with pytest.raises(ValueError, match="offsets_along is 'x'"):
        ops.IndexPtrGroupedGemmArguments(a, a[None], out, "float32", offsets, "x")
    with pytest.raises(ValueError, match=r"B has shape .* takes rank 2"):
        ops.IndexPtrGroupedGemmArguments(a, a[None], out, "float32", offsets, "k")
    three = torch.tensor([2, 4, 8], dtype=torch.int32)
    for b, result, along in ((a.expand(2, 8, 8), out, "m"), (a, out.expand(2, 8, 8).clone(), "k")):
        with pytest.raises(ValueError, match=r"has 2 groups, so pass offsets of shape \(2,\)"):
            ops.IndexPtrGroupedGemmArguments(a, b, result, "float32", three, along)


def test_an_assigned_dimension_of_groups_is_checked():
    args = grouped("m")
    for wrong, error in (("n", NotImplementedError), ("x", ValueError)):
        with pytest.raises(error, match="offsets_along"):
            args.offsets_along = wrong
    assert args.offsets_along == "m" and ops.get_operators(args)
    args.offsets_along = "k"
    with pytest.raises(ValueError, match="offsets_along='k' takes rank 2"):
        ops.get_operators(args)
    other = grouped("k")
    args.A, args.B, args.out = other.A, other.B, other.out
    assert ops.get_operators(args)[0].metadata.operands.offsets_along == "k"


def test_the_deprecated_class_warns():
    a, offsets = torch.zeros(8, 8), torch.tensor([8], dtype=torch.int32)
    with pytest.warns(DeprecationWarning, match="IndexPtrGroupedGemmArguments"):
        args = ops.GroupedGemmArguments(a, a[None], a.clone(), "float32", offsets)
    assert isinstance(args, ops.IndexPtrGroupedGemmArguments) and args.offsets_along == "m"


def test_what_the_core_s_arguments_have_beside_tensors_stays():
    _, (a, b, out) = real_arguments()
    source = "def f(A):\n    A = relu(A)\n    return A"
    prologue = cutlass_api.arguments.PrologueArguments(source)
    args = ops.GemmArguments(a, b, out, "float32", prologue=prologue)
    other = torch.randn_like(a)
    args.A.tensor._runtime_tensor = other
    run(args)
    torch.testing.assert_close(out, other.relu() @ b)
    halves = [b[:, :8].t().contiguous().t(), b[:, 8:].t().contiguous().t()]
    args = ops.GemmArguments(a, halves, out, "float32")
    args.A.tensor._runtime_tensor = other
    run(args)
    torch.testing.assert_close(out, other @ b)


def test_the_core_takes_the_arguments():
    args, (a, b, out) = real_arguments()
    kernel = cutlass_api.get_kernels(args)[0]
    kernel.run(args)
    torch.testing.assert_close(out, a @ b)


def test_performance_reaches_the_core():
    fast = ops.PerformanceControls(fast_sums=True)
    args = fake_arguments(dtype=torch.float8_e4m3fn, performance=fast)
    assert args.performance is fast
    assert any(
        operator.metadata.design.core.fast_sums
        for operator in ops.get_operators(args, target_sm="90a")
        if hasattr(operator.metadata.design.core, "fast_sums")
    )


def test_metadata_is_pickled():
    constraints = ops.metadata.DenseTensorConstraints("float16", (0, 0, 1), 8)
    assert pickle.loads(pickle.dumps(constraints)) == constraints
    assert pickle.loads(pickle.dumps(ops.TargetSm("90a"))) == ops.TargetSm("90a")
