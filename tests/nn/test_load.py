"""``cutlass_api.nn.load`` of plain modules: formats of checkpoints, and what does not fit."""

import json
import re

import pytest
import torch
from cutlass_api import quantize
from cutlass_api.nn import Linear, convert, load
from cutlass_api.nn._checkpoints import Checkpoint
from cutlass_api.nn._targets import Targets
from cutlass_api.weights import Weight
from torch import nn

pytest.importorskip("safetensors")
from support.checkpoint_files import BLOCKS, KINDS, quantized, write

BF16, F16 = torch.bfloat16, torch.float16
LAYERS = ["block.up", "block.down"]


class Model(nn.Module):
    def __init__(self, dtype=BF16):
        super().__init__()
        self.embed = nn.Embedding(16, 128, dtype=dtype)
        up, down = nn.Linear(128, 192, dtype=dtype), nn.Linear(192, 128, bias=False, dtype=dtype)
        self.block = nn.ModuleDict({"up": up, "down": down})
        self.head = nn.Linear(128, 16, bias=False, dtype=dtype)
        self.register_buffer("steps", torch.arange(3))

    def forward(self, x):
        x = self.embed(x)
        return self.head(x + self.block["down"](torch.relu(self.block["up"](x))))


def model(seed=0, device="cpu", dtype=BF16):
    torch.manual_seed(seed)
    with torch.device(device):
        return Model(dtype).eval()


def state(seed=1, dtype=BF16):
    return dict(model(seed, dtype=dtype).state_dict())


def fields(layer):
    return layer.weight.dequantize(torch.float32)


devices = pytest.mark.parametrize("device", ["cpu", "meta"])


@devices
@pytest.mark.parametrize("shards", [1, 3])
def test_plain_tensors_are_copied(tmp_path, device, shards):
    expected = state()
    write(tmp_path, expected, shards=shards)
    new = model(device=device)
    parameter = new.head.weight
    report = load(new, tmp_path)
    assert report.tensors == len(expected) and not report.quantized and not report.unread
    for name, tensor in new.state_dict().items():
        assert torch.equal(tensor, expected[name]) and tensor.dtype is expected[name].dtype
    assert (new.head.weight is parameter) == (device == "cpu")
    # The memory is not that of the file.
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(bytes(path.stat().st_size))
    assert torch.equal(new.head.weight, expected["head.weight"])


def test_floats_are_converted_to_the_dtype_of_the_model(tmp_path):
    write(tmp_path, {k: x.float() if x.is_floating_point() else x for k, x in state().items()})
    load(new := model(), tmp_path)
    assert new.head.weight.dtype is BF16 and torch.equal(new.head.weight, state()["head.weight"])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_quantized_layers(tmp_path, name, dtype, capsys):
    kind = KINDS[name]
    stored, expected = quantized(state(dtype=dtype), kind, LAYERS)
    write(tmp_path, stored, kind.quantization, shards=2)
    loaded = [model(device=device, dtype=dtype) for device in ("cpu", "meta")]
    for new in loaded:
        report = load(new, tmp_path)
        assert list(report.quantized) and set(report.quantized) == set(LAYERS)
        assert {name.rpartition(".")[2] for name in report.unread} <= {"input_scale"}
        assert f"quantized by {kind.quantization['quant_method']}" in capsys.readouterr().out
        for layer in LAYERS:
            module = new.get_submodule(layer)
            assert type(module) is Linear and module.format == kind.weight
            assert module.activations == kind.activations and not module.training
            assert isinstance(module.weight, Weight)
            assert torch.equal(module.weight.dequantize(dtype), expected[f"{layer}.weight"])
        assert torch.equal(new.block.up.bias, expected["block.up.bias"])
    assert torch.equal(*(new(torch.arange(4)) for new in loaded))
    plain = model(dtype=dtype)
    plain.load_state_dict(expected)
    torch.testing.assert_close(
        loaded[0](torch.arange(4)), plain(torch.arange(4)), rtol=0.1, atol=0.1
    )


