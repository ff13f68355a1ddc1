"""transformers' ``FP8Experts`` by grouped products, beside the dequantized matrices."""

import pytest
import torch
from cutlass_api import quantize
from torch import nn

transformers = pytest.importorskip("transformers")
pytest.importorskip("cutlass_api.transformers")  # registers the implementation
from support.expert_models import BF16, HOME, error, logits, model_of  # noqa: E402
from transformers.integrations import finegrained_fp8  # noqa: E402

HIDDEN, TOKENS, TOP_K, EXPERTS = 64, 9, 2, 4
NAMES = ("gate_up_proj", "down_proj")


def fp8_model(inner, block, **options):
    """A model that transformers has prepared for float8, its module, and the matrices of the
    experts.
    """
    model = model_of("Qwen3Moe", moe_intermediate_size=inner)
    config = transformers.FineGrainedFP8Config(weight_block_size=block, **options)
    kept = ["self_attn", "lm_head", "gate"]
    finegrained_fp8.replace_with_fp8_linear(model, kept, config)
    module = model.get_submodule(HOME)
    assert type(module) is finegrained_fp8.FP8Experts
    model.set_experts_implementation("cutlass_api")
    return model, module


def fill(module):
    """Sets random weights. Returns the matrices that they are."""
    generator = torch.Generator().manual_seed(0)
    matrices = []
    for name in NAMES:
        parameter = getattr(module, name)
        scales = getattr(module, f"{name}_scale_inv")
        _, n, k = parameter.shape
        values = torch.randn(parameter.shape, generator=generator).to(torch.float8_e4m3fn)
        factors = torch.rand(scales.shape, generator=generator).sub(4).exp2() * k**-0.5
        factors = factors.log2().round().exp2() if scales.dtype != torch.float32 else factors
        setattr(module, name, nn.Parameter(values))
        setattr(module, f"{name}_scale_inv", nn.Parameter(factors.to(scales.dtype)))
        # Two rows of scales in place of one are those of gate and of up.
        rows, columns = scales.shape[1:]
        high = n // rows if module.block_size is None or n <= 128 < n * rows else 128
        high = module.block_size[0] if module.block_size and module.block_size[0] == 1 else high
        wide = factors.repeat_interleave(high, 1)[:, :n].repeat_interleave(-(-k // columns), 2)
        matrices.append(values.float() * wide[..., :k])
    return matrices


def loop(module, matrices, hidden, index, weights):
    """A loop over slots."""
    up, down = matrices
    outs = []
    for row, chosen, factors in zip(hidden, index.tolist(), weights, strict=True):
        out = torch.zeros_like(row)
        for expert, factor in zip(chosen, factors, strict=True):
            if expert < EXPERTS:
                gate, other = (up[expert] @ row).chunk(2)
                out = out + factor * (down[expert] @ (nn.functional.silu(gate) * other))
        outs.append(out)
    return torch.stack(outs)


@pytest.mark.parametrize(
    ("inner", "block", "options"),
    [
        (96, [128, 128], {}),
        (128, [128, 128], {"scale_fmt": "ue8m0"}),
        (64, [128, 128], {}),
        (96, [1, 128], {}),
        (96, None, {}),
    ],
)
def test_formats(inner, block, options):
    _, module = fp8_model(inner, block, **options)
    matrices = fill(module)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator)
    scores = torch.rand(TOKENS, EXPERTS + 1, generator=generator)
    weights, index = scores.topk(TOP_K)
    assert (index == EXPERTS).any()
    results = []
    for function in (module, lambda *inputs: loop(module, matrices, *inputs)):
        x, factors = hidden.clone().requires_grad_(), weights.clone().requires_grad_()
        out = function(x, index, factors)
        results.append([out, *torch.autograd.grad(out.sin().sum(), [x, factors])])
    assert (
        max(error(*pair) for pair in zip(*results, strict=True)) < 0.1
    )  # a wrong scale: 0.3 and more
    with torch.no_grad():
        assert torch.equal(module(hidden, index, weights), results[0][0])


def test_a_model():
    """Beside the model in 16 bits."""
    plain = model_of("Qwen3Moe", moe_intermediate_size=128)
    model, module = fp8_model(128, [128, 128])
    model.load_state_dict(plain.state_dict(), strict=False, assign=True)
    for name in NAMES:
        weight = quantize.fp8(plain.get_submodule(HOME).get_parameter(name).detach(), (128, 128))
        setattr(module, name, nn.Parameter(weight.values))
        setattr(module, f"{name}_scale_inv", nn.Parameter(weight.scales))
    assert 0 < error(logits(model), logits(plain)) < 0.1


def test_what_goes_to_transformers(monkeypatch):
    _, module = fp8_model(96, [128, 128], activation_scheme="static")
    inputs = torch.zeros(1, HIDDEN, dtype=BF16), torch.zeros(1, 1).long(), torch.ones(1, 1)
    with pytest.raises(NotImplementedError, match='cutlass_api: activation_scheme="static"'):
        module(*inputs)
    monkeypatch.setattr(finegrained_fp8, "fp8_grouped_mm_experts_forward", lambda *_: "theirs")
    for block, options in (([128, 128], {"expert_dtype": "fp4"}), ([64, 64], {})):
        _, module = fp8_model(96, block, **options)
        assert module(*inputs) == "theirs"
