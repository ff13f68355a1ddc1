"""``cutlass_api.nn.save``: compressed-tensors, which ``load`` reads bit for bit."""

import json
from functools import partial

import pytest
import torch
from cutlass_api import quantize, weights
from cutlass_api.nn import Linear, convert, load, save
from cutlass_api.weights import Float8
from torch import nn

pytest.importorskip("safetensors")
from safetensors.torch import load_file

BF16 = torch.bfloat16
E4M3 = torch.float8_e4m3fn


def matrix(n=12, k=256, dtype=BF16):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(3)).to(dtype)


def float8(*shape):
    return Float8(matrix().to(E4M3), torch.rand(shape))


#: Weights, the format, and how activations are quantized.
LAYERS = {
    **{
        f"{name} {group} {dtype}": (
            partial(getattr(quantize, name), group=group),
            dtype,
            form,
            None,
        )
        for name, form in (("int4", "pack"), ("uint4", "pack"), ("int8", "pack"))
        for group, dtype in ((32, torch.float16), (128, BF16), (-1, torch.float32))
    },
    "uint8": (
        lambda w: weights.UInt8(
            w.to(torch.uint8), torch.rand(12, 2), torch.arange(24, dtype=torch.uint8).view(12, 2)
        ),
        BF16,
        "pack",
        None,
    ),
    "int8": (quantize.int8, BF16, "int", "int8"),
    "fp8": (quantize.fp8, BF16, "float", "fp8"),
    "fp8-weight": (quantize.fp8, BF16, "float", None),
    "fp8 blocks": (lambda w: quantize.fp8(w, (128, 128)), BF16, "float", "fp8"),
    "fp8 one block": (lambda w: quantize.fp8(w[:, :64], (128, 128)), BF16, "float", "fp8"),
    "fp8 rows of blocks": (lambda w: float8(12, 2), BF16, "float", "fp8"),
    "fp8 tensor": (lambda w: float8(), BF16, "float", "fp8"),
    "mxfp4": (quantize.mxfp4, BF16, "mxfp4-pack", None),
    "nvfp4": (quantize.nvfp4, BF16, "nvfp4-pack", None),
}


def model_of(weight, activations=None, bias=True):
    n = weight.shape[0]
    layer = Linear(weight, torch.randn(n) if bias else None, activations)
    return nn.Sequential(layer, nn.LayerNorm(n), nn.Linear(n, 8))


def empty_like(model):
    """The model as it was before its first layer was quantized."""
    n, k = model[0].weight.shape
    with torch.device("meta"):
        first = nn.Linear(k, n, model[0].bias is not None, dtype=BF16)
        return nn.Sequential(first, nn.LayerNorm(n), nn.Linear(n, 8))


def assert_same_bits(one, other):
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype is b[name].dtype and a[name].shape == b[name].shape, name
        bits = (x[name].contiguous().flatten().view(torch.uint8) for x in (a, b))
        assert torch.equal(*bits), name


@pytest.mark.parametrize("name", LAYERS)
def test_load_reads_the_same_bits(tmp_path, name):
    make, dtype, form, activations = LAYERS[name]
    model = model_of(make(matrix(dtype=dtype)), activations)
    model[0].bias.data = model[0].bias.data.to(BF16)
    save(model, tmp_path)
    new = empty_like(model)
    load(new, tmp_path)
    assert_same_bits(model, new)
    assert new[0].format == model[0].format and new[0].activations == activations
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert config["format"] == f"{form}-quantized" and config["ignore"] == ["2"]
    assert config["quant_method"] == "compressed-tensors"


@pytest.mark.parametrize("name", LAYERS)
def test_compressed_tensors_reads_the_layers(tmp_path, name):
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    make, dtype, _, activations = LAYERS[name]
    model = model_of(make(matrix(dtype=dtype)), activations)
    save(model, tmp_path)
    found = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(found)
    scheme = config.config_groups["group_0"]
    tensors = load_file(tmp_path / "model.safetensors")
    parts = {name[2:]: x for name, x in tensors.items() if name.startswith("0.weight")}
    compressor = BaseCompressor.get_value_from_registry(scheme.format)
    matrix_of_it = compressor.decompress(parts, scheme)["weight"]
    expected = model[0].weight.dequantize(matrix_of_it.dtype)
    tolerance = {"rtol": 1e-2, "atol": 1e-4} if matrix_of_it.dtype is not torch.float32 else {}
    torch.testing.assert_close(matrix_of_it, expected, **tolerance)
    assert bool(scheme.input_activations) == (activations is not None)


