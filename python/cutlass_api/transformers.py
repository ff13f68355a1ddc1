"""Models of transformers with the layers of :mod:`cutlass_api.nn`.

Quantize while a model loads::

    config = cutlass_api.transformers.Config("int4")
    model = AutoModelForCausalLM.from_pretrained(path, quantization_config=config)

Products of mixtures of experts, also of models that load as "fp8"::

    model.set_experts_implementation("cutlass_api")

Importing this module imports transformers, and registers the method "rutlass" and the experts
implementation "cutlass_api" there.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

try:
    from transformers.core_model_loading import ConversionOps, WeightConverter
    from transformers.integrations import finegrained_fp8
    from transformers.integrations.moe import ExpertsInterface
    from transformers.quantizers import auto
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizer_mxfp4 import Mxfp4HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin
except ImportError as error:
    raise ImportError(
        f"cutlass_api.transformers needs transformers 5.24, and this failed: {error}; "
        "pip install transformers==5.24.*"
    ) from error

from cutlass_api import quantize
from cutlass_api._dtypes import FLOATS
from cutlass_api.nn import _activations
from cutlass_api.nn._checkpoints import Checkpoint
from cutlass_api.nn._expert_forwards import experts_forward, fp8_experts_forward
from cutlass_api.nn._layers import check_patterns, extents, find_layers, is_conv1d, unfit
from cutlass_api.nn._linear import Linear
from cutlass_api.nn._load import check_served, describe_weight
from cutlass_api.nn._load_experts import BLOCK_SCALES, BLOCKS, Mixtures
from cutlass_api.nn._names import Names, check_version
from cutlass_api.nn._report import Conversion, Loading, bytes_of
from cutlass_api.nn._save import compressed
from cutlass_api.nn._schemes import Scheme, scheme_of
from cutlass_api.nn._stored import PARTS, VALUES, Reader, Stored, stored_layers
from cutlass_api.weights import Weight, from_gpt_oss

__all__ = ["Config", "disable", "enable"]

METHOD = "rutlass"
SKIP = ("lm_head", "*router*", "*gate")


class Saved(QuantizationConfigMixin):  # type: ignore[misc]
    """What the configuration of a model says that is quantized: after ``save_pretrained``, the
    configuration of compressed-tensors.
    """

    def __init__(self, **values: Any) -> None:
        self.quant_method = values.pop("quant_method", METHOD)
        self.values = values

    def to_dict(self) -> dict[str, Any]:
        return {"quant_method": self.quant_method, **self.values}

    def get_loading_attributes(self) -> dict[str, Any]:
        return {}


@auto.register_quantization_config(METHOD)
class Config(Saved):
    """Quantizes the linear layers of a model while ``from_pretrained`` loads it.

    ``scheme``, ``skip`` and ``group`` are those of :func:`cutlass_api.nn.convert`.

    ``save_pretrained`` writes compressed-tensors. Such a folder is read by
    :func:`cutlass_api.nn.load`; by ``from_pretrained`` after :func:`enable`; and by others.

    Raises ValueError for an unknown scheme or group.
    """

    def __init__(
        self,
        scheme: str,
        *,
        skip: Sequence[str] = SKIP,
        group: int | None = None,
        quant_method: str = METHOD,
    ) -> None:
        check_patterns("Config", "skip", skip)
        try:
            scheme_of(scheme, group)
        except ValueError as error:
            raise ValueError(f"Config: {error}") from None
        super().__init__(scheme=scheme, skip=list(skip), group=group, quant_method=quant_method)


@auto.register_quantizer(METHOD)
class Quantizer(HfQuantizer):  # type: ignore[misc]
    """Quantizes weights that are loaded, or reads quantized ones."""

    requires_calibration = False
    is_trainable = True
    is_compileable = True

    def __init__(self, quantization_config: Saved, **options: Any) -> None:
        super().__init__(quantization_config, **options)
        self.report: Conversion | None = None
        self._layers: dict[str, Scheme] = {}

    def is_serializable(self) -> bool:
        return True

    def validate_environment(self, *args: Any, **options: Any) -> None:
        check_version()

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> None:
        values = self.quantization_config.values
        scheme = scheme_of(values["scheme"], values["group"])
        self._found = find_layers(model, scheme, values["skip"])
        numbers = Counter(layer.weight for layer in self._found if layer.reason is None)
        for layer in self._found:
            if layer.reason is None and numbers[layer.weight] > 1:
                layer.reason = "shares its weight with another layer; call convert instead"
        self._before = bytes_of(model)
        self._layers = {layer.name: scheme for layer in self._found if layer.reason is None}
        if not self._layers:
            table = Conversion(scheme.name, self._found, self._before, self._before)
            raise ValueError(f"Config: {table.nothing(model)}")

    def param_needs_quantization(self, model: Any, param_name: str, **options: Any) -> bool:
        home, _, last = param_name.rpartition(".")
        return last == "weight" and home in self._layers

    def get_quantize_ops(self) -> ConversionOps:
        return Quantize(self)

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> None:
        for layer in self._found:
            if layer.reason is None and not isinstance(model.get_submodule(layer.name), Linear):
                layer.reason = "is not in the checkpoint"
        scheme = self.quantization_config.values["scheme"]
        self.report = Conversion(scheme, self._found, self._before, bytes_of(model))
        print(self.report)

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        """What ``save_pretrained`` writes. It writes ``config.json`` afterwards."""
        found = compressed(model)
        if found.quantization is not None:
            model.config.quantization_config = Saved(**found.quantization)
        return found.tensors, found.metadata


class Quantize(ConversionOps):  # type: ignore[misc]
    """Replaces the layer of a weight that is loaded."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer = quantizer

    def convert(
        self, input_dict: dict[str, Any], *, model: Any, missing_keys: set[str], **options: Any
    ) -> dict[str, Any]:
        kept = {}
        for name, value in input_dict.items():
            if not self.quantizer.param_needs_quantization(model, name):
                kept[name] = value
                continue
            home = name.rpartition(".")[0]
            matrix = value[0] if isinstance(value, list) else value
            matrix = matrix.t() if is_conv1d(model.get_submodule(home)) else matrix
            scheme = self.quantizer._layers[home]
            replace(model, home, scheme.quantize(matrix), scheme.activations)
            missing_keys.discard(name)
        return kept


