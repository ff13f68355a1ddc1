"""The stub of NVIDIA's cutlass: who finds it, and what it says."""

import cutlass
import pytest
import torch
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
        from torch._inductor.utils import ensure_cute_available
        assert not ensure_cute_available()
        import cutlass
        assert cutlass_api.DType(cutlass.Float32) == "float32"
    """
    run_python(code, **autoload)


def test_the_entry_point_costs_nothing(autoload):
    """Neither the package's core nor a module that torch does not import."""
    code = """
        import sys
        import torch
        ours = {"nvidia_cutlass_stub"}
        ours |= {f"nvidia_cutlass_stub.{name}" for name in ("hooks", "probes", "releases")}
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
