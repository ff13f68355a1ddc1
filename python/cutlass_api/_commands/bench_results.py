"""``bench all``, ``bench compare`` and ``bench plot``: results of benchmarks."""

import argparse
import json
import math
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cutlass_api._commands import common
from cutlass_api.bench import compare, page, report, results, suite


def add_all(bench: Any) -> None:
    every = bench.add_parser("all", help="all benchmarks of one GPU, as a page with plots")
    every.set_defaults(run=_all)
    every.add_argument(
        "--out",
        type=common.plot,
        default="docs/benchmarks.md",
        metavar="FILE",
        help="the page (docs/benchmarks.md); plots are in a folder beside it",
    )
    every.add_argument(
        "--json", type=common.output, metavar="FILE", help="write all results, after each section"
    )
    every.add_argument("--quick", action="store_true", help="fewer shapes and methods")
    every.add_argument(
        "--only",
        type=_names,
        default=[],
        metavar="NAMES",
        help=f"sections, separated by commas ({','.join(suite.NAMES)})",
    )
    every.add_argument(
        "--from",
        dest="files",
        nargs="+",
        type=_suite,
        metavar="FILE",
        help="write the page from files of --json, of one machine; needs no GPU",
    )
    every.add_argument(
        "--tables",
        type=Path,
        default=Path("benchmarks"),
        metavar="DIR",
        help="the folder of the tables of shapes (benchmarks)",
    )
    every.add_argument(
        "--limit", type=common.positive, default=1800, help="seconds of one section (1800)"
    )
    every.add_argument("--seconds", type=common.positive, help="seconds of all sections together")


def add_compare(bench: Any) -> None:
    two = bench.add_parser("compare", help="what got slower between two JSON files; needs no GPU")
    two.set_defaults(run=_compare)
    two.add_argument("old", type=_document, help="a JSON file of `bench all` or a benchmark")
    two.add_argument("new", type=_document, help="a later one")
    two.add_argument("--json", type=common.output, metavar="FILE", help="write the comparison")


def add_plot(bench: Any) -> None:
    plot = bench.add_parser("plot", help="plot results that --json wrote; needs no GPU")
    plot.set_defaults(run=_plot)
    plot.add_argument("results", type=Path, help="a JSON file of a benchmark")
    plot.add_argument("plot", type=common.plot, help="the image to write")


def _names(text: str) -> list[str]:
    names = text.split(",")
    try:
        suite.chosen(names, is_quick=False)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return names


def _document(name: str) -> Any:
    try:
        return results.load(Path(name))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _suite(name: str) -> Any:
    document = _document(name)
    if not suite.is_suite(document):
        raise argparse.ArgumentTypeError(f"{name} is no file of `bench all --json`")
    return document


def _all(arguments: argparse.Namespace) -> None:
    try:
        document = suite.merged(arguments.files) if arguments.files else _measured(arguments)
        page.write(document, arguments.out)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    _write(arguments.json, document)
    print(f"{arguments.out} is written")
    failed = [name for name, each in document["sections"].items() if each["failure"]]
    if failed and not arguments.files:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs the sections. Ctrl-C ends them, and keeps those that have finished."""
    sections = suite.chosen(arguments.only, arguments.quick)
    commands = {
        each.name: suite.arguments(each, arguments.tables, arguments.quick) for each in sections
    }
    common.device()
    document: dict[str, Any] = {
        "commands": [shlex.join(["python", "-m", "cutlass_api", *sys.argv[1:]])],
        "quick": arguments.quick,
        "environment": suite.environment(),
        "sections": {},
    }
    titles = suite.titles()

    def show(name: str, section: dict[str, Any]) -> None:
        document["sections"][name] = {"title": titles[name], **section}
        state = section["failure"] or "done"
        print(f"== {name}: {state}, {section['seconds']} s", flush=True)
        _write(arguments.json, document)

    try:
        suite.measure(commands, arguments.limit, arguments.seconds or math.inf, show)
    except KeyboardInterrupt:
        print("stopped: the page has the finished sections", flush=True)
    return document


def _write(path: Path | None, document: dict[str, Any]) -> None:
    if path:
        path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def _compare(arguments: argparse.Namespace) -> None:
    try:
        found = compare.compare(arguments.old, arguments.new)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    for difference in found.differences:
        print(f"The files differ in {difference}")
    title = "Factors by which times grew"
    report.print_cells(title, compare.HEADER, [compare.line(each) for each in found.changes])
    for name in found.missing:
        print(f"only in one file: {name}")
    flagged = found.flagged
    print(f"{len(flagged)} of {len(found.changes)} rows got slower beyond noise")
    if arguments.json:
        rows = [
            {**asdict(each), "ours": each.ours, "flagged": each.is_flagged}
            for each in found.changes
        ]
        document = {"differences": found.differences, "missing": found.missing, "rows": rows}
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    if flagged:
        raise SystemExit(1)


def _plot(arguments: argparse.Namespace) -> None:
    try:
        found = results.parse(results.load(arguments.results))
    except ValueError as error:
        raise SystemExit(f"{arguments.results}: {error}") from None
    found.plot(arguments.plot)


__all__ = ["add_all", "add_compare", "add_plot"]
