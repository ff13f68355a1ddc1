"""Readers of checkpoints, with inputs made from the rules of the formats."""

import re

import pytest
import torch
from cutlass_api import weights
from cutlass_api.weights import MXFP4, NVFP4, Float8, Int4, Int8, UInt4, UInt8
from support.weights import e2m1

E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
N, K = 16, 192
GROUPS = (32, 64, 128, K)


def integers(*shape, bound=16):
    return torch.randint(bound, shape, generator=torch.Generator().manual_seed(sum(shape)))


def floats(*shape, dtype=torch.float16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(dtype)


def words(codes, dim, bits=4):
    """Codes as int32 that hold 32 / bits of them along a dimension, from the low bits up."""
    codes = codes.movedim(dim, -1).long()
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % (32 // bits)))
    shifts = bits * torch.arange(32 // bits)
    packed = (codes.unflatten(-1, (-1, 32 // bits)) << shifts).sum(-1)
    return ((packed + 2**31) % 2**32 - 2**31).int().movedim(-1, dim).contiguous()


def matrix(codes, zeros, scales, groups=None):
    """(q - z) * s in float64 of codes (N, K), zero points and scales (N, G)."""
    k = codes.shape[1]
    if groups is None:
        count = scales.shape[1]
        groups = torch.arange(k) // next(g for g in (*GROUPS, k) if -(-k // g) == count)
    zeros = zeros if isinstance(zeros, int) else zeros.double()[:, groups]
    return (codes.double() - zeros) * scales.double()[:, groups]


def equal(weight, expected):
    """Exactly, after one rounding to float32."""
    assert torch.equal(weight.dequantize(torch.float64), expected.float().double())


def refuses(message, reader, *arguments, **options):
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        reader(*arguments, **options)
    assert str(error.value).startswith((reader.__name__ + ": ", "Int", "UInt", "MX", "NV", "Float"))


# GPTQ


def gptq(codes, zeros, minus):
    return words(codes.t(), 0), words(zeros.t() - minus, 1)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("format", [None, "gptq", "gptq_v2"])
def test_gptq(format, group):
    codes, scales = integers(N, K), floats(N, -(-K // group))
    minus = 0 if format == "gptq_v2" else 1
    zeros = integers(*scales.shape) + minus
    zeros[0, 0] = 15 + minus  # 16 is a zero point of the first version
    qweight, qzeros = gptq(codes, zeros, minus)
    assert qweight.shape == (K // 8, N) and qzeros.shape == (scales.shape[1], N // 8)
    trivial = torch.arange(K) // group
    for index in (None, trivial, trivial.int()):
        weight = weights.from_gptq(qweight, qzeros, scales.t(), index, format)
        assert type(weight) is UInt4 and weight.permutation is None
        assert torch.equal(weight.zeros, zeros) and weight.zeros.max() == 15 + minus
        assert torch.equal(weight.scales, scales) and weight.scales.is_contiguous()
        equal(weight, matrix(codes, zeros, scales))


def test_symmetric_gptq_is_int4_and_a_contradiction_is_refused():
    codes, scales = integers(N, K), floats(N, 3)
    first, second = (gptq(codes, torch.full((N, 3), 8), minus) for minus in (1, 0))
    for (qweight, qzeros), format in ((first, None), (first, "gptq"), (second, "gptq_v2")):
        weight = weights.from_gptq(qweight, qzeros, scales.t(), checkpoint_format=format)
        assert type(weight) is Int4
        equal(weight, matrix(codes, 8, scales))
    refuses("pass checkpoint_format='gptq_v2', or 'gptq'", weights.from_gptq, *second, scales.t())
    # A format that the caller passes is taken at its word.
    for (qweight, qzeros), format, zero in ((second, "gptq", 9), (first, "gptq_v2", 7)):
        weight = weights.from_gptq(qweight, qzeros, scales.t(), checkpoint_format=format)
        equal(weight, matrix(codes, zero, scales))


@pytest.mark.parametrize("group", [32, 128])
def test_act_order(group):
    codes, scales = integers(N, K), floats(N, -(-K // group))
    zeros = integers(*scales.shape)
    order = torch.randperm(K, generator=torch.Generator().manual_seed(2))
    index = torch.empty(K, dtype=torch.int32)
    index[order] = (torch.arange(K) // group).int()
    weight = weights.from_gptq(*gptq(codes, zeros, 0), scales.t(), index, "gptq_v2")
    assert weight.permutation.dtype is torch.int32
    # A stable order: that of columns within a group.
    assert torch.equal(weight.permutation.long(), index.argsort(stable=True))
    expected = matrix(codes, zeros, scales, index.long())
    equal(weight, expected)
    equal(weight.repack().unpack(), expected)
    index[order[0]] = index[order[-1]]
    refuses(
        "g_idx has groups of other sizes",
        weights.from_gptq,
        *gptq(codes, zeros, 1),
        scales.t(),
        index,
    )


def test_gptq_refuses():
    qweight, qzeros = gptq(integers(N, K), integers(N, 3), 0)
    scales = floats(3, N)
    read = weights.from_gptq
    refuses(
        "checkpoint_format is 'marlin'; pass one of 'gptq', 'gptq_v2'",
        read,
        qweight,
        qzeros,
        scales,
        None,
        "marlin",
    )
    refuses("qweight is torch.int64; pass torch.int32", read, qweight.long(), qzeros, scales)
    refuses("(G, N / 8) and (G, N) of 4 bits", read, qweight, qzeros[:, :1], scales)
    refuses("(G, N / 8) and (G, N) of 4 bits", read, qweight, qzeros, scales.t())
    refuses(
        "scales has shape [16, 4] for a weight [16, 192]",
        read,
        qweight,
        torch.cat([qzeros, qzeros[:1]]),
        floats(4, N),
    )
    refuses("g_idx has shape [9]; pass [192]", read, qweight, qzeros, scales, torch.zeros(9).int())
    refuses(
        "g_idx is torch.float32; pass torch.int32, torch.int64",
        read,
        qweight,
        qzeros,
        scales,
        torch.zeros(K),
    )


# AWQ


def awq_words(codes):
    """Nibble i of a word holds the column 0, 2, 4, 6, 1, 3, 5 or 7 of 8."""
    columns = codes.unflatten(1, (-1, 8))[..., [0, 2, 4, 6, 1, 3, 5, 7]]
    return words(columns.flatten(1), 1)


@pytest.mark.parametrize("group", GROUPS)
def test_awq(group):
    codes, scales = integers(N, K), floats(N, -(-K // group))
    zeros = integers(*scales.shape)
    read = weights.from_awq(awq_words(codes.t()), awq_words(zeros.t()), scales.t())
    assert type(read) is UInt4 and torch.equal(read.zeros, zeros)
    equal(read, matrix(codes, zeros, scales))
    # "gemv" has (N, K / 8).
    refuses(
        "(G, N / 8) and (G, N) of 4 bits",
        weights.from_awq,
        words(codes, 1),
        awq_words(zeros.t()),
        scales.t(),
    )


# compressed-tensors


def scheme(bits, kind="int", symmetric=True, **other):
    return {"weights": {"num_bits": bits, "type": kind, "symmetric": symmetric, **other}}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("n", [16, 21])
def test_packed_integers(n, bits, group, dtype):
    bound = 2**bits
    codes, scales = integers(n, K, bound=bound), floats(n, -(-K // group), dtype=dtype)
    zeros = integers(*scales.shape, bound=bound)
    tensors = {
        "weight_packed": words(codes, 1, bits),
        "weight_scale": scales,
        "weight_shape": torch.tensor([n, K]),
        "input_scale": torch.ones(1),
    }
    read = weights.from_compressed_tensors(tensors, scheme(bits))
    assert type(read) is (Int4 if bits == 4 else Int8) and read.scales.dtype is dtype
    equal(read, matrix(codes, bound // 2, scales))
    tensors["weight_zero_point"] = words(zeros, 0, bits)
    read = weights.from_compressed_tensors(tensors, scheme(bits, symmetric=False))
    assert type(read) is (UInt4 if bits == 4 else UInt8)
    equal(read, matrix(codes, zeros, scales))
    of_name = weights.from_compressed_tensors(tensors, "pack-quantized")
    assert type(of_name) is type(read)
    equal(of_name, matrix(codes, zeros, scales))
    # Groups in an order of their own.
    order = torch.randperm(K, generator=torch.Generator().manual_seed(2))
    index = torch.empty(K, dtype=torch.int32)
    index[order] = (torch.arange(K) // group).int()
    tensors["weight_g_idx"] = index
    read = weights.from_compressed_tensors(tensors, scheme(bits, symmetric=False))
    equal(read, matrix(codes, zeros, scales, index.long()))
    tensors["weight_g_idx"] = torch.full((K,), -1)
    read = weights.from_compressed_tensors(tensors, scheme(bits, symmetric=False))
    equal(read, matrix(codes, zeros, scales))


def test_plain_integers():
    values, scales = integers(N, K, bound=256).to(torch.uint8).view(torch.int8), floats(N, 3)
    zeros = integers(N, 3, bound=256).to(torch.uint8).view(torch.int8)
    tensors = {"weight": values, "weight_scale": scales, "weight_zero_point": zeros}
    equal(weights.from_compressed_tensors(tensors, scheme(8)), matrix(values, 0, scales))
    read = weights.from_compressed_tensors(tensors, scheme(8, symmetric=False))
    equal(read, matrix(values, zeros, scales))
    tensors["weight_scale"] = floats(1)
    equal(weights.from_compressed_tensors(tensors, scheme(4)), values.double() * floats(1).double())


def of_e2m1(codes, scales, group):
    table = torch.tensor([e2m1(code) for code in range(16)], dtype=torch.float64)
    return table[codes.long()] * scales.double().repeat_interleave(group, 1)


def bytes_of(codes):
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)


CODES = integers(N, K)
POWERS = (integers(N, K // 32, bound=40) + 100).to(torch.uint8)
BLOCKS = floats(N, K // 16).to(E4M3)


def test_float_of_4_bits():
    tensors = {"weight_packed": bytes_of(CODES), "weight_scale": POWERS}
    for scales in (POWERS, POWERS.view(E8M0)):
        tensors["weight_scale"] = scales
        read = weights.from_compressed_tensors(tensors, scheme(4, "float"))
        assert type(read) is MXFP4
        equal(read, of_e2m1(CODES, POWERS.view(E8M0).float(), 32))
        read = weights.from_compressed_tensors(tensors, "mxfp4-pack-quantized")
        assert type(read) is MXFP4
    for divisor in (torch.tensor([16.0]), torch.tensor(16.0), torch.tensor([16.0, 4] * 8)):
        tensors |= {"weight_scale": BLOCKS, "weight_global_scale": divisor}
        read = weights.from_compressed_tensors(tensors, scheme(4, "float"))
        assert type(read) is NVFP4
        equal(read, of_e2m1(CODES, BLOCKS.float(), 16) / divisor.reshape(-1, 1))


FLOAT8 = floats(130, K).to(E4M3)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (130, 1), (130,), (130, 2), (2, 2)])
def test_float_of_8_bits(shape):
    scales = floats(*shape, dtype=torch.bfloat16)
    rows = scales.reshape(-1, 1) if len(shape) < 2 else scales
    height, width = (128 if rows.shape[0] == 2 else 1), (128 if rows.shape[1] == 2 else K)
    wide = rows.double().repeat_interleave(height, 0)[:130].repeat_interleave(width, 1)[:, :K]
    tensors = {"weight": FLOAT8, "weight_scale": scales}
    for read in (
        weights.from_compressed_tensors(tensors, scheme(8, "float")),
        weights.from_modelopt(tensors),
    ):
        assert type(read) is Float8 and read.scales.dtype is torch.float32
        equal(read, FLOAT8.double() * wide)


def test_compressed_tensors_refuses():
    read = weights.from_compressed_tensors
    good = {
        "weight_packed": words(CODES, 1),
        "weight_scale": floats(N, 3),
        "weight_shape": torch.tensor([N, K]),
    }
    missing = {key: x for key, x in good.items() if key != "weight_shape"}
    refuses("pass weight_shape, too", read, missing, scheme(4))
    refuses("pass weight_zero_point, too", read, good, scheme(4, symmetric=False))
    refuses("weights are int of 3 bits; pass 4 or 8 bits", read, good, scheme(3))
    refuses("pass [16, 48] for weight_shape [16, 192] and 8 bits", read, good, scheme(8))
    refuses("the format is 'dense'; pass one of pack-quantized, ", read, good, "dense")
    refuses("the scheme has no weights", read, good, {"format": "pack-quantized"})
    refuses(
        "weight_packed is torch.int64",
        read,
        {**good, "weight_packed": good["weight_packed"].long()},
        scheme(4),
    )
    decompressed = {"weight": floats(N, K), "weight_scale": floats(N, 1)}
    for of in (scheme(8, "float"), scheme(4)):
        refuses("take a layer that is decompressed as it is", read, decompressed, of)
    refuses(
        "MXFP8 is not served", read, {"weight": FLOAT8, "weight_scale": POWERS}, scheme(8, "float")
    )
    refuses(
        "pass weight_global_scale, too",
        read,
        {"weight_packed": bytes_of(CODES), "weight_scale": BLOCKS},
        scheme(4, "float"),
    )


# Others


def test_modelopt():
    tensors = {"weight": bytes_of(CODES), "weight_scale": BLOCKS, "input_scale": torch.ones(())}
    for factor in (torch.tensor(0.25), torch.tensor([0.25])):
        read = weights.from_modelopt({**tensors, "weight_scale_2": factor})
        assert type(read) is NVFP4
        equal(read, of_e2m1(CODES, BLOCKS.float(), 16) / 4)
    refuses("pass weight_scale_2, too", weights.from_modelopt, tensors)
    swizzled = {**tensors, "weight_scale": torch.zeros(128 * 12).to(E4M3)}
    refuses("without enable_swizzle_layout", weights.from_modelopt, swizzled)
    # Two rows in a byte, in two's complement.
    two = (CODES[0::2] | CODES[1::2] << 4).to(torch.uint8)
    tensors = {"weight": two, "weight_scale": floats(N, 3, dtype=torch.float32)}
    read = weights.from_modelopt(tensors)
    assert type(read) is Int4
    signed = CODES.where(CODES < 8, CODES - 16)
    equal(read, matrix(signed, 0, tensors["weight_scale"]))
    scaled = {**tensors, "pre_quant_scale": torch.ones(K)}
    refuses("multiply them by it", weights.from_modelopt, scaled)
    refuses("W4A8", weights.from_modelopt, {**tensors, "weight_scale_2": torch.ones(())})


def test_gpt_oss():
    blocks, expected = (
        bytes_of(CODES).view(N, K // 32, 16),
        of_e2m1(CODES, POWERS.view(E8M0).float(), 32),
    )
    for values in (blocks, blocks.flatten(1)):
        equal(weights.from_gpt_oss(values, POWERS), expected)
        experts = weights.from_gpt_oss(
            torch.stack([values, values ^ 0x88]), torch.stack([POWERS] * 2)
        )
        assert type(experts) is MXFP4 and tuple(experts.shape) == (2, N, K)
        equal(experts[0], expected)
        equal(experts[1], -expected)
    refuses("or a dimension of experts in front of both", weights.from_gpt_oss, blocks, POWERS[0])
    refuses(
        "blocks is torch.int8; pass torch.uint8",
        weights.from_gpt_oss,
        blocks.view(torch.int8),
        POWERS,
    )


def test_deepseek():
    scales = floats(2, 2, dtype=torch.float32)
    wide = torch.ones(130, K, dtype=torch.float64)

    def spread(x):
        return wide * x.double().repeat_interleave(128, 0)[:130].repeat_interleave(128, 1)[:, :K]

    equal(weights.from_deepseek(FLOAT8, scales), FLOAT8.double() * spread(scales))
    powers = POWERS[:2, :2].contiguous()
    for inv in (powers, powers.view(E8M0)):
        read = weights.from_deepseek(FLOAT8, inv)
        assert read.scales.dtype is torch.float32
        equal(read, FLOAT8.double() * spread(powers.view(E8M0).double()))
    expected = of_e2m1(CODES, POWERS.view(E8M0).float(), 32)
    for values in (bytes_of(CODES), bytes_of(CODES).view(torch.int8)):
        for inv in (POWERS, POWERS.view(E8M0)):
            equal(weights.from_deepseek(values, inv), expected)
    refuses("take it as it is, without the scale", weights.from_deepseek, floats(N, K), scales)
    refuses("scales has shape [2, 3] for a weight", weights.from_deepseek, FLOAT8, floats(2, 3))


def test_gguf():
    """By the rules; ``test_packages.py`` compares with the package."""
    d = floats(N, K // 32)
    codes = CODES.view(N, -1, 2, 16)
    halves = (codes[:, :, 0] | codes[:, :, 1] << 4).to(torch.uint8)
    bytes = torch.cat([d[..., None].view(torch.uint8), halves], -1).flatten(1)
    equal(weights.from_gguf(bytes, "Q4_0"), matrix(CODES, 8, d))
    equal(weights.from_gguf(bytes.numpy(), "Q4_0"), matrix(CODES, 8, d))
    values = integers(N, K, bound=256).to(torch.uint8)
    bytes = torch.cat([d[..., None].view(torch.uint8), values.view(N, -1, 32)], -1).flatten(1)
    equal(weights.from_gguf(bytes, "Q8_0"), matrix(values.view(torch.int8), 0, d))
    bytes = torch.cat([POWERS[..., None], halves], -1).flatten(1)
    equal(weights.from_gguf(bytes, "MXFP4"), of_e2m1(CODES, POWERS.view(E8M0).float(), 32))
    refuses("the type is Q4_K; pass one of Q4_0, Q8_0, MXFP4", weights.from_gguf, bytes, "Q4_K")
    refuses("blocks of MXFP4 have 17", weights.from_gguf, bytes[:, :-1], "MXFP4")


@pytest.mark.parametrize("tiles", [2, 4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_torchao(tiles, group):
    """The order of ``matrix_to_m16n8k16_Bint4_layout`` in int4mm.cu of torch."""
    n, k, columns = 12, 192, 1024
    codes = integers(16, columns)
    packed = torch.empty(2, columns // 16 // tiles, 32, tiles // 2, dtype=torch.int64)
    for t in range(32):
        for inner in range(0, tiles, 2):
            rows = codes[t // 4 :: 8]  # of both tiles of rows
            word = 0
            for i, shift in enumerate((0, 16, 4, 20, 8, 24, 12, 28)):
                first = inner * 16 + i // 2 * 8 + t % 4 * 2 + i % 2
                word = word | rows[:, first :: 16 * tiles] << shift
            packed[:, :, t, inner // 2] = word
    qdata = ((packed + 2**31) % 2**32 - 2**31).int()
    both = floats(columns // group, 16, 2, dtype=torch.bfloat16)
    read = weights.from_torchao(qdata, both, (n, k))
    assert type(read) is UInt4 and read.is_repacked and read.shape == (n, k)
    scales, zeros = (x.double().repeat_interleave(group, 0)[:k, :n].t() for x in both.unbind(-1))
    expected = (codes[:n, :k].double() - 8) * scales + zeros
    torch.testing.assert_close(read.dequantize(torch.float64), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(read.scales, both[: -(-k // group), :n, 0].t())
    refuses("of a padded [16, 1024]", weights.from_torchao, qdata, both, (17, k))
