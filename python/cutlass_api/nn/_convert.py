"""``convert``: replaces the linear layers of a model."""

from collections.abc import Sequence

import torch

from cutlass_api._progress import progress_bar
from cutlass_api.nn._beside import place_side_by_side
from cutlass_api.nn._expert_modules import find_mixtures, replace_mixture
from cutlass_api.nn._layers import (
    Layer,
    check_patterns,
    check_unheld,
    find_layers,
    matrix_of,
    unwrapped,
)
from cutlass_api.nn._linear import Linear
from cutlass_api.nn._mixture import Experts
from cutlass_api.nn._report import Conversion, bytes_of
from cutlass_api.nn._save import attach
from cutlass_api.nn._schemes import Scheme, scheme_of
from cutlass_api.weights import Weight


def convert(
    model: torch.nn.Module,
    scheme: str,
    *,
    skip: Sequence[str] = ("lm_head", "*router*", "*gate"),
    group: int | None = None,
) -> Conversion:
    """Replaces the linear layers of a model by :class:`Linear` with quantized weights, and its
    mixtures of experts by :class:`Experts`, in place.

    - ``model``: on a GPU, the CPU or ``meta``, also on several devices, and compiled or not. Layers
      are ``torch.nn.Linear`` itself and transformers' Conv1D. Each is quantized on its device, and
      its memory is freed before the next one, unless the caller holds its weight.
    - ``scheme``: weights and activations, see below.
    - ``skip``: patterns of :mod:`fnmatch`. A layer stays if one matches its name, such as
      ``model.layers.0.mlp.gate``, the last part of its name, ``gate``, or those of a module that
      contains it. ``"lm_head"`` matches ``lm_head`` and ``model.lm_head``; ``"*gate"`` matches the
      routers ``mlp.gate`` and ``mlp.shared_expert_gate``, and not ``mlp.gate_proj``;
      ``"*router*"`` matches ``router.layer``, too; ``"vision_tower"`` is all of that module.
    - ``group``: elements of a row that share a scale: 32, 64 or 128, or -1, the whole row, for
      "int8-weight" and the schemes whose function takes ``group``. None: the scheme's default.

    The schemes are:

    - "fp8": weights in float8_e4m3fn, a scale a row. Activations are quantized in each call, alike.
    - "int8": the same in int8.
    - "fp8-block": weights in float8_e4m3fn, a scale for each block of 128 x 128. Activations are
      quantized in each call, with a scale for each 1 x 128.
    - "fp8-weight", "int8-weight": such weights, and activations in 16 bits.
    - a function of :mod:`cutlass_api.quantize` for weights of 4 bits, as "int4": the weights that
      it returns, and activations in 16 bits. The error for an unknown scheme lists all schemes.

    Mixtures are modules that transformers' ``use_experts_implementation`` describes, as those of
    Qwen3-MoE, Mixtral, gpt-oss and DeepSeek-V3, and :class:`Experts`. All schemes quantize their
    weights, but for "int8", whose activations no product in groups takes. Where the scheme does
    not quantize, transformers' modules become :class:`Experts` with the same parameters, in the
    dtype that they have, and the table says why.

    Returns and prints a table of what was replaced, and what not and why. Layers stay that ``skip``
    matches; with sizes or dtypes that the scheme does not serve, as float32 without quantized
    activations; of subclasses of ``torch.nn.Linear``; with hooks, parametrizations or another
    ``forward``; whose weight is no plain parameter, as a DTensor; that are adapters of PEFT, as
    those of LoRA; and those of modules that read the weight themselves,
    ``torch.nn.MultiheadAttention`` and ``torch.nn.TransformerEncoderLayer``.
    Layers that share a weight share the quantized one; if another module or a layer that stays has
    the same weight, all of them stay. Mixtures stay that have a norm behind each expert, hooks, or
    other parameters; those that share a weight are not quantized. A second call changes nothing.

    Weights have no gradients, whatever their ``requires_grad``; biases are the same parameters as
    before. Make the optimizer afterwards.

    Raises ValueError for an unknown scheme or group, if the model itself is a layer, if
    DistributedDataParallel or FullyShardedDataParallel holds its parameters, and if it has no layer
    that can be replaced and none that has been; TypeError for a model that is no module and for
    ``skip`` that is no collection of strings. The model is then unchanged.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"convert: model is {type(model).__name__}; pass a torch.nn.Module")
    check_patterns("convert", "skip", skip)
    check_unheld("convert", model)
    model = unwrapped(model)
    try:
        found = scheme_of(scheme, group)
    except ValueError as error:
        raise ValueError(f"convert: {error}") from None
    layers, mixtures = find_layers(model, found, skip), find_mixtures(model, found, skip)
    if any(not layer.name for layer in layers):
        raise ValueError(
            "convert: the model is itself a linear layer, which cannot be replaced in place; pass "
            "cutlass_api.nn.Linear a weight of cutlass_api.quantize"
        )
    if any(not mixture.name for mixture in mixtures):
        raise ValueError(
            "convert: the model is itself a mixture of experts, which cannot be replaced in place; "
            "pass cutlass_api.nn.Experts weights of cutlass_api.quantize"
        )
    before = bytes_of(model)
    report = Conversion(scheme, layers, before, before, mixtures)
    kinds = (Linear, Experts)
    if not report.replaced and not any(isinstance(x, kinds) for x in model.modules()):
        raise ValueError(f"convert: {report.nothing(model)}")
    replaced: dict[int, Linear] = {}
    weights: dict[int, Weight] = {}
    with progress_bar(True, scheme, len(report.replaced)) as bar:
        for layer in layers:
            if layer.reason is None:
                replace(model, layer, found, replaced, weights)
                bar.step(layer.name)
        of_mixtures: dict[int, Experts] = {}
        for mixture in mixtures:
            if mixture.reason is None:
                is_quantized = mixture.result is None
                replace_mixture(model, mixture, found if is_quantized else None, of_mixtures)
                bar.step(mixture.name)
    place_side_by_side(model)
    report.bytes_after = bytes_of(model)
    attach(model)
    print(report)
    return report


def replace(
    model: torch.nn.Module,
    layer: Layer,
    scheme: Scheme,
    replaced: dict[int, Linear],
    weights: dict[int, Weight],
) -> None:
    """Replaces a layer. The old one is freed when the function returns."""
    home, _, name = layer.name.rpartition(".")
    parent = model.get_submodule(home)
    if layer.module not in replaced:
        module = parent.get_submodule(name)
        matrix = matrix_of(module)
        # Tensors of inference mode would refuse gradients of the input.
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(matrix):
            if layer.weight not in weights:
                weights[layer.weight] = scheme.quantize(matrix).repack()
            new = Linear(weights[layer.weight], module.bias, scheme.activations)
        replaced[layer.module] = new.train(module.training)
    parent._modules[name] = replaced[layer.module]
