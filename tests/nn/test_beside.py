"""The weights of a module's layers in memory, after ``convert`` and ``load``."""

import copy
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from cutlass_api.nn import convert, place_side_by_side
from cutlass_api.weights import _adjacent
from safetensors.torch import load_file, save_model
from torch import nn

#: Those of weights without a factor.
SCHEMES = ["int4", "uint4", "mxfp4", "fp8", "fp8-weight", "int8", "int8-weight"]


class Attention(nn.Module):
    def __init__(self, k: int = 64, extents: Sequence[int] = (64, 32, 32, 64)) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (
            nn.Linear(k, n, bias=False, dtype=torch.bfloat16) for n in extents
        )


def fields_of(*layers: Any) -> Iterator[list[torch.Tensor]]:
    """Each field of several layers."""
    for parts in zip(*(layer.buffers(recurse=False) for layer in layers), strict=True):
        yield list(parts)


def are_beside(*layers: Any) -> list[bool]:
    """Whether the layers lie side by side, by field."""
    return [_adjacent.are_beside(parts) for parts in fields_of(*layers)]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_of_one_module_lie_side_by_side(scheme, tmp_path) -> None:
    model = nn.Sequential(Attention(), Attention())
    alone = nn.Sequential(copy.deepcopy(model[0].k))
    convert(alone, scheme)
    convert(model, scheme)
    first, other = model
    assert all(are_beside(first.q, first.k, first.v, first.o))
    assert all(are_beside(first.k, first.v)) and not any(are_beside(first.q, first.v))
    assert not any(are_beside(first.q, other.q))
    for parts in fields_of(first.q, first.k, first.v):
        assert torch.equal(_adjacent.whole(parts), torch.cat(parts))
    assert torch.equal(first.k.weight.dequantize(), alone[0].weight.dequantize())

    before = first.k.values
    convert(model, scheme)
    assert first.k.values is before

    first.k.values = first.k.values.clone()
    assert not all(are_beside(first.q, first.k))
    place_side_by_side(model)
    assert all(are_beside(first.q, first.k, first.v, first.o))

    # Copies and files hold the same values.
    copied = copy.deepcopy(model)
    save_model(model, tmp_path / "model.safetensors")
    for name, value in load_file(tmp_path / "model.safetensors").items():
        assert torch.equal(value, model.state_dict()[name])
        assert torch.equal(value, copied.state_dict()[name])


@pytest.mark.parametrize("scheme", ["int4", "fp8"])
def test_copies_and_files_of_a_layer_hold_its_own_memory(scheme, tmp_path) -> None:
    model = nn.ModuleList(nn.Linear(64, 64, dtype=torch.bfloat16) for _ in range(16))
    convert(model, scheme)
    assert all(are_beside(*model))
    layer = model[3]
    torch.save(layer, tmp_path / "layer.pt")
    loaded = torch.load(tmp_path / "layer.pt", weights_only=False)
    unpickled = pickle.loads(pickle.dumps(model))
    assert len(pickle.dumps(model)) < 20 * len(pickle.dumps(unpickled[3]))
    for other in (copy.deepcopy(layer), loaded, unpickled[3]):
        tensors = [*other.buffers(), other.bias]
        assert all(x.untyped_storage().nbytes() == x.nbytes for x in tensors)
        assert torch.equal(other.weight.dequantize(), layer.weight.dequantize())
        assert torch.equal(other.bias, layer.bias) and other.bias.requires_grad
    assert not any(are_beside(*unpickled))
    place_side_by_side(unpickled)
    assert all(are_beside(*unpickled))


def test_a_layer_under_several_names_stays_one_in_a_file(tmp_path) -> None:
    block = Attention()
    model = nn.ModuleList([block, block])
    convert(model, "int4")
    torch.save(model.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt")
    assert state["0.k.values"].data_ptr() == state["1.k.values"].data_ptr()


def test_shared_memory_stays_shared() -> None:
    model = Attention()
    convert(model, "int4")
    model.share_memory()
    assert all(value.is_shared() for value in model.state_dict().values())


def test_the_state_of_a_layer_is_its_own_memory() -> None:
    model = Attention()
    convert(model, "int4")
    state = model.k.state_dict()
    assert all(value.untyped_storage().nbytes() == value.nbytes for value in state.values())
    before = model.q.values.clone()
    state["values"].zero_()
    assert not model.k.values.any() and torch.equal(model.q.values, before)


def test_shared_weights_and_those_that_would_not_be_aligned_stay() -> None:
    tied = Attention()
    tied.k.weight = tied.v.weight
    convert(tied, "int4")
    assert tied.k.values is tied.v.values and all(are_beside(tied.q, tied.o))
    odd = Attention(k=128, extents=(3, 3, 3, 3))  # three scales of two bytes
    convert(odd, "int4")
    assert not any(are_beside(odd.q, odd.k))


def test_biases_lie_side_by_side_too() -> None:
    model = nn.ModuleList(nn.Linear(64, n, dtype=torch.bfloat16) for n in (64, 32))
    biases = [layer.bias.detach().clone() for layer in model]
    parameters = [layer.bias for layer in model]
    convert(model, "int4")
    first, other = model
    assert _adjacent.are_beside([first.bias, other.bias])
    for layer, bias, parameter in zip(model, biases, parameters, strict=True):
        assert torch.equal(layer.bias, bias)
        assert layer.bias is parameter


def with_biases() -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(64, 64, dtype=torch.bfloat16) for _ in range(3))


def test_biases_that_are_memory_of_others_stay() -> None:
    tied = with_biases()
    tied[1].bias = nn.Parameter(tied[2].bias.data)
    convert(tied, "int4")
    assert tied[1].bias.data_ptr() == tied[2].bias.data_ptr()
    parts = with_biases()
    flat = torch.zeros(3 * 64, dtype=torch.bfloat16)
    for layer, part in zip(parts, flat.split(64), strict=True):
        layer.bias.data = part
    convert(parts, "int4")
    flat.fill_(1)
    assert all(layer.bias.eq(1).all() for layer in parts)


def test_biases_of_inference_mode_stay() -> None:
    with torch.inference_mode():
        model = with_biases()
    convert(model, "int4")
    for layer in model:
        layer.bias.view(-1)
    assert not any(are_beside(*model))


def test_layers_of_two_modules_stay() -> None:
    first, other = Attention(), Attention()
    other.k = first.k
    model = nn.ModuleList([first, other])
    convert(model, "int4")
    values = [layer.values for layer in (first.q, first.k, first.v, other.q, other.v)]
    place_side_by_side(model)
    assert all(
        layer.values is before
        for layer, before in zip((first.q, first.k, first.v, other.q, other.v), values, strict=True)
    )


def test_layers_with_a_factor_stay() -> None:
    model = Attention()
    convert(model, "nvfp4")
    assert not any(are_beside(model.q, model.k))
