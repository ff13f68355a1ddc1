"""Operators that fuse any epilogue, and the source that PyTorch generates for epilogues."""

import dataclasses
import pickle
import re
import textwrap
from typing import Any

import pytest
import stand_in
import torch
from cutlass_api import operators as ops
from cutlass_api.operators import metadata
from cutlass_api.operators.fusion import EmptyTensor, trace_in_out
from cutlass_api.operators.fusion.generated import check, translate
from cutlass_api.operators.utils.layout import LayoutType
from operators_face.face import fake_arguments

#: Expressions of generated source, and what they are in the language of epilogues.
TRANSLATED = {
    "cute.math.exp2(x * 1.4426950408889634)": "exp(x)",
    "cute.math.exp2(-x * 1.4426950408889634)": "exp(-x)",
    "cute.math.exp2(x)": "exp(x * 0.6931471805599453)",
    "cute.math.log2(x)": "log(x) * 1.4426950408889634",
    "cute.math.log10(x)": "log(x) * 0.43429448190325176",
    "cute.math.erf(cute.math.sin(x), fastmath=True)": "erf(sin(x))",
    "cute.TensorSSA(mlir_math.absf(x), x.shape, x.dtype)": "abs(x)",
    "cute.TensorSSA(-x, x.shape, x.dtype)": "-x",
    "x * cute.full_like(x, 0.5)": "x * 0.5",
    "cute.full_like(x, float('-inf'), cutlass.Float32)": "-math.inf",
    "cute.where(operator.le(x, y), x, float('nan'))": "where(x <= y, x, math.inf - math.inf)",
    "cute.where((x) > (y), x, y)": "maximum(x, y)",
    "cute.where((x) < (y), x, y)": "minimum(x, y)",
    "cute.where((x) > (y), y, x)": "where(x > y, y, x)",
    "x.to(cutlass.BFloat16)": "cast(x, torch.bfloat16)",
    "cutlass.Float32(0.5) * x": "0.5 * x",
    "relu(sigmoid(x))": "relu(sigmoid(x))",
}


def function(expression: str) -> str:
    return f"def f(accum, y):\n    x = accum\n    D = {expression}\n    return D"


@pytest.mark.parametrize("generated", TRANSLATED)
def test_generated_source(generated: str) -> None:
    translated = translate(function(generated))
    assert translated == function(TRANSLATED[generated])
    assert translate(translated) == translated
    check(function(generated))
    assert trace_in_out(function(generated)) == (["y"], ["D"])


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("cute.math.floor(x)", "floor"),
        ("cute.math.atan2(x, y)", "atan2"),
        ("x.to(cutlass.Int32)", "a cast to Int32"),
        ("operator.gt(x, y) & operator.lt(x, y)", "BitAnd"),
        ("x ** 2.5", "exponent"),
        ("inline_asm_elementwise_intrinsic(x, asm='')", "inline_asm"),
        ("x.reshape(((1, 8, 2), 1, 1)).reduce(cute.ReductionOp.ADD, init_val=0.0)", "reduce"),
        ("x +", "invalid syntax"),
    ],
)
def test_source_that_no_kernel_fuses(expression: str, reason: str) -> None:
    with pytest.raises(NotImplementedError, match=f"no kernel fuses .*{reason}"):
        check(function(expression))


def test_own_source_stays_as_it_is() -> None:
    source = "def f(accum):  # a comment\n    D = relu(accum)\n    return D"
    assert translate(source) == source
    args = fake_arguments(64, 64, 64)
    assert ops.EpilogueArguments(source, D=args.out.tensor).epilogue_fn == source


# ---- operators -----------------------------------------------------------------------------------

SOURCE = "def f(accum, row):\n    D = cute.math.tanh(accum + row.to(cutlass.Float32))\n    return D"


class Generated:
    """The epilogue of a client, as PyTorch has one."""

    def __init__(self, source: str, **tensors: Any) -> None:
        self.epilogue_fn, self.tensors = source, tensors


@pytest.fixture(scope="module")
def fusing() -> ops.Operator:
    found = ops.get_operators(fake_arguments(), target_sm="90a")
    return next(each for each in found if "EFC" in each.metadata.operator_class.__name__)


def fake_with_epilogue(epilogue: type) -> ops.GemmArguments:
    plain, row = fake_arguments(), fake_arguments(1, 256, 1).out.tensor
    fused = epilogue(SOURCE, row=row.compile_time_tensor, D=plain.out.tensor.compile_time_tensor)
    return ops.GemmArguments(plain.A, plain.B, plain.out, "float32", epilogue=fused)


