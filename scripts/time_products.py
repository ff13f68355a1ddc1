"""Times kernels on random problems, to fit the cost model to.

    python scripts/time_products.py NAME OUT [--seed 1] [--count 400] [--seconds 500]   # on a GPU

Writes the sets of benchmarks/random_h100.json and a new set NAME to OUT. Half of the problems
are layers of language models, the others any shape that TMA can address. For each, the script times
the first kernels of the ranking and a random sample of the next, as `cutlass_api bench gemm` does.
It stops after --seconds, which include compilation, and writes the results so far if it is
interrupted.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cutlass_api
import torch
from cutlass_api.arguments import GemmArguments
from cutlass_api.bench.products import Inputs, Shape
from cutlass_api.bench.timing import Timed, capture, in_turns, run_launches, sift
from rich.progress import track
from torch._subclasses.fake_tensor import FakeTensorMode

TIMINGS = Path(__file__).parent.parent / "benchmarks/random_h100.json"

#: Hidden and feed-forward sizes of language models, and tokens.
WIDTHS = (1024, 1536, 2048, 2560, 2816, 3072, 3584, 4096, 5120, 5376, 6144, 6912, 7168, 8192)
WIDTHS += (8960, 9728, 11008, 12288, 13824, 14336, 16384, 28672)
TOKENS = (96, 128, 192, 256, 320, 384, 512, 640, 768, 896, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
FEW_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
#: Shares of layouts: those of a linear layer and of its gradients are frequent.
LAYOUTS = {"tn": 0.3, "tt": 0.3, "nt": 0.25, "nn": 0.15}
#: Shares of problems with few rows, of layers among the others, and of bfloat16.
FEW_ROWS, LAYERS, BFLOAT16 = 0.1, 0.5, 0.1
#: Larger problems take too long.
MOST_FLOP, MOST_ELEMENTS = 4e11, 2e8

#: Kernels that are timed: the first of the ranking, and a sample of the next.
FIRST, CHANCE, AMONG = 18, 4, 60
#: Kernels that are timed again, and the rounds.
FINALISTS, ROUNDS = 8, 9


def some_extent(chance: random.Random, least: int, most: int) -> int:
    """A multiple of 8, small ones as likely as large ones."""
    return 8 * round(least / 8 * (most / least) ** chance.random())


def product(chance: random.Random) -> tuple[Shape, str]:
    """A random problem, and its type."""
    layout = chance.choices(list(LAYOUTS), list(LAYOUTS.values()))[0]
    dtype = "bfloat16" if chance.random() < BFLOAT16 else "float16"
    while True:
        if chance.random() < FEW_ROWS:
            m, n, k = (
                chance.choice(FEW_TOKENS),
                *(some_extent(chance, 512, 16384) for _ in range(2)),
            )
            if chance.random() < LAYERS:
                n, k = chance.choice(WIDTHS), chance.choice(WIDTHS)
            m = m if layout[0] == "t" else max(m, 8)
        elif chance.random() < LAYERS:
            m, n, k = chance.choice(TOKENS), chance.choice(WIDTHS), chance.choice(WIDTHS)
            if layout == "nt":  # a weight's gradient sums over tokens
                m, k = k, m
        else:
            m, n, k = (
                some_extent(chance, *bounds) for bounds in ((72, 8192), (72, 8192), (64, 32768))
            )
        shape = Shape("", m, n, k, layout)
        if 2 * m * n * k <= MOST_FLOP and shape.elements <= MOST_ELEMENTS:
            return shape, dtype


def arguments(shape: Shape, dtype: str) -> GemmArguments:
    """Arguments of a problem, without memory."""
    kind = {"device": "cuda", "dtype": getattr(torch, dtype)}
    (m, n, k), (a, b) = (shape.m, shape.n, shape.k), shape.layout
    with FakeTensorMode():
        return GemmArguments(
            torch.empty(m, k, **kind) if a == "t" else torch.empty(k, m, **kind).T,
            torch.empty(k, n, **kind) if b == "t" else torch.empty(n, k, **kind).T,
            torch.empty(m, n, **kind),
            torch.float32,
        )


def choose(args: GemmArguments, chance: random.Random) -> list[Any]:
    """The kernels to time."""
    ranked = [
        kernel
        for kernel in cutlass_api.get_kernels(args)
        if "simt" not in kernel.metadata.kernel_name
    ]
    others = ranked[FIRST:AMONG]
    return ranked[:FIRST] + chance.sample(others, min(CHANCE, len(others)))


def kernel_of_torch(launch: Any) -> str:
    """The name of the kernel that takes longest in a launch."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        launch()
        torch.cuda.synchronize()
    longest = max(profile.key_averages(), key=lambda event: event.device_time_total, default=None)
    return longest.key if longest else ""


def measure(shape: Shape, dtype: str, kernels: list[Any]) -> tuple[float, str, dict[str, float]]:
    """Microseconds of torch, its kernel if it is the fastest, and microseconds of our kernels."""
    inputs = Inputs(shape, dtype)
    all_args = inputs.arguments()

    def graph(kernel: Any) -> Timed:
        launches = run_launches(kernel, kernel.compile(all_args[0]), all_args)
        return capture(inputs.stream, launches)

    times, finalists = sift(
        ((kernel.metadata.kernel_name, graph(kernel)) for kernel in kernels), FINALISTS
    )
    theirs = capture(inputs.stream, inputs.torch_launches())
    in_turns({**finalists, "torch": theirs}, ROUNDS)
    times |= {name: timed.median for name, timed in finalists.items()}
    faster = theirs.median < min(times.values())
    return theirs.median, kernel_of_torch(inputs.torch_launches()[0]) if faster else "", times


def rows(
    seed: int, count: int, seconds: float
) -> Iterator[tuple[Shape, float, str, dict[str, float]]]:
    end = time.monotonic() + seconds
    chance = random.Random(seed)
    products = [product(chance) for _ in range(count)]
    chosen = [choose(arguments(*each), chance) for each in products]
    # Compile each kernel once, in front: nothing else uses the host while kernels are timed.
    programs = {
        kernel.metadata.kernel_name: (kernel, each)
        for each, kernels in zip(products, chosen, strict=True)
        for kernel in kernels
    }
    with ThreadPoolExecutor() as pool:
        compiled = pool.map(lambda pair: pair[0].compile(arguments(*pair[1])), programs.values())
        for _ in track(compiled, "compile", len(programs)):
            pass
    for (shape, dtype), kernels in zip(track(products, "time"), chosen, strict=True):
        if time.monotonic() > end:
            return
        yield shape, *measure(shape, dtype, kernels)
        torch.cuda.empty_cache()


def as_text(document: dict[str, Any]) -> str:
    """JSON with one problem a line."""

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
    parser.add_argument("name")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=500)
    options = parser.parse_args()

    document = json.loads(TIMINGS.read_text())
    if options.name in document:
        parser.error(f"a set named {options.name} exists; choose another name")
    numbers = {kernel: number for number, kernel in enumerate(document["kernels"])}
    timed = document[options.name] = []
    try:
        for shape, theirs, their_kernel, times in rows(
            options.seed, options.count, options.seconds
        ):
            ours = [
                [numbers.setdefault(kernel, len(numbers)), round(time, 3)]
                for kernel, time in times.items()
            ]
            timed.append(
                [shape.m, shape.n, shape.k, shape.layout, round(theirs, 3), their_kernel, ours]
            )
    finally:
        document["kernels"] = list(numbers)
        options.out.write_text(as_text(document))


if __name__ == "__main__":
    main()
