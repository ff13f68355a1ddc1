"""What errors name: K, classes of arguments, dtypes, and the remedy that helps."""

import traceback

import cutlass_api
import ml_dtypes
import numpy as np
import pytest
import torch
from cutlass_api import quantize
from cutlass_api.arguments import GemmArguments

BF16, I8, F8 = torch.bfloat16, torch.int8, torch.float8_e4m3fn
OFFSETS = torch.tensor([2, 4], dtype=torch.int32)


def ones(*shape, dtype=BF16):
    return torch.ones(shape).to(dtype)


# K.

#: Products of K = 64 by the transpose of a weight (32, 96), with scales for it.
PRODUCTS = {
    "mixed_mm": lambda w: (ones(4, 64), w(I8), ones(1, 32)),
    "mixed_mm of groups": lambda w: (ones(4, 64), w(I8), ones(3, 32)),
    "int8_mm": lambda w: (ones(4, 64, dtype=I8), w(I8), torch.ones(4, 1), torch.ones(1, 32)),
    "scaled_mm": lambda w: (ones(4, 64, dtype=F8), w(F8), torch.ones(4, 1), torch.ones(1, 32)),
    "scaled_grouped_mm": lambda w: (
        *(ones(4, 64, dtype=F8), torch.stack([w(F8)] * 2)),
        *(torch.ones(4, 1), torch.ones(2, 1, 32), OFFSETS),
    ),
    "matmul": lambda w: (ones(4, 64), w(BF16)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_k_that_differs_is_named(name):
    args = PRODUCTS[name](lambda dtype: ones(32, 96, dtype=dtype).t())
    with pytest.raises(ValueError, match=r"dimension K differs: it is 64 in A .*, but 96 in B "):
        getattr(cutlass_api, name.split()[0])(*args)


def test_a_weight_that_is_not_transposed():
    """Scales of a square matrix's rows would fit the wrong K."""
    q, scale = quantize.per_row(torch.randn(32, 64), I8)
    with pytest.raises(ValueError, match=r"dimension K differs.*; pass the transpose of B$"):
        cutlass_api.mixed_mm(ones(4, 64), q, scale.t())


# Classes.

PUBLIC = [name for name in cutlass_api.ops.__all__ if name.islower() and name != "matmul"]


def arguments(name):
    """Arguments of a function that it takes, but for their values."""
    tensor, weight = ones(4, 64), quantize.int4(ones(32, 64))
    others = {
        "linears": [[tensor]],
        "quantized_linear": [weight],
        "quantized_grouped_mm": [weight, OFFSETS],
        "scaled_grouped_mm": [tensor, tensor, tensor, OFFSETS],
    }
    return others.get(name, [tensor, tensor, OFFSETS])


@pytest.mark.parametrize("value", [None, "relu", np.ones(3)], ids=["None", "str", "array"])
@pytest.mark.parametrize("name", PUBLIC)
def test_operators_name_what_is_no_tensor(name, value):
    with pytest.raises(TypeError, match=rf"^cutlass_api\.{name}: \w+ is .*; pass a tensor$") as of:
        getattr(cutlass_api, name)(value, *arguments(name))
    is_short(of.value)


def is_short(error):
    """No schema of torch's dispatcher, also not as the context of the error."""
    printed = "".join(traceback.format_exception(error, chain=True)).partition("TypeError: ")[2]
    assert len(printed.splitlines()) == 1
    assert "Declaration" not in "".join(traceback.format_exception(error))


@pytest.mark.parametrize("value", [None, "x"])
@pytest.mark.parametrize("name", quantize.__all__)
def test_helpers_name_what_is_no_tensor(name, value):
    pattern = rf"^cutlass_api\.quantize\.{name}: \w+ is {value!r}; pass a tensor$"
    with pytest.raises(TypeError, match=pattern) as caught:
        getattr(quantize, name)(value)
    is_short(caught.value)


def test_what_is_no_tensor_in_other_places():
    x, w = ones(4, 64), ones(32, 64)
    with pytest.raises(TypeError, match=r"linear: bias is 'relu'; pass a tensor or None$"):
        cutlass_api.linear(x, w, "relu")
    with pytest.raises(TypeError, match=r"linears: weights\[1\] is None; pass a tensor$"):
        cutlass_api.linears(x, [w, None])
    with pytest.raises(TypeError, match=r"linears: weights is None; pass a list of tensors$"):
        cutlass_api.linears(x, None)
    with pytest.raises(ValueError, match="block is None; pass one of"):
        quantize.per_block(w, I8, None)


@pytest.mark.parametrize("name", ["mixed_mm", "int8_mm", "scaled_mm", "grouped_mm"])
def test_what_is_no_dtype(name):
    tensors = [ones(16, 16)] * {"grouped_mm": 3, "scaled_mm": 4}.get(name, 2)
    pattern = f"{name}: out_dtype is 'bfloat16'; pass a torch.dtype"
    with pytest.raises(TypeError, match=pattern) as caught:
        getattr(cutlass_api, name)(*tensors, out_dtype="bfloat16")
    is_short(caught.value)
    with pytest.raises(TypeError, match=r"per_row: dtype is 'int8'; pass a torch\.dtype"):
        quantize.per_row(ones(4, 4), "int8")


@pytest.mark.parametrize("requires_grad", [False, True])
def test_dtypes_of_matmul(requires_grad):
    x, w = ones(4, 64).requires_grad_(requires_grad), ones(64, 32)
    assert cutlass_api.matmul(x, w, out_dtype="float32").dtype is torch.float32
    with pytest.raises(TypeError, match=r"^out_dtype: 'nonsense' does not name"):
        cutlass_api.matmul(x, w, out_dtype="nonsense")


@pytest.mark.parametrize("value", ["x", 0, None])
def test_candidates(value):
    with pytest.raises(ValueError, match=f"candidates is {value!r}; pass an integer, 1 or more"):
        cutlass_api.inductor.enable(candidates=value)


# dtypes.


@pytest.mark.parametrize(
    "a, b, remedy",
    [
        ("bfloat16", "float16", "cast B to bfloat16"),
        ("float16", "float32", "cast B to float16"),
        ("int8", "float32", "cast B to float16 or bfloat16"),
    ],
)
def test_a_cast_of_floats_loses_no_scale(a, b, remedy):
    operands = (ones(4, 64, dtype=getattr(torch, a)), ones(64, 32, dtype=getattr(torch, b)))
    with pytest.raises(ValueError, match=f"{remedy}$"):
        cutlass_api.matmul(*operands, out_dtype="float32")


NARROW = {"int4": "int8", "uint4": "int8", "int2": "int8", "float4_e2m1fn": "float16"}


@pytest.mark.parametrize("name", [*NARROW, "float6_e3m2fn"])
def test_narrow_arrays_of_numpy_get_a_remedy_that_helps(name):
    array = np.ones((16, 16)).astype(getattr(ml_dtypes, name))
    out, wide = np.zeros((16, 16), np.float32), NARROW.get(name, "float16")
    with pytest.raises(ValueError, match=f"^A has dtype {name}, .*; cast it to {wide}, or pass"):
        GemmArguments(array, array, out, "float32")
    assert cutlass_api.matmul(array.astype(wide), array.astype(wide))[0, 0] == 16


@pytest.mark.parametrize("name", ["int4", "float4_e2m1fn"])
def test_narrow_arrays_of_jax_get_a_remedy_that_helps(name):
    jnp = pytest.importorskip("jax.numpy")
    array = jnp.ones((16, 16), getattr(jnp, name))
    with pytest.raises(ValueError, match=f"^A has dtype {name}, .*; cast it to {NARROW[name]}, or"):
        GemmArguments(array, array, np.zeros((16, 16), np.float32), "float32")


def test_tensors_of_torchao_are_named():
    api = pytest.importorskip("torchao.quantization")
    layer = torch.nn.Linear(64, 32, dtype=BF16)
    api.quantize_(layer, api.Int8WeightOnlyConfig())
    x, out = ones(64, 3), ones(32, 3)
    pattern = r"^A is a torchao\..*, which has no memory of its own; pass .*dequantize\(\), or a"
    with pytest.raises(ValueError, match=pattern):
        GemmArguments(layer.weight, x, out, "float32")
    assert GemmArguments(layer.weight.dequantize(), x, out, "float32")
    for function, name in ((cutlass_api.linear, "weight"), (quantize.per_row, "input")):
        args = (x.t(), layer.weight) if name == "weight" else (layer.weight,)
        with pytest.raises(TypeError, match=rf"{name} is a torchao Int8Tensor; pass {name}\.deq"):
            function(*args)


# explain, and the command line.


def test_no_tensor_is_printed():
    big = torch.zeros(100, 100)
    for call in (
        lambda: cutlass_api.explain(big, big),
        lambda: cutlass_api.get_kernels(cc=big),
        lambda: cutlass_api.get_kernels(providers=[big]),
        lambda: cutlass_api.matmul(big, big, out_dtype=big),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert "tensor([" not in str(caught.value) and "0." not in str(caught.value)


def test_cc_of_operands_on_the_cpu(capsys):
    args = GemmArguments(ones(4, 64), ones(64, 32), ones(4, 32), "float32")
    cutlass_api.explain(args, cc=90)
    printed = capsys.readouterr().out
    assert "cuda" not in printed
    assert "reference    none of 318 kernels: cc = 90 is the compute capability of a GPU" in printed
    reference = cutlass_api.get_kernels(args)[0]
    with pytest.raises(ValueError, match="cc = 90 is the compute capability of a GPU, the kernel"):
        reference.estimate(args, cc=90)
