"""Tracing of epilogue functions: the graph, and errors with their line."""

import ast
import builtins
import functools
import linecache
import math
import re
import types

import numpy
import pytest
import torch
import torch.nn.functional as F
from cutlass_api import fusion
from cutlass_api.fusion import trace
from support.epilogues import CASES, REDUCTIONS, linear


def test_trace():
    assert fusion.trace_in_out(linear) == (["C", "alpha", "beta"], ["D"])
    traced = fusion.trace(linear, {"C": 1, "alpha": 1, "beta": 2, "D": 3})
    assert str(traced) == "D = ((alpha * accum) + (beta * C))"
    assert fusion.trace(linear) is traced, "parsed once"
    with pytest.raises(ValueError, match="Example input for D is not provided"):
        fusion.trace(linear, {"C": 1, "alpha": 1, "beta": 2})
    source = "def f(accum):\n    D = accum * (2 / 4) - -1 ** 2\n    return D"
    assert str(fusion.trace(source)) == "D = ((accum * 0.5) - -1)"
    assert fusion.trace(source) is fusion.trace(source)


EXPRESSIONS = {
    "torch.nn.functional.relu(accum)": "maximum(accum, 0)",
    "accum.sigmoid().tanh()": "tanh(sigmoid(accum))",
    "fusion.activation.silu(accum)": "silu(accum)",
    "F.gelu(accum, approximate='tanh')": "gelu_tanh(accum)",
    "clamp(accum, max=1)": "minimum(accum, 1)",
    "accum.clamp(0)": "maximum(accum, 0)",
    "torch.where(accum > 0, accum, 0.0)": "where((accum > 0), accum, 0)",
    "accum.to(torch.bfloat16)": "bfloat16(accum)",
    "accum.to('float8_e4m3fn')": "float8_e4m3fn(accum)",
    "accum.half().float()": "float32(float16(accum))",
    "math.pi * accum": "(3.141592653589793 * accum)",
    "multiply_add(accum, 2, 1)": "((accum * 2) + 1)",
    "torch.add(accum, other=1)": "(accum + 1)",
    "+accum - accum**2": "(accum - (accum * accum))",
    "accum ** 0.5": "sqrt(accum)",
    "accum + 2 ** 3 * -3": "(accum + -24)",
    "accum + 2 ** -1": "(accum + 0.5)",
    "accum + 9223372036854775807 * 3": "(accum + (9223372036854775807 * 3))",
    "max(accum, 0.5)": "maximum(accum, 0.5)",
    "accum + max(math.inf - math.inf, 0.5)": "(accum + NaN)",
}


@pytest.mark.parametrize(
    "function", [case.function for case in [*CASES, *(case for case, _ in REDUCTIONS)]]
)
def test_the_source_of_a_traced_function_traces_to_the_same(function):
    traced = trace(function)
    again = trace(traced.source)
    assert str(again) == str(traced)
    assert (again.inputs, again.outputs) == (traced.inputs, traced.outputs)


def test_the_source_of_unusual_names_and_numbers():
    traced = trace(
        """
        def f(accum, x3, x4_):
            y = where(x3 > math.inf, -accum, accum * 1e-300)
            x4 = abs(y - (math.inf - math.inf)) + x4_
            D = cast(x4, torch.bfloat16) * -math.inf
            return x3, D, x4
        """
    )
    assert str(trace(traced.source)) == str(traced)


def test_nodes_and_results():
    traced = trace(
        "def f(accum, C):\n    D = relu(accum + C) * 0.5\n    S = sum(D, -1)\n    return D, S"
    )
    values = []
    for name, *reads in traced.nodes:
        of = str(reads) if name in ("input", "number") else [values[i] for i in reads]
        values.append(f"{name} {of}" if isinstance(of, str) else f"{name}({', '.join(of)})")
    expected = "multiply(maximum(add(accum(), input [0]), number [0]), number [0.5])"
    found = [(name, values[at], reduced) for name, at, reduced in traced.results]
    assert found == [("D", expected, False), ("S", expected, True)]


