"""``cutlass_api.nn.Experts`` beside a loop over experts."""

import copy
import io
import pickle

import pytest
import torch
from cutlass_api import quantize
from cutlass_api.nn import Experts
from cutlass_api.weights import Weight
from torch import nn

EXPERTS, HIDDEN, INNER, TOKENS, TOP_K = 4, 64, 96, 12, 3
BF16 = torch.bfloat16
silu, gelu = nn.functional.silu, nn.functional.gelu


def halves(columns):
    gate, up = columns.chunk(2, -1)
    return silu(gate) * up


def alternating(columns):
    gate, up = columns[..., ::2], columns[..., 1::2]
    return silu(gate) * up


CLAMPED = "silu(minimum(gate, 0.5)) * (clamp(up, -0.5, 0.5) + 1)"


def clamped(columns):
    gate, up = columns[..., ::2].clamp(max=0.5), columns[..., 1::2].clamp(-0.5, 0.5)
    return silu(gate) * (up + 1)


def squared(columns):
    return columns.relu().square()


#: Options of the layer, the width of up, and what it computes.
LAYOUTS = {
    "gate": ({}, 2, halves),
    "alternating gate": ({"interleaved": True}, 2, alternating),
    "expression": ({"activation": CLAMPED, "interleaved": True}, 2, clamped),
    "no gate": ({"activation": "gelu"}, 1, gelu),
    "function": ({"activation": squared}, 1, squared),
    "function of a gate": ({"activation": alternating}, 2, alternating),
}


def randn(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * shape[-1] ** -0.5).to(dtype)


def matrices(width=2, dtype=torch.float32):
    """Up and down."""
    return randn(EXPERTS, width * INNER, HIDDEN, dtype=dtype), randn(
        EXPERTS, HIDDEN, INNER, dtype=dtype, seed=1
    )


def inputs(dtype=torch.float32):
    """Tokens in two dimensions. Some slots are of no expert, and expert 1 has no slot."""
    hidden = randn(3, 4, HIDDEN, dtype=dtype, seed=2) * 8
    scores = randn(TOKENS, EXPERTS + 1, seed=3).softmax(-1)
    scores[:, 1] = 0
    weights, index = scores.topk(TOP_K)
    return hidden.requires_grad_(), index, weights.requires_grad_()


def expected_of(hidden, index, weights, up, down, activation, biases=(None, None)):
    """A loop over slots."""
    rows = hidden.reshape(-1, HIDDEN)
    outs = []
    for row, chosen, factors in zip(rows, index, weights, strict=True):
        out = torch.zeros_like(row)
        for expert, factor in zip(chosen.tolist(), factors, strict=True):
            if expert >= EXPERTS:
                continue
            of_up, of_down = (None if each is None else each[expert] for each in biases)
            value = activation(nn.functional.linear(row, up[expert], of_up))
            out = out + factor * nn.functional.linear(value, down[expert], of_down)
        outs.append(out)
    return torch.stack(outs).view_as(hidden)


def results(function, tensors):
    out = function()
    return [out, *torch.autograd.grad(out.sin().sum(), tensors)]


def error(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name, transposed):
    options, width, activation = LAYOUTS[name]
    up, down = (nn.Parameter(each) for each in matrices(width))
    biases = [randn(EXPERTS, each.shape[1], seed=4) if transposed else None for each in (up, down)]
    hidden, index, weights = inputs()
    passed = [nn.Parameter(each.mT.contiguous()) if transposed else each for each in (up, down)]
    layer = Experts(*passed, *biases, **options, transposed=transposed)
    assert layer.up is passed[0] and layer.down is passed[1]
    key = "gate_up_proj" if width == 2 else "up_proj"
    assert set(layer.state_dict()) == {
        f"{each}{bias}" for each in (key, "down_proj") for bias in ["", "_bias"][: transposed + 1]
    }
    found = results(lambda: layer(hidden, index, weights), [hidden, weights, *passed])
    wanted = results(
        lambda: expected_of(hidden, index, weights, up, down, activation, biases),
        [hidden, weights, up, down],
    )
    for each, other in zip(found, wanted, strict=True):
        other = other.mT if transposed and other.shape != each.shape else other
        torch.testing.assert_close(each, other, rtol=1e-4, atol=1e-5)
    with torch.no_grad():  # gate and up in one operator
        torch.testing.assert_close(layer(hidden, index, weights), wanted[0], rtol=1e-4, atol=1e-5)


#: Quantized weights: a function of :mod:`cutlass_api.quantize`, and activations.
FORMATS = {
    "row": (quantize.fp8, "fp8"),
    "tensor": (lambda x: quantize.fp8(x, "tensor"), "fp8"),
    "1 x 128": (lambda x: quantize.fp8(x, (1, 128)), "fp8"),
    "128 x 128": (lambda x: quantize.fp8(x, (128, 128)), "fp8"),
    "fp8-weight": (quantize.fp8, None),
    "int8": (quantize.int8, None),
    "int4": (lambda x: quantize.int4(x, 32), None),
    "uint4": (quantize.uint4, None),
    "mxfp4": (quantize.mxfp4, None),
    "nvfp4": (quantize.nvfp4, None),
}


