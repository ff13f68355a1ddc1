"""Copies, assignments and subclasses of arguments, epilogues and operands."""

import copy
import pickle
import re
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Optional

import pytest
import torch
from cutlass_api import operators as ops
from cutlass_api.operators.utils.tensor import TensorWrapper
from operators_face.face import fake_arguments, real_arguments

RELU = "def f(accum):\n    D = relu(accum)\n    return D"
SCALED = "def f(accum, s):\n    D = s * accum\n    return D"


def run(args, artifact=None):
    operator = ops.get_operators(args)[0]
    operator.run(args, artifact)
    return args.out.tensor.runtime_tensor


def grouped():
    offsets = torch.tensor([8, 24], dtype=torch.int32)
    tensors = torch.randn(24, 8), torch.randn(2, 8, 16), torch.empty(24, 16)
    return ops.IndexPtrGroupedGemmArguments(*tensors, "float32", offsets, "m")


def pickled(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled, replace])
@pytest.mark.parametrize("kind", ["gemm", "grouped", "epilogue"])
def test_copies_of_arguments(copied, kind):
    args = grouped() if kind == "grouped" else real_arguments()[0]
    if kind == "epilogue":
        args.epilogue = ops.EpilogueArguments(RELU, D=args.out.tensor.runtime_tensor)
    args.of_a_client = 1
    expected = run(args).clone()
    other = copied(args)
    assert type(other) is type(args)
    assert copied is replace or other.of_a_client == 1
    if kind == "epilogue" and copied is not copy.copy:
        other.epilogue.tensors["D"] = other.out.tensor.runtime_tensor
    run(other).fill_(-1)
    assert torch.equal(run(other), expected)
    shares_all = copied is copy.copy or (copied is replace and kind != "epilogue")
    assert (other == args) == shares_all


def test_comparisons():
    args, (a, b, out) = real_arguments()
    assert args == copy.copy(args) and args != ops.GemmArguments(a, b, out, "float32")
    assert args.A == args.A.copy() == ops.DenseTensor(args.A.tensor) != ops.DenseTensor(a)
    swizzle = ops.ScaleSwizzleMode.SwizzleNone
    scaled = ops.ScaledOperand(a, b, (1, 32), swizzle)
    assert scaled == scaled.copy() and replace(scaled, mode=(1, 16)).mode == (1, 16)
    for value in (args, args.A, scaled):
        with pytest.raises(TypeError, match="unhashable"):
            hash(value)
    names = ["performance", "A", "B", "out", "accumulator_type"]
    assert [each.name for each in fields(args)] == [*names, "epilogue"]
    further = ["offsets", "offsets_along", "epilogue"]
    assert [each.name for each in fields(grouped())] == [*names, *further]
    assert [each.name for each in fields(args.A)] == ["tensor"]


def test_assigned_attributes_are_used():
    args, (a, b, out) = real_arguments()
    artifact = ops.get_operators(args)[0].compile(args)
    torch.testing.assert_close(run(args, artifact), a @ b)
    args.epilogue = ops.EpilogueArguments(SCALED, s=2.0, D=out)
    torch.testing.assert_close(run(args), 2 * (a @ b))
    args.epilogue.tensors["s"] = 3.0
    torch.testing.assert_close(run(args), 3 * (a @ b))
    args.epilogue.epilogue_fn = SCALED.replace("s *", "s * s *")
    torch.testing.assert_close(run(args), 9 * (a @ b), rtol=1e-5, atol=1e-4)
    args.epilogue = None
    torch.testing.assert_close(run(args, artifact), a @ b)
    args.A = a + 1
    torch.testing.assert_close(run(args, artifact), (a + 1) @ b)
    args.B.tensor = b + 1
    torch.testing.assert_close(run(args, artifact), (a + 1) @ (b + 1))


def test_an_assigned_accumulator_and_performance_are_searched_with():
    args = fake_arguments(dtype=torch.float16)
    args.accumulator_type = torch.float16
    found = ops.get_operators(args, target_sm="90a")
    assert found
    assert {str(each.metadata.operands.accumulator_type) for each in found} == {"Float16"}
    args = fake_arguments(dtype=torch.float8_e4m3fn)
    before = ops.get_operators(args, target_sm="90a")
    args.performance = ops.PerformanceControls(fast_sums=True)
    assert ops.get_operators(args, target_sm="90a") != before


