"""Where NVIDIA's DSL is installed, with or without its operators, nothing of it is replaced."""

import site
from importlib import metadata
from pathlib import Path

import pytest
from support.helpers import run_python

try:
    metadata.version("nvidia-cutlass-dsl")
except metadata.PackageNotFoundError:
    pytest.skip(
        "nvidia-cutlass-dsl is not installed; `make test-nvidia-operators` runs these tests",
        allow_module_level=True,
    )

#: Finds the packages of a folder as those of an environment.
START = """
    import importlib.util, site, sys
    site.addsitedir(sys.argv[1])
"""
SECONDS = 240


def run(code, folder, **environment):
    return run_python(START + code, folder, flags=["-S"], timeout=SECONDS, **environment)


@pytest.fixture(scope="module")
def installed():
    """The folder of the installed packages."""
    return Path(site.getsitepackages()[0])


@pytest.fixture(scope="module")
def without_operators(installed, tmp_path_factory):
    """A folder with the same packages but NVIDIA's operators."""
    folder = tmp_path_factory.mktemp("site-packages")
    for each in installed.iterdir():
        if each.name != "cutlass" and not each.name.startswith("nvidia_cutlass_operators"):
            (folder / each.name).symlink_to(each)
    return folder


@pytest.mark.parametrize("first", ["cutlass_api", "torch", "cutlass.operators"])
def test_nothing_is_replaced(installed, autoload, first):
    code = f"""
    import {first}
    import cutlass, cutlass.cute, cutlass.operators as theirs
    import cutlass_api
    from cutlass_api import operators as own
    assert "nvidia_cutlass_dsl" in cutlass.__file__
    assert theirs is not own and theirs.__file__ == sys.argv[1] + "/cutlass/operators/__init__.py"
    assert theirs.__spec__.name == "cutlass.operators"
    assert theirs.GemmArguments.__module__ == "cutlass.operators.arguments.gemm"
    assert own.CuTeDSLProvider is not theirs.CuTeDSLProvider
    assert list(theirs.available_providers) == ["rutlass", "cutedsl"]
    assert list(own.available_providers) == ["cutedsl"]
    from torch._inductor.utils import ensure_cute_available
    print(ensure_cute_available(), cutlass_api.DType(cutlass.Float16).name)
    """
    assert run(code, installed, **autoload) == "True float16\n"


@pytest.mark.parametrize("first", ["cutlass_api", "torch"])
def test_operators_that_are_not_installed_are_not_served(without_operators, autoload, first):
    code = f"""
    import {first}
    import cutlass, cutlass.cute
    assert "nvidia_cutlass_dsl" in cutlass.__file__
    assert importlib.util.find_spec("cutlass.operators") is None
    try:
        import cutlass.operators
    except ModuleNotFoundError as error:
        print(error)
    from cutlass_api import operators as own
    assert own.GemmArguments.__module__ == "cutlass_api.operators.arguments.gemm"
    from torch._inductor.utils import ensure_cute_available
    print(ensure_cute_available(), own.register())
    """
    printed = run(code, without_operators, **autoload)
    assert printed == "No module named 'cutlass.operators'\nTrue False\n"


def test_neither_package_imports_the_other(installed):
    code = """
    import cutlass_api.operators
    assert not [name for name in sys.modules if name.partition(".")[0] == "cutlass"]
    print("alone")
    """
    assert run(code, installed, TORCH_DEVICE_BACKEND_AUTOLOAD="0") == "alone\n"
    code = """
    import cutlass.operators
    assert "cutlass_api" not in sys.modules
    print(*cutlass.operators.available_providers)
    """
    assert run(code, installed) == "cutedsl\n"


def test_a_variable_leaves_their_providers_alone(installed):
    code = """
    import cutlass_api, cutlass.operators as theirs
    assert list(theirs.available_providers) == ["cutedsl"]
    from cutlass_api import operators as own
    print(own.register(), *theirs.available_providers)
    """
    assert run(code, installed, CUTLASS_API_PROVIDER="0") == "True rutlass cutedsl\n"


def test_the_stand_in_is_not_needed(installed):
    code = """
    import cutlass_api, cutlass.operators as theirs
    print(*theirs.available_providers)
    """
    assert run(code, installed, CUTLASS_API_STAND_IN="0") == "rutlass cutedsl\n"
