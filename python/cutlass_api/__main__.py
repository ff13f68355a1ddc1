"""``python -m cutlass_api env``: what a bug report needs. ``kernels``: the kernels of this package.
``bench`` with ``latency``, ``gemm``, ``ladder``, ``llama``, ``quantize``, ``compile``,
``tensor_parallel`` and ``plot``: benchmarks. ``tune``: the autotuner and its store."""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cutlass_api import _core, inspection
from cutlass_api.bench import compile as compile_bench
from cutlass_api.bench import ladder as ladder_bench
from cutlass_api.bench import llama as llama_bench
from cutlass_api.bench import tensor_parallel as parallel_bench
from cutlass_api.bench.gemm import Shape, table


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cutlass_api", description="Tools of cutlass_api (rutlass)."
    )
    parser.add_argument("--version", action="version", version=f"rutlass {_core.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    env = commands.add_parser("env", help="print what a bug report needs: versions, GPUs, caches")
    env.set_defaults(run=_env)
    cache = commands.add_parser("cache", help="print or reduce the cache of compiled programs")
    cache.set_defaults(run=_cache)
    reduce = cache.add_mutually_exclusive_group()
    reduce.add_argument("--clear", action="store_true", help="remove all programs")
    reduce.add_argument(
        "--limit",
        type=int,
        metavar="MIB",
        help="remove the programs that were used longest ago, until MIB mebibytes are left",
    )
    cache.add_argument("--json", type=_output, metavar="FILE", help="write the numbers as JSON")
    env.add_argument("--json", type=_output, metavar="FILE", help="write it as JSON")
    kernels = commands.add_parser("kernels", help="list the kernels of this package")
    kernels.set_defaults(run=_kernels)
    kernels.add_argument(
        "patterns",
        nargs="*",
        metavar="PATTERN",
        help="what a name must contain, such as sm90, f16xf16 or 128x*pingpong",
    )
    kernels.add_argument("--cc", type=_positive, help="for this compute capability: 90 for an H100")
    kernels.add_argument("--json", type=_output, metavar="FILE", help="write the list as JSON")
    bench = commands.add_parser("bench", help="measure on this machine's GPU").add_subparsers(
        required=True, metavar="what"
    )
    latency = bench.add_parser("latency", help="host time of one small GEMM")
    latency.set_defaults(run=_latency)
    _add_outputs(latency)
    gemm = bench.add_parser("gemm", help="GPU time of GEMMs, beside torch's")
    gemm.set_defaults(run=_gemm)
    gemm.add_argument(
        "--shapes",
        type=_shapes,
        metavar="FILE",
        help="a table of shapes in JSON, such as benchmarks/public_shapes.json",
    )
    _add_types(gemm)
    _add_outputs(gemm)
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
    _add_outputs(ladder)
    llama = bench.add_parser("llama", help="GPU time of 8-bit products with a Llama's weights")
    llama.set_defaults(run=_llama)
    kinds = llama_bench.KINDS
    llama.add_argument("--dtype", nargs="+", choices=kinds, default=["int8"], help="operands")
    llama.add_argument(
        "--rows",
        type=_tokens,
        default=llama_bench.ROWS,
        metavar="COUNTS",
        help="rows of the activations, separated by commas",
    )
    llama.add_argument(
        "--no-triton", action="store_true", help="do not time torch.compile with Triton's kernels"
    )
    _add_outputs(llama)
    quantized = bench.add_parser("quantize", help="bandwidth of quantization to 8 bits")
    quantized.set_defaults(run=_quantize)
    quantized.add_argument("--json", type=_output, metavar="FILE", help="write the results as JSON")
    compiled = bench.add_parser("compile", help="time of compiled models, beside torch's choices")
    compiled.set_defaults(run=_compile)
    compiled.add_argument(
        "--models",
        type=_models,
        default=compile_bench.MODELS,
        metavar="NAMES",
        help=f"models, separated by commas ({','.join(compile_bench.MODELS)})",
    )
    compiled.add_argument(
        "--tokens", type=_tokens, metavar="COUNTS", help="numbers of tokens, separated by commas"
    )
    blocks, few = compile_bench.BLOCKS, compile_bench.QUICK_BLOCKS
    compiled.add_argument(
        "--blocks",
        type=_positive,
        metavar="COUNT",
        help=f"blocks of an MLP ({blocks}, with --quick {few})",
    )
    compiled.add_argument(
        "--quick", action="store_true", help="fewer blocks, and torch's choice is compiled once"
    )
    compiled.add_argument(
        "--cache",
        type=_folder,
        metavar="DIR",
        help="keep compiled code between runs, for development: compile times mean nothing",
    )
    compiled.add_argument(
        "--baseline-json",
        type=_baseline,
        default={},
        metavar="FILE",
        help="take torch's times from an earlier run, for development: results compare two runs",
    )
    compiled.add_argument(
        "--code", type=_folder, metavar="DIR", help="write the generated code of each method"
    )
    compiled.add_argument("--json", type=_output, metavar="FILE", help="write the results as JSON")
    parallel = bench.add_parser(
        "tensor_parallel", help="time of an MLP whose weights are split between GPUs"
    )
    parallel.set_defaults(run=_tensor_parallel)
    parallel.add_argument("--ranks", type=_positive, default=2, help="GPUs, one a process (2)")
    parallel.add_argument(
        "--tokens",
        type=_tokens,
        default=parallel_bench.TOKENS,
        metavar="COUNTS",
        help="numbers of tokens, separated by commas",
    )
    parallel.add_argument(
        "--extents",
        type=_tokens,
        default=parallel_bench.EXTENTS,
        metavar="HIDDEN,INTERMEDIATE",
        help="extents of the MLP",
    )
    parallel.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu: gloo and the reference, to test this benchmark",
    )
    parallel.add_argument("--rounds", type=_positive, default=parallel_bench.ROUNDS)
    parallel.add_argument("--json", type=_output, metavar="FILE", help="write the results as JSON")
    plot = bench.add_parser("plot", help="plot results that --json wrote; needs no GPU")
    plot.set_defaults(run=_replot)
    plot.add_argument(
        "results", type=Path, help="a JSON file of `latency`, `gemm`, `ladder` or `llama`"
    )
    plot.add_argument("plot", type=_plot, help="the image to write")
    _add_tune(commands)
    arguments = parser.parse_args()
    arguments.run(arguments)


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune", help="time kernels on this machine's GPU and store the fastest"
    )
    tune.set_defaults(run=_tune)
    what = tune.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--shapes",
        type=_shapes,
        metavar="FILE",
        help="tune a table of shapes in JSON, such as benchmarks/public_shapes.json",
    )
    what.add_argument("--list", action="store_true", help="print the stored results")
    what.add_argument("--export", type=_output, metavar="FILE", help="write the stored results")
    what.add_argument(
        "--import",
        dest="merge",
        type=Path,
        metavar="FILE",
        help="merge results that --export wrote into the store",
    )
    what.add_argument("--clear", action="store_true", help="remove all stored results")
    _add_types(tune)
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
    tune.add_argument("--json", type=_output, metavar="FILE", help="write what was measured")


