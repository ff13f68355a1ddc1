"""The quantized layers of checkpoints: which tensors belong to a layer, and its weight."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutlass_api._dtypes import FLOATS
from cutlass_api.nn import _activations
from cutlass_api.nn._checkpoints import Header
from cutlass_api.weights import (
    NVFP4,
    Float8,
    Int8,
    Weight,
    from_awq,
    from_compressed_tensors,
    from_deepseek,
    from_gptq,
    from_modelopt,
)
from cutlass_api.weights._formats import names

METHODS = ("awq", "compressed-tensors", "fp8", "gptq", "modelopt", "mxfp4")
#: The tensor with the elements of a layer.
VALUES = ("qweight", "weight_packed", "weight")
#: The scales of a layer whose elements are ``weight``.
SCALES = ("weight_scale_inv", "weight_scale")
#: What else belongs to the weight of a layer.
PARTS = {
    *("weight_shape", "weight_zero_point", "weight_g_idx", "weight_global_scale"),
    *("weight_scale_2", "pre_quant_scale", "qzeros", "scales", "g_idx", *SCALES),
}
#: Scales that a calibration computed for activations, and for the cache of keys and values. Linear
#: computes scales of activations in each call.
CALIBRATED = {
    *("input_scale", "input_zero_point", "input_global_scale", "activation_scale"),
    *("output_scale", "q_scale", "k_scale", "v_scale", "kv_scale"),
}


@dataclass(frozen=True)
class Stored:
    """A quantized layer of a file: the names of its tensors without, and with its own name."""

    name: str
    parts: Mapping[str, str]
    #: Whether the file has a scale of its input.
    has_input_scale: bool = False


def stored_layers(headers: Mapping[str, Header]) -> tuple[dict[str, Stored], list[str]]:
    """The quantized layers by the name that the weight would have if it was a matrix, and scales
    that nothing reads: those of activations, and of weights that are stored in 16 bits.
    """
    homes: dict[str, set[str]] = defaultdict(set)
    for name in headers:
        home, _, last = name.rpartition(".")
        if last in PARTS or last in VALUES or last in CALIBRATED:
            homes[home].add(last)
    layers, unread = {}, []
    for home, found in homes.items():
        dot = f"{home}." if home else ""
        values = next((each for each in VALUES if each in found), None)
        parts = {each: dot + each for each in (values, *sorted(found & PARTS)) if each}
        unread += [dot + each for each in sorted(found & CALIBRATED)]
        if values is None or len(parts) == 1:
            continue
        dtype = headers[dot + values].dtype
        if values != "weight" or dtype not in FLOATS:
            has_scale = not found.isdisjoint(CALIBRATED)
            layers[f"{dot}weight"] = Stored(home, parts, has_scale)
        elif not found.isdisjoint(SCALES):
            unread += [name for part, name in parts.items() if part in PARTS]
    return layers, unread


class Reader:
    """Reads the layers of a checkpoint that is quantized as its configuration says.

    Raises ValueError for an unknown ``quant_method``, and for options of one that are not served.
    """

    def __init__(self, quantization: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        self.quantization, self.metadata = quantization, metadata
        method = quantization.get("quant_method")
        #: None: of a checkpoint that does not say how it is quantized.
        self.method = None if method is None else str(getattr(method, "value", method)).lower()
        if quantization and self.method not in METHODS:
            raise ValueError(
                f"load: quant_method is {method!r}; load reads {names(map(repr, METHODS))}, and "
                "checkpoints that are not quantized"
            )
        self._check_options()

    def _check_options(self) -> None:
        for key, served in self._served():
            found = self.quantization.get(key)
            if found is not None and found not in served:
                raise ValueError(
                    f"load: {key} of quant_method {self.method!r} is {found!r}; load reads "
                    f"{names(repr(each) for each in served if type(each) is not tuple)}"
                )

    def _served(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        if self.method in ("gptq", "awq"):
            yield ("bits", (4,))
            yield ("w_bit", (4,))
        if self.method == "awq":
            yield ("version", ("gemm", "GEMM"))
        if self.method == "fp8":
            yield ("weight_block_size", ([128, 128], (128, 128), [1, 128], (1, 128)))

    def read(self, layer: Stored, tensors: Mapping[str, Tensor]) -> tuple[Weight, str | None]:
        """The weight of a layer with these parts, and the activations of :class:`Linear`.

        Raises ValueError as the readers of :mod:`cutlass_api.weights`.
        """
        scheme = self._scheme(layer.name)
        weight = self._weight(tensors, scheme)
        exact = self.metadata.get(factor_key(layer.name))
        if exact is not None and isinstance(weight, NVFP4):
            weight.factor.fill_(float.fromhex(exact))
        if isinstance(weight, Float8) and not weight.scales.dim() and self._has_blocks(scheme):
            weight = Float8(weight.values, weight.scales.reshape(1, 1))
        activations = self._activations(layer, scheme)
        if activations == "int8" and isinstance(weight, Int8):
            weight = Int8(**{**weight.tensors(), "scales": weight.scales.float()})
        if activations is not None:
            try:
                _activations.check(activations, weight)
            except ValueError:
                activations = None
        return weight, activations

    def _weight(self, tensors: Mapping[str, Tensor], scheme: Mapping[str, Any]) -> Weight:
        if "qweight" in tensors:
            if self.method == "awq":
                return from_awq(*(tensors[key] for key in ("qweight", "qzeros", "scales")))
            if self.method != "gptq":
                raise ValueError(
                    f"qweight is a tensor of GPTQ or AWQ, and quant_method is {self.method!r}; put "
                    "quantization_config into config.json"
                )
            words, zeros, scales = (tensors[key] for key in ("qweight", "qzeros", "scales"))
            version = self.quantization.get("checkpoint_format")
            return from_gptq(words, zeros, scales, tensors.get("g_idx"), version)
        if "weight_packed" in tensors:
            self._check_zero_points(tensors, scheme)
            return from_compressed_tensors(tensors, packing(tensors))
        weight = tensors["weight"]
        if "weight_scale_inv" in tensors:
            return from_deepseek(weight, tensors["weight_scale_inv"])
        if "weight_scale" not in tensors:
            raise ValueError(f"weight is {weight.dtype}, and there is no weight_scale")
        if self.method == "modelopt" or weight.dtype is torch.uint8:
            return from_modelopt(tensors)
        self._check_zero_points(tensors, scheme)
        is_float = weight.dtype.is_floating_point
        return from_compressed_tensors(tensors, "float-quantized" if is_float else "int-quantized")

    def _check_zero_points(self, tensors: Mapping[str, Tensor], scheme: Mapping[str, Any]) -> None:
        symmetric = (scheme.get("weights") or {}).get("symmetric", True)
        if not symmetric and "weight_zero_point" not in tensors:
            raise ValueError("the scheme is asymmetric, and there is no weight_zero_point")

    def _has_blocks(self, scheme: Mapping[str, Any]) -> bool:
        """Whether one scale is that of a block of 128 x 128, which is larger than the matrix."""
        if self.method == "fp8":
            return bool(self.quantization.get("weight_block_size"))
        return (scheme.get("weights") or {}).get("strategy") == "block"

    def _scheme(self, name: str) -> Mapping[str, Any]:
        """The entry of ``config_groups`` for a layer. {} if there is none among several: names of
        layers that are fused in other packages fit nothing.
        """
        groups = self.quantization.get("config_groups") or {}
        if self.method != "compressed-tensors":
            return {}
        if len(groups) == 1:
            return dict(*groups.values())
        of_class: Mapping[str, Any] = {}
        for group in groups.values():
            for target in group.get("targets") or ():
                pattern = target[3:] if target.startswith("re:") else re.escape(target) + "$"
                if re.match(pattern, name):
                    return dict(group)
                if target == "Linear" and not of_class:
                    of_class = group
        return of_class

    def _activations(self, layer: Stored, scheme: Mapping[str, Any]) -> str | None:
        """How the checkpoint quantizes the input, if in 8 bits."""
        if self.method == "fp8":
            return "fp8"
        if self.method == "modelopt":
            return "fp8" if layer.has_input_scale else None
        found = scheme.get("input_activations") or {}
        if found.get("num_bits") != 8:
            return None
        return "fp8" if found.get("type") == "float" else "int8"


def factor_key(name: str) -> str:
    """The entry of a file's metadata with the factor of NVFP4, in hexadecimal. The file has its
    inverse, whose inverse may be another number.
    """
    return f"{name}.factor"


def packing(tensors: Mapping[str, Tensor]) -> str:
    """The format of ``weight_packed``."""
    if tensors["weight_packed"].dtype is not torch.uint8:
        return "pack-quantized"
    return ("nv" if "weight_global_scale" in tensors else "mx") + "fp4-pack-quantized"
