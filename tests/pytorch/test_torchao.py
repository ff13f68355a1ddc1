"""Layers that torchao's ``quantize_`` makes, in graphs for a GPU: which products are ours."""

from unittest import mock

import pytest
import torch
from support.pretended_gpu import lower
from support.torch_compile import OFFERED, is_ours
from torch.nn.functional import linear
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

torchao = pytest.importorskip("torchao.quantization")

N, K = 96, 256
Float8 = torchao.Float8DynamicActivationFloat8WeightConfig
CONFIGS = {
    "int8 weight only": torchao.Int8WeightOnlyConfig,
    "int8 dynamic": torchao.Int8DynamicActivationInt8WeightConfig,
    "fp8 rows": lambda: Float8(granularity=torchao.PerRow()),
    "fp8 tensor": lambda: Float8(granularity=torchao.PerTensor()),
}


def layer_of(config):
    """torchao makes layers in fp8 on a GPU alone."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(K, N)).bfloat16().requires_grad_(False)
    with mock.patch.object(torchao.quant_api, "_check_hardware_support"):
        torchao.quantize_(model, config())
    return model[0]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [1, 64])
def test_kernels_are_timed_for_layers(name, rows, enabled):
    layer = layer_of(CONFIGS[name])
    weight = layer.weight
    assert is_traceable_wrapper_subclass(weight)
    names, context = weight.__tensor_flatten__()
    fields = [getattr(weight, each) for each in names]

    def function(x, bias, *fields):
        inner = dict(zip(names, fields, strict=True))
        whole = type(weight).__tensor_unflatten__(inner, context, weight.shape, weight.stride())
        return linear(x, whole, bias)

    x = torch.randn(rows, K).bfloat16()
    inputs = [x, layer.bias, *fields]
    # torch folds constants by computing them on the GPU.
    lowered = lower(function, inputs, joint_graph_constant_folding=False)
    assert [sum(map(is_ours, choices)) for choices in lowered.choices] == [OFFERED]