def quantized(name, is_list=False, biases=(None, None)):
    """A layer, and the matrices that it stands for."""
    quantizer, activations = FORMATS[name]
    stacks = [quantizer(each) for each in matrices()]
    passed = [[quantizer(x) for x in each] for each in matrices()] if is_list else stacks
    layer = Experts(*passed, *biases, activations=activations)
    return layer, [each.dequantize(torch.float32) for each in stacks]


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("name", FORMATS)
def test_formats(name, has_bias):
    biases = [randn(EXPERTS, n, seed=4) if has_bias else None for n in (2 * INNER, HIDDEN)]
    layer, (up, down) = quantized(name, biases=biases)
    has_float8 = FORMATS[name][1] is not None
    hidden, index, weights = inputs(torch.float32 if has_float8 else BF16)
    found = results(lambda: layer(hidden, index, weights), [hidden, weights])
    x, _, factors = inputs()
    wanted = results(lambda: expected_of(x, index, factors, up, down, halves, biases), [x, factors])
    # float8 rounds activations to three bits, bfloat16 to seven.
    bound = 0.06 if has_float8 else 0.01
    assert all(error(*pair) < bound for pair in zip(found, wanted, strict=True))
    assert error(found[0], wanted[0]) > bound / 60
    with torch.no_grad():
        assert torch.equal(layer(hidden, index, weights), found[0])
    assert isinstance(layer.up, Weight) and layer.up.is_repacked == ("4" in name)
    again = quantized(name, is_list=True, biases=biases)[0]
    assert torch.equal(again(hidden, index, weights), found[0])
    # One of both is quantized.
    plain = down.to(hidden.dtype)
    other = Experts(layer.up, plain, *biases, activations=FORMATS[name][1])
    assert error(other(hidden, index, weights), wanted[0]) < bound


def test_fields_keep_their_dtypes():
    layer, _ = quantized("row")
    hidden, index, weights = inputs(BF16)
    half = copy.deepcopy(layer).to(BF16)
    assert half.gate_up_proj_values.dtype is torch.float8_e4m3fn
    assert half.down_proj_scales.dtype is torch.float32
    assert half(hidden, index, weights).dtype is BF16
    state = layer.state_dict() | {"down_proj_values": layer.down_proj_values.float()}
    with pytest.raises(RuntimeError, match=r"down_proj_values is torch.float32, and the layer has"):
        half.load_state_dict(state)
    new, _ = quantized("row")
    new.gate_up_proj_values.zero_()
    new.load_state_dict(layer.state_dict())
    assert torch.equal(new(*inputs()), layer(*inputs()))


def test_values_of_a_state_may_have_either_order():
    layer, new = quantized("uint4")[0], quantized("uint4")[0]
    assert set(layer.state_dict()) == {
        f"{name}_{field}"
        for name in ("gate_up_proj", "down_proj")
        for field in ("values", "scales", "zeros")
    }
    new.gate_up_proj_values.zero_()
    unpacked = {"gate_up_proj_values": layer.up.unpack().values}
    new.load_state_dict(layer.state_dict() | unpacked)
    assert torch.equal(new.gate_up_proj_values, layer.gate_up_proj_values)


@pytest.mark.parametrize("name", [None, "row", "nvfp4"])
def test_copies(name):
    biases = [randn(EXPERTS, n, seed=4) for n in (2 * INNER, HIDDEN)]
    layer = Experts(*matrices(), *biases) if name is None else quantized(name)[0]
    operands = inputs(BF16 if name == "nvfp4" else torch.float32)
    saved = io.BytesIO()
    torch.save(layer, saved)
    saved.seek(0)
    copies = [
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        torch.load(saved, weights_only=False),
    ]
    for each in copies:
        assert torch.equal(each(*operands), layer(*operands)) and repr(each) == repr(layer)


@pytest.mark.parametrize("name", [None, "128 x 128", "uint4"])
def test_one_graph(name):
    layer = Experts(*matrices(), activation=CLAMPED) if name is None else quantized(name)[0]
    hidden, index, weights = inputs(BF16 if name == "uint4" else torch.float32)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    of = [hidden, weights, *layer.parameters()]
    found = results(lambda: compiled(hidden, index, weights), of)
    for each, wanted in zip(found, results(lambda: layer(hidden, index, weights), of), strict=True):
        torch.testing.assert_close(each, wanted, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(hidden, index, weights), found[0], rtol=1e-4, atol=1e-5)


def test_autocast():
    hidden, index, weights = inputs()
    # Of float32, other values are rounded to float8.
    bounds = {quantized("row")[0]: 0.05, quantized("mxfp4")[0]: 0.01}
    bounds |= {Experts(*matrices(dtype=BF16)): 0.001}
    for layer, bound in bounds.items():
        wanted = layer(hidden.bfloat16(), index, weights)
        with torch.autocast("cpu", BF16):
            found = layer(hidden, index, weights)
        assert found.dtype is torch.float32 and error(found, wanted) < bound


