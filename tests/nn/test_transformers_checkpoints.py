"""Checkpoints of transformers' models: ``cutlass_api.nn.load``, and ``from_pretrained``."""

import json
import warnings
from importlib.util import find_spec

import pytest
import torch
from cutlass_api.nn import Linear, convert, load, save

pytest.importorskip("transformers")

import cutlass_api.transformers as ours
import transformers
from safetensors.torch import load_file
from support import expert_models
from support.checkpoint_files import BLOCKS, KINDS, quantized, write
from transformers import AutoModelForCausalLM
from transformers.integrations import finegrained_fp8

transformers.utils.logging.disable_progress_bar()
BF16 = torch.bfloat16
IDS = torch.arange(16).view(2, 8) * 7 % 32
SMALL = dict(vocab_size=32, hidden_size=128, num_hidden_layers=1, num_attention_heads=2)
SMALL |= dict(intermediate_size=256, num_key_value_heads=2)
#: One dense layer, and one with experts.
DEEPSEEK = dict(SMALL, num_hidden_layers=2, first_k_dense_replace=1, n_routed_experts=4)
DEEPSEEK |= dict(moe_intermediate_size=128, num_experts_per_tok=2, n_group=1, topk_group=1)
DEEPSEEK |= dict(q_lora_rank=128, kv_lora_rank=128, qk_rope_head_dim=64, qk_nope_head_dim=64)
CONFIGS = {
    "llama": lambda **x: transformers.LlamaConfig(**SMALL, **x),
    "qwen3": lambda **x: transformers.Qwen3Config(**SMALL, head_dim=64, **x),
    "deepseek": lambda **x: transformers.DeepseekV3Config(**DEEPSEEK, v_head_dim=64, **x),
    "mixtral": lambda **x: transformers.MixtralConfig(**SMALL, num_local_experts=2, **x),
}


def model_of(name, device="cpu", **options):
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(CONFIGS[name](**options), dtype=BF16).eval()
    if device == "cpu":
        torch.nn.init.normal_(model.get_input_embeddings().weight)
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS).logits.double()


def error(model, expected):
    wanted = logits(expected)
    return ((logits(model) - wanted).norm() / wanted.norm()).item()


def replaced(model):
    return {name for name, module in model.named_modules() if type(module) is Linear}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("tied", [False, True])
