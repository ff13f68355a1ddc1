"""JSON files of benchmarks: their tables, their plots, and our times beside those of others.

A benchmark whose results `bench plot`, `bench all` and `bench compare` read has an entry in
`BENCHES`.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutlass_api.bench import ROUNDS, gemm, ladder, latency, llama, quantize, report
from cutlass_api.bench import compile as compile_bench
from cutlass_api.profiling import quartiles

Document = dict[str, Any]
Cells = tuple[Sequence[str], list[tuple[str, ...]]]


@dataclass(frozen=True)
class Entry:
    """Our time of one row, in microseconds.

    - ``control``: a time of the same process that our kernels do not change.
    - ``torch``: torch's time for the same work; None where torch has none.
    - ``noise``: the relative standard deviation of ``ours / control`` by the turns of both; None
      where the file does not hold them.
    - ``kernel``: of our time.
    """

    name: str
    ours: float
    control: float | None
    torch: float | None
    noise: float | None = None
    kernel: str = ""


@dataclass(frozen=True)
class Bench:
    """How to read the results of a benchmark.

    - ``field``: a field that the rows of no other benchmark have.
    - ``title``: of a table and a plot.
    - ``control``: what the controls of entries are.
    - ``row``: makes a row of its JSON.
    """

    field: str
    title: str
    control: str
    row: Callable[..., Any]
    table: Callable[[list[Any]], Cells]
    plot: Callable[[Path, str, Document, list[Any]], None]
    entries: Callable[[Document, list[Any]], Iterable[Entry]]


def _deviation(microseconds: float, quartiles: Sequence[float] | None) -> float | None:
    """The relative standard deviation of a median over rounds, of normally distributed turns."""
    if quartiles is None:
        return None
    deviation = (quartiles[1] - quartiles[0]) / 1.349
    return 1.2533 * deviation / math.sqrt(ROUNDS) / microseconds


def _both(*deviations: float | None) -> float | None:
    known = [each for each in deviations if each is not None]
    return math.hypot(*known) if len(known) == len(deviations) else None


def _gemm_entries(document: Document, rows: list[gemm.Row]) -> Iterable[Entry]:
    for row in rows:
        spread = {
            of: _deviation(getattr(row, of), row.quartiles.get(of)) for of in ("torch", "first")
        }
        noise = _both(*spread.values())
        name = f"{gemm.name(row)} {row.dtype}"
        yield Entry(name, row.first, row.torch, row.torch, noise, row.kernel)


def _ladder_entries(document: Document, rows: list[ladder.Row]) -> Iterable[Entry]:
    torch = next(row.microseconds for row in rows if row.name == ladder.TORCH)
    for row in rows:
        if row.name != ladder.TORCH:
            # The steps teach; only the library is for use in torch's place.
            rival = torch if row.name == ladder.LIBRARY else None
            yield Entry(row.name, row.microseconds, torch, rival, None, row.note)


def _llama_entries(document: Document, rows: list[llama.Row]) -> Iterable[Entry]:
    for row in rows:
        ours = _deviation(row.first, row.quartiles.get("first"))
        noise = ours and row.torch and _both(ours, _deviation(row.torch, row.quartiles["torch"]))
        name = llama.product(row.kind, row.rows, row.weight)
        yield Entry(name, row.first, row.torch, row.torch, noise, row.kernel)


def _latency_entries(document: Document, rows: list[report.Row]) -> Iterable[Entry]:
    times = {row.name: row.microseconds for row in rows}
    for row in rows:
        if latency.is_ours(row.name):
            torch = times.get(latency.COUNTERPARTS.get(row.name, ""))
            floor = None if math.isnan(row.ratio) else row.microseconds / row.ratio
            noise = _deviation(row.ratio, row.quartiles)
            yield Entry(row.name, row.microseconds, floor, torch, noise)


def _quantize_entries(document: Document, rows: list[quantize.Row]) -> Iterable[Entry]:
    for row in rows:
        copy = 1e6 * row.bytes / document["copy_rate"]
        noise = _deviation(row.microseconds, row.quartiles)
        name, extents, *_ = quantize.line(row)
        yield Entry(f"{name}, {extents}", row.microseconds, copy, None, noise)


def _compile_entries(document: Document, rows: list[compile_bench.Row]) -> Iterable[Entry]:
    for row in rows:
        methods = (compile_bench.baseline(row.model), "ours")
        if not all(method in row.microseconds for method in methods):
            continue
        spread = [
            _deviation(statistics.median(turns), quartiles(turns)) if turns else None
            for turns in (row.turns.get(method) for method in methods)
        ]
        torch, ours = (row.microseconds[method] for method in methods)
        yield Entry(row.name, ours, torch, torch, _both(*spread))


def _gemm_table(rows: list[gemm.Row]) -> Cells:
    return gemm.HEADER, [gemm.line(row) for row in rows]


def _ladder_table(rows: list[ladder.Row]) -> Cells:
    return ladder.HEADER, [ladder.line(row) for row in rows]


def _ladder_plot(path: Path, title: str, document: Document, rows: list[ladder.Row]) -> None:
    ladder.write_plot(path, title, document["mnk"], document["rates"], rows)


def _latency_table(rows: list[report.Row]) -> Cells:
    return report.table(rows, latency.RATIO)


def _quantize_table(rows: list[quantize.Row]) -> Cells:
    return quantize.HEADER, [quantize.line(row) for row in rows]


def _compile_table(rows: list[compile_bench.Row]) -> Cells:
    return compile_bench.HEADER, [compile_bench.line(row) for row in rows]


def _of_rows(
    plot: Callable[[Path, str, list[Any]], None],
) -> Callable[[Path, str, Document, list[Any]], None]:
    """A plot that needs the rows only."""
    return lambda path, title, document, rows: plot(path, title, rows)


BENCHES = {
    "latency": Bench(
        field="ratio",
        title=latency.TITLE,
        control="the native launch",
        row=report.Row,
        table=_latency_table,
        plot=_of_rows(report.write_bars),
        entries=_latency_entries,
    ),
    "gemm": Bench(
        field="mnk",
        title=gemm.TITLE,
        control="torch",
        row=gemm.Row,
        table=_gemm_table,
        plot=_of_rows(gemm.write_plot),
        entries=_gemm_entries,
    ),
    "ladder": Bench(
        field="speed_up",
        title=ladder.TITLE,
        control="torch",
        row=ladder.Row,
        table=_ladder_table,
        plot=_ladder_plot,
        entries=_ladder_entries,
    ),
    "llama": Bench(
        field="weight",
        title=llama.TITLE,
        control="torch",
        row=llama.Row,
        table=llama.table,
        plot=_of_rows(llama.write_plot),
        entries=_llama_entries,
    ),
    "quantize": Bench(
        field="helper",
        title=quantize.TITLE,
        control="a copy of as many bytes",
        row=quantize.Row,
        table=_quantize_table,
        plot=_of_rows(quantize.write_plot),
        entries=_quantize_entries,
    ),
    "compile": Bench(
        field="model",
        title=compile_bench.TITLE,
        control="torch",
        row=compile_bench.Row,
        table=_compile_table,
        plot=_of_rows(compile_bench.write_plot),
        entries=_compile_entries,
    ),
}


@dataclass(frozen=True)
class Results:
    """The results of one benchmark. ``bench``: its name."""

    bench: str
    document: Document
    rows: list[Any]

    @property
    def title(self) -> str:
        return f"{BENCHES[self.bench].title} ({self.document['device']})"

    def table(self) -> Cells:
        return BENCHES[self.bench].table(self.rows)

    def plot(self, path: Path) -> None:
        BENCHES[self.bench].plot(path, self.title, self.document, self.rows)

    def entries(self) -> list[Entry]:
        return list(BENCHES[self.bench].entries(self.document, self.rows))

    @property
    def control(self) -> str:
        return BENCHES[self.bench].control


def parse(document: Any) -> Results:
    """Raises ValueError for a document of no benchmark in `BENCHES`, or without rows."""
    known = ", ".join(f"`bench {name}`" for name in BENCHES)
    try:
        found = document["rows"]
        name = next(name for name, bench in BENCHES.items() if bench.field in found[0])
        rows = [BENCHES[name].row(**row) for row in found]
        device = document["device"]
    except (KeyError, TypeError, IndexError, StopIteration) as error:
        raise ValueError(f"no results of {known}: {error!r}") from None
    if not isinstance(device, str):
        raise ValueError(f"no results of {known}: its device is {device!r}")
    return Results(name, document, rows)


def load(path: Path) -> Any:
    """The document of a JSON file. Raises ValueError if it cannot be read or is no JSON."""
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None


__all__ = ["BENCHES", "Bench", "Entry", "Results", "load", "parse"]
