"""What the package's Python code must not do: load data that can run code (SECURITY.md)."""

import ast
from pathlib import Path

import cutlass_api
import pytest

PACKAGE = Path(cutlass_api.__file__).parent
#: Modules whose files run code when they are loaded.
PICKLES = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}


def unsafe_loads(text):
    """Where source imports a module of PICKLES, calls `torch.load` other than with
    `weights_only=True`, or permits NumPy to unpickle: pairs of a line and what is there."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Call):
            options = {each.arg: ast.unparse(each.value) for each in node.keywords}
            function = ast.unparse(node.func)
            if function.split(".")[-1] in ("import_module", "__import__") and node.args:
                names = [ast.unparse(node.args[0]).strip("'\"")]
            if function == "torch.load" and options.get("weights_only") != "True":
                found.append((node.lineno, function))
            if options.get("allow_pickle", "False") != "False":
                found.append((node.lineno, "allow_pickle"))
        found += [(node.lineno, name) for name in names if name.split(".")[0] in PICKLES]
    return found


def test_no_file_of_the_package_is_unpickled():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 50
    found = {str(file): unsafe_loads(file.read_text()) for file in files}
    assert {file: loads for file, loads in found.items() if loads} == {}


@pytest.mark.parametrize(
    "source, what",
    [
        ("import os, pickle", "pickle"),
        ("def f():\n    from marshal import loads", "marshal"),
        ("from six.moves import cPickle", "cPickle"),
        ("import importlib\nimportlib.import_module('shelve')", "shelve"),
        ("torch.load(file)", "torch.load"),
        ("torch.load(file, weights_only=safe)", "torch.load"),
        ("numpy.load(file, allow_pickle=True)", "allow_pickle"),
    ],
)
def test_loads_that_run_code_are_found(source, what):
    assert unsafe_loads(source) == [(source.count("\n") + 1, what)]


def test_other_loads_are_not_found():
    assert unsafe_loads("import json\ntorch.load(f, weights_only=True)\nnumpy.load(f)") == []
