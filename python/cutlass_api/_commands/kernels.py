"""``kernels`` and ``explain``: the kernels of this package, and which of them serve a product."""

import argparse
from collections import Counter
from typing import Any

from cutlass_api import _core, inspection
from cutlass_api._tables import ROWS
from cutlass_api.bench import options, report


def add(commands: Any) -> None:
    kernels = commands.add_parser("kernels", help="count and list the kernels of this package")
    kernels.set_defaults(run=_kernels)
    kernels.add_argument(
        "patterns",
        nargs="*",
        metavar="PATTERN",
        help="what a name must contain, such as sm90, f16xf16 or 128x*pingpong",
    )
    kernels.add_argument(
        "--page",
        type=options.positive,
        default=1,
        metavar="NUMBER",
        help=f"which {ROWS} of them to print (1)",
    )
    kernels.add_argument(
        "--json", type=options.output, metavar="FILE", help="write the whole list as JSON"
    )
    explain = commands.add_parser(
        "explain", help="which kernels serve a product, why the others do not, and the ranking"
    )
    explain.set_defaults(run=_explain)
    options.add_shape(explain)
    options.add_types(explain, several=False)
    for command, default in ((kernels, "any"), (explain, "that of the GPU")):
        command.add_argument(
            "--cc",
            type=options.positive,
            metavar="NUMBER",
            help=f"for this compute capability: 90 for an H100 ({default})",
        )


def _kernels(arguments: argparse.Namespace) -> None:
    kernels = inspection.matching_kernels(arguments.patterns, arguments.cc)
    cells = [inspection.kernel_cells(kernel) for kernel in kernels]
    rows = [dict(zip(inspection.HEADER, line, strict=True)) for line in cells]
    report.write_json(arguments.json, rows)
    if not kernels:
        raise SystemExit(_nothing(arguments.patterns, arguments.cc))
    pages = -(-len(cells) // ROWS)
    if arguments.page > pages:
        raise SystemExit(f"--page is {arguments.page}; {len(cells)} kernels have {pages} pages")
    counts = Counter(row["family"] for row in rows)
    families = ", ".join(f"{count} {family}" for family, count in counts.items())
    begin = ROWS * (arguments.page - 1)
    shown = cells[begin : begin + ROWS]
    report.print_cells(f"{len(cells)} kernels: {families}", inspection.HEADER, shown)
    if pages > 1:
        print(
            f"page {arguments.page} of {pages}: --page prints another, more patterns list fewer, "
            "--json FILE writes all"
        )


def _nothing(patterns: list[str], cc: int | None) -> str:
    """Why no kernel is listed."""
    if cc is not None and not inspection.matching_kernels([], cc):
        supported = (kernel.metadata.min_cc for kernel in inspection.matching_kernels([]))
        least = min(filter(None, supported))  # 0: on the CPU
        return f"no kernel is for --cc {cc}; pass {least} or more, such as 90 for an H100"
    unknown = [pattern for pattern in patterns if not inspection.matching_kernels([pattern], cc)]
    wanted = " and ".join(map(repr, unknown or patterns))
    of_cc = f" for --cc {cc}" if cc is not None else ""
    return (
        f"no kernel{of_cc} has {wanted} in its name; `python -m cutlass_api kernels` lists names, "
        "such as sm90_gemm_f16xf16_..."
    )


def _explain(arguments: argparse.Namespace) -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise SystemExit("explain needs torch: pip install torch") from None
    from cutlass_api.bench.limits import float32_precision
    from cutlass_api.bench.products import fake_arguments

    cc = arguments.cc or _cc_of_gpu()
    args = fake_arguments(options.own_shape(arguments.shape, arguments.layout), arguments.dtype)
    with float32_precision(arguments.dtype):
        print(_core.explanation(args, cc))


def _cc_of_gpu() -> int:
    try:
        return _core.device_facts(0)[1]
    except RuntimeError as error:
        raise SystemExit(f"no GPU to explain for ({error}); pass --cc, 90 for an H100") from None


__all__ = ["add"]
