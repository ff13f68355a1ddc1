"""``bench`` with ``limits``, ``latency``, ``gemm``, ``ladder``, ``llama`` and ``quantize``.

The models, which ``torch.compile`` or several GPUs run, are in :mod:`.bench_models`; what reads
results, in :mod:`.bench_results`. A new benchmark has a function that adds its parser, which `add`
calls. `bench plot`, `all` and `compare` serve it with an entry in `BENCHES`
(:mod:`cutlass_api.bench.results`), and `all` with one in `SECTIONS`
(:mod:`cutlass_api.bench.suite`).
"""

import argparse
import json
from typing import Any

from cutlass_api._commands import bench_models, bench_results, common
from cutlass_api.bench import ladder as ladder_bench
from cutlass_api.bench import llama as llama_bench
from cutlass_api.bench.gemm import table


def add(commands: Any) -> None:
    bench = commands.add_parser("bench", help="measure on this machine's GPU").add_subparsers(
        required=True, metavar="what"
    )
    _add_limits(bench)
    _add_latency(bench)
    _add_gemm(bench)
    _add_ladder(bench)
    _add_llama(bench)
    _add_quantize(bench)
    bench_models.add_compile(bench)
    bench_models.add_tensor_parallel(bench)
    bench_results.add_all(bench)
    bench_results.add_compare(bench)
    bench_results.add_plot(bench)


def _add_limits(bench: Any) -> None:
    limits = bench.add_parser("limits", help="the GPU's memory, L2 cache and arithmetic rates")
    limits.set_defaults(run=_limits)
    limits.add_argument("--json", type=common.output, metavar="FILE", help="write them as JSON")


def _add_latency(bench: Any) -> None:
    latency = bench.add_parser("latency", help="host time of one small GEMM")
    latency.set_defaults(run=_latency)
    common.add_outputs(latency)


def _add_gemm(bench: Any) -> None:
    gemm = bench.add_parser("gemm", help="GPU time of GEMMs, beside torch's")
    gemm.set_defaults(run=_gemm)
    gemm.add_argument(
        "--shapes",
        type=common.shapes,
        metavar="FILE",
        help="a table of shapes in JSON, such as benchmarks/public_shapes.json",
    )
    common.add_types(gemm)
    common.add_outputs(gemm)


def _add_ladder(bench: Any) -> None:
    ladder = bench.add_parser(
        "ladder", help="a float16 GEMM in eight steps, from basic tiling to clusters"
    )
    ladder.set_defaults(run=_ladder)
    ladder.add_argument(
        "--shape",
        type=_extents,
        default=ladder_bench.DEFAULT_EXTENTS,
        metavar="M,N,K",
        help="extents; N and K are multiples of 8 (4096,4096,4096)",
    )
    common.add_outputs(ladder)


def _extents(text: str) -> tuple[int, int, int]:
    m, n, k = common.extents(text)
    if n % 8 or k % 8:
        raise argparse.ArgumentTypeError(f"{text!r}: N and K must be multiples of 8")
    return m, n, k


def _add_llama(bench: Any) -> None:
    llama = bench.add_parser("llama", help="GPU time of 8-bit products with a Llama's weights")
    llama.set_defaults(run=_llama)
    kinds = llama_bench.KINDS
    llama.add_argument("--dtype", nargs="+", choices=kinds, default=["int8"], help="operands")
    llama.add_argument(
        "--rows",
        type=common.counts,
        default=llama_bench.ROWS,
        metavar="COUNTS",
        help="rows of the activations, separated by commas",
    )
    llama.add_argument(
        "--no-triton", action="store_true", help="do not time torch.compile with Triton's kernels"
    )
    common.add_outputs(llama)


def _add_quantize(bench: Any) -> None:
    quantized = bench.add_parser("quantize", help="bandwidth of quantization to 8 bits")
    quantized.set_defaults(run=_quantize)
    quantized.add_argument(
        "--json", type=common.output, metavar="FILE", help="write the results as JSON"
    )


def _limits(arguments: argparse.Namespace) -> None:
    device = common.device()
    import torch

    from cutlass_api.bench import gemm, limits, report

    found = limits.Limits()
    for dtype in limits.DTYPES:
        with gemm.float32_precision(dtype):
            found.product_rate(dtype)
    smi = limits.smi_facts()
    report.print_cells(f"Limits of {device}", limits.HEADER, limits.cells(found))
    for name, fact in smi.items():
        print(f"{name}: {fact}")
    if arguments.json:
        document = {"device": device, "torch": torch.__version__, **found.entries(), "smi": smi}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


