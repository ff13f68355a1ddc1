"""GPU time of mixtures of experts: the grouped products of a layer, their gradients, and whole
gated layers with gather and scatter, beside torch.

Tokens choose experts at random. Times are taken as in :mod:`cutlass_api.bench.gemm`: weights larger
than L2, CUDA graphs, methods in turns, medians. Times of layers include torch's sort of the slots.
"""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from statistics import geometric_mean
from typing import Any

import cutlass_api
from cutlass_api.bench import options
from cutlass_api.bench.base import Bench, Document, Entry, both, deviation
from cutlass_api.bench.limits import WEIGHT_BYTES, copy_rate, sets_beyond_l2
from cutlass_api.bench.timing import ROUNDS, capture, in_turns, quartiles

#: FLOP per second that the limit assumes.
FLOP_RATE = 700e12
#: The largest relative norm error against torch, whose intermediate results are bfloat16, too.
ERROR_LIMIT = 2e-2


@dataclass(frozen=True)
class Mixture:
    """A layer: the extents of its weights, and how many experts each token chooses."""

    hidden: int
    inner: int
    experts: int
    top_k: int


#: By name; deepseek-v3-rank is a rank of 8, to which a token sends one slot of 8 in the mean.
MIXTURES = {
    "qwen3-30b-a3b": Mixture(2048, 768, 128, 8),
    "mixtral-8x7b": Mixture(4096, 14336, 8, 2),
    "deepseek-v3-rank": Mixture(7168, 2048, 32, 1),
}
TOKENS = (1, 32, 1024, 8192)
#: What is timed:
#: - up, down: products of rows in order of their experts, by gate and up, and by down.
#: - layer: all of a layer: the sort, gather, gate and up, silu(gate) * up, down, and the sum of a
#:   token's rows by their weights.
#: - weights: the gradient of gate and up, from 1024 tokens on.
PRODUCTS = ("up", "down", "layer", "weights")
LEAST_TOKENS = {"weights": 1024}


@dataclass
class Row:
    """The times of one product, in microseconds."""

    mixture: str
    product: str
    tokens: int
    torch: float
    ours: float
    #: The time to read weights and write gradients at the rate of a copy, or that of the products
    #: at `FLOP_RATE`, whichever is longer.
    limit: float
    #: The relative norm of the difference of the results.
    error: float
    #: The quartiles of the turns of ``torch`` and ``ours``.
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.mixture} {self.tokens} {self.product}"