def test_plain_checkpoints(tmp_path, name, tied):
    model = model_of(name, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    new = model_of(name, "meta", tie_word_embeddings=tied)
    report = load(new, tmp_path)
    assert (new.lm_head.weight is new.model.embed_tokens.weight) == tied == bool(report.tied)
    if name in ("deepseek", "mixtral"):
        model.set_experts_implementation("cutlass_api")
    assert torch.equal(logits(new), logits(model))
    assert not any(x.is_meta for x in (*new.parameters(), *new.buffers()))


def test_a_head_that_the_file_lacks_has_the_embedding(tmp_path):
    model = model_of("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    report = load(new := model_of("llama"), tmp_path)
    assert report.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    assert torch.equal(logits(new), logits(model))


def in_blocks(name, tmp_path, kind):
    """A checkpoint in float8 as released ones, and the model that it stands for."""
    model = model_of(name)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    layers = [name[:-7] for name in state if name.endswith("_proj.weight") or "_mqa." in name]
    layers += [name[:-7] for name in state if name.endswith(("_a_proj.weight", "_b_proj.weight"))]
    stored, expected = quantized(state, KINDS[kind], sorted(set(layers)))
    plain = write(tmp_path / "plain", expected)
    load(model, plain)
    write(tmp_path, stored, BLOCKS)
    return model


@pytest.mark.parametrize("kind", ["fp8", "fp8 e8m0"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "deepseek"])
def test_float8_in_blocks(tmp_path, name, kind):
    expected = in_blocks(name, tmp_path, kind)
    report = load(new := model_of(name, "meta"), tmp_path)
    layers = replaced(new)
    experts = {key for key in report.quantized if ".experts." in key}
    assert layers == set(report.quantized) - experts
    assert len(layers) == {"deepseek": 16}.get(name, 7)
    assert all(new.get_submodule(name).activations == "fp8" for name in layers)
    for layer in layers:
        weight = new.get_submodule(layer).weight.dequantize(BF16)
        assert torch.equal(weight, expected.get_submodule(layer).weight)
    assert error(new, expected) < 0.03
    if name == "deepseek":
        assert new.model.layers[0].self_attn.kv_a_proj_with_mqa.weight.shape == (192, 128)
        home = "model.layers.1.mlp.experts"
        assert experts == {f"{home}.gate_up_proj", f"{home}.down_proj"}
        return
    # transformers dequantizes on a CPU, and blocks that are not partial rightly.
    if kind == "fp8" and find_spec("accelerate"):
        theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert torch.equal(logits(theirs), logits(expected))


def test_modules_that_compute_a_buffer_keep_what_is_loaded(tmp_path):
    """CLIPVisionEmbeddings has the buffer ``position_ids``, and initializes its layers with it."""
    sizes = dict(hidden_size=64, intermediate_size=64, num_attention_heads=2, image_size=28)
    config = transformers.CLIPVisionConfig(**sizes, num_hidden_layers=1, patch_size=14)
    model = transformers.CLIPVisionModel(config).eval()
    model.save_pretrained(tmp_path)
    with torch.device("meta"):
        new = transformers.CLIPVisionModel(config).eval()
    load(new, tmp_path)
    image = torch.randn(1, 3, 28, 28)
    with torch.no_grad():
        assert torch.equal(new(image).pooler_output, model(image).pooler_output)


def test_experts_without_their_scales_are_refused(tmp_path):
    """Scales of all experts may lie beside weights apart, but not be missing."""
    model = model_of("deepseek")
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.0.down_proj.weight"
    write(tmp_path, state | {name: state[name].to(torch.float8_e4m3fn)}, BLOCKS)
    with pytest.raises(ValueError, match=f"{name} float8_e4m3fn .*no scale beside it"):
        load(model, tmp_path)


def test_conv1d(tmp_path):
    config = transformers.GPT2Config(vocab_size=32, n_embd=128, n_layer=1, n_head=2, n_positions=16)
    make = transformers.AutoModelForCausalLM.from_config
    model = make(config, dtype=torch.float16).eval()
    model.save_pretrained(tmp_path)
    with torch.device("meta"):
        new = make(config, dtype=torch.float16).eval()
    load(new, tmp_path)
    assert torch.equal(logits(new), logits(model))
    # GPTQ has words of the matrix (N, K), AutoGPTQ those of Conv1D, too.
    state = load_file(tmp_path / "model.safetensors")
    name = "transformer.h.0.mlp.c_fc"
    tensors, matrix = KINDS["gptq act-order"].layer(state.pop(f"{name}.weight").t())
    state |= {f"{name}.{part}": x for part, x in tensors.items()}
    write(tmp_path, state, KINDS["gptq act-order"].quantization)
    report = load(new, tmp_path)
    layer = new.transformer.h[0].mlp.c_fc
    assert list(report.quantized) == [name] and torch.equal(
        layer.weight.dequantize(), matrix.half()
    )
    assert torch.equal(layer.bias, model.transformer.h[0].mlp.c_fc.bias)
    # from_pretrained initializes what a file lacks, here the head, by modules that contain layers.
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=ours.Config("int4"))
    convert(model, "int4")
    assert len(replaced(again)) == 4 and torch.equal(logits(again), logits(model))


# from_pretrained.


@pytest.fixture
def enabled():
    ours.enable()
    yield
    ours.disable()


@pytest.mark.parametrize("scheme", ["int4", "fp8-block", "nvfp4"])
def test_config_quantizes_saves_and_reloads(tmp_path, scheme, enabled, capsys):
    plain = model_of("llama")
    plain.save_pretrained(tmp_path / "plain")
    config = ours.Config(scheme)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", quantization_config=config)
    assert f"{scheme}: 7 of 8 linear layers replaced" in capsys.readouterr().out
    convert(plain, scheme)
    assert torch.equal(logits(model), logits(plain)) and len(replaced(model)) == 7
    model.save_pretrained(tmp_path / "saved")
    save(plain, tmp_path / "converted")
    files = [load_file(tmp_path / x / "model.safetensors") for x in ("saved", "converted")]
    assert files[0].keys() == files[1].keys()
    found = json.loads((tmp_path / "saved/config.json").read_text())
    assert found["quantization_config"]["quant_method"] == "compressed-tensors"
    assert found["quantization_config"]["ignore"] == ["lm_head"]
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    load(new := model_of("llama", "meta"), tmp_path / "saved")
    for each in (again, new):
        assert replaced(each) == replaced(model) and torch.equal(logits(each), logits(model))
    again.save_pretrained(tmp_path / "again")
    theirs = load_file(tmp_path / "again/model.safetensors")
    bits = ((files[0][name], theirs[name]) for name in theirs)
    assert all(
        torch.equal(x.view(-1).view(torch.uint8), y.view(-1).view(torch.uint8)) for x, y in bits
    )


@pytest.mark.parametrize("preset", ["W4A16_ASYM", "W8A8", "FP8_BLOCK", "NVFP4A16", "MXFP4A16"])
def test_checkpoints_that_compressed_tensors_writes(tmp_path, preset):
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        apply_quantization_config,
        preset_name_to_scheme,
    )

    scheme = preset_name_to_scheme(preset, ["Linear"])
    config = QuantizationConfig(config_groups={"all": scheme}, ignore=["lm_head"])
    apply_quantization_config(model := model_of("llama"), config)
    for module in model.modules():
        if getattr(module, "weight_scale", None) is not None:
            scale = module.weight.abs().max() / (7 if preset.startswith("W4") else 100)
            module.weight_scale.data.fill_(scale.log2().ceil().exp2())
        if getattr(module, "weight_zero_point", None) is not None:
            module.weight_zero_point.data.fill_(1)
        if getattr(module, "weight_global_scale", None) is not None:
            module.weight_global_scale.data.fill_(4)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path)
    compressor.update_config(tmp_path)
    report = load(new := model_of("llama", "meta"), tmp_path)
    compressor.decompress_model(model)
    assert len(report.quantized) == 7
    for name in report.quantized:
        expected = model.get_submodule(name).weight
        assert torch.equal(new.get_submodule(name).weight.dequantize(BF16), expected.to(BF16))
    activations = {"W8A8": "int8", "FP8_BLOCK": "fp8"}.get(preset)
    assert {new.get_submodule(name).activations for name in report.quantized} == {activations}