def test_an_epilogue_is_copied_into_arguments():
    _, (a, b, out) = real_arguments()
    epilogue = ops.EpilogueArguments(SCALED, s=2.0, D=out)
    args = ops.GemmArguments(a, b, out, "float32", epilogue)
    epilogue.tensors["s"] = 5.0
    torch.testing.assert_close(run(args), 2 * (a @ b))
    torch.testing.assert_close(run(ops.GemmArguments(a, b, out, "float32", epilogue)), 5 * (a @ b))


class Tagged(ops.EpilogueArguments):
    def __init__(self, function, tag, **operands):
        super().__init__(function, **operands)
        self.tag = tag


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_copies_and_subclasses_of_epilogues(copied):
    args, (a, b, out) = real_arguments()
    epilogue = Tagged(SCALED, "tag", s=2.0, D=ops.Store(out))
    other = copied(epilogue)
    assert type(other) is Tagged and other.tag == "tag" and other != epilogue
    assert other.parameter_names == ["s", "D"] and other.transports.keys() == {"D"}
    other.tensors["s"] = 4.0
    assert epilogue.tensors["s"] == 2.0
    args = ops.GemmArguments(a, b, other.tensors["D"], "float32", other)
    assert args.epilogue.tag == "tag" and copied(args.epilogue).parameter_names == ["s", "D"]
    torch.testing.assert_close(run(args), 4 * (a @ b))


@dataclass
class Generated(ops.GemmArguments):
    extra: int = 3


class Own(ops.GemmArguments):
    def __init__(self, x, y, *, extra=3):
        self.before = extra
        out = torch.empty(x.shape[0], y.shape[1])
        super().__init__(x, y, out, accumulator_type=torch.float32)
        self.extra = extra


class Late(ops.GemmArguments):
    def __post_init__(self):
        super().__post_init__()
        self.extra = type(self.A.tensor).__name__


@dataclass
class OwnGroups(ops.IndexPtrGroupedGemmArguments):
    extra: int = 0

    def __init__(self, *args, extra=3):
        self.extra = extra
        super().__init__(*args, offsets_along="m")


def test_subclasses_with_constructors_of_their_own():
    _, (a, b, out) = real_arguments()
    operands = map(ops.DenseTensor, (a, b, out))
    offsets = torch.tensor([24], dtype=torch.int32)
    made = [
        (Own(a, b, extra=5), 5),
        (Late(a, b, out, "float32"), "TensorWrapper"),
        (Generated(*operands, torch.float32, None, extra=7), 7),
        (Generated(a, b, out, torch.float32, None), 3),
        (OwnGroups(a, b[None], out, torch.float32, offsets, extra=9), 9),
    ]
    for args, extra in made:
        assert args.extra == extra and str(args.accumulator_type) == "Float32"
        if isinstance(args.out, ops.Operand):
            torch.testing.assert_close(run(args), a @ b)
            assert pickled(args).extra == copy.copy(args).extra == extra
        assert ops.get_operators(args)
    assert replace(made[2][0], extra=1).extra == 1
    with pytest.warns(DeprecationWarning):
        groups = replace(
            ops.GroupedGemmArguments(a, b[None], out, torch.float32, offsets),
            out=(z := out.clone()),
        )
    assert groups.offsets_along == "m" and groups.out.runtime_tensor is z
    with pytest.raises(ValueError, match="offsets_along is 'k'; pass IndexPtrGrouped"):
        replace(groups, offsets_along="k")
    with pytest.raises(ValueError, match="dimension M differs"):
        Generated(a, b, torch.empty(3, 3), torch.float32, None)
    with pytest.raises(TypeError, match="'epilogue'"):
        Generated(a, b, out, torch.float32)


class Checked(ops.GemmArguments):
    def _validate(self):
        super()._validate()
        if self.A.shape[0] % 2:
            raise ValueError(f"{self.A.shape[0]} rows are odd")


class Bare(ops.GemmArguments):
    def __init__(self, A, B, out):
        self.A, self.B, self.out, self.accumulator_type = A, B, out, torch.float32


def test_subclasses_check_themselves_and_need_no_epilogue():
    _, (a, b, out) = real_arguments()
    torch.testing.assert_close(run(Checked(a, b, out, "float32")), a @ b)
    with pytest.raises(ValueError, match="23 rows are odd"):
        Checked(a[1:], b, out[1:], "float32")
    args = Bare(a, b, out)
    assert args.epilogue is None and args.performance is None
    ops.get_operators(args)[0].run(args)
    torch.testing.assert_close(out, a @ b)


class Subclass(ops.GemmArguments):
    pass


