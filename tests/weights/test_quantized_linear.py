"""``quantized_linear``: each format, group and dtype; modules in traces; what it refuses.

``tests/operators`` passes samples of each format through the transforms of PyTorch.
"""

import re

import pytest
import torch
from cutlass_api import quantize, quantized_linear, weights
from cutlass_api.ops import OPS
from support.weights import BF16, F16, GROUPS, PACKED, decoded
from torch.fx.experimental.proxy_tensor import make_fx

N, K = 6, 160
F32 = torch.float32
#: Quantizers, by format and group. The last group of 64 and of 128 is partial.
QUANTIZERS = {
    **{
        f"{name} {group}": lambda w, kind=kind, group=group: kind.quantize(w, group)
        for name, kind in PACKED.items()
        if not kind.depth
        for group in GROUPS
    },
    **{name: kind.quantize for name, kind in PACKED.items() if kind.depth},
    "added zeros": lambda w: added(quantize.uint4(w, 64)),
    "nvfp4 rows": lambda w: of_rows(quantize.nvfp4(w)),
    **{
        f"fp8 {block}": lambda w, block=block: quantize.fp8(w, block)
        for block in ("tensor", "row", (1, 128), (128, 128))
    },
    **{f"int8 {group}": lambda w, group=group: int8(w, group) for group in (32, 64, 128)},
    "int8 row": lambda w: weights.Int8(*quantize.per_row(w, torch.int8)),
    "uint8": lambda w: weights.UInt8(*quantize.per_group_asymmetric(w, 32)),
    "uint8 row": lambda w: one_zero_a_row(weights.Int8(*quantize.per_row(w, torch.int8))),
}
BLOCKS = {"fp8 tensor": (N, K), "fp8 (128, 128)": (128, 128)}


