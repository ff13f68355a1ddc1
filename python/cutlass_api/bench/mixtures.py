"""What ``bench experts`` times: for each product, launches of ours and of a baseline, one for each
set of operands, and the limit of both.

The weights that the sets read exceed L2. Which experts have rows, and how many, comes from a fixed
seed, so that all products share it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import cutlass_api
from cutlass_api.bench.limits import WEIGHT_BYTES, sets_beyond_l2
from cutlass_api.utils import ceil_div

#: FLOP per second that limits assume.
FLOP_RATE, FLOAT8_FLOP_RATE = 700e12, 1400e12
#: Elements of a block of float8 along K, and of B also along N.
BLOCK = 128


@dataclass(frozen=True)
class Mixture:
    """A layer: the extents of its weights, and how many experts each token chooses."""

    hidden: int
    inner: int
    experts: int
    top_k: int

    def extents(self, matrix: str) -> tuple[int, int]:
        """N and K of a matrix of an expert, "up" (gate and up) or "down"."""
        if matrix == "up":
            return 2 * self.inner, self.hidden
        return self.hidden, self.inner


#: By name; deepseek-v3-rank is a rank of 8, to which a token sends one slot of 8 in the mean.
MIXTURES = {
    "qwen3-30b-a3b": Mixture(2048, 768, 128, 8),
    "mixtral-8x7b": Mixture(4096, 14336, 8, 2),
    "deepseek-v3-rank": Mixture(7168, 2048, 32, 1),
    "gpt-oss-20b": Mixture(2880, 2880, 32, 4),
}


def route(mixture: Mixture, tokens: int) -> tuple[Any, Any]:
    """Weights and indices of the experts that each token chooses at random, on the CPU."""
    import torch

    seeded = torch.Generator().manual_seed(0)
    scores = torch.randn(tokens, mixture.experts, generator=seeded).softmax(-1)
    weights, index = scores.topk(mixture.top_k)
    return weights, index


def routed(mixture: Mixture, tokens: int) -> Any:
    """The rows of each expert if tokens choose at random."""
    _, index = route(mixture, tokens)
    return index.flatten().bincount(minlength=mixture.experts)


def uniform(mixture: Mixture, tokens: int) -> Any:
    """The rows of each expert: random numbers from 0 to twice the mean."""
    import torch

    seeded = torch.Generator().manual_seed(0)
    most = capacity(mixture, tokens)
    return torch.randint(0, most + 1, (mixture.experts,), generator=seeded)


def capacity(mixture: Mixture, tokens: int) -> int:
    """Rows of room of each expert in a masked product: twice the mean."""
    return 2 * tokens * mixture.top_k // mixture.experts


Launches = Sequence[Callable[[], Any]]


@dataclass(frozen=True)
class Comparison:
    """Launches of one product by a baseline and by ours, one for each set of operands."""

    baseline: Launches
    ours: Launches
    #: Bytes of weights that a launch reads, or of gradients that it writes.
    weight_bytes: float
    flop: float
    flop_rate: float
    #: Which rows of a result are defined; None: all.
    mask: Any = None

    def limit(self, rate: float) -> float:
        """Microseconds of the weights at this rate of memory, or of the arithmetic."""
        return 1e6 * max(self.weight_bytes / rate, self.flop / self.flop_rate)

    def error(self) -> float:
        """The relative norm of the difference of the results of the first set."""
        results = [launches[0]() for launches in (self.baseline, self.ours)]
        if self.mask is not None:
            results = [result[self.mask] for result in results]
        expected, found = (result.double() for result in results)
        return float((found - expected).norm() / expected.norm())


@dataclass(frozen=True)
class Groups:
    """The rows of the experts of a layer.

    ``counts``: of each expert, on the CPU.
    """

    mixture: Mixture
    tokens: int
    counts: Any
    device: str

    @cached_property
    def rows(self) -> int:
        return int(self.counts.sum())

    @cached_property
    def used(self) -> int:
        """How many experts have rows. The weights of others are not read."""
        return int((self.counts > 0).sum())

    @cached_property
    def offsets(self) -> Any:
        """The end row of each expert, in int32, on the device."""
        return self.counts.cumsum(0).int().to(self.device)

    def random(self, *shape: int) -> Any:
        """Normally distributed numbers in bfloat16."""
        import torch

        return torch.randn(*shape, device=self.device, dtype=torch.bfloat16)

    def scales(self, *shape: int) -> Any:
        """Random factors from 0.5 to 1.5."""
        import torch

        return torch.rand(*shape, device=self.device) + 0.5

    def sets(self, bytes_of_expert: float) -> range:
        """The numbers of the sets of weights of which launches read more than L2 holds."""
        return range(sets_beyond_l2(int(self.used * bytes_of_expert), WEIGHT_BYTES))

    def weight(self, matrix: str) -> Any:
        """A weight (experts, N, K) in bfloat16."""
        n, k = self.mixture.extents(matrix)
        return self.random(self.mixture.experts, n, k) * k**-0.5

    def compare(
        self,
        baseline: Launches,
        ours: Launches,
        elements: int,
        element_bytes: float = 2,
        experts: int | None = None,
        flop_rate: float = FLOP_RATE,
        mask: Any = None,
    ) -> Comparison:
        """A comparison of products by matrices with this many elements an expert.

        ``experts``: how many matrices are read or written; None: those of experts with rows.
        """
        matrices = self.used if experts is None else experts
        return Comparison(
            baseline,
            ours,
            weight_bytes=matrices * elements * element_bytes,
            flop=2 * self.rows * elements,
            flop_rate=flop_rate,
            mask=mask,
        )


# ---- bfloat16 ------------------------------------------------------------------------------------


def plain(groups: Groups, matrix: str) -> Comparison:
    import torch

    n, k = groups.mixture.extents(matrix)
    a, offsets = groups.random(groups.rows, k), groups.offsets
    weights = [groups.weight(matrix) for _ in groups.sets(2 * n * k)]
    return groups.compare(
        [partial(torch._grouped_mm, a, each.mT, offs=offsets) for each in weights],
        [partial(cutlass_api.grouped_mm, a, each.mT, offsets) for each in weights],
        n * k,
    )


def weight_grad(groups: Groups) -> Comparison:
    import torch

    n, k = groups.mixture.extents("up")
    a, grad, offsets = groups.random(groups.rows, k), groups.random(groups.rows, n), groups.offsets
    return groups.compare(
        [partial(torch._grouped_mm, a.mT, grad, offs=offsets)],
        [partial(cutlass_api.grouped_mm_weight_grad, a, grad, offsets)],
        n * k,
        # An expert without rows has a gradient, too.
        experts=groups.mixture.experts,
    )


def layer(groups: Groups) -> Comparison:
    from cutlass_api.nn._experts import Gate, experts

    mixture = groups.mixture
    elements = 3 * mixture.hidden * mixture.inner
    x = groups.random(groups.tokens, mixture.hidden)
    weights, index = (each.to(groups.device) for each in route(mixture, groups.tokens))
    sets = [
        (x, index, weights, groups.weight("up").mT, groups.weight("down").mT)
        for _ in groups.sets(2 * elements)
    ]

    def own(x: Any, index: Any, weights: Any, up: Any, down: Any) -> Any:
        return experts(x, index, weights, (up, None), (down, None), Gate("silu"))

    return groups.compare(
        [partial(composed, *each) for each in sets],
        [partial(own, *each) for each in sets],
        elements,
    )


def gated(rows: Any) -> Any:
    """silu(gate) * up of columns that hold gate, then up."""
    from torch.nn.functional import silu

    gate, up = rows.chunk(2, -1)
    return silu(gate) * up


def composed(x: Any, index: Any, weights: Any, up: Any, down: Any) -> Any:
    """A layer of torch's operators. ``up``, ``down``: (experts, K, N)."""
    import torch

    tokens, top_k = index.shape
    chosen, slots = index.flatten().sort(stable=True)
    numbers = torch.arange(up.shape[0], device=x.device)
    offsets = torch.searchsorted(chosen, numbers, right=True, out_int32=True)
    rows = torch._grouped_mm(x[slots // top_k], up, offs=offsets)
    rows = torch._grouped_mm(gated(rows), down, offs=offsets)
    weighted = rows * weights.flatten()[slots].unsqueeze(-1)
    places = torch.empty_like(slots)
    places[slots] = torch.arange(slots.shape[0], device=x.device)
    return weighted[places].view(tokens, top_k, -1).sum(1).to(x.dtype)


def masked(groups: Groups, matrix: str) -> Comparison:
    """Beside a product of all rows, of which ours computes those that count."""
    import torch

    n, k = groups.mixture.extents(matrix)
    room = capacity(groups.mixture, groups.tokens)
    a, counts = groups.random(groups.mixture.experts, room, k), groups.counts.to(groups.device)
    weights = [groups.weight(matrix) for _ in groups.sets(2 * n * k)]
    return groups.compare(
        [partial(torch.bmm, a, each.mT) for each in weights],
        [partial(cutlass_api.masked_grouped_mm, a, each.mT, counts.int()) for each in weights],
        n * k,
        mask=torch.arange(room, device=a.device) < counts[:, None],
    )


# ---- 8 and 4 bits --------------------------------------------------------------------------------


def scaled_rows(groups: Groups, matrix: str) -> Comparison:
    """float8_e4m3fn, with scales of rows of A and columns of B. torch's default of
    ``use_fast_accum``, False."""
    import torch

    n, k = groups.mixture.extents(matrix)
    count, rows, offsets = groups.mixture.experts, groups.rows, groups.offsets
    a, scale_a = groups.random(rows, k).to(torch.float8_e4m3fn), groups.scales(rows)
    sets = [
        (a, groups.random(count, n, k).to(a.dtype).mT, scale_a, groups.scales(count, n))
        for _ in groups.sets(n * k)
    ]
    into = {"out_dtype": torch.bfloat16}
    return groups.compare(
        [partial(torch._scaled_grouped_mm, *each, offs=offsets, **into) for each in sets],
        [partial(cutlass_api.scaled_grouped_mm, *each, offsets, **into) for each in sets],
        n * k,
        element_bytes=1,
        flop_rate=FLOAT8_FLOP_RATE,
    )


def scaled_blocks(groups: Groups, matrix: str) -> Comparison:
    """float8_e4m3fn, with scales of 1 x 128 elements of A and 128 x 128 of B, beside our product of
    the dequantized operands: torch has no such grouped product."""
    import torch

    n, k = groups.mixture.extents(matrix)
    count, offsets = groups.mixture.experts, groups.offsets
    a = groups.random(groups.rows, k).to(torch.float8_e4m3fn)
    scale_a = groups.scales(ceil_div(k, BLOCK), groups.rows).mT
    dense_a = (a.float() * _repeat(scale_a, -1, k)).bfloat16()
    baseline, ours = [], []
    for _ in groups.sets(n * k):
        b = groups.random(count, n, k).to(a.dtype)
        scale_b = groups.scales(count, ceil_div(n, BLOCK), ceil_div(k, BLOCK))
        dense_b = (b.float() * _repeat(_repeat(scale_b, -1, k), -2, n)).bfloat16()
        baseline.append(partial(cutlass_api.grouped_mm, dense_a, dense_b.mT, offsets))
        operands = (a, b.mT, scale_a, scale_b.mT, offsets)
        ours.append(partial(cutlass_api.scaled_grouped_mm, *operands))
    return groups.compare(baseline, ours, n * k, element_bytes=1, flop_rate=FLOAT8_FLOP_RATE)


def _repeat(scales: Any, dim: int, extent: int) -> Any:
    """Each scale of a block for all of its elements in a dimension."""
    return scales.repeat_interleave(BLOCK, dim).narrow(dim, 0, extent)


def mxfp4(groups: Groups, matrix: str) -> Comparison:
    """bfloat16 by weights in MXFP4, beside torch's product by the dequantized weights."""
    import torch

    from cutlass_api import quantize

    n, k = groups.mixture.extents(matrix)
    a, offsets = groups.random(groups.rows, k), groups.offsets
    weight = quantize.mxfp4(groups.weight(matrix))
    dense, stack = weight.dequantize(torch.bfloat16), weight.repack()
    stack_bytes = sum(tensor.nbytes for tensor in stack.tensors().values())
    element_bytes = stack_bytes / dense.numel()
    baseline, ours = [], []
    for _ in groups.sets(n * k * element_bytes):
        fields = {name: tensor.clone() for name, tensor in stack.tensors().items()}
        copy = type(stack).from_tensors(fields)
        baseline.append(partial(torch._grouped_mm, a, dense.clone().mT, offs=offsets))
        ours.append(partial(cutlass_api.quantized_grouped_mm, a, copy, offsets))
    return groups.compare(baseline, ours, n * k, element_bytes)


# ---- all of them ---------------------------------------------------------------------------------

#: Baselines by the names that tables show.
TORCH, TORCH_BFLOAT16, TORCH_ALL_ROWS = "torch", "torch, bfloat16", "torch.bmm, all rows"
OUR_BFLOAT16 = "ours, bfloat16"
#: The mixtures of most products.
COMMON = ("qwen3-30b-a3b", "mixtral-8x7b", "deepseek-v3-rank")


@dataclass(frozen=True)
class Product:
    """What is timed, and for which mixtures and numbers of tokens."""

    make: Callable[[Groups], Comparison]
    baseline: str = TORCH
    mixtures: Sequence[str] = COMMON
    least_tokens: int = 1
    #: Tokens instead of those of the command; None: those of the command.
    own_tokens: Sequence[int] | None = None
    #: The rows of each expert.
    counts: Callable[[Mixture, int], Any] = routed

    def tokens(self, tokens: Sequence[int]) -> list[int]:
        """Those of these numbers of tokens for which the product is timed, or its own."""
        if self.own_tokens is not None:
            return list(self.own_tokens)
        return [count for count in tokens if count >= self.least_tokens]

    def compare(self, mixture: Mixture, tokens: int, device: str) -> Comparison:
        return self.make(Groups(mixture, tokens, self.counts(mixture, tokens), device))


def _of_both(name: str, make: Callable[..., Comparison], **others: Any) -> dict[str, Product]:
    """The products by gate and up, and by down."""
    return {
        f"{name}-{matrix}": Product(partial(make, matrix=matrix), **others)
        for matrix in ("up", "down")
    }


#: What is timed, by name:
#: - up, down: products of rows in order of their experts, by gate and up, and by down.
#: - layer: all of a layer: the sort, gather, gate and up, silu(gate) * up, down, and the sum of a
#:   token's rows by their weights.
#: - weights: the gradient of gate and up, from 1024 tokens on.
#: - fp8-...: float8 by float8 with scales of rows and columns.
#: - fp8-block-...: with scales of blocks, from 1024 tokens on, beside our bfloat16.
#: - mxfp4-...: bfloat16 by MXFP4, of gpt-oss.
#: - masked-...: 0 to 16 of 16 rows of each expert of a rank, 256 tokens in the mean.
PRODUCTS = {
    "up": Product(partial(plain, matrix="up")),
    "down": Product(partial(plain, matrix="down")),
    "layer": Product(layer),
    "weights": Product(weight_grad, least_tokens=1024),
    **_of_both("fp8", scaled_rows),
    **_of_both("fp8-block", scaled_blocks, baseline=OUR_BFLOAT16, least_tokens=1024),
    **_of_both("mxfp4", mxfp4, baseline=TORCH_BFLOAT16, mixtures=("gpt-oss-20b",)),
    **_of_both(
        "masked",
        masked,
        baseline=TORCH_ALL_ROWS,
        mixtures=("deepseek-v3-rank",),
        own_tokens=(256,),
        counts=uniform,
    ),
}
