"""``cutlass_api.nn.convert`` of transformers' models: logits, beside those of torchao's schemes."""

import copy
from unittest import mock

import pytest
import torch
from cutlass_api import quantize
from cutlass_api.nn import Linear, convert
from support.weights import PACKED

transformers = pytest.importorskip("transformers")
IDS = torch.arange(16).view(2, 8) * 7 % 256
#: The most by which logits differ from those of bfloat16, whose rounding alone is 0.003.
BOUNDS = {"fp8": 0.01, "fp8-block": 0.01, "fp8-weight": 0.01, "int8": 0.006, "int8-weight": 0.006}
BOUNDS |= dict.fromkeys(PACKED, 0.02)
SMALL = dict(vocab_size=256, hidden_size=128, num_hidden_layers=2, num_attention_heads=2)


def llama(**options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, intermediate_size=256, **options)
    return transformers.LlamaForCausalLM(config).bfloat16().eval()


def logits(model):
    with torch.no_grad():
        return model(IDS).logits.double()


def error(model, original):
    expected = logits(original)
    return ((logits(model) - expected).norm() / expected.norm()).item()


def converted(model, scheme, **options):
    model = copy.deepcopy(model)
    report = convert(model, scheme, **options)
    assert all(isinstance(model.get_submodule(name), Linear) for name in report.replaced)
    return model, report


@pytest.fixture(scope="module")
def plain():
    """A random Llama."""
    return llama()


@pytest.fixture(scope="module")
def wide():
    """A random Llama whose residual stream is large beside what a layer adds, as in trained
    models.
    """
    model = llama()
    torch.nn.init.normal_(model.model.embed_tokens.weight)
    return model


@pytest.mark.parametrize("scheme", BOUNDS)
def test_logits(wide, scheme):
    model, report = converted(wide, scheme)
    assert len(report.replaced) == 14 and report.kept == {"lm_head": "skip='lm_head'"}
    assert 0.002 < error(model, wide) < BOUNDS[scheme]


def test_a_head_that_is_tied_to_the_embedding_stays():
    _, report = converted(llama(tie_word_embeddings=True), "int4", skip=())
    assert report.kept == {"lm_head": "shares its weight with model.embed_tokens"}


@pytest.mark.parametrize("scheme", ["fp8", "int4"])
def test_gpt2_has_conv1d(scheme):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=256, n_embd=128, n_layer=1, n_head=2)
    gpt2 = transformers.GPT2LMHeadModel(config).bfloat16().eval()
    model, report = converted(gpt2, scheme)
    assert len(report.replaced) == 4
    layer, old = (x.transformer.h[0].attn.c_attn for x in (model, gpt2))
    assert (layer.out_features, layer.in_features) == (384, 128) and layer.bias is not None
    wanted = getattr(quantize, scheme)(old.weight.t())
    assert torch.equal(layer.weight.dequantize(), wanted.dequantize())
    assert error(model, gpt2) < (0.05 if scheme == "fp8" else 0.15)


# torchao's schemes, computed as its kernels for GPUs do, but in 16 bits: of 4 bits, the weights are
# rounded as it rounds; of fp8, its functions quantize activations.


def rounded(weight, mapping):
    from torchao.quantization import quant_primitives as primitives

    group = (1, 128)
    limits = (-8, 7) if mapping == "SYMMETRIC" else (0, 15)
    kind = primitives.MappingType[mapping]
    found = primitives.choose_qparams_affine(weight, kind, group, torch.int32, *limits, eps=1e-6)
    values = primitives.quantize_affine(weight, group, *found, torch.int32, *limits)
    return primitives.dequantize_affine(
        *(values, group, *found, torch.int32, *limits), output_dtype=weight.dtype
    )


def is_replaced(module, name):
    return isinstance(module, torch.nn.Linear) and name != "lm_head"


def quantize_activations(module):
    from torchao.quantization.quantize_.common import quantize_tensor_kwargs as common

    options = module.weight.act_quant_kwargs
    quantize = common._choose_quant_func_and_quantize_tensor
    module.weight = torch.nn.Parameter(module.weight.dequantize())
    module.register_forward_pre_hook(lambda _, args: quantize(args[0], options).dequantize())


def of_torchao(model, scheme):
    from torchao import quantization

    model = copy.deepcopy(model)
    layers = [module for name, module in model.named_modules() if is_replaced(module, name)]
    if mapping := {"int4": "SYMMETRIC", "uint4": "ASYMMETRIC"}.get(scheme):
        for layer in layers:
            layer.weight.data = rounded(layer.weight.data, mapping)
        return model
    config = {
        "fp8": lambda: quantization.Float8DynamicActivationFloat8WeightConfig(
            granularity=quantization.PerRow()
        ),
        "fp8-weight": quantization.Float8WeightOnlyConfig,
        "int8": quantization.Int8DynamicActivationInt8WeightConfig,
        "int8-weight": quantization.Int8WeightOnlyConfig,
    }[scheme]
    with (
        mock.patch.object(quantization.quant_api, "_check_hardware_support"),
        mock.patch.object(quantization.utils, "recommended_inductor_config_setter"),
    ):
        quantization.quantize_(model, config(), filter_fn=is_replaced)
    if scheme == "fp8":
        for layer in layers:
            quantize_activations(layer)
    return model


@pytest.mark.parametrize("scheme", ["fp8", "fp8-weight", "int8", "int8-weight", "int4", "uint4"])
def test_logits_are_as_close_as_those_of_torchao(plain, wide, scheme):
    pytest.importorskip("torchao")
    for original in (plain, wide):
        model, _ = converted(original, scheme)
        ours, theirs = error(model, original), error(of_torchao(original, scheme), original)
        assert 0.85 < ours / theirs < 1.1
