"""The classes of weights: decoded bit by bit, repacked, saved, traced, and refused."""

import copy
import io
import re

import cutlass_api
import ml_dtypes
import numpy as np
import pytest
import torch
from cutlass_api import weights
from cutlass_api.weights import MXFP4, NVFP4, Float8, Int4, Int8, UInt4, UInt8, Weight
from hypothesis import given, settings
from hypothesis import strategies as st
from support.weights import decoded, nibble, of_word
from torch._subclasses.fake_tensor import FakeTensorMode

E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
N, K = 6, 160


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_bytes(shape, dtype=torch.uint8, seed=0):
    return torch.randint(256, shape, generator=generator(seed), dtype=torch.uint8).view(dtype)


def random_floats(shape, dtype, seed=1):
    return torch.randn(shape, generator=generator(seed)).to(dtype)


def small_exponents(shape):
    return (random_bytes(shape) % 20 + 117).view(E8M0)


def finite_bytes(shape):
    """float8 without NaN."""
    return (random_bytes(shape) & 0xBF).view(E4M3)


def integers(cls, group, dtype, zero=None):
    shape = (N, 1 if group is None else -(-K // group))
    values = random_bytes((N, K // 2 if cls in (Int4, UInt4) else K))
    zeros = {}
    if zero is not None:
        codes = random_bytes(shape, seed=2)
        codes = codes % 17 if cls is UInt4 else codes
        zeros["zeros"] = random_floats(shape, zero) if zero.is_floating_point else codes
    return cls(
        values.view(torch.int8) if cls is Int8 else values, random_floats(shape, dtype), **zeros
    )


def examples():
    for group in (32, 64, 128, None):
        for dtype in FLOATS:
            where = f"{group}-{dtype}"
            yield f"int4-{where}", integers(Int4, group, dtype)
            yield f"uint4-{where}", integers(UInt4, group, dtype, torch.uint8)
            yield f"added-{where}", integers(UInt4, group, dtype, dtype)
            yield f"int8-{where}", integers(Int8, group, dtype)
            yield f"uint8-{where}", integers(UInt8, group, dtype, torch.uint8)
    values = random_bytes((N, K // 2))
    yield "mxfp4", MXFP4(values, small_exponents((N, K // 32)))
    of_blocks = finite_bytes((N, K // 16))
    yield "nvfp4", NVFP4(values, of_blocks, torch.tensor(0.3))
    yield "nvfp4-rows", NVFP4(values, of_blocks, random_floats((N, 1), torch.float32))
    order = torch.randperm(K, generator=generator()).int()
    yield "permuted", Int4(values, random_floats((N, 5), torch.float16), order)
    numbers = finite_bytes((N, K))
    for shape in ((), (N, 1), (N, 2), (1, 2)):
        yield f"float8-{shape}", Float8(numbers, random_floats(shape, torch.float32))


EXAMPLES = dict(examples())
each = pytest.mark.parametrize("name", EXAMPLES)


def same(one, other):
    assert type(one) is type(other)
    assert one.tensors().keys() == other.tensors().keys()
    for key, tensor in one.tensors().items():
        twin = other.tensors()[key]
        assert (tensor.dtype, tensor.shape) == (twin.dtype, twin.shape)
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), twin.reshape(-1).view(torch.uint8))


@each
def test_dequantizes_as_the_format_says(name):
    weight = EXAMPLES[name]
    group = (N, 128) if tuple(weight.scales.shape) == (1, 2) else None
    expected = decoded(weight, group)
    found = weight.dequantize(torch.float32)
    assert found.dtype is torch.float32 and weight.shape == found.shape == (N, K)
    torch.testing.assert_close(found.double(), expected, rtol=2e-7, atol=1e-7)
    assert weight.dtype in (weight.scales.dtype, torch.bfloat16)
    assert torch.equal(weight.dequantize(), found.to(weight.dtype))
    assert str(weight.device) == "cpu" and len(repr(weight)) < 90
    if weight.permutation is not None:
        x, stored = torch.randn(3, K, dtype=torch.float64), weight.tensors()
        del stored["permutation"]
        stored = type(weight).from_tensors(stored).dequantize(torch.float64)
        moved = x[..., weight.permutation] @ stored.t()
        torch.testing.assert_close(x @ found.double().t(), moved)


@each
def test_repacks_and_saves(name):
    weight = EXAMPLES[name]
    repacked = weight.repack()
    assert repacked.repack() is repacked and weight.unpack() is weight
    assert repacked.is_repacked == ("4" in type(weight).__name__)
    assert repacked.shape == weight.shape and repacked.group == weight.group
    same(repacked.unpack(), weight)
    assert torch.equal(repacked.dequantize(), weight.dequantize())
    for one in (weight, repacked):
        file = io.BytesIO()
        torch.save(one.tensors(), file)
        file.seek(0)
        same(type(one).from_tensors(torch.load(file)), one)
        same(copy.deepcopy(one), one)
        same(one.to("cpu"), one)
        module = torch.nn.Module()
        for key, tensor in one.tensors().items():
            module.register_buffer(key, tensor)
        same(type(one).from_tensors(module.state_dict()), one)


def test_the_order_of_kernels():
    codes = random_bytes((3, 96)) & 15
    bytes = weights.pack(codes)
    assert bytes.tolist()[1][5] == codes[1, 10] | codes[1, 11] << 4
    scales = torch.ones(3, 1)
    for values in (bytes, bytes.t().contiguous().t()):
        words = Int4(values, scales).repack().values
        assert words.dtype is torch.int32 and words.shape == (3, 3, 4)
        for n in range(3):
            for k in range(96):
                assert of_word(words[n].flatten().tolist(), k) == codes[n, k]
    words = MXFP4(bytes, torch.ones(3, 3).to(torch.float8_e8m0fnu)).repack().values.flatten(1)
    read = [[of_word(row, k, is_float=True) for k in range(96)] for row in words.tolist()]
    assert torch.equal(torch.tensor(read), codes)


@given(st.lists(st.integers(0, 255), min_size=16, max_size=96), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_any_bytes_survive(bytes, offset):
    """Also those that begin inside of a word."""
    bytes = bytes[: len(bytes) // 16 * 16]
    values = torch.tensor([0] * offset + bytes, dtype=torch.uint8)[offset:][None]
    repacked = Int4(values, torch.ones(1, 1)).repack()
    assert repacked.unpack().values.tolist() == [bytes]
    words = repacked.values.flatten().tolist()
    assert all(of_word(words, k) == nibble(bytes, k) for k in range(2 * len(bytes)))


def test_no_elements_along_k():
    weight = Int4(torch.empty(3, 0, dtype=torch.uint8), torch.ones(3, 1))
    words = weight.repack()
    assert words.shape == (3, 0) and words.unpack().dequantize().shape == (3, 0)
    x, bias = torch.empty(2, 0, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16)
    assert torch.equal(cutlass_api.quantized_linear(x, words, bias), bias.repeat(2, 1))


@each
def test_without_data(name):
    weight = EXAMPLES[name]
    meta = weight.to("meta")
    assert meta.repack().unpack().dequantize().shape == weight.shape
    assert str(meta.device) == "meta"
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = type(weight)(**{k: mode.from_tensor(x) for k, x in weight.tensors().items()})
        assert fake.repack().dequantize().shape == weight.shape
        assert fake.dtype == weight.dtype


def test_compiles():
    for name in ("int4-32-torch.float16", "nvfp4", "permuted"):
        weight = EXAMPLES[name]
        compiled = torch.compile(lambda x: x.repack().dequantize(), backend="eager", fullgraph=True)
        assert torch.equal(compiled(weight), weight.dequantize())


def test_fields_are_contiguous():
    scales = torch.ones(5, N).t()
    weight = Int4(torch.zeros(N, K // 2, dtype=torch.uint8), scales)
    assert weight.scales.is_contiguous() and torch.equal(weight.scales, scales)


def test_nan_scales_pass():
    values = torch.full((N, K // 2), 0x88, dtype=torch.uint8)
    for weight in (
        Int4(values, torch.full((N, 5), torch.nan)),
        MXFP4(values, torch.full((N, 5), 255, dtype=torch.uint8)),
        NVFP4(values, torch.full((N, 10), torch.nan).to(E4M3), torch.tensor(1.0)),
    ):
        assert weight.dequantize().isnan().all()


def test_bytes_of_files_are_viewed():
    """Scales of MX formats in uint8, and torch's dtype of two e2m1 elements."""
    values, scales = random_bytes((N, K // 2)), random_bytes((N, 5))
    two = values.view(torch.float4_e2m1fn_x2)
    same(MXFP4(two, scales), MXFP4(values, scales.view(E8M0)))
    factor = torch.tensor(1.0)
    blocks = finite_bytes((N, 10))
    same(NVFP4(two, blocks, factor), NVFP4(values, blocks, factor))


GOOD = {"values": torch.zeros(N, K // 2, dtype=torch.uint8), "scales": torch.ones(N, 5)}
ZEROS = torch.zeros(N, 5, dtype=torch.uint8)
OF_E2M1 = {**GOOD, "scales": torch.ones(N, 10).to(E4M3), "factor": torch.tensor(1.0)}
REFUSED = [
    (Int4, {"values": GOOD["values"].view(torch.int8)}, "values is torch.int8; pass torch.uint8"),
    (Int4, {"values": GOOD["values"].view(torch.int8)}, "values.view(torch.uint8)"),
    (Int4, {"values": GOOD["values"].long()}, "values is torch.int64; pass torch.uint8 (N, K / 2)"),
    (Int4, {"values": GOOD["values"].view(torch.float4_e2m1fn_x2)}, "values is torch.float4_e2m1"),
    (Int4, {"values": GOOD["values"][0]}, "values has shape [80]; pass the matrix of one weight"),
    (Int4, {"values": GOOD["values"][:, :72]}, "K is 144; pad the weight and the activations"),
    (
        Int4,
        {"values": np.zeros((N, K // 2), np.uint8)},
        "values is ndarray of uint8; pass a torch.",
    ),
    (
        Int4,
        {"values": np.zeros((N, K), ml_dtypes.int4)},
        "pass weights.pack(torch.from_numpy(numpy.asarray(values).astype('int8')) + 8)",
    ),
    (
        MXFP4,
        {"values": np.zeros((N, K), ml_dtypes.float4_e2m1fn)},
        "ndarray of float4_e2m1fn; pass",
    ),
    (Int4, {"scales": torch.ones(N, 4)}, "scales has shape [6, 4] for a weight [6, 160]; pass "),
    (Int4, {"scales": torch.ones(N, 4)}, "[6, 1] (a row) or [6, 5] (a block of 1 x 32) or [6, 3]"),
    (Int4, {"scales": torch.ones(5, N)}, "such as scales.t()"),
    (Int4, {"scales": torch.ones(N, 5).double()}, "scales is torch.float64; pass torch.float16, "),
    (
        Int4,
        {"scales": torch.ones(N, 5, device="meta")},
        "scales is on meta and values on cpu; move",
    ),
    (Int4, {"scales": None}, "scales is NoneType; pass a torch.Tensor"),
    (Int4, {"permutation": torch.arange(K)}, "permutation is torch.int64; pass permutation.int()"),
    (Int4, {"permutation": torch.arange(9).int()}, "permutation has shape [9]; pass [160]"),
    (Int4, {"permutation": torch.arange(K, device="meta").int()}, "permutation is on meta and"),
    (UInt4, {"zeros": ZEROS.int()}, "zeros is torch.int32; pass torch.uint8, torch.float16, "),
    (UInt4, {"zeros": ZEROS[:, :1]}, "zeros has shape [6, 1]; pass [6, 5]"),
    (UInt4, {"zeros": ZEROS.to("meta")}, "zeros is on meta and values on cpu; move zeros"),
    (MXFP4, {}, "scales is torch.float32; pass torch.float8_e8m0fnu"),
    (
        NVFP4,
        {**OF_E2M1, "scales": OF_E2M1["scales"].view(torch.uint8)},
        "scales.view(torch.float8_e4",
    ),
    (NVFP4, {**OF_E2M1, "factor": torch.ones(1)}, "factor has shape [1]; pass []"),
    (NVFP4, {**OF_E2M1, "factor": torch.ones((), dtype=torch.float16)}, "factor is torch.float16"),
    (
        NVFP4,
        {**OF_E2M1, "scales": torch.ones(1280).to(E4M3)},
        "scales has shape [1280] for a weight",
    ),
    (
        Float8,
        {},
        "values is torch.uint8; pass torch.float8_e4m3fn: values.view(torch.float8_e4m3fn)",
    ),
    (Float8, {"values": torch.zeros(N, K).to(torch.float8_e5m2)}, "values is torch.float8_e5m2;"),
    (Float8, {"values": torch.zeros(N, K).to(E4M3), "scales": torch.ones(1)}, "[] (a tensor) or"),
    (Int8, {}, "values is torch.uint8; pass torch.int8"),
]


@pytest.mark.parametrize(("cls", "wrong", "message"), REFUSED)
def test_refuses(cls, wrong, message):
    zeros = {"zeros": ZEROS} if cls in (UInt4, UInt8) else {}
    kind = TypeError if "pass a torch." in message or "ml_" in message else (ValueError, TypeError)
    with pytest.raises(kind, match=re.escape(message)) as error:
        cls(**{**GOOD, **zeros, **wrong})
    assert str(error.value).startswith(cls.__name__ + ": ")


@pytest.mark.parametrize(
    "shape", [(N, K // 8), (K // 8, N), (K, N // 8), (K // 8, 4), (1, 5, 32, 2), (N, K // 8, 1)]
)
@pytest.mark.parametrize(
    "name", ["int4-32-torch.float16", "uint4-32-torch.float16", "mxfp4", "nvfp4"]
)
def test_refuses_the_words_of_checkpoints(name, shape):
    """They have the dtype of repacked values."""
    fields = EXAMPLES[name].repack().tensors()
    words = torch.zeros(shape, dtype=torch.int32)
    with pytest.raises(
        ValueError, match=r"from_compressed_tensors .*from_gptq .*from_awq .*repack"
    ):
        type(EXAMPLES[name])(**{**fields, "values": words})


def test_from_tensors_names_what_is_missing():
    for tensors in ({"values": GOOD["values"]}, {**GOOD, "weight": GOOD["scales"]}):
        with pytest.raises(ValueError, match=r"Int4: the tensors are .*; pass values, scales"):
            Int4.from_tensors(tensors)
    with pytest.raises(ValueError, match="pass an even last extent"):
        weights.pack(torch.zeros(3, 5, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"codes are torch\.float32; pass integers"):
        weights.pack(torch.zeros(3, 6))


def test_each_class_is_exported():
    classes = [x for x in Weight.__subclasses__() if x.__module__.startswith("cutlass_api.")]
    assert {x.__name__ for x in classes} <= set(weights.__all__)
