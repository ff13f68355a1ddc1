"""``python -m cutlass_api bench latency``: what this package does, measured on this machine."""

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cutlass_api", description="Benchmarks of cutlass_api (rutlass).")
    commands = parser.add_subparsers(required=True, metavar="command")
    bench = commands.add_parser("bench", help="measure on this machine's GPU").add_subparsers(
        required=True, metavar="what"
    )
    latency = bench.add_parser("latency", help="what the host spends around one small GEMM")
    latency.set_defaults(run=_latency)
    latency.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as JSON")
    latency.add_argument("--plot", type=Path, metavar="FILE", help="draw them there as bars (needs matplotlib)")
    arguments = parser.parse_args()
    arguments.run(arguments)


def _latency(arguments: argparse.Namespace) -> None:
    try:
        import torch
    except ImportError:
        raise SystemExit("this benchmark needs torch: pip install torch") from None
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU, and torch sees none")
    from cutlass_api.bench import latency, report

    rows = latency.measure()
    device = torch.cuda.get_device_name()
    extent = latency.EXTENT
    report.print_table(f"One float16 GEMM of {extent} cubed on {device}: host time", rows, "x floor")
    if arguments.json:
        context = {"device": device, "torch": torch.__version__, "extent": extent, "dtype": "float16"}
        report.write_json(arguments.json, context, rows)
    if arguments.plot:
        report.write_bars(arguments.plot, f"Host time around one GEMM of {extent} cubed ({device})", rows)


if __name__ == "__main__":
    main()