def test_reductions_are_read_in_every_spelling():
    for expression in (
        "fusion.sum(x, -1)",
        "x.sum(dim=-1)",
        "torch.sum(x, axis=[-1], keepdim=True)",
        "sum(x, (-1,))",
    ):
        traced = fusion.trace(
            f"def f(accum):\n    x = accum * 2\n    S = {expression}\n    D = x\n    return D, S"
        )
        assert str(traced) == "D = (accum * 2); S = sum((accum * 2), dim=[-1])"
    traced = fusion.trace(
        "def f(accum):\n    D = accum\n    S = max(accum, 0)\n    T = accum.amax((0, 1))\n"
        "    return D, S, T"
    )
    assert str(traced) == "D = accum; S = max(accum, dim=[0]); T = max(accum, dim=[0, 1])"
    traced = fusion.trace(
        "def f(accum):\n    D = accum\n    S = accum.max()\n    T = fusion.sum(accum, dim=None)\n"
        "    U = sum(accum)\n    return D, S, T, U"
    )
    of_all = "S = max(accum, dim=[]); T = sum(accum, dim=[]); U = sum(accum, dim=[])"
    assert str(traced) == f"D = accum; {of_all}"


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions(expression):
    assert (
        str(fusion.trace(f"def f(accum):\n    D = {expression}\n    return D"))
        == f"D = {EXPRESSIONS[expression]}"
    )


REFUSED = {
    "torch.sort(accum)": "unknown operation 'sort'; use one of: abs,",
    "gamma * accum": "unknown name 'gamma'",
    "accum @ accum": "the operator MatMult cannot be used",
    "accum // 2": "the operator FloorDiv cannot be used",
    "accum ** 3": "the exponent of ** must be 2, 0.5 or -0.5",
    "not accum": "the operator Not cannot be used",
    "0 < accum < 1": "comparisons cannot be chained",
    "accum if True else 0": "write where(condition, a, b)",
    "accum[0]": "an index cannot be used",
    "accum and accum": "and/or cannot be used",
    "[accum]": "Python's List cannot be used",
    "accum.T": "an attribute cannot be used",
    "f'{accum}'": "an f-string cannot be used",
    "'text'": "'text' is not a number",
    "None": "None is not a number",
    "1j * accum": "1j is not a number",
    "accum + 9223372036854775808": (
        "9223372036854775808 does not fit into a 64-bit integer; use a float"
    ),
    "accum + 2 ** 64": "the power does not fit into a 64-bit integer",
    "relu()": "relu is missing its argument 'input'",
    "relu(accum, 1)": "relu has 1 arguments too many",
    "relu(accum, inplace=1)": "relu takes no argument 'inplace'",
    "relu(*accum)": "Python's Starred cannot be used",
    "relu(**accum)": "** cannot be used",
    "gelu(accum, approximate='fast')": 'gelu has no approximation "fast"; use one of',
    "clamp(accum)": "clamp needs an argument min or max",
    "accum.to('complex64')": '"complex64" is not a supported element type',
    "accum.to()": "to needs a dtype",
    "(lambda x: x)(accum)": "functions are called by name",
    "torch.fmax(accum, 0.0)": "unknown operation 'fmax'",
    "torch.equal(accum, 0)": "unknown operation 'equal'",
    "torch.amin(accum, -1)": "amin along a dimension cannot be fused; use sum(x, dim)",
    "accum.mean(dim=-1)": "mean along a dimension cannot be fused",
    "sum(accum, 3)": "sum along dimensions [3]: dimensions range from -3 to 2",
    "sum(accum, 0.5)": "the dimension of sum must be an integer",
    "sum(accum, (0, accum))": "a tuple or list holds dimensions, which are integers",
    "sum(accum, -1, 2)": "sum has 1 arguments too many",
    "sum(accum, -1) + 1": "can only be returned; it cannot be an operand of another",
    "relu(torch.amax(accum, dim=1))": "a reduction along a dimension can only be returned",
    "max(sum(accum, 0), 1)": "a reduction along a dimension can only be returned",
    "clamp(accum, [1])": "[1] is not a value that clamp accepts",
    "(x := accum)": ":= cannot be used",
    "__import__('os').system('true')": "",
    "+".join(["accum"] * 900): "nested too deeply",
}