def test_blocks_of_a_small_matrix_stay_blocks(tmp_path):
    tensors, expected = KINDS["fp8"].layer(torch.randn(96, 64).to(BF16))
    write(tmp_path, {f"0.{part}": x for part, x in tensors.items()}, BLOCKS)
    new = nn.Sequential(nn.Linear(64, 96, bias=False, dtype=BF16))
    load(new, tmp_path)
    assert new[0].scales.shape == (1, 1) and torch.equal(fields(new[0]), expected)


def test_a_weight_in_16_bits_beside_a_scale_is_taken_as_it_is(tmp_path):
    expected = state()
    scales = {"block.up.weight_scale_inv": torch.full((2, 1), 3.0)}
    write(tmp_path, expected | scales, BLOCKS)
    report = load(new := model(), tmp_path)
    assert torch.equal(new.block.up.weight, expected["block.up.weight"])
    assert report.unread == ["block.up.weight_scale_inv"] and type(new.block.up) is nn.Linear


def test_autogptq_writes_biases_of_zero(tmp_path):
    stored, quantization = of_kind("gptq")
    write(tmp_path, stored | {"block.down.bias": torch.zeros(128, dtype=F16)}, quantization)
    report = load(new := model(), tmp_path)
    assert report.unread == ["block.down.bias"] and new.block.down.bias is None
    write(tmp_path, stored | {"block.down.bias": torch.ones(128)}, quantization)
    with pytest.raises(
        ValueError, match=r"the model has no block.down.bias; it has block.down.weight"
    ):
        load(model(), tmp_path)


def test_the_configuration_may_have_a_file_of_its_own(tmp_path):
    kind = KINDS["modelopt nvfp4"]
    write(tmp_path, quantized(state(), kind, LAYERS)[0])
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert load(model(), tmp_path).method == "modelopt"


def test_layers_that_cannot_be_replaced_are_dequantized(tmp_path):
    class Lora(nn.Linear):
        pass

    kind = KINDS["fp8"]
    stored, expected = quantized(state(), kind, ["embed", *LAYERS])
    write(tmp_path, stored, kind.quantization)
    new = model()
    new.block["up"] = Lora(128, 192, dtype=BF16)
    report = load(new, tmp_path)
    reasons = {name: reason for name, (_, reason) in report.dequantized.items()}
    assert reasons["embed"] == "is a Embedding" and "a subclass" in reasons["block.up"]
    assert torch.equal(new.block.up.weight, expected["block.up.weight"])
    assert torch.equal(new.embed.weight, expected["embed.weight"])
    assert "dequantized: is a Embedding" in str(report) and list(report.quantized) == ["block.down"]


# Tensors and modules that have several names.


@devices
def test_tied_weights(tmp_path, device):
    expected = state()
    head = expected.pop("head.weight")
    write(tmp_path, expected)
    new = model(device=device)
    new.head.weight = new.embed.weight
    report = load(new, tmp_path)
    assert report.tied == {"head.weight": "embed.weight"} and new.head.weight is new.embed.weight
    assert torch.equal(new.head.weight, expected["embed.weight"])
    # Both are there.
    write(tmp_path, expected | {"head.weight": expected["embed.weight"]})
    load(new, tmp_path)
    write(tmp_path, expected | {"head.weight": head})
    with pytest.raises(ValueError, match=r"head.weight: differs from embed.weight"):
        load(new, tmp_path)


@devices
def test_layers_that_share_a_weight_share_the_quantized_one(tmp_path, device):
    kind = KINDS["gptq"]
    with torch.device(device):
        new = nn.Sequential(*(nn.Linear(64, 64, bias=False, dtype=BF16) for _ in range(3)))
    new[1].weight, new[2] = new[0].weight, new[0]
    tensors, expected = kind.layer(torch.randn(64, 64).to(BF16))
    write(tmp_path, {f"0.{part}": x for part, x in tensors.items()}, kind.quantization)
    load(new, tmp_path)
    assert new[2] is new[0] and new[1] is not new[0]
    for layer in new:
        assert torch.equal(fields(layer), expected)


