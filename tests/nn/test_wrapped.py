"""``convert``, ``save`` and ``load`` of models that ``torch.compile`` and data parallelism wrap."""

import copy

import pytest
import torch
from cutlass_api import quantize
from cutlass_api.nn import Linear, convert, load, save
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

pytest.importorskip("safetensors")
from safetensors.torch import load_file

BF16 = torch.bfloat16
X = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(BF16)


def compiled(module):
    return torch.compile(module, backend="eager")


def with_compiled(name):
    """Wraps a module in the model."""

    def wrap(model):
        home, _, last = name.rpartition(".")
        model.get_submodule(home)._modules[last] = compiled(model.get_submodule(name))
        return model

    return wrap


ROOTS = {
    "compiled": compiled,
    "DataParallel": nn.DataParallel,
    "both": lambda model: nn.DataParallel(compiled(model)),
}
WRAPPED = {**ROOTS, "block": with_compiled("block"), "layer": with_compiled("block.up")}


def model(device="cpu"):
    torch.manual_seed(0)
    up, down = (nn.Linear(64, 64, dtype=BF16, device=device) for _ in range(2))
    block = nn.Sequential()
    for name, module in (("up", up), ("act", nn.ReLU()), ("down", down)):
        block.add_module(name, module)
    whole = nn.Sequential()
    whole.add_module("block", block)
    whole.add_module("head", nn.Linear(64, 8, dtype=BF16, device=device))
    return whole


def converted(scheme="int4"):
    plain = model()
    convert(plain, scheme, skip=("head",))
    return plain


@pytest.fixture(autouse=True)
def _afresh():
    torch.compiler.reset()


@pytest.mark.parametrize("name", WRAPPED)
def test_convert(name):
    wrapped = WRAPPED[name](model())
    wrapped(X)  # compiles
    report = convert(wrapped, "int4", skip=("block.down",))
    assert "skip='block.down'" in report.kept.values()
    layer = "block._orig_mod.up" if name == "block" else "block.up"
    expected = model()
    if name == "layer":  # what was compiled calls the old layer
        assert report.kept[f"{layer}._orig_mod"] == "torch.compile wraps it; convert before"
        assert report.replaced == ["head"]
        convert(expected, "int4", skip=("block",))
    else:
        assert report.replaced == [layer, "head"]
        convert(expected, "int4", skip=("block.down",))
    assert torch.equal(wrapped(X), expected(X))


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", WRAPPED)
def test_names_in_files_are_those_of_the_model(tmp_path, name, device):
    plain = converted()
    for folder, saved in (("plain", plain), ("wrapped", WRAPPED[name](copy.deepcopy(plain)))):
        save(saved, tmp_path / folder)
    files = [load_file(tmp_path / each / "model.safetensors") for each in ("plain", "wrapped")]
    assert files[0].keys() == files[1].keys() and "block.up.weight_packed" in files[0]
    texts = [(tmp_path / each / "config.json").read_text() for each in ("plain", "wrapped")]
    assert texts[0] == texts[1]
    wrapped = WRAPPED[name](model(device))
    load(wrapped, tmp_path / "wrapped", device="cpu")
    assert torch.equal(wrapped(X), plain(X))


@pytest.mark.parametrize("kind", [nn.parallel.DistributedDataParallel, FullyShardedDataParallel])
def test_wrappers_that_hold_parameters_are_refused(tmp_path, kind):
    holder = kind.__new__(kind)  # without a process group
    nn.Module.__init__(holder)
    holder.module = model()
    for call in (lambda x: convert(x, "int4"), lambda x: load(x, tmp_path)):
        for each in (holder, nn.Sequential(holder)):
            with pytest.raises(ValueError, match=f"{kind.__name__} holds .* before you wrap it"):
                call(each)


def test_a_layer_alone_is_saved(tmp_path):
    layer = Linear(quantize.int4(torch.randn(8, 64).to(BF16)))
    save(layer, tmp_path)
    new = nn.Linear(64, 8, bias=False, dtype=BF16)
    load(new, tmp_path)
    assert torch.equal(new.weight, layer.weight.dequantize())


def test_replicas_prepare_their_own_products():
    """DataParallel runs them in threads, on a GPU each."""
    layer = Linear(quantize.int4(torch.randn(8, 64).to(BF16)))
    out = layer(X)
    replica = layer._replicate_for_data_parallel()
    replica._parameters["bias"] = None
    assert replica._prepared is not layer._prepared and torch.equal(replica(X), out)