@pytest.mark.parametrize("expression", REFUSED, ids=lambda text: text[:40])
def test_refused_expressions_name_the_line(expression):
    source = f"def f(accum):\n    D = {expression}\n    return D"
    with pytest.raises(ValueError) as error:
        fusion.trace(source)
    assert REFUSED[expression] in str(error.value)
    assert f"(line 2: `D = {expression}`)" in str(error.value)


STATEMENTS = {
    "def f(x): return x": (
        "accum must be an input to the epilogue function (line 1: `def f(x): return x`)"
    ),
    "def f(x, accum):\n    D = x\n    return D": (
        "accum must be the first input to the epilogue function; the first is 'x'"
    ),
    "def f(accum):\n    E = accum\n    return E": (
        "Output node D is not found in the epilogue function (line 3"
    ),
    "def f(accum):\n    t = accum\n    t = t\n    return D": (
        "Variable 't' cannot be defined twice. (line 3: `t = t`)"
    ),
    "def f(accum):\n    accum += 1\n    return D": "Variable 'accum' cannot be defined twice.",
    "def f(accum, C):\n    C = accum\n    return D": "Variable 'C' cannot be defined twice.",
    "def f(accum):\n    D: float\n    return D": "'D' is declared without a value",
    "def f(accum):\n    D = E = accum\n    return D": "assigns one name",
    "def f(accum):\n    D, E = accum\n    return D": "only plain names can be assigned",
    "def f(accum):\n    D[0] = accum\n    return D": "only plain names can be assigned",
    "def f(accum):\n    for i in x: pass\n    return D": (
        "a loop cannot be used in an epilogue function"
    ),
    "def f(accum):\n    if accum: pass\n    return D": "an if statement cannot be used",
    "def f(accum):\n    import os\n    return D": "an import cannot be used",
    "def f(accum):\n    print(accum)\n    return D": "Python's Expr cannot be used",
    "def f(accum):\n    return accum\n    return D": "has one return, at its end (line 2",
    "def f(accum):\n    D = accum": "ends with a return of its output names",
    "def f(accum):\n    return accum * 2": "returns names, not expressions",
    "def f(accum):\n    D = sum(accum, -1)\n    return D": (
        "D is the main output and has the shape of the product"
    ),
    "def f(accum):\n    return": "returns names, not expressions",
    "def f(accum):\n    D = accum\n    return D, D": "'D' is returned twice",
    "def f(accum):\n    D = accum\n    return D, E": "unknown name 'E'",
    "def f(accum, *more):\n    D = accum\n    return D": "* and ** cannot be used",
    "def f(accum, alpha=1):\n    D = accum\n    return D": "cannot have defaults",
    "D = accum": "one function definition, but its source holds 0",
    "def f(accum): return D\ndef g(accum): return D": (
        "one function definition, but its source holds 2"
    ),
}


@pytest.mark.parametrize("source", STATEMENTS, ids=lambda text: STATEMENTS[text][:40])
def test_refused_functions(source):
    with pytest.raises(ValueError, match=re.escape(STATEMENTS[source])):
        fusion.trace(source)


def test_errors_name_the_line_in_the_users_file():
    def function(accum):
        D = torch.cumsum(accum)  # this very line
        return D

    line = function.__code__.co_firstlineno + 1
    with pytest.raises(
        ValueError,
        match=rf"unknown operation 'cumsum'.*{re.escape(__file__)}, line {line}: `D = torch.c",
    ):
        fusion.trace(function)


