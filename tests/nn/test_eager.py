"""Layers in eager mode compute without torch's dispatcher where nothing else sees the call."""

import gc
import weakref

import pytest
import torch
from cutlass_api import quantize
from cutlass_api.nn import Linear, _eager
from support.layers import BF16, LAYERS, K, layer_of, matrix
from torch.utils._python_dispatch import TorchDispatchMode

SERVED = [name for name in LAYERS if "permuted" not in name]


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), options=None):
        return operator(*args, **(options or {}))


def by_operator(layer, x):
    with Nothing():
        return layer(x)


@pytest.fixture
def launches(monkeypatch):
    """Whether each call of the core computed."""
    found = []

    def counted(*args, **options):
        out = launch(*args, **options)
        found.append(out is not None)
        return out

    launch = _eager.launch_linear
    monkeypatch.setattr(_eager, "launch_linear", counted)
    return found


@torch.no_grad()
@pytest.mark.parametrize("name", SERVED)
def test_equals_the_operator(name, launches):
    layer = layer_of(name)
    dtype = torch.float16 if name == "plain" else BF16
    layer.bias.data = layer.bias.to(dtype)
    rows = torch.randn(6, 2 * K).to(dtype)
    inputs = {
        "a matrix": rows[:, :K].contiguous(),
        "rows": rows[:, :K],
        "a batch": rows[:, :K].unflatten(0, (2, 3)),
        "one token": rows[:1, None, :K],
        "tokens": rows[:, :K].reshape(2, 3, K),
        "a transposed batch": rows[:, :K].unflatten(0, (2, 3)).transpose(0, 1),
        "no rows": rows[:0, :K],
    }
    for kind, x in inputs.items():
        launches.clear()
        out = layer(x)
        if "dynamic" in name:
            expected = [True] if x.is_contiguous() and x.numel() else []
        else:  # no stride leads from each row of a transposed batch to the next
            expected = [kind != "a transposed batch"]
        assert launches == expected, kind
        expected = by_operator(layer, x)
        assert torch.equal(out, expected) and out.stride() == expected.stride(), kind
    for x in (rows[0, :K], rows[:, :K].reshape(1, 2, 3, K)):
        assert torch.equal(layer(x), by_operator(layer, x))
    with pytest.raises(ValueError, match=r"cutlass_api::\w+: (dimension K|input has shape)"):
        layer(rows)


def swapped(layer, other):
    layer.scales.data = other.scales


CHANGES = {
    "load_state_dict": lambda layer, other: layer.load_state_dict(other.state_dict()),
    "load_state_dict(assign=True)": lambda layer, other: layer.load_state_dict(
        other.state_dict(), assign=True
    ),
    "a buffer": lambda layer, other: setattr(layer, "values", other.values),
    "a buffer in place": lambda layer, other: layer.scales.mul_(2),
    "data": swapped,
    "bias": lambda layer, other: setattr(layer, "bias", other.bias),
    "no bias": lambda layer, other: setattr(layer, "bias", None),
    "unpack": lambda layer, other: layer.unpack(),
    "half": lambda layer, other: layer.half().bfloat16(),
}


@torch.no_grad()
@pytest.mark.parametrize("change", CHANGES)
def test_follows_changes_of_the_layer(change):
    x, layer, other = torch.randn(2, K).to(BF16), layer_of("int4"), layer_of("int4", seed=5)
    before = layer(x)
    CHANGES[change](layer, other)
    assert torch.equal(layer(x), by_operator(layer, x))
    assert torch.equal(layer(x), before) == (change in ("unpack", "half", "bias"))


@torch.no_grad()
def test_holds_no_memory_of_tensors_before():
    layer = layer_of("int4")
    layer(torch.zeros(1, K).to(BF16))
    values = weakref.ref(layer.values)
    layer.to_empty(device="cpu")
    gc.collect()
    assert values() is None


def test_the_dispatcher_sees_what_it_has_to(launches):
    layer, x = layer_of("int4"), torch.randn(2, K).to(BF16)
    layer(x)  # the bias requires grad
    assert launches == [False]
    layer.requires_grad_(False)
    calls = {
        "eager": lambda: layer(x),
        "a gradient": lambda: layer(x.clone().requires_grad_()),
        "vmap": lambda: torch.vmap(layer)(x[None]),
        "a mode": lambda: by_operator(layer, x),
        "jvp": lambda: torch.func.vjp(layer, x),
    }
    for name, call in calls.items():
        launches.clear()
        call()
        assert launches == [name == "eager"], name
    launches.clear()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x.float()).dtype is BF16
    assert launches == [False]


@torch.no_grad()
def test_powers_of_two_refuse_float16():
    layer = Linear(quantize.mxfp4(matrix()))
    with pytest.raises(ValueError, match=r"float16, whose range the scales of MXFP4 exceed"):
        layer(torch.zeros(1, K, dtype=torch.float16))
