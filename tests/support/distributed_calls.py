"""Calls of each operator that the ranks of a process group check."""

import torch
from cutlass_api import quantize
from cutlass_api.ops import _epilogues

F8, E8M0, BF16 = torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.bfloat16


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def rand(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=generator(seed + sum(shape))).to(dtype)


def integers(*shape, dtype=torch.int8):
    return torch.randint(0, 20, shape, generator=generator(sum(shape)), dtype=dtype)


def scales(*shape):
    return rand(*shape).abs() + 0.5


def exponents(*shape):
    return integers(*shape, dtype=torch.uint8).add(120).view(E8M0)


def ends(*values):
    return torch.tensor(values, dtype=torch.int32)


def float8(m, n, k, batch=None):
    shape = () if batch is None else (batch,)
    return rand(*shape, m, k).to(F8), rand(k, n).to(F8)


def grouped(m, g, n, k):
    return rand(m, k).to(F8), rand(g, k, n).to(F8)


SUM = "def epilogue(accum, scale, bias):\n    D = accum * scale + bias\n    return D"
BIAS_RELU = "def epilogue(accum, bias):\n    D = relu(accum + bias)\n    return D"
SWIGLU = "def epilogue(accum, other):\n    D = silu(accum) * product(other)\n    return D"
#: Column-major: a GPU has no kernel of two products for others.
FACTOR = rand(32, 16, dtype=BF16).mT
SCALED = _epilogues.scaled("scale_a", "scale_b", blocks={"a": "a_block=(1, 128)"})


def int4(n, k, group, repacked=True):
    """The fields of a weight, and the name of its class."""
    weight = quantize.int4(rand(n, k), group)
    weight = weight.repack() if repacked else weight
    return *weight.fields, None, "Int4"


def int4_stack(*extents, group):
    """The fields of a stack of weights, and the name of their class."""
    stack = quantize.int4(rand(*extents), group).repack()
    return *stack.fields, "Int4"