def test_source_that_is_not_to_be_had_and_what_is_no_function():
    with pytest.raises(SyntaxError) as error:
        fusion.trace("def f(accum):\n    D = accum +\n    return D")
    assert error.value.lineno == 2
    made = {}
    exec("def f(accum):\n    D = accum\n    return D", made)
    with pytest.raises(ValueError, match="pass the source as a string"):
        fusion.trace(made["f"])
    with pytest.raises(TypeError, match="epilogue_fn is a int"):
        fusion.trace(3)
    with pytest.raises(TypeError, match="epilogue_fn is a partial"):
        fusion.trace(functools.partial(linear, alpha=1))
    with pytest.raises(ValueError, match="one function definition"):
        fusion.trace(lambda accum: accum)
    with pytest.raises(ValueError, match=r"nested too deeply"):
        fusion.trace("def f(accum):\n    D = " + "+".join(["accum"] * 5000) + "\n    return D")
    with pytest.raises(ValueError, match=r"decorators cannot be used .*line 1: `@twice`"):
        fusion.trace("@twice\ndef f(accum):\n    D = accum\n    return D")


def test_source_that_changed_since_is_not_mistaken_for_the_function(tmp_path):
    file = tmp_path / "epilogue_module.py"
    before = "def f(accum, alpha):\n    D = accum * alpha\n    return D\n"
    changes = [("f(", "g("), ("alpha", "beta"), ("*", "-"), ("accum * ", "2 * accum * ")]
    for change in (*changes, ("def f", "\n\ndef f"), ("return", "(")):
        after = before.replace(*change)
        file.write_text(after)
        names = {}
        exec(compile(before, str(file), "exec"), names)
        with pytest.raises(ValueError, match=r"differs from the current text of "):
            fusion.trace(names["f"])
    file.write_text(before + "\n\ndef another():\n    pass\n")
    assert str(fusion.trace(names["f"])) == "D = (accum * alpha)"


# Names resolve as in a call of the function.


def defined(source, **names):
    """The function that a notebook cell defines, compiled one statement at a time like IPython."""
    file = f"<cell {len(linecache.cache)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    for statement in ast.parse(source).body:
        exec(compile(ast.Module([statement], []), file, "exec"), names)
    return names["f"]


def hundredfold(x):
    return x * 100


@functools.wraps(F.gelu)
def disguised(x):
    return F.gelu(x) * 100


@pytest.mark.parametrize(
    "names, expression",
    [
        ({"gelu": hundredfold}, "gelu(accum)"),
        ({"gelu": disguised}, "gelu(accum)"),
        ({"relu": functools.partial(torch.relu)}, "relu(accum)"),
        ({"F": types.SimpleNamespace(relu=hundredfold)}, "F.relu(accum)"),
        ({"F": types.SimpleNamespace(relu=hundredfold)}, "accum + F.relu(accum)"),
        ({"torch": types.SimpleNamespace(exp=hundredfold)}, "torch.exp(accum)"),
        ({"where": torch.tensor(1)}, "where(accum)"),
        ({"__builtins__": vars(builtins) | {"sigmoid": hundredfold}}, "sigmoid(accum)"),
    ],
)
def test_a_function_of_the_users_own_is_not_mistaken_for_torchs(names, expression):
    function = defined(f"def f(accum):\n    D = {expression}\n    return D\n", **names)
    message = r"an epilogue function is translated, not called.*line 2: `D = "
    with pytest.raises(ValueError, match=message) as error:
        fusion.trace(function)
    words = ("gelu", "relu", "exp", "where", "sigmoid")
    assert next(word for word in words if word in expression) in str(error.value)