def test_compressed_tensors_computes_the_same(tmp_path):
    pytest.importorskip("compressed_tensors")
    convert(model := model_of("llama"), "int4")
    model.save_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert error(theirs, model) < 0.006 and not replaced(theirs)


def test_enabled_transformers_reads_gptq_and_refuses_experts(tmp_path, enabled, capsys):
    model = model_of("llama")
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    layers = [name[:-7] for name in state if "_proj.weight" in name]
    kind = KINDS["gptq act-order"]
    stored, expected = quantized(state, kind, layers)
    write(tmp_path, stored, kind.quantization)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=BF16)
    assert replaced(again) == set(layers)
    assert "UInt4, a scale for each block of 1 x 32" in capsys.readouterr().out
    for name in layers:
        weight = again.get_submodule(name).weight.dequantize(BF16)
        assert torch.equal(weight, expected[f"{name}.weight"])
    model_of("deepseek").save_pretrained(tmp_path / "experts")
    state = load_file(tmp_path / "experts/model.safetensors")
    layers = [name[:-7] for name in state if "experts.0." in name]
    write(tmp_path / "experts", quantized(state, kind, layers)[0], kind.quantization)
    with pytest.raises(ValueError, match=r"experts.*cannot quantize; call cutlass_api.nn.load"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "experts")


