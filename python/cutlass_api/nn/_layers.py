"""Finds the linear layers of a model, and why some cannot be replaced."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from cutlass_api.nn._linear import Linear
from cutlass_api.nn._schemes import Scheme
from cutlass_api.weights._adjacent import identity

#: Modules that read the weights of their layers themselves.
READERS = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)
#: What holds the hooks of a module.
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
HOOKS_OF_STATE = (
    *("_state_dict_hooks", "_state_dict_pre_hooks"),
    *("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)
#: Where ``torch.compile`` keeps the module that it wraps.
COMPILED = "_orig_mod"
#: Where PEFT keeps the layer that others adapt.
BASE = "base_layer"
#: Modules of torch that hold the parameters of the modules in them.
HOLDERS = ("DistributedDataParallel", "FullyShardedDataParallel")


@dataclass
class Layer:
    """A linear layer of a model, or a mixture of experts. ``reason``: why it stays; None if it is
    replaced. ``module`` and ``weight``: numbers, which are equal for names of one module, and of
    one weight. ``result``: what it becomes; None: what the scheme says.
    """

    name: str
    shape: tuple[int, ...]
    reason: str | None
    module: int
    weight: int
    result: str | None = None


def find_layers(model: torch.nn.Module, scheme: Scheme, skip: Collection[str]) -> list[Layer]:
    """The linear layers by all their names, in the order of ``named_modules``."""
    modules = dict(model.named_modules(remove_duplicate=False))
    owners: dict[Any, list[str]] = defaultdict(list)
    for name, module in modules.items():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners[identity(parameter)].append(name)
    numbers: dict[Any, int] = {}
    refusals: dict[Any, str | None] = {}

    def refusal(matrix: Tensor) -> str | None:
        key = (matrix.shape, matrix.dtype)
        if key not in refusals:
            refusals[key] = scheme.refusal(*key)
        return refusals[key]

    def number(key: Any) -> int:
        return numbers.setdefault(key, len(numbers))

    layers = {}
    for name, module in modules.items():
        if not isinstance(module, (torch.nn.Linear, Linear)) and not is_conv1d(module):
            continue
        home, _, last = name.rpartition(".")
        reason = skipped(original(name), skip) or unfit(module, modules.get(home))
        reason = reason or adapter(name, modules)
        if last == COMPILED:  # which calls the layer that it has wrapped
            reason = reason or "torch.compile wraps it; convert before"
        weight = -1
        if reason is None:
            matrix = matrix_of(module)
            reason = refusal(matrix)
            weight = number((identity(matrix), is_conv1d(module)))
        layers[name] = Layer(name, extents(module), reason, number(id(module)), weight)
    staying = {name for name in modules if name not in layers or layers[name].reason}
    for layer in layers.values():
        if layer.reason is None:
            named = owners[identity(modules[layer.name].weight)]
            others = [name for name in named if name in staying]
            if others:
                layer.reason = f"shares its weight with {others[0]}"
    return list(layers.values())


def check_patterns(caller: str, name: str, patterns: Any) -> None:
    """Raises TypeError for what is no collection of strings."""
    if isinstance(patterns, str):
        raise TypeError(
            f"{caller}: {name} is a string; pass a sequence of patterns, as ({patterns!r},)"
        )
    is_served = isinstance(patterns, Collection) and all(isinstance(x, str) for x in patterns)
    if not is_served:
        raise TypeError(
            f"{caller}: {name} is {patterns!r}; pass a sequence of patterns, () for none"
        )


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The module that ``torch.compile`` and data parallelism wrap. Names begin there."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while COMPILED in model._modules or isinstance(model, wrappers):
        name = COMPILED if COMPILED in model._modules else "module"
        model = model.get_submodule(name)
    return model


def original(name: str) -> str:
    """A name without the parts that ``torch.compile`` adds."""
    return ".".join(part for part in name.split(".") if part != COMPILED)


def check_unheld(caller: str, model: torch.nn.Module) -> None:
    """Raises ValueError for a model whose parameters a wrapper holds."""
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind.__name__ in HOLDERS and kind.__module__.startswith("torch."):
                raise ValueError(
                    f"{caller}: {kind.__name__} holds the parameters of the model; call {caller} "
                    "before you wrap it"
                )


def skipped(name: str, skip: Iterable[str]) -> str | None:
    """The reason if a pattern matches the name of a layer, or of a module that contains it."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        for pattern in skip:
            if fnmatchcase(".".join(parts[:end]), pattern) or fnmatchcase(parts[end - 1], pattern):
                return f"skip={pattern!r}"
    return None


def adapter(name: str, modules: Mapping[str, torch.nn.Module]) -> str | None:
    """The reason if a layer is beside the one that it adapts, as those of LoRA in PEFT: it is small
    and has gradients.
    """
    parts = name.split(".")
    for end in range(1, len(parts)):
        home = ".".join(parts[:end])
        if BASE in modules[home]._modules and parts[end] != BASE:
            return f"is an adapter of {home}.{BASE}"
    return None


def unfit(module: Any, parent: torch.nn.Module | None) -> str | None:
    """Why the module itself cannot be replaced; None if it can."""
    if isinstance(module, Linear):
        return f"is a cutlass_api.nn.Linear already ({module.format})"
    if isinstance(parent, READERS):
        return f"{type(parent).__name__} reads its weight"
    if hasattr(module, "parametrizations"):
        return "is parametrized"
    if type(module) is not torch.nn.Linear and not is_conv1d(module):
        return f"is a {type(module).__qualname__}, a subclass of torch.nn.Linear"
    weight = module._parameters.get("weight")
    if (reason := altered(module)) is None and type(weight) is not torch.nn.Parameter:
        return f"its weight is a {type(weight).__qualname__}"
    return reason


def altered(module: Any) -> str | None:
    """Whether a module computes or stores something else than its class, as a reason."""
    if any(getattr(module, hooks) for hooks in HOOKS):
        return "has hooks"
    if "forward" in vars(module):
        return "its forward is replaced"
    if any(getattr(module, hooks) for hooks in HOOKS_OF_STATE):
        return "has hooks of its state_dict"
    return None


def is_conv1d(module: Any) -> bool:
    """Whether a module is transformers' Conv1D: a linear layer with a matrix (K, N)."""
    kind = type(module)
    return (kind.__module__, kind.__qualname__) == ("transformers.pytorch_utils", "Conv1D")


def extents(module: Any) -> tuple[int, int]:
    """N and K of a linear layer."""
    if is_conv1d(module):
        return module.nf, module.nx
    return module.out_features, module.in_features


def matrix_of(module: Any) -> Tensor:
    """The matrix (N, K) of a linear layer."""
    weight: Tensor = module.weight.detach()
    return weight.t() if is_conv1d(module) else weight