#: Calls of each operator by the dimensions of the product that shard them on the mesh: `+` stands
#: for a factor that is a partial sum.
CALLS = {
    "mm": [("m n k + +", rand(8, 12), rand(12, 16))],
    "bmm": [("l m n k + +", rand(4, 8, 12), rand(4, 12, 16))],
    "addmm": [
        ("m n k + +", rand(8, 16, seed=1), rand(8, 12), rand(12, 16)),
        ("m n k + +", rand(16), rand(8, 12), rand(12, 16)),
    ],
    "baddbmm": [("l m n k + +", rand(1, 8, 1), rand(4, 8, 12), rand(4, 12, 16))],
    "linear": [
        ("m0 n k + +", rand(8, 12), rand(16, 12), rand(16)),
        ("m0 m1 n k + +", rand(4, 8, 12), rand(16, 12)),
        ("m0 m1 n", rand(4, 8, 12), rand(16, 12), rand(16), "gelu"),
        ("n k + +", rand(12), rand(16, 12)),
    ],
    "joint_linear": [
        ("m0 k +", rand(8, 12), [rand(16, 12), rand(8, 12)], []),
        ("m0 m1 k +", rand(4, 8, 12), [rand(16, 12), rand(8, 12)], [rand(16), rand(8)]),
    ],
    "linear_forward": [
        ("m0 n k + +", rand(8, 12), rand(16, 12), rand(16)),
        ("m0 n", rand(8, 12), rand(16, 12), rand(16), "silu"),
        ("m0 n", rand(8, 12), rand(16, 12), None, "relu"),
    ],
    "linear_weight_grad": [("n k k0 k1 + +", rand(4, 8, 16), rand(4, 8, 12))],
    "grouped_mm": [
        ("n k + +", rand(9, 12), rand(3, 12, 16), ends(4, 4, 9)),
        ("n k + +", rand(9, 12), rand(3, 12, 16), ends(4, 4, 9), rand(3, 16)),
        (
            "n k + +",
            *(rand(8, 12), rand(3, 12, 16), ends(4, 4, 9), None, None, False),
            ends(7, 0, 0, 1, 2, 3, 4, 5, 6),
        ),
    ],
    "grouped_gated_mm": [
        ("n", rand(9, 12), rand(3, 12, 16), rand(3, 12, 16), ends(4, 4, 9)),
        ("n", rand(9, 12), *[rand(3, 12, 16)] * 2, ends(4, 4, 9), "silu", rand(3, 16), rand(3, 16)),
    ],
    "grouped_gated_mlp": [
        ("h", rand(9, 12), rand(3, 12, 16), rand(3, 8, 16), ends(4, 4, 9)),
        (
            *("h", rand(9, 12), rand(3, 12, 16), rand(3, 8, 16), ends(4, 4, 9), "gelu", True),
            *(rand(3, 16), rand(3, 16, seed=1)),
        ),
    ],
    "grouped_gated_mlp_grad": [
        ("", rand(9, 16), rand(3, 8, 16), rand(9, 16, seed=1), ends(4, 4, 9), "silu", False),
    ],
    "masked_grouped_mm": [
        ("g n k + +", rand(4, 8, 12), rand(4, 12, 16), ends(8, 8, 8, 8)),
        ("g n k + +", rand(4, 8, 12), rand(4, 12, 16), ends(8, 8, 8, 8), rand(4, 16)),
    ],
    "grouped_mm_weight_grad": [("k n + +", rand(9, 12), rand(9, 16), ends(4, 4, 9))],
    "int_mm": [
        ("m n k", integers(8, 12), integers(12, 16)),
        ("l m n k", integers(4, 8, 12), integers(12, 16)),
    ],
    "mixed_mm": [
        ("m n k +", rand(8, 12).half(), integers(12, 16)),
        ("m n k +", rand(8, 12).half(), integers(12, 16), scales(16), integers(16)),
        ("m n k +", rand(8, 64).half(), integers(64, 16), scales(4, 16), scales(1)),
        ("m n k +", integers(8, 64), rand(64, 16).half(), scales(8, 4), scales(8, 4)),
        ("m n k +", integers(8, 64), rand(64, 16).half(), scales(8, 1)),
        # Three groups are not split between ranks.
        ("m n +", rand(8, 96).half(), integers(96, 16), scales(3, 16)),
        ("l m n k +", rand(4, 8, 64).half(), integers(64, 16), scales(4, 4, 16)),
    ],
    "scaled_mm": [
        ("m n k", *float8(8, 16, 32), scales(8, 1), scales(1, 16), rand(16), None, BF16),
        ("m n", *float8(8, 16, 32), scales(1), scales(1), None, scales(1)),
        ("m n k", *float8(8, 16, 512), scales(8, 4), scales(4, 16), None, None, BF16),
        # A shard has whole blocks of 128, and parts of one are gathered.
        ("n k", *float8(256, 512, 512), scales(2, 4), scales(4, 4), None, None, BF16),
        ("m n k", *float8(8, 16, 128), exponents(8, 4), exponents(4, 16), None, None, BF16),
        # Swizzled scales.
        ("m", *float8(512, 16, 64), exponents(512 * 4), exponents(128 * 4), None, None, BF16),
        ("l m n k", *float8(8, 16, 32, batch=4), scales(4, 8, 1), scales(1), None, None, BF16),
        ("m n k", *float8(8, 16, 32), scales(1), scales(1), rand(16), scales(1), BF16, True),
    ],
    "scaled_grouped_mm": [
        ("n k", *grouped(9, 3, 16, 32), scales(9, 1), scales(3, 1, 16), ends(4, 4, 9), BF16),
        ("n k", *grouped(9, 3, 16, 512), scales(9, 4), scales(3, 4, 16), ends(4, 4, 9), BF16),
        ("n k", *grouped(9, 3, 512, 512), scales(1), scales(3, 4, 4), ends(4, 4, 9), BF16),
        ("n", *grouped(9, 3, 16, 32), scales(9, 1), scales(3), ends(4, 4, 9)),
        ("n k", *grouped(9, 3, 16, 32), scales(9), scales(1), ends(4, 4, 9), BF16, True),
        # Groups along K.
        ("m n", *float8(8, 16, 32), scales(3, 8, 1), scales(3, 1, 16), ends(4, 4, 32), BF16),
        ("m n", *float8(8, 16, 512), scales(8, 4), scales(4, 16), ends(4, 4, 512), BF16),
        ("n", *float8(8, 16, 32), scales(24), scales(3, 1, 16), ends(4, 4, 32), BF16),
    ],
    "mm_epilogue": [
        ("m n", rand(8, 12), rand(12, 16), [rand(16)], BIAS_RELU),
        ("m n k + +", rand(8, 12), rand(12, 16), [scales(8, 1), rand(16)], SUM),
        # What a GPU has a kernel for, also of shards.
        ("m n", rand(8, 16, dtype=BF16), FACTOR, [FACTOR.neg()], SWIGLU),
        ("l m n", rand(4, 8, 12), rand(12, 16), [rand(4, 1, 16)], BIAS_RELU),
        # Only replicated.
        ("", *float8(8, 16, 128), [scales(8, 1), scales(1)], SCALED),
    ],
    "quantized_linear": [
        ("m0 n k +", rand(8, 256).half(), *int4(16, 256, 64), rand(16)),
        ("m0 m1 n k +", rand(4, 8, 128).half(), *int4(16, 128, 32, repacked=False)),
        # Three groups are not split between ranks, nor is the argument of an activation.
        ("m0 n +", rand(8, 96).half(), *int4(16, 96, 32)),
        ("m0 n", rand(8, 128).half(), *int4(16, 128, None), rand(16), "gelu"),
    ],
    "quantized_linear_grad": [
        ("m0 k n +", rand(8, 16).half(), *int4(16, 256, 64)),
        ("m0 k n +", rand(8, 16).half(), *int4(16, 128, None, repacked=False)),
    ],
    "quantized_grouped_mm": [
        ("n k +", rand(9, 256).half(), *int4_stack(3, 16, 256, group=64), ends(4, 4, 9)),
        ("n k +", rand(9, 128).half(), *int4_stack(3, 16, 128, group=None), ends(4, 4, 9)),
    ],
    "quantized_grouped_mm_grad": [
        ("k n +", rand(9, 16).half(), *int4_stack(3, 16, 256, group=64), ends(4, 4, 9)),
    ],
    "quantize": [
        ("", rand(8, 16), F8, [-1, -1]),
        ("m", rand(8, 16), torch.int8, [1, -1]),
        ("k", rand(8, 16), F8, [-1, 1]),
        ("m k", rand(8, 512), F8, [1, 128]),
        ("m k", rand(512, 512), F8, [128, 128]),
        ("m k", rand(8, 256), torch.uint8, [1, 64]),
        ("m k", rand(8, 128), F8, [1, 32]),
        ("m", rand(512, 128), F8, [1, 32], True),
    ],
}
