"""When the kernels are added to NVIDIA's `cutlass.operators`, which a small package stands for."""

import os
import textwrap

import cutlass.operators
import pytest
from cutlass_api import operators as ops
from support.helpers import run_python

if cutlass.operators is not ops:
    pytest.skip(
        "NVIDIA's package is installed: test_operators_beside_nvidia.py has the tests with it",
        allow_module_level=True,
    )

#: What `cutlass_api.operators.export` imports of NVIDIA's package, and its registry.
OPERATORS = """
    import sys
    from cutlass.operators import metadata, workspace

    __version__ = "{version}"
    available_providers = {{"theirs": object}}

    class Provider:
        @staticmethod
        def register(operator_class):
            return operator_class

    class Operator:
        pass

    class GemmArguments:
        pass

    class IndexPtrGroupedGemmArguments:
        pass

    had_own = "cutlass_api" in sys.modules
"""
METADATA = """
    class GemmOperandsMetadata: pass
    class IndexPtrGroupedGemmOperandsMetadata: pass
    class BLASDesignMetadata: pass
    class EpilogueMetadata: pass
"""
WORKSPACE = "AllocationRequirement = Workspace = object"


@pytest.fixture
def theirs(tmp_path):
    """Installs the package in a version. Returns an environment in which it is found."""

    def install(version="0.3.0"):
        package = tmp_path / "cutlass" / "operators"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").write_text("")
        texts = {"__init__": OPERATORS.format(version=version), "metadata": METADATA}
        for name, text in {**texts, "workspace": WORKSPACE}.items():
            (package / f"{name}.py").write_text(textwrap.dedent(text))
        found = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(found)}

    return install


@pytest.mark.parametrize("first", ["cutlass_api", "cutlass.operators"])
def test_both_imports_add_the_provider_first(theirs, first):
    second = {"cutlass_api": "cutlass.operators"}.get(first, "cutlass_api")
    code = f"""
        import sys
        import {first}
        assert "{second}" not in sys.modules
        import {second}
        import cutlass.operators as ops
        print(*ops.available_providers, ops.had_own, ops.__file__)
    """
    names = run_python(code, **theirs()).split()
    assert names[:3] == ["rutlass", "theirs", str(first == "cutlass_api")]
    assert names[3].endswith("cutlass/operators/__init__.py")


def test_the_provider_is_first_again_after_each_call(theirs):
    code = """
        import cutlass.operators as theirs
        from cutlass_api import operators as ops
        own = theirs.available_providers.pop("rutlass")
        theirs.available_providers["rutlass"] = own
        assert ops.register() and ops.register()
        print(*theirs.available_providers, own is theirs.available_providers["rutlass"])
    """
    assert run_python(code, **theirs()) == "rutlass theirs True\n"


def test_a_variable_leaves_the_providers_as_they_are(theirs):
    code = """
        import cutlass_api, cutlass.operators as theirs
        print(*theirs.available_providers)
        print(cutlass_api.operators.register(), *theirs.available_providers)
    """
    code = "import cutlass_api.operators\n" + textwrap.dedent(code)
    printed = run_python(code, CUTLASS_API_PROVIDER="0", **theirs())
    assert printed == "theirs\nTrue rutlass theirs\n"


@pytest.mark.parametrize("version", ["0.2.0", "0.30.0", "0.4.0rc1", "1.3.0"])
def test_other_versions_are_named(theirs, version):
    code = """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import cutlass_api, cutlass.operators as theirs
        assert list(theirs.available_providers) == ["theirs"]
        print(*(each.message for each in caught), sep="\\n")
    """
    printed = run_python(code, **theirs(version))
    assert printed.startswith(f"nvidia-cutlass-operators {version} is installed")
    assert printed.count("\n") == 1 and "nvidia-cutlass-operators==0.3.*" in printed


def test_patch_releases_are_known(theirs):
    code = """
        import warnings
        warnings.simplefilter("error")
        import cutlass_api, cutlass.operators as theirs
        print(*theirs.available_providers)
    """
    assert run_python(code, **theirs("0.3.17.post1")) == "rutlass theirs\n"


def test_an_error_becomes_a_warning(theirs):
    environment = theirs()
    path = environment["PYTHONPATH"].partition(os.pathsep)[0]
    with open(f"{path}/cutlass/operators/workspace.py", "w") as file:
        file.write("")
    code = """
        import warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import cutlass_api, cutlass.operators as theirs
        print(*theirs.available_providers, *(each.message for each in caught))
    """
    printed = run_python(code, **environment)
    assert printed.startswith("theirs cutlass_api serves cutlass in part: ")
    assert "ImportError" in printed


def test_without_their_package_nothing_is_registered():
    code = """
        import warnings
        warnings.simplefilter("error")
        from cutlass_api import operators as ops
        assert not ops.register()
        import cutlass.operators
        assert cutlass.operators is ops and not ops.register()
        print(*ops.available_providers)
    """
    assert run_python(code) == "cutedsl\n"
