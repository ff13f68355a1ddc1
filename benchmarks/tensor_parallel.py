"""An MLP whose weights are split between ranks, beside torch's.

Each rank has a part of both weights. The first product is column-parallel, the second one
row-parallel, and an all-reduce adds up the outputs. torch and ours differ in the products and the
activation alone: ``F.silu(F.linear(...))`` and ``cutlass_api.linear(..., activation="silu")``.
"""

import argparse
import json
import os
import statistics
import tempfile
import timeit
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cutlass_api
from cutlass_api.bench import options
from cutlass_api.bench.base import Bench, Document, Entry
from cutlass_api.bench.timing import capture

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
        """Microseconds of one call; on a GPU, the mean of a graph of them."""
        import torch

        if self.device.type == "cpu":
            return lambda: 1e6 * timeit.timeit(method, number=1)
        return capture(torch.cuda.Stream(), [method] * CALLS).turn

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


class TensorParallel(Bench[Row]):
    name, about = "tensor_parallel", "time of an MLP whose weights are split between GPUs"
    title = "MLP split between GPUs"
    row, field, is_gradual = Row, "kernel_alone", False
    columns = (
        ("tokens", lambda row: str(row.tokens), ""),
        ("torch us", "torch", ".1f"),
        ("ours us", "ours", ".1f"),
        ("torch/ours", lambda row: row.torch / row.ours, ".3f"),
        ("kernel us", "kernel", ".1f"),
        ("alone us", "kernel_alone", ".1f"),
        ("alone/kernel", lambda row: row.kernel_alone / row.kernel, ".3f"),
    )

    def add_options(self, command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--ranks", type=options.positive, default=2, help="GPUs, one a process (2)"
        )
        options.add_counts(command, "--tokens", "numbers of tokens", TOKENS)
        options.add_counts(command, "--extents", "hidden and intermediate extents", EXTENTS)
        command.add_argument(
            "--device",
            choices=("cuda", "cpu"),
            default="cuda",
            help="cpu: gloo and the reference, to test this benchmark",
        )
        command.add_argument("--rounds", type=options.positive, default=ROUNDS)

    def device(self, arguments: argparse.Namespace) -> str:
        return "the CPU" if arguments.device == "cpu" else options.device()

    def measure(self, arguments: argparse.Namespace, document: Document) -> list[Row]:
        import torch

        ranks, extents = arguments.ranks, tuple(arguments.extents)
        if arguments.device == "cuda" and torch.cuda.device_count() < ranks:
            found = torch.cuda.device_count()
            raise SystemExit(f"{ranks} ranks need as many GPUs, but torch finds {found}: --ranks")
        if len(extents) != 2 or extents[1] % ranks:
            raise SystemExit(
                f"--extents is {','.join(map(str, extents))}; pass two, the second a multiple of "
                f"{ranks} ranks"
            )
        document |= {"ranks": ranks, "extents": extents}
        return measure(ranks, arguments.device, extents, arguments.tokens, arguments.rounds)

    def heading(self, document: Document) -> str:
        extents = " x ".join(map(str, document["extents"]))
        return f"MLP {extents} in bfloat16, {document['ranks']} ranks ({document['device']})"

    def entries(self, document: Document, rows: Sequence[Row]) -> Iterable[Entry]:
        for row in rows:
            yield Entry(f"{row.tokens} tokens", row.ours, row.torch, row.torch)

    def summary(self, rows: Sequence[Row]) -> dict[str, float]:
        """torch's time over ours, its geometric mean and the lowest; and the lowest ratio of a
        kernel's time on one GPU alone to that beside the others."""
        ratios = [row.torch / row.ours for row in rows]
        return {
            "torch / ours": statistics.geometric_mean(ratios),
            "lowest": min(ratios),
            "lowest alone / kernel": min(row.kernel_alone / row.kernel for row in rows),
        }
