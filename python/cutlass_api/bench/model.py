"""GPU time of the layers of transformers' models under ``torch.compile``, with and without our
kernels and with quantized weights, and tokens per second of ``generate``.

:mod:`cutlass_api.bench.model_methods` describes what is timed.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from cutlass_api import inspection
from cutlass_api.bench import options, report
from cutlass_api.bench.architectures import ARCHITECTURES
from cutlass_api.bench.base import Bench, Column, Document, Entry, both, deviation
from cutlass_api.bench.limits import copy_rate
from cutlass_api.bench.timing import quartiles
from cutlass_api.tuning._search import Deadline

#: Tokens of the prompt of `generate`.
PROMPT = 16
#: The methods beside the schemes of `cutlass_api.nn.convert`, each a method of its own.
EAGER, COMPILED, OURS = "eager", "compiled", "ours"
METHODS = (EAGER, COMPILED, OURS)
COLORS = {EAGER: "#bbbbbb", COMPILED: "#ccbb44", OURS: "#4477aa"}
#: Of schemes, one after the other.
SCHEME_COLORS = ("#66ccee", "#228833", "#aa3377", "#ee6677")


@dataclass(frozen=True)
class Case:
    """One row to measure: layers, or ``generate`` of so many new tokens.

    - ``batch``, ``tokens``: sequences, and the tokens of each; with ``generate``, of the prompt.
    - ``generated``: 0 for layers.
    """

    model: str
    batch: int
    tokens: int
    generated: int = 0

    def __str__(self) -> str:
        what = f"{self.model} {self.batch}x{self.tokens}"
        return f"{what} + {self.generated}" if self.generated else what


@dataclass
class Row:
    """The results of one case, by method: those of :data:`METHODS` and names of schemes.

    Times are in microseconds, of a call of all layers or of a token of ``generate``.
    """

    architecture: str
    batch: int
    tokens: int
    generated: int
    layers: int
    microseconds: dict[str, float] = field(default_factory=dict)
    #: The time to read the weights at the rate of a copy on this GPU.
    limits: dict[str, float] = field(default_factory=dict)
    #: Seconds of the first call.
    compile_seconds: dict[str, float] = field(default_factory=dict)
    #: The largest relative norm error of a row of the output, against eager with the same weights.
    errors: dict[str, float] = field(default_factory=dict)
    #: The time of each turn.
    turns: dict[str, list[float]] = field(default_factory=dict)
    #: Why a method has no time.
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(Case(self.architecture, self.batch, self.tokens, self.generated))

    def rate(self, microseconds: float | None) -> float | None:
        """Tokens per second of all sequences."""
        return None if microseconds is None else 1e6 * self.batch / microseconds

    def ratio(self, method: str) -> float | None:
        """The time of torch's compile over that of a method."""
        if not {COMPILED, method} <= self.microseconds.keys():
            return None
        return self.microseconds[COMPILED] / self.microseconds[method]

    def share(self, method: str) -> float | None:
        """The time to read the method's weights over its time."""
        if not (method in self.limits and method in self.microseconds):
            return None
        return self.limits[method] / self.microseconds[method]


def cases(
    models: Iterable[str],
    batches: Sequence[int] | None = None,
    tokens: Sequence[int] | None = None,
    generated: int = 0,
) -> list[Case]:
    """The rows of these models. None: the model's own numbers. ``generated``: tokens of
    ``generate``, whose rows come after those of layers, or replace them without ``tokens``."""
    found: list[Case] = []
    for model in models:
        own = ARCHITECTURES[model]
        if tokens or not generated:
            sizes = product(batches or own.batches, tokens or own.tokens)
            found += [Case(model, *size) for size in sizes]
        if generated:
            found += [Case(model, batch, PROMPT, generated) for batch in batches or (1,)]
    return found


def methods_of(rows: Iterable[Row]) -> list[str]:
    """The methods of rows, also those that failed: first :data:`METHODS`, then schemes."""
    found = [name for row in rows for name in (*row.microseconds, *row.failures)]
    return list(dict.fromkeys([*(name for name in METHODS if name in found), *found]))


def _time_of(method: str, is_rate: bool) -> Column:
    def time(row: Row) -> float | str | None:
        if is_rate != bool(row.generated):
            return None
        if method in row.failures:
            return "failed"
        taken = row.microseconds.get(method)
        return row.rate(taken) if is_rate else taken

    return f"{method} tokens/s" if is_rate else f"{method} us", time, ".1f"


