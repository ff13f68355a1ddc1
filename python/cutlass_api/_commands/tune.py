"""``tune``: the autotuner and its store."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cutlass_api.bench import options


def add(commands: Any) -> None:
    tune = commands.add_parser(
        "tune", help="time kernels on this machine's GPU and store the fastest"
    )
    tune.set_defaults(run=_tune)
    what = tune.add_mutually_exclusive_group(required=True)
    options.add_shapes(what)
    what.add_argument("--list", action="store_true", help="print the stored results")
    what.add_argument(
        "--export", type=options.output, metavar="FILE", help="write the stored results"
    )
    what.add_argument(
        "--import",
        dest="merge",
        type=Path,
        metavar="FILE",
        help="merge results that --export wrote into the store",
    )
    what.add_argument("--clear", action="store_true", help="remove all stored results")
    options.add_layout(tune)
    options.add_types(tune)
    tune.add_argument("--search", choices=("halving", "exhaustive"), default="halving")
    tune.add_argument(
        "--key",
        choices=("exact", "pow2"),
        default="exact",
        help="whether a result is for its extents, or for all that round up to the same powers of "
        "two",
    )
    tune.add_argument(
        "--budget",
        type=float,
        metavar="SECONDS",
        help="stop timing new kernels after SECONDS, per shape",
    )
    tune.add_argument(
        "--check",
        action="store_true",
        help="compare each kernel's output with the CPU reference before it is timed",
    )
    tune.add_argument(
        "--all-devices",
        action="store_true",
        help="share the kernels among all GPUs of the name of the first",
    )
    tune.add_argument("--json", type=options.output, metavar="FILE", help="write what was measured")


def _tune(arguments: argparse.Namespace) -> None:
    from cutlass_api import tuning
    from cutlass_api.bench import report

    measures = bool(arguments.shape or arguments.shapes)
    if arguments.json and not (measures or arguments.list):
        raise SystemExit("--json writes what --shape measures or --list prints; omit it")
    if arguments.clear:
        count = len(tuning.stored_results())
        tuning.clear()
        print(f"{count} results removed")
    elif arguments.export:
        print(f"{tuning.export_results(arguments.export)} results written to {arguments.export}")
    elif arguments.merge:
        try:
            print(tuning.import_results(arguments.merge))
        except (OSError, ValueError) as error:
            raise SystemExit(str(error)) from None
    elif arguments.list:
        results = tuning.stored_results()
        report.write_json(arguments.json, [asdict(each) for each in results])
        if not results:
            print("no results are stored; `tune --shape M,N,K` on a GPU stores some")
        cells = [(each.key, f"{1e6 * each.seconds:.2f}", each.kernel) for each in results]
        for device in dict.fromkeys(each.device for each in results):
            own = [of for of, each in zip(cells, results, strict=True) if each.device == device]
            report.print_cells(device, ("problem", "us", ""), own)
    else:
        _tune_shapes(arguments)


def _tune_shapes(arguments: argparse.Namespace) -> None:
    shapes = options.chosen_shapes(arguments)
    options.device()
    from cutlass_api.bench import report
    from cutlass_api.bench.limits import float32_precision
    from cutlass_api.bench.products import Inputs, in_type
    from cutlass_api.tuning import TuningResult, autotune

    results: list[TuningResult] = []
    try:
        for dtype in arguments.dtype:
            with float32_precision(dtype):
                for shape in in_type(shapes, dtype):
                    result = autotune(
                        Inputs(shape, dtype, sets=1).arguments()[0],
                        search=arguments.search,
                        key=arguments.key,
                        budget=arguments.budget,
                        check=arguments.check,
                        devices="all" if arguments.all_devices else None,
                    )
                    best = f"{result.microseconds:9.2f} us  {result.winner.metadata.kernel_name}"
                    print(f"{best}  {result.key}", flush=True)
                    results.append(result)
                    # After each shape, so that Ctrl-C keeps what was measured.
                    report.write_json(arguments.json, [json.loads(r.to_json()) for r in results])
    except KeyboardInterrupt:
        raise SystemExit(f"stopped: the results of {len(results)} shapes are stored") from None


__all__ = ["add"]
