"""The benchmarks, and the JSON files that they write."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutlass_api.bench.base import Bench, Cells, Document, Entry
from cutlass_api.bench.experts import Experts
from cutlass_api.bench.gemm import Gemm
from cutlass_api.bench.jax import Jax
from cutlass_api.bench.ladder import Ladder
from cutlass_api.bench.latency import Latency
from cutlass_api.bench.llama import Llama
from cutlass_api.bench.model import Model
from cutlass_api.bench.quantize import Quantize

#: The commands of `bench` are made from these, and so is what reads their files.
BENCHES: tuple[Bench[Any], ...] = (
    *(Latency(), Gemm(), Ladder(), Llama(), Experts(), Model(), Quantize(), Jax()),
)


@dataclass(frozen=True)
class Results:
    """The results of one benchmark."""

    bench: Bench[Any]
    document: Document
    rows: list[Any]

    def table(self) -> Cells:
        return self.bench.table(self.rows)

    def plot(self, path: Path) -> None:
        self.bench.plot(path, self.document, self.rows)

    def entries(self) -> list[Entry]:
        return list(self.bench.entries(self.document, self.rows))


def parse(document: Any, benches: Sequence[Bench[Any]] = BENCHES) -> Results:
    """Raises ValueError for a document of none of the benchmarks, or without rows."""
    known = ", ".join(f"`bench {bench.name}`" for bench in benches)
    try:
        found = document["rows"]
        bench = next(bench for bench in benches if bench.field in found[0])
        rows = [bench.read(row) for row in found]
        device = document["device"]
    except (KeyError, TypeError, IndexError, StopIteration) as error:
        raise ValueError(f"no results of {known}: {error!r}") from None
    if not isinstance(device, str):
        raise ValueError(f"no results of {known}: its device is {device!r}")
    return Results(bench, document, rows)


def load(path: Path) -> Any:
    """The document of a JSON file. Raises ValueError if it cannot be read or is no JSON."""
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
