"""Compiled models beside torch's choices: the command, its table and its results.

:mod:`.methods` describes what is timed.
"""

import argparse
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean, median

from cutlass_api import inspection
from cutlass_api.bench import options, results
from cutlass_api.bench.base import Bench, Column, Document, Entry, both, deviation
from cutlass_api.bench.timing import ROUNDS
from cutlass_api.profiling import quartiles

from benchmarks.cases import (
    BLOCKS,
    MODELS,
    NVGEMM_METHODS,
    QUICK_BLOCKS,
    Case,
    Row,
    baseline,
    cases,
    kinds,
)


def _models(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in MODELS:
            known = ", ".join(MODELS)
            raise argparse.ArgumentTypeError(f"there is no model {name!r}; choose from {known}")
    return names


def read_rows(name: str) -> dict[Case, Row]:
    """The rows in a JSON file of this benchmark, by case."""
    try:
        rows = results.parse(results.load(Path(name)), [Compile()]).rows
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return {row.case: row for row in rows}


def _time_of(method: str) -> Column:
    def time(row: Row) -> float | str | None:
        return "failed" if method in row.failures else row.microseconds.get(method)

    return f"{method} us", time, ".1f"


class Compile(Bench[Row]):
    name, about = "compile", "time of compiled models, beside torch's choices"
    title = "Compiled models"
    row, field, summary_key = Row, "model", "means"
    columns = (
        ("model", "name", ""),
        *map(_time_of, NVGEMM_METHODS),
        ("ratio", "ratio", ".3f"),
        ("spread", "spread", ".1%"),
        ("compile s", lambda row: row.compile_seconds.get("compiled"), ".1f"),
        ("ours s", lambda row: row.compile_seconds.get("ours"), ".1f"),
        ("error", lambda row: row.errors.get("ours"), ".1e"),
        # The kernels of our run by kind.
        ("ours+ATEN+Triton", lambda row: "+".join(map(str, kinds(row.kernels.get("ours")))), ""),
    )

    def add_options(self, command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--models",
            type=_models,
            default=MODELS,
            metavar="NAMES",
            help=f"models, separated by commas ({','.join(MODELS)})",
        )
        options.add_counts(command, "--tokens", "numbers of tokens")
        command.add_argument(
            "--blocks",
            type=options.positive,
            metavar="COUNT",
            help=f"blocks of an MLP ({BLOCKS}, with --quick {QUICK_BLOCKS})",
        )
        command.add_argument(
            "--quick", action="store_true", help="fewer blocks, and torch's choice is compiled once"
        )
        command.add_argument(
            "--baseline-json",
            type=read_rows,
            default={},
            metavar="FILE",
            help="torch's times from an earlier run, for development: results compare two runs",
        )
        for flag, about in (
            ("--cache", "keep compiled code between runs; compile times mean nothing"),
            ("--code", "write the generated code of each method"),
        ):
            command.add_argument(flag, type=options.folder, metavar="DIR", help=about)

    def measure(self, arguments: argparse.Namespace, document: Document) -> Iterator[Row]:
        from benchmarks import methods

        packages = ("rutlass", "triton", "transformers")
        document |= {name: inspection.package_version(name) for name in packages}
        is_quick = arguments.quick
        document["development"] = bool(is_quick or arguments.cache or arguments.baseline_json)
        begin = time.perf_counter()

        def log(text: str) -> None:
            print(f"[{time.perf_counter() - begin:6.1f} s] {text}", flush=True)

        how = methods.Options(
            rounds=methods.QUICK_ROUNDS if is_quick else ROUNDS,
            repeat_torch=not is_quick,
            cache=arguments.cache,
            baseline=arguments.baseline_json,
            code=arguments.code,
        )
        blocks = arguments.blocks or (QUICK_BLOCKS if is_quick else BLOCKS)
        return methods.measure(cases(arguments.models, arguments.tokens, blocks), how, log)

    def heading(self, document: Document) -> str:
        return f"{super().heading(document)}: microseconds of one block"

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        for row in rows:
            compared = (baseline(row.model), "ours")
            if not all(method in row.microseconds for method in compared):
                continue
            turns = [row.turns.get(method) for method in compared]
            noise = [deviation(median(each), quartiles(each)) if each else None for each in turns]
            torch, ours = (row.microseconds[method] for method in compared)
            yield Entry(row.name, ours, torch, torch, both(*noise))

    def summary(self, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
        """By model: the geometric mean and the least of the ratios, and the mean of compile
        times."""
        found: dict[str, dict[str, float]] = {}
        for model in dict.fromkeys(row.model for row in rows):
            group = [row for row in rows if row.model == model]
            ratios = [row.ratio for row in group if not math.isnan(row.ratio)]
            compiles = [row.compile_ratio for row in group if not math.isnan(row.compile_ratio)]
            found[model] = {"rows": len(group), "rows without a ratio": len(group) - len(ratios)}
            if ratios:
                found[model] |= {"ratio": geometric_mean(ratios), "least ratio": min(ratios)}
            if compiles:
                found[model]["compile time"] = geometric_mean(compiles)
        return found

    def remarks(self, rows: Sequence[Row]) -> Iterable[str]:
        yield from super().remarks(rows)
        for row in rows:
            for method, failure in row.failures.items():
                yield f"{row.name}: {method} failed: {failure}"
            for note in row.notes:
                yield f"{row.name}: {note}"

    def run(self, arguments: argparse.Namespace) -> list[Row]:
        rows = super().run(arguments)
        if any(row.failures for row in rows):
            raise SystemExit(1)
        return rows
