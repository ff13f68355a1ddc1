"""``cutlass_api.nn.Linear``: its product, its buffers, and what torch does to modules."""

import copy
import io
import pickle
import re

import pytest
import torch
from cutlass_api import quantize, weights
from cutlass_api.nn import Linear
from safetensors.torch import load_file, save_file
from support.layers import BF16, F16, F32, KINDS, LAYERS, K, N, layer_of, matrix
from support.weights import PACKED
from torch.utils._python_dispatch import TorchDispatchMode


def input_of(layer, *shape):
    dtype = layer.weight.dtype if layer.format is None else BF16
    return torch.randn(*(shape or (2, 3)), K, generator=torch.Generator().manual_seed(3)).to(dtype)


def dequantized(layer):
    return (layer.weight if layer.format is None else layer.weight.dequantize(F32)).double()


def error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


def fields(layer):
    return {name: (x.dtype, x.shape) for name, x in layer.named_buffers()}


def equal_bits(a, b):
    return torch.equal(*(x.flatten().view(torch.uint8) for x in (a, b)))


def same(layer, other, x):
    assert fields(layer) == fields(other)
    assert torch.equal(layer(x), other(x))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(2, 3), (1,), (0,), ()])
def test_the_product(name, shape):
    layer = layer_of(name)
    x = input_of(layer)[0, 0] if shape == () else input_of(layer, *shape)
    out, expected = layer(x), x.double() @ dequantized(layer).t() + layer.bias.double()
    assert out.dtype is x.dtype and out.shape == (*shape, N)
    if out.numel():
        assert error(out, expected) < (0.05 if layer.activations == "fp8" else 0.02)
    assert layer.in_features == K and layer.out_features == N


@pytest.mark.parametrize("name", LAYERS)
def test_input_and_bias_have_gradients(name):
    layer = layer_of(name)
    x = input_of(layer).requires_grad_()
    grad = torch.randn(2, 3, N).to(x.dtype)
    layer(x).backward(grad)
    assert x.grad.dtype is x.dtype
    assert error(x.grad, grad.double() @ dequantized(layer)) < 0.01
    assert error(layer.bias.grad, grad.double().sum((0, 1))) < 0.01
    assert [name for name, _ in layer.named_parameters()] == ["bias"]


@pytest.mark.parametrize("name", ["dynamic fp8 row", "dynamic int8", "int4"])
def test_transforms_of_functions(name):
    layer = layer_of(name)
    x = input_of(layer, 5)
    expected = torch.autograd.grad(layer(x.requires_grad_()).square().sum(), x)[0]
    x = x.detach()
    grad = torch.func.grad(lambda x: layer(x).square().sum())
    assert torch.equal(grad(x), expected)
    torch.testing.assert_close(torch.vmap(layer)(x), layer(x))


@pytest.mark.parametrize("kind", ["fp8 row", "int8"])
def test_activations_are_float32_or_follow_autocast(kind):
    layer = layer_of(f"dynamic {kind}")
    x = input_of(layer).float().requires_grad_()
    out = layer(x)
    assert out.dtype is F32 and error(out, layer(x.to(BF16)).double()) < 0.02
    out.sum().backward()
    assert x.grad.dtype is F32
    with torch.autocast("cpu", BF16):
        assert layer(x).dtype is BF16
    assert layer_of("int4")(input_of(layer)).dtype is BF16


