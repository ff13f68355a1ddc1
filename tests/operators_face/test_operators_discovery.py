"""Searches, kernels as operators, operators and providers of one's own."""

import copy
import dataclasses
import pickle
import re
from typing import Any

import cutlass_api
import pytest
import torch
from cutlass_api import operators as ops
from cutlass_api.operators import metadata
from cutlass_api.operators.utils.dtype import to_cutlass_type
from operators_face.face import fake_arguments, real_arguments
from support.helpers import run_python


def test_kernels_of_the_core_in_their_order():
    args = fake_arguments()
    found = ops.get_operators(args, target_sm="90a")
    kernels = cutlass_api.get_kernels(args, cc=90)
    assert [operator.kernel for operator in found] == kernels
    assert ops.get_operators(args, target_sm=ops.TargetSm("90a")) == found
    assert ops.get_operators(args, target_sm="90a", limit=3) == found[:3]
    for operator, kernel in zip(found, kernels, strict=True):
        described, of_core = operator.metadata, kernel.metadata
        # Operators that fuse any epilogue have the tile in their name as PyTorch looks for it.
        is_efc = "EFC" in described.operator_class.__name__
        assert is_efc == (of_core.design.tile_shape[0] >= 128)
        assert described.operator_name.replace("_tile", "_") == of_core.kernel_name
        assert bool(re.search(r"tile\d+x\d+x\d+", described.operator_name)) == is_efc
        for name in ("A", "B", "out"):
            own = getattr(described.operands, name).__cutlass_operand__()
            assert own == getattr(of_core.operands, name)
        assert described.operands.accumulator_type == of_core.operands.accumulator_type
        assert described.design.tile_shape == of_core.design.tile_shape
        assert described.design.core is of_core.design
        assert described.provider is ops.CuTeDSLProvider
        assert operator.designed_for_min_cc <= of_core.min_cc


