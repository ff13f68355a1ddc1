"""``cutlass_api.nn.convert``: what it replaces, what not and why, and what it reports."""

import copy
import importlib.util
import io
import re
import sys
import types
import weakref

import pytest
import torch
from cutlass_api import quantize, weights
from cutlass_api.nn import Linear, convert
from cutlass_api.nn._schemes import SCHEMES
from torch import nn

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
#: The weight and the activations of each scheme.
MADE = {
    "fp8": (quantize.fp8, "fp8"),
    "int8": (quantize.int8, "int8"),
    "fp8-block": (lambda w: quantize.fp8(w, (128, 128)), "fp8"),
    "fp8-weight": (quantize.fp8, None),
    "int8-weight": (quantize.int8, None),
    "int4": (quantize.int4, None),
    "uint4": (quantize.uint4, None),
    "mxfp4": (quantize.mxfp4, None),
    "nvfp4": (quantize.nvfp4, None),
}
DYNAMIC = [name for name, (_, activations) in MADE.items() if activations]
schemes = pytest.mark.parametrize("scheme", MADE)


def linear(n=32, k=64, bias=True, dtype=BF16):
    return nn.Linear(k, n, bias, dtype=dtype)


class Moe(nn.Module):
    """A router and an expert, as models name them."""

    def __init__(self):
        super().__init__()
        self.gate, self.shared_expert_gate = linear(), linear()
        self.router = nn.ModuleDict({"layer": linear()})
        self.gate_proj, self.up_proj = linear(), linear(64, 32)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.ModuleDict({"mlp": Moe()}) for _ in range(2))
        self.norm, self.lm_head = nn.LayerNorm(64, dtype=BF16), linear(100)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer["mlp"].up_proj(layer["mlp"].gate_proj(x))
        return self.lm_head(self.norm(x))


def tensors(model):
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@schemes
def test_each_scheme(scheme, capsys):
    make, activations = MADE[scheme]
    model = Model().eval()
    linears = {name: x for name, x in model.named_modules() if type(x) is nn.Linear}
    x = torch.randn(5, 64).to(BF16)
    expected = model(x)
    report = convert(model, scheme)
    own = [f"layers.{i}.mlp.{name}" for i in range(2) for name in ("gate_proj", "up_proj")]
    assert report.replaced == own and report.scheme == scheme
    for name in own:
        layer, old = model.get_submodule(name), linears[name]
        assert type(layer) is Linear and layer.bias is old.bias and layer.activations == activations
        assert not layer.training
        wanted = make(old.weight).repack()
        assert type(layer.weight) is type(wanted)
        assert torch.equal(layer.weight.dequantize(), wanted.dequantize())
        assert layer.weight.values.dtype is wanted.values.dtype
    for name, reason in report.kept.items():
        assert model.get_submodule(name) is linears[name]
        pattern = "lm_head" if name == "lm_head" else "*router*" if "router" in name else "*gate"
        assert reason == f"skip={pattern!r}"
    assert {*report.kept, *own} == {*linears}
    out = model(x).double()
    assert (out - expected.double()).norm() < 0.1 * expected.double().norm()
    # Again.
    text = capsys.readouterr().out
    before, modules = tensors(model), list(model.modules())
    for other in (scheme, "int8"):
        again = convert(model, other)
        assert again.replaced == [] and list(model.modules()) == modules
        name = type(wanted).__name__
        assert again.kept[own[0]] == f"is a cutlass_api.nn.Linear already ({name})"
        assert again.bytes_before == again.bytes_after == report.bytes_after
    assert all(x is before[name] for name, x in tensors(model).items())
    assert text.strip() == repr(report)


