"""What operators do with operands that they cannot read, and with what are no arguments."""

import copy

import cutlass_api
import pytest
import torch
from cutlass_api import operators as ops
from cutlass_api.operators.utils.tensor import TensorWrapper
from operators_face.face import fake_arguments, real_arguments

cutlass = pytest.importorskip("cutlass")
HALF, FP8, FP4 = torch.float16, torch.float8_e4m3fn, torch.float4_e2m1fn_x2


def empty(*shape, dtype=HALF, device="meta"):
    bytes_of_pairs = torch.empty(shape, dtype=torch.uint8, device=device)
    return bytes_of_pairs.view(dtype) if dtype == FP4 else bytes_of_pairs.to(dtype)


def scaled(rows, bytes_of_k, dtype, scales, kind, block, transposed=False, device="meta"):
    values = empty(rows, bytes_of_k, dtype=dtype, device=device)
    count = rows * 4 * (32 // block)
    scale = empty(count, dtype=scales, device=device)
    swizzle = ops.ScaleSwizzleMode.Swizzle32x4x4
    return ops.ScaledOperand(values.T if transposed else values, scale, kind, swizzle)


def block_scaled(dtype, scales, kind, block, device):
    width = 64 if dtype == FP4 else 128
    parts = (dtype, scales, kind, block)
    a = scaled(128, width, *parts, device=device)
    b = scaled(256, width, *parts, transposed=True, device=device)
    return ops.GemmArguments(a, b, empty(128, 256, device=device), "float32")


def grouped(along, device):
    b, out = ((2, 64, 256), (128, 256)) if along == "m" else ((64, 256), (2, 128, 256))
    tensors = (empty(*shape, device=device) for shape in ((128, 64), b, out))
    offsets = empty(2, dtype=torch.int32, device=device)
    return ops.IndexPtrGroupedGemmArguments(*tensors, "float32", offsets, along)


def plain(a, b, device, out=HALF, accumulator="float32", **options):
    tensors = ((128, 64, a), (64, 256, b), (128, 256, out))
    made = [empty(*shape, dtype=dtype, device=device) for *shape, dtype in tensors]
    if "function" in options:
        d = made[2]
        options = {"epilogue": ops.EpilogueArguments(options["function"], D=d)}
    return ops.GemmArguments(*made, accumulator, **options)


MX, NV = ops.ScaleMode.Blockwise1x32, ops.ScaleMode.Blockwise1x16
E8M0 = torch.float8_e8m0fnu
DOUBLED = "def f(accum):\n    D = accum * 2\n    return D"
ARGUMENTS = {
    "plain": lambda on: plain(HALF, HALF, on),
    "float64": lambda on: plain(torch.float64, torch.float64, on, torch.float64, "float64"),
    "integers": lambda on: plain(torch.int8, torch.int8, on, torch.int32, "int32"),
    "mixed": lambda on: plain(HALF, torch.int8, on),
    "unscaled fp4": lambda on: plain(FP4, FP4, on),
    "epilogue": lambda on: plain(HALF, HALF, on, function=DOUBLED),
    "fast sums": lambda on: plain(
        FP8, FP8, on, performance=ops.PerformanceControls(fast_sums=True)
    ),
    "MXFP8": lambda on: block_scaled(FP8, E8M0, MX, 32, on),
    "MXFP4": lambda on: block_scaled(FP4, E8M0, MX, 32, on),
    "NVFP4": lambda on: block_scaled(FP4, FP8, NV, 16, on),
    "groups of rows": lambda on: grouped("m", on),
    "groups along K": lambda on: grouped("k", on),
}


@pytest.fixture(scope="module")
def operators():
    """One operator of each class, element types and scales."""
    found = {}
    for target in ("90a", "80"):
        for each in ops.get_operators(target_sm=target):
            of = each.kernel.metadata.operands
            parts = (getattr(of, name) for name in ("A", "B", "out"))
            kind = tuple((str(p.dtype), type(p), str(getattr(p, "mode", ""))) for p in parts)
            found.setdefault((type(each), *kind), each)
    assert any("e2m1" in repr(each) for each in found.values())
    return list(found.values())


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("kind", ARGUMENTS)
def test_supports_returns_a_status_for_arguments_of_every_kind(kind, device, operators):
    args = ARGUMENTS[kind](device)
    for operator in operators:
        for target in (None, "80", "90a"):
            status = operator.supports(args, target)
            assert isinstance(status, ops.Status) and bool(status) != bool(str(status.error or ""))
        described = operator.metadata.operands
        assert isinstance(described.supports(args), ops.Status)
        assert described.supports(described)


# ---- meta tensors --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ARGUMENTS)
def test_meta_tensors_describe_operands_of_a_gpu(kind):
    """NVIDIA's package searches for and compiles with them, too."""
    args = ARGUMENTS[kind]("meta")
    found = ops.get_operators(args, target_sm="90a")
    assert found == ops.get_operators(ARGUMENTS[kind]("cpu"), target_sm="90a")
    assert found or "fp4" in kind.lower() or kind == "MXFP4"
    for operator in found[:1]:
        assert operator.supports(args, "90a")
        with pytest.raises(ValueError, match="is a FakeTensor without memory; pass a real tensor"):
            operator.run(args)
    assert copy.deepcopy(args).A.shape == args.A.shape


def test_meta_tensors_keep_strides_and_dtype():
    tensor = torch.empty(8, 6, 4, dtype=HALF, device="meta").permute(2, 0, 1)
    wrapper = TensorWrapper(tensor)
    assert (wrapper.shape, wrapper.stride) == (tensor.shape, tensor.stride())
    assert wrapper.dtype is cutlass.Float16 and wrapper.data_ptr == 0
    constraints = ops.metadata.DenseTensorConstraints(HALF, None, 1)
    assert constraints.supports(ops.DenseTensor(tensor)) and constraints.supports(wrapper)


# ---- what cannot be read -------------------------------------------------------------------------


def test_errors_of_tensors_without_strided_memory_name_the_operand():
    (_, (a, b, out)), wrong = real_arguments(), torch.eye(24, 32).to_sparse()
    for name, operands in {
        "A": (wrong, b, out),
        "B": (a, ops.DenseTensor(wrong), out),
        "out": (a, b, wrong),
    }.items():
        with pytest.raises(BufferError, match=rf"^{name}\b.*pass a dense tensor"):
            ops.GemmArguments(*operands, "float32")
    scaled_by = ops.ScaledOperand(a, wrong, (1, 1, 32), ops.ScaleSwizzleMode.SwizzleNone)
    with pytest.raises(BufferError, match=r"^A: scale: .*pass a dense tensor"):
        ops.GemmArguments(scaled_by, b, out, "float32")
    offsets = torch.tensor([12, 24], dtype=torch.int32).to_sparse()
    with pytest.raises(BufferError, match=r"^offsets\b.*pass a dense tensor"):
        ops.IndexPtrGroupedGemmArguments(a, b.expand(2, 32, 16), out, "float32", offsets, "m")


@pytest.mark.parametrize(
    "wrong",
    [None, "x", 3, object(), [1], torch.eye(3).to_sparse(), torch.empty(3), ops.DenseTensor(None)],
    ids=lambda wrong: type(wrong).__name__,
)
@pytest.mark.parametrize("name", ["A", "B", "out"])
def test_an_attribute_that_is_no_operand(name, wrong):
    args, _ = real_arguments()
    served = [
        ops.get_operators(args)[0],
        ops.get_operators(target_sm="90a", limit=1)[0],
        Own.made(),
    ]
    setattr(args, name, wrong)
    for operator in served:
        for target in (None, "80", "90a"):
            status = operator.supports(args, target)
            is_of_own_rules = isinstance(wrong, torch.Tensor) and isinstance(operator, Own)
            assert is_of_own_rules or (not status and str(status.error))
    for assumed in (False, True):
        with pytest.raises((BufferError, TypeError, ValueError), match=name):
            served[0].run(args, assume_supported_args=assumed)


def test_an_operand_of_a_class_that_the_core_does_not_know_replaces_the_tensor():
    class Mine(ops.Operand):
        __copy__ = None

    args, (_, _, out) = real_arguments()
    operator = ops.get_operators(args)[0]
    args.A = Mine()
    out.fill_(7)
    assert not operator.supports(args)
    for assumed in (False, True):
        with pytest.raises((TypeError, ValueError)):
            operator.run(args, assume_supported_args=assumed)
    assert out.eq(7).all()


@pytest.mark.parametrize("wrong", [None, "x", 3, object(), [1]], ids=lambda it: type(it).__name__)
def test_an_accumulator_type_that_is_no_type(wrong):
    args, _ = real_arguments()
    with pytest.raises(TypeError, match=r"accumulator_type is .*; pass an element type"):
        args.accumulator_type = wrong
    assert ops.get_operators(args)[0].supports(args)


class Own(ops.Operator):
    supported_args_type = ops.GemmArguments
    designed_for_min_cc = 80

    @classmethod
    def made(cls):
        any_tensor = ops.metadata.DenseTensorConstraints("float32", None, 1)
        operands = ops.metadata.GemmOperandsMetadata(*[any_tensor] * 3, "float32")
        return cls(ops.OperatorMetadata("own", cls, [ops.TargetSm("80")], operands))

    def _compile(self, args, target_sm=None):
        raise AssertionError

    _run = _generate_operators = _compile


_, TENSORS = real_arguments()
NO_ARGUMENTS = [None, "x", 3, object(), {}, ops.GemmArguments, TENSORS[0]]
NO_ARGUMENTS += [cutlass_api.arguments.GemmArguments(*TENSORS, "float32")]


@pytest.mark.parametrize("wrong", NO_ARGUMENTS, ids=lambda wrong: type(wrong).__name__)
def test_what_are_no_arguments(wrong):
    own = ops.get_operators(real_arguments()[0])[0]
    fused = ops.get_operators(fake_arguments(), target_sm="90a")
    fused = next(each for each in fused if "EFC" in type(each).__name__)
    for operator in (own, fused, Own.made()):
        reason = "args and target_sm are None" if wrong is None else "; pass arguments of cutlass_"
        assert reason in str(operator.supports(wrong).error)
        if wrong is not None:
            assert not operator.supports(wrong, "90a")
    for operator in (own, fused):
        for call in (
            operator.run,
            lambda args, each=operator: each.run(args, assume_supported_args=True),
            operator.compile,
            operator.get_workspace_size,
            lambda args, each=operator: each.initialize_workspace(args, None),
        ):
            with pytest.raises(TypeError, match=r"such as GemmArguments|args is a"):
                call(wrong)


@pytest.mark.parametrize("wrong", NO_ARGUMENTS[1:], ids=lambda wrong: type(wrong).__name__)
def test_searches_with_what_are_no_arguments(wrong):
    for target in (None, "90a"):
        with pytest.raises(TypeError, match=r"pass arguments of cutlass_api\.operators, such as"):
            ops.get_operators(wrong, target_sm=target)


def ones_with_scales(mode=ops.ScaleMode.Blockwise1x32, swizzle=ops.ScaleSwizzleMode.SwizzleNone):
    return ops.ScaledOperand(torch.ones(4, 32), torch.ones(4, 1), mode, swizzle)


class NoOrder(ops.Heuristic):
    def rank(self, args, operators, *, target_sm=None, limit=None):
        return None


@pytest.mark.parametrize(
    ("search", "message"),
    [
        (lambda: ops.TargetSm(90), "sm_str is 90; pass a text such as '90a', or cc=90"),
        (lambda: ops.TargetSm(cc="90"), "cc is '90'; pass an integer such as 90"),
        (lambda: ops.get_operators(heuristic="nvmatmul"), r"get_heuristic\(name\)\(\)"),
        (lambda: ops.get_operators(heuristic=NoOrder), "pass an instance of a Heuristic"),
        (lambda: ops.get_operators(heuristic=NoOrder()), "NoOrder returned None; return a list"),
        (lambda: ops.get_operators(providers=5), "providers is 5; pass a list of provider classes"),
        (lambda: ones_with_scales(swizzle="none"), "swizzle of ScaledOperand is 'none'; pass a Sc"),
        (lambda: ones_with_scales(swizzle=None), "swizzle of ScaledOperand is None; pass a Scale"),
        (lambda: ones_with_scales(mode=5), "mode of ScaledOperand is 5; pass a ScaleMode, or a t"),
    ],
    ids=["target", "cc", "name", "class", "order", "providers", "text", "none", "mode"],
)
def test_parameters_of_other_types(search, message):
    with pytest.raises(TypeError, match=message):
        search()


# ---- element types below a byte ------------------------------------------------------------------

TYPES = ["Float4E2M1FN", "Float6E3M2FN", "Float6E2M3FN", "Int4", "Boolean", "Float8E8M0FNU"]
TYPES += ["Int128", "TFloat32", "Float4E2M1FNx2"]


@pytest.mark.parametrize("name", [each for each in TYPES if hasattr(cutlass, each)])
def test_constraints_of_types_that_no_operand_has(name):
    wanted = ops.metadata.DenseTensorConstraints(getattr(cutlass, name), None, 32)
    operands = ops.metadata.GemmOperandsMetadata(wanted, wanted, wanted, "float32")
    status = operands.supports(real_arguments()[0])
    assert not status and "A is not supported" in str(status.error)
    assert wanted.supports(copy.copy(wanted)) and operands.supports(copy.deepcopy(operands))
    assert not wanted.supports(ops.metadata.DenseTensorConstraints(HALF, None, 32))


def test_constraints_of_four_bits_count_elements():
    pairs = empty(64, 48, dtype=FP4, device="cpu")
    row_major, column_major = (0, 1), (1, 0)

    def serves(tensor, stride, divisibility):
        of = ops.metadata.DenseTensorConstraints
        return bool(of(cutlass.Float4E2M1FN, stride, divisibility).supports(tensor))

    for tensor, stride in ((pairs, row_major), (pairs.T, column_major)):
        assert serves(tensor, stride, 32) and serves(TensorWrapper(tensor), stride, 32)
        assert not serves(tensor, stride, 64)  # a row has 96 elements
        assert not serves(tensor, stride[::-1], 32)


@pytest.mark.parametrize(
    "wrong",
    [
        {"metadata_filter": "x"},
        {"providers": "cutedsl"},
        {"providers": ["cutedsl"]},
        {"providers": ops.CuTeDSLProvider},
        {"heuristic": "x"},
        {"limit": "3"},
        {"limit": 1.5},
    ],
    ids=str,
)
def test_parameters_of_a_search_of_other_classes(wrong):
    (name,) = wrong
    with pytest.raises(TypeError, match=f"{name} is .*; pass a"):
        ops.get_operators(real_arguments()[0], **wrong)
