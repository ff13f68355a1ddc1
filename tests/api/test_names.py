"""The names of the package: `dir`, `__all__`, `import *`, and misspelt ones."""

import inspect
import re

import cutlass_api
import pytest
from support import ROOT
from support.helpers import run_python

#: What `import *` leaves out: names of packages, which it would replace.
APART = {"jax", "transformers"}


def public(names):
    return {name for name in names if name[:2] != "__"} - APART


def test_names_are_those_of_the_reference():
    """Each object of docs/api, and nothing that the package only uses."""
    pages = "\n".join(path.read_text() for path in (ROOT / "docs/api").glob("*.md"))
    described = set(re.findall(r"^::: cutlass_api\.(\w+)", pages, re.MULTILINE))
    assert described - APART <= public(dir(cutlass_api)) == public(cutlass_api.__all__)
    assert {*dir(cutlass_api)} >= APART and not APART & {*cutlass_api.__all__}
    modules = {name for name in public(dir(cutlass_api)) if is_module(name)}
    assert modules <= described
    operators = {name for name in cutlass_api.ops.__all__ if name.islower()}
    assert operators <= public(dir(cutlass_api))


def is_module(name):
    return inspect.ismodule(getattr(cutlass_api, name))


def test_star_import_with_torch():
    script = """
        from cutlass_api import *
        import cutlass_api
        print(sorted({*cutlass_api.__all__} - {*globals()}), linear is cutlass_api.ops.linear)
    """
    assert run_python(script) == "[] True\n"


def test_star_import_without_torch():
    script = """
        import sys
        sys.modules["torch"] = None
        from cutlass_api import *
        names = ("linear", "quantize", "inductor", "weights", "autotune", "explain", "profiling")
        print([name for name in names if name in globals()])
    """
    assert run_python(script) == "['autotune', 'explain', 'profiling']\n"


def test_weights_imported_before_torch():
    run_python("import cutlass_api.weights", flags=("-W", "error"))


@pytest.mark.parametrize("name", ["lineer", "tunning"])
def test_names_that_are_none(name):
    with pytest.raises(AttributeError, match=f"'cutlass_api' has no attribute '{name}'") as caught:
        getattr(cutlass_api, name)
    # By which Python suggests a similar name.
    assert (caught.value.name, caught.value.obj) == (name, cutlass_api)


@pytest.mark.parametrize("face", [cutlass_api, cutlass_api.operators], ids=["core", "operators"])
def test_misspelt_options_raise(face):
    options = face.config.GlobalOptions()
    with pytest.raises(AttributeError, match=r"no option launch_graph; its options are .*_graphs"):
        options.launch_graph = False
