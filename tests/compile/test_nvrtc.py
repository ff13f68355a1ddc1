"""Where NVRTC is found, and compilation without it."""

import re
import sysconfig
import textwrap
from pathlib import Path

import cutlass_api
import pytest
import stand_in
from support.compiling import without_packages
from support.helpers import run_python

#: Prints the error of a compilation, or the path of NVRTC.
COMPILE = """
    import cutlass_api
    kernel = cutlass_api.get_kernels(cc=90)[0]
    try:
        kernel.compile(cutlass_api.arguments.RuntimeArguments(), cc=90)
    except RuntimeError as error:
        print(error)
    else:
        print("FOUND", cutlass_api._core.nvrtc_info()[0])
"""


# Without NVRTC.


def test_one_clear_error_where_nvrtc_is_missing(tmp_path):
    environment = without_packages(tmp_path) | {"CUTLASS_API_CACHE_DIR": str(tmp_path / "cache")}
    said = run_python(COMPILE, **environment)
    if said.startswith("FOUND /usr"):
        pytest.skip(f"this system has NVRTC of its own: {said}")
    # The error lists the libraries, the searched places and the package to install.
    for word in ("NVRTC", "libnvrtc.so.13", "sys.path", "nvidia", "torch/lib", "CUDA_HOME"):
        assert word in said
    assert "pip install" in said
    assert "nvidia-cuda-nvrtc" in said
    assert "Traceback" not in said


def test_nvrtc_installed_meanwhile_is_found(tmp_path):
    code = """
        import sys
        import cutlass_api
        kernel, args = cutlass_api.get_kernels(cc=90)[0], cutlass_api.arguments.RuntimeArguments()
        try:
            kernel.compile(args, cc=90)
        except RuntimeError:
            pass
        sys.path.append(sys.argv[1])
        print(kernel.compile(args, cc=90).compiled_obj.architecture)
    """
    packages = sysconfig.get_paths()["purelib"]
    assert run_python(code, packages, **without_packages(tmp_path)) == "sm_90a\n"


FOLDERS = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "torch/lib"]


@pytest.mark.parametrize("place", [*FOLDERS, "loaded", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH"])
def test_nvrtc_is_found_wherever_it_lies(tmp_path, place):
    real = Path(cutlass_api._core.nvrtc_info()[0]).resolve()
    environment = without_packages(tmp_path) | {"CUTLASS_API_CACHE_DIR": str(tmp_path / "cache")}
    folder, found = tmp_path / place, tmp_path / place / real.name
    if place in ("CUDA_HOME", "CUDA_PATH"):
        environment[place], folder = str(folder), folder / "lib64"
        found = folder / real.name
    elif place == "LD_LIBRARY_PATH":
        environment[place], found = str(folder), Path(real.name)
    elif place == "loaded":
        found = real
    if place != "loaded":
        folder.mkdir(parents=True)
        for library in real.parent.glob("libnvrtc*.so*"):
            if ".alt" not in library.name:
                (folder / library.name).symlink_to(library)
    load = "import ctypes, sys\nloaded = sys.argv[1:] and ctypes.CDLL(sys.argv[1])\n"
    libraries = [real] if place == "loaded" else []
    said = run_python(load + textwrap.dedent(COMPILE), *libraries, **environment)
    assert said == f"FOUND {found}\n"


@pytest.mark.parametrize("older, newer", [("12.4", "13.0"), ("11.8", "12.9")])
def test_of_several_packages_the_newest_is_taken(tmp_path, older, newer):
    environment = without_packages(tmp_path)
    for folder, version in {"cuda_nvrtc": older, "cu13": newer}.items():
        lib = tmp_path / "nvidia" / folder / "lib"
        lib.mkdir(parents=True)
        (lib / f"libnvrtc.so.{version.split('.')[0]}").touch()
        (lib / f"libnvrtc-builtins.so.{version}").touch()
    said = run_python("import cutlass_api; print(*cutlass_api._core.nvrtc_info())", **environment)
    assert "nvidia/cu13/lib/libnvrtc.so" in said
    assert str(tuple(map(int, newer.split(".")))) in said


def test_what_the_loader_says_is_passed_on(tmp_path):
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libnvrtc.so.13").write_text("no library")
    code = (
        "import cutlass_api\ntry: print(cutlass_api._core.nvrtc_info())\n"
        "except RuntimeError as error: print(error)"
    )
    said = run_python(code, **without_packages(tmp_path) | {"CUDA_HOME": str(tmp_path)})
    if "libnvrtc.so.13: " not in said:
        pytest.skip(f"this system has NVRTC of its own: {said}")
    assert "lib64/libnvrtc.so.13: file too short" in said or "invalid ELF header" in said


def test_nvrtc_with_the_builtins_of_another_is_refused(tmp_path):
    real = Path(cutlass_api._core.nvrtc_info()[0]).resolve()
    folder = tmp_path / "lib64"
    folder.mkdir()
    (folder / real.name).symlink_to(real)
    (folder / "libnvrtc-builtins.so.99.7").touch()
    environment = without_packages(tmp_path) | {"CUDA_HOME": str(tmp_path)}
    said = run_python(COMPILE, CUTLASS_API_CACHE_DIR=str(tmp_path / "cache"), **environment)
    assert f"{folder / real.name} is NVRTC" in said
    assert "builtins beside it are 99.7; reinstall NVRTC" in said


def test_an_epilogue_that_nvrtc_refuses(tmp_path):
    folder = tmp_path / "lib64"
    folder.mkdir()
    stand_in.build_nvrtc(Path(cutlass_api._core.nvrtc_info()[0]).resolve(), folder)
    code = """
        import sys
        import cutlass_api, numpy
        from cutlass_api.arguments import EpilogueArguments, GemmArguments
        a = numpy.ones((64, 64), numpy.float16)
        plain = GemmArguments(a, a, a.copy(), "float32")
        out = a.copy()
        epilogue = EpilogueArguments("def f(accum):\\n    D = accum * 2\\n    return D", D=out)
        args = GemmArguments(a, a, out, "float32", epilogue)
        kernel = cutlass_api.get_kernels(args, cc=90)[0]
        sys.path.clear()  # and with it the installed NVRTC
        for _ in range(2):
            try:
                kernel.compile(args, cc=90)
            except RuntimeError as error:
                print(kernel.metadata.kernel_name)
                print(error)
        assert cutlass_api.get_kernels(plain, cc=90)[0].compile(plain, cc=90).compiled_obj.log == ""
    """
    environment = {"CUDA_HOME": str(tmp_path), "CUTLASS_API_CACHE_DIR": str(tmp_path / "cache")}
    said = run_python(code, **environment)
    name, first, *log = said.splitlines()
    assert first == f"NVRTC could not compile kernel {name} for sm_90a:"
    assert re.match(r'rutlass.cu\(\d+\): error: identifier "undeclared_type" is undefined', log[0])
    assert said.count(first) == 2, "what failed is not kept"


def test_nvrtc_info_has_its_path_and_version():
    path, version = cutlass_api._core.nvrtc_info()
    assert Path(path).name.startswith("libnvrtc.so")
    assert version >= (12, 0)
