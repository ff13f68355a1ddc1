"""Fits the factors of the cost models to timings, and writes them into the sources.

    cargo build --release --features fit --target-dir target/fit
    python scripts/fit.py [--factors PATTERN] [--rounds 2] [--drop] [--write]

The timings are those of `benchmarks/random_h100.json` and `random_h200.json`. Every second product
is fitted to; the others are held out. One factor after another takes the value with which the
kernel that the ranking puts first takes the least time, over that of the fastest, as a mean over
kinds of products. The script prints this quotient before and after. With --drop, it then takes out
one factor after another, as long as no kind of product loses 1 % in all.
"""

import argparse
import importlib.util
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
CORE = ROOT / "target/fit/release/lib_core.so"
#: What a factor is multiplied by.
STEPS = (0.6, 0.8, 0.9, 0.95, 1.05, 1.12, 1.25, 1.6)
#: A factor keeps its value unless the mean of logarithms falls by as much.
LEAST_GAIN = 2e-4
#: Relative differences of estimates that the fit takes as equal: close estimates share the choice,
#: so that the objective has a slope.
BLUR = 0.02
#: The weight of the mean relative error of estimates beside the time that the ranking loses.
#: Estimates that only rank well would have any scale.
ACCURACY = 0.02
#: These also decide whether a kernel is placed.
PLACING = ("fitted_delivered", "fitted_delivered_anywhere", "fitted_received")
PLACING += ("fitted_placed_end", "fitted_placed_sum_end", "fitted_launch")
#: What a kind loses at most without the factors that do not pay, and all kinds in the mean.
LEAST_LOSS, DROPPED_LOSS = 0.01, 2e-3
#: At most as many products of a set, and kernels of a product.
MOST_PRODUCTS, MOST_KERNELS = 320, 40


@dataclass
class Row:
    """A product and its kernels' times; ``at``: the first of them in the table of estimates."""

    kind: str
    args: Any
    kernels: list[Any]
    times: np.ndarray
    at: int

    @property
    def is_h200(self) -> bool:
        return not self.kind.startswith("H100")

    def losses(self, estimates: np.ndarray) -> tuple[float, float]:
        """The logarithm of the first kernel's time over the fastest's, and what the fit lowers: the
        same, blurred, and the error of the estimates."""
        own = estimates[self.at : self.at + len(self.times)]
        lost = np.log(self.times / self.times.min())
        weights = np.exp((1 - own / own.min()) / BLUR)
        known = np.isfinite(own)
        error = np.abs(np.log(1e6 * own[known] / self.times[known])).mean() if known.any() else 0.0
        blurred = (weights * lost).sum() / weights.sum()
        return float(lost[own.argmin()]), float(blurred + ACCURACY * error)


def load_core() -> Any:
    """The core with the feature `fit`, in place of the installed one."""
    spec = importlib.util.spec_from_file_location("cutlass_api._core", CORE)
    if spec is None or spec.loader is None or not CORE.exists():
        raise SystemExit(
            f"{CORE} is missing: cargo build --release --features fit --target-dir target/fit"
        )
    sys.modules["cutlass_api._core"] = core = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(core)
    return core


def products() -> Iterator[tuple[str, Any, dict[str, float]]]:
    """Each kind, arguments of FakeTensors, and times of kernels by name."""
    from products import Product

    h100 = json.loads((BENCHMARKS / "random_h100.json").read_text())
    for name in ("all", "top", "later", "last", "broad_a", "broad_b"):
        rows = h100[name]
        for m, n, k, layout, _, _, timed in rows[:: math.ceil(len(rows) / MOST_PRODUCTS)]:
            kind = "bfloat16" if "bf16" in h100["kernels"][timed[0][0]] else "float16"
            times = {h100["kernels"][index]: time for index, time in timed}
            yield f"H100 {name}", Product(kind, m, n, k, layout), times
    h200 = json.loads((BENCHMARKS / "random_h200.json").read_text())
    for kind, rows in h200.items():
        for *extents, timed in rows if isinstance(rows, list) and kind != "kernels" else ():
            times = {h200["kernels"][index]: time for index, time in timed}
            yield kind, Product(kind, *extents), times


def read_rows() -> list[Row]:
    import cutlass_api
    import torch
    from cutlass_api.bench.limits import float32_precision
    from torch._subclasses.fake_tensor import FakeTensorMode

    rows: list[Row] = []
    at = 0
    for kind, product, timed in products():
        times = {name.split("_epilogue_")[0]: time for name, time in timed.items()}
        with FakeTensorMode(), float32_precision(product.kind):
            args = product.arguments()
            found = {
                kernel.metadata.kernel_name.split("_epilogue_")[0]: kernel
                for kernel in cutlass_api.get_kernels(args, cc=90)
            }
        names = [name for name in times if name in found]
        names = names[:: math.ceil(len(names) / MOST_KERNELS)] if names else []
        if len(names) > 1:
            kernels = [found[name] for name in names]
            of_names = np.array([times[name] for name in names])
            rows.append(Row(kind, args, kernels, of_names, at))
            at += len(names)
    torch.set_float32_matmul_precision("high")  # kernels of tf32 have estimates
    return rows


def estimate(kernel: Any, args: Any) -> float:
    try:
        seconds: float = kernel.estimate(args, cc=90).total_seconds
    except ValueError:  # no model covers the kernel, which ranks last
        return math.inf
    return seconds


