"""Mixtures of experts of transformers, beside its own implementations."""

import copy
import itertools
import shutil
from collections import Counter
from types import SimpleNamespace

import pytest
import stand_in
import torch
from cutlass_api.nn import _experts
from cutlass_api.nn._experts import Gate, experts, route
from support.helpers import spilled_bytes
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

transformers = pytest.importorskip("transformers")
pytest.importorskip("cutlass_api.transformers")  # registers the implementation
from transformers.integrations.moe import use_experts_implementation  # noqa: E402

IDS = torch.arange(24).view(2, 12) * 7 % 128
SMALL = dict(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
)
#: Models whose experts differ: in the layout of weights, biases and gates.
MODELS = {
    "Qwen3Moe": dict(moe_intermediate_size=24, num_experts=6, num_experts_per_tok=2, head_dim=16),
    "Mixtral": dict(num_local_experts=4, num_experts_per_tok=2),
    "GptOss": dict(num_local_experts=4, num_experts_per_tok=3, head_dim=16),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name):
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL, **MODELS[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    logits, gradients = {}, {}
    for implementation in ("eager", "cutlass_api"):
        own = copy.deepcopy(model)
        own.set_experts_implementation(implementation)
        logits[implementation] = own(IDS).logits
        logits[implementation].sin().sum().backward()
        gradients[implementation] = {key: value.grad for key, value in own.named_parameters()}
    assert sum("experts" in key for key in gradients["eager"]) >= 2
    check(logits["cutlass_api"], logits["eager"])
    for key, expected in gradients["eager"].items():
        check(gradients["cutlass_api"][key], expected)


def check(found, expected):
    if expected is None:
        assert found is None
        return
    scale = expected.abs().max().item()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * scale)


HIDDEN, INNER, EXPERTS, TOKENS, TOP_K = 24, 40, 5, 11, 3
FLAGS = ("is_transposed", "has_bias", "has_gate", "has_post_expert_norm")