def _gemm(arguments: argparse.Namespace) -> None:
    device = common.device()
    import torch

    from cutlass_api.bench import gemm, report
    from cutlass_api.bench.limits import Limits

    limits, rows = Limits(), []

    def show(row: gemm.Row) -> None:
        print("  ".join(gemm.line(row)), flush=True)
        rows.append(row)
        # After each row, so that a time limit costs the unfinished row only.
        if arguments.json:
            context = {"device": device, "torch": torch.__version__, "limits": limits.entries()}
            gemm.write_json(arguments.json, context, rows)

    gemm.measure(arguments.shapes or table(None), arguments.dtype, show, limits)
    means = gemm.geometric_means(rows)
    report.print_cells(f"{gemm.TITLE} ({device})", gemm.HEADER, [gemm.line(row) for row in rows])
    for name, value in means.items():
        print(f"{name}: {value:.3f}")
    if arguments.plot:
        gemm.write_plot(arguments.plot, f"{gemm.TITLE} ({device})", rows)


def _ladder(arguments: argparse.Namespace) -> None:
    device = common.device()
    import torch

    from cutlass_api.bench import limits, report

    extents, rates = arguments.shape, limits.peak_rates()
    rows = ladder_bench.measure(extents)
    title = f"{ladder_bench.TITLE}, {ladder_bench.shown(extents)} ({device})"
    report.print_cells(title, ladder_bench.HEADER, [ladder_bench.line(row) for row in rows])
    timed = {row.name for row in rows}
    missing = [step.name for step in ladder_bench.STEPS if step.name not in timed]
    if missing:
        print(f"not timed: {', '.join(missing)}, which need compute capability 9.0")
    if arguments.json:
        context = {"device": device, "torch": torch.__version__, "mnk": extents, "rates": rates}
        ladder_bench.write_json(arguments.json, context, rows)
    if arguments.plot:
        title = f"{ladder_bench.TITLE} ({device})"
        ladder_bench.write_plot(arguments.plot, title, extents, rates, rows)


def _llama(arguments: argparse.Namespace) -> None:
    device = common.device()
    import torch

    from cutlass_api.bench import report

    rows: list[llama_bench.Row] = []

    def show(row: llama_bench.Row) -> None:
        header, (cells,) = llama_bench.table([row])
        named = zip(header, cells, strict=True)
        print("  ".join(f"{name} {cell}".strip() for name, cell in named if cell), flush=True)
        rows.append(row)
        # After each row, so that a time limit costs the unfinished row only.
        if arguments.json:
            context = {"device": device, "torch": torch.__version__}
            llama_bench.write_json(arguments.json, context, rows)

    def skip(reason: str) -> None:
        print(reason, flush=True)

    llama_bench.measure(
        arguments.dtype, arguments.rows, show, skip, with_triton=not arguments.no_triton
    )
    report.print_cells(f"{llama_bench.TITLE} ({device})", *llama_bench.table(rows))
    for kind, values in llama_bench.summary(rows).items():
        print(f"{kind}: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items()))
    if arguments.plot:
        llama_bench.write_plot(arguments.plot, f"{llama_bench.TITLE} ({device})", rows)


def _quantize(arguments: argparse.Namespace) -> None:
    device = common.device()
    import torch

    from cutlass_api.bench import quantize, report

    def show(row: quantize.Row) -> None:
        print("  ".join(quantize.line(row)), flush=True)

    rate, rows = quantize.measure(show)
    title = f"{quantize.TITLE} ({device}), where a copy moves {1e-12 * rate:.2f} TB/s"
    report.print_cells(title, quantize.HEADER, [quantize.line(row) for row in rows])
    if arguments.json:
        context = {"device": device, "torch": torch.__version__}
        quantize.write_json(arguments.json, context, rate, rows)


def _latency(arguments: argparse.Namespace) -> None:
    device = common.device()
    import torch

    from cutlass_api.bench import latency, report

    rows = latency.measure()
    report.print_table(f"{latency.TITLE} ({device})", rows, latency.RATIO)
    if arguments.json:
        context = {
            "device": device,
            "torch": torch.__version__,
            "extent": latency.EXTENT,
            "dtype": "float16",
        }
        report.write_json(arguments.json, context, rows)
    if arguments.plot:
        report.write_bars(arguments.plot, f"{latency.TITLE} ({device})", rows)


__all__ = ["add"]