def test_all_operators_by_name():
    found = ops.get_operators()
    names = {operator.metadata.operator_name: operator for operator in found}
    assert len(names) == len(found) > 10_000
    assert all(hasattr(each.metadata.operands, "accumulator_type") for each in found)
    for operator in found[:: len(found) // 100]:
        made = operator.metadata.operator_class(operator.metadata)
        assert type(made) is type(operator) and made.kernel is operator.kernel


def test_metadata_can_be_replaced():
    """But describes no further operators."""
    operator = ops.get_operators(fake_arguments(), target_sm="90a")[0]
    design = dataclasses.replace(operator.metadata.design, tile_shape=(1, 2, 3))
    for change, reason in (
        ({"operator_name": "x"}, "operator_name is 'x', which no operator"),
        ({"design": design}, r"design is .*\(1, 2, 3\).*search for another.*get_operators"),
    ):
        changed = dataclasses.replace(operator.metadata, **change)
        with pytest.raises(ValueError, match=reason):
            changed.operator_class(changed)


@pytest.mark.parametrize("target", [None, "80", "90a"])
def test_operators_are_pickled_with_their_metadata(target):
    args = fake_arguments() if target else real_arguments()[0]
    found = ops.get_operators(args, target_sm=target)
    for operator in {type(each): each for each in found}.values():
        for made in (pickle.loads(pickle.dumps(operator)), copy.deepcopy(operator)):
            assert type(made) is type(operator) and made.kernel is operator.kernel
            assert made.metadata == operator.metadata
    if target:
        artifact = operator.compile(args, target)
        sent = pickle.loads(pickle.dumps(artifact))
        assert sent.compiled_for == ops.TargetSm(target)
        assert sent.compiled_obj.kernel_obj is sent.operator_obj.kernel is operator.kernel


def test_an_operator_with_an_epilogue_is_loaded_where_a_search_has_found_it():
    setup = """
        import pickle, torch
        from cutlass_api import operators as ops

        a, b, out = (torch.empty(256, 256, dtype=torch.float16) for _ in range(3))
        source = "def f(accum):\\n    D = accum * 3\\n    return D"
        args = ops.GemmArguments(a, b, out, "float32", ops.EpilogueArguments(source, D=out))
    """
    search = 'ops.get_operators(args, target_sm="90a")[0]'
    data = run_python(f"{setup}\n        print(pickle.dumps({search}))").strip()
    code = f"""{setup}
        data = {data}
        try:
            pickle.loads(data)
        except ValueError as error:
            assert "search with the epilogue" in str(error)
            found = {search}
            print(pickle.loads(data).kernel is found.kernel)
    """
    assert run_python(code) == "True\n"


def test_a_fused_operator_is_found_by_its_metadata():
    source = "def f(accum):\n    D = relu(accum)\n    return D"
    plain = fake_arguments()
    epilogue = ops.EpilogueArguments(source, D=plain.out.tensor)
    args = ops.GemmArguments(plain.A, plain.B, plain.out, "float32", epilogue)
    operator = ops.get_operators(args, target_sm="90a")[0]
    assert operator.metadata.operator_class(operator.metadata).kernel is operator.kernel
    assert operator.supports(args, "90a") and not operator.supports(plain)
    assert "maximum" in operator.metadata.epilogue.epilogue


def test_supports_compile_run():
    args, (a, b, out) = real_arguments()
    (operator,) = ops.get_operators(args)
    assert operator.supports(args) and operator.metadata.supports(args)
    artifact = operator.compile(args)
    assert artifact.operator_obj is operator and artifact.compiled_for is None
    assert isinstance(artifact.compiled_obj, cutlass_api.artifact.CompiledArtifact)
    size = operator.get_workspace_size(args)
    assert size == ops.workspace.AllocationRequirement.empty()
    workspace = ops.workspace.Workspace(torch.empty(0))
    operator.run(args, artifact, stream=None, workspace=workspace, assume_supported_args=True)
    torch.testing.assert_close(out, a @ b)
    gpu = ops.get_operators(args, target_sm="90a")[0]
    assert not gpu.supports(args)
    with pytest.raises(ValueError, match="does not support the provided arguments"):
        gpu.run(args)


#: Why `compile` refuses a target or operands, by the target and the dtype.
REFUSED = {
    ("80", torch.bfloat16): "target_sm is 80; the operator supports 90a",
    ("90", torch.bfloat16): "target_sm is 90; the operator supports 90a",
    ("100a", torch.bfloat16): "target_sm is 100a; the operator supports 90a",
    ("90a", torch.float16): "A is not supported: .*dtype float16; .* requires bfloat16",
    ("90a", torch.float64): "A is not supported: .*dtype float64; .* requires bfloat16",
    (None, torch.bfloat16): r"out is on cpu.*compile\(args, target_sm='90a'\)",
}


@pytest.mark.parametrize(("target", "dtype"), REFUSED)
def test_compile_refuses_what_the_operator_does_not_serve(target, dtype):
    args, _ = real_arguments(512, 256, 768, dtype)
    for operator in {type(each): each for each in sm90_operators()}.values():
        with pytest.raises(ValueError, match="Operator does not.*" + REFUSED[target, dtype]):
            operator.compile(args, target)
        assert not operator.supports(args, target)


def sm90_operators():
    found = ops.get_operators(fake_arguments(), target_sm="90a")
    return [each for each in found if each.metadata.supported_targets == [ops.TargetSm("90a")]]


def test_operators_of_the_cpu_are_compiled_for_no_target():
    args, _ = real_arguments()
    with pytest.raises(ValueError, match="target_sm is 90a; the operator supports none"):
        ops.get_operators(args)[0].compile(args, "90a")


@pytest.mark.parametrize("target", ["80", "90", "90a", "100", "100a", "100f"])
def test_artifacts_name_the_target_of_the_call(target):
    args = fake_arguments(64, 64, 64)
    operator = ops.get_operators(args, target_sm="80")[0]
    assert operator.compile(args, target).compiled_for == ops.TargetSm(target)


def test_messages_are_in_the_words_of_this_interface():
    args, _ = real_arguments(128, 128, 64, torch.float16)
    found = ops.get_operators(args, target_sm="90a")
    first, second = found[0], found[-1]
    artifact = second.compile(args, "90a")
    scaled = ops.ScaledOperand(
        args.A, torch.ones(1, 1), (128, 64), ops.ScaleSwizzleMode.SwizzleNone
    )
    with_scales = ops.GemmArguments(scaled, args.B, args.out, "float32")
    for call in (
        lambda: first.run(args),
        lambda: first.run(args, artifact, assume_supported_args=True),
        lambda: first.compile(args),
        lambda: first.compile(args, "80"),
        lambda: first.compile(with_scales, "90a"),
        lambda: first.run(with_scales),
        lambda: first.supports(with_scales, "90a").raise_on_error(),
        lambda: first.get_workspace_size(3),
        lambda: first.supports(3).raise_on_error(),
        lambda: first.metadata.supports(ops.RuntimeArguments()).raise_on_error(),
    ):
        with pytest.raises((AttributeError, TypeError, ValueError)) as caught:
            call()
        assert not re.search(r"\bcc\b|Kernel|ScaledTensor|element_type", str(caught.value))


def test_statuses_are_values():
    error = ValueError("x")
    assert ops.Status.success() == ops.Status() != ops.Status.fail(error)
    assert ops.Status.fail(error) == ops.Status(error) != ops.Status.fail(ValueError("x"))
    sent = pickle.loads(pickle.dumps([ops.Status(), ops.Status.fail(KeyError("k"))]))
    assert sent[0] == ops.Status() and repr(sent[1]) == "Status.fail(KeyError('k'))"
    with pytest.raises(TypeError, match="unhashable"):
        hash(ops.Status())
    for wrong in (3, None, KeyError):
        with pytest.raises(TypeError, match=r"error is .*; pass an exception or a message"):
            ops.Status.fail(wrong)


def test_targets_of_operators():
    args = fake_arguments()
    operator = ops.get_operators(args, target_sm="90a")[0]
    assert operator.metadata.supported_targets == [ops.TargetSm("90a")]
    assert operator.supports(args, "90a")
    status = operator.supports(args, "100a")
    assert not status and "target_sm is 100a" in str(status.error)
    with pytest.raises(ValueError, match="args and target_sm are None"):
        operator.metadata.supports(None)


def doubled(accum):
    D = accum * 2
    return D


@pytest.mark.parametrize("epilogue", [None, doubled], ids=["plain", "fused"])
@pytest.mark.parametrize("target", ["80", "90", "90a", "103a", "120f"])
def test_found_operators_support_the_arguments_of_the_search(target, epilogue):
    """Also for operands on the CPU, which operators of a target do not run on."""
    _, (a, b, out) = real_arguments(128, 128, 64, torch.float16)
    if epilogue is not None:
        epilogue = ops.EpilogueArguments(epilogue, D=out)
    args = ops.GemmArguments(a, b, out, "float32", epilogue)
    found = ops.get_operators(args, target_sm=target)
    assert found
    for operator in (found[0], found[-1]):
        assert operator.supports(args, target)
        assert "on cpu" in str(operator.supports(args).error)
        assert ops.TargetSm(target).supports_operators_from(operator.metadata.supported_targets)
    manifest = ops.Manifest()
    manifest.add_operators(found)
    assert manifest.filter_operators(args, target_sm=target) == found
    assert not found[0].supports(real_arguments(128, 128, 64, torch.float64)[0], target)


def test_filters():
    args = fake_arguments()

    def is_narrow(described):
        return described.design.tile_shape[1] == 64

    found = ops.get_operators(args, metadata_filter=is_narrow, target_sm="90a")
    assert found and all(is_narrow(operator.metadata) for operator in found)
    assert ops.get_operators(args, target_sm="90a", providers=[]) == []
    with pytest.raises(ValueError, match="limit is 0"):
        ops.get_operators(args, limit=0)


def test_manifest():
    args = fake_arguments()
    manifest = ops.Manifest()
    manifest.add_operators(ops.get_operators(args, target_sm="80"))
    manifest.add_operators(ops.get_operators(args, target_sm="90a", limit=2))
    assert len(manifest.operators) > 2
    assert manifest.filter_operators(args) == manifest.operators
    assert len(manifest.filter_operators(args, target_sm="80")) == len(manifest.operators) - 2
    assert manifest.filter_operators(target_sm="90a", providers=[ops.Provider]) == []
    assert manifest.filter_operators(fake_arguments(dtype=torch.float64)) == []
    assert ops.Manifest().filter_operators() == []
    for options in ({}, {"metadata_filter": lambda _: False}, {"providers": []}):
        with pytest.raises(ValueError, match="args and target_sm are None; pass one of them"):
            manifest.filter_operators(**options)


class Reversed(ops.Heuristic):
    def rank(self, args, operators, *, target_sm=None, limit=None):
        return operators[::-1]


class Repeating(ops.Heuristic):
    def rank(self, args, operators, *, target_sm=None, limit=None):
        return [operators[0]] * 2


def test_heuristics():
    args = fake_arguments()
    found = ops.get_operators(args, target_sm="90a")
    ranked = ops.get_operators(args, target_sm="90a", heuristic=Reversed(), limit=2)
    assert ranked == found[:-3:-1]
    with pytest.raises(RuntimeError, match="Repeating returned operators that are new or repeated"):
        ops.get_operators(args, target_sm="90a", heuristic=Repeating())
    ops.register_heuristic("reversed")(Reversed)
    try:
        assert ops.get_heuristic("reversed") is Reversed
    finally:
        del ops.available_heuristics["reversed"]
    with pytest.raises(KeyError, match="no heuristic has the name 'reversed'; registered: nvm"):
        ops.get_heuristic("reversed")


@dataclasses.dataclass
class AddArguments(ops.RuntimeArguments):
    A: ops.TensorLike
    B: ops.TensorLike
    out: ops.TensorLike


@dataclasses.dataclass
class AddOperands(metadata.OperandsMetadata):
    dtype: Any

    def supports(self, args):
        if args.A.dtype == self.dtype:
            return ops.Status.success()
        return ops.Status.fail(f"A is {args.A.dtype}")


class Add(ops.Operator):
    supported_args_type = AddArguments
    designed_for_min_cc = 0

    def _compile(self, args, target_sm=None):
        return ops.CompiledArtifact(torch.add, self, target_sm)

    def _run(self, args, compiled_artifact, stream, workspace=None):
        a, b, out = (getattr(args, name).runtime_tensor for name in ("A", "B", "out"))
        compiled_artifact.compiled_obj(a, b, out=out)

    @classmethod
    def _generate_operators(cls, metadata_filter, epilogue_args=None, target_sm=None, args=None):
        for dtype in map(to_cutlass_type, ("float32", "float64")):
            target = [ops.TargetSm("80")]
            described = ops.OperatorMetadata(
                f"add_{dtype}".lower(), cls, target, AddOperands(dtype)
            )
            if metadata_filter(described):
                yield cls(described)


@pytest.fixture
def mine():
    @ops.register_provider("mine")
    class Mine(ops.Provider):
        pass

    Mine.register(Add)
    yield Mine
    del ops.available_providers["mine"]


def test_operators_of_ones_own(mine):
    a, b, out = torch.ones(4), torch.ones(4), torch.zeros(4)
    args = AddArguments(a, b, out)
    assert args.A.dtype is to_cutlass_type("float32") and args.performance is None
    (operator,) = ops.get_operators(args)
    assert operator.metadata.operator_name == "add_float32"
    assert operator.metadata.provider is mine
    operator.run(args)
    assert out.tolist() == [2] * 4
    assert len(ops.get_operators(args, target_sm="90a")) == 1
    float32, float64 = ops.get_operators(providers=[mine])
    assert float32.get_workspace_size(args).size_bytes == 0
    with pytest.raises(ValueError, match="Operator does not support the provided arguments"):
        float64.run(args)
    gemm, _ = real_arguments()
    assert [type(each).__name__ for each in ops.get_operators(gemm)] == ["ReferenceOperator"]
    with pytest.raises(ValueError, match=r"Operator does not support .*: built-in kernels"):
        ops.get_operators(gemm)[0].run(args)


def test_providers_have_classes_of_their_own():
    @dataclasses.dataclass
    class OtherArguments(ops.RuntimeArguments):
        A: ops.TensorLike

    class Wider(AddArguments):
        pass

    class First(ops.Provider):
        pass

    class Second(ops.Provider):
        pass

    @First.register
    class Later(Add):
        supported_args_type = OtherArguments
        designed_for_min_cc = 90

    def found(provider, *args, **options):
        return [type(each).__name__ for each in provider.generate_operators(*args, **options)]

    First.register(Add), Second.register(Add)
    try:
        assert found(First) == ["Later"] * 2 + ["Add"] * 2 and found(Second) == ["Add"] * 2
        ones = [torch.ones(4)] * 3
        assert found(First, args=OtherArguments(ones[0])) == ["Later"] * 2
        assert found(First, None, args=AddArguments(*ones)) == found(Second, args=Wider(*ones))
        assert len(ops.get_operators(OtherArguments(ones[0]), providers=[First])) == 1
        assert found(First, target_sm="80") == ["Add"] * 2
        assert found(First, lambda described: "64" in described.operator_name) == ["Later", "Add"]
        args, _ = real_arguments()
        assert found(First, args=args) == []
        assert ops.get_operators(args, providers=[First, Second]) == []
    finally:
        Add._provider = None


def test_classes_are_checked():
    with pytest.raises(TypeError, match="class Half has no designed_for_min_cc"):

        class Half(Add):
            supported_args_type = AddArguments

    with pytest.raises(TypeError, match="class Other has no supported_args_type"):

        class Other(Add):
            designed_for_min_cc = 80

    with pytest.raises(TypeError, match="no operator class"):
        ops.CuTeDSLProvider.register(int)


def test_providers_may_be_any_iterable():
    found = ops.get_operators(fake_arguments(), target_sm="90a")
    providers = iter([ops.CuTeDSLProvider])
    assert ops.get_operators(fake_arguments(), target_sm="90a", providers=providers) == found


def test_the_name_of_an_operator_is_of_its_class():
    for operator in {type(each): each for each in sm90_operators()}.values():
        for other in {type(each) for each in sm90_operators()} - {type(operator)}:
            with pytest.raises(ValueError, match=r"has the name .*; call operator_class of"):
                other(operator.metadata)
        assert type(operator)(operator.metadata) == operator


def test_kernels_of_ones_own_are_operators():
    code = """
        from cutlass_api import Kernel, operators as ops
        from cutlass_api.artifact import CompiledArtifact
        from cutlass_api.metadata import DenseTensorAttributes, GemmOperandsMetadata, KernelMetadata
        from cutlass_api.providers import NvrtcProvider
        import numpy as np

        @NvrtcProvider.register
        class Mine(Kernel):
            def compile(self, args, cc=None):
                return CompiledArtifact(np.matmul, self)
            def _run(self, args, artifact, stream, workspace=None):
                a, b, out = (each.tensor.runtime_tensor for each in (args.A, args.B, args.out))
                artifact.compiled_obj(a, b, out=out)
            @staticmethod
            def generate_kernels(metadata_filter, epilogue_args=None, cc=None):
                dense = DenseTensorAttributes("float32")
                operands = GemmOperandsMetadata(dense, dense, dense, "float32")
                yield Mine(KernelMetadata("mine", Mine, 0, operands))

        a = np.ones((4, 4), np.float32)
        args = ops.GemmArguments(a, a, np.zeros_like(a), "float32")
        mine = ops.get_operators(args)[-1]
        assert mine.metadata.operator_name == "mine"
        assert mine.metadata.operator_class(mine.metadata).kernel is mine.kernel
        mine.run(args, mine.compile(args))
        assert (args.out.tensor.runtime_tensor == 4).all()
    """
    run_python(code)


def test_workspace_is_described():
    args = fake_arguments(64, 64, 8192)
    sizes = [
        operator.get_workspace_size(args) for operator in ops.get_operators(args, target_sm="90a")
    ]
    assert {size.ptr_alignment for size in sizes if size.size_bytes} == {16}
    assert {size.ptr_alignment for size in sizes if not size.size_bytes} == {1}
