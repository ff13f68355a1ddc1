"""Readers, with inputs that the packages of the formats make and read. Skipped where a package is
missing; CONTRIBUTING.md has the versions.
"""

import importlib.util
import sys
import types

import pytest
import torch
from cutlass_api import weights

E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
N, K = 64, 256


def random_weight(dtype=torch.float32):
    generator = torch.Generator().manual_seed(7)
    return (torch.randn(N, K, generator=generator) + 0.1).to(dtype)


def without_init(monkeypatch, *packages):
    """Makes packages importable without their ``__init__``, which imports much more."""
    for name in packages:
        found = importlib.util.find_spec(name)
        if found is None:
            pytest.skip(f"needs {packages[0]}")
        stub = types.ModuleType(name)
        stub.__path__ = list(found.submodule_search_locations)
        monkeypatch.setitem(sys.modules, name, stub)


def test_gguf():
    gguf = pytest.importorskip("gguf")
    matrix = random_weight().numpy()
    for name in ("Q4_0", "Q8_0", "MXFP4"):
        kind = gguf.GGMLQuantizationType[name]
        data = gguf.quants.quantize(matrix, kind)
        expected = torch.from_numpy(gguf.quants.dequantize(data, kind))
        assert torch.equal(weights.from_gguf(data, kind).dequantize(torch.float32), expected)


def schemes():
    yield "int", {"num_bits": 4, "strategy": "group", "group_size": 128}
    yield "int", {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}
    yield "int", {"num_bits": 4, "strategy": "channel", "symmetric": False}
    yield "int", {"num_bits": 8, "strategy": "group", "group_size": 64}
    yield "int", {"num_bits": 8, "strategy": "channel", "symmetric": False}
    yield "float", {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}
    yield "float", {"num_bits": 4, "strategy": "group", "group_size": 32}
    yield "float", {"num_bits": 8, "strategy": "tensor"}
    yield "float", {"num_bits": 8, "strategy": "channel"}
    yield "float", {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("kind", "args"), list(schemes()), ids=str)
def test_compressed_tensors(kind, args, dtype):
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    matrix = random_weight(dtype)
    quantization = QuantizationArgs(type=kind, **args)
    scheme = QuantizationScheme(targets=["Linear"], weights=quantization)
    group = args.get("group_size") or K
    blocks = matrix.unflatten(1, (-1, group))
    if args["strategy"] == "tensor":
        low, high = matrix.amin().reshape(1), matrix.amax().reshape(1)
    elif args["strategy"] == "block":
        low, high = (
            getattr(matrix.unflatten(1, (-1, 128)), x)((0, 2))[None] for x in ("amin", "amax")
        )
    else:
        low, high = blocks.amin(-1), blocks.amax(-1)
    options = {}
    is_nvfp4 = args["strategy"] == "tensor_group"
    if is_nvfp4:
        options["global_scale"] = generate_gparam(matrix.amin().float(), matrix.amax().float())
    scales, zeros = calculate_qparams(low, high, quantization, **options)
    state = {"weight": matrix, "weight_scale": scales, "weight_zero_point": zeros}
    if is_nvfp4:
        state["weight_global_scale"] = options["global_scale"]
    name = {
        ("int", 4): "pack-quantized",
        ("int", 8): "pack-quantized",
        ("float", 8): "float-quantized",
        ("float", 4): "nvfp4-pack-quantized" if is_nvfp4 else "mxfp4-pack-quantized",
    }[kind, args["num_bits"]]
    compressor = BaseCompressor.get_value_from_registry(name)
    packed = compressor.compress(dict(state), scheme)
    read = weights.from_compressed_tensors(packed, scheme)
    of_dict = weights.from_compressed_tensors(packed, scheme.model_dump())
    assert torch.equal(of_dict.dequantize(), read.dequantize())
    expected = compressor.decompress(dict(packed), scheme)["weight"]
    found = read.dequantize(torch.float32)
    # The package computes in its own dtypes.
    rounding = max(torch.finfo(expected.dtype).eps, 2e-7)
    assert ((found - expected.float()).abs() <= rounding * 2 * found.abs()).all()
    if kind == "int":
        assert torch.equal(read.scales.view(-1), scales.reshape(-1))