def _limit(is_rate: bool) -> Column:
    def limit(row: Row) -> float | None:
        if is_rate != bool(row.generated):
            return None
        taken = row.limits.get(EAGER)
        return row.rate(taken) if is_rate else taken

    return "limit tokens/s" if is_rate else "limit us", limit, ".1f"


def _each(title: str, of: Callable[[Row, str], Any], method: str, form: str) -> Column:
    return title, lambda row: of(row, method), form


class Model(Bench[Row]):
    name, about = "model", "layers of transformers' models under torch.compile, and generate"
    title = "Models of transformers in bfloat16"
    row, field = Row, "architecture"

    def columns_of(self, rows: Sequence[Row]) -> Sequence[Column]:
        """The columns of the methods that the rows have. Times of ``generate`` are rates."""
        methods = methods_of(rows)
        compiled = [method for method in methods if method != EAGER]
        ours = [method for method in compiled if method != COMPILED]
        columns: list[Column] = [("model", "name", "")]
        for is_rate in (False, True):
            if any(bool(row.generated) == is_rate for row in rows):
                columns += [_time_of(method, is_rate) for method in methods]
                columns.append(_limit(is_rate))
        columns += [_each(f"compiled/{method}", Row.ratio, method, ".2f") for method in ours]
        columns += [_each(f"{method} share", Row.share, method, ".2f") for method in compiled]
        for title, name, form in (("s", "compile_seconds", ".1f"), ("error", "errors", ".1e")):

            def value(row: Row, method: str, name: str = name) -> Any:
                return getattr(row, name).get(method)

            columns += [_each(f"{method} {title}", value, method, form) for method in compiled]
        return columns

    def add_options(self, command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "models",
            nargs="+",
            choices=tuple(ARCHITECTURES),
            metavar="NAME",
            help=f"models: {', '.join(ARCHITECTURES)}",
        )
        options.add_counts(command, "--tokens", "tokens of a sequence, which attend to each other")
        options.add_counts(command, "--batch", "numbers of sequences")
        command.add_argument(
            "--generate",
            type=_generated,
            default=0,
            metavar="COUNT",
            help="time transformers' generate of this many tokens with a static cache; layers only "
            "with --tokens",
        )
        command.add_argument(
            "--scheme",
            nargs="*",
            type=_scheme,
            default=["int4"],
            metavar="NAME",
            help="schemes of cutlass_api.nn.convert (int4); without a name none",
        )
        command.add_argument(
            "--layers",
            type=options.positive,
            metavar="COUNT",
            help="layers of a call; as many as hold 256 MB by default",
        )
        command.add_argument(
            "--cache",
            type=options.folder,
            metavar="DIR",
            help="keep compiled code between runs; compile times mean nothing",
        )
        command.add_argument(
            "--limit",
            type=options.positive,
            metavar="SECONDS",
            help="begin no row after so many seconds",
        )

    def device(self, arguments: argparse.Namespace) -> str:
        encoders = [name for name in arguments.models if not ARCHITECTURES[name].causal]
        if arguments.generate and encoders:
            raise SystemExit(f"{encoders[0]} is an encoder, which generates no text")
        found = super().device(arguments)
        try:
            import transformers
        except ImportError:
            raise SystemExit(
                "this benchmark needs transformers: pip install transformers (or rutlass[models])"
            ) from None
        del transformers
        return found

    def measure(self, arguments: argparse.Namespace, document: Document) -> Iterator[Row]:
        from cutlass_api.bench import model_methods

        document |= {
            name: inspection.package_version(name) for name in ("rutlass", "triton", "transformers")
        }
        document |= {"cached": arguments.cache is not None, "copy_rate": copy_rate()}
        of = cases(arguments.models, arguments.batch, arguments.tokens, arguments.generate)
        deadline, begin = Deadline(arguments.limit), time.perf_counter()

        def log(text: str) -> None:
            print(f"[{time.perf_counter() - begin:6.1f} s] {text}", flush=True)

        def in_time() -> Iterator[Case]:
            for case in of:
                if deadline.has_passed():
                    document.setdefault("skipped", []).append(str(case))
                    print(f"{case}: skipped: {arguments.limit} s have passed", flush=True)
                else:
                    yield case

        how = model_methods.Options(
            document["copy_rate"],
            schemes=list(dict.fromkeys(arguments.scheme)),
            layers=arguments.layers,
            cache=arguments.cache,
        )
        return model_methods.measure(in_time(), how, log)

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        """Each scheme is a group of its own, beside torch's compile in bfloat16."""
        for row in rows:
            for method in methods_of([row]):
                if method in (EAGER, COMPILED) or row.ratio(method) is None:
                    continue
                ours, torch = row.microseconds[method], row.microseconds[COMPILED]
                turns = [
                    (row.microseconds[each], row.turns.get(each)) for each in (COMPILED, method)
                ]
                noise = [deviation(time, quartiles(each) if each else None) for time, each in turns]
                group = "" if method == OURS else method
                name = f"{row.name} {group}".strip()
                yield Entry(name, ours, torch, torch, both(*noise), group=group)

    def summary(self, rows: Sequence[Row]) -> dict[str, dict[str, float]]:
        """By method: the geometric mean and the least of torch's compile over it, and the least
        share of the time that reading its weights takes."""
        found: dict[str, dict[str, float]] = {}
        for method in methods_of(rows):
            ratios = [each for row in rows if (each := row.ratio(method))]
            shares = [each for row in rows if (each := row.share(method))]
            if not shares:
                continue
            found[method] = {"least share of reading the weights": min(shares)}
            if ratios and method not in (EAGER, COMPILED):
                means = {"compiled / it": geometric_mean(ratios), "least": min(ratios)}
                found[method] = means | found[method]
        return found

    def remarks(self, rows: Sequence[Row]) -> Iterable[str]:
        yield from super().remarks(rows)
        for row in rows:
            for method, failure in row.failures.items():
                yield f"{row.name}: {method} failed: {failure}"

    def plot(self, path: Path, document: Document, rows: Sequence[Row]) -> None:
        """Plots microseconds of layers and tokens per second of ``generate``: for each row one bar
        a method, and a line at the limit in bfloat16. Needs matplotlib."""
        kinds = [kind for kind in (False, True) if any(bool(r.generated) == kind for r in rows)]
        size = (0.9 * len(rows) + 2.5 * max(len(kinds), 1), 4.8)
        with report.figure(path, self.heading(document), size, max(len(kinds), 1)) as drawn:
            for axes, is_rate in zip([drawn] if len(kinds) < 2 else drawn, kinds, strict=False):
                shown = [row for row in rows if bool(row.generated) == is_rate]
                self._draw(axes, shown, is_rate)

    def _draw(self, axes: Any, rows: Sequence[Row], is_rate: bool) -> None:
        def value(row: Row, times: dict[str, float], method: str) -> float:
            taken = times.get(method)
            shown = row.rate(taken) if is_rate else taken
            return math.nan if shown is None else shown

        methods = methods_of(rows)
        schemes = [method for method in methods if method not in METHODS]
        colors = {
            **COLORS,
            **{name: SCHEME_COLORS[at % len(SCHEME_COLORS)] for at, name in enumerate(schemes)},
        }
        bars = [
            (method, colors[method], [value(row, row.microseconds, method) for row in rows])
            for method in methods
        ]
        report.draw_groups(axes, [row.name for row in rows], bars)
        limits = [value(row, row.limits, EAGER) for row in rows]
        places = range(len(rows))
        lines = {"linestyles": "dashed", "label": "reading the weights", "color": "black"}
        ends = ([at - 0.45 for at in places], [at + 0.45 for at in places])
        axes.hlines(limits, *ends, **lines)
        axes.set_ylabel("tokens/s" if is_rate else "microseconds")
        report.draw_legend(axes)

    def run(self, arguments: argparse.Namespace) -> list[Row]:
        rows = super().run(arguments)
        if any(row.failures for row in rows):
            raise SystemExit(1)
        return rows


def _scheme(name: str) -> str:
    from cutlass_api.nn._schemes import SCHEMES

    if name not in SCHEMES:
        known = ", ".join(SCHEMES)
        raise argparse.ArgumentTypeError(f"there is no scheme {name!r}; choose from {known}")
    return name


def _generated(text: str) -> int:
    count = options.positive(text)
    if count < 2:
        raise argparse.ArgumentTypeError("the first token needs no cache; pass 2 or more")
    return count
