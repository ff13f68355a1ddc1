"""Every function of epilogues, by the core's table: values, derivatives, spellings, and the pages
and modules that list it.
"""

import inspect
import re
from pathlib import Path

import pytest
import torch
from cutlass_api import fusion
from cutlass_api._core import epilogue_functions
from cutlass_api.fusion import activation, trace
from cutlass_api.ops._epilogues import addends
from cutlass_api.ops._evaluate import evaluate

OPS = torch.ops.cutlass_api
FUNCTIONS = {function.names[0]: function for function in epilogue_functions()}
ACTIVATIONS = [name for name, function in FUNCTIONS.items() if function.backward is not None]
REDUCTIONS = [name for name, function in FUNCTIONS.items() if function.is_reduction]
ELEMENTWISE = [name for name in FUNCTIONS if name not in (*REDUCTIONS, "product", "scale_blocks")]

#: Arguments by the first name of their parameter.
REQUIRED = {"input": "accum", "other": "C", "condition": "(accum > C)", "B": "C"}
REQUIRED |= {"x": "accum", "y": "C", "z": "accum"}
OPTIONAL = {"min": "-2.0", "max": "2.0", "negative_slope": "0.2", "approximate": "'tanh'"}
OPTIONAL |= {"dtype": "torch.float32"}
#: What torch has under no spelling of the function.
COMPOSED = {
    "identity": lambda x: x,
    "multiply_add": lambda x, y, z: x * y + z,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
}


def calls(name, spelling=None):
    """Calls of a function: with the required arguments alone, and with all."""
    parameters = FUNCTIONS[name].parameters
    required = [REQUIRED[names[0]] for names, is_required in parameters if is_required]
    required += ["-1"] if name in REDUCTIONS else []
    more = [f"{names[0]}={OPTIONAL[names[0]]}" for names, needed in parameters if not needed]
    arguments = [[*required, *more]] if name in ("clamp", "cast") else [required, required + more]
    spelled = [f"{spelling or name}({', '.join(given)})" for given in arguments]
    return list(dict.fromkeys(spelled))


def by_torch(name):
    homes = (torch, torch.nn.functional, torch.Tensor)
    found = [getattr(home, each, None) for each in FUNCTIONS[name].names for home in homes]
    return COMPOSED.get(name) or next(each for each in found if callable(each))


def derivatives(function, inputs):
    """The value of a function, its gradients, and the gradients of these."""
    generator = torch.Generator().manual_seed(1)

    def random_like(tensor):
        return torch.rand(tensor.shape, dtype=tensor.dtype, generator=generator)

    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    out = function(*inputs)
    seed = random_like(out).requires_grad_()
    first = torch.autograd.grad(out, inputs, seed, create_graph=True)
    seeds = [random_like(tensor) for tensor in first]
    second = torch.autograd.grad(first, [*inputs, seed], seeds, materialize_grads=True)
    return [out, *first, *second]


def random(*shape, sign=1.0):
    """Values away from 0, where logarithms and roots have no derivative."""
    generator = torch.Generator().manual_seed(sum(shape))
    return sign * (0.1 + torch.rand(*shape, dtype=torch.float64, generator=generator))


def assert_equal(actual, wanted):
    for one, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11, equal_nan=True)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_derivatives_are_torchs(name, sign):
    inputs = [random(4, 6, sign=sign), random(6, 5), random(4, 5)]
    for call in calls(name):
        expression = f"{call} * C + accum"
        source = f"def f(accum, C):\n    D = {expression}\n    return D"
        names = {"torch": torch, name: by_torch(name)}
        assert_equal(
            derivatives(lambda a, b, c, source=source: OPS.mm_epilogue(a, b, [c], source), inputs),
            derivatives(
                lambda a, b, c, text=expression, names=names: eval(
                    text, names | {"accum": a @ b, "C": c}
                ),
                inputs,
            ),
        )


@pytest.mark.parametrize("expression", ["{}", "{} * C + accum", "accum * 2 + {}", "C - ({})"])
@pytest.mark.parametrize("name", [*ELEMENTWISE, "product"])
def test_epilogues_that_keep_partial_sums_are_linear(name, expression):
    accum, other, C = random(4, 5), random(4, 5), random(4, 5)
    for call in calls(name):
        source = f"def f(accum, C):\n    D = {expression.format(call)}\n    return D"
        found = addends(source)
        if found is not None:
            rest = torch.zeros_like(C) if 0 in found else C
            parts = evaluate(source, accum, [C]) + evaluate(source, other, [rest])
            torch.testing.assert_close(evaluate(source, accum + other, [C]), parts)


def test_reductions_and_block_scales_have_no_derivative():
    a, b = random(4, 6).requires_grad_(), random(6, 5)
    for name in REDUCTIONS:
        source = f"def f(accum):\n    S = {name}(accum, -1)\n    D = accum\n    return D, S"
        with pytest.raises(ValueError, match="reduces nothing"):
            OPS.mm_epilogue(a, b, [], source)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "scale_blocks"])
def test_spellings_mean_the_same(name):
    def traced(call):
        return str(trace(f"def f(accum, C):\n    D = accum\n    E = {call}\n    return D, E"))

    names = FUNCTIONS[name].names
    assert len(set(names)) == len(names)
    for spelling in names:
        assert list(map(traced, calls(name, spelling))) == list(map(traced, calls(name)))


def test_functions_to_import_are_those_of_the_table():
    assert sorted(activation.__all__) == sorted(ACTIVATIONS)
    functions = {
        name: getattr(fusion, name) for name in {*fusion.__all__} - {"trace", "trace_in_out"}
    }
    functions = {name: each for name, each in functions.items() if inspect.isfunction(each)}
    functions |= {name: getattr(activation, name) for name in ACTIVATIONS}
    for name, function in functions.items():
        parameters = inspect.signature(function).parameters
        for parameter, (names, needed) in zip(parameters, FUNCTIONS[name].parameters, strict=False):
            assert parameter in names or name == "scale_blocks"
            assert (parameters[parameter].default is inspect.Parameter.empty) == needed


def test_the_guide_lists_the_functions_of_the_table():
    page = (Path(__file__).parents[2] / "docs/guide/epilogues.md").read_text()
    rows = {row.split("|")[1].strip(): row for row in page.splitlines() if row.startswith("| ")}
    spelled = {spelling for function in FUNCTIONS.values() for spelling in function.names}
    listed = {}
    for part in ("functions", "activations", "casts", "functions for operators"):
        listed[part] = set(re.findall(r"`(\w+)`", rows[part]))
        assert listed[part] <= spelled
    assert sorted(listed["activations"]) == sorted(ACTIVATIONS)
    shown = set().union(*listed.values(), re.findall(r"`(\w+)\(", page))
    assert [name for name, function in FUNCTIONS.items() if not shown & set(function.names)] == []
