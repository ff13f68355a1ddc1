"""The names of `cutlass_api.operators` beside those of NVIDIA's package."""

import importlib
import inspect
import json
import os
import subprocess
from pathlib import Path

import cutlass.operators
import cutlass_api
import pytest
import torch
from cutlass_api import operators as ops
from cutlass_api.operators import metadata, mma
from cutlass_api.operators.fusion import evt_ops
from cutlass_api.operators.heuristics import nvmatmul
from cutlass_api.operators.providers import cutedsl
from operators_face.their_names import THEIRS_BY_MODULE
from support import operator_names
from support.helpers import run_python

#: Python of an environment with NVIDIA's package: the stored names are compared with its names.
#: `make test-nvidia-operators` sets it.
ORIGINAL = os.environ.get("TEST_ORIGINAL")


@pytest.mark.parametrize("module", THEIRS_BY_MODULE)
def test_each_public_name_is_there(module):
    found = importlib.import_module(f"cutlass_api.operators.{module}".rstrip("."))
    assert [name for name in THEIRS_BY_MODULE[module] if not hasattr(found, name)] == []


def test_no_further_names_at_the_top():
    assert operator_names.public_names("cutlass_api.operators") == THEIRS_BY_MODULE[""]


@pytest.mark.skipif(ORIGINAL is None, reason="TEST_ORIGINAL names no Python with the original")
def test_the_stored_names_are_those_of_the_original():
    # NVIDIA's package imports torch: that of these tests will do.
    environment = {
        **os.environ,
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "PYTHONPATH": str(Path(torch.__file__).parents[1]),
    }
    command = [ORIGINAL, "-W", "ignore", operator_names.__file__, "cutlass.operators"]
    printed = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    assert json.loads(printed) == THEIRS_BY_MODULE


@pytest.mark.skipif(cutlass.operators is not ops, reason="cutlass.operators is NVIDIA's")
@pytest.mark.parametrize("module", [*operator_names.LEFT_OUT, "none", "metadata.none"])
def test_other_modules_name_the_nearest(module):
    # PyTorch imports one module of the package.
    module = {"providers.cutedsl.gemm": "providers.cutedsl.gemm.sm90_static_persistent"}.get(
        module, module
    )
    with pytest.raises(ModuleNotFoundError) as caught:
        importlib.import_module(f"cutlass.operators.{module}")
    message = str(caught.value)
    parent = f"cutlass.operators.{module}".rpartition(".")[0].removesuffix(".gemm")
    names = importlib.import_module(parent).__all__
    assert message.endswith(f"; the nearest module of rutlass is {parent}, with {', '.join(names)}")
    assert f"No module named 'cutlass.operators.{module}'" in message


#: The members by enumeration of 0.3.0. Their values count from 1.
COUNTED = {
    ops.ArchPortability: "Portable FamilyPortable ArchConditional",
    ops.ScaleSwizzleMode: "SwizzleNone Swizzle32x4x4",
    ops.utils.layout.LayoutType: """
        ColumnMajor RowMajor ColumnMajorInterleaved2 RowMajorInterleaved2 ColumnMajorInterleaved32
        RowMajorInterleaved32 ColumnMajorInterleaved64 RowMajorInterleaved64 TensorNWC TensorNHWC
        TensorNDHWC TensorNCHW TensorNGHWC TensorNC32HW32 TensorNC64HW64 TensorC32RSK32
        TensorC64RSK64 TensorKCS TensorKCSR TensorKCSRT
    """,
}
VALUES = {
    **{kind: {name: at for at, name in enumerate(COUNTED[kind].split(), 1)} for kind in COUNTED},
    ops.ScaleMode: {"Blockwise1x16": (1, 1, 16), "Blockwise1x32": (1, 1, 32)},
    ops.Transport: {
        name: name.lower()
        for name in ("TMA", "SYNC_GMEM_LOAD", "SYNC_GMEM_STORE", "ASYNC_GMEM_LOAD")
    },
}


@pytest.mark.parametrize("kind", VALUES, ids=lambda kind: kind.__name__)
def test_members_have_the_values_of_the_original(kind):
    assert {each.name: each.value for each in kind} == VALUES[kind]


