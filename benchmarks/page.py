"""The page of `all`: Markdown, and a plot for each section, from the JSON document alone."""

import re
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutlass_api.bench import results
from cutlass_api.bench.base import Entry

from benchmarks import suite

COLUMNS = 100
#: The titles of the first table, after that of the section.
MEANS = ("compared with", "rows", "mean", "least")
#: Facts of the environment that the page shows, beside variables that begin with CUTLASS_API_.
FACTS = (*suite.SHARED_FACTS, "Python", "platform", "tuning")


def write(document: dict[str, Any], out: Path) -> None:
    """Writes the page, and its plots into a folder beside it of the same name. Needs matplotlib."""
    folder = out.with_suffix("")
    plots = {}
    for name, found in suite.parsed(document).items():
        if found.entries():
            folder.mkdir(exist_ok=True)
            found.plot(folder / f"{name}.png")
            plots[name] = f"{folder.name}/{name}.png"
    out.write_text(render(document, plots), "utf-8")


def render(document: dict[str, Any], plots: dict[str, str]) -> str:
    """The page. ``plots``: the address of each section's plot."""
    parsed = suite.parsed(document)
    intro = (
        "Times of Rutlass beside those of torch, on one GPU. A ratio is the time of torch over "
        "ours, that of the kernel that ranks first: above 1, Rutlass is faster. Sections run in "
        "processes of their own, in which both take turns. The last section lists what is slower "
        "than torch. Layouts are those of A and B: `t` row-major, `n` column-major; `tn` is "
        "`x @ weight.T`. `python -m benchmarks all` writes this page, and `benchmarks/README.md` "
        "describes the columns."
    )
    parts = ["# Benchmarks", _wrapped(intro)]
    if document["quick"]:
        note = "The option `--quick` leaves out shapes and methods: these are no figures to report."
        parts.append(_wrapped(note))
    compared = [
        (f"{document['sections'][name]['title']}{part}", *cells)
        for name, found in parsed.items()
        for part, *cells in _means(found)
    ]
    if compared:
        parts.append(_table(("section", *MEANS), compared, text=("compared with",)))
    parts += [_table(("", "value"), _machine(document)), _fence(*document["commands"])]
    for name, section in document["sections"].items():
        parts.append(f"## {section['title']}")
        parts.append(_fence(section["command"]))
        if section["failure"]:
            parts += ["The benchmark failed:", _fence(section["failure"])]
        if name in parsed:
            parts.append(_wrapped(mean(parsed[name])))
            if name in plots:
                parts.append(f"![{section['title']}]({plots[name]})")
            header, cells = parsed[name].table()
            # The first column, and one without a title, hold names.
            parts.append(_table(header, cells, code=("", header[0])))
        elif section["results"] and "product_rates" in section["results"]:
            parts.append(_table(("limit", "measured"), _rates(section["results"])))
    parts += ["## Slower than torch", *_slower(document, parsed)]
    return "\n\n".join(part for part in parts if part) + "\n"


def ratios(found: results.Results) -> dict[str, tuple[str, list[float]]]:
    """By group: what our times are compared with, torch or else the control, and the ratios of its
    times over ours."""
    groups: dict[str, list[Entry]] = {}
    for entry in found.entries():
        groups.setdefault(entry.group, []).append(entry)
    compared = {}
    for group, entries in groups.items():
        other, times = "torch", [(each.torch, each.ours) for each in entries]
        if not any(theirs for theirs, _ in times):
            other = found.bench.control
            times = [(each.control, each.ours) for each in entries]
        if any(theirs for theirs, _ in times):
            compared[group] = other, [theirs / ours for theirs, ours in times if theirs]
    return compared


def mean(found: results.Results) -> str:
    """Sentences with the geometric mean of torch's time over ours, or of the control's, for each
    group."""
    return " ".join(
        f"Geometric mean of the time of {other} over ours{f' with {group}' if group else ''}: "
        f"{statistics.geometric_mean(each):.3f} in {len(each)} rows, from {min(each):.3f} to "
        f"{max(each):.3f}."
        for group, (other, each) in ratios(found).items()
    )


