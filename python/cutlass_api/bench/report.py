"""Results as a table on the terminal, as JSON and as a plot. Imports rich and matplotlib lazily."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def print_cells(title: str, header: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Prints a table with right-aligned numbers, with rich if it is installed.

    A row is one line in full, also if the terminal is narrower or the output is no terminal.
    Without rows, the title says so.
    """
    if not cells:
        print(f"{title}: no rows")
        return
    numeric = [name != "" and at > 0 for at, name in enumerate(header)]
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        print(title)
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        for line in [header, *cells]:
            sides = [str.rjust if right else str.ljust for right in numeric]
            padded = zip(sides, line, widths, strict=True)
            print("", *(side(cell, width) for side, cell, width in padded), sep="  ")
        return
    table = Table(box=None)
    for name, right in zip(header, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for line in cells:
        table.add_row(*map(Text, line))
    # Text, because brackets in a plain string are markup.
    Console(width=10_000).print(Text(title, style="table.title"), table)


def to_json(value: Any, margin: str = "\n") -> str:
    """JSON with one row a line."""
    inner = f"{margin} "
    if isinstance(value, dict) and value:
        entries = [f"{json.dumps(key)}: {to_json(each, inner)}" for key, each in value.items()]
        return f"{{{inner}{f',{inner}'.join(entries)}{margin}}}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return f"[{inner}{f',{inner}'.join(map(json.dumps, value))}{margin}]"
    return json.dumps(value)


def write_json(path: Path | None, document: Any) -> None:
    """Writes a document, if the path is not None."""
    if path:
        path.write_text(to_json(document) + "\n", "utf-8")


@contextmanager
def figure(path: Path, title: str, size: tuple[float, float], columns: int = 1) -> Iterator[Any]:
    """The axes of a plot, which is written at the end. Needs matplotlib."""
    import matplotlib.pyplot as plt

    width = max(size[0], 0.1 * len(title))  # inches, of letters of 12 points
    drawn, axes = plt.subplots(1, columns, figsize=(width, size[1]), layout="constrained")
    yield axes
    drawn.suptitle(title)
    drawn.savefig(path, dpi=110)
    plt.close(drawn)


def draw_bars(
    axes: Any,
    bars: Sequence[tuple[str, float]],
    axis: str,
    form: str = "%.2f",
    color: str | Sequence[str] = "#4477aa",
    line: float | None = None,
) -> None:
    """Draws horizontal bars, the first at the top. ``axis``: what their lengths are. ``line``:
    where a vertical line goes, behind which bars that end before it have their labels."""
    axes.barh(range(len(bars)), [length for _, length in bars], color=color)
    if line is not None:
        axes.axvline(line, color="black", linewidth=0.8)
    for at, (_, length) in enumerate(bars):
        end = length if line is None else max(length, line)
        offset = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(form % length, (end, at), fontsize=8, **offset)
    axes.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(axis)


def draw_groups(
    axes: Any, names: Sequence[str], bars: Sequence[tuple[str, str, Sequence[float]]]
) -> None:
    """Draws for each name a group of vertical bars, side by side. ``bars``: a label, a color and a
    height for each name; NaN leaves a gap."""
    width = 0.8 / max(len(bars), 1)
    for place, (label, color, heights) in enumerate(bars):
        offsets = [at + width * (place - (len(bars) - 1) / 2) for at in range(len(names))]
        axes.bar(offsets, heights, width=width, color=color, label=label)
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)


def draw_legend(axes: Any) -> None:
    """Draws the legend above the frame, where it covers nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=8)


def write_ratios(path: Path, title: str, ratios: Sequence[tuple[str, float]], axis: str) -> None:
    """Plots ratios by name as bars beside a line at 1. Needs matplotlib."""
    with figure(path, title, (9, 0.25 * len(ratios) + 1.2)) as axes:
        draw_bars(axes, ratios, axis, line=1)