def _add_types(command: argparse.ArgumentParser) -> None:
    types = ("float16", "bfloat16", "tf32", "float32", "float64")
    command.add_argument(
        "--dtype",
        nargs="+",
        type=_dtype,
        choices=types,
        default=["float16"],
        help="type of A, B and the output",
    )


def _add_outputs(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument("--json", type=_output, metavar="FILE", help="write the results as JSON")
    benchmark.add_argument(
        "--plot", type=_plot, metavar="FILE", help="plot the results (matplotlib)"
    )


def _dtype(name: str) -> str:
    """The full name of a dtype; other names as they are."""
    try:
        return str(_core.DType(name))
    except TypeError:
        return name


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


def _folder(name: str) -> Path:
    path = Path(name)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} is not a folder: {error.strerror}") from None
    return path.absolute()


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a positive integer")
    return int(text)


def _tokens(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _extents(text: str) -> tuple[int, int, int]:
    extents = _tokens(text)
    if len(extents) != 3 or extents[1] % 8 or extents[2] % 8:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be M,N,K, where N and K are multiples of 8"
        )
    return extents[0], extents[1], extents[2]


def _models(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in compile_bench.MODELS:
            known = ", ".join(compile_bench.MODELS)
            raise argparse.ArgumentTypeError(f"there is no model {name!r}; choose from {known}")
    return names


def _baseline(name: str) -> dict[compile_bench.Case, compile_bench.Row]:
    try:
        return compile_bench.read_rows(Path(name))
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


def _cache(arguments: argparse.Namespace) -> None:
    folder = _core.cache_directory()
    if folder is None:
        raise SystemExit("programs are not cached: this system has no folder for caches")
    if arguments.limit is not None and arguments.limit < 0:
        raise SystemExit(f"--limit is {arguments.limit}; it must be at least 0")
    try:
        limit = _core.cache_limit()
    except ValueError as error:
        raise SystemExit(str(error)) from None
    numbers: dict[str, Any] = {"folder": str(folder), "limit": limit}
    if arguments.clear or arguments.limit is not None:
        numbers["removed"], freed = _core.trim_cache((arguments.limit or 0) << 20)
        print(f"removed {numbers['removed']} files, {freed / 2**20:.1f} MiB")
    numbers["files"], numbers["bytes"] = _core.cache_usage()
    print(f"{folder}: {numbers['files']} files, {numbers['bytes'] / 2**20:.1f} MiB")
    print(f"limit: {limit >> 20} MiB (CUTLASS_API_CACHE_LIMIT)")
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=1) + "\n")