def test_a_second_load_replaces_the_weights(tmp_path):
    kind = KINDS["awq"]
    convert(new := model(), "int4", skip=("head",))
    stored, expected = quantized(state(), kind, LAYERS)
    write(tmp_path, stored, kind.quantization)
    load(new, tmp_path)
    assert torch.equal(fields(new.block.up).to(BF16), expected["block.up.weight"])


def test_the_default_device_may_be_meta(tmp_path):
    kind = KINDS["awq"]
    stored, expected = quantized(state(), kind, LAYERS)
    write(tmp_path, stored, kind.quantization)
    with torch.device("meta"):
        new = Model()
        load(new, tmp_path)
    assert torch.equal(fields(new.block.up).to(BF16), expected["block.up.weight"])


def test_layers_whose_names_are_fused_have_the_scheme_of_their_group(tmp_path):
    """vLLM names a fused layer in the configuration, and the file those that it fuses."""
    q = quantize.fp8(torch.randn(64, 64, dtype=BF16))
    scheme = {
        "targets": ["re:.*qkv_proj"],
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel"},
        "input_activations": {"num_bits": 8, "type": "float", "dynamic": True},
    }
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": scheme}}
    tensors = {"q_proj.weight": q.values, "q_proj.weight_scale": q.scales}
    write(tmp_path, tensors, config)
    new = nn.ModuleDict({"q_proj": nn.Linear(64, 64, bias=False, dtype=BF16)})
    load(new, tmp_path)
    assert new.q_proj.activations == "fp8"
    # The model fuses them, and the file does not.
    fused = nn.ModuleDict({"qkv_proj": nn.Linear(64, 64, bias=False, dtype=BF16)})
    with pytest.raises(
        ValueError, match=r"the model has no q_proj.weight; (.*\n)+.*qkv_proj.weight"
    ):
        load(fused, tmp_path)


# What does not fit. The model is unchanged.


def without(tensors, *names):
    return {name: x for name, x in tensors.items() if name not in names}


def of_kind(name, **changes):
    stored, _ = quantized(state(), KINDS[name], LAYERS)
    return stored, KINDS[name].quantization | changes


def broken(name, key, change, **changes):
    stored, quantization = of_kind(name, **changes)
    return stored | {key: change(stored[key])}, quantization


def converted():
    convert(new := model(), "int4", skip=("head",))
    return new


