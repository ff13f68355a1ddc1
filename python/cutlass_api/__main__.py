"""Benchmarks: ``python -m cutlass_api bench latency``, ``bench gemm`` and ``bench plot``."""

import argparse
import json
import os
from functools import partial
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
    latency = bench.add_parser("latency", help="host time of one small GEMM")
    latency.set_defaults(run=_latency)
    latency.add_argument("--json", type=_output, metavar="FILE", help="write the results as JSON")
    latency.add_argument("--plot", type=_plot, metavar="FILE", help="plot the results (matplotlib)")
    gemm = bench.add_parser("gemm", help="GPU time of GEMMs, beside torch's")
    gemm.set_defaults(run=_gemm)
    gemm.add_argument(
        "--shapes",
        type=_shapes,
        metavar="FILE",
        help="a table of shapes in JSON, such as benchmarks/public_shapes.json",
    )
    types = ("float16", "bfloat16", "tf32", "float32")
    gemm.add_argument(
        "--dtype", nargs="+", choices=types, default=["float16"], help="type of A, B and the output"
    )
    gemm.add_argument("--json", type=_output, metavar="FILE", help="write the results as JSON")
    gemm.add_argument("--plot", type=_plot, metavar="FILE", help="plot the results (matplotlib)")
    plot = bench.add_parser("plot", help="plot results that --json wrote; needs no GPU")
    plot.set_defaults(run=_replot)
    plot.add_argument("results", type=Path, help="a JSON file of `latency` or `gemm`")
    plot.add_argument("plot", type=_plot, help="the image to write")
    arguments = parser.parse_args()
    arguments.run(arguments)


# Types of options: argparse refuses an unusable path before the benchmark runs.
def _output(name: str) -> Path:
    path = Path(name)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist; create it")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{path} is not writable; choose a file in a writable folder"
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
    """The name of the GPU. Exits without torch or a GPU."""
    try:
        import torch
    except ImportError:
        raise SystemExit("this benchmark needs torch: pip install torch") from None
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU, but torch finds none")
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
        gemm.write_plot(arguments.plot, _gemm_title(device), rows)


def _gemm_title(device: str) -> str:
    return f"GEMM time of torch over Rutlass ({device})"


def _latency_title(device: str, extent: int) -> str:
    return f"Host time of one float16 GEMM, {extent} cubed ({device})"


def _latency(arguments: argparse.Namespace) -> None:
    device = _device()
    import torch

    from cutlass_api.bench import latency, report

    rows = latency.measure()
    extent = latency.EXTENT
    report.print_table(_latency_title(device, extent), rows, "x floor")
    if arguments.json:
        context = {
            "device": device,
            "torch": torch.__version__,
            "extent": extent,
            "dtype": "float16",
        }
        report.write_json(arguments.json, context, rows)
    if arguments.plot:
        report.write_bars(arguments.plot, _latency_title(device, extent), rows)


def _replot(arguments: argparse.Namespace) -> None:
    from cutlass_api.bench import gemm, report

    path = arguments.results
    try:
        read = json.loads(path.read_text())
        device, rows = read["device"], read["rows"]
        if "extent" in read:
            title = _latency_title(device, read["extent"])
            draw = partial(report.write_bars, rows=[report.Row(**row) for row in rows])
        else:
            title = _gemm_title(device)
            draw = partial(gemm.write_plot, rows=[gemm.Row(**row) for row in rows])
    except (OSError, ValueError, KeyError, TypeError) as error:
        message = f"{path} holds no results of `bench latency` or `bench gemm`: {error!r}"
        raise SystemExit(message) from None
    draw(arguments.plot, title)


if __name__ == "__main__":
    main()