def test_the_table(capsys):
    model = Model()
    report = convert(model, "int4")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "int4: 4 of 11 linear layers replaced, 55 kB before, 43.1 kB after"
    rows = [re.split(r"\s{2,}", line) for line in lines[1:]]
    assert rows == [
        ["layer", "count", "(N, K)", "result"],
        ["layers.*.mlp.gate_proj", "2", "[32, 64]", "int4"],
        ["layers.*.mlp.up_proj", "2", "[64, 32]", "int4"],
        ["layers.*.mlp.gate", "2", "[32, 64]", "kept: skip='*gate'"],
        ["layers.*.mlp.shared_expert_gate", "2", "[32, 64]", "kept: skip='*gate'"],
        ["layers.*.mlp.router.layer", "2", "[32, 64]", "kept: skip='*router*'"],
        ["lm_head", "1", "[100, 64]", "kept: skip='lm_head'"],
    ]
    sizes = {x.data_ptr(): x.numel() * x.itemsize for x in tensors(model).values()}
    assert report.bytes_after == sum(sizes.values()) < report.bytes_before
    html = report._repr_html_()
    assert html.count("<tr>") == len(rows) and "kept: skip=&#x27;lm_head&#x27;" in html


@pytest.mark.parametrize(
    ("skip", "kept"),
    [
        ((), []),
        (["a.b"], ["a.b"]),
        (["b"], ["a.b", "c.b"]),
        (["a"], ["a.b", "a.bc"]),
        (["*b"], ["a.b", "c.b"]),
        (["*b*"], ["a.b", "a.bc", "c.b"]),
        (["a.*"], ["a.b", "a.bc"]),
        (["A", "?", "x"], ["a.b", "a.bc", "c.b", "c.de"]),
        (["*.de"], ["c.de"]),
    ],
)
def test_patterns(skip, kept):
    names = {"a": ("b", "bc"), "c": ("b", "de"), "ff": ("gg",)}
    model = nn.ModuleDict(
        {name: nn.ModuleDict({each: linear() for each in names[name]}) for name in names}
    )
    assert list(convert(model, "int4", skip=skip).kept) == kept


@schemes
def test_meta(scheme):
    model = Model().to("meta")
    real = Model()
    report, expected = convert(model, scheme), convert(real, scheme)
    assert repr(report) == repr(expected) and report.replaced == expected.replaced
    assert all(x.is_meta for x in tensors(model).values())
    model.load_state_dict(real.state_dict(), assign=True)
    x = torch.randn(5, 64).to(BF16)
    assert torch.equal(model(x), real(x))


def test_groups():
    for scheme, cls in (("int4", weights.Int4), ("uint4", weights.UInt4), ("int8-weight", None)):
        for group, expected in ((None, 128 if cls else 192), (32, 32), (64, 64), (-1, 192)):
            model = nn.Sequential(linear(k=192))
            convert(model, scheme, group=group)
            assert model[0].weight.group == expected


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F64])
@schemes
def test_dtypes(scheme, dtype):
    """A layer is replaced if its scheme takes activations of its dtype."""
    model = nn.Sequential(linear(dtype=dtype), linear(32, 32))
    report = convert(model, scheme)
    is_served = dtype is BF16 or (dtype is F16 and scheme != "mxfp4")
    if is_served or (dtype is F32 and scheme in DYNAMIC):
        assert report.replaced == ["0", "1"]
        assert model[0](torch.randn(3, 64, dtype=dtype)).dtype is dtype
    else:
        assert report.replaced == ["1"] and type(model[0]) is nn.Linear
        assert str(dtype) in report.kept["0"]


# What shares its weight.


def test_layers_that_share_a_weight():
    model = nn.ModuleDict({"a": linear(), "b": linear(), "c": nn.ModuleDict({"d": linear()})})
    model["b"].weight = model["a"].weight
    model["c"]["e"] = model["c"]["d"]
    assert convert(model, "int4").replaced == ["a", "b", "c.d", "c.e"]
    assert model["a"] is not model["b"] and model["a"].values is model["b"].values
    assert model["a"].bias is not model["b"].bias
    assert model["c"]["d"] is model["c"]["e"]