def _means(found: results.Results) -> list[tuple[str, ...]]:
    """A row of the first table for each group, which begins with what follows the title."""
    return [
        (
            f", {group}" if group else "",
            other,
            str(len(each)),
            f"{statistics.geometric_mean(each):.3f}",
            f"{min(each):.3f}",
        )
        for group, (other, each) in ratios(found).items()
    ]


def _slower(document: dict[str, Any], parsed: dict[str, results.Results]) -> list[str]:
    """The table of the rows in which torch is faster, the slowest first, and a sentence with the
    sections that are not compared."""
    found, uncompared = [], []
    for name, section in document["sections"].items():
        entries = parsed[name].entries() if name in parsed else []
        found += [(each.torch / each.ours, name, each) for each in entries if each.torch]
        if section["failure"]:
            uncompared.append(f"`{name}` (failed{' in part' if entries else ''})")
        elif name != "limits" and not any(each.torch for each in entries):
            uncompared.append(f"`{name}` (torch has no counterpart)")
    slower = sorted((each for each in found if each[0] < 1), key=lambda each: each[:2])
    cells = [
        (each.name, name, f"{each.torch:.2f}", f"{each.ours:.2f}", f"{ratio:.3f}")
        for ratio, name, each in slower
    ]
    titles = ("product", "section", "torch us", "ours us", "ratio")
    parts = [_table(titles, cells, code=titles[:2]) if cells else "No row."]
    if uncompared:
        parts.append(_wrapped("Without a comparison to torch: " + ", ".join(uncompared) + "."))
    return parts


def _machine(document: dict[str, Any]) -> list[tuple[str, ...]]:
    """The GPU, the versions and the clocks."""
    facts = document["environment"]
    # NVRTC's path says nothing about another machine.
    rows = [(name, facts[name].partition(" (")[0]) for name in FACTS if name in facts]
    rows += [
        (name, value)
        for name, value in facts.items()
        if name.startswith("CUTLASS_API_") and not name.endswith("_DIR")
    ]
    limits = (document["sections"].get("limits") or {}).get("results") or {}
    return [*rows, *limits.get("smi", {}).items()]


def _rates(limits: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        ("L2 cache", f"{limits['l2_bytes'] / 2**20:.0f} MiB"),
        ("copy", f"{1e-12 * limits['copy_rate']:.2f} TB/s"),
        *(
            (f"{dtype} products of torch", f"{1e-12 * rate:.0f} TFLOP/s")
            for dtype, rate in limits["product_rates"].items()
        ),
    ]


def _wrapped(text: str) -> str:
    # Inline code stays on one line.
    joined = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), text)
    filled = textwrap.fill(joined, COLUMNS, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\0", " ")


def _fence(*lines: str) -> str:
    """Lines as they are. A fence without a language is output, of any width."""
    return "\n".join(["```", *(line.replace("```", "'''") for line in lines), "```"])


def _table(
    header: Sequence[str],
    cells: Sequence[Sequence[str]],
    code: Sequence[str] = (),
    text: Sequence[str] = ("value",),
) -> str:
    """A Markdown table. Columns of numbers are right-aligned. ``code``: titles of columns of names,
    which are no prose; ``text``: of other columns without numbers."""

    def cell(text: str, title: str) -> str:
        text = re.sub(r"\s+", " ", text).replace("|", "\\|")
        return f"`{text.replace('`', '')}`" if text and title in code else text

    is_number = [
        at > 0 and title != "" and title not in (*code, *text) for at, title in enumerate(header)
    ]
    lines: list[Sequence[str]] = [header, ["---:" if number else "---" for number in is_number]]
    lines += [[cell(*pair) for pair in zip(line, header, strict=True)] for line in cells]
    return "\n".join(re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(line)} |") for line in lines)
