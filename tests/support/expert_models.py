"""Small models of transformers with mixtures of experts."""

import torch
import transformers
from cutlass_api import quantize
from safetensors.torch import load_file
from torch import nn

from support.checkpoint_files import write

BF16 = torch.bfloat16
IDS = torch.arange(24).view(2, 12) * 7 % 64
SMALL = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=1)
SMALL |= dict(num_attention_heads=2, num_key_value_heads=2)
FEW = dict(num_experts_per_tok=2, moe_intermediate_size=96)
#: Models whose experts differ in the file, or in memory: in layout, biases and gate.
MODELS = {
    "Qwen3Moe": FEW | dict(num_experts=4, head_dim=32),
    "Mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "GptOss": dict(num_local_experts=4, num_experts_per_tok=3, head_dim=32),
    "DeepseekV3": FEW
    | dict(n_routed_experts=4, first_k_dense_replace=0, n_group=1, topk_group=1)
    | dict(q_lora_rank=32, kv_lora_rank=32, v_head_dim=32)
    | dict(qk_rope_head_dim=32, qk_nope_head_dim=32),
}
HOME = "model.layers.0.mlp.experts"


def model_of(name, **options):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL | MODELS[name] | options)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(BF16).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    return model


def logits(model):
    with torch.no_grad():
        return model(IDS).logits.float()


def error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def write_gpt_oss(model, folder):
    """Writes a model as OpenAI does, with experts in MXFP4, whose numbers become its own."""
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    for name in ("gate_up_proj", "down_proj"):
        parameter = model.get_submodule(HOME).get_parameter(name)
        weight = quantize.mxfp4(parameter.detach().mT)
        parameter.data = weight.dequantize().mT.contiguous()
        del state[f"{HOME}.{name}"]
        state[f"{HOME}.{name}_blocks"] = weight.values.unflatten(-1, (-1, 16))
        state[f"{HOME}.{name}_scales"] = weight.scales.view(torch.uint8)
    return write(folder, state, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