@pytest.mark.parametrize("epilogue", [ops.EpilogueArguments, Generated])
def test_an_operator_fuses_the_epilogue_of_arguments(epilogue: type, fusing: ops.Operator) -> None:
    args = fake_with_epilogue(epilogue)
    artifact = fusing.compile(args, "90a")
    of_core = artifact.compiled_obj.kernel_obj.metadata
    assert "tanh" in of_core.epilogue.epilogue and of_core.design == fusing.metadata.design.core
    assert fusing.compile(fake_arguments(), "90a").compiled_obj.kernel_obj is fusing.kernel
    # A search for the arguments finds kernels of their own.
    found = ops.get_operators(args, target_sm="90a")
    assert any(each.kernel is artifact.compiled_obj.kernel_obj for each in found)
    assert fusing.metadata.operator_name not in {each.metadata.operator_name for each in found}


def test_an_output_of_another_dtype(fusing: ops.Operator) -> None:
    """The operator is of bfloat16 outputs, and the epilogue writes float32."""
    plain = fake_arguments()
    out = ops.utils.tensor.without_memory(torch.empty(512, 256, device="meta"))
    args = ops.GemmArguments(
        *(plain.A, plain.B, out, "float32"),
        epilogue=Generated("def f(accum):\n    D = accum\n    return D", D=out),
    )
    of_core = fusing.compile(args, "90a").compiled_obj.kernel_obj.metadata
    assert of_core.operands.out.dtype == "float32"
    assert of_core.design.tile_shape == fusing.metadata.design.tile_shape


def test_names_and_descriptions(fusing: ops.Operator) -> None:
    described = fusing.metadata
    tile = re.search(r"tile(\d+)x\d+x\d+", described.operator_name)
    assert int(tile[1]) == described.design.tile_shape[0] >= 128
    assert not described.design.use_2cta_mma
    sent = pickle.loads(pickle.dumps(described))
    assert sent.operator_class(sent).kernel is fusing.kernel
    fused = dataclasses.replace(described, epilogue=metadata.EpilogueMetadata(Meta.epilogue()))
    assert described.operator_class(fused).kernel is fusing.kernel


class Meta:
    """An epilogue of tensors without memory, with which a client describes an operator."""

    @staticmethod
    def epilogue() -> ops.EpilogueArguments:
        row, out = (torch.empty(shape, device="meta") for shape in ((256,), (512, 256)))
        return ops.EpilogueArguments(SOURCE, row=row, D=out)


def test_an_epilogue_of_tensors_without_memory() -> None:
    epilogue = Meta.epilogue()
    accumulated = epilogue.traced_epilogue.example_inputs["accum"]
    assert accumulated.shape == (512, 256) and str(accumulated.element) == "Float32"
    epilogue.trace(accumulated.shape, accumulated.element)
    described = metadata.EpilogueMetadata.from_args(epilogue)
    assert described.parameter_names == ["row", "D"] and "tanh" in described.epilogue
    assert described.traced_epilogue == epilogue.traced_epilogue


def test_a_scalar_that_a_client_repeats() -> None:
    a, b = torch.randn(24, 32), torch.randn(32, 16)
    out = torch.empty(24, 16)
    source = type("Source", (str,), {})("def f(accum, s):\n    D = accum * s\n    return D")
    source.schema = type("Schema", (), {"scalar_broadcast_names": frozenset({"s"})})
    epilogue = Generated(source, s=torch.tensor(0.5), D=out)
    args = ops.GemmArguments(a, b, out, "float32", epilogue=epilogue)
    operator = ops.get_operators(args)[0]
    for scalar in (torch.tensor(0.5), torch.full((8, 1), 0.25)):
        args.epilogue.tensors["s"]._runtime_tensor = scalar
        operator.run(args)
        torch.testing.assert_close(out, a @ b * scalar.flatten()[0], rtol=1e-5, atol=1e-5)


def test_arguments_for_later_calls_keep_no_tensor() -> None:
    a, b, out = torch.randn(24, 32), torch.randn(32, 16), torch.empty(24, 16)
    args = ops.GemmArguments(a, b, out, accumulator_type="float32")
    args.local_reduce = "kept"
    operator = ops.get_operators(args)[0]
    artifact = operator.compile(args)
    artifact._nvgemm_reuse = args, operator, None
    kept, _, _ = artifact._nvgemm_reuse
    assert kept is not args and kept.local_reduce == "kept" and kept.A.shape == (24, 32)
    with pytest.raises(ValueError, match="was released"):
        operator.run(kept, artifact)
    for operand, tensor in ((kept.A, a + 1), (kept.B, b), (kept.out, out)):
        operand.tensor._runtime_tensor = tensor
    operator.run(kept, artifact)
    torch.testing.assert_close(out, (a + 1) @ b, rtol=1e-5, atol=1e-5)


