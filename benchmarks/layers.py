"""Times of ``cutlass_api.nn`` on a GPU: ``python -m benchmarks.layers [convert] [load] [eager]``.

- ``convert``: quantizes the linear layers of a model of Llama-3-8B's size, 8.0 billion parameters.
- ``load``: fills a model from two shards of bfloat16, beside ``safetensors.torch.load_file``.
- ``eager``: a decoder layer of Llama-3-8B at one token, beside ``torch.nn.Linear``.

Prints a line of JSON for each result. Weights are random.
"""

import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cutlass_api
import torch
from torch import Tensor, nn
from torch.nn import functional

SCHEMES = (
    *("fp8", "int8", "fp8-block", "fp8-weight", "int8-weight"),
    *("int4", "uint4", "mxfp4", "nvfp4"),
)
#: Llama-3-8B: hidden and intermediate sizes, heads, heads of keys and values, layers, tokens.
HIDDEN, INTERMEDIATE, HEADS, SHARED_HEADS, LAYERS, TOKENS = 4096, 14336, 32, 8, 32, 128256
#: Layers of a checkpoint of 4 GB.
LOADED_LAYERS = 9
#: Calls of a turn, and turns.
CALLS, TURNS = 50, 15


class Layer(nn.Module):
    """A decoder layer that attends to the tokens of the call alone."""

    def __init__(self) -> None:
        super().__init__()
        head = HIDDEN // HEADS
        self.norms = nn.ParameterList(torch.ones(HIDDEN) for _ in range(2))
        self.q = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.k = nn.Linear(HIDDEN, SHARED_HEADS * head, bias=False)
        self.v = nn.Linear(HIDDEN, SHARED_HEADS * head, bias=False)
        self.o = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.up_proj = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.down_proj = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = functional.rms_norm(x, (HIDDEN,), self.norms[0])
        parts = [each(normed).unflatten(-1, (-1, HIDDEN // HEADS)) for each in self.qkv()]
        q, k, v = (part.transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).flatten(2))
        normed = functional.rms_norm(x, (HIDDEN,), self.norms[1])
        gated = functional.silu(self.gate_proj(normed)) * self.up_proj(normed)
        out: Tensor = x + self.down_proj(gated)
        return out

    def qkv(self) -> tuple[nn.Module, ...]:
        return self.q, self.k, self.v


class Llama(nn.Module):
    """What quantization sees of Llama-3-8B: by default ``lm_head`` stays as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(TOKENS, HIDDEN)
        self.layers = layers_of(LAYERS, "meta")
        self.norm = nn.RMSNorm(HIDDEN)
        self.lm_head = nn.Linear(HIDDEN, TOKENS, bias=False)


def layers_of(count: int, device: str = "cuda") -> nn.Sequential:
    """On the GPU, with random weights; on ``meta``, with none."""
    with torch.device("meta"):
        model = nn.Sequential(*(Layer() for _ in range(count))).bfloat16()
    if device != "meta":
        fill(model)
    return model


def fill(model: nn.Module) -> None:
    """Random weights on the GPU."""
    model.to_empty(device="cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.02)
    model.requires_grad_(False)


def seconds(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def tell(**fields: Any) -> None:
    rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in fields.items()}
    print(json.dumps(rounded), flush=True)


def convert() -> None:
    for scheme in SCHEMES:
        first = seconds(partial(cutlass_api.nn.convert, layers_of(1), scheme))
        with torch.device("meta"):
            model = Llama().bfloat16()
        fill(model)
        count = sum(each.numel() for each in model.parameters())
        taken = seconds(partial(cutlass_api.nn.convert, model, scheme))
        tell(bench="convert", scheme=scheme, parameters=count, seconds=taken, first_layer=first)
        del model


def peak_memory(call: Callable[[], float]) -> tuple[float, float]:
    """What the call returns, and the bytes by which the host's memory of the process grew."""
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = status("VmRSS")
    return call(), status("VmHWM") - before


def status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * int(next(line for line in lines if line.startswith(name)).split()[1])


def load() -> None:
    from safetensors.torch import load_file, save_file

    with tempfile.TemporaryDirectory() as folder:
        state = {name: x.cpu() for name, x in layers_of(LOADED_LAYERS).state_dict().items()}
        names = list(state)
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        files = [Path(folder) / f"model-{at}-of-00002.safetensors" for at in ("00001", "00002")]
        index: dict[str, str] = {}
        for file, half in zip(files, halves, strict=True):
            save_file({name: state[name] for name in half}, file)
            index |= dict.fromkeys(half, file.name)
        total = sum(file.stat().st_size for file in files)
        document = {"metadata": {"total_size": total}, "weight_map": index}
        (Path(folder) / "model.safetensors.index.json").write_text(json.dumps(document))
        (Path(folder) / "config.json").write_text("{}")
        del state

        def ours() -> float:
            model = layers_of(LOADED_LAYERS, "meta")
            return seconds(lambda: cutlass_api.nn.load(model, folder, device="cuda"))

        def peers() -> float:
            return seconds(lambda: [load_file(file, device="cuda") for file in files])

        for turn in range(4):
            for name, call in (("ours", ours), ("safetensors", peers)):
                taken, memory = peak_memory(call)
                shards = 2 * memory / total
                tell(bench="load", turn=turn, by=name, bytes=total, seconds=taken, shards=shards)


@torch.no_grad()
def eager() -> None:
    x = torch.randn(1, 1, HIDDEN, device="cuda", dtype=torch.bfloat16)
    layers = {"nn.Linear": layers_of(1)[0]}
    for scheme in SCHEMES:
        model = layers_of(1)
        with contextlib.redirect_stdout(io.StringIO()):
            cutlass_api.nn.convert(model, scheme)
        layers[scheme] = model[0]
    for layer in layers.values():
        for _ in range(20):
            layer(x)
    walls: dict[str, list[float]] = {name: [] for name in layers}
    hosts: dict[str, list[float]] = {name: [] for name in layers}
    for _ in range(TURNS):
        for name, layer in layers.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                layer(x)
            hosts[name].append((time.perf_counter() - start) / CALLS * 1e6)
            torch.cuda.synchronize()
            walls[name].append((time.perf_counter() - start) / CALLS * 1e6)
    theirs = statistics.median(walls["nn.Linear"])
    for name in layers:
        wall, host = statistics.median(walls[name]), statistics.median(hosts[name])
        gpu = in_graph(layers[name], x)
        tell(bench="eager", layer=name, us=wall, host_us=host, gpu_us=gpu, ratio=wall / theirs)


def in_graph(layer: nn.Module, x: Tensor) -> float:
    """Microseconds of a replay, of ten calls in a CUDA graph, for one."""
    graph, calls = torch.cuda.CUDAGraph(), 10
    with torch.cuda.graph(graph):
        for _ in range(calls):
            layer(x)
    graph.replay()
    return min(seconds(graph.replay) for _ in range(TURNS)) / calls * 1e6


if __name__ == "__main__":
    for name in sys.argv[1:] or ("eager", "convert", "load"):
        {"convert": convert, "load": load, "eager": eager}[name]()
