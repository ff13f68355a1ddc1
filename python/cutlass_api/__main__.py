"""``python -m cutlass_api bench latency`` and ``bench gemm``: what this package does, measured on this machine."""

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
    gemm = bench.add_parser("gemm", help="GEMMs on the GPU beside torch's")
    gemm.set_defaults(run=_gemm)
    gemm.add_argument("--shapes", type=Path, metavar="FILE", help="a table of shapes: JSON, groups with layout and mnk")
    types = ("float16", "bfloat16", "tf32", "float32")
    gemm.add_argument("--dtype", nargs="+", choices=types, default=["float16"], help="of A, B and the output")
    gemm.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as JSON")
    gemm.add_argument("--plot", type=Path, metavar="FILE", help="draw torch's time over ours there (needs matplotlib)")
    arguments = parser.parse_args()
    arguments.run(arguments)


def _device() -> str:
    """The GPU's name. Ends the program where there is nothing to measure on."""
    try:
        import torch
    except ImportError:
        raise SystemExit("this benchmark needs torch: pip install torch") from None
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU, and torch sees none")
    return str(torch.cuda.get_device_name())


def _gemm(arguments: argparse.Namespace) -> None:
    device = _device()
    import torch

    from cutlass_api.bench import gemm, report

    def show(row: gemm.Row) -> None:
        print("  ".join(gemm.line(row)), flush=True)

    rows = gemm.measure(gemm.table(arguments.shapes), arguments.dtype, show)
    means = gemm.geometric_means(rows)
    report.print_cells(f"GEMM on {device}", gemm.HEADER, [gemm.line(row) for row in rows])
    for name, value in means.items():
        print(f"{name}: {value:.3f}")
    if arguments.json:
        gemm.write_json(arguments.json, {"device": device, "torch": torch.__version__}, rows)
    if arguments.plot:
        gemm.write_plot(arguments.plot, f"GEMM beside torch ({device})", rows)


def _latency(arguments: argparse.Namespace) -> None:
    device = _device()
    import torch

    from cutlass_api.bench import latency, report

    rows = latency.measure()
    extent = latency.EXTENT
    report.print_table(f"One float16 GEMM of {extent} cubed on {device}: host time", rows, "x floor")
    if arguments.json:
        context = {"device": device, "torch": torch.__version__, "extent": extent, "dtype": "float16"}
        report.write_json(arguments.json, context, rows)
    if arguments.plot:
        report.write_bars(arguments.plot, f"Host time around one GEMM of {extent} cubed ({device})", rows)


if __name__ == "__main__":
    main()
