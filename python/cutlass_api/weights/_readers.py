"""Readers of checkpoints: the tensors of a layer as a weight. Integers, zero points and scales are
exact.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from cutlass_api._dtypes import E8M0, FLOATS
from cutlass_api.weights._classes import MXFP4, NVFP4, Float8, Int4, Int8, UInt4, Weight
from cutlass_api.weights._formats import names
from cutlass_api.weights._packing import nibbles, packed

E4M3 = torch.float8_e4m3fn
AnyWeight = TypeVar("AnyWeight", bound=Weight)

#: The zero points that a symmetric GPTQ checkpoint stores, by format.
GPTQ_ZEROS = {"gptq": 7, "gptq_v2": 8}
#: The nibble of a word of AWQ that holds each of 8 columns.
AWQ_NIBBLES = (0, 4, 1, 5, 2, 6, 3, 7)
#: The bytes of a block of 32 elements in GGUF.
GGUF_BYTES = {"Q4_0": 18, "Q8_0": 34, "MXFP4": 17}


def from_gptq(
    qweight: Tensor,
    qzeros: Tensor,
    scales: Tensor,
    g_idx: Tensor | None = None,
    checkpoint_format: str | None = None,
) -> Int4 | UInt4:
    """A layer of 4 bits of GPTQ: AutoGPTQ, GPTQModel, transformers.

    - ``qweight``: int32 (K / 8, N). ``qzeros``: int32 (G, N / 8). ``scales``: (G, N).
    - ``g_idx``: integers (K,), the group of each row. Rows in another order than that of groups
      (act-order) are sorted, and the order is ``permutation`` of the weight.
    - ``checkpoint_format``: the entry of ``quantize_config.json`` or ``quantization_config``.
      "gptq": zero points are stored minus 1, so that they are 1 to 16. "gptq_v2": they are stored
      as they are. None: "gptq", unless the stored zero points are 8 everywhere, as those of
      symmetric checkpoints of "gptq_v2" are; then pass it.

    Returns :class:`Int4` if all zero points are 8, as in symmetric checkpoints, else
    :class:`UInt4`. Raises ValueError for stored zero points that contradict the format, shapes,
    dtypes, and groups of other sizes than 32, 64, 128 or K.
    """
    reader = "from_gptq"
    _require(reader, "qweight", qweight, 2, torch.int32)
    k, n = qweight.shape[0] * 8, qweight.shape[1]
    stored = _stored_zeros(reader, qzeros, scales, n, nibbles)
    served = names(map(repr, GPTQ_ZEROS))
    if checkpoint_format is None:
        if stored.numel() and bool((stored == GPTQ_ZEROS["gptq_v2"]).all()):
            raise ValueError(
                f"{reader}: qzeros are 8 everywhere, as in symmetric checkpoints of 'gptq_v2'; "
                "pass checkpoint_format='gptq_v2', or 'gptq' for zero points of 9"
            )
        checkpoint_format = "gptq"
    if checkpoint_format not in GPTQ_ZEROS:
        raise ValueError(
            f"{reader}: checkpoint_format is {checkpoint_format!r}; pass one of {served}"
        )
    zeros = stored + 8 - GPTQ_ZEROS[checkpoint_format]
    values = qweight.t().contiguous().view(torch.uint8)
    weight = _integers(values, scales.t(), zeros.t())
    if g_idx is None:
        return weight
    _require(reader, "g_idx", g_idx, 1, torch.int32, torch.int64)
    return in_order_of_groups(reader, "g_idx", weight, g_idx, k)


def from_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Int4 | UInt4:
    """A layer of AWQ in the version "gemm" of AutoAWQ.

    ``qweight``: int32 (K, N / 8). ``qzeros``: int32 (G, N / 8). ``scales``: (G, N). A word holds
    the columns 0, 2, 4, 6, 1, 3, 5 and 7 of 8. Versions "gemv" and "gemv_fast" have other shapes,
    and are refused.

    Returns and raises as :func:`from_gptq`.
    """
    reader = "from_awq"
    _require(reader, "qweight", qweight, 2, torch.int32)
    n = qweight.shape[1] * 8
    zeros = _stored_zeros(reader, qzeros, scales, n, _awq_columns)
    return _integers(packed(_awq_columns(qweight).t()), scales.t(), zeros.t())


def from_modelopt(tensors: Mapping[str, Tensor]) -> Weight:
    """A layer of NVIDIA's ModelOpt: NVFP4, INT4 (AWQ) or FP8.

    ``tensors``, by their names without the layer's prefix; others are ignored:

    - NVFP4: ``weight`` uint8 (N, K / 2), ``weight_scale`` float8_e4m3fn (N, K / 16), not swizzled,
      ``weight_scale_2`` float32, a multiplier. Returns :class:`NVFP4`.
    - INT4: ``weight`` uint8 (N / 2, K), two rows in a byte; ``weight_scale`` (N, K / group).
      Returns :class:`Int4`.
    - FP8: ``weight`` float8_e4m3fn (N, K), ``weight_scale`` float32. Returns :class:`Float8`.

    Raises ValueError for missing tensors, other shapes and dtypes, and for ``pre_quant_scale``,
    which multiplies the activations.
    """
    reader = "from_modelopt"
    weight, scales = take(reader, tensors, "weight", "weight_scale")
    if tensors.get("pre_quant_scale") is not None:
        raise ValueError(
            f"{reader}: pre_quant_scale is a scale of the activations; multiply them by it, and "
            "leave it out"
        )
    if weight.dtype is E4M3:
        return float8(weight, scales)
    _require(reader, "weight", weight, 2, torch.uint8)
    if scales.dtype is E4M3:
        if scales.dim() != 2:
            raise ValueError(
                f"{reader}: weight_scale has shape {list(scales.shape)}; export the checkpoint "
                "without enable_swizzle_layout"
            )
        (factor,) = take(reader, tensors, "weight_scale_2")
        return NVFP4(weight, scales, of_rows(factor))
    if "weight_scale_2" in tensors:
        raise ValueError(f"{reader}: INT4 with weight_scale_2 (W4A8) is not served")
    # Two's complement: the sign bit of offset binary is the opposite one.
    codes = torch.stack([weight & 15, weight >> 4], 1).flatten(0, 1) ^ 8
    return Int4(packed(codes), scales)


def from_gpt_oss(blocks: Tensor, scales: Tensor) -> MXFP4:
    """MXFP4 as gpt-oss stores it.

    - ``blocks``: uint8 (N, K / 32, 16), or (N, K / 2). ``scales``: uint8 (N, K / 32). Both may have
      a dimension of experts in front; the result is then a stack of weights.
    - Rows keep the order of the file: the even rows of ``gate_up_proj`` are the gate, the odd ones
      the other factor.

    Raises ValueError for other shapes and dtypes.
    """
    reader = "from_gpt_oss"
    _require(reader, "blocks", blocks, None, torch.uint8)
    _require(reader, "scales", scales, None, torch.uint8, E8M0)
    if scales.dim() not in (2, 3) or blocks.dim() - scales.dim() not in (0, 1):
        raise ValueError(
            f"{reader}: blocks has shape {list(blocks.shape)} and scales {list(scales.shape)}; "
            "pass (N, K / 32, 16) and (N, K / 32), or a dimension of experts in front of both"
        )
    values = blocks.flatten(-2) if blocks.dim() > scales.dim() else blocks
    return MXFP4(values, scales)


def from_deepseek(weight: Tensor, weight_scale_inv: Tensor) -> Float8 | MXFP4:
    """A layer of DeepSeek-V3 in float8, or an expert of DeepSeek-V4 in MXFP4.

    - V3: ``weight`` float8_e4m3fn (N, K); ``weight_scale_inv`` (ceil(N / 128), ceil(K / 128)) in
      float32, or in float8_e8m0fnu or its bytes in uint8. Returns :class:`Float8` with scales in
      float32. In spite of its name, ``weight_scale_inv`` is a multiplier.
    - V4: ``weight`` int8 or uint8 (N, K / 2); ``weight_scale_inv`` float8_e8m0fnu or uint8
      (N, K / 32). Returns :class:`MXFP4`.

    Raises ValueError for other shapes and dtypes. A weight in bfloat16 beside a scale is not
    quantized: take it as it is.
    """
    reader = "from_deepseek"
    served = (E4M3, torch.int8, torch.uint8)
    if weight.dtype in FLOATS:
        raise ValueError(
            f"{reader}: weight is {weight.dtype}, which is not quantized; take it as it is, "
            "without the scale"
        )
    _require(reader, "weight", weight, 2, *served)
    if weight.dtype is E4M3:
        return float8(weight, weight_scale_inv)
    return MXFP4(weight.view(torch.uint8), weight_scale_inv)


def from_gguf(data: Any, type: Any) -> Int4 | Int8 | MXFP4:
    """A matrix of a GGUF file of the type Q4_0, Q8_0 or MXFP4.

    - ``data``: uint8 (N, bytes of a row): a tensor, or an array as ``gguf.ReaderTensor.data``,
      which is copied.
    - ``type``: the name, or a ``gguf.GGMLQuantizationType`` as ``gguf.ReaderTensor.tensor_type``.

    Returns :class:`Int4` (Q4_0; scales may be negative), :class:`Int8` or :class:`MXFP4`, with
    groups of 32. Raises ValueError for other types, shapes and dtypes.
    """
    reader = "from_gguf"
    name = str(getattr(type, "name", type))
    if name not in GGUF_BYTES:
        raise ValueError(f"{reader}: the type is {name}; pass one of {names(GGUF_BYTES)}")
    data = data if isinstance(data, Tensor) else torch.tensor(data)
    _require(reader, "data", data, 2, torch.uint8)
    size = GGUF_BYTES[name]
    if data.shape[1] % size:
        raise ValueError(
            f"{reader}: rows of data have {data.shape[1]} bytes; blocks of {name} have {size}"
        )
    blocks = data.unflatten(1, (-1, size))
    scales, values = blocks.split([size % 16, size - size % 16], -1)
    if name == "MXFP4":
        return MXFP4(_halves(values), scales.flatten(1))
    scales = scales.contiguous().view(torch.float16).flatten(1)
    if name == "Q8_0":
        return Int8(values.flatten(1).contiguous().view(torch.int8), scales)
    return Int4(_halves(values), scales)


def from_torchao(qdata: Tensor, scale_and_zero: Tensor, shape: tuple[int, int]) -> UInt4:
    """A weight of torchao's Int4TilePackedTo4dTensor, by its fields, and by what
    ``torch.ops.aten._convert_weight_to_int4pack`` returns on NVIDIA GPUs.

    - ``qdata``: int32 (N / 8, K / (16 T), 32, T / 2), padded. ``scale_and_zero``: (G, N, 2).
    - ``shape``: (N, K) of the weight, without the padding of torchao. K is a multiple of 32.

    Returns :class:`UInt4` in the order of kernels, which is torchao's in each 32 elements. Elements
    are (q - 8) * scale + zero: ``zeros`` is zero - 8 * scale, in float32. Raises ValueError for
    other shapes and dtypes.
    """
    reader = "from_torchao"
    _require(reader, "qdata", qdata, 4, torch.int32)
    _require(reader, "scale_and_zero", scale_and_zero, 3, *FLOATS)
    if qdata.shape[2] != 32 or scale_and_zero.shape[2] != 2:
        raise ValueError(
            f"{reader}: qdata has shape {list(qdata.shape)} and scale_and_zero "
            f"{list(scale_and_zero.shape)}; pass (N / 8, K / (16 T), 32, T / 2) and (G, N, 2)"
        )
    n, k = shape
    # A lane 4 r + q of a tile holds word q of row r, for each of T / 2 groups of 32 elements.
    words = qdata.unflatten(2, (8, 4)).permute(0, 2, 1, 4, 3).flatten(0, 1).flatten(1, 2)
    rows, columns = words.shape[0], words.shape[1] * 32
    if n > rows or k > columns or k % 32 or not scale_and_zero.shape[0]:
        raise ValueError(f"{reader}: shape is {[n, k]} of a padded {[rows, columns]}")
    group = columns // scale_and_zero.shape[0]
    scales, zeros = scale_and_zero[: -(-k // group), :n].permute(2, 1, 0)
    return UInt4(words[:n, : k // 32], scales, zeros.float() - 8 * scales.float())


def float8(weight: Tensor, scales: Tensor) -> Float8:
    """float8 with scales in another dtype, and one scale in any shape of one element."""
    if scales.dtype is torch.uint8:
        scales = scales.view(E8M0)
    if scales.dim() < 2:
        scales = of_rows(scales)
    elif scales.numel() == 1:
        scales = scales.view(())
    return Float8(weight, scales.float())


def of_rows(scales: Tensor) -> Tensor:
    """A scale of the matrix as (), those of rows as (N, 1)."""
    return scales.reshape(()) if scales.numel() == 1 else scales.reshape(-1, 1)


def in_order_of_groups(
    reader: str, name: str, weight: AnyWeight, index: Tensor, k: int
) -> AnyWeight:
    """A weight whose columns are in the order of the groups that ``index`` names."""
    groups = torch.arange(k, device=index.device) // weight.group
    if index.shape != groups.shape:
        raise ValueError(f"{reader}: {name} has shape {list(index.shape)}; pass {[k]}")
    if torch.equal(index.long(), groups):
        return weight
    order = index.argsort(stable=True)
    if not torch.equal(index[order].long(), groups):
        raise ValueError(
            f"{reader}: {name} has groups of other sizes than {weight.group}, which are not served"
        )
    of_4_bits = weight.format.packing > 1
    codes = (nibbles(weight.values) if of_4_bits else weight.values).index_select(1, order)
    values = packed(codes) if of_4_bits else codes
    return type(weight)(**{**weight.tensors(), "values": values, "permutation": order.int()})


def take(reader: str, tensors: Mapping[str, Tensor], *keys: str) -> list[Tensor]:
    """The tensors of these names. Raises ValueError for missing ones."""
    missing = [key for key in keys if tensors.get(key) is None]
    if missing:
        raise ValueError(f"{reader}: the tensors are {names(tensors)}; pass {names(missing)}, too")
    return [tensors[key] for key in keys]


def _require(
    reader: str, name: str, tensor: Tensor, rank: int | None, *dtypes: torch.dtype
) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{reader}: {name} is {type(tensor).__qualname__}; pass a torch.Tensor")
    if tensor.dtype not in dtypes:
        raise ValueError(f"{reader}: {name} is {tensor.dtype}; pass {names(dtypes)}")
    if rank is not None and tensor.dim() != rank:
        raise ValueError(f"{reader}: {name} has shape {list(tensor.shape)}; pass {rank} dimensions")


def _stored_zeros(reader: str, qzeros: Tensor, scales: Tensor, n: int, unpack: Any) -> Tensor:
    """The stored zero points (G, N) of words (G, N / 8)."""
    _require(reader, "qzeros", qzeros, 2, torch.int32)
    _require(reader, "scales", scales, 2, *FLOATS)
    expected = (scales.shape[0], n // 8)
    if scales.shape[1] != n or tuple(qzeros.shape) != expected:
        raise ValueError(
            f"{reader}: qzeros has shape {list(qzeros.shape)} and scales {list(scales.shape)} for "
            f"N = {n}; pass (G, N / 8) and (G, N) of 4 bits"
        )
    zeros: Tensor = unpack(qzeros)
    return zeros


def _integers(values: Tensor, scales: Tensor, zeros: Tensor) -> Int4 | UInt4:
    if bool((zeros == 8).all()):
        return Int4(values, scales)
    return UInt4(values, scales, zeros)


def _awq_columns(words: Tensor) -> Tensor:
    """The codes of words of AWQ, in the order of columns."""
    return nibbles(words).unflatten(-1, (-1, 8))[..., list(AWQ_NIBBLES)].flatten(-2)


def _halves(values: Tensor) -> Tensor:
    """Blocks of 16 bytes whose low halves are the first 16 elements, as bytes of two neighbours."""
    return packed(torch.cat([values & 15, values >> 4], -1).flatten(1))
