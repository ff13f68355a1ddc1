"""Maps the names of a file to those of a model."""

import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from cutlass_api.weights import Weight

#: The mark of tensors that transformers' initialization leaves alone.
INITIALIZED = "_is_hf_initialized"
# Models such as GPT-2 initialize the weights of layers that their modules contain.
setattr(Weight, INITIALIZED, True)

#: The tested releases of transformers: from the first one, and before the second one.
TESTED = ("5.24", "5.25")


def is_pretrained(model: torch.nn.Module) -> bool:
    """Whether a model is one of transformers."""
    utils = sys.modules.get("transformers.modeling_utils")
    return utils is not None and isinstance(model, utils.PreTrainedModel)


def check_version() -> None:
    """Warns of a transformers that is not tested."""
    import transformers

    version = tuple(int(part) for part in re.findall(r"\d+", transformers.__version__)[:2])
    first, after = (tuple(map(int, each.split("."))) for each in TESTED)
    if not first <= version < after:
        warnings.warn(
            f"transformers is {transformers.__version__}, and cutlass_api is tested with "
            f"{TESTED[0]} up to, and without, {TESTED[1]}; compare the logits, or install "
            f"transformers=={TESTED[0]}.*",
            stacklevel=3,
        )


class Names:
    """The names of a model for those of a file. transformers' models have rules for names, and
    converters, which make several tensors one, or one several. ``expected``: by the names of the
    model.
    """

    def __init__(self, model: torch.nn.Module, expected: Mapping[str, Any]) -> None:
        self.model, self.expected = model, expected
        self._renamings: list[Any] = []
        self._converters: list[Any] = []
        self._unexpected: set[str] = set()
        self._missing: set[str] = set()
        #: Names of tensors that may have those of others.
        self.tied: dict[str, str] = {}
        self._found: dict[str, tuple[str, str | None]] = {}
        self._is_pretrained = is_pretrained(model)
        if not self._is_pretrained:
            return
        check_version()
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter

        for each in get_model_conversion_mapping(model):
            is_converter = isinstance(each, WeightConverter)
            (self._converters if is_converter else self._renamings).append(each)
        # As PreTrainedModel._adjust_missing_and_unexpected_keys does.
        self._unexpected = set(model._keys_to_ignore_on_load_unexpected or ())
        self._unexpected |= {r"rotary_emb\.inv_freq", r"(^|\.)position_ids$"}
        self._missing = set(model._keys_to_ignore_on_load_missing or ())
        tied = model._tied_weights_keys
        self.tied = dict(tied) if isinstance(tied, Mapping) else {}

    def find(self, name: str) -> tuple[str, str | None]:
        """The name in the model, and the pattern of a converter that it is an operand of."""
        if not self._is_pretrained:
            return name, None
        if name not in self._found:
            self._found[name] = self._renamed(name)
        return self._found[name]

    def _renamed(self, name: str) -> tuple[str, str | None]:
        from transformers.core_model_loading import rename_source_key

        prefix = self.model.base_model_prefix
        target, pattern = rename_source_key(
            name, self._renamings, self._converters, prefix, self.expected
        )
        if target not in self.expected and name in self.expected:
            target, pattern = rename_source_key(name, [], [], prefix, self.expected)
        return target, pattern

    def converter(self, pattern: str) -> Any:
        """A copy of the converter of a pattern."""
        from copy import deepcopy

        found = (each for each in self._converters if pattern in each.source_patterns)
        return deepcopy(next(found))

    def is_unneeded(self, name: str) -> bool:
        """Whether the model says that it does not read a tensor of this name."""
        return any(re.search(pattern, name) for pattern in self._unexpected)

    def is_optional(self, name: str) -> bool:
        """Whether the model says that a file may lack this tensor."""
        return any(re.search(pattern, name) for pattern in self._missing)

    def sorted(self, sources: list[str]) -> list[str]:
        """The operands of a converter: experts by number."""
        from transformers.core_model_loading import dot_natural_key

        return sorted(sources, key=dot_natural_key)
