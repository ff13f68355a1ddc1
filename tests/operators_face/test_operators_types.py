"""The element types of the stand-in for ``cutlass``, as nvidia-cutlass-dsl 4.8.1 has them, and
the dtypes of operands and operators.

Where NVIDIA's package is installed, the tests run on its classes.
"""

import copy
import pickle

import pytest
import torch
from cutlass_api import DType
from cutlass_api import operators as ops
from cutlass_api.operators.utils.dtype import to_cutlass_type
from operators_face.face import fake_arguments
from support.helpers import run_python

cutlass = pytest.importorskip("cutlass")

#: The element types of NVIDIA's package: the width in bits by name.
FLOATS = {"Float64": 64, "Float32": 32, "TFloat32": 32, "Float16": 16, "BFloat16": 16}
FLOATS |= dict.fromkeys(("Float8E5M2", "Float8E4M3FN", "Float8E4M3", "Float8E8M0FNU"), 8)
FLOATS |= dict.fromkeys(("Float8E4M3B11FNUZ", "FloatNV8E5M3FNU", "Float4E2M1FNx2"), 8)
FLOATS |= {"Float4E2M1FN": 4, "Float6E3M2FN": 6, "Float6E2M3FN": 6, "Float": 32}
FLOATS |= {"Float6E3M2FNx4": 24, "Float6E2M3FNx4": 24}
SIGNED = {"Boolean": 1, "Int4": 4, "Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64, "Int128": 128}
UNSIGNED = {"Uint8": 8, "Uint16": 16, "Uint32": 32, "Uint64": 64, "Uint128": 128}


def test_the_tree_of_element_types():
    named = {name: each for name, each in vars(cutlass).items() if isinstance(each, type)}
    types = {name: each for name, each in named.items() if issubclass(each, cutlass.Numeric)}
    widths = {name: each.width for name, each in types.items()}
    assert widths == {**FLOATS, **SIGNED, "Integer": 32, **UNSIGNED, "Numeric": 8}
    for name in FLOATS:
        each = types[name]
        assert issubclass(each, cutlass.Float) and (each.is_float, each.is_integer) == (True, False)
        assert str((each.zero, each.inf, each.nan)) == "(0.0, inf, nan)"
        assert not hasattr(each, "signed")
    for name in (*SIGNED, *UNSIGNED):
        each = types[name]
        assert issubclass(each, cutlass.Integer) and each.signed == (name in SIGNED)
        assert (each.is_float, each.is_integer, each.zero) == (False, True, 0)
    abstract = {name for name, each in types.items() if each.is_abstract}
    assert abstract == {"Numeric", "Float", "Integer"}


def test_what_element_types_say_of_themselves():
    half, byte = cutlass.Float16, cutlass.Int8
    assert (half.__name__, str(half), type(half).__name__) == ("Float16", "Float16", "FloatMeta")
    assert half.is_same_kind(cutlass.Float64) and not half.is_same_kind(byte)
    assert (cutlass.Boolean.bytes, half.bytes, half.n_bytes(3)) == (1, 2, 6)
    assert half.isinstance(1.0) and not half.isinstance(1) and byte.isinstance(1)
    assert pickle.loads(pickle.dumps(half)) is copy.deepcopy(half) is half


def test_the_stand_in_has_no_values():
    if hasattr(cutlass, "cute"):
        pytest.skip("NVIDIA's package is installed")
    with pytest.raises(NotImplementedError, match="Float16 of the stand-in for cutlass"):
        cutlass.Float16(3)


CLASSES = {
    torch.float16: "Float16",
    torch.bfloat16: "BFloat16",
    torch.float32: "Float32",
    torch.float64: "Float64",
    torch.float8_e4m3fn: "Float8E4M3FN",
    torch.int8: "Int8",
    torch.uint8: "Uint8",
}


@pytest.mark.parametrize("dtype", CLASSES)
def test_dtypes_are_classes_of_cutlass(dtype):
    known = getattr(cutlass, CLASSES[dtype])
    args = fake_arguments(dtype=dtype)
    found = ops.get_operators(args, target_sm="90a", limit=2)[-1].metadata.operands
    assert args.A.dtype is args.A.tensor.element_type is found.A.dtype is known
    assert args.accumulator_type is found.accumulator_type
    assert issubclass(args.accumulator_type, cutlass.Numeric)
    assert {known: 1}[args.B.dtype] and args.out.dtype in {args.out.tensor.dtype}
    # All forms name the class, and the core takes it.
    forms = [known, dtype, str(dtype).removeprefix("torch."), DType(dtype)]
    assert {to_cutlass_type(form) for form in forms} == {known} and DType(known) == DType(dtype)


def test_dtypes_of_grouped_arguments_and_of_types_that_no_kernel_computes_with():
    tensors = torch.ones(64, 32), torch.ones(2, 32, 16), torch.ones(64, 16)
    offsets = torch.tensor([32, 64], dtype=torch.int32)
    args = ops.IndexPtrGroupedGemmArguments(*tensors, "float32", offsets, "m")
    assert (args.accumulator_type, args.offsets.dtype) == (cutlass.Float32, cutlass.Int32)
    names = {torch.int64: "Int64", torch.bool: "Boolean", torch.uint32: "Uint32"}
    names |= {torch.float8_e8m0fnu: "Float8E8M0FNU"}
    for dtype, name in names.items():
        wrapper = ops.utils.tensor.TensorWrapper(torch.zeros(8, dtype=dtype))
        assert wrapper.dtype is getattr(cutlass, name)
    # `cutlass` has no class for these.
    wrapper = ops.utils.tensor.TensorWrapper(torch.zeros(8, dtype=torch.float8_e5m2fnuz))
    assert isinstance(wrapper.dtype, DType) and wrapper.dtype.name == "float8_e5m2fnuz"


def test_dtypes_without_cutlass():
    code = """
        import sys
        sys.modules["cutlass"] = None  # hides an installed package
        import numpy as np
        from cutlass_api import DType, operators as ops
        a = np.zeros((4, 4), np.float32)
        args = ops.GemmArguments(a, a, a.copy(), "float32")
        assert isinstance(args.A.dtype, DType) and args.accumulator_type == "float32"
        (operator,) = ops.get_operators(args)
        assert operator.supports(args) and operator.metadata.operands.A.dtype == args.A.dtype
        print("served")
    """
    assert run_python(code, CUTLASS_API_STAND_IN="0") == "served\n"
