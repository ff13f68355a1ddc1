"""Small models of transformers' library, random, as Inductor compiles them for a GPU."""

import copy
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import transformers
from torch._guards import TracingContext
from torch.fx.node import map_aggregate

from support.pretended_gpu import Lowered, lower_graph, trace

#: As max-autotune.
TUNED = {"coordinate_descent_tuning": True}
SIZES: dict[str, Any] = dict(
    vocab_size=256,
    hidden_size=128,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=384,
)
GPT2_SIZES: dict[str, Any] = dict(vocab_size=256, n_embd=128, n_layer=1, n_head=2, n_positions=32)
T5_SIZES: dict[str, Any] = dict(vocab_size=256, d_model=128, d_kv=64, d_ff=384, num_layers=1)


def ids(rows: int, tokens: int) -> torch.Tensor:
    return torch.zeros(rows, tokens, dtype=torch.int64)


def of_tokens(tokens: int) -> dict[str, Any]:
    return {"input_ids": ids(1, tokens), "use_cache": False}


def of_rows(rows: int) -> dict[str, Any]:
    return {"input_ids": ids(rows, 16)}


def of_images(images: int) -> dict[str, Any]:
    return {"pixel_values": torch.zeros(images, 3, 32, 32, dtype=torch.bfloat16)}


def of_both(tokens: int) -> dict[str, Any]:
    """An encoder of eight tokens, and a decoder."""
    return {"input_ids": ids(1, 8), "decoder_input_ids": ids(1, tokens), "use_cache": False}


#: The configuration of each model, and its inputs for a number of tokens, rows or images.
MODELS: dict[str, tuple[Callable[..., Any], Callable[[int], dict[str, Any]]]] = {
    "llama": (partial(transformers.LlamaConfig, **SIZES, num_key_value_heads=1), of_tokens),
    "qwen3": (
        partial(transformers.Qwen3Config, **SIZES, num_key_value_heads=1, head_dim=64),
        of_tokens,
    ),
    "gemma2": (
        partial(transformers.Gemma2Config, **SIZES, num_key_value_heads=1, head_dim=64),
        of_tokens,
    ),
    "gpt2": (
        partial(transformers.GPT2Config, **GPT2_SIZES, bos_token_id=0, eos_token_id=0),
        of_tokens,
    ),
    "bert": (partial(transformers.BertConfig, **SIZES), of_rows),
    "vit": (
        lambda **options: transformers.ViTConfig(
            **{key: value for key, value in SIZES.items() if key != "vocab_size"},
            image_size=32,
            patch_size=8,
            **options,
        ),
        of_images,
    ),
    "t5": (
        partial(transformers.T5Config, **T5_SIZES, num_heads=2, feed_forward_proj="gated-gelu"),
        of_both,
    ),
    "mamba": (
        lambda attn_implementation: transformers.MambaConfig(
            vocab_size=256, hidden_size=128, num_hidden_layers=1
        ),
        # The scan of several tokens is a loop in Python.
        lambda rows: {"input_ids": ids(rows, 1), "use_cache": False},
    ),
}

#: Models, and numbers of tokens, rows or images.
CASES = [
    *(("llama", 8), ("qwen3", 8), ("gemma2", 8), ("gpt2", 8)),
    *(("bert", 8), ("vit", 1), ("t5", 1), ("mamba", 8)),
]


def moved(arg: Any) -> Any:
    return torch.device("cuda", 0) if isinstance(arg, torch.device) else arg


@cache
def graph_of(name: str, count: int, attention: str = "eager") -> tuple[Any, Any, Any]:
    """The graph of a model in bfloat16 for CUDA tensors, its FakeTensors, and their mode."""
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(make(attn_implementation=attention))
    graphs: list[tuple[Any, Any, Any]] = []

    def backend(captured: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        placeholders = captured.graph.find_nodes(op="placeholder")
        fakes = [node.meta["example_value"] for node in placeholders]
        on_gpu = copy.deepcopy(captured)
        for node in on_gpu.graph.nodes:
            node.args, node.kwargs = map_aggregate((node.args, node.kwargs), moved)
        mode = TracingContext.get().fake_mode
        graphs.append((*trace(torch.fx.Interpreter(on_gpu).run, fakes, mode, TUNED), mode))
        return captured.forward

    torch.compiler.reset()
    with torch.no_grad():
        torch.compile(model.bfloat16().eval(), backend=backend, fullgraph=True)(**inputs(count))
    (graph,) = graphs
    return graph


def lower_model(
    name: str, count: int, prefers: Callable[[Any], bool], attention: str = "eager"
) -> Lowered:
    """Inductor's code for a model. prefers: names the choices that are the fastest."""
    traced, fakes, mode = graph_of(name, count, attention)
    return lower_graph(copy.deepcopy(traced), fakes, mode, prefers, TUNED)
