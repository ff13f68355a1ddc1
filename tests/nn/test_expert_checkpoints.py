"""Mixtures of experts in checkpoints: what ``cutlass_api.nn.load`` makes of them."""

import pytest
import torch
from cutlass_api import quantize
from cutlass_api.nn import Experts, load
from support.checkpoint_files import BLOCKS, KINDS, Kind, quantized, write

pytest.importorskip("transformers")
from safetensors.torch import load_file
from support.expert_models import BF16, HOME, MODELS, error, logits, model_of, write_gpt_oss

E4M3 = torch.float8_e4m3fn
#: Those whose experts lie in the file one by one.
APART = ("Qwen3Moe", "Mixtral", "DeepseekV3")
#: Of gate: a multiple of the block, and another number.
widths = pytest.mark.parametrize("width", [128, 96])


def sized(name, width, device="cpu"):
    """A model whose experts have this width."""
    key = "intermediate_size" if name == "Mixtral" else "moe_intermediate_size"
    with torch.device(device):
        return model_of(name, **{key: width})


def saved(model, folder, **options):
    """The tensors of the checkpoint that transformers writes."""
    model.save_pretrained(folder, **options)
    return load_file(folder / "model.safetensors")


def filled(name, width, folder):
    """A model on meta, filled from a folder, and the report."""
    new = sized(name, width, "meta")
    report = load(new, folder)
    assert not any(x.is_meta for x in (*new.parameters(), *new.buffers()))
    assert type(new.get_submodule(HOME)) is Experts
    return new, report


@pytest.mark.parametrize("is_stacked", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_sixteen_bits(name, is_stacked, tmp_path):
    model = model_of(name)
    state = saved(model, tmp_path, save_original_format=not is_stacked)
    assert any("experts.0." in key for key in state) == (name in APART and not is_stacked)
    with torch.device("meta"):
        new = model_of(name)
    load(new, tmp_path)
    layer, old = new.get_submodule(HOME), model.get_submodule(HOME)
    assert type(layer) is Experts
    for key, parameter in layer.named_parameters():
        assert torch.equal(parameter, old.get_parameter(key)) and parameter.requires_grad
    model.set_experts_implementation("eager")
    assert error(logits(new), logits(model)) < 0.02


@pytest.mark.parametrize(
    ("kind", "width"),
    [("fp8", 128), ("fp8", 96), ("fp8 e8m0", 96), ("fp8 rows e8m0", 128), ("fp8 tensor", 96)],
)
@pytest.mark.parametrize("name", APART)
def test_scales_of_each_expert(name, kind, width, tmp_path):
    """As in released checkpoints."""
    model = sized(name, width)
    state = saved(model, tmp_path)
    layers = [key[:-7] for key in state if ".experts." in key]
    stored, expected = quantized(state, KINDS[kind], layers)
    load(model, write(tmp_path / "plain", expected))
    write(tmp_path, stored, KINDS[kind].quantization)
    new, report = filled(name, width, tmp_path)
    check(new, model, report)


def check(new, model, report, weight="Float8"):
    """Compares with a model that has the dequantized matrices."""
    layer, old = new.get_submodule(HOME), model.get_submodule(HOME)
    assert report.quantized.keys() == {f"{HOME}.gate_up_proj", f"{HOME}.down_proj"}
    assert not report.dequantized and f"{weight}, a scale for each" in repr(report)
    for weights, matrices in ((layer.up, old.up), (layer.down, old.down)):
        assert torch.equal(weights.dequantize(BF16), matrices.mT if old.transposed else matrices)
    assert error(logits(new), logits(model)) < 0.05


@widths
@pytest.mark.parametrize("is_stacked", [False, True])
@pytest.mark.parametrize("name", APART)
def test_scales_of_all_experts(name, is_stacked, width, tmp_path):
    """As transformers saves them: scales of gate and up together, also beside weights apart."""
    model = sized(name, width)
    layer = model.get_submodule(HOME)
    folder, scales = tmp_path / "stored", {}
    for key, parameter in list(layer.named_parameters()):
        each = [quantize.fp8(matrix, (128, 128)) for matrix in parameter]
        scales[f"{HOME}.{key}_scale_inv"] = torch.stack([weight.scales for weight in each])
        parameter.data = torch.stack([weight.values.float() for weight in each]).to(BF16)
    state = saved(model, folder, save_original_format=not is_stacked)
    is_expert = [key for key in state if ".experts." in key]
    state |= {key: state[key].to(E4M3) for key in is_expert}
    if name == "Mixtral" and not is_stacked:
        scales = {key.replace(".mlp.", ".block_sparse_moe."): x for key, x in scales.items()}
    write(folder, state | scales, BLOCKS)
    new, report = filled(name, width, folder)
    for key, parameter in layer.named_parameters():
        scale = scales[next(each for each in scales if key in each)]
        wide = scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
        _, n, k = parameter.shape
        parameter.data = (parameter.data.float() * wide[:, :n, :k]).to(BF16)
    load(model, write(tmp_path / "plain", saved(model, tmp_path / "plain")))
    check(new, model, report)


def packed(group):
    """A layer as compressed-tensors packs it."""

    def layer(w):
        q = quantize.int4(w, group)
        parts = {"weight_packed": q.values.view(torch.int32), "weight_scale": q.scales}
        return parts | {"weight_shape": torch.tensor(w.shape)}, q.dequantize(torch.float32)

    scheme = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "symmetric": True}}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": scheme}}
    return Kind(layer, config | {"format": "pack-quantized"}, "Int4")


