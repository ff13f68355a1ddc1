"""Benchmarks: ``python -m cutlass_api bench latency``, ``bench gemm`` and ``bench plot``."""

import argparse
import os
from importlib.util import find_spec
from pathlib import Path

from cutlass_api.bench.gemm import Shape, table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cutlass_api", description="Benchmarks of cutlass_api (rutlass)."
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    bench = commands.add_parser("bench", help="measure on this machine's GPU").add_subparsers(
        required=True, metavar="what"
    )
    latency = bench.add_parser("latency", help="what the host spends around one small GEMM")
    latency.set_defaults(run=_latency)
    latency.add_argument(
        "--json", type=_output, metavar="FILE", help="write the rows there as JSON"
    )
    latency.add_argument(
        "--plot", type=_plot, metavar="FILE", help="draw them there as bars (needs matplotlib)"
    )
    gemm = bench.add_parser("gemm", help="GEMMs on the GPU beside torch's")
    gemm.set_defaults(run=_gemm)
    gemm.add_argument(
        "--shapes",
        type=_shapes,
        metavar="FILE",
        help="a table of shapes: JSON, groups with layout and mnk",
    )
    types = ("float16", "bfloat16", "tf32", "float32")
    gemm.add_argument(
        "--dtype", nargs="+", choices=types, default=["float16"], help="of A, B and the output"
    )
    gemm.add_argument("--json", type=_output, metavar="FILE", help="write the rows there as JSON")
    gemm.add_argument(
        "--plot",
        type=_plot,
        metavar="FILE",
        help="draw torch's time over ours there (needs matplotlib)",
    )
    arguments = parser.parse_args()
    arguments.run(arguments)


# The types of options: argparse refuses, before anything is measured, what would fail when all is.
def _output(name: str) -> Path:
    path = Path(name)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent}; make it first")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{path} cannot be written; name a file in a folder that can be"
        )
    return path


def _plot(name: str) -> Path:
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(
            "a plot needs matplotlib: pip install matplotlib (or rutlass[bench])"
        )
    return _output(name)


def _shapes(name: str) -> list[Shape]:
    try:
        return table(Path(name))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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

    rows = gemm.measure(arguments.shapes or table(None), arguments.dtype, show)
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
    report.print_table(
        f"One float16 GEMM of {extent} cubed on {device}: host time", rows, "x floor"
    )
    if arguments.json:
        context = {
            "device": device,
            "torch": torch.__version__,
            "extent": extent,
            "dtype": "float16",
        }
        report.write_json(arguments.json, context, rows)
    if arguments.plot:
        report.write_bars(
            arguments.plot, f"Host time around one GEMM of {extent} cubed ({device})", rows
        )


if __name__ == "__main__":
    main()
