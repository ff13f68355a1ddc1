"""Checkpoints by the rules of their formats, for tests of ``cutlass_api.nn.load``."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from cutlass_api import quantize, weights
from cutlass_api.weights._packing import nibbles
from safetensors.torch import save_file

E8M0 = torch.float8_e8m0fnu
Tensors = dict[str, torch.Tensor]


class Kind(NamedTuple):
    """A format: the tensors of a layer with the matrix that they are, what the configuration says,
    and how the layer multiplies.
    """

    layer: Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
    quantization: dict[str, Any]
    weight: str
    activations: str | None = None


def words(codes: torch.Tensor, dim: int) -> torch.Tensor:
    """Codes of 4 bits as int32 of 8 codes along a dimension, the first in the low bits."""
    shifts = torch.arange(0, 32, 4)
    groups = codes.long().unflatten(dim, (-1, 8)).movedim(dim + 1, -1)
    return (groups << shifts).sum(-1).to(torch.int32)


def gptq(w: torch.Tensor, has_order: bool) -> tuple[Tensors, torch.Tensor]:
    """``has_order``: asymmetric, in groups of columns in another order (act-order)."""
    order = torch.randperm(w.shape[1]) if has_order else torch.arange(w.shape[1])
    quantizer = quantize.uint4 if has_order else quantize.int4
    q = quantizer(w[:, order].half(), group=32)
    codes = torch.empty_like(nibbles(q.values))
    codes[:, order] = nibbles(q.values)
    groups = torch.empty(w.shape[1], dtype=torch.int32)
    groups[order] = torch.arange(w.shape[1], dtype=torch.int32) // 32
    zeros = q.zeros if has_order else torch.full_like(q.scales, 7, dtype=torch.uint8)
    expected = torch.empty_like(w.float())
    expected[:, order] = q.dequantize(torch.float32)
    tensors = {"qweight": words(codes.t(), 0), "qzeros": words(zeros.t(), 1)}
    return tensors | {"scales": q.scales.t(), "g_idx": groups}, expected


def awq(w: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q = quantize.uint4(w.half(), group=64)
    order = [8 * i + j for i in range(len(w) // 8) for j in (0, 2, 4, 6, 1, 3, 5, 7)]
    tensors = {"qweight": words(nibbles(q.values).t()[:, order], 1)}
    tensors |= {"qzeros": words(q.zeros.t()[:, order], 1), "scales": q.scales.t()}
    return tensors, q.dequantize(torch.float32)


def fp8(w: torch.Tensor, block: Any, dtype: torch.dtype) -> tuple[Tensors, torch.Tensor]:
    """Scales of blocks in a dtype; powers of two in e8m0."""
    n, k = w.shape
    if block is None:
        q = quantize.fp8(w)
        q = weights.Float8((q.dequantize() / q.scales.amax()).to(E4M3), q.scales.amax())
    else:
        whole = torch.nn.functional.pad(w.float(), (0, -k % block[1], 0, -n % block[0]))
        tiles = whole.unflatten(0, (-1, block[0])).unflatten(2, (-1, block[1]))
        scales = (tiles.abs().amax((1, 3)) / 448).log2().ceil().exp2()
        codes = (tiles / scales[:, None, :, None]).flatten(2).flatten(0, 1)[:n, :k]
        q = weights.Float8(codes.to(E4M3).contiguous(), scales)
    return {"weight": q.values, "weight_scale_inv": q.scales.to(dtype)}, q.dequantize(torch.float32)


E4M3 = torch.float8_e4m3fn


def modelopt_fp8(w: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    tensors, expected = fp8(w, None, torch.float32)
    scales = {"weight_scale": tensors["weight_scale_inv"], "input_scale": torch.tensor(0.5)}
    return {"weight": tensors["weight"]} | scales, expected


def modelopt_nvfp4(w: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q = quantize.nvfp4(w)
    scales = {"weight_scale": q.scales, "weight_scale_2": q.factor, "input_scale": q.factor}
    return {"weight": q.values} | scales, q.dequantize(torch.float32)


def modelopt_int4(w: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q = quantize.int4(w, group=64)
    low, high = ((nibbles(q.values) ^ 8).unflatten(0, (-1, 2))).unbind(1)
    return {"weight": low | high << 4, "weight_scale": q.scales}, q.dequantize(torch.float32)


BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
KINDS = {
    "gptq": Kind(lambda w: gptq(w, False), {"quant_method": "gptq", "bits": 4}, "Int4"),
    "gptq act-order": Kind(
        lambda w: gptq(w, True),
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
        "UInt4",
    ),
    "awq": Kind(awq, {"quant_method": "awq", "bits": 4, "version": "gemm"}, "UInt4"),
    "fp8": Kind(lambda w: fp8(w, (128, 128), torch.float32), BLOCKS, "Float8", "fp8"),
    "fp8 e8m0": Kind(lambda w: fp8(w, (128, 128), E8M0), BLOCKS, "Float8", "fp8"),
    "fp8 rows e8m0": Kind(
        lambda w: fp8(w, (1, 128), E8M0), BLOCKS | {"weight_block_size": [1, 128]}, "Float8", "fp8"
    ),
    "fp8 tensor": Kind(
        lambda w: fp8(w, None, torch.float32),
        BLOCKS | {"weight_block_size": None},
        "Float8",
        "fp8",
    ),
    "modelopt fp8": Kind(modelopt_fp8, {"quant_method": "modelopt"}, "Float8", "fp8"),
    "modelopt nvfp4": Kind(modelopt_nvfp4, {"quant_method": "modelopt"}, "NVFP4"),
    "modelopt int4": Kind(modelopt_int4, {"quant_method": "modelopt"}, "Int4"),
}


def quantized(state: Tensors, kind: Kind, layers: list[str]) -> tuple[Tensors, Tensors]:
    """A state with these layers in a format, and the one that it stands for."""
    stored, expected = dict(state), dict(state)
    for name in layers:
        tensors, matrix = kind.layer(stored.pop(f"{name}.weight"))
        stored |= {f"{name}.{part}": tensor for part, tensor in tensors.items()}
        expected[f"{name}.weight"] = matrix.to(state[f"{name}.weight"].dtype)
    return stored, expected


def write(
    folder: Path, tensors: Tensors, quantization: dict[str, Any] | None = None, shards: int = 1
) -> Path:
    """Writes a folder, with ``config.json`` beside what it has."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    if quantization is not None:
        config["quantization_config"] = quantization
    path.write_text(json.dumps(config))
    tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder
    names = list(tensors)
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        save_file(part, folder / file, {"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
