"""The stub of NVIDIA's cutlass: who finds it, and what it says."""

import textwrap
from pathlib import Path

import cutlass
import nvidia_cutlass_stub
import pytest
import torch
from nvidia_cutlass_stub.hooks import is_switched_off
from nvidia_cutlass_stub.releases import NVGEMM
from support.helpers import run_python

if type(cutlass.__loader__).__module__ != "nvidia_cutlass_stub":
    pytest.skip(f"{cutlass.__file__} is installed", allow_module_level=True)

#: PyTorch whose NVGEMM backend imports cutlass_api.
is_served = pytest.mark.skipif(
    not NVGEMM.holds(torch.__version__), reason=f"torch {torch.__version__} has no use for it"
)


def test_the_stub_is_found_as_torch_looks_for_it():
    code = """
        import importlib.util
        assert importlib.util.find_spec("cutlass_api") is not None
        import cutlass_api
        spec = importlib.util.find_spec("cutlass")
        import cutlass
        print(spec.name, cutlass.Float32.__name__, cutlass.Float32.__module__)
    """
    assert run_python(code) == "cutlass Float32 cutlass\n"


def test_classes_that_torch_names_are_there():
    pytest.importorskip("torch._inductor.codegen.nv_universal_gemm")
    for name in (
        "Float32",
        "Float16",
        "BFloat16",
        "Int8",
        "Int32",
        "Float8E4M3FN",
        "Float8E5M2",
        "Float64",
    ):
        assert isinstance(getattr(cutlass, name), type)


@pytest.mark.parametrize("first", ["cutlass", "cutlass_api", "torch"])
def test_a_real_cutlass_is_not_shadowed(tmp_path, autoload, first):
    package = tmp_path / "cutlass"
    package.mkdir()
    (package / "__init__.py").write_text("real = True\nclass Float32: pass\n")
    (package / "cute.py").write_text("real = True\n")
    code = f"""
        import sys
        sys.path.insert(0, sys.argv[1])
        import {first}
        import cutlass, cutlass_api
        from cutlass import cute
        print(cutlass.real, cute.real, cutlass_api.DType(cutlass.Float32).name)
    """
    assert run_python(code, tmp_path, **autoload) == "True True float32\n"


@pytest.mark.parametrize(
    "statement",
    [
        "from cutlass import cute",
        "import cutlass.cute as cute",
        "from cutlass.cute.runtime import from_dlpack",
    ],
)
def test_what_the_stub_lacks_is_named_with_what_to_install(statement):
    code = f"""
        import importlib.util
        import cutlass_api
        try:
            {statement}
        except ModuleNotFoundError as error:
            print(error)
        import cutlass
        assert not hasattr(cutlass, "cute") and importlib.util.find_spec("cutlass.cute") is None
    """
    message = run_python(code)
    assert "No module named 'cutlass.cute'" in message
    assert "pip install nvidia-cutlass-dsl" in message


@pytest.mark.parametrize(
    "statement",
    ["import torch, cutlass.operators", "import cutlass_api; from cutlass import operators"],
)
def test_operators_have_two_names_and_one_module(autoload, statement):
    code = f"""
        import sys
        {statement}
        import cutlass.operators as ops
        import cutlass.operators.arguments.gemm as gemm, cutlass.operators.utils.tensor
        import cutlass_api.operators.arguments.gemm as own
        from cutlass.operators.metadata import OperatorMetadata
        assert ops is sys.modules["cutlass_api.operators"] is sys.modules["cutlass.operators"]
        assert gemm is own and ops.__spec__.name == "cutlass_api.operators"
        assert gemm.GemmArguments is ops.GemmArguments
        files = [getattr(module, "__file__", None) for module in set(sys.modules.values())]
        assert files.count(own.__file__) == 1
    """
    run_python(code, **autoload)


def test_operators_are_found_as_torch_looks_for_them(autoload):
    code = """
        import importlib.util, sys
        import torch
        assert importlib.util.find_spec("cutlass.operators") is not None
        assert importlib.util.find_spec("cutlass.operators.nothing") is None
        assert importlib.util.find_spec("cutlass.cute") is None
        try:
            import cutlass.operators.nothing
        except ModuleNotFoundError as error:
            print(error)
    """
    assert "No module named 'cutlass.operators.nothing'" in run_python(code, **autoload)


