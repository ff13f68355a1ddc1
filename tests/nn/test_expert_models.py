"""Mixtures of experts of transformers' models: what `convert` and `load` make of them."""

import copy
import pickle

import pytest
import torch
from cutlass_api import quantize
from cutlass_api.nn import Experts, convert, load
from torch import nn

pytest.importorskip("transformers")
from support.expert_models import BF16, HOME, MODELS, error, logits, model_of

models = pytest.mark.parametrize("name", MODELS)


def matrices(module):
    """Up and down of transformers' module, (experts, N, K)."""
    pair = module.gate_up_proj, module.down_proj
    return [each.mT if module.is_transposed else each for each in pair]


#: What a scheme makes of one matrix, and a bound of the error of logits.
SCHEMES = {
    "fp8": (quantize.fp8, 0.1),
    "fp8-block": (lambda x: quantize.fp8(x, (128, 128)), 0.1),
    "fp8-weight": (quantize.fp8, 0.1),
    "int8-weight": (quantize.int8, 0.05),
    "int4": (lambda x: quantize.int4(x, 32), 0.25),
    "nvfp4": (quantize.nvfp4, 0.3),
}


@models
@pytest.mark.parametrize("scheme", SCHEMES)
def test_convert(name, scheme, capsys):
    model = model_of(name)
    expected, old = logits(model), model.get_submodule(HOME)
    report = convert(model, scheme, group=32 if scheme == "int4" else None)
    layer = model.get_submodule(HOME)
    assert type(layer) is Experts and not layer.training and HOME in report.replaced
    assert " and 1 of 1 mixtures of experts replaced" in capsys.readouterr().out
    assert layer.activations == ("fp8" if scheme in ("fp8", "fp8-block") else None)
    quantizer, bound = SCHEMES[scheme]
    assert error(logits(model), expected) < bound
    for weights, of_all in zip((layer.up, layer.down), matrices(old), strict=True):
        for weight, matrix in zip(weights, of_all, strict=True):
            assert torch.equal(weight.dequantize(), quantizer(matrix).dequantize())
    if old.has_bias:
        assert layer.down_proj_bias is old.down_proj_bias


@pytest.mark.parametrize(
    ("scheme", "sizes", "reason"),
    [
        ("int8", {}, "products in groups take no activations 'int8'"),
        ("int4", {"intermediate_size": 80}, "int4 of K = 80; pad K with zeros"),
    ],
)
def test_experts_that_a_scheme_does_not_quantize(scheme, sizes, reason):
    model = model_of("Mixtral", **sizes)
    old = model.get_submodule(HOME)
    report = convert(model, scheme)
    layer = model.get_submodule(HOME)
    assert type(layer) is Experts and f"Experts in bfloat16: {reason}" in repr(report)
    assert all(layer.get_parameter(key) is x for key, x in old.named_parameters())


@models
def test_plain_experts_compute_what_transformers_does(name):
    model = model_of(name).float()
    expected = logits(model)
    report = convert(model, "int8", skip=("*_proj*", "lm_head"))
    assert report.replaced == [HOME] and report.bytes_after == report.bytes_before
    torch.testing.assert_close(logits(model), expected, rtol=1e-4, atol=1e-5)
    layer = model.get_submodule(HOME)
    for each in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert repr(each) == repr(layer)
    state = model_of(name).state_dict()
    assert model.load_state_dict(state) and set(model.state_dict()) == set(state)


def test_compiles_with_the_gate_of_gpt_oss():
    model = model_of("GptOss")
    convert(model, "fp8")
    layer = model.get_submodule(HOME)
    x, index = torch.randn(5, 64).to(BF16), torch.arange(15).view(5, 3) % 4
    weights = torch.rand(5, 3)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(x, index, weights), layer(x, index, weights))


def spoil_hook(model, layer):
    layer.register_forward_hook(lambda *_: None)


def spoil_norm(model, layer):
    layer.has_post_expert_norm = True


def spoil_parameter(model, layer):
    layer.scale = nn.Parameter(torch.ones(1))


def spoil_dtype(model, layer):
    layer.down_proj = nn.Parameter(layer.down_proj.to(torch.float8_e4m3fn), requires_grad=False)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoil_hook, "has hooks"),
        (spoil_norm, "has a norm behind each expert"),
        (spoil_parameter, "has scale, too"),
        (spoil_dtype, "its down_proj is torch.float8_e4m3fn"),
    ],
)
def test_experts_that_stay(spoil, reason):
    model = model_of("Mixtral")
    old = model.get_submodule(HOME)
    spoil(model, old)
    report = convert(model, "fp8")
    assert model.get_submodule(HOME) is old and reason in report.kept[HOME]


def test_the_layer_in_an_own_model():
    """Quantized if the scheme does, once; and without linear layers."""
    model = nn.ModuleDict({"experts": Experts(torch.randn(2, 128, 64), torch.randn(2, 64, 64))})
    report = convert(model, "int4")
    assert report.kept == {"experts": "is torch.float32; call model.bfloat16() before"}
    assert "[2, 128, 64]" in repr(report)
    model["again"] = model["experts"]
    report = convert(model, "fp8")
    assert report.replaced == ["experts", "again"] and model["experts"] is model["again"]
    assert model["experts"].formats == {"gate_up_proj": "Float8", "down_proj": "Float8"}
    again = convert(model, "fp8")
    assert again.replaced == [] and "Experts already (Float8)" in again.kept["experts"]


def test_a_model_that_is_a_mixture_is_refused():
    layer = Experts(torch.randn(2, 128, 64), torch.randn(2, 64, 64))
    with pytest.raises(ValueError, match="the model is itself a mixture of experts"):
        convert(layer, "fp8")


def test_experts_that_share_a_weight_are_not_quantized():
    up, down = nn.Parameter(torch.randn(2, 128, 64)), nn.Parameter(torch.randn(2, 64, 64))
    model = nn.ModuleDict({"a": Experts(up, down), "b": Experts(up, down), "c": nn.Linear(64, 64)})
    report = convert(model, "fp8")
    assert report.replaced == ["c"] and "another module has its weight" in report.kept["a"]


@models
def test_save_and_load(name, tmp_path):
    model = model_of(name)
    convert(model, "int8")
    model.save_pretrained(tmp_path)
    new = model_of(name)
    load(new, tmp_path)
    assert type(new.get_submodule(HOME)) is Experts
    assert torch.equal(logits(new), logits(model))
    convert(model, "fp8")
    with pytest.raises(ValueError, match=rf"{HOME}: its experts are quantized; save model.state"):
        model.save_pretrained(tmp_path)