REFUSALS = {
    r"head.weight bfloat16 \[16, 128\]: missing in the file": lambda: (
        without(state(), "head.weight"),
        None,
    ),
    r"extra.weight float32 \[2\]: the model has no extra.weight; it has no module extra": lambda: (
        state() | {"extra.weight": torch.ones(2)},
        None,
    ),
    r"head.bias float32 \[2\]: the model has no head.bias; it has head.weight bfloat16 "
    r"\[16, 128\]; pass ignore=": lambda: (state() | {"head.bias": torch.ones(2)}, None),
    r"head.weight bfloat16 \[8, 128\]: the model's head.weight is bfloat16 \[16, 128\]": lambda: (
        state() | {"head.weight": torch.ones(8, 128, dtype=BF16)},
        None,
    ),
    r"head.weight int8 \[16, 128\]: the model's head.weight is bfloat16": lambda: (
        state() | {"head.weight": torch.ones(16, 128, dtype=torch.int8)},
        None,
    ),
    r"steps int32 \[3\]: the model's steps is int64": lambda: (
        state() | {"steps": torch.ones(3).int()},
        None,
    ),
    r"head.weight float8_e4m3fn .*no scale beside it": lambda: (
        state() | {"head.weight": torch.ones(16, 128).to(torch.float8_e4m3fn)},
        BLOCKS,
    ),
    r"quant_method is 'bitsandbytes'; load reads 'awq', 'compressed-tensors', 'fp8'": lambda: (
        state(),
        {"quant_method": "bitsandbytes"},
    ),
    "quant_method is None": lambda: (state(), {"bits": 4}),
    "bits of quant_method 'gptq' is 8; load reads 4": lambda: of_kind("gptq", bits=8),
    "version of quant_method 'awq' is 'gemv'": lambda: of_kind("awq", version="gemv"),
    r"weight_block_size .* is \[64, 64\]; load reads \[128, 128\], \[1, 128\]$": lambda: of_kind(
        "fp8", weight_block_size=[64, 64]
    ),
    "block.down of .*: from_gptq: qzeros are 8 everywhere": lambda: broken(
        "gptq", "block.down.qzeros", lambda x: torch.full_like(x, -2004318072)
    ),
    "block.down of .*from_gptq: qweight is torch.int64": lambda: broken(
        "gptq", "block.down.qweight", torch.Tensor.long
    ),
    r"block.down of .*Float8: scales has shape \[2, 3\]": lambda: broken(
        "fp8", "block.down.weight_scale_inv", lambda x: torch.ones(2, 3)
    ),
    "block.down of .*pre_quant_scale is a scale of the activations": lambda: (
        of_kind("modelopt nvfp4")[0] | {"block.down.pre_quant_scale": torch.ones(192)},
        {"quant_method": "modelopt"},
    ),
    "block.down of .*qweight is a tensor of GPTQ or AWQ, and quant_method is None": lambda: (
        of_kind("gptq")[0],
        None,
    ),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals(tmp_path, message):
    tensors, quantization = REFUSALS[message]()
    write(tmp_path, tensors, quantization)
    new = model()
    before = {name: x.clone() for name, x in new.state_dict().items()}
    with pytest.raises(ValueError, match=message) as error:
        load(new, tmp_path)
    assert str(error.value).startswith("load: ")
    after = new.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_matrices_for_a_converted_model(tmp_path):
    write(tmp_path, state())
    message = r"the model's block.up.weight is quantized already; load before you convert"
    with pytest.raises(ValueError, match=message):
        load(converted(), tmp_path)


def test_all_that_does_not_fit_is_listed(tmp_path):
    tensors = without(state(), "head.weight", "steps") | {
        f"x.{i}": torch.ones(1) for i in range(30)
    }
    write(tmp_path, tensors)
    with pytest.raises(ValueError, match=r"which is unchanged(\n  .*){20}\n  ... and 12 more$"):
        load(model(), tmp_path)


def test_ignored_tensors(tmp_path):
    write(tmp_path, state() | {"mtp.layers.0.weight": torch.ones(2)})
    load(model(), tmp_path, ignore=("mtp.*",))
    with pytest.raises(TypeError, match="pass a sequence of patterns"):
        load(model(), tmp_path, ignore="mtp.*")


def test_a_model_that_is_loaded_in_part_says_so(tmp_path):
    """Files have tensors in the order of names: one layer of each kind is tried before."""
    kind = KINDS["gptq"]
    stored, expected = quantized(state(), kind, LAYERS)
    stored["block.up.g_idx"] = torch.zeros(128, dtype=torch.int32)
    write(tmp_path, stored, kind.quantization)
    new = model()
    with pytest.raises(
        ValueError, match=r"loaded in part. 1 of 6 tensors are not loaded\n"
    ) as error:
        load(new, tmp_path)
    assert "block.up.weight: from_gptq: g_idx has groups of other sizes" in str(error.value)
    assert type(new.block.up) is nn.Linear and new.block.down.format == "Int4"
    assert torch.equal(new.head.weight, expected["head.weight"])


def test_what_fails_while_a_file_is_read_is_listed(tmp_path, monkeypatch):
    class Failure(Exception):
        """As safetensors raises for a file that was cut off meanwhile."""

    def fail(self, name):
        raise Failure("no page")

    write(tmp_path, state())
    monkeypatch.setattr(Checkpoint, "read", fail)
    with pytest.raises(ValueError, match=r"loaded in part. 6 of 6 .*\n  .*weight: no page"):
        load(model(), tmp_path)


def test_a_device_without_effect_is_named(recwarn):
    gpu = torch.device("cuda", 0)
    Targets(model(), torch.device("cpu")).check_placed()
    Targets(model(device="meta"), gpu).check_placed()
    assert not recwarn.list
    converted = model()
    convert(converted, "int4", skip=())
    for each in (model(), converted):
        with pytest.warns(UserWarning, match=r"device is 'cuda:0', .* and the model is on cpu; "):
            Targets(each, gpu).check_placed()


def test_sizes_of_layers_are_those_of_the_model(tmp_path):
    stored, quantization = of_kind("gptq")
    write(tmp_path, stored, quantization)
    new = model()
    new.block["up"] = nn.Linear(64, 192, dtype=BF16)
    message = r"block.up.weight: the file has \[192, 128\], and the model expects \[192, 64\]"
    with pytest.raises(ValueError, match=message):
        load(new, tmp_path)


def test_four_bits_need_a_model_in_16_bits(tmp_path):
    stored, quantization = of_kind("gptq")
    write(tmp_path, stored, quantization)
    with pytest.raises(ValueError, match=r"The model has torch.float32; call model.bfloat16\(\)"):
        load(model(dtype=torch.float32), tmp_path)


def test_buffers_on_meta_that_no_file_has(tmp_path):
    write(tmp_path, state())
    new = model(device="meta")
    new.register_buffer("table", torch.empty(3, device="meta"), persistent=False)
    with pytest.raises(ValueError, match=r"file are loaded, and .* on meta .*\n +table$"):
        load(new, tmp_path)


# Files.


def test_a_folder_must_have_all_shards(tmp_path):
    write(tmp_path, state(), shards=3)
    path = tmp_path / "model-00002-of-00003.safetensors"
    data = path.read_bytes()
    path.unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks {path.name}, 1 of 3 shards"):
        load(model(), tmp_path)
    path.write_bytes(data[:-10])
    with pytest.raises(ValueError, match=f"{path.name} is no file of safetensors, or is cut off"):
        load(model(), tmp_path)
    path.write_bytes(data)
    index = tmp_path / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"]["norm.weight"] = path.name
    index.write_text(json.dumps(table))
    with pytest.raises(ValueError, match=f"lack tensors .*\n  norm.weight: not in {path.name}"):
        load(model(), tmp_path)


def test_files_of_two_models_are_named(tmp_path):
    write(tmp_path, state(), shards=3)
    write(tmp_path, state())
    with pytest.warns(UserWarning, match="model.safetensors and model.safetensors.index.json"):
        load(model(), tmp_path)


def test_folders_without_checkpoints(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere is no folder"):
        load(model(), tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"no file of safetensors; pass a folder"):
        load(model(), tmp_path)
    for name in ("model.gguf", "pytorch_model.bin", "model.pth"):
        (tmp_path / name).touch()
        with pytest.raises(FileNotFoundError, match=f"{name} is another format: "):
            load(model(), tmp_path)
        with pytest.raises(FileNotFoundError, match=f"{name} is a file; pass a folder"):
            load(model(), tmp_path / name)
        (tmp_path / name).unlink()
    for name in "ab":
        write(tmp_path, state())
        (tmp_path / "model.safetensors").rename(tmp_path / f"{name}.safetensors")
    with pytest.raises(FileNotFoundError, match=re.escape("a.safetensors, b.safetensors and no")):
        load(model(), tmp_path)
    (tmp_path / "b.safetensors").unlink()
    load(model(), tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config.json is no JSON"):
        load(model(), tmp_path)
    with pytest.raises(TypeError, match=r"pass a torch.nn.Module"):
        load(None, tmp_path)
    with pytest.raises(TypeError, match=r"folder is None; pass the path of a folder"):
        load(model(), None)
    with pytest.raises(ValueError, match=r"0.weight is not initialized; call the model once"):
        load(nn.Sequential(nn.LazyLinear(4)), write(tmp_path / "lazy", {}))
