"""Layers of ``cutlass_api.nn`` of each format."""

from functools import partial

import torch
from cutlass_api import quantize
from cutlass_api.nn import Linear

from support.weights import PACKED, uint8

N, K = 48, 160
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


def matrix(dtype=BF16, seed=0):
    return torch.randn(N, K, generator=torch.Generator().manual_seed(seed)).to(dtype)


def permuted(weight):
    order = torch.randperm(K, generator=torch.Generator().manual_seed(2)).int()
    return type(weight).from_tensors({**weight.tensors(), "permutation": order})


#: Weights and activations by name.
LAYERS = {
    "plain": (lambda w: w.half(), None),
    **{name: (partial(kind.of_group, group=64), None) for name, kind in PACKED.items()},
    "int4": (lambda w: quantize.int4(w, 32), None),
    "int4 permuted": (lambda w: permuted(quantize.int4(w, 32)), None),
    "fp8": (quantize.fp8, None),
    "int8": (quantize.int8, None),
    "int8 groups": (lambda w: quantize.int8(w, 32), None),
    "uint8": (uint8, None),
    **{
        f"dynamic fp8 {block}": (lambda w, block=block: quantize.fp8(w, block), "fp8")
        for block in ("row", "tensor", (1, 128), (128, 128))
    },
    "dynamic fp8 permuted": (lambda w: permuted(quantize.fp8(w)), "fp8"),
    "dynamic int8": (quantize.int8, "int8"),
}
#: One for each number of elements in a byte, and each way to quantize activations.
KINDS = ["plain", "int4", "mxfp4", "nvfp4", "dynamic fp8 row", "dynamic fp8 (128, 128)"]
KINDS += ["dynamic int8"]


def layer_of(name, seed=0):
    make, activations = LAYERS[name]
    bias = torch.randn(N, generator=torch.Generator().manual_seed(1)).to(BF16)
    return Linear(make(matrix(seed=seed)), bias, activations)