def test_a_probe_does_not_import_the_package(autoload):
    code = """
        import importlib.util, sys
        import torch
        assert importlib.util.find_spec("cutlass.operators") is not None
        assert "cutlass_api" not in sys.modules
    """
    run_python(code, **autoload)


@pytest.mark.parametrize("value", ["0", "false", "no", "OFF", "1", "", None])
def test_words_that_switch_off(monkeypatch, value):
    monkeypatch.delenv("SWITCH", raising=False)
    if value is not None:
        monkeypatch.setenv("SWITCH", value)
    assert is_switched_off("SWITCH") == (value not in ("1", "", None))


@pytest.mark.parametrize("first", ["torch", "cutlass_api"])
def test_a_variable_switches_the_stand_in_off(autoload, first):
    code = f"""
        import {first}
        try:
            import cutlass
        except ModuleNotFoundError as error:
            print(error)
        import cutlass_api.operators, torch
        torch.ops.cutlass_api  # the hooks still work
        assert "cutlass_api.ops" in sys.modules
    """
    code = "import sys\n" + textwrap.dedent(code)
    assert run_python(code, CUTLASS_API_STAND_IN="0", **autoload) == "No module named 'cutlass'\n"


@pytest.mark.parametrize(
    "first, has_operators", [("cutlass_api", True), ("torch", False), ("cutlass", True)]
)
def test_nvidia_s_operators_are_not_shadowed(tmp_path, autoload, has_operators, first):
    package = tmp_path / "cutlass"
    package.mkdir()
    (package / "__init__.py").write_text("")
    if has_operators:
        (package / "operators.py").write_text("real = True\n")
    code = f"""
        import sys
        sys.path.insert(0, sys.argv[1])
        import {first}
        import torch, cutlass_api.operators
        try:
            import cutlass.operators
            print(cutlass.operators.real)
        except ModuleNotFoundError as error:
            print(error)
    """
    expected = "True" if has_operators else "No module named 'cutlass.operators'"
    assert run_python(code, tmp_path, **autoload) == f"{expected}\n"