APART_KINDS = KINDS | {"packed": packed(32), "packed in 64": packed(64)}


@pytest.mark.parametrize("kind", ["packed", "gptq", "awq", "modelopt nvfp4", "modelopt fp8"])
@pytest.mark.parametrize("name", ["Qwen3Moe", "Mixtral"])
def test_other_formats_of_each_expert(name, kind, tmp_path):
    model, kind = sized(name, 128), APART_KINDS[kind]
    state = saved(model, tmp_path)
    layers = [key[:-7] for key in state if ".experts." in key]
    stored, expected = quantized(state, kind, layers)
    load(model, write(tmp_path / "plain", expected))
    write(tmp_path, stored, kind.quantization)
    new, report = filled(name, 128, tmp_path)
    check(new, model, report, kind.weight)
    assert new.get_submodule(HOME).activations == kind.activations


@pytest.mark.parametrize(
    ("kinds", "reason"),
    [
        (["gptq act-order"], "has a permutation"),
        (["packed", "packed in 64"], "the experts have several formats"),
    ],
)
def test_experts_that_no_stack_holds_are_dequantized(kinds, reason, tmp_path):
    model = sized("Qwen3Moe", 128)
    stored = saved(model, tmp_path)
    expected = dict(stored)
    layers = [key[:-7] for key in stored if ".experts." in key]
    for at, name in enumerate(layers):
        kind = APART_KINDS[kinds[at % len(kinds)]]
        parts, matrix = quantized({f"{name}.weight": stored.pop(f"{name}.weight")}, kind, [name])
        stored, expected = stored | parts, expected | matrix
    write(tmp_path, stored, kind.quantization)
    new, report = filled("Qwen3Moe", 128, tmp_path)
    assert reason in report.dequantized[layers[0]][1] and not report.quantized
    load(model, write(tmp_path / "plain", expected))
    assert torch.equal(logits(new), logits(model))


