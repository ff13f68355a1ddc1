"""``bench tensor_parallel``: an MLP whose weights are split between ranks, beside torch's.

Each rank has a part of both weights. The first product is column-parallel, the second one
row-parallel, and an all-reduce adds up the outputs. torch and ours differ in the products and the
activation alone: ``F.silu(F.linear(...))`` and ``cutlass_api.linear(..., activation="silu")``.
"""

import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

#: Hidden and intermediate extents of the MLP.
EXTENTS = (8192, 28672)
TOKENS = (1, 16, 512, 4096)
#: Rounds of all methods in turns; calls of a method in one turn.
ROUNDS = 20
CALLS = 10


@dataclass(frozen=True)
class Row:
    """The times of one MLP in microseconds, of the slowest rank.

    ``kernel``: the first product of a rank while all ranks compute; ``kernel_alone``: while the
    other ranks wait.
    """

    tokens: int
    torch: float
    ours: float
    kernel: float
    kernel_alone: float


class Rank:
    """The operands and the methods of one rank."""

    def __init__(self, rank: int, ranks: int, device: Any, extents: tuple[int, int]) -> None:
        import torch

        hidden, intermediate = extents
        self.rank, self.device = rank, device
        generator = torch.Generator(device).manual_seed(rank)

        def weight(rows: int, columns: int) -> Any:
            options = {"device": device, "dtype": torch.bfloat16, "generator": generator}
            return torch.randn(rows, columns, **options) * columns**-0.5

        self.up = weight(intermediate // ranks, hidden)
        self.down = weight(hidden, intermediate // ranks)

    def mlp(self, linear: Callable[..., Any], x: Any) -> Any:
        import torch.distributed

        out = linear(linear(x, self.up, "silu"), self.down, None)
        torch.distributed.all_reduce(out)
        return out

    def row(self, tokens: int, rounds: int) -> Row:
        import torch

        # The same rows on each rank, since the input of the MLP is replicated.
        generator = torch.Generator(self.device).manual_seed(tokens)
        x = torch.randn(
            *(tokens, self.up.shape[1]),
            device=self.device,
            dtype=torch.bfloat16,
            generator=generator,
        )
        with torch.no_grad():
            found = {name: self.mlp(linear, x) for name, linear in LINEARS.items()}
            error = (found["ours"].double() - found["torch"].double()).norm()
            if not error <= 2e-2 * found["torch"].double().norm():
                raise AssertionError(f"{tokens} tokens: the outputs differ by a norm of {error:g}")
            methods = {
                **{name: partial(self.mlp, linear, x) for name, linear in LINEARS.items()},
                "kernel": partial(LINEARS["ours"], x, self.up, "silu"),
            }
            timers = {name: self.timer(method) for name, method in methods.items()}
            times: dict[str, list[float]] = {name: [] for name in (*timers, "kernel_alone")}
            for _ in range(rounds):
                for name, timer in timers.items():
                    times[name].append(self.slowest(timer()))
                # The first rank computes, the others wait in the collective.
                alone = timers["kernel"]() if self.rank == 0 else 0.0
                times["kernel_alone"].append(self.slowest(alone))
        return Row(tokens, **{name: statistics.median(each) for name, each in times.items()})

    def timer(self, method: Callable[[], Any]) -> Callable[[], float]:
        """Microseconds of one call, the mean of a few; on a GPU, replays of a graph of them."""
        import torch

        if self.device.type == "cpu":

            def seconds() -> float:
                begin = time.perf_counter()
                method()
                return 1e6 * (time.perf_counter() - begin)

            return seconds
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                method()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                kept = [method() for _ in range(CALLS)]

        def replay() -> float:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.stream(stream):
                begin.record()
                graph.replay()
                end.record()
            end.synchronize()
            return 1e3 * float(begin.elapsed_time(end)) / len(kept)

        return replay

    def slowest(self, microseconds: float) -> float:
        """The time of the slowest rank. All ranks start the next measurement together."""
        import torch

        longest = torch.tensor(microseconds, device=self.device)
        torch.distributed.all_reduce(longest, op=torch.distributed.ReduceOp.MAX)
        return float(longest)


def torch_linear(x: Any, weight: Any, activation: str | None) -> Any:
    from torch.nn import functional

    out = functional.linear(x, weight)
    return functional.silu(out) if activation else out


def our_linear(x: Any, weight: Any, activation: str | None) -> Any:
    import cutlass_api

    return cutlass_api.linear(x, weight, None, activation)


LINEARS: dict[str, Callable[..., Any]] = {"torch": torch_linear, "ours": our_linear}


def run_rank(
    rank: int,
    ranks: int,
    kind: str,
    extents: tuple[int, int],
    tokens: Sequence[int],
    rounds: int,
    folder: str,
) -> None:
    """The work of a process: measures, and writes the rows of the first rank."""
    import torch

    device = torch.device("cpu") if kind == "cpu" else torch.device("cuda", rank)
    if kind == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    store = torch.distributed.FileStore(os.path.join(folder, "store"), ranks)
    backend = "gloo" if kind == "cpu" else "nccl"
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    try:
        this = Rank(rank, ranks, device, extents)
        rows = [asdict(this.row(count, rounds)) for count in tokens]
        if rank == 0:
            Path(folder, "rows.json").write_text(json.dumps(rows))
    finally:
        torch.distributed.destroy_process_group()


def measure(
    ranks: int,
    kind: str,
    extents: tuple[int, int] = EXTENTS,
    tokens: Sequence[int] = TOKENS,
    rounds: int = ROUNDS,
) -> list[Row]:
    """Times the MLP on as many GPUs as ranks (``kind`` "cuda"), or in as many processes ("cpu")."""
    import torch.multiprocessing

    # NVLink multicast is no part of the comparison.
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with tempfile.TemporaryDirectory() as folder:
        arguments = (ranks, kind, extents, list(tokens), rounds, folder)
        # CUDA does not survive a fork; without it, a fork saves the import of torch.
        method = "fork" if kind == "cpu" else "spawn"
        torch.multiprocessing.start_processes(
            run_rank, arguments, nprocs=ranks, start_method=method
        )
        rows = json.loads(Path(folder, "rows.json").read_text())
    return [Row(**row) for row in rows]


HEADER = ("tokens", "torch us", "ours us", "torch/ours", "kernel us", "alone us", "alone/kernel")


def line(row: Row) -> tuple[str, ...]:
    """The cells of a row of the table."""
    return (
        str(row.tokens),
        *(f"{time:.1f}" for time in (row.torch, row.ours)),
        f"{row.torch / row.ours:.3f}",
        *(f"{time:.1f}" for time in (row.kernel, row.kernel_alone)),
        f"{row.kernel_alone / row.kernel:.3f}",
    )


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """torch's time over ours, its geometric mean and the lowest; and the lowest ratio of a kernel's
    time on one GPU alone to that beside the others."""
    ratios = [row.torch / row.ours for row in rows]
    return {
        "torch / ours": math.exp(sum(map(math.log, ratios)) / len(ratios)),
        "lowest": min(ratios),
        "lowest alone / kernel": min(row.kernel_alone / row.kernel for row in rows),
    }


def write_json(path: Path, context: dict[str, Any], rows: Sequence[Row]) -> None:
    document = {**context, "summary": summary(rows), "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(document, indent=1) + "\n")


__all__ = ["EXTENTS", "TOKENS", "Row", "measure", "summary", "write_json"]