class Operators(TorchDispatchMode):
    """The operators of this package that are called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "cutlass_api":
            self.names.append(function._opname)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_one_product_and_dynamic_activations_one_more_kernel(name, grads):
    layer, expected = layer_of(name), ["quantized_linear"]
    if layer.activations:
        product = {"fp8": "scaled_mm", "int8": "mm_epilogue"}[layer.activations]
        expected = ["quantize", product]
    x = input_of(layer)
    with torch.set_grad_enabled(grads), Operators() as found:
        layer(x)
    assert found.names == (["linear"] if layer.format is None else expected)


# What torch does to modules.


@pytest.mark.parametrize("name", LAYERS)
def test_state_is_saved_and_loaded(name, tmp_path):
    layer, other = layer_of(name), layer_of(name, seed=5)
    x = input_of(layer)
    state = layer.state_dict()
    save_file(state, tmp_path / "state.safetensors")
    other.load_state_dict(load_file(tmp_path / "state.safetensors"))
    same(layer, other, x)
    with torch.device("meta"):
        other = layer_of(name).to("meta")
    assert other(x.to("meta")).shape == (2, 3, N)
    copied = copy.deepcopy(other)
    other.load_state_dict(state, assign=True)
    same(layer, other, x)
    copied.to_empty(device="cpu").load_state_dict(state)
    same(layer, copied, x)


@pytest.mark.parametrize("name", LAYERS)
def test_copies(name):
    layer = layer_of(name)
    x = input_of(layer)
    same(layer, copy.deepcopy(layer), x)
    same(layer, pickle.loads(pickle.dumps(layer)), x)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    same(layer, torch.load(file, weights_only=False), x)
    twice = copy.deepcopy(torch.nn.ModuleList([layer, layer]))
    assert twice[0] is twice[1] is not layer


CONVERSIONS = {
    "half": lambda layer: layer.half(),
    "bfloat16": lambda layer: layer.bfloat16(),
    "float": lambda layer: layer.float(),
    "to": lambda layer: layer.to("cpu", F16),
    "double": lambda layer: layer.double().to(BF16),
}


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "plain"])
@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_fields_keep_their_dtypes(name, conversion):
    layer = layer_of(name)
    before, state = fields(layer), copy.deepcopy(layer.state_dict())
    CONVERSIONS[conversion](layer)
    assert fields(layer) == before
    for key, field in layer.named_buffers():
        assert equal_bits(field, state[key])
    assert layer.bias.dtype is (BF16 if conversion in ("bfloat16", "double") else layer.bias.dtype)
    layer(input_of(layer))


def test_a_plain_matrix_and_a_bias_are_converted():
    layer = layer_of("plain").bfloat16()
    assert layer.weight.dtype is layer.bias.dtype is BF16
    with pytest.raises(TypeError, match=r"the fields of Int4 keep their dtypes; torch.float16 is"):
        layer_of("int4").type(F16)


@pytest.mark.parametrize("name", PACKED)
def test_both_orders_are_loaded(name):
    layer = layer_of(name)
    assert layer.weight.is_repacked
    x = input_of(layer)
    expected, repacked = layer(x), layer.state_dict()
    unpacked = copy.deepcopy(layer).unpack()
    assert not unpacked.weight.is_repacked and unpacked.values.dtype is torch.uint8
    assert torch.equal(unpacked(x), expected)
    for state in (repacked, unpacked.state_dict()):
        for assign in (False, True):
            other = layer_of(name, seed=5)
            other.load_state_dict(state, assign=assign)
            same(other, layer, x)
            other.unpack().load_state_dict(state, assign=assign)
            same(other, unpacked, x)
            same(other.repack(), layer, x)


@pytest.mark.parametrize("strict", [True, False])
def test_tensors_of_other_dtypes_are_not_loaded(strict):
    """torch converts them by value."""
    for name in LAYERS:
        for field, own in layer_of(name).named_buffers():
            layer = layer_of(name)
            dtype = torch.uint8 if own.dtype.is_floating_point else F32
            state = {**layer.state_dict(), field: torch.ones(own.shape, dtype=dtype)}
            message = f"{field} is {dtype}, and the layer has {own.dtype}"
            model = torch.nn.Sequential(layer)
            state = {f"0.{key}": value for key, value in state.items()}
            with pytest.raises(RuntimeError, match=re.escape(message)) as raised:
                model.load_state_dict(state, strict=strict)
            assert "missing" not in str(raised.value).lower()
            assert equal_bits(own, getattr(layer, field))


def test_other_formats_are_not_loaded():
    states = {name: layer_of(name).state_dict() for name in ("int4", "uint4", "mxfp4", "int8")}
    for name, state in states.items():
        for other in states:
            if other != name:
                with pytest.raises(RuntimeError, match=r"state_dict for Linear"):
                    layer_of(other).load_state_dict(state)
    wide = Linear(quantize.int4(torch.randn(N, 2 * K), 32), layer_of("int4").bias)
    with pytest.raises(RuntimeError, match=r"size mismatch for values"):
        wide.load_state_dict(states["int4"])
    plain = layer_of("plain")
    plain.load_state_dict({**plain.state_dict(), "weight": matrix(F32)})  # as torch's layer
    assert torch.equal(plain.weight, matrix(F16))


# Traces.


class Stack(torch.nn.Module):
    def __init__(self, name, count):
        super().__init__()
        self.layers = torch.nn.ModuleList(layer_of(name, seed) for seed in range(count))

    def forward(self, x):
        return sum(layer(x) for layer in self.layers)


@pytest.mark.parametrize("name", KINDS)
def test_compiles_and_exports(name):
    model = Stack(name, 1)
    x = input_of(model.layers[0]).requires_grad_()
    expected = model(x)
    inputs = (x, model.layers[0].bias)
    grads = torch.autograd.grad(expected.sum(), inputs)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(compiled, expected)
    torch.testing.assert_close(
        torch.autograd.grad(compiled.sum(), (x, model.layers[0].bias)), grads
    )
    for strict in (False, True)[: 2 if name == "int4" else 1]:
        program = torch.export.export(model, (x.detach(),), strict=strict)
        file = io.BytesIO()
        try:
            torch.export.save(program, file)
        except KeyError:  # of float8_e8m0fnu
            assert name == "mxfp4" and torch.__version__ < "2.15"
            continue
        file.seek(0)
        assert torch.equal(torch.export.load(file).module()(x.detach()), expected)


@pytest.mark.parametrize("name", KINDS)
def test_equal_layers_are_one_graph(name):
    layers = Stack(name, 3).layers
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    x = input_of(layers[0])
    with torch._dynamo.config.patch(error_on_recompile=True):
        for layer in layers:
            compiled = torch.compile(layer, fullgraph=True, backend=backend)
            assert torch.equal(compiled(x), layer(x))
    assert len(graphs) == 1


# Construction.


def test_prints_what_it_holds():
    def text(name):
        return repr(layer_of(name))

    sizes = "in_features=160, out_features=48, bias=True, weight="
    assert text("plain") == f"Linear({sizes}float16)"
    assert text("int4") == f"Linear({sizes}Int4, bfloat16 scale for each block of 1 x 32)"
    found = f"Linear({sizes}Float8, float32 scale for each row, activations=fp8)"
    assert text("dynamic fp8 row") == found
    assert repr(layer_of("int4").unpack()).endswith("block of 1 x 32, not repacked)")


def test_the_weight_is_a_view_of_the_buffers():
    layer = layer_of("uint4")
    assert type(layer.weight) is weights.UInt4
    assert all(tensor is layer.get_buffer(name) for name, tensor in layer.weight.tensors().items())
    bias = torch.nn.Parameter(torch.zeros(N))
    assert Linear(layer.weight, bias).bias is bias
    assert Linear(layer.weight, bias.data).bias.requires_grad
    assert Linear(layer.weight).bias is None


INT4 = quantize.int4(matrix(), 32)
REFUSED = [
    (([[1.0]],), TypeError, "weight is list; pass a weight of cutlass_api.weights, or a matrix"),
    ((matrix(F32),), ValueError, "weight is torch.float32 [48, 160]; pass a matrix in torch.float"),
    ((matrix()[0],), ValueError, "weight is torch.bfloat16 [160]; pass a matrix"),
    ((INT4, 1.0), TypeError, "bias is float; pass a tensor, or None"),
    ((INT4, torch.zeros(5)), ValueError, "bias is torch.float32 [5]; pass [48]"),
    ((INT4, torch.zeros(N).int()), ValueError, "bias is torch.int32 [48]; pass [48] in torch."),
    ((INT4, torch.zeros(N, device="meta")), ValueError, "bias is on meta and the weight on cpu"),
    ((INT4, None, "int4"), ValueError, "activations is 'int4'; pass one of 'fp8', 'int8', None"),
    ((INT4, None, "fp8"), ValueError, "'fp8' need a weight of Float8, and the weight is Int4"),
    ((matrix(), None, "int8"), ValueError, "'int8' need a weight of Int8, and the weight is Tens"),
    (
        (quantize.int8(matrix(), 32), None, "int8"),
        ValueError,
        "need a float32 scale for each row, and the weight has scales torch.float32 [48, 5]",
    ),
]


@pytest.mark.parametrize(("arguments", "kind", "message"), REFUSED)
def test_refuses(arguments, kind, message):
    with pytest.raises(kind, match=re.escape(message)) as error:
        Linear(*arguments)
    assert str(error.value).startswith("Linear: ")