def test_gpt_oss(tmp_path):
    model = sized("GptOss", 96)
    write_gpt_oss(model, tmp_path)
    down_proj = model.get_submodule(HOME).down_proj.clone()
    load(model, write(tmp_path / "plain", saved(model, tmp_path / "plain")))
    new, report = filled("GptOss", 96, tmp_path)
    check(new, model, report, "MXFP4")
    layer = new.get_submodule(HOME)
    assert layer.up.is_repacked and layer.interleaved and all(x is not None for x in layer.biases())
    # A module that stays.
    kept = sized("GptOss", 96)
    kept.get_submodule(HOME).register_forward_hook(lambda *_: None)
    assert load(kept, tmp_path).dequantized.keys() == report.quantized.keys()
    assert torch.equal(kept.get_submodule(HOME).down_proj, down_proj)
    with pytest.raises(ValueError, match=r"range the scales of MXFP4 exceed.*unchanged"):
        load(sized("GptOss", 96).half(), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda blocks, scales: {"_blocks": blocks}, "the file has no .*down_proj_scales"),
        (
            lambda blocks, scales: {"_blocks": blocks[1:], "_scales": scales[1:]},
            r"the file has \[3, 64, 96\], and the model \[4, 64, 96\]",
        ),
        (
            lambda blocks, scales: {"_blocks": blocks.int(), "_scales": scales},
            "blocks is torch.int32; pass torch.uint8",
        ),
    ],
)
def test_blocks_of_gpt_oss_that_are_refused(change, message, tmp_path):
    model = sized("GptOss", 96)
    write_gpt_oss(model, tmp_path)
    state, name = load_file(tmp_path / "model.safetensors"), f"{HOME}.down_proj"
    changed = change(*(state.pop(f"{name}{part}") for part in ("_blocks", "_scales")))
    write(tmp_path, state | {f"{name}{part}": x for part, x in changed.items()})
    with pytest.raises(ValueError, match=rf"{name}_blocks.*{message}"):
        load(model, tmp_path)


def test_modules_that_stay_are_dequantized(tmp_path):
    model = sized("Qwen3Moe", 128)
    state = saved(model, tmp_path)
    layers = [key[:-7] for key in state if ".experts." in key]
    stored, _ = quantized(state, KINDS["fp8"], layers)
    write(tmp_path, stored, BLOCKS)
    home = model.get_submodule(HOME)
    home.register_forward_hook(lambda *_: None)
    report = load(model, tmp_path)
    assert model.get_submodule(HOME) is home and not report.quantized
    assert len(report.dequantized) == len(layers)


def test_what_is_refused(tmp_path):
    model = sized("Qwen3Moe", 128)
    state = saved(model, tmp_path, save_original_format=False)
    name = f"{HOME}.down_proj"
    stored = state | {name: state[name].to(E4M3), f"{name}_scale_inv": torch.ones(4, 3, 1)}
    write(tmp_path, stored, BLOCKS)
    with pytest.raises(
        ValueError, match=r"_scale_inv float32 \[4, 3, 1\]: .*scales has shape \[4, 3, 1"
    ):
        load(model, tmp_path)
    stored[f"{name}_scale_inv"] = torch.ones(3, 1, 1)
    write(tmp_path, stored, BLOCKS)
    with pytest.raises(ValueError, match=r"\[3, 1, 1\]: the weight has 4 experts"):
        load(model, tmp_path)
    write(tmp_path, {**state, name: stored[name]}, BLOCKS)
    with pytest.raises(ValueError, match=f"{name} float8_e4m3fn .*no scale beside it"):
        load(model, tmp_path)
    # Scales of a weight in 16 bits mean nothing.
    write(tmp_path, {**state, f"{name}_scale_inv": torch.ones(4, 1, 1)}, BLOCKS)
    report = load(model, tmp_path)
    assert report.unread == [f"{name}_scale_inv"] and not report.quantized
    write(tmp_path, {**state, name: stored[name], f"{name}_scale_inv": torch.ones(4, 1, 1)}, BLOCKS)
    load(model, tmp_path)
    with pytest.raises(ValueError, match=rf"{name}.* is quantized already; load before"):
        load(model, tmp_path)
