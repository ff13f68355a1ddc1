"""The reader of compressed-tensors: llm-compressor, vLLM."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cutlass_api.weights._classes import MXFP4, NVFP4, Int4, Int8, UInt4, UInt8, Weight
from cutlass_api.weights._formats import names
from cutlass_api.weights._packing import nibbles
from cutlass_api.weights._readers import float8, in_order_of_groups, of_rows, take

READER = "from_compressed_tensors"
#: The type and bits of weights by the name of a format. pack-quantized has several.
KINDS = {
    "pack-quantized": ("int", None),
    "int-quantized": ("int", 8),
    "float-quantized": ("float", 8),
    "nvfp4-pack-quantized": ("float", 4),
    "mxfp4-pack-quantized": ("float", 4),
}


def from_compressed_tensors(tensors: Mapping[str, Tensor], scheme: Any) -> Weight:
    """A layer of compressed-tensors.

    - ``tensors``: by their names without the layer's prefix. Others than those below, as scales of
      activations, are ignored.
    - ``scheme``: the layer's entry of ``config_groups`` in ``quantization_config``, a dict; or a
      ``compressed_tensors.quantization.QuantizationScheme``. Its ``weights`` are read. Or the name
      of the format, such as "pack-quantized": weights are then asymmetric if they have zero points.

    What is read, by ``weights`` of the scheme:

    - Integers of 4 or 8 bits (pack-quantized): ``weight_packed`` int32, ``weight_scale``,
      ``weight_shape``; of act-order ``weight_g_idx``. Returns :class:`Int4` or :class:`Int8`.
      Asymmetric: also ``weight_zero_point`` int32, packed along N. Returns :class:`UInt4` or
      :class:`UInt8`.
    - Integers in int8 (int-quantized): ``weight``, ``weight_scale``. Returns :class:`Int8`.
      Asymmetric: also ``weight_zero_point``. Returns :class:`UInt8`.
    - float of 4 bits: ``weight_packed`` uint8 and ``weight_scale``. In uint8 (mxfp4-pack-quantized)
      it returns :class:`MXFP4`. In float8_e4m3fn (nvfp4-pack-quantized), with
      ``weight_global_scale``, a divisor, it returns :class:`NVFP4`.
    - float of 8 bits (float-quantized): ``weight`` float8_e4m3fn, ``weight_scale``. Returns
      :class:`Float8`, with scales in float32.

    Raises ValueError for missing tensors, for other schemes, shapes and dtypes, and for a layer
    that is decompressed.
    """
    args = _of_name(tensors, scheme) if isinstance(scheme, str) else _entry(scheme, "weights")
    if args is None:
        raise ValueError(f"{READER}: the scheme has no weights; pass an entry of config_groups")
    bits, kind = _entry(args, "num_bits"), _entry(args, "type", "int")
    if kind == "float" and bits == 4:
        values, scales = take(READER, tensors, "weight_packed", "weight_scale")
        if scales.dtype is not torch.float8_e4m3fn:
            return MXFP4(values, scales)
        (divisor,) = take(READER, tensors, "weight_global_scale")
        return NVFP4(values, scales, of_rows(1 / divisor.float()))
    if kind == "float" and bits == 8:
        values, scales = take(READER, tensors, "weight", "weight_scale")
        if scales.dtype is torch.uint8:
            raise ValueError(f"{READER}: MXFP8 is not served; call scaled_mm")
        _check_quantized(values, torch.float8_e4m3fn)
        return float8(values, scales)
    if kind != "int" or bits not in (4, 8):
        raise ValueError(f"{READER}: weights are {kind} of {bits} bits; pass 4 or 8 bits")
    is_packed = tensors.get("weight_packed") is not None
    symmetric = bool(_entry(args, "symmetric", True))
    weight = (_packed if is_packed else _plain)(tensors, bits, symmetric)
    index = tensors.get("weight_g_idx")
    # -1 stands for groups in the order of columns.
    if index is None or bool((index < 0).any()):
        return weight
    return in_order_of_groups(READER, "weight_g_idx", weight, index, weight.shape[1])


def _of_name(tensors: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """The ``weights`` of a format by its name."""
    if name not in KINDS:
        raise ValueError(f"{READER}: the format is {name!r}; pass one of {names(KINDS)}")
    kind, bits = KINDS[name]
    if bits is None:
        words, shape = take(READER, tensors, "weight_packed", "weight_shape")
        bits = 4 if words.shape[-1] == -(-int(shape[-1]) // 8) else 8
    symmetric = tensors.get("weight_zero_point") is None
    return {"num_bits": bits, "type": kind, "symmetric": symmetric}


def _packed(tensors: Mapping[str, Tensor], bits: int, symmetric: bool) -> Weight:
    """Words of offset binary, along K."""
    words, scales, shape = take(READER, tensors, "weight_packed", "weight_scale", "weight_shape")
    if words.dtype is not torch.int32:
        raise ValueError(f"{READER}: weight_packed is {words.dtype}; pass torch.int32")
    n, k = (int(size) for size in shape)
    if tuple(words.shape) != (n, -(-k * bits // 32)):
        raise ValueError(
            f"{READER}: weight_packed has shape {list(words.shape)}; pass "
            f"{[n, -(-k * bits // 32)]} for weight_shape {[n, k]} and {bits} bits"
        )
    scales = _of_groups(scales, n)
    values = words.contiguous().view(torch.uint8)[:, : k * bits // 8]
    if symmetric:
        if bits == 4:
            return Int4(values, scales)
        return Int8((values ^ 128).contiguous().view(torch.int8), scales)
    (zeros,) = take(READER, tensors, "weight_zero_point")
    if zeros.dtype is torch.int32:
        # Words along N.
        across = zeros.t().contiguous()
        codes = nibbles(across) if bits == 4 else across.view(torch.uint8)
        zeros = codes[:, :n].t()
    else:
        zeros = (_of_groups(zeros, n).int() + (8 if bits == 4 else 128)).to(torch.uint8)
    return (UInt4 if bits == 4 else UInt8)(values, scales, zeros)


def _plain(tensors: Mapping[str, Tensor], bits: int, symmetric: bool) -> Weight:
    """One number in a byte, in two's complement."""
    values, scales = take(READER, tensors, "weight", "weight_scale")
    _check_quantized(values, torch.int8)
    scales = _of_groups(scales, values.shape[0])
    if symmetric:
        return Int8(values, scales)
    (zeros,) = take(READER, tensors, "weight_zero_point")
    zeros = _of_groups(zeros, values.shape[0]).to(torch.int8).contiguous()
    return UInt8(values.view(torch.uint8) ^ 128, scales, zeros.view(torch.uint8) ^ 128)


def _of_groups(scales: Tensor, n: int) -> Tensor:
    """One scale for the whole matrix as one for each row."""
    return scales.reshape(1, 1).expand(n, 1) if scales.numel() == 1 else scales


def _check_quantized(weight: Tensor, dtype: torch.dtype) -> None:
    if weight.dtype is not dtype:
        hint = ""
        if weight.dtype.itemsize > 1:
            hint = ", or take a layer that is decompressed as it is, without weight_scale"
        raise ValueError(f"{READER}: weight is {weight.dtype}; pass {dtype}{hint}")


def _entry(thing: Any, name: str, default: Any = None) -> Any:
    """An entry of a dict, or an attribute; the value of an enumerator."""
    found = thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
    return default if found is None else getattr(found, "value", found)