@pytest.mark.parametrize("name", ["epilogue", "performance"])
@pytest.mark.parametrize("wrong", [len, 5, "x", {}], ids=repr)
def test_wrong_epilogues_and_performance_are_named(name, wrong):
    remedy = {"epilogue": r"EpilogueArguments\(fn, ", "performance": r"PerformanceControls\("}[name]
    message = f"{name} is {re.escape(repr(wrong))}; pass {remedy}"
    _, (a, b, out) = real_arguments()
    offsets = torch.tensor([24], dtype=torch.int32)
    for kind, *tensors in (
        (ops.GemmArguments, a, b, out, "float32"),
        (Subclass, a, b, out, "float32"),
        (ops.IndexPtrGroupedGemmArguments, a, b[None], out, "float32", offsets, "m"),
    ):
        with pytest.raises(TypeError, match=message):
            kind(*tensors, **{name: wrong})
        args = kind(*tensors)
        with pytest.raises(TypeError, match=message):
            setattr(args, name, wrong)
        assert getattr(args, name) is None and ops.get_operators(args)


class Fusion:
    """An epilogue of a class that the package does not know."""

    epilogue_fn = len
    tensors: ClassVar = {}


def test_an_epilogue_of_another_class_is_accepted():
    args, _ = real_arguments(epilogue=Fusion())
    assert type(args.epilogue) is Fusion and ops.get_operators(args) == []


@dataclass
class Dense(ops.DenseTensor):
    tag: float = 2.0


@dataclass
class Kept(ops.DenseTensor):
    tag: float = 2.0

    def __copy__(self):
        return Kept(self.tensor, self.tag)


@dataclass
class Foreign(ops.Operand):
    data: ops.TensorLike
    kind: ops.NumericLike = torch.float16

    def __copy__(self):
        return Foreign(self.data, self.kind)

    @property
    def shape(self):
        return self.data.shape


def test_operands_of_own_classes():
    _, (a, b, out) = real_arguments()
    args = ops.GemmArguments(Kept(a, 5.0), Dense(b), out, "float32")
    assert type(args.A) is Kept and args.A.tag == 5.0 and type(args.B) is ops.DenseTensor
    assert isinstance(args.A.tensor, TensorWrapper) and Kept(a).shape == a.shape
    torch.testing.assert_close(run(args), a @ b)
    foreign = Foreign(a)
    args = ops.GemmArguments(foreign, b, out, "float32")
    assert type(args.A) is Foreign and isinstance(args.A.data, TensorWrapper)
    assert str(args.A.kind) == "Float16" and args.problem_size == (24, 16, 32, 1)
    assert foreign.data is a and ops.get_operators(args, target_sm="90a") == []
    with pytest.raises(TypeError, match="quantized of ScaledOperand is 3; pass a tensor"):
        ops.ScaledOperand(3, a, (1, 32), ops.ScaleSwizzleMode.SwizzleNone)


@dataclass
class Annotated(ops.RuntimeArguments):
    a: ops.DenseTensor
    b: "ops.DenseTensor"
    c: Optional[ops.DenseTensor]  # noqa: UP045
    d: "ops.DenseTensor | None"
    e: "ops.TensorLike"
    raw: ops.DenseTensor
    n: "ops.NumericLike" = torch.float16
    none: "ops.DenseTensor | None" = None


def test_fields_of_own_arguments_are_wrapped():
    tensor = torch.zeros(4, 4)
    dense = [ops.DenseTensor(tensor) for _ in range(4)]
    args = Annotated(*dense, tensor, tensor)
    assert [args.a, args.b, args.c, args.d] == dense and args.a is dense[0]
    assert all(isinstance(each.tensor, TensorWrapper) for each in dense)
    assert isinstance(args.e, TensorWrapper) and args.raw is tensor and args.none is None
    assert str(args.n) == "Float16"
    assert pickled(args).a.shape == copy.deepcopy(args).a.shape == (4, 4)


def test_a_subclass_of_an_operator_runs_by_its_own_methods():
    args, _ = real_arguments()
    (operator,) = ops.get_operators(args)
    calls = []

    class Mine(type(operator)):
        supported_args_type = ops.GemmArguments
        designed_for_min_cc = 0

        def _supports(self, args, target_sm=None):
            calls.append("supports")
            return super()._supports(args, target_sm)

        def _compile(self, args, target_sm=None):
            calls.append("compile")
            return super()._compile(args, target_sm)

        def _run(self, args, compiled_artifact, stream, workspace=None):
            calls.append("run")
            super()._run(args, compiled_artifact, stream, workspace)

    Mine(operator.metadata).run(args)
    assert calls == ["supports", "compile", "run"]
