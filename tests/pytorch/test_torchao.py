"""Layers that torchao's ``quantize_`` makes, in graphs for a GPU: which products are ours."""

from contextlib import ExitStack
from unittest import mock

import pytest
import torch
from cutlass_api import weights
from support.pretended_gpu import lower, run_on_the_cpu
from support.torch_compile import OFFERED, assert_close, is_ours, is_replaced
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.nn.functional import linear
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

torchao = pytest.importorskip("torchao.quantization")

N, K = 96, 1024
Float8 = torchao.Float8DynamicActivationFloat8WeightConfig
CONFIGS = {
    "int8 weight only": torchao.Int8WeightOnlyConfig,
    "int8 dynamic": torchao.Int8DynamicActivationInt8WeightConfig,
    "fp8 weight only": torchao.Float8WeightOnlyConfig,
    "fp8 rows": lambda: Float8(granularity=torchao.PerRow()),
    "fp8 tensor": lambda: Float8(granularity=torchao.PerTensor()),
}


#: What ``quantize_`` switches on for the process.
SETTINGS = (
    *("coordinate_descent_tuning", "coordinate_descent_check_all_directions"),
    *("force_fuse_int_mm_with_mul", "fx_graph_cache", "triton.unique_kernel_names"),
)


@pytest.fixture(autouse=True)
def _settings():
    with config.patch(dict.fromkeys(SETTINGS, True)):
        yield


def packed(codes, tiles):
    """What ``aten._convert_weight_to_int4pack`` returns on a GPU: a lane 4 r + q of a tile holds
    word q of row r, for each of tiles / 2 groups of 32 elements. ``codes``: the first of two
    elements in the high bits.
    """
    n, ones = codes.shape[0], torch.ones(codes.shape[0], 1)
    words = weights.Int4(codes << 4 | codes >> 4, ones).repack().values
    return (
        words.view(n // 8, 8, -1, tiles // 2, 4).permute(0, 2, 1, 4, 3).flatten(2, 3).contiguous()
    )


def layer_of(settings):
    """torchao makes layers in fp8 and int4 on a GPU alone."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(K, N)).bfloat16().requires_grad_(False)
    with ExitStack() as stack:
        for target, name, value in [
            (torchao.quant_api, "_check_hardware_support", lambda *_: None),
            (torch.cuda, "get_device_capability", lambda *_: (9, 0)),
            (torch.ops.aten, "_convert_weight_to_int4pack", packed),
        ]:
            stack.enter_context(mock.patch.object(target, name, value))
        torchao.quantize_(model, settings())
    return model[0]


def lowered(layer, rows, **options):
    """The graph of a layer, and its inputs: the activations, the bias and the fields."""
    weight = layer.weight
    assert is_traceable_wrapper_subclass(weight)
    names, context = weight.__tensor_flatten__()

    def function(x, bias, *fields):
        inner = dict(zip(names, fields, strict=True))
        whole = type(weight).__tensor_unflatten__(inner, context, weight.shape, weight.stride())
        return linear(x, whole, bias)

    x = torch.randn(rows, K).bfloat16()
    inputs = [x, layer.bias, *(getattr(weight, name) for name in names)]
    # AOTAutograd does so. Quantized activations in fp8 are made by an autograd.Function.
    if getattr(weight, "act_quant_kwargs", None) is None:
        function = torch.func.functionalize(function)
    # torch folds constants by computing them on the GPU.
    return lower(function, inputs, joint_graph_constant_folding=False, **options), inputs


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [1, 64])
def test_kernels_are_timed_for_layers(name, rows, enabled):
    graph, inputs = lowered(layer_of(CONFIGS[name]), rows, prefers=is_ours)
    (choices,) = graph.choices
    assert sum(map(is_ours, choices)) == OFFERED and is_replaced(choices[-1])
    a, b, *operands = choices[0].input_nodes
    assert {a.get_dtype().itemsize, b.get_dtype().itemsize} == {1, 2 if "only" in name else 1}
    # Scales of rows are not stored for each column.
    assert all(max(operand.get_size()) == operand.get_numel() for operand in operands)
    if name == "fp8 weight only":
        out = run_on_the_cpu(graph, inputs)
        assert_close(out, lambda x, bias, w, scale: linear(x, w * scale, bias), inputs)


def int4():
    return torchao.Int4WeightOnlyConfig(int4_packing_format="tile_packed_to_4d")


@pytest.mark.parametrize("rows", [1, 64])
def test_int4_is_ours_where_the_weight_is_a_constant(rows, enabled):
    graph, inputs = lowered(layer_of(int4), rows, prefers=is_ours, constants=[2, 3])
    ((*choices, theirs),) = graph.choices
    assert [is_ours(choice) for choice in choices] == [True] * OFFERED and is_replaced(theirs)
    matrix = weights.from_torchao(*inputs[2:], (N, K)).dequantize(torch.float64)
    assert "extern_kernels.cutlass_api_gemm(" in graph.call
    exact = layer_of(torchao.Int8WeightOnlyConfig).weight.dequantize()
    assert (matrix - exact).norm() < 0.1 * exact.norm()


class Compiled(BaseException):
    """Ends a compilation."""


class Fields(CustomGraphPass):
    """Keeps the operations that the weight of an int4 product has in the graph."""

    def __call__(self, graph):
        target = torch.ops.aten._weight_int4pack_mm.default
        (node,) = graph.find_nodes(op="call_function", target=target)
        self.found = [node.args[at].op for at in (1, 3)]
        raise Compiled

    def uuid(self):
        return None


@pytest.mark.parametrize("freezing", [True, False])
def test_freezing_makes_the_fields_of_a_weight_constants(freezing):
    fields = Fields()
    model = torch.nn.Sequential(layer_of(int4))
    torch.compiler.reset()
    settings = config.patch(freezing=freezing, post_grad_custom_post_pass=fields)
    with settings, torch.no_grad(), pytest.raises(Compiled):
        torch.compile(model)(torch.ones(5, K).bfloat16())
    assert fields.found == ["get_attr" if freezing else "placeholder"] * 2
