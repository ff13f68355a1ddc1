"""Reports on this project, in a checkout: ``python -m benchmarks``.

``compile`` and ``tensor_parallel`` time models. ``all`` runs every benchmark of one GPU, also those
of ``python -m cutlass_api bench``, and writes a page. ``compare`` reads results.
"""

import argparse
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cutlass_api._commands.bench import add_plot
from cutlass_api.bench import options, report, results

from benchmarks import compare, page, suite


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Reports on Rutlass.")
    commands = parser.add_subparsers(required=True, metavar="command")
    add_all(commands)
    add_compare(commands)
    for each in suite.OWN:
        each.add(commands)
    add_plot(commands, suite.BENCHES)
    arguments = parser.parse_args()
    arguments.run(arguments)


def add_all(commands: Any) -> None:
    every = commands.add_parser("all", help="all benchmarks of one GPU, as a page with plots")
    every.set_defaults(run=_all)
    every.add_argument(
        "--out",
        type=options.plot,
        default="docs/benchmarks.md",
        metavar="FILE",
        help="the page (docs/benchmarks.md); plots are in a folder beside it",
    )
    every.add_argument(
        "--json", type=options.output, metavar="FILE", help="write all results, after each section"
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
        "--limit", type=options.positive, default=1800, help="seconds of one section (1800)"
    )
    every.add_argument("--seconds", type=options.positive, help="seconds of all sections together")


def add_compare(commands: Any) -> None:
    two = commands.add_parser("compare", help="what got slower between two JSON files; no GPU")
    two.set_defaults(run=_compare)
    two.add_argument("old", type=_document, help="a JSON file of `all` or a benchmark")
    two.add_argument("new", type=_document, help="a later one")
    two.add_argument("--json", type=options.output, metavar="FILE", help="write the comparison")


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
        raise argparse.ArgumentTypeError(f"{name} is no file of `all --json`")
    return document


def _all(arguments: argparse.Namespace) -> None:
    try:
        document = suite.merged(arguments.files) if arguments.files else _measured(arguments)
        page.write(document, arguments.out)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    report.write_json(arguments.json, document)
    print(f"{arguments.out} is written")
    failed = [name for name, each in document["sections"].items() if each["failure"]]
    if failed and not arguments.files:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs the sections. Ctrl-C ends them, and keeps those that have finished."""
    sections = suite.chosen(arguments.only, arguments.quick)
    commands = {each.name: suite.command(each, arguments.quick) for each in sections}
    options.device()
    # What the page shows and a reader can run: without the files and time limits of this machine.
    shown = ["python -m benchmarks all"]
    shown += [f"--only {','.join(arguments.only)}"] if arguments.only else []
    shown += ["--quick"] if arguments.quick else []
    document: dict[str, Any] = {
        "commands": [" ".join(shown)],
        "quick": arguments.quick,
        "environment": suite.environment(),
        "sections": {},
    }

    def show(name: str, section: dict[str, Any]) -> None:
        document["sections"][name] = {"title": suite.TITLES[name], **section}
        state = section["failure"] or "done"
        print(f"== {name}: {state}, {section['seconds']} s", flush=True)
        report.write_json(arguments.json, document)

    try:
        suite.measure(commands, arguments.limit, arguments.seconds or math.inf, show)
    except KeyboardInterrupt:
        print("stopped: the page has the finished sections", flush=True)
    return document


def _compare(arguments: argparse.Namespace) -> None:
    try:
        found = compare.compare(arguments.old, arguments.new)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    for difference in found.differences:
        print(f"The files differ in {difference}")
    report.print_cells("Factors by which times grew", *compare.cells(found.changes))
    for name in found.missing:
        print(f"only in one file: {name}")
    flagged = found.flagged
    print(f"{len(flagged)} of {len(found.changes)} rows got slower beyond noise")
    rows = [
        {**asdict(each), "ours": each.ours, "flagged": each.is_flagged} for each in found.changes
    ]
    document = {"differences": found.differences, "missing": found.missing, "rows": rows}
    report.write_json(arguments.json, document)
    if flagged:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
