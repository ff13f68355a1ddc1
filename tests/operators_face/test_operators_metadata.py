"""The classes of metadata, with the facts of nvidia-cutlass-operators 0.3.0.

Where NVIDIA's package is installed, the tests of classes also run on its classes.
"""

import copy
import dataclasses
import gc
import pickle
import weakref

import pytest
import torch
from cutlass_api import DType, metadata
from cutlass_api import operators as ops
from cutlass_api.operators.providers import names
from cutlass_api.operators.providers.kernels import KernelOperator
from operators_face.face import fake_arguments

cutlass = pytest.importorskip("cutlass")
theirs = pytest.importorskip("cutlass.operators")

#: The modules whose classes are tested: one, or this package's and NVIDIA's.
FACES = [ops] if theirs is ops else [ops, theirs]

WRITES = {
    "name": lambda each: setattr(each, "operator_name", "x"),
    "class": lambda each: setattr(each, "operator_class", None),
    "targets": lambda each: each.supported_targets.clear(),
    "target": lambda each: setattr(each.supported_targets[0], "cc", 100),
    "accumulator": lambda each: setattr(each.operands, "accumulator_type", cutlass.Int8),
    "operand": lambda each: setattr(each.operands, "A", None),
    "divisibility": lambda each: setattr(each.operands.A, "divisibility", 1 << 20),
    "tile": lambda each: setattr(each.design, "tile_shape", (1, 1, 1)),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_a_client_writes_into_metadata_is_its_own(write):
    args = fake_arguments()
    operator = ops.get_operators(args, target_sm="90a")[-1]
    before = copy.deepcopy(operator.metadata)
    assert operator.metadata == before and operator.metadata is operator.metadata
    WRITES[write](operator.metadata)
    again = ops.get_operators(args, target_sm="90a")[-1]
    assert operator.metadata != before and again.metadata == before
    assert again.supports(args, "90a") and again == operator and hash(again) == hash(operator)
    assert ops.get_operators(args, lambda each: each == before, "90a") == [operator]


def test_what_a_client_sets_on_an_operator_is_its_own():
    args = fake_arguments()
    ops.get_operators(args, target_sm="90a")[-1].of_a_client = 3
    assert not hasattr(ops.get_operators(args, target_sm="90a")[-1], "of_a_client")


def fused_arguments(source="def f(accum, row):\n    D = relu(accum + row)\n    return D"):
    a, b, out, row = torch.ones(8, 4), torch.ones(4, 6), torch.empty(8, 6), torch.ones(6)
    epilogue = ops.EpilogueArguments(source, row=ops.Load(row), D=out)
    return ops.GemmArguments(a, b, out, "float32", epilogue)


def test_the_epilogue_of_an_operator():
    args = fused_arguments()
    (operator,) = ops.get_operators(args)
    found = operator.metadata.epilogue
    assert type(found) is ops.metadata.EpilogueMetadata
    assert found.epilogue_fn == args.epilogue.epilogue_fn
    assert found.parameter_names == ["row", "D"] == list(found.tensors)
    assert found.transports.keys() == {"row"} and found.tensors["row"].shape == (6,)
    assert found.traced_epilogue == args.epilogue.traced_epilogue
    assert "maximum" in found.epilogue and found.supports(args)
    # Also that of a pickle, which has no tensors.
    for copied in (pickle.loads(pickle.dumps(operator)), type(operator)(operator.metadata)):
        assert copied == operator and copied.metadata == operator.metadata
        assert copied.metadata.epilogue.traced_epilogue == found.traced_epilogue
        assert copied.metadata.epilogue.tensors["row"].shape == (6,)
    assert pickle.loads(pickle.dumps(operator.metadata)) == operator.metadata
    other = ops.get_operators(fused_arguments("def f(accum, row):\n    D = row\n    return D"))
    assert other[0].metadata.epilogue != found


def test_an_epilogue_in_metadata_is_the_clients_own():
    args = fused_arguments()
    (operator,) = ops.get_operators(args)
    operator.metadata.epilogue.tensors.clear()
    operator.metadata.epilogue.transports.clear()
    operator.metadata.epilogue.epilogue_fn = None
    operator.run(args)
    assert list(args.epilogue.tensors) == ["row", "D"] and args.epilogue.transports
    (again,) = ops.get_operators(args)
    assert list(again.metadata.epilogue.tensors) == ["row", "D"]
    assert again.metadata.epilogue.epilogue_fn == args.epilogue.epilogue_fn


def test_searches_with_epilogues_keep_no_tensor_and_few_operators(monkeypatch):
    monkeypatch.setattr(names, "MOST_REMEMBERED", 3)
    shared = len(KernelOperator._shared)
    kept = []
    for factor in range(5):
        source = f"def f(accum, row):\n    D = accum * {factor}.5 + row\n    return D"
        args = fused_arguments(source)
        row = weakref.ref(args.epilogue.tensors["row"].runtime_tensor)
        operator = ops.get_operators(args)[0]
        kept.append((operator, operator.metadata, operator.compile(args)))
        assert operator.supports(args)
        operator.run(args)
        del args
        gc.collect()
        assert row() is None
    assert len(names._FUSING) == 3
    assert len(KernelOperator._shared) == shared


def parts_of(face):
    """Instances of metadata classes, with the names of their fields."""
    described = face.metadata
    dense = described.DenseTensorConstraints(cutlass.Float16, (0, 1), 8)
    scale = described.DenseTensorConstraints(cutlass.Float8E8M0FNU, None, 1, 4)
    mode, swizzle = face.ScaleMode.Blockwise1x32, face.ScaleSwizzleMode.SwizzleNone
    scaled = described.ScaledOperandConstraints(dense, scale, mode, swizzle)
    operands = described.GemmOperandsMetadata(dense, scaled, dense, cutlass.Float32)
    grouped = dense, dense, dense, dense
    design = described.BLASDesignMetadata(
        mma_instruction_type=face.mma.HopperWgmma,
        tile_shape=(128, 64, 32),
        cluster_shape=(1, 1, 1),
    )
    target = face.TargetSm("90a")
    operator = face.OperatorMetadata("x", face.Operator, [target], operands, design)
    all_operands = ["A", "B", "out", "offsets", "offsets_along", "accumulator_type"]
    names = ["operator_name", "operator_class", "supported_targets", "operands", "design"]
    tile = ["mma_instruction_type", "tile_shape", "cluster_shape", "num_smem_stages"]
    return [
        (dense, ["dtype", "stride", "divisibility", "ptr_alignment_bytes"]),
        (scaled, ["quantized", "scale", "mode", "swizzle"]),
        (operands, ["A", "B", "out", "accumulator_type"]),
        (
            described.IndexPtrGroupedGemmOperandsMetadata(*grouped, "k", cutlass.Float32),
            all_operands,
        ),
        (described.GroupedGemmOperandsMetadata(*grouped, cutlass.Float32), all_operands),
        (design, tile),
        (operator, [*names, "epilogue"]),
        (described.StaticPersistentTileSchedulerMetadata(), []),
        (target, ["cc", "portability"]),
        (face.workspace.AllocationRequirement(16, 4), ["size_bytes", "ptr_alignment"]),
        (face.CompiledArtifact(1, None, target), ["compiled_obj", "operator_obj", "compiled_for"]),
    ]


PARTS = [(face, *each) for face in FACES for each in parts_of(face)]
IDS = [f"{face.__name__}-{type(part).__name__}" for face, part, _ in PARTS]


@pytest.mark.parametrize(("face", "part", "names"), PARTS, ids=IDS)
def test_metadata_is_what_dataclasses_are(face, part, names):
    assert [each.name for each in dataclasses.fields(part)] == names
    copies = []
    if face is ops or "Scaled" not in repr(part):  # NVIDIA's recurses without end
        copies = [copy.copy(part), copy.deepcopy(part), pickle.loads(pickle.dumps(part))]
    # These have constructors with other parameters.
    has_own = isinstance(part, (face.TargetSm, face.metadata.GroupedGemmOperandsMetadata))
    if not has_own:
        copies.append(dataclasses.replace(part))
    for made in copies:
        assert type(made) is type(part) and made == part and made is not part
        assert repr(made) == repr(part)
    is_hashed = isinstance(part, (face.TargetSm, face.metadata.TileSchedulerMetadata))
    assert (type(part).__hash__ is not None) == is_hashed
    if names and copies:
        setattr(copies[0], names[0], "changed")
        assert copies[0] != part


@pytest.mark.parametrize(("face", "part", "names"), PARTS, ids=IDS)
def test_plain_dataclasses_derive(face, part, names):
    """They may add a field without a default."""
    base = type(part)
    if isinstance(part, face.metadata.TileSchedulerMetadata):
        with pytest.raises(TypeError, match="non-frozen dataclass from a frozen"):
            dataclasses.make_dataclass("Derived", [("note", int)], bases=(base,))
        return
    has_defaults = isinstance(part, face.OperatorMetadata)
    note = ("note", int, dataclasses.field(default=0)) if has_defaults else ("note", int)
    derived = dataclasses.make_dataclass("Derived", [note], bases=(base,))
    made = derived(**{name: getattr(part, name) for name in names}, note=3)
    assert made.note == 3 and [getattr(made, name) for name in names] == [
        getattr(part, name) for name in names
    ]
    made.note = 4
    assert made != part and isinstance(made, base)


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.__name__)
def test_controls_and_epilogues_of_ones_own(face):
    assert face.PerformanceControls() == face.PerformanceControls()
    assert face.PerformanceControls.__hash__ is None
    derived = dataclasses.make_dataclass("Mine", [("z", int)], bases=(face.PerformanceControls,))
    assert derived(3).z == 3 and derived(3) != derived(4)

    @dataclasses.dataclass
    class Mine(face.metadata.EpilogueMetadata):
        note: int

    assert Mine(3).note == 3
    assert not dataclasses.is_dataclass(face.metadata.EpilogueMetadata)


