"""The types in _core.pyi against the extension, the package's own types, and docstrings."""

import ast
import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path

import cutlass_api
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import stub_docstrings

PACKAGE = Path(cutlass_api.__file__).parent
#: mypy's settings, by which it does not read the sources of torch, and the cache that lints fill.
SETTINGS = Path(__file__).parents[2] / "pyproject.toml"
CACHE = SETTINGS.parent / ".mypy_cache"
pytest.importorskip("mypy")


def test_the_stub_agrees_with_the_extension(tmp_path):
    # Outside the repository, so that the installed package is checked; mypy's cache goes there too.
    command = [sys.executable, "-m", "mypy.stubtest", "cutlass_api._core"]
    command += ["--mypy-config-file", str(SETTINGS)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_users_program_is_checked_against_the_types(tmp_path):
    program = """
        import cutlass_api
        from cutlass_api import *
        from cutlass_api.arguments import GemmArguments

        def run(a: cutlass_api.typing.TensorLike) -> int:
            args = GemmArguments(a, a, a, accumulator_type="float32")
            kernels: list[cutlass_api.Kernel] = cutlass_api.get_kernels(
                args, lambda m: m.min_cc == 80 and m.design.tile_shape[0] == 64, cc=90
            )
            artifact: cutlass_api.artifact.CompiledArtifact = kernels[0].compile(args)
            kernels[0].run(args, artifact, stream=0)
            status: cutlass_api.Status = kernels[0].supports(args)
            cutlass_api.inductor.enable()
            wrong: str = kernels[0].get_workspace_size(args)  # error: variable has type "str"
            cutlass_api.lineer(a)  # error: Module has no attribute "lineer"
            GlobalOptions = cutlass_api.config.GlobalOptions
            GlobalOptions().launch_graph = False  # error: "GlobalOptions" has no attribute
            autotune(args).winer  # error: "TuningResult" has no attribute "winer"
            return len(args.A.shape) if status else kernels[0].get_workspace_size(args)

        class Array:
            def __dlpack__(self, *args: object, **kwargs: object) -> object: ...
            def __dlpack_device__(self) -> object: ...

        product: str = cutlass_api.matmul(Array(), Array())  # error: expression has type "Array"
        """
    program = inspect.cleandoc(program)
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--config-file", str(SETTINGS), "program.py"]
    command += ["--cache-dir", str(CACHE)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    errors = {}
    for line in filter(lambda line: ": error:" in line, done.stdout.splitlines()):
        place, _, error = line.partition(": error: ")
        errors[int(place.split(":")[1])] = error
    expected = {
        number: line.partition("# error: ")[2]
        for number, line in enumerate(program.splitlines(), 1)
        if "# error: " in line
    }
    assert errors.keys() == expected.keys(), done.stdout
    assert all(text in errors[number] for number, text in expected.items()), done.stdout


def test_types_ship():
    assert (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "_core.pyi").exists()


# Docstrings.

#: The public names of the package.
NAMES = [name for name in cutlass_api.__all__ if name[0] != "_"]


def words(docstring):
    # The stub wraps lines anew.
    return (docstring or "").split()


def test_the_stub_has_the_docstrings_of_the_extension():
    stub = stub_docstrings.STUB.read_text()
    different = [
        name
        for name, node, value in stub_docstrings.documented(stub)
        if words(ast.get_docstring(node)) != words(stub_docstrings.docstring(value))
    ]
    assert not different, "run scripts/stub_docstrings.py"


def public_objects():
    values = [getattr(cutlass_api, name) for name in NAMES]
    # Packages without `__all__` are programs or internal.
    modules = [cutlass_api, *(m for m in values if inspect.ismodule(m) and hasattr(m, "__all__"))]
    seen = {}
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value):
                seen.setdefault(id(value), (f"{module.__name__}.{name}", value))
    return [pytest.param(*pair, id=pair[0]) for pair in seen.values()]


@pytest.mark.parametrize("name", NAMES)
def test_modules_say_what_they_are_for(name):
    value = getattr(cutlass_api, name)
    assert not inspect.ismodule(value) or value.__doc__


@pytest.mark.parametrize("name, value", public_objects())
def test_docstrings(name, value):
    assert value.__doc__, f"{name} has no docstring"
    # Dataclasses generate a signature as docstring, not a description.
    assert not value.__doc__.startswith(f"{name.rpartition('.')[2]}(")


@pytest.mark.parametrize(
    "name, value", [p for p in public_objects() if inspect.isclass(p.values[1])]
)
def test_docstrings_of_members(name, value):
    bare = [
        member
        for member, attribute in vars(value).items()
        if member[0] != "_"
        if inspect.isroutine(attribute) or inspect.isdatadescriptor(attribute)
        # The docstring of a dataclass describes its fields, with slots or without.
        if not (dataclasses.is_dataclass(value) and inspect.ismemberdescriptor(attribute))
        if not inspect.getdoc(getattr(value, member))
    ]
    assert not bare, f"{name} leaves {bare} undocumented"
