"""GPU time of mixtures of experts: the grouped products of a layer in 16, 8 and 4 bits, their
gradients, masked products, and whole gated layers with gather and scatter, beside a baseline: torch
where it has such a product.

Tokens choose experts at random. Times are taken as in :mod:`cutlass_api.bench.gemm`: weights larger
than L2, CUDA graphs, methods in turns, medians. Times of layers include torch's sort of the slots.
"""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from cutlass_api.bench import options, report
from cutlass_api.bench.base import Bench, Document, Entry, both, deviation
from cutlass_api.bench.limits import copy_rate
from cutlass_api.bench.mixtures import MIXTURES, OUR_BFLOAT16, PRODUCTS, TORCH
from cutlass_api.bench.timing import ROUNDS, capture, in_turns, quartiles

#: The largest relative norm error against the baseline, whose intermediate results are bfloat16,
#: too.
ERROR_LIMIT = 2e-2
TOKENS = (1, 32, 1024, 8192)


@dataclass
class Row:
    """The times of one product, in microseconds."""

    mixture: str
    product: str
    tokens: int
    #: The time of ``method``.
    baseline: float
    ours: float
    #: The time to read the weights of experts with rows, or to write gradients, at the rate of a
    #: copy, or that of the products at 700 TFLOP/s (float8: 1400), whichever is longer.
    limit: float
    #: The relative norm of the difference of the results.
    error: float
    #: What the baseline is.
    method: str = TORCH
    #: The quartiles of the turns of ``baseline`` and ``ours``.
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.mixture} {self.tokens} {self.product}"


def measure(
    mixtures: Iterable[str],
    products: Iterable[str],
    tokens: Sequence[int],
    rate: float,
    device: str = "cuda",
) -> Iterator[Row]:
    """Times all products. Raises ArithmeticError if a result differs from the baseline's by more
    than `ERROR_LIMIT`."""
    import torch

    stream = torch.cuda.Stream() if device == "cuda" else None
    for mixture, name in product(mixtures, products):
        timed = PRODUCTS[name]
        if mixture not in timed.mixtures:
            continue
        for count in timed.tokens(tokens):
            with torch.no_grad():
                row = _measure_row(mixture, name, count, rate, stream, device)
            yield row
            if device == "cuda":
                torch.cuda.empty_cache()


def _measure_row(
    mixture: str, name: str, tokens: int, rate: float, stream: Any, device: str
) -> Row:
    timed = PRODUCTS[name]
    of = timed.compare(MIXTURES[mixture], tokens, device)
    error = of.error()
    if not error <= ERROR_LIMIT:
        raise ArithmeticError(f"{mixture} {tokens} {name}: the error is {error:.2g}")
    graphs = {"baseline": capture(stream, of.baseline), "ours": capture(stream, of.ours)}
    in_turns(graphs, ROUNDS)
    medians = {method: taken.median for method, taken in graphs.items()}
    return Row(
        mixture,
        name,
        tokens,
        **medians,
        limit=of.limit(rate),
        error=error,
        method=timed.baseline,
        quartiles={method: quartiles(taken.times) for method, taken in graphs.items()},
    )


class Experts(Bench[Row]):
    name, about = "experts", "GPU time of mixtures of experts: products, gradients, whole layers"
    title = "Mixtures of experts"
    row, field = Row, "mixture"
    control = "our bfloat16"
    columns = (
        ("mixture, tokens, product", "name", ""),
        ("baseline", "method", ""),
        ("baseline us", "baseline", ".1f"),
        ("ours us", "ours", ".1f"),
        ("limit us", "limit", ".1f"),
        ("baseline/ours", lambda row: row.baseline / row.ours, ".2f"),
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
            "--products",
            nargs="+",
            choices=tuple(PRODUCTS),
            default=list(PRODUCTS),
            metavar="NAME",
            help=f"what is timed, of the mixtures that it is timed for: {', '.join(PRODUCTS)}",
        )
        options.add_counts(command, "--tokens", "tokens", TOKENS)

    def measure(self, arguments: argparse.Namespace, document: Document) -> Iterator[Row]:
        document["copy_rate"] = copy_rate()
        of = (arguments.mixtures, arguments.products, arguments.tokens)
        return measure(*of, document["copy_rate"])

    def read(self, fields: dict[str, Any]) -> Row:
        """A row of a file. Files without ``method`` have torch's times as ``torch``."""
        if "torch" not in fields:
            return Row(**fields)
        names = {"torch": "baseline"}
        renamed = {names.get(name, name): value for name, value in fields.items()}
        taken = renamed.pop("quartiles", {})
        renamed["quartiles"] = {names.get(name, name): value for name, value in taken.items()}
        return Row(**renamed)

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        for row in rows:
            ours, baseline = (
                deviation(getattr(row, name), row.quartiles.get(name))
                for name in ("ours", "baseline")
            )
            # Products in bfloat16 are compared on their own: a change of them moves this control.
            torch = None if row.method == OUR_BFLOAT16 else row.baseline
            noise = both(ours, baseline)
            yield Entry(row.name, row.ours, row.baseline, torch, noise, group=row.product)

    def plot(self, path: Path, document: Document, rows: Sequence[Row]) -> None:
        ratios = [(f"{row.name}: {row.method}", row.baseline / row.ours) for row in rows]
        report.write_ratios(path, self.heading(document), ratios, "time of the baseline / ours")

    def summary(self, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
        """By product: the mean and the least of the time of the baseline over ours, and of the
        limit over ours."""
        found: dict[str, dict[str, float]] = {}
        for name in dict.fromkeys(row.product for row in rows):
            of_name = [row for row in rows if row.product == name]
            ratios = [row.baseline / row.ours for row in of_name]
            shares = [row.limit / row.ours for row in of_name]
            found[name] = {
                "baseline / ours": geometric_mean(ratios),
                "least": min(ratios),
                "share of the limit": geometric_mean(shares),
                "least share": min(shares),
            }
        return found