@pytest.mark.parametrize(
    "names, expression, meant",
    [
        ({"act": torch.sigmoid}, "act(accum)", "sigmoid(accum)"),
        ({"sigmoid": torch.relu}, "sigmoid(accum)", "maximum(accum, 0)"),
        ({"ops": types.SimpleNamespace(act=F.silu)}, "ops.act(accum)", "silu(accum)"),
        ({"m": math}, "m.exp(accum) + m.pi", "(exp(accum) + 3.141592653589793)"),
        ({"largest": fusion.max}, "largest(accum, 0.5)", "maximum(accum, 0.5)"),
        ({"half": torch.bfloat16}, "accum.to(half)", "bfloat16(accum)"),
        ({"narrow": torch.float16}, "accum.to(narrow)", "float16(accum)"),
        (
            {},
            "relu(accum) + torch.exp(accum) + F.silu(accum)",
            "((maximum(accum, 0) + exp(accum)) + silu(accum))",
        ),
        ({"abs": numpy.abs}, "abs(accum)", "abs(accum)"),
    ],
)
def test_names_mean_what_they_mean_to_the_function(names, expression, meant):
    function = defined(
        f"import torch\n\n\ndef f(accum):\n    D = {expression}\n    return D\n", **names
    )
    assert str(fusion.trace(function)).replace("absolute", "abs") == f"D = {meant}"


@pytest.mark.parametrize("module, name", [("math", "pi"), ("np", "e")])
def test_constants_of_the_users_own_are_unknown(module, name):
    source = f"def f(accum):\n    D = accum * {module}.{name}\n    return D\n"
    with pytest.raises(ValueError, match="unknown name"):
        fusion.trace(defined(source, **{module: types.SimpleNamespace(**{name: 3})}))


def test_names_that_come_to_mean_something_else():
    def behind(activation):
        def function(accum):
            D = activation(accum)
            return D

        return function

    relu, silu = behind(torch.relu), behind(F.silu)
    texts = [str(fusion.trace(f)) for f in (relu, silu)]
    assert texts == ["D = maximum(accum, 0)", "D = silu(accum)"]
    assert fusion.trace(behind(torch.relu)) is fusion.trace(relu), "parsed once"
    assert fusion.trace(silu) is fusion.trace(silu), "parsed once"
    with pytest.raises(ValueError, match="hundredfold"):
        fusion.trace(behind(hundredfold))
    function = defined("def f(accum):\n    D = gelu(accum)\n    return D\n")
    assert str(fusion.trace(function)) == "D = gelu(accum)"
    function.__globals__["gelu"] = hundredfold
    with pytest.raises(ValueError, match="hundredfold"):
        fusion.trace(function)


def test_values_are_not_called():
    for expression in ("relu(accum)", "accum + relu(relu)"):
        with pytest.raises(ValueError, match="'relu' is a value here and cannot be called"):
            fusion.trace(f"def f(accum, relu):\n    D = {expression}\n    return D")


def test_what_a_decorator_made_is_refused():
    def doubled(function):
        @functools.wraps(function)
        def wrapper(*values):
            return function(*values) * 2

        return wrapper

    @doubled
    def function(accum):
        D = accum + 0
        return D

    with pytest.raises(
        ValueError,
        match=r"result of a decorator .* pass the undecorated function, function.__wrapped__",
    ):
        fusion.trace(function)
    assert str(fusion.trace(function.__wrapped__)) == "D = (accum + 0)"


class Holder:
    @staticmethod
    def epilogue(accum, C):
        """A docstring
        of two lines."""
        D: float = torch.relu(accum) + C
        return D


def test_functions_wherever_they_are_defined(tmp_path):
    assert str(fusion.trace(Holder.epilogue)) == "D = (maximum(accum, 0) + C)"
    # The names that a module imports, and its __future__, show in the code of its functions.
    function = "    def f(accum):\n        D: float = torch.exp(accum) + scale(accum)\n"
    imports, future = "import torch", "from __future__ import annotations"
    for head in (imports, f"{future}\n{imports}", "torch = __import__('torch')"):
        file = tmp_path / f"module{len(head)}.py"
        file.write_text(f"{head}\nscale = torch.sigmoid\nif True:\n{function}        return D\n")
        names = {}
        exec(compile(file.read_text(), str(file), "exec"), names)
        assert str(fusion.trace(names["f"])) == "D = (exp(accum) + sigmoid(accum))"
