"""``bench compile`` and ``bench tensor_parallel``: models."""

import argparse
import time
from pathlib import Path
from typing import Any

from cutlass_api import inspection
from cutlass_api._commands import common
from cutlass_api.bench import compile as compile_bench
from cutlass_api.bench import tensor_parallel as parallel_bench


def add_compile(bench: Any) -> None:
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
        "--tokens",
        type=common.counts,
        metavar="COUNTS",
        help="numbers of tokens, separated by commas",
    )
    blocks, few = compile_bench.BLOCKS, compile_bench.QUICK_BLOCKS
    compiled.add_argument(
        "--blocks",
        type=common.positive,
        metavar="COUNT",
        help=f"blocks of an MLP ({blocks}, with --quick {few})",
    )
    compiled.add_argument(
        "--quick", action="store_true", help="fewer blocks, and torch's choice is compiled once"
    )
    compiled.add_argument(
        "--cache",
        type=common.folder,
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
        "--code", type=common.folder, metavar="DIR", help="write the generated code of each method"
    )
    compiled.add_argument(
        "--json", type=common.output, metavar="FILE", help="write the results as JSON"
    )


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


def _compile(arguments: argparse.Namespace) -> None:
    device = common.device()
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
    title = f"{compile_bench.TITLE} ({device}): microseconds of one block"
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


def add_tensor_parallel(bench: Any) -> None:
    parallel = bench.add_parser(
        "tensor_parallel", help="time of an MLP whose weights are split between GPUs"
    )
    parallel.set_defaults(run=_tensor_parallel)
    parallel.add_argument(
        "--ranks", type=common.positive, default=2, help="GPUs, one a process (2)"
    )
    parallel.add_argument(
        "--tokens",
        type=common.counts,
        default=parallel_bench.TOKENS,
        metavar="COUNTS",
        help="numbers of tokens, separated by commas",
    )
    parallel.add_argument(
        "--extents",
        type=common.counts,
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
    parallel.add_argument("--rounds", type=common.positive, default=parallel_bench.ROUNDS)
    parallel.add_argument(
        "--json", type=common.output, metavar="FILE", help="write the results as JSON"
    )


def _tensor_parallel(arguments: argparse.Namespace) -> None:
    device = "the CPU" if arguments.device == "cpu" else common.device()
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


__all__ = ["add_compile", "add_tensor_parallel"]