def _env(arguments: argparse.Namespace) -> None:
    facts = inspection.environment()
    for name, fact in facts.items():
        print(f"{name}: {fact}")
    if arguments.json:
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


def _kernels(arguments: argparse.Namespace) -> None:
    from cutlass_api.bench import report

    kernels = inspection.matching_kernels(arguments.patterns, arguments.cc)
    cells = [inspection.kernel_cells(kernel) for kernel in kernels]
    report.print_cells(f"{len(kernels)} kernels", inspection.HEADER, cells)
    if arguments.json:
        rows = [dict(zip(inspection.HEADER, line, strict=True)) for line in cells]
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


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


def _ladder(arguments: argparse.Namespace) -> None:
    device = _device()
    import torch

    from cutlass_api.bench import report

    rows = ladder_bench.measure(arguments.shape)
    title = _ladder_title(device, arguments.shape)
    report.print_cells(title, ladder_bench.HEADER, [ladder_bench.line(row) for row in rows])
    timed = {row.name for row in rows}
    missing = [step.name for step in ladder_bench.STEPS if step.name not in timed]
    if missing:
        print(f"not timed: {', '.join(missing)}, which need compute capability 9.0")
    rates = ladder_bench.chip_rates()
    if arguments.json:
        context = {"device": device, "torch": torch.__version__, "mnk": arguments.shape}
        ladder_bench.write_json(arguments.json, {**context, "rates": rates}, rows)
    if arguments.plot:
        ladder_bench.write_plot(arguments.plot, title, rates, rows)


def _ladder_title(device: str, extents: Sequence[int]) -> str:
    return f"The ladder: {'x'.join(map(str, extents))} in float16 on {device}"


def _llama_title(device: str) -> str:
    return f"8-bit products with the weights of a Llama ({device})"


def _llama(arguments: argparse.Namespace) -> None:
    device = _device()
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
    report.print_cells(_llama_title(device), *llama_bench.table(rows))
    for kind, values in llama_bench.summary(rows).items():
        print(f"{kind}: " + ", ".join(f"{name} {value:.3f}" for name, value in values.items()))
    if arguments.plot:
        llama_bench.write_plot(arguments.plot, _llama_title(device), rows)


def _quantize(arguments: argparse.Namespace) -> None:
    device = _device()
    import torch

    from cutlass_api.bench import quantize, report

    def show(row: quantize.Row) -> None:
        print("  ".join(quantize.line(row)), flush=True)

    rate, rows = quantize.measure(show)
    title = f"Quantization on {device}, where a copy moves {1e-12 * rate:.2f} TB/s"
    report.print_cells(title, quantize.HEADER, [quantize.line(row) for row in rows])
    if arguments.json:
        context = {"device": device, "torch": torch.__version__}
        quantize.write_json(arguments.json, context, rate, rows)


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


