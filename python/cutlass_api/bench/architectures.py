"""The models that ``bench model`` builds, by the configurations of their publishers. Weights are
random and nothing is downloaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Architecture:
    """A model of transformers.

    - ``family``: the name of its module in transformers.
    - ``prefix``: of its classes' names: the configuration, and what the next fields name.
    - ``layer``, ``rotary``: of a layer, and of the tables of rotary embeddings.
    - ``config``: arguments of the configuration that differ from its defaults.
    - ``tokens``, ``batches``: the rows by default.
    - ``causal``: of the model that generates text; empty for an encoder.
    """

    family: str
    prefix: str
    layer: str = "DecoderLayer"
    rotary: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    tokens: Sequence[int] = (1, 8, 64)
    batches: Sequence[int] = (1,)
    causal: str = ""

    def make_config(self) -> Any:
        """The configuration, with torch's attention."""
        found = self.class_of("configuration", "Config")
        return found(**self.config, attn_implementation="sdpa")

    def class_of(self, module: str, name: str) -> Any:
        """A class of the model in ``configuration_*.py`` or ``modeling_*.py``."""
        found = import_module(f"transformers.models.{self.family}.{module}_{self.family}")
        return getattr(found, self.prefix + name)

    def with_config(self, **others: Any) -> "Architecture":
        """The same with other arguments of the configuration."""
        return replace(self, config={**self.config, **others})


_LLAMA = partial(Architecture, "llama", "Llama", rotary="RotaryEmbedding", causal="ForCausalLM")
_QWEN3 = partial(Architecture, "qwen3", "Qwen3", rotary="RotaryEmbedding", causal="ForCausalLM")


def _qwen3(hidden: int, intermediate: int, layers: int, heads: int, tied: bool) -> Architecture:
    config = {
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "tie_word_embeddings": tied,
    }
    return _QWEN3(config=config)


ARCHITECTURES = {
    "llama-3-8b": _LLAMA(
        config={
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
            "tie_word_embeddings": False,
        }
    ),
    "qwen3-8b": _qwen3(4096, 12288, 36, 32, tied=False),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32, tied=True),
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16, tied=True),
    # A picture of 224 x 224 has 196 patches and a token for its class.
    "vit-l": Architecture(
        *("vit", "ViT", "Layer"),
        config={
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
        tokens=(197,),
        batches=(8, 64),
    ),
    "bert-large": Architecture(
        *("bert", "Bert", "Layer"),
        config={
            "vocab_size": 30522,
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
        },
        tokens=(128,),
        batches=(8, 64),
    ),
    "gpt2-large": Architecture(
        *("gpt2", "GPT2", "Block"),
        config={"n_embd": 1280, "n_layer": 36, "n_head": 20},
        tokens=(1,),
        batches=(8, 64),
        causal="LMHeadModel",
    ),
}
