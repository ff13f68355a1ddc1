"""``save``: writes a model as a checkpoint of compressed-tensors."""

import json
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlass_api.nn._checkpoints import INDEX, WHOLE, listed
from cutlass_api.nn._layers import original, unwrapped
from cutlass_api.nn._linear import Linear
from cutlass_api.nn._mixture import Experts
from cutlass_api.nn._names import is_pretrained
from cutlass_api.nn._stored import factor_key
from cutlass_api.utils import ceil_div
from cutlass_api.weights import Weight
from cutlass_api.weights._adjacent import identity
from cutlass_api.weights._packing import packed
from cutlass_api.weights._scales import WHOLE as ALL
from cutlass_api.weights._shards import is_dtensor

Config = dict[str, Any]


class Compressed(NamedTuple):
    """A model in compressed-tensors. ``quantization``: None if nothing is quantized."""

    tensors: dict[str, Tensor]
    quantization: Config | None
    #: Of the files: what the tensors hold but for a rounding.
    metadata: dict[str, str]


def save(
    model: torch.nn.Module, folder: str | PathLike[str], *, max_shard_size: int | str = "5GB"
) -> None:
    """Writes a model into a folder: safetensors, and ``config.json``. :class:`Linear` is stored as
    compressed-tensors, which vLLM and transformers read. :func:`load` reads the same bits.

    - ``model``: of transformers, with its configuration; or any module, with ``config.json`` if a
      layer is quantized.
    - ``max_shard_size``: bytes of a file, or with a unit. Larger models have several, and an index.

    ``model.save_pretrained(folder)`` of transformers' models that :func:`convert` or :func:`load`
    has changed writes the same.

    Raises ValueError for layers that compressed-tensors has no form for, each with the reason:
    a ``permutation``, zero points in floating point or of 16, a factor for each row, and groups
    that do not divide K. Save ``model.state_dict()`` of such a model. Also for layers on ``meta``
    and for DTensors, and for models that transformers quantizes.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"save: model is {type(model).__name__}; pass a torch.nn.Module")
    model = unwrapped(model)
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise ValueError(f"save: {path} is a file; pass a folder")
    if is_pretrained(model):
        attach(model)
        pretrained: Any = model
        _check_quantizer(pretrained)
        pretrained.save_pretrained(path, max_shard_size=max_shard_size)
    else:
        found = compressed(model)
        _write(found, path, max_shard_size)
    # Readers prefer one of them, and the other may be that of a model which was here before.
    stale = WHOLE if (path / INDEX).is_file() and _is_sharded(path) else INDEX
    (path / stale).unlink(missing_ok=True)


def attach(model: torch.nn.Module) -> None:
    """Makes ``save_pretrained`` of a model of transformers write compressed-tensors, unless
    transformers quantizes the model.
    """
    if not is_pretrained(model) or getattr(model, "hf_quantizer", None) is not None:
        return
    if not any(isinstance(module, Linear) for module in model.modules()):
        return
    try:
        from cutlass_api.transformers import Quantizer, Saved
    except ImportError:
        return  # a release of transformers that is too old
    quantized: Any = model
    quantized.hf_quantizer = Quantizer(Saved())


def _check_quantizer(model: Any) -> None:
    from cutlass_api.transformers import Quantizer

    quantizer = getattr(model, "hf_quantizer", None)
    if not (quantizer is None or isinstance(quantizer, Quantizer)):
        raise ValueError(
            f"save: transformers quantizes the model ({type(quantizer).__name__}); call "
            "model.save_pretrained, or load the model without quantization_config"
        )


def _is_sharded(path: Path) -> bool:
    """Whether the newer of an index and a single file is the index."""
    whole, index = path / WHOLE, path / INDEX
    return not whole.is_file() or index.stat().st_mtime_ns >= whole.stat().st_mtime_ns


def _write(found: Compressed, path: Path, max_shard_size: int | str) -> None:
    try:
        from huggingface_hub import save_torch_state_dict
    except ImportError:
        raise ImportError(
            "save: huggingface_hub is not installed; install the extra rutlass[models]"
        ) from None
    path.mkdir(parents=True, exist_ok=True)
    save_torch_state_dict(
        found.tensors, path, max_shard_size=max_shard_size, metadata=dict(found.metadata)
    )
    config = path / "config.json"
    if found.quantization is not None:
        text = json.dumps({"quantization_config": found.quantization}, indent=2)
        config.write_text(text + "\n", encoding="utf-8")
    else:
        config.unlink(missing_ok=True)


def compressed(model: torch.nn.Module) -> Compressed:
    """The tensors of a model by their names in compressed-tensors, and what config.json says.

    Raises ValueError that lists the layers which have no form.
    """
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, str] = {}
    schemes: dict[str, tuple[Config, list[str]]] = {}
    plain, problems = [], []
    # Writers drop tensors that share memory: layers that share a weight share all its parts.
    written: dict[Any, tuple[dict[str, Tensor], Config]] = {}
    for full, module in model.named_modules(remove_duplicate=False):
        name = original(full)
        if isinstance(module, Experts) and any(module.formats.values()):
            problems.append(f"{name}: its experts are quantized; save model.state_dict()")
            continue
        if not isinstance(module, Linear) or module.format is None:
            if isinstance(module, (torch.nn.Linear, Linear)):
                plain.append(name)
            continue
        shared = (module.activations, *map(identity, module.buffers(recurse=False)))
        try:
            if shared not in written:
                parts, scheme = layer_of(module.weight, module.activations)
                whole = {part: _whole(tensor) for part, tensor in parts.items()}
                written[shared] = whole, scheme
            parts, scheme = written[shared]
        except ValueError as error:
            problems.append(f"{name}: {error}")
            continue
        dot = f"{name}." if name else ""
        tensors |= {dot + part: tensor for part, tensor in parts.items()}
        schemes.setdefault(json.dumps(scheme), (scheme, []))[1].append(name)
        if "weight_global_scale" in parts:
            metadata[factor_key(name)] = float(module.weight.factor).hex()
    if problems:
        raise ValueError(f"save: compressed-tensors has no form for these layers{listed(problems)}")
    fields = {id(module) for module in model.modules() if isinstance(module, Linear)}
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        home, _, last = name.rpartition(".")
        owner = model.get_submodule(home)
        is_field = isinstance(owner, Linear) and owner.format is not None and last != "bias"
        if not (id(owner) in fields and is_field):
            state[original(name)] = tensor
    state |= tensors
    return Compressed(state, _quantization(schemes, plain), metadata)


def _whole(tensor: Tensor) -> Tensor:
    """A tensor that is all of its memory: files have no slices."""
    is_whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if is_whole else tensor.contiguous().clone()


def _quantization(
    schemes: dict[str, tuple[Config, list[str]]], plain: Iterable[str]
) -> Config | None:
    """``quantization_config``. One scheme has all linear layers but those that are named."""
    if not schemes:
        return None
    groups = {}
    for number, (scheme, layers) in enumerate(schemes.values()):
        targets = ["Linear"] if len(schemes) == 1 else layers
        groups[f"group_{number}"] = {"targets": targets, **scheme}
    formats = {group["format"] for group in groups.values()}
    return {
        "quant_method": "compressed-tensors",
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "config_groups": groups,
        "ignore": list(plain),
    }


def layer_of(weight: Weight, activations: str | None) -> tuple[dict[str, Tensor], Config]:
    """The tensors of a layer, and its scheme without targets.

    Raises ValueError for a layer that has no form.
    """
    _check(weight)
    shared = weight.format.scales
    strategy: Config = {"strategy": "tensor" if shared.extent == ALL else "channel"}
    if shared.varies_along_k:
        strategy = {"strategy": "group", "group_size": shared.depth}
        if shared.extent != 1:
            strategy = {"strategy": "block", "block_structure": [shared.extent, shared.depth]}
    form = FORMS[type(weight).__name__]
    name, parts, args = form(weight.unpack(), activations)
    scheme = {
        "weights": {"symmetric": True, "dynamic": False, **strategy, **args},
        "input_activations": _activations(activations, shared.varies_along_k),
        "output_activations": None,
        "format": name,
    }
    return parts, scheme


def _check(weight: Weight) -> None:
    if any(is_dtensor(tensor) for tensor in weight.tensors().values()):
        raise ValueError("is sharded; gather its buffers by full_tensor()")
    if weight.values.is_meta:
        raise ValueError("is on meta; load its values before")
    if weight.permutation is not None:
        raise ValueError(
            "has a permutation (act-order), which compressed-tensors 0.20 no longer reads; save "
            "model.state_dict(), or quantize without act-order"
        )
    zeros = weight.zeros
    if zeros is not None and zeros.is_floating_point():
        raise ValueError("has zero points in floating point; quantize with 'uint4'")
    if zeros is not None and weight.format.packing > 1 and bool((zeros > 15).any()):
        raise ValueError("has zero points of 16, beyond 4 bits; quantize with 'uint4'")
    if weight.factor is not None and weight.factor.numel() != 1:
        raise ValueError("has a factor for each row; save the layers before they are fused")
    shared = weight.format.scales
    is_integer = not weight.format.dtype.is_floating_point
    if is_integer and shared.varies_along_k and weight.shape[1] % shared.depth:
        raise ValueError(
            f"has K = {weight.shape[1]}, which groups of {shared.depth} do not divide; quantize "
            "with another group=, such as 32"
        )


def _activations(activations: str | None, has_blocks: bool) -> Config | None:
    if activations is None:
        return None
    kind = "float" if activations == "fp8" else "int"
    shared = {"strategy": "group", "group_size": 128} if has_blocks else {"strategy": "token"}
    return {"num_bits": 8, "type": kind, "symmetric": True, "dynamic": True, **shared}


Form = tuple[str, dict[str, Tensor], Config]


def _integers(weight: Weight, activations: str | None) -> Form:
    """Integers in words, or, as vLLM's products of 8 bits take them, in bytes."""
    bits = 8 // weight.format.packing
    args = {"num_bits": bits, "type": "int", "symmetric": weight.zeros is None}
    if activations is not None:
        return "int-quantized", {"weight": weight.values, "weight_scale": weight.scales}, args
    # Words hold offset binary.
    is_signed = weight.values.dtype is torch.int8
    values = weight.values.view(torch.uint8) ^ 128 if is_signed else weight.values
    parts = {
        "weight_packed": _words(values),
        "weight_scale": weight.scales,
        "weight_shape": torch.tensor(weight.shape, dtype=torch.int64),
    }
    if weight.zeros is not None:
        parts["weight_zero_point"] = _along_rows(weight.zeros, bits)
    return "pack-quantized", parts, args