def test_constraints_of_all_forms_of_a_type_are_equal():
    made = [
        ops.metadata.DenseTensorConstraints(form, (0, 0, 1), 8)
        for form in (cutlass.Float16, torch.float16, "float16", DType("float16"))
    ]
    assert all(each == made[0] and each.ptr_alignment_bytes == 16 for each in made)
    four_bits = ops.metadata.DenseTensorConstraints(cutlass.Float4E2M1FN, None, 32)
    assert (four_bits.dtype, four_bits.ptr_alignment_bytes) == (cutlass.Float4E2M1FN, 16)


def test_constraints_follow_the_rules_of_the_core():
    of = ops.metadata
    args = fake_arguments()
    dense = of.DenseTensorConstraints(cutlass.BFloat16, (0, 1), 8)
    assert dense.supports(args.A) and dense.supports(args.A.tensor)
    half = of.DenseTensorConstraints(cutlass.Float16, (0, 1), 8)
    assert "has dtype bfloat16" in str(half.supports(args.A).error)
    assert dense.supports(of.DenseTensorConstraints(cutlass.BFloat16, (0, 1), 16))
    coarser = dataclasses.replace(dense, divisibility=16)
    assert dense.supports(coarser) and "divisible by 8" in str(coarser.supports(dense).error)
    operands = of.GemmOperandsMetadata(dense, dense, dense, torch.float32)
    assert operands.supports(args) and operands.supports(dataclasses.replace(operands))
    for changed, reason in (
        ({"B": half}, "B is not supported: operand has dtype bfloat16"),
        ({"accumulator_type": cutlass.Float64}, "accumulator_type is Float32"),
    ):
        other = dataclasses.replace(operands, **changed)
        assert reason in str(other.supports(args).error)
        assert not operands.supports(other) and not other.supports(operands)
    grouped = of.GroupedGemmOperandsMetadata(dense, dense, dense, dense, "float32")
    assert "it takes GroupedGemmArguments" in str(grouped.supports(args).error)
    along_k = of.IndexPtrGroupedGemmOperandsMetadata(dense, dense, dense, dense, "k", "float32")
    assert not along_k.supports(grouped) and grouped.supports(copy.copy(grouped))


def test_constraints_of_ones_own():
    class Anything(ops.metadata.OperandConstraints):
        def supports(self, operand):
            return ops.Status.success()

    class Fewer(ops.metadata.DenseTensorConstraints):
        def supports(self, operand):
            if operand.shape[-1] < 100:
                return ops.Status.fail("it has too few columns")
            return super().supports(operand)

    fewer = Fewer(cutlass.BFloat16, None, 1)
    operands = ops.metadata.GemmOperandsMetadata(Anything(), fewer, Anything(), cutlass.Float32)
    assert operands.supports(fake_arguments())
    status = operands.supports(fake_arguments(n=64))
    assert str(status.error) == "B is not supported: it has too few columns"


def test_the_metadata_of_the_core_stays_frozen():
    operator = ops.get_operators(fake_arguments(), target_sm="90a")[0]
    of_core = operator.kernel.metadata
    assert isinstance(of_core.operands.A, metadata.DenseTensorAttributes)
    with pytest.raises(dataclasses.FrozenInstanceError):
        of_core.operands.A.divisibility = 3
    assert operator.metadata.design.core is of_core.design
