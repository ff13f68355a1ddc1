"""What providers and operator classes of users receive, and what calls of operators refuse."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cutlass_api import operators as ops
from cutlass_api.operators import metadata
from operators_face.face import fake_arguments, real_arguments


class Even(ops.Operator):
    """An operator that serves an even number of rows."""

    supported_args_type = ops.GemmArguments
    designed_for_min_cc = 70

    def _supports(self, args, target_sm=None):
        return ops.Status.fail("odd") if args.A.shape[0] % 2 else ops.Status.success()

    def _compile(self, args, target_sm=None):
        return ops.CompiledArtifact(len, self, target_sm)

    def _run(self, args, compiled_artifact, stream, workspace=None):
        return "ran"

    @classmethod
    def _generate_operators(cls, metadata_filter, epilogue_args=None, target_sm=None, args=None):
        described = describe("float32")
        return [cls(described)] if metadata_filter(described) else []


def describe(dtype, target="70"):
    operand = metadata.DenseTensorConstraints(dtype, (0, 0, 1), 1)
    operands = metadata.GemmOperandsMetadata(operand, operand, operand, "float32")
    return ops.OperatorMetadata(dtype, Even, [ops.TargetSm(target)], operands)


class Overriding(ops.Provider):
    """A provider that calls the filter, as one for NVIDIA's package may."""

    @classmethod
    def generate_operators(cls, metadata_filter, epilogue_args, target_sm, args):
        assert target_sm is None or isinstance(target_sm, ops.TargetSm)
        described = map(describe, ("float32", "float64"))
        return (Even(each) for each in described if metadata_filter(each))


def names(args=None, metadata_filter=None, target=None, providers=(Overriding,)):
    found = ops.get_operators(args, metadata_filter, target, providers)
    return [each.metadata.operator_name for each in found]


@pytest.mark.parametrize("rows", [24, 23])
def test_a_provider_receives_a_filter_and_its_operators_are_checked(rows):
    args, _ = real_arguments(rows)
    served = ["float32"] if rows == 24 else []
    assert names() == ["float32", "float64"]
    assert names(args) == names(args, lambda _: True) == names(args, target="75") == served
    assert names(args, lambda each: each.operator_name == "float64") == []
    assert names(target="60") == names(args, target="60") == []


class Failing(ops.Provider):
    @classmethod
    def generate_operators(cls, *_args, **_options):
        raise NotImplementedError("of the provider")


def test_other_errors_than_that_of_the_target_propagate():
    def fails(described):
        raise NotImplementedError("of the filter")

    with pytest.raises(NotImplementedError, match="of the provider"):
        names(providers=[Failing, Overriding])
    for providers in ([Overriding], [ops.CuTeDSLProvider, Overriding]):
        with pytest.raises(NotImplementedError, match="of the filter"):
            names(None, fails, "90a", providers)


def test_a_class_serves_a_target_that_no_kernel_serves():
    args, _ = real_arguments()
    both = [ops.CuTeDSLProvider, Overriding]
    assert names(args, target="75", providers=both) == ["float32"]
    with pytest.raises(NotImplementedError, match="target_sm is 75"):
        ops.get_operators(args, target_sm="75")
    ops.CuTeDSLProvider.register(Even)
    try:
        for search in (ops.get_operators, ops.CuTeDSLProvider.generate_operators):
            (found,) = search(args=args, target_sm="75")
            assert type(found) is Even
        with pytest.raises(NotImplementedError, match="target_sm is 60"):
            ops.get_operators(args, target_sm="60")
        assert type(ops.get_operators(args, target_sm="90a")[-1]) is Even
    finally:
        ops.CuTeDSLProvider._classes.remove(Even)
        Even._provider = None


def test_run_returns_what_the_operator_returns():
    args, _ = real_arguments()
    assert Even(describe("float32")).run(args) == "ran"


OPERATORS = {
    "cpu": lambda: ops.get_operators(real_arguments()[0])[0],
    "gpu": lambda: first(lambda name: "EFC" not in name),
    "fusing": lambda: first(lambda name: "EFC" in name),
}


def first(is_wanted):
    found = ops.get_operators(fake_arguments(), target_sm="90a")
    return next(each for each in found if is_wanted(type(each).__name__))


@pytest.mark.parametrize("kind", OPERATORS)
def test_calls_name_what_is_no_arguments_or_artifact(kind):
    operator = OPERATORS[kind]()
    args, _ = real_arguments()
    for wrong in ("x", None, 3):
        for call in (operator.run, operator.compile):
            with pytest.raises(TypeError, match=f"args is {wrong!r}; pass arguments"):
                call(wrong)
    for wrong in ("x", 3):
        for assume in (False, True):
            with pytest.raises(TypeError, match=f"compiled_artifact is {wrong!r}; pass the result"):
                operator.run(args, wrong, None, None, assume)


def test_threads_share_arguments_and_operators():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            for _ in range(100):
                args, _ = real_arguments()
                operator = ops.get_operators(args)[0]

                def read(_, args=args, operator=operator):
                    return args.problem_size, args.A, args.out, operator.metadata

                sizes, *objects = zip(*pool.map(read, range(4)), strict=True)
                assert set(sizes) == {(24, 16, 32, 1)}
                assert all(len({*map(id, each)}) == 1 for each in objects)
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("along", ["m", "k"])
def test_operators_of_groups_name_their_arguments(along):
    shapes = {"m": ((8, 8), (2, 8, 8), (8, 8)), "k": ((8, 8), (8, 8), (2, 8, 8))}[along]
    offsets = torch.tensor([4, 8], dtype=torch.int32)
    tensors = (torch.zeros(*shape) for shape in shapes)
    args = ops.IndexPtrGroupedGemmArguments(*tensors, "float32", offsets, along)
    for target in (None, "80", "90a"):
        found = ops.get_operators(args, target_sm=target)
        assert found
        for operator in (*found, *(type(each) for each in found)):
            assert operator.supported_args_type is ops.IndexPtrGroupedGemmArguments
    gemm, _ = real_arguments()
    assert ops.get_operators(gemm)[0].supported_args_type is ops.GemmArguments