def test_several_formats_and_shards(tmp_path):
    model = nn.Sequential(
        Linear(quantize.int4(matrix(32, 64)), activations=None),
        Linear(quantize.fp8(matrix(64, 32)), activations="fp8"),
        Linear(matrix(8, 64)),
    )
    (tmp_path / "model.safetensors").write_bytes(b"of another model")
    save(model, tmp_path, max_shard_size=1500)
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    assert [group["targets"] for group in config["config_groups"].values()] == [["0"], ["1"]]
    assert config["format"] == "mixed-precision" and config["ignore"] == ["2"]
    shapes = ((64, 32), (32, 64), (64, 8))
    new = nn.Sequential(*(nn.Linear(*shape, bias=False, dtype=BF16) for shape in shapes))
    load(new, tmp_path)
    assert new[0].format == "Int4" and new[1].activations == "fp8" and type(new[2]) is nn.Linear
    assert torch.equal(new[2].weight, model[2].weight)
    save(model, tmp_path)
    assert not (tmp_path / "model.safetensors.index.json").exists()
    load(new, tmp_path)


def test_a_model_without_quantized_layers(tmp_path):
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    save(tied, tmp_path)
    assert not (tmp_path / "config.json").exists()
    new = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    new[1].weight = new[0].weight
    load(new, tmp_path)
    assert_same_bits(tied, new)


@pytest.mark.parametrize("scheme", ["fp8", "int8", "int8-weight", "uint4", "mxfp4", "nvfp4"])
def test_layers_that_share_a_weight(scheme, tmp_path):
    """Writers drop what shares memory: all parts of a second layer, or none."""

    def shared():
        model = nn.Sequential(*(nn.Linear(64, 64, dtype=BF16) for _ in range(2)))
        model[1].weight = model[0].weight
        return model

    model, new = shared(), shared()
    convert(model, scheme)
    save(model, tmp_path)
    load(new, tmp_path)
    assert_same_bits(model, new)
    assert new[0].values.data_ptr() == new[1].values.data_ptr()


def test_the_factor_of_nvfp4_is_exact(tmp_path):
    """The file has its inverse, whose inverse is another number."""
    q = quantize.nvfp4(matrix())
    q.factor.copy_(torch.tensor(1.9))
    factor = next(x for x in (q.factor * (1 + i * 2.0**-23) for i in range(99)) if 1 / (1 / x) != x)
    q.factor.copy_(factor)
    save(model := model_of(q), tmp_path)
    load(new := empty_like(model), tmp_path)
    assert new[0].factor == factor
    (inverse,) = load_file(tmp_path / "model.safetensors")["0.weight_global_scale"]
    assert inverse == 1 / factor


def permuted(w):
    q = quantize.int4(w)
    return weights.Int4(q.values, q.scales, torch.arange(255, -1, -1, dtype=torch.int32))


def with_zeros(value, dtype):
    q = quantize.uint4(matrix())
    return weights.UInt4(q.values, q.scales, torch.full_like(q.scales, value, dtype=dtype))


def of_factors():
    q = quantize.nvfp4(matrix())
    return weights.NVFP4(q.values, q.scales, torch.rand(12, 1))


REFUSALS = {
    "0: has a permutation": lambda: permuted(matrix()),
    "0: has zero points in floating point": lambda: with_zeros(0.5, torch.float32),
    "0: has zero points of 16": lambda: with_zeros(16, torch.uint8),
    "0: has a factor for each row": of_factors,
    "0: has K = 160, which groups of 128 do not divide": lambda: quantize.int4(matrix(k=160)),
    "0: is on meta": lambda: quantize.int4(matrix()).to("meta"),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_what_has_no_form_is_refused_by_name(tmp_path, message):
    model = model_of(REFUSALS[message](), bias=False)
    with pytest.raises(ValueError, match=f"save: compressed-tensors has no form .*\n +{message}"):
        save(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_newer_model_is_read(tmp_path):
    for value, size in enumerate(["1MB", "1KB", "1MB"]):
        model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
        for parameter in model.parameters():
            nn.init.constant_(parameter, value)
        save(model, tmp_path, max_shard_size=size)
        assert (tmp_path / "model.safetensors").exists() == (size == "1MB")
        loaded = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
        load(loaded, tmp_path)
        assert (loaded[0].weight == value).all()


def test_folders(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file; pass a folder"):
        save(nn.Linear(2, 2), tmp_path / "file")
    with pytest.raises(TypeError, match=r"pass a torch.nn.Module"):
        save(None, tmp_path)
