"""Results as a table on the terminal, as JSON and as a plot. Imports rich and matplotlib lazily."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One row of a result.

    - ``ratio``: the time over the floor's time, or NaN.
    - ``quartiles``: of the ratio of each turn.
    """

    name: str
    microseconds: float
    ratio: float
    note: str = ""
    quartiles: tuple[float, float] | None = None


def print_table(title: str, rows: Sequence[Row], ratio_name: str) -> None:
    """Prints rows as a table. ``ratio_name`` is the title of the column of ratios."""
    print_cells(title, *table(rows, ratio_name))


def table(rows: Sequence[Row], ratio_name: str) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """The titles of the columns, and the cells of each row."""
    cells = [(row.name, f"{row.microseconds:.2f}", _ratio(row), row.note) for row in rows]
    return ("", "us", ratio_name, ""), list[tuple[str, ...]](cells)


def print_cells(title: str, header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Prints a table with right-aligned numbers, with rich if it is installed.

    A row is one line in full, also if the terminal is narrower or the output is no terminal, for
    which rich assumes 80 columns.
    """
    numeric = [name != "" and at > 0 for at, name in enumerate(header)]
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        widths = [max(len(line[at]) for line in [header, *cells]) for at in range(len(header))]
        print(title)
        for line in [header, *cells]:
            padded = zip(line, widths, numeric, strict=True)
            print(
                "  "
                + "  ".join(
                    cell.rjust(width) if right else cell.ljust(width)
                    for cell, width, right in padded
                )
            )
        return
    # Text, because brackets in a plain string are markup.
    table = Table(title=Text(title, style="table.title"), title_justify="left", box=None)
    for name, right in zip(header, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for line in cells:
        table.add_row(*map(Text, line))
    console = Console()
    natural = console.measure(table, options=console.options.update(width=10_000)).maximum
    Console(width=max(natural, len(title))).print(table)


def _ratio(row: Row) -> str:
    return "" if row.ratio != row.ratio else f"{row.ratio:.2f}"


def write_json(path: Path, context: dict[str, Any], rows: Sequence[Row]) -> None:
    """Writes rows as JSON, after the entries of ``context`` (device, versions)."""
    path.write_text(json.dumps({**context, "rows": [asdict(row) for row in rows]}, indent=1) + "\n")


def write_bars(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Plots microseconds as horizontal bars on a logarithmic axis. Needs matplotlib."""
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row.microseconds > 0][::-1]
    figure, axes = plt.subplots(figsize=(9, 0.35 * len(shown) + 1.2), layout="constrained")
    bars = axes.barh(
        [row.name for row in shown], [row.microseconds for row in shown], color="#4477aa"
    )
    axes.bar_label(bars, labels=[f"{row.microseconds:.2f}" for row in shown], padding=3, fontsize=8)
    axes.set_xscale("log")
    axes.margins(x=0.15)
    axes.set_xlabel("microseconds on the host")
    figure.suptitle(title)
    figure.savefig(path)
    plt.close(figure)


def write_ratios(
    path: Path, title: str, names: Sequence[str], ratios: Sequence[float], axis: str
) -> None:
    """Plots ratios as horizontal bars beside a line at 1. Needs matplotlib."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.25 * len(names) + 1.2), layout="constrained")
    bars = axes.barh(range(len(names)), ratios, color="#4477aa")
    axes.bar_label(bars, labels=[f"{ratio:.2f}" for ratio in ratios], padding=3, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.axvline(1, color="black", linewidth=0.8)
    axes.margins(x=0.1)
    axes.set_xlabel(axis)
    figure.suptitle(title)
    figure.savefig(path)
    plt.close(figure)


__all__ = ["Row", "print_cells", "print_table", "table", "write_bars", "write_json", "write_ratios"]
