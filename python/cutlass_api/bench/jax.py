"""Time of :mod:`cutlass_api.jax` under ``jit``, beside ``jax.numpy``.

A turn of a method is 20 calls of one compiled function, and a wait for the last one: JAX enqueues
calls without waiting. The methods take turns, and results are medians.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cutlass_api.bench.base import Bench, Document, Entry, both, deviation
from cutlass_api.bench.timing import ROUNDS
from cutlass_api.profiling import quartiles

CALLS = 20
#: Extents of the square product; of the MLP: rows, the model's width, and the width within.
EXTENT = 128
MLP = (16, 4096, 11008)


@dataclass(frozen=True)
class Row:
    """The times of a function, with the quartiles of the turns."""

    function: str
    microseconds: float
    jax_microseconds: float
    quartiles: tuple[float, float]
    jax_quartiles: tuple[float, float]

    @property
    def ratio(self) -> float:
        return self.jax_microseconds / self.microseconds


def functions() -> Iterator[tuple[str, Sequence[Callable[..., Any]], Sequence[Any]]]:
    """Name, our function and JAX's, and their arguments in float16."""
    # By default, JAX allocates three quarters of the GPU's memory with its first array.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import jax.numpy as jnp

    from cutlass_api.jax import linear, matmul

    def random(rows: int, depth: int) -> Any:
        """Values whose products have a variance near 1."""
        return jax.random.normal(jax.random.key(rows), (rows, depth), jnp.float16) / depth**0.5

    square = random(EXTENT, EXTENT)
    yield f"{EXTENT} x {EXTENT} x {EXTENT}", (matmul, jnp.dot), (square, square)

    def ours(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return linear(linear(x, gate, None, "silu") * linear(x, up), down)

    def theirs(x: Any, gate: Any, up: Any, down: Any) -> Any:
        return (jax.nn.silu(x @ gate.T) * (x @ up.T)) @ down.T

    rows, outer, inner = MLP
    weights = random(inner, outer), random(inner, outer), random(outer, inner)
    name = f"gated MLP of {outer} x {inner}, {rows} rows"
    yield name, (ours, theirs), (outer**0.5 * random(rows, outer), *weights)


def measure() -> Iterator[Row]:
    import jax

    def turn(function: Callable[..., Any], arguments: Sequence[Any]) -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            out = function(*arguments)
        jax.block_until_ready(out)
        return 1e6 * (time.perf_counter() - start) / CALLS

    for name, pair, arguments in functions():
        ours, theirs = map(jax.jit, pair)
        for each in (ours, theirs):
            turn(each, arguments)
        turns = [(turn(ours, arguments), turn(theirs, arguments)) for _ in range(ROUNDS)]
        our_times, jax_times = ([*times] for times in zip(*turns, strict=True))
        medians = median(our_times), median(jax_times)
        yield Row(name, *medians, quartiles(our_times), quartiles(jax_times))


class Jax(Bench[Row]):
    name, about = "jax", "products of JAX arrays under jit, beside jax.numpy"
    title, control = "JAX", "jax.numpy"
    row, field = Row, "function"
    columns = (
        ("float16", "function", ""),
        ("us", "microseconds", ".1f"),
        ("us of jax.numpy", "jax_microseconds", ".1f"),
        ("ratio", "ratio", ".2f"),
    )

    def measure(self, arguments: argparse.Namespace, document: Document) -> Iterator[Row]:
        import jax

        document["jax"] = jax.__version__
        return measure()

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        for row in rows:
            noise = both(
                deviation(row.microseconds, row.quartiles),
                deviation(row.jax_microseconds, row.jax_quartiles),
            )
            theirs = row.jax_microseconds
            yield Entry(row.function, row.microseconds, theirs, theirs, noise)
