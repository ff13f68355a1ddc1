"""``bench``: the benchmarks, the limits of the GPU, and plots of results."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutlass_api.bench import options, report, results
from cutlass_api.bench.base import Bench


def add(commands: Any) -> None:
    bench = commands.add_parser("bench", help="measure on this machine's GPU").add_subparsers(
        required=True, metavar="what"
    )
    limits = bench.add_parser("limits", help="the GPU's memory, L2 cache and arithmetic rates")
    limits.set_defaults(run=_limits)
    limits.add_argument("--json", type=options.output, metavar="FILE", help="write them as JSON")
    for each in results.BENCHES:
        each.add(bench)
    add_plot(bench, results.BENCHES)


def add_plot(commands: Any, benches: Sequence[Bench[Any]]) -> None:
    """Adds ``plot``, for results of these benchmarks."""

    def run(arguments: argparse.Namespace) -> None:
        try:
            found = results.parse(results.load(arguments.results), benches)
        except ValueError as error:
            raise SystemExit(f"{arguments.results}: {error}") from None
        found.plot(arguments.plot)

    plot = commands.add_parser("plot", help="plot results that --json wrote; needs no GPU")
    plot.set_defaults(run=run)
    plot.add_argument("results", type=Path, help="a JSON file of a benchmark")
    plot.add_argument("plot", type=options.plot, help="the image to write")


def _limits(arguments: argparse.Namespace) -> None:
    device = options.device()
    import torch

    from cutlass_api.bench import limits

    found = limits.Limits()
    for dtype in limits.DTYPES:
        found.product_rate(dtype)
    smi = limits.smi_facts()
    report.print_cells(f"Limits of {device}", limits.HEADER, limits.cells(found))
    for name, fact in smi.items():
        print(f"{name}: {fact}")
    document = {"device": device, "torch": torch.__version__, **found.entries(), "smi": smi}
    report.write_json(arguments.json, document)


__all__ = ["add", "add_plot"]
