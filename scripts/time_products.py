"""Times kernels on random products of each kind, to judge the ranking by.

    python scripts/time_products.py OUT [--kinds NAME ...] [--seed 1] [--count 16] [--seconds 400]

For each product, on a GPU, the script times the first kernels of the ranking and a random sample of
the others, as `cutlass_api bench gemm` does. It stops after --seconds, which include compilation,
and writes the results so far if it is interrupted.
"""

import argparse
import json
import random
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cutlass_api
import torch
from cutlass_api.bench.limits import float32_precision, sets_beyond_l2
from cutlass_api.bench.timing import Timed, capture, in_turns, run_launches, sift
from products import KINDS, Product, random_products
from rich.progress import track
from torch._subclasses.fake_tensor import FakeTensorMode

#: Kernels that are timed again, and the rounds.
FINALISTS, ROUNDS = 6, 7
#: The share of the time for compilation.
COMPILATION = 0.5


def choose(product: Product, first: int, others: int, chance: random.Random) -> list[Any]:
    """The kernels to time."""
    with FakeTensorMode(), float32_precision(product.kind):
        found = cutlass_api.get_kernels(product.arguments())
    family = KINDS[product.kind].family
    # simt kernels of large products run for seconds.
    is_small = product.m * product.n * product.k < 1e8
    ranked = [
        kernel
        for kernel in found
        if kernel.metadata.kernel_name.startswith(family)
        and (family or is_small or not kernel.metadata.kernel_name.startswith("simt"))
    ]
    ranked = ranked or ([] if family else found)
    return ranked[:first] + chance.sample(ranked[first:], min(others, len(ranked[first:])))


def compile_all(chosen: Iterable[tuple[Product, list[Any]]], seconds: float) -> set[str]:
    """Compiles each kernel once, in front: nothing else uses the host while kernels are timed.
    Returns the names of those that were compiled in this time.
    """
    end = time.monotonic() + seconds
    first = {kernel: product for product, kernels in chosen for kernel in kernels}
    compiled = set()

    def compile(kernel: Any, product: Product) -> None:
        if time.monotonic() < end:
            with FakeTensorMode():
                args = product.arguments()
            kernel.compile(args)
            compiled.add(kernel.metadata.kernel_name)

    with ThreadPoolExecutor() as pool:
        for _ in track(pool.map(compile, first, first.values()), "compile", len(first)):
            pass
    return compiled


def measure(product: Product, kernels: list[Any]) -> dict[str, float]:
    """Microseconds of kernels by name."""
    stream = torch.cuda.Stream()
    all_args = [product.arguments() for _ in range(sets_beyond_l2(product.bytes))]

    def graph(kernel: Any) -> Timed:
        launches = run_launches(kernel, kernel.compile(all_args[0]), all_args)
        return capture(stream, launches)

    times, finalists = sift(
        ((kernel.metadata.kernel_name, graph(kernel)) for kernel in kernels), FINALISTS
    )
    in_turns(finalists, ROUNDS)
    return times | {name: timed.median for name, timed in finalists.items()}


def rows(options: argparse.Namespace) -> Iterator[tuple[Product, dict[str, float]]]:
    end = time.monotonic() + options.seconds
    chance = random.Random(options.seed)
    products = list(random_products(options.kinds, options.count, options.seed))
    chosen = [(each, choose(each, options.first, options.others, chance)) for each in products]
    compiled = compile_all(chosen, COMPILATION * options.seconds)
    for product, kernels in track(chosen, "time"):
        if time.monotonic() > end:
            return
        if len(kernels) < 2:
            continue
        ready = [kernel for kernel in kernels if kernel.metadata.kernel_name in compiled]
        if len(ready) < len(kernels):
            return
        with float32_precision(product.kind):
            try:
                yield product, measure(product, kernels)
            except (RuntimeError, ValueError) as error:  # out of memory, and refused operands
                print(f"{product}: {type(error).__name__}: {error}")
        torch.cuda.empty_cache()


def as_text(document: dict[str, Any]) -> str:
    """JSON with one product a line."""

    def dump(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"))

    entries = []
    for name, value in document.items():
        lines = (
            ",\n".join(map(dump, value)) if isinstance(value, list) and name != "kernels" else None
        )
        entries.append(f"{dump(name)}:" + (dump(value) if lines is None else f"[\n{lines}\n]"))
    return "{" + ",\n".join(entries) + "}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=16, help="products of each kind")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--first", type=int, default=24, help="kernels from the ranking's front")
    parser.add_argument("--others", type=int, default=8, help="random kernels behind them")
    options = parser.parse_args()

    numbers: dict[str, int] = {}
    document: dict[str, Any] = {
        "note": "Microseconds of kernels on random products. Each row: M, N, K, layout, groups and "
        "[index into kernels, time].",
        "device": torch.cuda.get_device_name(),
        "kernels": numbers,
    }
    try:
        for product, times in rows(options):
            of_kernels = [
                [numbers.setdefault(kernel, len(numbers)), round(time, 3)]
                for kernel, time in times.items()
            ]
            extents = [product.m, product.n, product.k, product.layout, product.groups]
            document.setdefault(product.kind, []).append([*extents, of_kernels])
    finally:
        options.out.write_text(as_text(document | {"kernels": list(numbers)}))


if __name__ == "__main__":
    main()