class Own(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("kind", ["embedding", "view", "skipped"])
def test_layers_that_share_a_weight_with_what_stays(kind, device):
    other = nn.Embedding(32, 64, dtype=BF16) if kind == "embedding" else linear()
    model = nn.ModuleDict({"other": other, "a": linear(), "b": linear(), "c": linear()}).to(device)
    model["b"].weight = model["a"].weight
    if kind == "view":
        model["other"] = Own(model["a"].weight.data)
    else:
        model["other"].weight = model["a"].weight
    report = convert(model, "int4", skip=["other"])
    assert report.replaced == ["c"]
    assert report.kept["a"] == report.kept["b"] == "shares its weight with other"
    assert report.bytes_before == sum(
        x.numel() * x.itemsize for x in (model["a"].weight, *[model["a"].bias] * 3)
    ) + 32 * 64 * 2 + (64 if kind == "skipped" else 0)


# Layers that stay.


class Lora(nn.Linear):
    pass


def with_hook(layer):
    layer.register_forward_hook(lambda *_: None)
    return layer


def with_hook_of_state(layer):
    layer.register_state_dict_pre_hook(lambda *_: None)
    return layer


def with_forward(layer):
    layer.forward = lambda x: x
    return layer


def with_vector(layer):
    layer.weight = nn.Parameter(torch.zeros(32, 64).to(BF16).as_subclass(Subclass))
    return layer


class Subclass(torch.Tensor):
    pass


KEPT = {
    "subclass": (lambda: Lora(64, 32, dtype=BF16), "is a Lora, a subclass of torch.nn.Linear"),
    "lazy": (lambda: nn.LazyLinear(32), "is a LazyLinear, a subclass of torch.nn.Linear"),
    "parametrized": (
        lambda: nn.utils.parametrizations.weight_norm(linear()),
        "is parametrized",
    ),
    "hook": (lambda: with_hook(linear()), "has hooks"),
    "spectral": (lambda: nn.utils.spectral_norm(linear()), "has hooks"),
    "forward": (lambda: with_forward(linear()), "its forward is replaced"),
    "hook of state": (lambda: with_hook_of_state(linear()), "has hooks of its state_dict"),
    "tensor": (lambda: with_vector(linear()), "its weight is a Subclass"),
    "K": (lambda: linear(k=48), "int4 of K = 48; pad K with zeros to a multiple of 32"),
}


@pytest.mark.parametrize("name", KEPT)
def test_layers_that_stay(name):
    make, reason = KEPT[name]
    model = nn.Sequential(linear(), make())
    kept = model[1]
    assert convert(model, "int4").kept == {"1": reason}
    assert model[1] is kept and type(model[0]) is Linear


class Adapted(nn.Module):
    """As PEFT has it."""

    def __init__(self):
        super().__init__()
        self.base_layer = linear()
        self.lora_A = nn.ModuleDict({"default": linear(32)})
        self.lora_B = nn.ModuleDict({"default": linear(32, 32)})


def test_adapters_stay():
    report = convert(nn.Sequential(linear(), Adapted()), "int4")
    assert report.replaced == ["0", "1.base_layer"]
    assert set(report.kept) == {"1.lora_A.default", "1.lora_B.default"}
    assert set(report.kept.values()) == {"is an adapter of 1.base_layer"}


def test_modules_that_read_weights_themselves():
    model = nn.ModuleDict(
        {
            "attention": nn.MultiheadAttention(64, 2, dtype=BF16),
            "encoder": nn.TransformerEncoderLayer(64, 2, 64, batch_first=True, dtype=BF16),
            "linear": linear(),
        }
    ).eval()
    report = convert(model, "fp8")
    assert report.replaced == ["linear"]
    reads = "reads its weight"
    assert report.kept == {
        "attention.out_proj": f"MultiheadAttention {reads}",
        "encoder.self_attn.out_proj": f"MultiheadAttention {reads}",
        "encoder.linear1": f"TransformerEncoderLayer {reads}",
        "encoder.linear2": f"TransformerEncoderLayer {reads}",
    }
    x = torch.randn(1, 5, 64).to(BF16)
    with torch.no_grad():
        model["encoder"](x), model["attention"](x, x, x)


# Memory.


def test_a_layer_is_freed_before_the_next(monkeypatch):
    model = nn.Sequential(*(linear() for _ in range(4)))
    parameters = [weakref.ref(layer.weight) for layer in model]
    alive = []
    scheme = SCHEMES["int4"]

    def quantizer(matrix):
        if not matrix.is_meta:
            alive.append([parameter() is not None for parameter in parameters])
        return quantize.int4(matrix)

    monkeypatch.setitem(SCHEMES, "int4", type(scheme)("int4", quantizer))
    convert(model, "int4")
    assert alive == [[j >= i for j in range(4)] for i in range(4)]


@pytest.mark.parametrize("has_rich", [True, False])
def test_progress(monkeypatch, capsys, has_rich):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    if not has_rich:
        monkeypatch.setitem(sys.modules, "rich.progress", None)
    report = convert(Model(), "int4")
    text = capsys.readouterr().out
    assert repr(report) in text and ("4/4" in text) is has_rich


def test_notebooks_without_widgets_show_the_table_alone(monkeypatch, recwarn):
    """rich would warn, and leave empty outputs."""
    if importlib.util.find_spec("ipywidgets"):
        pytest.skip("ipywidgets is installed")
    console = pytest.importorskip("rich.console")
    output = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setitem(sys.modules, "ipykernel", types.ModuleType("ipykernel"))
    monkeypatch.setattr(console, "_is_jupyter", lambda: True)
    report = convert(Model(), "int4")
    assert output.getvalue() == f"{report}\n" and not recwarn.list


def test_weights_that_require_grad():
    model = Model().requires_grad_(True)
    x = torch.randn(5, 64).to(BF16).requires_grad_()
    convert(model, "fp8")
    model(x).float().sum().backward()
    assert x.grad.norm() > 0 and model.layers[0]["mlp"].up_proj.bias.grad.norm() > 0
    assert not any(name.endswith("_proj.weight") for name, _ in model.named_parameters())


def test_converted_in_inference_mode():
    model = nn.Sequential(linear())
    with torch.inference_mode():
        convert(model, "int4")
    x = torch.randn(5, 64).to(BF16).requires_grad_()
    model(x).float().sum().backward()
    assert x.grad.norm() > 0


# Bad input.


def refuses(kind, message, *args, **options):
    model = args[0]
    before = copy.copy(dict(model.named_modules())) if isinstance(model, nn.Module) else None
    with pytest.raises(kind, match=re.escape(message)) as error:
        convert(*args, **options)
    assert str(error.value).startswith("convert: ")
    if before is not None:
        assert dict(model.named_modules()) == before
    return str(error.value)


def test_refuses():
    model = nn.Sequential(linear())
    names = ", ".join(map(repr, MADE))
    refuses(ValueError, f"scheme is 'int3'; pass one of {names}", model, "int3")
    refuses(ValueError, "scheme is None; pass one of 'fp8'", model, None)
    refuses(ValueError, "scheme is ['int4']; pass one of 'fp8'", model, ["int4"])
    refuses(ValueError, "group of int4 is 48; pass one of 32, 64, 128, -1", model, "int4", group=48)
    refuses(
        ValueError,
        "group is 64, and the scheme 'fp8' takes none; omit group, or pass one of 'int8-weight', "
        "'int4', 'uint4'",
        *(model, "fp8"),
        group=64,
    )
    refuses(
        TypeError,
        "skip is a string; pass a sequence of patterns, as ('0',)",
        model,
        "int4",
        skip="0",
    )
    for skip in (None, ["0", 3], 3):
        text = f"skip is {skip}; pass a sequence of patterns, () for none"
        refuses(TypeError, text, model, "int4", skip=skip)
    refuses(TypeError, "model is Tensor; pass a torch.nn.Module", torch.ones(3), "int4")
    refuses(ValueError, "the model is itself a linear layer", linear(), "int4")
    refuses(
        ValueError, "the model is itself a linear layer", Linear(torch.ones(2, 2).half()), "int4"
    )


def test_nothing_to_replace():
    text = "nothing to replace: Sequential has no torch.nn.Linear; convert before torch.jit"
    refuses(ValueError, text, nn.Sequential(nn.ReLU()), "int4")
    text = refuses(ValueError, "nothing to replace", nn.Sequential(linear(dtype=F32)), "int4")
    assert "kept: is torch.float32; call model.bfloat16() before" in text
    refuses(ValueError, "kept: skip='0'", nn.Sequential(linear()), "int4", skip=["0"])