def module_of(dtype=torch.float32, **flags):
    """A module of experts as transformers' models define them."""
    generator = torch.Generator().manual_seed(0)
    name = "gate_up_proj" if flags["has_gate"] else "up_proj"
    width = 2 * INNER if flags["has_gate"] else INNER

    @use_experts_implementation(**flags)
    class Experts(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.num_experts, self.act_fn = EXPERTS, nn.functional.silu
            extents = {name: (width, HIDDEN), "down_proj": (HIDDEN, INNER)}
            for layer, (n, k) in extents.items():
                shape = (EXPERTS, k, n) if flags["is_transposed"] else (EXPERTS, n, k)
                weight = torch.randn(shape, generator=generator) * k**-0.5
                self.register_parameter(layer, nn.Parameter(weight.to(dtype)))
                if flags["has_bias"]:
                    bias = torch.randn(EXPERTS, n, generator=generator).to(dtype)
                    self.register_parameter(f"{layer}_bias", nn.Parameter(bias))
            if flags["has_post_expert_norm"]:
                self.post_expert_norm = nn.RMSNorm(HIDDEN).to(dtype)

        def forward(self, hidden_states, index, weights):
            raise NotImplementedError

    return Experts(SimpleNamespace(_experts_implementation="cutlass_api"))


def inputs_of(dtype=torch.float32, masked=False):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(TOKENS, HIDDEN, generator=generator).to(dtype).requires_grad_()
    # Expert 1 is not chosen.
    scores = torch.rand(TOKENS, EXPERTS, generator=generator)
    scores[:, 1] = -1
    weights, index = scores.topk(TOP_K)
    if masked:
        is_other = torch.rand(index.shape, generator=generator) < 0.4
        index, weights = index.masked_fill(is_other, EXPERTS), weights.masked_fill(is_other, 0)
    return hidden, index, weights.requires_grad_()


def outcome(module, inputs, implementation="cutlass_api"):
    """The output and all gradients."""
    module.config._experts_implementation = implementation
    out = module(*inputs)
    of = [inputs[0], inputs[2], *module.parameters()]
    return [out, *torch.autograd.grad(out.sin().sum(), of)]


@pytest.mark.parametrize("values", list(itertools.product((False, True), repeat=4)), ids=str)
def test_layouts(values):
    module, inputs = module_of(**dict(zip(FLAGS, values, strict=True))), inputs_of()
    expected = outcome(module, inputs, "grouped_mm")
    for found, wanted in zip(outcome(module, inputs), expected, strict=True):
        check(found, wanted)


PLAIN = dict.fromkeys(FLAGS, False) | {"has_gate": True}


@pytest.mark.parametrize("has_bias", [False, True])
def test_slots_of_other_processes_count_nothing(has_bias):
    module, inputs = module_of(**PLAIN | {"has_bias": has_bias}), inputs_of(masked=True)
    module._is_expert_parallel = True
    expected = outcome(module, inputs, "grouped_mm")
    for found, wanted in zip(outcome(module, inputs), expected, strict=True):
        check(found, wanted)


class Products(TorchDispatchMode):
    """Counts calls of the operators of this library."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        namespace, _, name = function.name().partition("::")
        self.calls[name] += namespace == "cutlass_api"
        return function(*args, **(kwargs or {}))

    def names(self):
        return [name for name, count in self.calls.items() for _ in range(count)]


@pytest.mark.parametrize("flags", [PLAIN, PLAIN | {"has_bias": True}], ids=["plain", "bias"])
def test_gate_and_up_are_one_product_without_gradients(flags):
    module, inputs = module_of(**flags), inputs_of(masked=True)
    module.act_fn, module._is_expert_parallel = nn.SiLU(), True
    expected = outcome(module, inputs, "grouped_mm")[0]
    module.config._experts_implementation = "cutlass_api"
    with torch.no_grad(), Products() as products:
        check(module(*inputs), expected)
    assert products.names() == ["grouped_gated_mm", "grouped_mm"]


@pytest.mark.parametrize("has_bias", [False, True])
def test_epilogues_compute_the_activation_and_its_derivative(has_bias):
    """No other operation reads or writes rows of gate and up."""
    module, inputs = module_of(**PLAIN | {"has_bias": has_bias}), inputs_of(masked=True)
    module.act_fn, module._is_expert_parallel = nn.SiLU(), True
    expected = outcome(module, inputs, "grouped_mm")
    module.config._experts_implementation = "cutlass_api"
    with Products() as products:
        out = module(*inputs)
    assert products.names() == ["grouped_gated_mlp"]
    of = [inputs[0], inputs[2], *module.parameters()]
    with Products() as products:
        found = [out, *torch.autograd.grad(out.sin().sum(), of)]
    counts = {"grouped_gated_mlp_grad": 1, "grouped_mm": 1}
    counts["grouped_mm_weight_grad"] = 4 if has_bias else 2  # also of biases
    assert Counter(products.names()) == counts
    for each, wanted in zip(found, expected, strict=True):
        check(each, wanted)


@pytest.mark.parametrize("is_contiguous_along_k", [False, True])
def test_the_gate_of_gpt_oss(is_contiguous_along_k):
    """Its weights are contiguous along N, of which no kernel takes gate and up at once."""
    torch.manual_seed(0)
    config = transformers.GptOssConfig(**SMALL, **MODELS["GptOss"])
    module = transformers.models.gpt_oss.modeling_gpt_oss.GptOssExperts(config)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    hidden, chosen = torch.randn(7, 32), torch.rand(7, 4).topk(3)
    results = {}
    for implementation in ("eager", "cutlass_api"):
        config._experts_implementation = implementation
        if is_contiguous_along_k:
            weight = module.gate_up_proj
            weight.data = weight.mT.contiguous().mT
        with torch.no_grad(), Products() as products:
            results[implementation] = module(hidden, chosen.indices, chosen.values)
    check(*results.values())
    first = "grouped_gated_mm" if is_contiguous_along_k else "grouped_mm"
    assert sorted(products.names()) == sorted([first, "grouped_mm"])


def test_all_slots_are_of_other_processes():
    module, (hidden, index, weights) = module_of(**PLAIN), inputs_of()
    out, *gradients = outcome(module, (hidden, torch.full_like(index, EXPERTS), weights))
    assert not out.any() and not any(each.any() for each in gradients)


@pytest.fixture
def filled():
    """Fills uninitialized memory with NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("filled")
def test_gradients_behind_the_last_group():
    """Slots of no expert have weights here: nothing but their index says that they count
    nothing."""
    module = module_of(**PLAIN | {"has_bias": True})
    hidden, index, weights = inputs_of()
    index = index.masked_fill(index == 4, EXPERTS)
    found = outcome(module, (hidden, index, weights))
    masked = weights.detach().masked_fill(index == EXPERTS, 0).requires_grad_()
    wanted = outcome(module, (hidden, index.clamp(max=4), masked))
    wanted[2] = wanted[2].masked_fill(index == EXPERTS, 0)
    for each, expected in zip(found, wanted, strict=True):
        check(each, expected)


def test_results_round_once_and_repeat():
    module, inputs = module_of(torch.bfloat16, **PLAIN), inputs_of(torch.bfloat16)
    found, again = outcome(module, inputs), outcome(module, inputs)
    assert all(torch.equal(*pair) for pair in zip(found, again, strict=True))
    assert found[0].dtype is found[1].dtype is torch.bfloat16 and found[2].dtype is torch.float32
    theirs = outcome(module, inputs, "grouped_mm")
    double = [each.detach().double().requires_grad_() for each in (inputs[0], inputs[2])]
    exact = outcome(copy.deepcopy(module).double(), (double[0], inputs[1], double[1]), "batched_mm")
    for ours, other, wanted in zip(found, theirs, exact, strict=True):
        error, their_error = ((each - wanted).norm() / wanted.norm() for each in (ours, other))
        assert error < 1.2 * their_error and error < 0.02


def test_one_graph():
    module, inputs = module_of(**PLAIN | {"has_bias": True}), inputs_of()
    expected = outcome(module, inputs)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    out = compiled(*inputs)
    gradients = torch.autograd.grad(out.sin().sum(), [inputs[0], inputs[2], *module.parameters()])
    for found, wanted in zip([out, *gradients], expected, strict=True):
        check(found, wanted)


def test_derivatives():
    module = module_of(**PLAIN).double()
    hidden, index, weights = inputs_of(torch.float64)
    weights = weights.detach().double().requires_grad_()

    def layer(hidden, weights):
        return experts(
            *(hidden, index, weights),
            up=(module.gate_up_proj.mT, None),
            down=(module.down_proj.mT, None),
            activate=module._apply_gate,
        )

    assert torch.autograd.gradcheck(layer, (hidden, weights))
    assert torch.autograd.gradgradcheck(layer, (hidden, weights), fast_mode=True)
    gradient = torch.func.grad(lambda *x: layer(*x).sin().sum(), (0, 1))(hidden, weights)
    expected = torch.autograd.grad(layer(hidden, weights).sin().sum(), (hidden, weights))
    for found, wanted in zip(gradient, expected, strict=True):
        check(found, wanted)


def test_routing():
    index = torch.tensor([[2, 0], [4, 2], [0, 3], [2, 7]])
    found = route(index, 4)
    assert found.offsets.tolist() == [2, 2, 5, 6] and found.offsets.dtype is torch.int32
    assert found.slots.tolist() == [1, 4, 0, 3, 6, 5, 2, 7]
    assert found.rows.flatten()[found.slots].tolist() == list(range(8))
    with pytest.raises(ValueError, match="an expert is -7; pass 0 to 3, or 4 for no expert"):
        route(torch.tensor([[-1, 0], [4, -7]]), 4)
    none = route(index[:0], 4)
    assert none.offsets.tolist() == [0] * 4 and none.rows.shape == (0, 2)


def test_rows_of_negative_experts_are_those_of_expert_0():
    # As on a GPU, where nothing refuses them.
    routing = route(torch.zeros(1, 4, dtype=torch.int64), 2)
    routing = routing._replace(experts=torch.tensor([-2, -1, 1, 2]))
    assert routing.of_rows(torch.tensor([[3.0], [5.0]])).tolist() == [[3], [3], [5], [0]]


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")
def test_the_kernels_of_slots():
    checks = "emulated_slots.check_sort()\nemulated_slots.check()"
    found = stand_in.run(f"from support import emulated_slots\n{checks}", emulated=True)
    assert found == "done\ndone\n"


@pytest.mark.gpu
@pytest.mark.parametrize("has_bias", [False, True])
def test_on_a_gpu(has_bias):
    """The kernels, also in a graph whose replay routes otherwise."""
    generator = torch.Generator().manual_seed(0)
    hidden, index, weights = inputs_of(torch.bfloat16, masked=True)
    parameters = [
        (torch.randn(EXPERTS, n, k, generator=generator) * k**-0.5).bfloat16()
        for n, k in ((2 * INNER, HIDDEN), (HIDDEN, INNER))
    ]
    biases = [torch.randn(EXPERTS, each.shape[1], generator=generator) for each in parameters]

    def prepared(device):
        tensors = (hidden, weights, *parameters, *(each.bfloat16() for each in biases))
        moved = [each.to(device).detach().requires_grad_() for each in tensors]
        x, factors, up, down, *of_layers = moved if has_bias else (*moved[:4], None, None)
        pairs = [(up.mT, of_layers[0]), (down.mT, of_layers[1])]
        chosen = index.to(device)

        def layer():
            return experts(x, chosen, factors, *pairs, Gate("silu"))

        return layer, chosen, [x, factors, up, down]

    results = {}
    for device in ("cpu", "cuda"):
        layer, chosen, inputs = prepared(device)
        out = layer()
        results[device] = [out, *torch.autograd.grad(out.float().sin().sum(), inputs)]
    for found, expected in zip(results["cuda"], results["cpu"], strict=True):
        difference = (found.cpu().double() - expected.double()).norm() / expected.double().norm()
        assert difference < 0.01
    with torch.no_grad():
        torch.testing.assert_close(layer(), out, rtol=0.02, atol=0.02)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = layer()
        chosen.copy_(chosen.flip(0))
        graph.replay()
        assert torch.equal(captured, layer())


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize("cc", [80, 90])
def test_no_register_spills(cc):
    for types in ((torch.bfloat16, torch.float32), (torch.float32, None), (torch.float64,) * 2):
        program = _experts.program(*types, True).compile(cc=cc)
        assert program.log == "" and spilled_bytes(program) == 0, types
