"""The element types of the stand-in for ``cutlass``, as nvidia-cutlass-dsl 4.8.1 has them.

Where NVIDIA's package is installed, the tests run on its classes.
"""

import copy
import pickle

import pytest

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