def replace(model: Any, home: str, weight: Weight, activations: str | None) -> None:
    """Puts a quantized layer in place of a linear one, whose bias it takes: that of the checkpoint,
    or one that is loaded afterwards.
    """
    module = model.get_submodule(home)
    if tuple(weight.shape) != extents(module):
        raise ValueError(
            f"{home}: the checkpoint has {list(weight.shape)}, and the model expects "
            f"{list(extents(module))}"
        )
    layer = Linear(weight, None, activations).train(module.training)
    layer.register_parameter("bias", module.bias)
    parent, _, last = home.rpartition(".")
    model.get_submodule(parent)._modules[last] = layer


class CheckpointQuantizer(Quantizer):
    """Reads checkpoints that are quantized, in place of a quantizer of transformers."""

    serialized_names = {"weight": sorted({*VALUES, *PARTS})}  # noqa: RUF012

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Sequence[str] | None = None, **options: Any
    ) -> None:
        if not checkpoint_files or not checkpoint_files[0].endswith(".safetensors"):
            raise ValueError("cutlass_api.transformers reads checkpoints in safetensors alone")
        checkpoint = Checkpoint(Path(checkpoint_files[0]).parent)
        self._reader = Reader(self.quantization_config.to_dict(), checkpoint.metadata)
        self._stored, unread = stored_layers(checkpoint.headers)
        mapping = Names(model, model.state_dict())
        for name in self._stored:
            if mapping.find(name)[1] is not None:
                raise ValueError(
                    f"{name} is a part of {mapping.find(name)[0]}, which from_pretrained cannot "
                    "quantize; call cutlass_api.nn.load"
                )
        ignored = {rf"^{re.escape(mapping.find(name)[0])}$" for name in unread}
        model._keys_to_ignore_on_load_unexpected |= ignored
        self.loading = Loading(str(checkpoint.folder), self._reader.method)

    def get_weight_conversions(self) -> list[WeightConverter]:
        names = self.serialized_names["weight"]
        return [WeightConverter(list(names), "weight", [Read(self)])]

    def update_weight_conversions(self, conversions: list[Any], model: Any) -> list[Any]:
        return [*conversions, *self.get_weight_conversions()]

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> None:
        forget_conversions(model)
        self.loading.tensors, self.loading.bytes = len(model.state_dict()), bytes_of(model)
        print(self.loading)

    def read(self, model: Any, target: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What to assign: nothing if a quantized layer has replaced the module."""
        home = target.rpartition(".")[0]
        expected = model.get_parameter_or_buffer(target)
        weight = tensors.get("weight")
        if weight is not None and (len(tensors) == 1 or weight.dtype in FLOATS):
            return {target: weight.to(expected.dtype)}
        has_scale = self._stored.get(target, Stored(home, {})).has_input_scale
        weight, activations = self._reader.read(Stored(home, {}, has_scale), tensors)
        module = model.get_submodule(home)
        parent = model.get_submodule(home.rpartition(".")[0])
        is_linear = isinstance(module, torch.nn.Linear) or is_conv1d(module)
        reason = unfit(module, parent) if is_linear else f"is a {type(module).__qualname__}"
        if reason is not None:
            self.loading.dequantized[home] = (weight.shape, reason)
            matrix = weight.dequantize(expected.dtype)
            return {target: matrix.t() if is_conv1d(module) else matrix}
        check_served(weight, activations, expected.dtype)
        replace(model, home, weight, activations)
        self.loading.quantized[home] = (weight.shape, describe_weight(weight, activations))
        return {}


def forget_conversions(model: Any) -> None:
    """Drops the conversions of a quantizer here. save_pretrained reverts the others."""
    model._weight_conversions = [
        each
        for each in model._weight_conversions
        if not any(isinstance(op, Load) for op in getattr(each, "operations", ()))
    ]


class Load(ConversionOps):  # type: ignore[misc]
    """An operation that a quantizer does. transformers copies converters, with their operations,
    for each tensor.
    """

    def __init__(self, quantizer: Any) -> None:
        self.hf_quantizer = quantizer

    def __deepcopy__(self, memo: dict[int, Any]) -> "Load":
        return self

    def convert(
        self,
        input_dict: dict[str, Any],
        *,
        model: Any,
        full_layer_name: str,
        missing_keys: set[str],
        **options: Any,
    ) -> dict[str, Any]:
        tensors = {name: x[0] if isinstance(x, list) else x for name, x in input_dict.items()}
        found = self.read(model, full_layer_name, tensors)
        if not found:
            missing_keys.discard(full_layer_name)
        return found

    def read(self, model: Any, target: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """What to assign: nothing if a quantized layer has replaced the module."""
        raise NotImplementedError


class Read(Load):
    """Reads a quantized layer of a checkpoint."""

    def read(self, model: Any, target: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self.hf_quantizer.read(model, target, tensors)
        return found


class ExpertsQuantizer(Quantizer):
    """Keeps the experts of gpt-oss in MXFP4, in place of transformers' quantizer."""

    serialized_names = {  # noqa: RUF012
        name: [name + BLOCKS, name + BLOCK_SCALES] for name in ("gate_up_proj", "down_proj")
    }

    def _process_model_before_weight_loading(self, model: Any, **options: Any) -> None:
        self._mixtures = Mixtures(model, dict(model.named_parameters()))
        one = quantize.mxfp4(torch.empty(32, 32, device="meta"))
        for name, reason in self._mixtures.weights.items():
            if reason is None:
                check_served(one, None, self._mixtures.expected[name].dtype)
        self.loading = Loading(str(model.config._name_or_path), "mxfp4")

    def get_weight_conversions(self) -> list[WeightConverter]:
        names = self.serialized_names.items()
        return [WeightConverter(list(parts), name, [Pack(self)]) for name, parts in names]

    def update_weight_conversions(self, conversions: list[Any], model: Any) -> list[Any]:
        return [*conversions, *self.get_weight_conversions()]

    def _process_model_after_weight_loading(self, model: Any, **options: Any) -> None:
        del self._mixtures  # holds the model, which holds the quantizer
        forget_conversions(model)
        self.loading.tensors, self.loading.bytes = len(model.state_dict()), bytes_of(model)
        print(self.loading)

    def read(self, model: Any, target: str, blocks: Tensor, scales: Tensor) -> dict[str, Tensor]:
        """What to assign: nothing if the module is replaced, or will be with its other weight."""
        stack = from_gpt_oss(blocks, scales)
        self._mixtures.check_shape(target, stack)
        reason = self._mixtures.weights[target]
        if reason is not None:
            self.loading.dequantized[target] = (stack.shape, reason)
            return {target: self._mixtures.dequantized(target, stack)}
        self.loading.quantized[target] = (stack.shape, describe_weight(stack, None))
        self._mixtures.stacks[target] = stack, None
        home = target.rpartition(".")[0]
        if all(f"{home}.{name}" in self._mixtures.stacks for name in self.serialized_names):
            self._mixtures.replace(home)
        return {}


class Pack(Load):
    """Reads a weight of experts in MXFP4."""

    def read(self, model: Any, target: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        name = target.rpartition(".")[2]
        parts = (tensors[name + part] for part in (BLOCKS, BLOCK_SCALES))
        found: dict[str, Tensor] = self.hf_quantizer.read(model, target, *parts)
        return found


def mxfp4_quantizer(quantization_config: Any, **options: Any) -> Any:
    """The quantizer of checkpoints in MXFP4: transformers' own if it is to dequantize, or to
    quantize a model in 16 bits.
    """
    is_own = options.get("pre_quantized", True) and not quantization_config.dequantize
    kind = ExpertsQuantizer if is_own else Mxfp4HfQuantizer
    return kind(quantization_config, **options)


class CheckpointConfig(Saved):
    """The configuration of a checkpoint that is quantized."""


#: transformers refuses a configuration whose class has another name than that of the checkpoint.
CheckpointConfig.__name__ = Config.__name__


#: What :func:`enable` has replaced.
_replaced: dict[str, Any] = {}
#: Methods whose checkpoints :class:`CheckpointQuantizer` reads.
METHODS = ("compressed-tensors", "gptq", "awq", "modelopt")
#: transformers' tables of methods, and what handles a method there.
TABLES: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (auto.AUTO_QUANTIZATION_CONFIG_MAPPING, dict.fromkeys(METHODS, CheckpointConfig)),
    (
        auto.AUTO_QUANTIZER_MAPPING,
        {**dict.fromkeys(METHODS, CheckpointQuantizer), "mxfp4": mxfp4_quantizer},
    ),
)


def enable() -> None:
    """Makes transformers use the products of this library for checkpoints that are quantized.

    - Layers of models that load as "fp8" (``FP8Linear``, as of DeepSeek-V3 and Qwen3-FP8) call
      ``transformers.integrations.finegrained_fp8.fp8_linear``, which is replaced: for
      float8_e4m3fn with scales of the matrix, or of 1 x 128 or 128 x 128, in float32 or
      float8_e8m0fnu, and activations without a static scale. Other calls go to transformers.
    - ``from_pretrained`` reads checkpoints of compressed-tensors, GPTQ, AWQ and ModelOpt with
      :class:`cutlass_api.nn.Linear` in place of the quantized layers, as
      :func:`cutlass_api.nn.load` does. Quantized experts raise ValueError.
    - ``from_pretrained`` keeps the experts of gpt-oss in MXFP4: they become
      :class:`cutlass_api.nn.Experts`. ``Mxfp4Config(dequantize=True)`` dequantizes them.

    :func:`disable` restores transformers. A second call changes nothing.
    """
    check_version()
    if _replaced:
        return
    _replaced["fp8_linear"] = finegrained_fp8.fp8_linear
    finegrained_fp8.fp8_linear = fp8_linear
    for at, (table, kinds) in enumerate(TABLES):
        for method, kind in kinds.items():
            _replaced[f"{at} {method}"] = table.get(method)
            table[method] = kind


def disable() -> None:
    """Undoes :func:`enable`. Models that are loaded keep their layers."""
    if not _replaced:
        return
    finegrained_fp8.fp8_linear = _replaced["fp8_linear"]
    for at, (table, kinds) in enumerate(TABLES):
        for method in kinds:
            before = _replaced[f"{at} {method}"]
            if before is None:
                del table[method]
            else:
                table[method] = before
    _replaced.clear()


def fp8_linear(
    input: Tensor,
    weight: Tensor,
    weight_scale_inv: Tensor,
    block_size: Sequence[int] | None = None,
    bias: Tensor | None = None,
    activation_scale: Tensor | None = None,
    allow_deepgemm: bool = True,
) -> Tensor:
    """``transformers.integrations.finegrained_fp8.fp8_linear`` by this library's products."""
    scales = weight_scale_inv
    is_one = block_size is None and scales.numel() == 1
    is_blocks = block_size is not None and tuple(block_size) in ((128, 128), (1, 128))
    is_served = weight.dtype is torch.float8_e4m3fn and weight.dim() == 2 and (is_one or is_blocks)
    if not is_served or activation_scale is not None:
        original = _replaced["fp8_linear"]
        return original(
            *(input, weight, weight_scale_inv, block_size, bias, activation_scale, allow_deepgemm)
        )
    scales = scales.float().reshape(()) if is_one else scales.float()
    return _activations.product(input, bias, weight, scales, None, "fp8", input.dtype)


ExpertsInterface.register("cutlass_api", experts_forward)
finegrained_fp8.FP8ExpertsInterface.register("cutlass_api", fp8_experts_forward)