class Fit:
    """The rows, their estimates and the factors."""

    def __init__(self, core: Any) -> None:
        self.core, self.rows = core, read_rows()
        self.estimates = self.estimated()
        self.factors: dict[str, float] = dict(sorted(core.factors().items()))

    def estimated(self) -> np.ndarray:
        found = []
        for row in self.rows:
            self.core.set_chip(row.is_h200)
            found += [estimate(kernel, row.args) for kernel in row.kernels]
        return np.array(found)

    def with_value(self, name: str, value: float) -> np.ndarray:
        """The estimates with another value of a factor, which stays."""
        self.core.set_factor(name, value)
        return self.estimated()

    def means(self, estimates: np.ndarray, held_out: bool | None = None) -> dict[str, list[float]]:
        """Of each kind, first over best in the mean and at worst, and what the fit lowers. Of all
        products, or of those that are held out, or of the others."""
        of_kinds: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for index, row in enumerate(self.rows):
            if held_out is None or (index % 2 == 1) == held_out:
                of_kinds[row.kind].append(row.losses(estimates))
        return {
            kind: [
                statistics.mean(math.exp(exact) for exact, _ in losses),
                math.exp(max(exact for exact, _ in losses)),
                statistics.mean(blurred for _, blurred in losses),
            ]
            for kind, losses in of_kinds.items()
        }

    def objective(self, estimates: np.ndarray) -> float:
        return statistics.mean(mean[2] for mean in self.means(estimates, held_out=False).values())

    def improve(self, name: str) -> bool:
        """Moves a factor to its best value near the present one. Returns whether it moved."""
        present, least = self.factors[name], self.objective(self.estimates)
        best = present
        for step in STEPS:
            estimates = self.with_value(name, present * step)
            objective = self.objective(estimates)
            if objective < least - (LEAST_GAIN if best == present else 0):
                best, least = present * step, objective
        best = float(f"{best:.3g}")
        self.estimates, self.factors[name] = self.with_value(name, best), best
        return best != present

    def drop(self, names: Sequence[str]) -> Iterator[tuple[str, float]]:
        """Takes out factors, those that matter least first, as long as no kind loses `LEAST_LOSS`
        in all. Yields names, and the values that stand for none: 0, 1 or a rate without bound."""
        kept, objective = self.means(self.estimates), self.objective(self.estimates)

        def without(name: str) -> tuple[float, float]:
            tried = [(math.inf, self.factors[name])]
            for neutral in neutrals(self.factors[name]):
                estimates = self.with_value(name, neutral)
                if np.array_equal(np.isfinite(estimates), np.isfinite(self.estimates)):
                    after = self.means(estimates)
                    if all(after[kind][0] < kept[kind][0] + LEAST_LOSS for kind in kept):
                        tried.append((self.objective(estimates), neutral))
            self.with_value(name, self.factors[name])
            return min(tried)

        for name in sorted(names, key=without):
            found, neutral = without(name)
            if found < objective + DROPPED_LOSS:
                self.factors[name] = neutral
                self.estimates = self.with_value(name, neutral)
                yield name, neutral


def neutrals(value: float) -> Sequence[float]:
    """The values that stand for none: of seconds, of a rate, of a share or a time factor."""
    return (0.0,) if value < 1e-3 else (1e6 * value,) if value > 1e6 else (0.0, 1.0)


def write(values: dict[str, float]) -> None:
    """Replaces the values of factors in the sources."""
    for path in (ROOT / "src/kernel").rglob("*.rs"):
        text = path.read_text()
        for name, value in values.items():
            text = re.sub(rf"(\b{name} = )[^;]+;", rf"\g<1>{as_rust(value)};", text)
        path.write_text(text)


def as_rust(value: float) -> str:
    """A value as the sources write it: seconds in micro- or nanoseconds, rates in giga or tera."""
    power = next((power for power in (12, 9, -3, -6, -9) if abs(value) >= 10.0**power), -12)
    power = 0 if power == -3 else power
    digits = f"{value / 10.0**power:.4g}"
    return f"{digits}e{power}" if power else digits if "." in digits else f"{digits}.0"


def print_means(fit: Fit) -> None:
    means = fit.means(fit.estimates)
    held_out = fit.means(fit.estimates, held_out=True)
    for kind, (mean, worst, _) in means.items():
        print(f"  {kind:16} {mean:.3f}; {worst:.2f}; held out {held_out[kind][0]:.3f}")
    of_all = [statistics.mean(mean[0] for mean in of.values()) for of in (means, held_out)]
    print(f"  {'all':16} {of_all[0]:.4f};     ; held out {of_all[1]:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--factors", default=".*", help="a pattern of the factors to fit")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--drop", action="store_true", help="look for factors that do not pay")
    parser.add_argument("--write", action="store_true", help="write the values into the sources")
    options = parser.parse_args()
    fit = Fit(load_core())
    declared = dict(fit.factors)
    names = [name for name in fit.factors if re.search(options.factors, name)]
    print(f"{len(fit.rows)} products, {len(fit.estimates)} times, {len(names)} factors")
    print("first over best, mean; worst:")
    print_means(fit)
    for _ in range(options.rounds):
        moved = [name for name in names if fit.improve(name)]
        print(f"{len(moved)} moved, objective {fit.objective(fit.estimates):.5f}", flush=True)
    print_means(fit)
    for name, value in fit.factors.items():
        if value != declared[name]:
            print(f"  {name}: {declared[name]:.4g} -> {value:.4g}")
    if options.drop:
        print("factors that do not pay, and the values that stand for none:")
        for name, neutral in fit.drop([name for name in names if name not in PLACING]):
            print(f"  {name}: {neutral:.3g}", flush=True)
        print_means(fit)
    if options.write:
        moved = {name: value for name, value in fit.factors.items() if value != declared[name]}
        write(moved)


if __name__ == "__main__":
    main()
