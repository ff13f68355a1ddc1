"""Models that `compile` times.

Weights are random, and scaled so that no block's output vanishes beside its residual.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.cases import Case, Extents


@dataclass
class Workload:
    """A model with two sets of inputs, which have the same shapes.

    ``blocks`` is the number of equal parts, of one of which the time is reported.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    other_inputs: tuple[Tensor, ...]
    blocks: int


class GatedMlp(nn.Module):
    """``x + down(silu(gate(x)) * up(x))``."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, intermediate, bias=False)
        self.up = nn.Linear(hidden, intermediate, bias=False)
        self.down = nn.Linear(intermediate, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


class GeluMlp(nn.Module):
    """``x + fc2(gelu(fc1(x)))`` with biases and exact GELU."""

    def __init__(self, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(hidden, intermediate)
        self.fc2 = nn.Linear(intermediate, hidden)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.fc2(functional.gelu(self.fc1(x)))
        return out


class Epilogue(nn.Module):
    """``gelu(x @ w.T + bias) + residual`` for several sets of operands.

    All operands are parameters: CUDA graphs copy other inputs at each call, which takes as long as
    a part of the product.
    """

    def __init__(self, m: int, n: int, k: int, sets: int) -> None:
        super().__init__()

        def operands(*extents: int) -> nn.ParameterList:
            return nn.ParameterList(nn.Parameter(torch.randn(*extents)) for _ in range(sets))

        self.x, self.weight = operands(m, k), operands(n, k)
        self.bias, self.residual = operands(n), operands(m, n)
        for weight in self.weight:
            weight.data *= k**-0.5

    def forward(self) -> list[Tensor]:
        return [
            functional.gelu(x @ weight.T + bias) + residual
            for x, weight, bias, residual in zip(
                self.x, self.weight, self.bias, self.residual, strict=True
            )
        ]


class LlamaLayer(nn.Module):
    """One decoder layer of `transformers` without a cache, causal by SDPA's flag."""

    def __init__(self, extents: Extents) -> None:
        from transformers.models.llama.configuration_llama import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        super().__init__()
        config = LlamaConfig(
            hidden_size=extents.hidden,
            intermediate_size=extents.llama_intermediate,
            num_attention_heads=extents.heads,
            num_key_value_heads=extents.key_value_heads,
            attn_implementation="sdpa",
        )
        self.layer = LlamaDecoderLayer(config, layer_idx=0)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        out: Tensor = self.layer(hidden, position_embeddings=(cos, sin))
        return out


def scale_weights(module: nn.Module) -> None:
    """Random weights: a linear layer keeps the norm, and the last one of an MLP halves it."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear):
            gain = 0.5 if name.endswith(("down", "fc2")) else 1.0
            nn.init.normal_(layer.weight, std=gain * layer.in_features**-0.5)
            if layer.bias is not None:
                nn.init.normal_(layer.bias, std=0.1)


def build(case: Case, extents: Extents, device: str) -> Workload:
    """The model of a case in bfloat16, with its inputs."""
    torch.manual_seed(0)

    def inputs(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    def parameters(make: Callable[[], nn.Module]) -> nn.Module:
        with torch.device(device):
            module = make()
            scale_weights(module)
        return module.to(torch.bfloat16).eval().requires_grad_(False)

    hidden = extents.hidden
    if case.model == "epilogue":
        m, n, k = case.size
        # As many sets as a call needs to last longer than its replay takes on the host.
        sets = 8 if m <= 64 else 4 if m <= 1024 else 2
        return Workload(parameters(lambda: Epilogue(m, n, k, sets)), (), (), sets)
    (tokens,) = case.size
    if case.model == "llama":
        module = parameters(lambda: LlamaLayer(extents))
        # Computed in float32 by the layer's own formula, then rounded.
        rotary = module.rotary
        cos, sin = rotary(inputs(1, tokens, hidden), torch.arange(tokens, device=device)[None])
        return Workload(
            module, (inputs(1, tokens, hidden), cos, sin), (inputs(1, tokens, hidden), cos, sin), 1
        )
    block = GeluMlp if case.model == "gelu_mlp" else GatedMlp
    module = parameters(
        lambda: nn.Sequential(*(block(hidden, extents.intermediate) for _ in range(case.blocks)))
    )
    # Inductor merges a product and a residual of rank 2 into `addmm`, for which NVGEMM alone has no
    # candidate and compilation fails. A batch dimension keeps them apart.
    shape = (1, tokens, hidden) if case.model == "nvgemm" else (tokens, hidden)
    return Workload(module, (inputs(*shape),), (inputs(*shape),), case.blocks)