def test_modelopt():
    pytest.importorskip("modelopt")
    from modelopt.torch.export.quant_utils import pack_int4_in_uint8

    matrix = random_weight()
    scales = matrix.unflatten(1, (-1, 128)).abs().amax(-1) / 7
    packed = pack_int4_in_uint8(matrix, scales, 128)
    read = weights.from_modelopt({"weight": packed, "weight_scale": scales})
    numbers = (matrix / scales.repeat_interleave(128, 1)).round()
    assert torch.equal(read.dequantize(), numbers * scales.repeat_interleave(128, 1))

    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    tensor, scales, factor = NVFP4QTensor.quantize(matrix.clone(), 16)
    stored = {"weight": tensor._quantized_data, "weight_scale": scales, "weight_scale_2": factor}
    expected = tensor.dequantize(
        torch.float32, scale=scales, double_scale=factor, block_sizes={-1: 16}
    )
    found = weights.from_modelopt(stored).dequantize(torch.float32)
    torch.testing.assert_close(found, expected, rtol=2e-7, atol=0)


def linear_of(codes, zeros, scales):
    """A layer whose weight the packages quantize to these codes."""
    linear = torch.nn.Linear(K, N, bias=False)
    groups = torch.arange(K) // (K // scales.shape[1])
    linear.weight.data = (codes - zeros[:, groups]) * scales[:, groups].float()
    return linear


def example(groups):
    generator = torch.Generator().manual_seed(9)
    codes = torch.randint(16, (N, K), generator=generator)
    zeros = torch.randint(1, 16, (N, groups), generator=generator)
    scales = (torch.rand(N, groups, generator=generator) + 0.5).half()
    return codes, zeros, scales


@pytest.mark.parametrize("module", ["qlinear_cuda_old", "qlinear_cuda"])
@pytest.mark.parametrize("group", [32, 128])
def test_auto_gptq(group, module, monkeypatch):
    where = "auto_gptq.nn_modules.qlinear"
    without_init(monkeypatch, "auto_gptq", "auto_gptq.nn_modules", where)
    qlinear = importlib.import_module(f"{where}.{module}")
    codes, zeros, scales = example(K // group)
    index = torch.arange(K) // group
    linear = linear_of(codes, zeros, scales)
    if module == "qlinear_cuda":  # in act-order
        order = torch.randperm(K, generator=torch.Generator().manual_seed(4))
        index, linear.weight.data = index[order], linear.weight.data[:, order]
    layer = qlinear.QuantLinear(4, group, K, N, False)
    layer.pack(linear, scales.float(), zeros.float(), index.int())
    read = weights.from_gptq(layer.qweight, layer.qzeros, layer.scales, index)
    assert torch.equal(read.zeros, zeros) and torch.equal(read.scales, scales)
    assert (read.permutation is None) == (module == "qlinear_cuda_old")
    expected = layer(torch.eye(K)).t().float()
    found = read.dequantize(torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found, linear.weight.data, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("group", [32, 128])
def test_auto_awq(group, monkeypatch):
    without_init(monkeypatch, "awq", "awq.modules", "awq.modules.linear", "awq.utils")
    gemm = importlib.import_module("awq.modules.linear.gemm")
    packing = importlib.import_module("awq.utils.packing_utils")
    codes, zeros, scales = example(K // group)
    layer = gemm.WQLinear_GEMM.from_linear(
        linear_of(codes, zeros, scales), 4, group, scales=scales.t(), zeros=zeros.t()
    )
    fields = layer.qweight, layer.qzeros, layer.scales
    read = weights.from_awq(*fields)
    assert torch.equal(read.zeros, zeros)
    expected = packing.dequantize_gemm(*fields, 4, group).t()
    assert torch.equal(read.dequantize(torch.float16), expected)


def test_transformers_gpt_oss():
    mxfp4 = pytest.importorskip("transformers.integrations.mxfp4")
    generator = torch.Generator().manual_seed(1)
    blocks = torch.randint(256, (2, N, K // 32, 16), generator=generator).to(torch.uint8)
    scales = torch.randint(110, 140, (2, N, K // 32), generator=generator).to(torch.uint8)
    expected = mxfp4.convert_moe_packed_tensors(blocks, scales)
    for one, each in zip(weights.from_gpt_oss(blocks, scales), expected, strict=True):
        # transformers returns (K, N).
        assert torch.equal(one.dequantize(), each.t())
