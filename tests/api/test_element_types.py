"""The table of element types against the frameworks whose names and codes it states."""

import pickle
import re
from importlib.util import find_spec
from pathlib import Path

import cutlass_api
import ml_dtypes
import numpy
import pytest
import torch
from cutlass_api._core import ELEMENT_TYPES, DType, described_dtype

COMPUTED = [element for element in ELEMENT_TYPES if element.accumulators]


#: A type without a code and a class is in no framework.
IN_FRAMEWORKS = [element for element in ELEMENT_TYPES if element.xla_code or element.cutlass_name]


@pytest.mark.parametrize("element", IN_FRAMEWORKS, ids=lambda element: element.name)
def test_frameworks_know_an_element_type_by_its_name(element):
    in_numpy = getattr(ml_dtypes, element.name, None) or getattr(numpy, element.name)
    in_torch = getattr(torch, element.name + "_x2" * element.is_packed, None)
    # NumPy stores one element a byte.
    assert numpy.dtype(in_numpy).itemsize == -(-element.bits // 8)
    if in_torch is not None:
        assert in_torch.itemsize == -(-element.bits * (1 + element.is_packed) // 8)
    if element.accumulators:
        names = (in_torch, in_numpy, numpy.dtype(in_numpy), element.name, element.cutlass_name)
        assert {DType(name).name for name in names} == {element.name}
        assert DType(element.name).width == element.bits


def test_codes_of_xla_are_those_of_its_header():
    spec = find_spec("jaxlib")
    if spec is None:
        pytest.skip("jaxlib is not installed")
    header = Path(spec.submodule_search_locations[0]) / "include/xla/ffi/api/c_api.h"
    codes = dict(re.findall(r"XLA_FFI_DataType_(\w+) = (\d+)", header.read_text()))
    short = {"bfloat": "bf", "float": "f", "uint": "u", "int": "s"}

    def name_in_xla(name):
        kind, rest = re.fullmatch(r"([a-z]+)(.*)", name).groups()
        return (short[kind] + rest.replace("_", "")).upper()

    for element in IN_FRAMEWORKS:
        assert element.xla_code == int(codes.get(name_in_xla(element.name), 0)), element.name


def test_torchs_dtypes_by_class_are_computed_with():
    from cutlass_api import _dtypes

    grouped = {*_dtypes.FLOATS, *_dtypes.FLOAT8, *_dtypes.INTEGER}
    named = {str(dtype).removeprefix("torch.") for dtype in grouped}
    assert named | {"float64"} == {element.name for element in COMPUTED}
    assert set(_dtypes.INT8) < set(_dtypes.INTEGER)


def test_the_first_accumulator_is_the_default():
    for element in COMPUTED:
        if element.element_class == "integer32":
            continue
        factor = torch.ones(16, 16).to(getattr(torch, element.name))
        assert cutlass_api.matmul(factor, factor).shape == (16, 16)
        out = torch.empty(16, 16, dtype=getattr(torch, element.accumulators[0].name))
        args = cutlass_api.arguments.GemmArguments(factor, factor, out, element.accumulators[0])
        assert cutlass_api.get_kernels(args, cc=80), element.name


@pytest.mark.parametrize("name", ["float32", "uint4", "int64", "bool", "float4_e2m1fn_x2"])
def test_types_of_operands_are_loaded_from_pickles(name):
    """Also those that no kernel computes with."""
    dtype = described_dtype(name)
    loaded = pickle.loads(pickle.dumps(dtype))
    assert (loaded.name, loaded.width) == (dtype.name, dtype.width) == (name, dtype.width)
