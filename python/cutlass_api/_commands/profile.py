"""``profile``: what limits a kernel, by Nsight Compute's counters."""

import argparse
from dataclasses import asdict
from typing import Any

from cutlass_api.bench import options


def add(commands: Any) -> None:
    profile = commands.add_parser(
        "profile", help="what limits a kernel: counters of a GEMM by Nsight Compute (ncu)"
    )
    profile.set_defaults(run=_profile)
    options.add_shape(profile)
    options.add_types(profile, several=False)
    profile.add_argument(
        "--kernel",
        default="",
        metavar="TEXT",
        help="the first kernel of the ranking whose name contains TEXT; any",
    )
    profile.add_argument(
        "--json", type=options.output, metavar="FILE", help="write all counters as JSON"
    )


def _profile(arguments: argparse.Namespace) -> None:
    from cutlass_api.bench import counters, limits, report

    device = options.device()
    m, n, k = arguments.shape
    layout = arguments.layout or "tt"
    product = counters.Product(m, n, k, layout, arguments.dtype, arguments.kernel)
    try:
        measured = counters.measure(product)
    except RuntimeError as error:
        raise SystemExit(str(error)) from None
    rates, rows = limits.peak_rates(), []
    for one in measured:
        # The GEMM alone multiplies. Other kernels of a run pack operands or add partial sums.
        is_gemm = "gemm" in one.name
        share = one.share_of_peak(product.flop, product.dtype, rates) if is_gemm else None
        report.print_cells(f"{one.name} ({device})", counters.HEADER, counters.cells(one, share))
        rows.append({**asdict(one), "share_of_peak": share})
    document = {"device": device, "product": asdict(product), "kernels": rows}
    report.write_json(arguments.json, document)


__all__ = ["add"]