def test_a_process_that_compiles_makes_no_context() -> None:
    """The first call that makes one would fail."""
    code = """
        import torch
        from cutlass_api import operators as ops
        from cutlass_api.utils import device_cc
        from stand_in import device
        from torch._subclasses.fake_tensor import FakeTensorMode

        device.fail("cuDevicePrimaryCtxRetain", 2)
        with FakeTensorMode():
            a, b, out = (torch.empty(256, 256, device="cuda").half() for _ in range(3))
        args = ops.GemmArguments(a, b, out, accumulator_type=torch.float32)
        target = ops.TargetSm(cc=device_cc())
        name = "sm80_gemm_f16xf16_f32_f16_ttt_tile128x128x64_2x2warps_3stages_align16"
        operators = {each.metadata.operator_name: each for each in ops.get_operators()}
        assert operators[name].compile(args).compiled_for == target
        source = "def f(accum):\\n    D = relu(accum)\\n    return D"
        epilogue = ops.EpilogueArguments(source, D=out)
        args = ops.GemmArguments(a, b, out, accumulator_type=torch.float32, epilogue=epilogue)
        compiled = operators[name].compile(args)
        assert compiled.compiled_for == target
        assert "128x128x64_2x2warps" in compiled.compiled_obj.kernel_obj.metadata.kernel_name
    """
    stand_in.run(textwrap.dedent(code))


ROW, COLUMN = LayoutType.RowMajor, LayoutType.ColumnMajor
#: A description, a method with its argument, and the shape and strides after it.
EMPTY_TENSORS = [
    ({"shape": (4, 8), "layout_tag": ROW}, None, (4, 8), (8, 1)),
    ({"shape": (2, 4, 8), "layout_tag": COLUMN}, None, (2, 4, 8), (1, 2, 8)),
    ({"shape": (1, 4, 1), "stride": (5, 1, 3)}, None, (1, 4, 1), (0, 1, 0)),
    ({"tensor": torch.zeros(4, 8)}, None, (4, 8), (8, 1)),
    ({"tensor": 2.0}, None, (1,), (0,)),
    ({"tensor": 2.0}, ("broadcast", (4, 8)), (4, 8), (0, 0)),
    ({"tensor": torch.zeros(8)}, ("broadcast", (4, 8)), (4, 8), (0, 1)),
    ({"tensor": torch.zeros(4, 1)}, ("broadcast", (4, 8)), (4, 8), (1, 0)),
    ({"tensor": torch.zeros(4, 8)}, ("reshape", (32,)), (32,), (1,)),
    ({"tensor": torch.zeros(4, 8)}, ("reshape", (2, 2, 8)), (2, 2, 8), (16, 8, 1)),
    ({"tensor": torch.zeros(4, 8)}, ("permute", (1, 0)), (8, 4), (1, 8)),
    ({"tensor": torch.zeros(2, 4, 8)}, ("permute", (2, 0, 1)), (8, 2, 4), (1, 32, 8)),
]


@pytest.mark.parametrize(("description", "call", "shape", "stride"), EMPTY_TENSORS)
def test_empty_tensors(description, call, shape, stride) -> None:
    if "tensor" not in description:
        description = {"element": torch.float32, **description}
    tensor = EmptyTensor(**description)
    if call is not None:
        getattr(tensor, call[0])(call[1])
    assert (tensor.shape, tensor.stride, tensor.rank) == (shape, stride, len(shape))
    assert str(tensor.element) == "Float32" and not tensor.is_constant
    assert EmptyTensor(tensor).shape == shape


def test_empty_tensors_that_are_refused() -> None:
    for description in ({}, {"element": "float32", "shape": (4,)}, {"tensor": 2.0, "shape": (1,)}):
        with pytest.raises(ValueError, match="pass tensor alone, or element, shape and one of"):
            EmptyTensor(**description)
    tensor = EmptyTensor(torch.zeros(4, 8))
    for method, value in (("broadcast", (4, 9)), ("reshape", (5, 7)), ("permute", (0, 0))):
        with pytest.raises(ValueError):
            getattr(tensor, method)(value)
    assert EmptyTensor(2.0, is_constant=True).value == 2.0


def test_operators_are_compiled_for_their_own_epilogue_only():
    def arguments(value):
        a, b, out = torch.ones(64, 32), torch.ones(32, 64), torch.empty(64, 64)
        epilogue = value and ops.EpilogueArguments(function(value), y=2.0, D=out)
        return ops.GemmArguments(a, b, out, "float32", epilogue)

    every = [arguments(value) for value in (None, "relu(x) + y", "tanh(x) + y")]
    for args in every:
        found = ops.get_operators(args, target_sm="90a")
        operator = next(each for each in found if "EFC" not in type(each).__name__)
        for other in every:
            if other is args:
                assert operator.compile(args, "90a").compiled_obj.kernel_obj is operator.kernel
            else:
                with pytest.raises(ValueError, match=r"fuses (no|another) epilogue; search with"):
                    operator.compile(other, "90a")
