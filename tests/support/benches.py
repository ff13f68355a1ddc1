"""What tests of benchmarks share: commands, results, and clocks in place of a GPU."""

import random
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import cutlass_api.__main__
import torch
from cutlass_api.bench import (
    experts,
    gemm,
    jax,
    ladder,
    latency,
    limits,
    llama,
    model,
    options,
    peers,
    quantize,
    timing,
)

import benchmarks.__main__
from benchmarks import cases, tensor_parallel

ROOT = Path(__file__).parents[2]
CONTEXT = {"device": "a GPU", "torch": "2.15.0"}
PNG = b"\x89PNG"


def run(monkeypatch, *arguments: str | Path, device: str | None = "a GPU") -> None:
    """Runs `python -m cutlass_api` or, if the first argument is no command of it, `python -m
    benchmarks`. ``device``: the GPU that is pretended; None: as found."""
    is_own = arguments[0] in ("bench", "profile", "tune")
    main = cutlass_api.__main__.main if is_own else benchmarks.__main__.main
    monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
    if device:
        monkeypatch.setattr(options, "device", lambda: device)
    main()


def ended(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A command of this project as a process: the module's name and its arguments."""
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=ROOT)


class Clock:
    """Replaces a graph of launches, with a constant time. Runs each launch once."""

    def __init__(self, microseconds: float, launches=()) -> None:
        self.median, self.times = microseconds, [microseconds] * 3
        for launch in launches:
            launch()

    def warm_up(self, seconds: float = 0) -> None: ...

    def turn(self) -> float:
        return self.median


def replace_graphs(monkeypatch, clock) -> None:
    """Calls ``clock(launches)`` in place of the capture of a graph."""
    for module in (timing, experts, gemm, ladder, llama, peers, quantize):
        monkeypatch.setattr(module, "capture", lambda stream, launches: clock(launches))


def use_the_cpu(monkeypatch) -> None:
    """Creates tensors of the benchmarks on the CPU."""

    def on_cpu(create, *args, device=None, **others):
        return create(*args, **others)

    for name in ("empty", "ones", "rand", "randint", "randn"):
        monkeypatch.setattr(torch, name, partial(on_cpu, getattr(torch, name)))
    move = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda *args, **others: on_cpu(move, *args, **others))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(limits, "l2_bytes", lambda: 1 << 15)


def gemm_rows(
    count: int, seed: int = 0, noise: float = 0.0, slower: dict[int, float] | None = None
):
    """Rows whose times are equal for all seeds, but for the noise and for factors by row."""
    draw = random.Random(seed)
    rows = []
    for at in range(count):
        clock = 1 + draw.gauss(0, noise)
        ours, torch = (clock * time * (1 + draw.gauss(0, noise)) for time in (10.0 + at, 12.0 + at))
        ours *= (slower or {}).get(at, 1)
        extents = (64 * (at + 1), 256, 256)
        one = ("tt", torch, ours, ours, 5.0, "sm90_a", "sm90_b", 3)
        rows.append(gemm.Row("square", "float16", extents, *one))
    return rows


LLAMA = [
    llama.Row("int8", 16, (4096, 4096), None, None, 8.0, 7.5, "a", "b", 4.0),
    llama.Row("int8", 64, (12288, 4096), 30.0, 40.0, 20.0, 20.0, "a", "a", 15.0),
    llama.Row("int8", 256, (12288, 4096), 80.0, None, 20.0, 20.0, "a", "a", 15.0),
]


MODELS = [
    model.Row(
        *("qwen3-8b", 1, 8, 0, 2),
        microseconds={"eager": 400.0, "compiled": 300.0, "ours": 250.0, "int4": 100.0},
        limits={"eager": 200.0, "compiled": 200.0, "ours": 200.0, "int4": 50.0},
        compile_seconds={"compiled": 40.0, "ours": 30.0, "int4": 20.0},
        errors={"compiled": 4e-3, "ours": 3e-3, "int4": 3e-3},
        turns={"compiled": [290.0, 300.0, 310.0], "ours": [240.0, 250.0, 260.0]},
    ),
    model.Row(
        *("qwen3-8b", 2, 16, 64, 36),
        microseconds={"eager": 20000.0, "compiled": 8000.0, "ours": 5000.0},
        limits={"eager": 4000.0, "compiled": 4000.0, "ours": 4000.0, "int4": 1000.0},
        compile_seconds={"compiled": 400.0, "ours": 300.0},
        errors={"compiled": 2e-2, "ours": 2e-2},
        failures={"int4": "RuntimeError: out of memory"},
    ),
]


def of(rows: list, **others) -> dict:
    """A document with these rows."""
    return {**CONTEXT, **others, "rows": [asdict(row) for row in rows]}


def results() -> dict[str, dict]:
    """A document of each benchmark. torch is faster in a row of `gemm` and in one of `latency`."""
    launches = [
        latency.Row("native floor: cuLaunchKernelEx in a loop", 2.0, 1.0, "sm90_a"),
        latency.Row("run, assume_supported_args, stream given", 2.2, 1.1),
        latency.Row("cutlass_api.matmul(a, b)", 6.0, 3.0),
        latency.Row("a @ b", 3.0, 1.5),
    ]
    quantized = [
        quantize.Row("per_row", "float32", "int8", (16, 32), 10.0, 8_000_000, 0.8),
        quantize.Row("per_row", "float32", "int8", (32, 32), 20.0, 8_000_000, 0.4),
    ]
    mixtures = [
        experts.Row("mixtral-8x7b", "layer", tokens, 30.0, 20.0, 15.0, 5e-3) for tokens in (1, 32)
    ]
    times = {"compiled": 30.0, "ours": 20.0}
    models = [cases.Row("mlp", (16,), 8, times), cases.Row("mlp", (64,), 8)]
    steps = {ladder.STEPS[0].name: 90.0, ladder.TORCH: 10.0, ladder.LIBRARY: 9.0}
    mnk = (4096, 4096, 4096)
    split = [tensor_parallel.Row(16, 12.0, 10.0, 4.0, 3.0)]
    return {
        "latency": of(launches, extent=128),
        "gemm": of(gemm_rows(4, slower={2: 1.4})),
        "ladder": of(ladder.rows(steps, mnk, {}), mnk=mnk, rates=limits.peak_rates(90)),
        "llama": of(LLAMA[:1]),
        "experts": of(mixtures, copy_rate=1e12),
        "model": of(MODELS[:1]),
        "quantize": of(quantized, copy_rate=1e12),
        "jax": of([jax.Row("a product", 10.0, 12.0, (9.0, 11.0), (11.0, 13.0))], jax="0.10.2"),
        "compile": of(models),
        "tensor_parallel": of(split, ranks=2, extents=(32, 64)),
    }