def _words(values: Tensor) -> Tensor:
    """Bytes as int32, which begin at a multiple of 4 bytes."""
    return (values.clone() if values.storage_offset() % 4 else values).view(torch.int32)


def _along_rows(zeros: Tensor, bits: int) -> Tensor:
    """Zero points (N, G) as words (ceil(N / 8), G) of 4 bits, (ceil(N / 4), G) of 8."""
    across, each = zeros.t(), 32 // bits
    padding = ceil_div(across.shape[1], each) * each - across.shape[1]
    across = torch.nn.functional.pad(across, (0, padding)).contiguous()
    codes = packed(across) if bits == 4 else across
    # A vector: of one row, strides are arbitrary.
    words = codes.reshape(-1).view(torch.int32)
    return words.view(len(codes), -1).t().contiguous()


def _float8(weight: Weight, activations: str | None) -> Form:
    scales = weight.scales if weight.scales.dim() else weight.scales.reshape(1)
    parts = {"weight": weight.values, "weight_scale": scales}
    return "float-quantized", parts, {"num_bits": 8, "type": "float"}


def _mxfp4(weight: Weight, activations: str | None) -> Form:
    parts = {"weight_packed": weight.values, "weight_scale": weight.scales.view(torch.uint8)}
    args = {"num_bits": 4, "type": "float", "scale_dtype": "torch.uint8"}
    return "mxfp4-pack-quantized", parts, args


def _nvfp4(weight: Weight, activations: str | None) -> Form:
    assert weight.factor is not None
    parts = {
        "weight_packed": weight.values,
        "weight_scale": weight.scales,
        "weight_global_scale": 1 / weight.factor.reshape(1),
    }
    args = {"num_bits": 4, "type": "float", "strategy": "tensor_group"}
    return "nvfp4-pack-quantized", parts, args | {"scale_dtype": "torch.float8_e4m3fn"}


FORMS: dict[str, Callable[[Weight, str | None], Form]] = {
    **dict.fromkeys(("Int4", "UInt4", "Int8", "UInt8"), _integers),
    "Float8": _float8,
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
}
