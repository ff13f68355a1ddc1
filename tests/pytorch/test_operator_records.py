"""The records of `torch.ops.cutlass_api` against torch's dispatcher, the guide and each other."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cutlass_api.ops import OPERATORS, OPS
from cutlass_api.ops._labels import Rule
from cutlass_api.ops._operator import Gradient
from cutlass_api.ops._sharding import placements
from support.operator_calls import EVERY, F8, every, randn
from torch.distributed.tensor import DTensor
from torch.utils.flop_counter import flop_registry

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "pytorch.md"
#: The keys of the dispatcher at which every operator has a kernel of its own.
KEYS = ("CPU", "CUDA", "Autograd")


def overloads():
    """Every overload of the library, by its name in torch's dispatcher."""
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name for name in names if name.startswith("cutlass_api::"))


def test_every_overload_of_the_library_has_a_record():
    expected = [f"cutlass_api::{name}" for name in OPERATORS]
    expected += [f"cutlass_api::{name}.out" for name, each in OPERATORS.items() if each.has_out]
    assert overloads() == sorted(expected)


@pytest.mark.parametrize("overload", overloads())
def test_every_overload_has_every_rule(overload):
    operator = OPERATORS[overload.removeprefix("cutlass_api::").removesuffix(".out")]
    keys = set(KEYS)
    if not overload.endswith(".out"):
        keys |= {"FuncTorchBatched"}
        keys |= {"AutocastCPU", "AutocastCUDA"} if operator.autocast else set()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert [key for key in keys if not has(overload, key)] == []
    assert torch._library.simple_registry.singleton.find(overload).fake_impl.kernel is not None
    assert getattr(OPS, operator.name) in flop_registry
    assert operator.overload in DTensor._op_dispatcher.sharding_propagator.op_to_schema_info


def rules(operator):
    """The functions of a record, except for the computation."""
    yield from (operator.vmap, operator.flops, operator.sharding)
    yield from (each for each in (operator.lowering, operator.autocast) if callable(each))
    if isinstance(operator.gradient, Gradient):
        yield from filter(None, operator.gradient)


@every
def test_no_rule_repeats_a_schema(name):
    operator = OPERATORS[name]
    for rule in rules(operator):
        parameters = inspect.signature(rule).parameters
        assert not parameters.keys() & operator.names, rule
        assert all(each.default is each.empty for each in parameters.values()), rule
    computed = list(inspect.signature(operator.compute).parameters)
    # Choices of Inductor name a kernel.
    computed = [each for each in computed if each != "kernel"]
    assert computed == operator.names + ["out"] * operator.has_out


def described(tensor):
    """A tensor as sharding rules get it: DTensor's spec, of two devices."""
    meta, mesh = SimpleNamespace(dtype=tensor.dtype), SimpleNamespace(size=lambda: 2)
    return SimpleNamespace(shape=tensor.shape, tensor_meta=meta, mesh=mesh)


def other_value(argument):
    """A value of an argument that is not the default, which the dispatcher would leave out."""
    kind = str(argument.type)
    if "Tensor" in kind:
        return described(torch.ones(1))
    if kind == "bool":
        return not argument.default_value
    return {"Optional[str]": "gelu", "number": 0.5}.get(kind, torch.bfloat16)


@every
def test_sharding_rules_take_every_argument(name):
    operator = OPERATORS[name]
    args = torch.utils._pytree.tree_map(
        lambda x: described(x) if isinstance(x, torch.Tensor) else x, list(EVERY[name](randn))
    )
    if name == "quantize":  # whose scales are swizzled in MXFP8 alone
        args[1:] = F8, [1, 32]
    values = args + [other_value(argument) for argument in operator.arguments[len(args) :]]
    named = dict(zip(operator.names, values, strict=True))
    positional, keywords = operator.split(values)
    assert isinstance(operator.sharding(operator.bind(positional, keywords)), Rule)
    expected = placements(operator, *positional, **keywords)
    assert expected == placements(operator, **named)
    assert all(len(inputs) == len(expected[0][1]) for _, inputs in expected)


def test_the_guide_lists_the_operators():
    """The table of docs/guide/pytorch.md: a row for each result."""
    rows = {}
    for name, operator in OPERATORS.items():
        if operator.summary:
            rows.setdefault(operator.summary, []).append(f"`{name}`")
    lines = ["| `torch.ops.cutlass_api` | result |", "|---|---|"]
    lines += [f"| {', '.join(names)} | {summary} |" for summary, names in rows.items()]
    assert "\n".join([*lines, "", ""]) in GUIDE.read_text()