@pytest.mark.parametrize("is_quantized", [False, True])
def test_no_tokens(is_quantized):
    layer = quantized("row")[0] if is_quantized else Experts(*matrices())
    hidden, index, weights = inputs()
    out = layer(hidden[:0], index[:0], weights[:0])
    assert out.shape == (0, 4, HIDDEN)
    assert not layer(hidden, torch.full_like(index, EXPERTS), weights).any()


@pytest.mark.gpu
@pytest.mark.parametrize("name", [None, *FORMATS])
def test_on_a_gpu(name):
    """Also in a graph whose replay routes otherwise."""
    layer = Experts(*matrices(dtype=BF16)) if name is None else quantized(name)[0]
    hidden, index, weights = inputs(BF16)
    wanted = results(lambda: layer(hidden, index, weights), [hidden, weights])
    layer = layer.cuda()
    x, chosen, factors = (each.detach().cuda() for each in (hidden, index, weights))
    tensors = [x.requires_grad_(), factors.requires_grad_()]
    found = results(lambda: layer(x, chosen, factors), tensors)
    for each, other in zip(found, wanted, strict=True):
        assert error(each.cpu(), other) < (0.01 if name is None else 0.05)
    with torch.no_grad():
        graph = torch.cuda.CUDAGraph()
        layer(x, chosen, factors)
        with torch.cuda.graph(graph):
            captured = layer(x, chosen, factors)
        chosen.copy_(chosen.flip(0))
        graph.replay()
        assert torch.equal(captured, layer(x, chosen, factors))


def test_repr():
    up, down = matrices()
    flags = dict(interleaved=True, activations="fp8")
    layer = Experts(up.bfloat16(), quantize.fp8(down), **flags)
    assert repr(layer) == (
        "Experts(4 experts, hidden_size=64, intermediate_size=96, activation=silu, "
        "interleaved gate, bias=False, gate_up_proj=bfloat16, down_proj=Float8, a scale for each "
        "row, activations=fp8)"
    )


UP, DOWN = matrices()
INT4 = quantize.int4(UP, 32)


@pytest.mark.parametrize(
    ("error", "arguments", "options", "message"),
    [
        (TypeError, ([], DOWN), {}, "up is list; pass a tensor, a stack of weights, or a seq"),
        (ValueError, (UP[0], DOWN), {}, r"up is torch.float32 \[192, 64\]; pass three dimensions"),
        (ValueError, (INT4[0], DOWN), {}, r"up is <Int4 .*, one weight; pass a stack \(experts"),
        (ValueError, ([INT4[0], quantize.fp8(UP[1])], DOWN), {}, r"Experts: up\[1\] is <Float8 .*"),
        (ValueError, (INT4, DOWN), {"activations": "fp8"}, "'fp8' need weights of Float8; pass"),
        (ValueError, (INT4, DOWN), {"activations": "int8"}, "activations is 'int8'; pass one of"),
        (ValueError, (UP, DOWN[:2]), {}, "up has 4 experts and down 2"),
        (ValueError, (UP, DOWN.mT), {}, "up takes rows of 64 and down returns 96"),
        (ValueError, (UP[:, 1:], DOWN), {}, "up returns 191 columns and down takes 96; pass 192"),
        (ValueError, (UP, DOWN), {"activation": "swish"}, "activation is 'swish'; pass a function"),
        (TypeError, (UP, DOWN), {"activation": 3}, "activation is 3"),
        (ValueError, (UP, DOWN), {"activation": "gate * c"}, r"activation is 'gate \* c': .*c"),
        (ValueError, (UP, DOWN), {"activation": "gate *"}, r"activation is 'gate \*': "),
        (ValueError, (UP[:, :INNER], DOWN), {"activation": CLAMPED}, "up returns 96 columns"),
        (
            ValueError,
            (UP, DOWN),
            {"activation": gelu, "interleaved": True},
            "an activation by name",
        ),
        (ValueError, (UP[:, :INNER], DOWN), {"interleaved": True}, "interleaved=True needs a gate"),
        (
            ValueError,
            (UP, DOWN, DOWN),
            {},
            r"up_bias is torch.float32 \[4, 64, 96\]; pass \[4, 192\]",
        ),
        (TypeError, (UP, DOWN, None, 1), {}, "down_bias is int"),
    ],
)
def test_what_the_layer_refuses(error, arguments, options, message):
    with pytest.raises(error, match=message):
        Experts(*arguments, **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda x, i, w: (x[..., 1:], i, w),
            r"hidden_states has shape \[3, 4, 63\]; pass \(..., 64",
        ),
        (lambda x, i, w: (x, i.float(), w), "index is torch.float32; pass torch.int64"),
        (lambda x, i, w: (x, i, w[:, 1:]), r"index has shape \[12, 3\] and weights \[12, 2\]"),
        (lambda x, i, w: (x, i[1:], w[1:]), r"index has shape \[11, 3\], and .* has 12 tokens"),
        (lambda x, i, w: (x, i - 9, w), "the index of an expert is -9; pass 0 to 3"),
    ],
)
def test_what_a_call_refuses(change, message):
    with pytest.raises(ValueError, match=message):
        Experts(UP, DOWN)(*change(*inputs()))
