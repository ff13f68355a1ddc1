"""What a benchmark is: a command, its results as JSON, their table and their plot."""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from cutlass_api.bench import options, report
from cutlass_api.bench.timing import ROUNDS

Document = dict[str, Any]
#: The titles of columns, and the cells of each row.
Cells = tuple[Sequence[str], list[tuple[str, ...]]]
#: The title of a column, an attribute or a function of a row, and the format of its value.
Column = tuple[str, str | Callable[[Any], Any], str]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Entry:
    """Our time of one row, in microseconds.

    - ``control``: a time of the same process that our kernels do not change.
    - ``torch``: torch's time for the same work; None where torch has none.
    - ``noise``: the relative standard deviation of ``ours / control`` by the turns of both; None
      where the file does not hold them.
    - ``kernel``: of our time.
    - ``group``: the rows of a group have a mean of their own; empty for most.
    """

    name: str
    ours: float
    control: float | None
    torch: float | None
    noise: float | None = None
    kernel: str = ""
    group: str = ""


def deviation(microseconds: float | None, quartiles: Sequence[float] | None) -> float | None:
    """The relative standard deviation of a median over rounds, of normally distributed turns."""
    if microseconds is None or quartiles is None:
        return None
    return 1.2533 * (quartiles[1] - quartiles[0]) / 1.349 / math.sqrt(ROUNDS) / microseconds


def both(*deviations: float | None) -> float | None:
    """The relative standard deviation of a quotient; None if one of both is not known."""
    known = [each for each in deviations if each is not None]
    return math.hypot(*known) if len(known) == len(deviations) else None


def table(columns: Sequence[Column], rows: Sequence[Any]) -> Cells:
    """A table of rows. None and NaN are empty cells."""

    def cell(row: Any, of: str | Callable[[Any], Any], form: str) -> str:
        value = of(row) if callable(of) else getattr(row, of)
        if isinstance(value, str):
            return value
        return "" if value is None or math.isnan(value) else format(value, form)

    cells = [tuple(cell(row, of, form) for _, of, form in columns) for row in rows]
    return [title for title, _, _ in columns], cells


class Bench(Generic[Row]):
    """A benchmark. Rows are instances of a dataclass, which JSON holds field by field.

    - ``name``, ``about``: of the command, and its help.
    - ``title``: of a table and a plot.
    - ``row``: the dataclass.
    - ``field``: a field that the rows of no other benchmark have.
    - ``control``: what the controls of entries are.
    - ``summary_key``: of `summary` in JSON.
    - ``is_gradual``: whether rows are printed and written one by one.
    """

    name: str
    about: str
    title: str
    row: type[Row]
    field: str
    columns: Sequence[Column]
    control = "torch"
    summary_key = "summary"
    is_gradual = True

    def add(self, commands: Any) -> None:
        """Adds the command."""
        command = commands.add_parser(self.name, help=self.about)
        command.set_defaults(run=self.run)
        self.add_options(command)
        options.add_outputs(command)

    def add_options(self, command: argparse.ArgumentParser) -> None:
        """Adds options beside ``--json`` and ``--plot``."""

    def device(self, arguments: argparse.Namespace) -> str:
        """The name of the device. Exits without one."""
        return options.device()

    def measure(self, arguments: argparse.Namespace, document: Document) -> Iterable[Row]:
        """Yields finished rows. Adds to the document what its rows have in common."""
        raise NotImplementedError

    def read(self, fields: dict[str, Any]) -> Row:
        """A row of a file."""
        return self.row(**fields)

    def heading(self, document: Document) -> str:
        """The title of a table."""
        return f"{self.title} ({document['device']})"

    def table(self, rows: Sequence[Row]) -> Cells:
        return table(self.columns_of(rows), rows)

    def columns_of(self, rows: Sequence[Row]) -> Sequence[Column]:
        """The columns of a table of these rows."""
        return self.columns

    def plot(self, path: Path, document: Document, rows: Sequence[Row]) -> None:
        """Plots the rows. Needs matplotlib. The default: torch's time over ours."""
        title = f"{self.title} ({document['device']})"
        ratios = [
            (each.name, each.torch / each.ours)
            for each in self.entries(document, rows)
            if each.torch
        ]
        report.write_ratios(path, title, ratios, "torch's time / ours")

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        """Our times beside those of others."""
        raise NotImplementedError

    def summary(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Numbers by name, or by name of a part of the rows and name."""
        return {}

    def remarks(self, rows: Sequence[Row]) -> Iterable[str]:
        """Lines below the table."""
        for name, value in self.summary(rows).items():
            if isinstance(value, dict):
                yield f"{name}: " + ", ".join(f"{key} {each:.4g}" for key, each in value.items())
            else:
                yield f"{name}: {value:.4g}"

    def write(self, path: Path | None, document: Document, rows: Sequence[Row]) -> None:
        """Writes rows and their summary as JSON, after the document's other entries."""
        summary = {self.summary_key: self.summary(rows)} if self.summary(rows) else {}
        listed = [asdict(row) for row in rows]  # type: ignore[call-overload]
        report.write_json(path, {**document, **summary, "rows": listed})

    def run(self, arguments: argparse.Namespace) -> list[Row]:
        """The command."""
        document: Document = {"device": self.device(arguments)}
        import torch

        document["torch"] = torch.__version__
        rows: list[Row] = []
        for row in self.measure(arguments, document):
            rows.append(row)
            if self.is_gradual:
                titles, ((name, *cells),) = self.table([row])
                named = zip(titles[1:], cells, strict=True)
                parts = [f"{title} {cell}".strip() for title, cell in named if cell]
                print(name, *parts, sep="  ", flush=True)
                # After each row, so that a time limit costs the unfinished row only.
                self.write(arguments.json, document, rows)
        report.print_cells(self.heading(document), *self.table(rows))
        for line in self.remarks(rows):
            print(line)
        self.write(arguments.json, document, rows)
        if arguments.plot:
            self.plot(arguments.plot, document, rows)
        return rows
