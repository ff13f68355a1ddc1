"""Finds the mixtures of experts of a model, and replaces them by :class:`Experts`."""

from collections import Counter
from collections.abc import Callable, Collection
from copy import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlass_api._dtypes import FLOATS
from cutlass_api.nn._experts import Gate
from cutlass_api.nn._layers import Layer, altered, original, skipped
from cutlass_api.nn._mixture import Experts
from cutlass_api.nn._schemes import Scheme
from cutlass_api.nn._stacks import SERVED
from cutlass_api.ops import _epilogues
from cutlass_api.weights._adjacent import identity

#: What ``transformers.integrations.moe.use_experts_implementation`` sets in a module.
FLAGS = ("has_gate", "has_bias", "is_transposed", "is_concatenated", "has_post_expert_norm")
#: The gate of gpt-oss.
CLAMPED = "transformers.models.gpt_oss.modeling_gpt_oss.GptOssExperts._apply_gate"


def is_mixture(module: Any) -> bool:
    """Whether a module is one of transformers' experts, of any model."""
    return hasattr(type(module), "_apply_gate") and all(hasattr(module, each) for each in FLAGS)


class Operands(NamedTuple):
    """What :class:`Experts` is made of. ``up``, ``down``: tensors of three dimensions."""

    up: Tensor
    down: Tensor
    up_bias: Tensor | None
    down_bias: Tensor | None
    activation: Any
    interleaved: bool
    transposed: bool

    def matrices(self) -> tuple[Tensor, Tensor]:
        """Up and down as (experts, N, K), without gradients."""
        up, down = (each.detach() for each in (self.up, self.down))
        return (up.mT, down.mT) if self.transposed else (up, down)

    def layer(self) -> Experts:
        """The layer in the dtype of the tensors, which it takes."""
        flags: Any = {"interleaved": self.interleaved, "transposed": self.transposed}
        return Experts(self.up, self.down, self.up_bias, self.down_bias, self.activation, **flags)

    def quantized(self, scheme: Scheme) -> Experts:
        """The layer with quantized weights."""
        up, down = (scheme.quantize(each) for each in self.matrices())
        flags: Any = {"interleaved": self.interleaved, "activations": scheme.activations}
        return Experts(up, down, self.up_bias, self.down_bias, self.activation, **flags)


def operands(module: Any) -> Operands:
    """Those of a module that :func:`unfit` does not refuse."""
    if isinstance(module, Experts):
        return Operands(
            *(module.up, module.down, *module.biases()),
            *(module.activation, module.interleaved, module.transposed),
        )
    up, down = names_of(module)
    of_up, of_down = (
        getattr(module, f"{name}_bias") if module.has_bias else None for name in (up, down)
    )
    activation: Any = activation_of(module)
    interleaved = False
    if isinstance(activation, Gate):
        activation, interleaved = activation
    elif module.has_gate:
        activation = ApplyGate(module)
    weights = getattr(module, up), getattr(module, down)
    return Operands(*weights, of_up, of_down, activation, interleaved, module.is_transposed)


def names_of(module: Any) -> tuple[str, str]:
    """The names of up and down in a module of transformers."""
    return "gate_up_proj" if module.has_gate else "up_proj", "down_proj"


def activation_of(module: Any) -> Callable[[Tensor], Tensor] | Gate:
    """What :func:`experts` takes as ``activate`` for a module of transformers."""
    function: Callable[[Tensor], Tensor]
    if not module.has_gate:
        function = module.act_fn
        return function
    function = module._apply_gate
    path = f"{function.__module__}.{function.__qualname__}"
    # The default gate is a function beside the decorator.
    is_default = function.__module__ == "transformers.integrations.moe"
    if is_default and type(module.act_fn).__name__ in ("SiLU", "SiLUActivation"):
        return Gate("silu")
    if path == CLAMPED:
        return Gate(_epilogues.clamped_swiglu(module.limit, module.alpha), is_interleaved=True)
    return function


class ApplyGate:
    """``_apply_gate`` of a module of transformers, as gpt-oss clamps, without its parameters."""

    def __init__(self, module: Any) -> None:
        self.module = copy(module)
        self.module._parameters = {}

    def __call__(self, columns: Tensor) -> Tensor:
        result: Tensor = self.module._apply_gate(columns)
        return result

    def __repr__(self) -> str:
        return f"{type(self.module).__qualname__}._apply_gate"


def unfit(module: Any) -> str | None:
    """Why a module itself cannot be replaced; None if it can."""
    if isinstance(module, Experts):
        forms = [form for form in module.formats.values() if form is not None]
        if forms:
            return f"is a cutlass_api.nn.Experts already ({forms[0]})"
    elif module.has_post_expert_norm:
        return "has a norm behind each expert; call model.set_experts_implementation"
    if reason := altered(module):
        return reason
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    if isinstance(module, Experts):
        names: Collection[str] = module.formats
    else:
        names = names_of(module)
    expected = {*names, *(f"{name}_bias" for name in names)}
    for name, tensor in tensors.items():
        if name not in expected:
            return f"has {name}, too"
        if type(tensor) is not torch.nn.Parameter:
            return f"its {name} is a {type(tensor).__qualname__}"
        if tensor.dtype not in (torch.float64, *FLOATS):
            return f"its {name} is {tensor.dtype}"
    return None


def find_mixtures(model: torch.nn.Module, scheme: Scheme, skip: Collection[str]) -> list[Layer]:
    """The mixtures by all their names, in the order of ``named_modules``. What is not quantized,
    stays in its dtype: ``result`` says why.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    owners = Counter(
        identity(tensor)
        for module in model.modules()
        for tensor in module._parameters.values()
        if tensor is not None
    )
    layers = []
    for name, module in modules.items():
        is_own = isinstance(module, Experts)
        if not is_own and not is_mixture(module):
            continue
        reason = skipped(original(name), skip) or unfit(module)
        layer = Layer(name, extents(module), reason, id(module), -1)
        layers.append(layer)
        if reason is not None:
            continue
        found = operands(module)
        why = unquantized(found, scheme)
        if why is None and any(owners[identity(each)] > 1 for each in found[:2]):
            why = "another module has its weight, too"
        if why is not None:
            if is_own:
                layer.reason = why
            dtype = str(found.up.dtype).removeprefix("torch.")
            layer.result = f"Experts in {dtype}: {why}"
    return layers


def unquantized(found: Operands, scheme: Scheme) -> str | None:
    """Why a scheme does not quantize experts; None if it does."""
    if scheme.activations not in (*SERVED, None):
        return f"products in groups take no activations {scheme.activations!r}"
    for matrix in found.matrices():
        _, n, k = matrix.shape
        if reason := scheme.refusal((n, k), matrix.dtype):
            return reason
    return None


def extents(module: Any) -> tuple[int, ...]:
    """(experts, N, K) of up."""
    if isinstance(module, Experts):
        return module.extents()
    count, *others = getattr(module, names_of(module)[0]).shape
    return count, *(others[::-1] if module.is_transposed else others)


def replace_mixture(
    model: torch.nn.Module, layer: Layer, scheme: Scheme | None, replaced: dict[int, Experts]
) -> None:
    """Replaces a mixture. ``scheme``: None for the dtype that it has. The old one is freed when the
    function returns.
    """
    home, _, name = layer.name.rpartition(".")
    parent = model.get_submodule(home)
    if layer.module not in replaced:
        module = parent.get_submodule(name)
        found = operands(module)
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(found.up):
            new = found.layer() if scheme is None else found.quantized(scheme)
        replaced[layer.module] = new.train(module.training)
    parent._modules[name] = replaced[layer.module]