def test_operators_without_the_dsl_are_not_shadowed(tmp_path, autoload):
    """NVIDIA's wheel of operators alone: a namespace package."""
    (tmp_path / "cutlass" / "operators").mkdir(parents=True)
    (tmp_path / "cutlass" / "operators" / "__init__.py").write_text("real = True\n")
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import torch, cutlass_api
        import cutlass.operators
        print(cutlass.operators.real, hasattr(cutlass, "Float32"))
    """
    assert run_python(code, tmp_path, **autoload) == "True False\n"


#: What Python executes when it starts: each line but comments.
STARTUP = Path(nvidia_cutlass_stub.__file__).parents[1] / "rutlass.data/platlib/rutlass_cutlass.pth"
needs_checkout = pytest.mark.skipif(not STARTUP.exists(), reason="the package is installed")


def started(code, *arguments, **environment):
    """The output of code in a process that starts as one with the package installed."""
    (line,) = [line for line in STARTUP.read_text().splitlines() if not line.startswith("#")]
    return run_python(f"{line}\n{textwrap.dedent(code)}", *arguments, **environment)


@needs_checkout
@pytest.mark.parametrize("then", ["cutlass_api", "torch"])
def test_operators_can_be_imported_first(then):
    code = f"""
        import cutlass.operators as found
        from cutlass.operators import GemmArguments
        print("torch" in sys.modules, found.__name__)
        import {then}, cutlass_api.operators
        assert found is cutlass_api.operators
        try:
            import cutlass.cute
        except ModuleNotFoundError as error:
            print("stand-in" in str(error))
    """
    assert started(code) == "False cutlass_api.operators\nTrue\n"


@needs_checkout
def test_a_probe_before_any_import_finds_nothing(tmp_path):
    code = """
        from importlib import util
        before = list(sys.meta_path)
        print(util.find_spec("cutlass"), sys.meta_path == before)
        print([each.find_spec("cutlass", None) for each in sys.meta_path[-1:]])
    """
    assert started(code) == "None True\n[None]\n"
    (tmp_path / "cutlass.py").write_text("real = True\n")
    real = "sys.path.insert(0, sys.argv[1])\nimport cutlass\nprint(cutlass.real)"
    assert started(real, tmp_path) == "True\n"
    off = """
        try:
            import cutlass.operators
        except ModuleNotFoundError as error:
            print(error.name)
    """
    assert started(off, CUTLASS_API_STAND_IN="0") == "cutlass\n"


@is_served
def test_torch_looks_again_after_the_package_is_imported():
    """torch keeps the answer of a compilation that came first."""
    code = """
        from torch._inductor.utils import ensure_cute_available
        assert not ensure_cute_available()
        import cutlass_api
        assert ensure_cute_available()
    """
    run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")


@is_served
def test_a_process_that_imports_only_torch_finds_the_stub(autoload):
    code = """
        import importlib.util, sys
        import torch
        assert "nvidia_cutlass_stub" in sys.modules and "cutlass_api" not in sys.modules
        # Other libraries find NVIDIA's package or none.
        assert importlib.util.find_spec("cutlass") is None
        from torch._inductor.utils import ensure_cute_available, ensure_nv_universal_gemm_available
        assert ensure_cute_available()
        assert "cutlass" not in sys.modules and "cutlass_api" not in sys.modules
        assert ensure_nv_universal_gemm_available()  # imports cutlass_api in some versions
        import cutlass
        import cutlass_api
        assert cutlass_api.DType(cutlass.Float32) == "float32"
    """
    run_python(code, **autoload)


@pytest.mark.skipif(NVGEMM.holds(torch.__version__), reason="NVGEMM imports cutlass_api")
def test_later_torch_does_not_take_the_stub_for_the_cute_dsl(autoload):
    code = """
        import torch, cutlass_api
        import torch._inductor.utils as utils
        from torch._inductor.utils import ensure_cute_available
        assert not ensure_cute_available() and utils.ensure_nv_universal_gemm_available()
        import cutlass
        assert cutlass_api.DType(cutlass.Float32) == "float32"
        ensure_cute_available.cache_clear()
        assert not ensure_cute_available()
    """
    run_python(code, **autoload)


@pytest.mark.skipif(NVGEMM.holds(torch.__version__), reason="NVGEMM imports cutlass_api")
@pytest.mark.parametrize("autoloads", ["1", "0"])
def test_flexgemm_does_not_take_the_stand_in_for_the_cute_dsl(autoload, autoloads):
    """The functions are replaced before and after their modules are imported."""
    pytest.importorskip("torch._inductor.kernel.flex_gemm.lowering")
    code = """
        import torch
        import torch._inductor.kernel.flex_gemm.lowering as flex
        from torch._inductor.fx_passes import post_grad
        import cutlass_api
        import cutlass.operators
        if hasattr(post_grad, "ensure_cute_available"):  # from PyTorch 2.15 on
            post_grad.ensure_cute_available.cache_clear()
            assert not post_grad.ensure_cute_available() and not flex.has_flex_gemm_quack()
    """
    run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoloads, **autoload)


def test_the_entry_point_costs_nothing(autoload):
    """Neither the package's core nor a module that torch does not import."""
    code = """
        import sys
        import torch
        ours = {"nvidia_cutlass_stub"}
        parts = ("hooks", "nvgemm", "probes", "releases")
        ours |= {f"nvidia_cutlass_stub.{name}" for name in parts}
        before = set(sys.modules) - ours
        for name in ours:
            sys.modules.pop(name)
        import nvidia_cutlass_stub
        nvidia_cutlass_stub.install()
        finders = [finder.__module__ for finder in sys.meta_path]
        assert finders.count("nvidia_cutlass_stub.hooks") == 1, finders
        assert set(sys.modules) - before == ours
    """
    run_python(code, **autoload)