def test_functions_of_epilogues_on_tensors():
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.equal(evt_ops.multiply_add(x, 2, 1), x * 2 + 1)
    assert torch.equal(evt_ops.permute(x, (1, 0)), x.T)
    assert evt_ops.reshape(x, (3, 2)).shape == (3, 2)
    assert torch.equal(evt_ops.sum(x, [1]), x.sum(1)) and evt_ops.max(x, [0, 1]) == 5


def test_operators_are_of_the_base_of_their_provider():
    base = cutedsl.operator.CuteDslOperator
    assert all(isinstance(each, base) for each in ops.get_operators(target_sm="90a", limit=9))
    assert not nvmatmul.is_available()


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_signatures():
    search = ["args", "metadata_filter", "target_sm", "providers"]
    assert parameters(ops.get_operators) == [*search, "heuristic", "limit"]
    assert parameters(ops.Manifest.get_operators) == search
    assert parameters(ops.Manifest().filter_operators) == search
    assert parameters(ops.Manifest().add_operators) == ["operators"]
    operator = ops.get_operators(target_sm="90a")[0]
    run = ["args", "compiled_artifact", "stream", "workspace", "assume_supported_args"]
    assert parameters(operator.run) == run
    assert parameters(operator.compile) == parameters(operator.supports) == ["args", "target_sm"]
    generate = ["metadata_filter", "epilogue_args", "target_sm", "args"]
    assert parameters(ops.Operator.generate_operators) == generate
    assert parameters(ops.CuTeDSLProvider.generate_operators) == generate
    assert parameters(ops.CompiledArtifact) == ["compiled_obj", "operator_obj", "compiled_for"]
    grouped = ["A", "B", "out", "accumulator_type", "offsets"]
    own = parameters(ops.IndexPtrGroupedGemmArguments)
    assert own[:7] == [*grouped, "offsets_along", "epilogue"]
    assert parameters(ops.GroupedGemmArguments)[:6] == [*grouped, "epilogue"]
    assert parameters(ops.GemmArguments)[:5] == [*grouped[:4], "epilogue"]
    fields = ["operator_name", "operator_class", "supported_targets"]
    assert parameters(ops.OperatorMetadata) == [*fields, "operands", "design", "epilogue"]
    assert parameters(ops.ScaledOperand) == ["quantized", "scale", "mode", "swizzle"]


def test_rules_are_those_of_the_core():
    assert ops.Status is cutlass_api.Status and ops.ScaleMode is cutlass_api.library.ScaleMode
    assert issubclass(ops.GemmArguments, cutlass_api.arguments.GemmArguments)
    assert issubclass(metadata.DenseTensorConstraints, metadata.OperandConstraints)
    assert issubclass(metadata.GemmOperandsMetadata, metadata.OperandsMetadata)


BLACKWELL = {
    "BLASDesignMetadata": lambda: metadata.Sm100DesignMetadata(tile_shape=(128, 128, 64)),
    "use BLASDesignMetadata": lambda: metadata.Sm107DesignMetadata(),
    "HopperWgmma": lambda: mma.BlackwellTcgen05Mma.supported_targets(),
    "AmpereMma": lambda: mma.RubinTcgen05Mma.shape_k(None),
    "StaticPersistent": lambda: metadata.CLCDynamicPersistentTileSchedulerMetadata(),
    "cost model": lambda: ops.get_heuristic("nvmatmul")(),
    "cutlass_api.weights": lambda: ops.utils.tensor.pre_shuffle_int4_a(torch.zeros(8)),
}


@pytest.mark.parametrize("nearest", BLACKWELL)
def test_what_only_blackwell_has_names_the_nearest(nearest):
    with pytest.raises(NotImplementedError, match=nearest):
        BLACKWELL[nearest]()


def test_modules_are_reachable_after_one_import():
    code = """
        import cutlass_api.operators as ops
        ops.fusion.activation.relu, ops.utils.tensor.TensorWrapper, ops.metadata.OperatorMetadata
        ops.heuristics.Heuristic, ops.arguments.GemmProblemSize, ops.arch.TargetSm
        import sys
        print([name for name in ("torch", "numpy", "jax") if name in sys.modules])
    """
    assert run_python(code) == "[]\n"


def test_global_options_are_shared():
    options = ops.GlobalOptions()
    before = options.save()
    options.use_tvm_ffi = not before["use_tvm_ffi"]
    assert cutlass_api.config.GlobalOptions().use_tvm_ffi != before["use_tvm_ffi"]
    options.restore(before)
    assert options.save() == before and ops.GlobalOptions() is options
