"""Models that `compile` times.

Weights are random, and scaled so that no block's output vanishes beside its residual.
"""

from dataclasses import dataclass

import torch
from cutlass_api.bench.architectures import ARCHITECTURES
from cutlass_api.bench.layers import Layers, in_bfloat16
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


def build(case: Case, extents: Extents, device: str) -> Workload:
    """The model of a case in bfloat16, with its inputs."""
    torch.manual_seed(0)

    def inputs(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=torch.bfloat16)

    hidden = extents.hidden
    if case.model == "epilogue":
        m, n, k = case.size
        # As many sets as a call needs to last longer than its replay takes on the host.
        sets = 8 if m <= 64 else 4 if m <= 1024 else 2
        return Workload(in_bfloat16(lambda: Epilogue(m, n, k, sets), device), (), (), sets)
    (tokens,) = case.size
    if case.model == "llama":
        architecture = ARCHITECTURES["llama-3-8b"].with_config(
            hidden_size=extents.hidden,
            intermediate_size=extents.llama_intermediate,
            num_attention_heads=extents.heads,
            num_key_value_heads=extents.key_value_heads,
        )
        layer = in_bfloat16(lambda: Layers(architecture, 1), device)
        hidden_states, others = (inputs(1, tokens, hidden) for _ in range(2))
        tables = layer.tables(hidden_states)
        return Workload(layer, (hidden_states, *tables), (others, *tables), 1)
    block = GeluMlp if case.model == "gelu_mlp" else GatedMlp
    module = in_bfloat16(
        lambda: nn.Sequential(*(block(hidden, extents.intermediate) for _ in range(case.blocks))),
        device,
    )
    # Inductor merges a product and a residual of rank 2 into `addmm`, for which NVGEMM alone has no
    # candidate and compilation fails. A batch dimension keeps them apart.
    shape = (1, tokens, hidden) if case.model == "nvgemm" else (tokens, hidden)
    return Workload(module, (inputs(*shape),), (inputs(*shape),), case.blocks)