def _compile(arguments: argparse.Namespace) -> None:
    device = _device()
    import torch

    from cutlass_api.bench import report

    begin = time.perf_counter()
    rows: list[compile_bench.Row] = []
    context = {
        "device": device,
        "torch": torch.__version__,
        **{
            name: inspection.package_version(name) for name in ("rutlass", "triton", "transformers")
        },
        "development": bool(arguments.quick or arguments.cache or arguments.baseline_json),
    }

    def log(text: str) -> None:
        print(f"[{time.perf_counter() - begin:6.1f} s] {text}", flush=True)

    def show(row: compile_bench.Row) -> None:
        rows.append(row)
        log("  ".join(cell for cell in compile_bench.line(row) if cell))
        # After each row, so that a time limit costs the unfinished row only.
        if arguments.json:
            compile_bench.write_json(arguments.json, context, rows)

    options = compile_bench.Options(
        rounds=compile_bench.QUICK_ROUNDS if arguments.quick else compile_bench.ROUNDS,
        repeat_torch=not arguments.quick,
        cache=arguments.cache,
        baseline=arguments.baseline_json,
        code=arguments.code,
    )
    blocks = compile_bench.QUICK_BLOCKS if arguments.quick else compile_bench.BLOCKS
    cases = compile_bench.cases(arguments.models, arguments.tokens, arguments.blocks or blocks)
    compile_bench.measure(cases, options, show, log)
    title = f"Compiled models on {device}: microseconds of one block"
    cells = [compile_bench.line(row) for row in rows]
    report.print_cells(title, compile_bench.HEADER, cells)
    for model, values in compile_bench.means(rows).items():
        print(f"{model}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
    for row in rows:
        for method, failure in row.failures.items():
            print(f"{row.name}: {method} failed: {failure}")
        for note in row.notes:
            print(f"{row.name}: {note}")
    if any(row.failures for row in rows):
        raise SystemExit(1)


def _tensor_parallel(arguments: argparse.Namespace) -> None:
    device = "the CPU" if arguments.device == "cpu" else _device()
    import torch

    from cutlass_api.bench import report

    ranks = arguments.ranks
    if arguments.device == "cuda" and torch.cuda.device_count() < ranks:
        found = torch.cuda.device_count()
        raise SystemExit(f"{ranks} ranks need as many GPUs, but torch finds {found}: --ranks")
    extents = tuple(arguments.extents)
    if len(extents) != 2 or extents[1] % ranks:
        raise SystemExit(
            f"--extents is {','.join(map(str, extents))}; pass two, the second a multiple of "
            f"{ranks} ranks"
        )
    rows = parallel_bench.measure(
        ranks, arguments.device, extents, arguments.tokens, arguments.rounds
    )
    title = f"MLP {extents[0]} x {extents[1]} in bfloat16, {ranks} ranks ({device})"
    report.print_cells(title, parallel_bench.HEADER, [parallel_bench.line(row) for row in rows])
    for name, value in parallel_bench.summary(rows).items():
        print(f"{name}: {value:.3f}")
    if arguments.json:
        context = {"device": device, "ranks": ranks, "torch": torch.__version__}
        parallel_bench.write_json(arguments.json, context, rows)


def _tune(arguments: argparse.Namespace) -> None:
    from cutlass_api import tuning
    from cutlass_api.bench import report

    if arguments.json and not (arguments.shapes or arguments.list):
        raise SystemExit("--json writes what --shapes measures or --list prints; omit it")
    if arguments.clear:
        tuning.clear()
    elif arguments.export:
        print(f"{tuning.export_results(arguments.export)} results written to {arguments.export}")
    elif arguments.merge:
        try:
            print(tuning.import_results(arguments.merge))
        except (OSError, ValueError) as error:
            raise SystemExit(str(error)) from None
    elif arguments.list:
        results = tuning.stored_results()
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(each) for each in results], indent=1))
        cells = [(each.key, f"{1e6 * each.seconds:.2f}", each.kernel) for each in results]
        for device in dict.fromkeys(each.device for each in results):
            own = [of for of, each in zip(cells, results, strict=True) if each.device == device]
            report.print_cells(device, ("problem", "us", ""), own)
    else:
        _tune_shapes(arguments)


def _tune_shapes(arguments: argparse.Namespace) -> None:
    _device()
    from cutlass_api.tuning import TuningResult
    from cutlass_api.tuning._shapes import tune_shapes

    results: list[TuningResult] = []

    def show(result: TuningResult) -> None:
        best = f"{result.microseconds:9.2f} us  {result.winner.metadata.kernel_name}"
        print(f"{best}  {result.key}", flush=True)
        results.append(result)
        # After each shape, so that Ctrl-C keeps what was measured.
        if arguments.json:
            arguments.json.write_text(json.dumps([json.loads(each.to_json()) for each in results]))

    try:
        tune_shapes(
            arguments.shapes,
            arguments.dtype,
            show,
            search=arguments.search,
            key=arguments.key,
            budget=arguments.budget,
            check=arguments.check,
            devices="all" if arguments.all_devices else None,
        )
    except KeyboardInterrupt:
        raise SystemExit(f"stopped: the results of {len(results)} shapes are stored") from None


def _replot(arguments: argparse.Namespace) -> None:
    from cutlass_api.bench import gemm, report

    path = arguments.results
    try:
        read = json.loads(path.read_text())
        device, rows = read["device"], read["rows"]
        if rows and "kind" in rows[0]:
            title = _llama_title(device)
            draw = partial(llama_bench.write_plot, rows=[llama_bench.Row(**row) for row in rows])
        elif "rates" in read:
            title = _ladder_title(device, read["mnk"])
            steps = [ladder_bench.Row(**row) for row in rows]
            draw = partial(ladder_bench.write_plot, rates=read["rates"], rows=steps)
        elif "extent" in read:
            title = _latency_title(device, read["extent"])
            draw = partial(report.write_bars, rows=[report.Row(**row) for row in rows])
        else:
            title = _gemm_title(device)
            draw = partial(gemm.write_plot, rows=[gemm.Row(**row) for row in rows])
    except (OSError, ValueError, KeyError, TypeError) as error:
        benches = "`bench latency`, `gemm`, `ladder` or `llama`"
        message = f"{path} holds no results of {benches}: {error!r}"
        raise SystemExit(message) from None
    draw(arguments.plot, title)


if __name__ == "__main__":
    main()