class Operands:
    """Sets of operands of a layer, whose weights exceed L2."""

    def __init__(self, mixture: Mixture, tokens: int, device: str) -> None:
        import torch

        self.mixture, self.tokens = mixture, tokens
        random = partial(torch.randn, device=device, dtype=torch.bfloat16)
        hidden, inner, count = mixture.hidden, mixture.inner, mixture.experts
        self.x = random(tokens, hidden)
        scores = torch.randn(tokens, count, device=device).softmax(-1)
        self.weights, self.index = scores.topk(mixture.top_k)
        slots = self.index.flatten().sort().values
        numbers = torch.arange(count, device=device)
        self.offsets = torch.searchsorted(slots, numbers, right=True, out_int32=True)
        self.chosen = int(slots.unique().numel())
        rows = tokens * mixture.top_k
        self.rows, self.activated = random(rows, hidden), random(rows, inner)
        self.grad = random(rows, 2 * inner)
        sets = range(sets_beyond_l2(6 * count * hidden * inner, WEIGHT_BYTES))
        self.up = [random(count, 2 * inner, hidden) * hidden**-0.5 for _ in sets]
        self.down = [random(count, hidden, inner) * inner**-0.5 for _ in sets]

    def limit(self, name: str, rate: float) -> float:
        """Microseconds."""
        of_up = 2 * self.mixture.hidden * self.mixture.inner
        elements = {"up": of_up, "down": of_up // 2, "layer": of_up + of_up // 2, "weights": of_up}
        # A group without rows has a gradient, too, and its weights are not read.
        count = self.mixture.experts if name == "weights" else self.chosen
        flops = 2 * self.tokens * self.mixture.top_k * elements[name]
        return 1e6 * max(2 * count * elements[name] / rate, flops / FLOP_RATE)

    def launches(self, name: str) -> tuple[list[Callable[[], Any]], list[Callable[[], Any]]]:
        """torch's launches and ours, one for each set."""
        import torch

        from cutlass_api.nn._experts import Gate, experts

        if name == "weights":
            transposed = self.rows.mT
            theirs = partial(torch._grouped_mm, transposed, self.grad, offs=self.offsets)
            own = partial(cutlass_api.grouped_mm_weight_grad, self.rows, self.grad, self.offsets)
            return [theirs], [own]
        if name == "layer":
            layers = [
                (self.x, self.index, self.weights, up.mT, down.mT)
                for up, down in zip(self.up, self.down, strict=True)
            ]

            def layer(x: Any, index: Any, weights: Any, up: Any, down: Any) -> Any:
                return experts(x, index, weights, (up, None), (down, None), Gate("silu"))

            return [partial(composed, *each) for each in layers], [
                partial(layer, *each) for each in layers
            ]
        a, weights = (self.rows, self.up) if name == "up" else (self.activated, self.down)
        return (
            [partial(torch._grouped_mm, a, each.mT, offs=self.offsets) for each in weights],
            [partial(cutlass_api.grouped_mm, a, each.mT, self.offsets) for each in weights],
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


def measure(
    mixtures: Iterable[str],
    products: Sequence[str],
    tokens: Iterable[int],
    rate: float,
    device: str = "cuda",
) -> Iterator[Row]:
    """Times all products. Raises ArithmeticError if a result differs from torch's by more than
    `ERROR_LIMIT`."""
    import torch

    stream = torch.cuda.Stream() if device == "cuda" else None
    for name, count in product(mixtures, tokens):
        wanted = [each for each in products if count >= LEAST_TOKENS.get(each, 1)]
        with torch.no_grad():
            operands = Operands(MIXTURES[name], count, device) if wanted else None
            for each in wanted:
                assert operands is not None
                theirs, own = operands.launches(each)
                expected, found = (launches[0]().double() for launches in (theirs, own))
                error = float((found - expected).norm() / expected.norm())
                if not error <= ERROR_LIMIT:
                    raise ArithmeticError(f"{name} {count} {each}: the error is {error:.2g}")
                del expected, found
                timed = {"torch": capture(stream, theirs), "ours": capture(stream, own)}
                in_turns(timed, ROUNDS)
                medians = {method: taken.median for method, taken in timed.items()}
                spread = {method: quartiles(taken.times) for method, taken in timed.items()}
                limit = operands.limit(each, rate)
                yield Row(name, each, count, **medians, limit=limit, error=error, quartiles=spread)
                del timed, theirs, own
        del operands
        if device == "cuda":
            torch.cuda.empty_cache()


class Experts(Bench[Row]):
    name, about = "experts", "GPU time of mixtures of experts: products, gradients, whole layers"
    title = "Mixtures of experts in bfloat16"
    row, field = Row, "mixture"
    columns = (
        ("mixture, tokens, product", "name", ""),
        ("torch us", "torch", ".1f"),
        ("ours us", "ours", ".1f"),
        ("limit us", "limit", ".1f"),
        ("torch/ours", lambda row: row.torch / row.ours, ".2f"),
        ("limit/ours", lambda row: row.limit / row.ours, ".2f"),
        ("error", "error", ".1e"),
    )

    def add_options(self, command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--mixtures",
            nargs="+",
            choices=tuple(MIXTURES),
            default=list(MIXTURES),
            metavar="NAME",
            help=f"mixtures: {', '.join(MIXTURES)}",
        )
        command.add_argument(
            "--products", nargs="+", choices=PRODUCTS, default=list(PRODUCTS), help="what is timed"
        )
        options.add_counts(command, "--tokens", "tokens", TOKENS)

    def measure(self, arguments: argparse.Namespace, document: Document) -> Iterator[Row]:
        document["copy_rate"] = copy_rate()
        of = (arguments.mixtures, arguments.products, arguments.tokens)
        return measure(*of, document["copy_rate"])

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        for row in rows:
            ours, torch = (
                deviation(getattr(row, name), row.quartiles.get(name)) for name in ("ours", "torch")
            )
            noise = both(ours, torch)
            yield Entry(row.name, row.ours, row.torch, row.torch, noise, group=row.product)

    def summary(self, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
        """By product: the mean and the least of torch's time over ours, and of the limit's."""
        found: dict[str, dict[str, float]] = {}
        for name in dict.fromkeys(row.product for row in rows):
            of_name = [row for row in rows if row.product == name]
            ratios = [row.torch / row.ours for row in of_name]
            shares = [row.limit / row.ours for row in of_name]
            found[name] = {
                "torch / ours": geometric_mean(ratios),
                "least": min(ratios),
                "share of the limit": geometric_mean(shares),
                "least share": min(shares),
            }
        return found