def int8(matrix, group):
    scales = matrix[:, : -(-K // group)].abs() + 0.1
    return weights.Int8((matrix * 20).clamp(-127, 127).to(torch.int8), scales)


def added(weight):
    zeros = -weight.zeros.to(weight.scales.dtype) * weight.scales
    return weights.UInt4(weight.values, weight.scales, zeros)


def of_rows(weight):
    return weights.NVFP4(
        weight.values, weight.scales, weight.factor * torch.arange(1.0, N + 1)[:, None]
    )


def one_zero_a_row(weight):
    zeros = torch.arange(120, 120 + N, dtype=torch.uint8)[:, None]
    return weights.UInt8((weight.values.int() + zeros).clamp(0, 255).byte(), weight.scales, zeros)


def weight_of(name, dtype=F32, seed=0):
    matrix = torch.randn(N, K, generator=torch.Generator().manual_seed(seed))
    return QUANTIZERS[name](matrix.to(dtype))


def error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", QUANTIZERS)
def test_multiplies_by_the_stored_matrix(name, dtype):
    if name in PACKED and dtype not in PACKED[name].dtypes:
        return
    torch.manual_seed(1)
    for scale_dtype in (F32, dtype):
        weight = weight_of(name, scale_dtype)
        matrix = decoded(weight, BLOCKS.get(name))
        x, bias = torch.randn(2, 3, K).to(dtype), torch.randn(N)
        wide = x.double() @ matrix.t()
        for given in (weight, weight.repack()):
            out = quantized_linear(x, given)
            assert out.dtype is dtype and out.shape == (2, 3, N)
            # Elements and the result are rounded once each.
            assert error(out, wide) < torch.finfo(dtype).eps / 2
        fused = quantized_linear(x, weight.repack(), bias, "gelu")
        expected = torch.nn.functional.gelu(wide + bias.double())
        assert error(fused, expected) < torch.finfo(dtype).eps
        assert torch.equal(fused, quantized_linear(x, weight, bias, torch.nn.functional.gelu))


@pytest.mark.parametrize("name", QUANTIZERS)
def test_orders_the_columns_of_the_input(name):
    weight = weight_of(name)
    order = torch.randperm(K, generator=torch.Generator().manual_seed(2)).int()
    permuted = type(weight).from_tensors({**weight.tensors(), "permutation": order})
    x = torch.randn(3, K).bfloat16()
    found, expected = quantized_linear(x, permuted), quantized_linear(x[:, order], weight)
    assert error(found, expected.double()) < 1e-2
    (grad,) = torch.autograd.grad(quantized_linear(x.requires_grad_(), permuted).sum(), x)
    assert error(grad, decoded(permuted, BLOCKS.get(name)).sum(0).expand(3, K)) < 1e-2


def test_out_of_any_strides():
    x, weight = torch.randn(2, 3, K).bfloat16(), weight_of("int4 32").repack()
    out = torch.empty(N, 3, 2, dtype=BF16).permute(2, 1, 0)
    fields = (*weight.fields, weight.permutation, "Int4")
    OPS.quantized_linear.out(x, *fields, out=out)
    assert torch.equal(out, quantized_linear(x, weight))
    with pytest.raises(ValueError, match=r"quantized_linear: out has shape \[2, 3\]; pass shape"):
        OPS.quantized_linear.out(x, *fields, out=out[..., 0])


class Layer(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight, self.bias = weight, torch.nn.Parameter(torch.randn(N))

    def forward(self, x):
        return quantized_linear(x, self.weight, self.bias, "silu")


@pytest.mark.parametrize("name", ["int4 32", "nvfp4", "fp8 row"])
def test_weights_are_attributes_of_traced_modules(name):
    layer, x = Layer(weight_of(name).repack()), torch.randn(3, K).bfloat16()
    expected = layer(x)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), expected)
    program = torch.export.export(layer, (x,), strict=False)
    assert torch.equal(program.module()(x), expected)
    for graph in (program.graph_module, make_fx(layer)(x)):
        targets = [str(node.target) for node in graph.graph.nodes]
        assert targets.count("cutlass_api.quantized_linear.default") == 1


def test_inductor_calls_the_operator():
    layer, x = Layer(weight_of("int4 32").repack()), torch.randn(3, K).bfloat16()
    torch._dynamo.reset()
    x.requires_grad_()
    expected, found = layer(x), torch.compile(layer, fullgraph=True)(x)
    torch.testing.assert_close(found, expected)
    grads = [torch.autograd.grad(y.sum(), (x, layer.bias)) for y in (found, expected)]
    torch.testing.assert_close(*grads, rtol=1e-2, atol=1e-2)


INT4 = weight_of("int4 32")
X = torch.zeros(3, K, dtype=BF16)
REFUSED = [
    (X.float(), INT4, {}, "input is torch.float32; pass torch.float16 or torch.bfloat16"),
    (X[:, :32], INT4, {}, "input has shape [3, 32]; pass (*, 160) for a weight [6, 160]"),
    (X[0, 0], INT4, {}, "input has shape []; pass (*, 160)"),
    (X.to("meta"), INT4, {}, "input is on meta and the weight on cpu; move one"),
    (X.half(), weight_of("mxfp4"), {}, "input is torch.float16, whose range the scales of MXFP4"),
    (X, INT4, {"bias": torch.zeros(5)}, "bias"),
    (X, INT4, {"activation": "softmax"}, "activation is 'softmax'; pass None or one of "),
]


@pytest.mark.parametrize(("x", "weight", "options", "message"), REFUSED)
@pytest.mark.parametrize("repacks", [False, True])
def test_refuses(x, weight, options, message, repacks):
    weight = weight.repack() if repacks else weight
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        quantized_linear(x, weight, **options)
    assert str(error.value).startswith("cutlass_api::quantized_linear: ")


def test_refuses_what_is_no_weight():
    with pytest.raises(TypeError, match=r"weight is Tensor; pass a weight of cutlass_api\.weights"):
        quantized_linear(X, torch.zeros(N, K))
    fields = (*INT4.fields, None)
    for name, message in (
        ("int4", "format is 'int4'; pass one of Int4, UInt4, "),
        ("UInt4", "UInt4: the tensors are values, scales; pass values, scales, zeros"),
        ("MXFP4", "MXFP4: scales is torch.float32; pass torch.float8_e8m0fnu"),
    ):
        with pytest.raises(ValueError, match=f"cutlass_api::quantized_linear: {message}"):
            OPS.quantized_linear(X, *fields, name)


def test_scales_have_no_gradient():
    scales = INT4.scales.clone().requires_grad_()
    fields = (INT4.values, scales, None, None, None, "Int4")
    out = OPS.quantized_linear(X.clone().requires_grad_(), *fields)
    with pytest.raises(
        RuntimeError, match="no derivative for scales: detach scales, or dequantize"
    ):
        out.sum().backward()