@pytest.mark.parametrize("kind", ["fp8", "fp8 e8m0", "fp8 tensor"])
def test_fp8_linear(kind, enabled):
    tensors, matrix = KINDS[kind].layer(torch.randn(192, 256).to(BF16))
    layer = finegrained_fp8.FP8Linear(256, 192, has_bias=True)
    layer.block_size = None if kind == "fp8 tensor" else (128, 128)
    for name, tensor in (*tensors.items(), ("bias", torch.randn(192).to(BF16))):
        setattr(layer, name, torch.nn.Parameter(tensor, requires_grad=False))
    x = torch.randn(2, 5, 256).to(BF16).requires_grad_()
    out = layer(x)
    expected = x.float() @ matrix.t() + layer.bias
    assert out.dtype is BF16 and (out - expected).norm() < 0.05 * expected.norm()
    assert torch.equal(out, layer(x.detach()))
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert torch.allclose(grad.float(), matrix.sum(0).expand(2, 5, 256), rtol=0.02, atol=0.1)


def test_enable_and_disable(monkeypatch):
    calls = []
    tables = [ours.auto.AUTO_QUANTIZATION_CONFIG_MAPPING, ours.auto.AUTO_QUANTIZER_MAPPING]
    before = [dict(table) for table in tables]
    monkeypatch.setattr(finegrained_fp8, "fp8_linear", lambda *x: calls.append(x))
    original = finegrained_fp8.fp8_linear
    ours.disable()
    for _ in range(2):
        ours.enable()
        ours.enable()
        assert finegrained_fp8.fp8_linear is ours.fp8_linear is not original
        assert tables[0]["gptq"] is not before[0]["gptq"]
        # A static scale of activations goes to transformers.
        weight = torch.ones(4, 4).to(torch.float8_e4m3fn)
        finegrained_fp8.fp8_linear(
            torch.ones(1, 4), weight, torch.ones(()), None, None, torch.ones(())
        )
        ours.disable()
        ours.disable()
        assert finegrained_fp8.fp8_linear is original and [*map(dict, tables)] == before
    assert len(calls) == 2


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="Config: scheme is 'int5'; pass one of 'fp8'"):
        ours.Config("int5")
    with pytest.raises(TypeError, match="pass a sequence of patterns"):
        ours.Config("int4", skip="lm_head")
    model_of("llama").float().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="nothing to replace"):
        AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=ours.Config("int4"))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=BF16)
    theirs.hf_quantizer = object()
    with pytest.raises(ValueError, match="transformers quantizes the model"):
        save(theirs, tmp_path / "new")


def test_another_release_of_transformers(tmp_path, monkeypatch):
    model = model_of("llama")
    model.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(model, tmp_path)
    monkeypatch.setattr("transformers.__version__", "5.30.1")
    with pytest.warns(UserWarning, match=r"transformers is 5.30.1, .* tested with 5.24 "):
        load(model, tmp_path)


@pytest.mark.usefixtures("enabled")
def test_gpt_oss_stays_packed(tmp_path, capsys):
    model = expert_models.model_of("GptOss")
    expert_models.write_gpt_oss(model, tmp_path)
    convert(model, "int8", skip=("*_proj", "lm_head"))  # the same products
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    layer = again.get_submodule(expert_models.HOME)
    assert layer.formats == {"gate_up_proj": "MXFP4", "down_proj": "MXFP4"}
    assert "MXFP4, a scale for each block of 1 x 32" in capsys.readouterr().out
    assert not any(x.is_meta for x in (*again.parameters(), *again.buffers()))
    other = model.get_submodule(expert_models.HOME)
    assert all(map(torch.equal, layer.biases(), other.biases()))
    assert torch.equal(layer.down.dequantize(), other.down.mT)
    found, expected = expert_models.logits(again), expert_models.logits(model)
    assert expert_models.error(found, expected) < 0.02
    with pytest.raises(ValueError, match="its experts are quantized; save"):
        again.save_pretrained(tmp_path / "saved")
    with pytest.raises(ValueError, match="range the scales of MXFP4 exceed"):
        AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16)


@pytest.mark.usefixtures("enabled")
def test_gpt_oss_is_dequantized_on_request(tmp_path):
    model = expert_models.model_of("GptOss")
    expert_models.write_gpt_oss(model, tmp_path)
    config = transformers.Mxfp4Config(dequantize=True)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config)
    home = expert_models.HOME
    for name in ("gate_up_proj", "down_proj"):
        found, expected = (x.get_submodule(home).get_parameter(name) for x in (again, model))
        assert torch.equal(found, expected)
