"""Lists the public names of ``cutlass.operators``: NVIDIA's, or this package's.

``python tests/support/operator_names.py cutlass.operators`` prints them as JSON, by module. A
second argument is the file to write: tests/operators_face/their_names.py, for a new release. It
runs in any environment, and NVIDIA's package imports torch.
"""

import ast
import importlib
import inspect
import json
import pkgutil
import sys
import textwrap
from pathlib import Path
from types import ModuleType

#: Modules left out, with those in them: kernels and the generators of their code, and the parts of
#: a C++ emitter of epilogues.
LEFT_OUT = (
    "fusion.backend",
    "fusion.epilogue",
    "fusion.frontend",
    "fusion.ir",
    "fusion.library",
    "fusion.passes",
    "fusion.pycute",
    "providers.cutedsl.evt",
    "providers.cutedsl.gemm",
    "providers.cutedsl.integration_utils",
)
#: What modules keep to themselves: the classes behind the activations of an emitter.
INTERNAL = {"ActivationFunctor", "ActivationMeta", "dtype2ctype"}


def names_of(package: str) -> dict[str, list[str]]:
    """The public names by module."""
    prefix = f"{package}."
    walked = pkgutil.walk_packages(importlib.import_module(package).__path__, prefix)
    modules = ["", *sorted(each.name.removeprefix(prefix) for each in walked)]
    return {
        each: public_names(f"{package}.{each}".rstrip(".")) for each in modules if _is_public(each)
    }


def _is_public(module: str) -> bool:
    is_left_out = f"{module}.".startswith(tuple(f"{name}." for name in LEFT_OUT))
    return not is_left_out and not any(part.startswith("_") for part in module.split("."))


def public_names(name: str) -> list[str]:
    """The public names of a module: those of ``__all__``, else those that its source defines."""
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or _defined(module)
    return sorted(each for each in names if each not in INTERNAL and not each.endswith("Meta"))


def _defined(module: ModuleType) -> list[str]:
    found: list[str] = []
    for statement in ast.parse(inspect.getsource(module)).body:
        match statement:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.append(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                found.append(name)
    return [name for name in found if not name.startswith("_")]


def text_of(names: dict[str, list[str]], version: str) -> str:
    """The source of tests/operators_face/their_names.py."""
    lines = [
        f'"""The public names of nvidia-cutlass-operators {version} by module.\n',
        "``python tests/support/operator_names.py cutlass.operators FILE`` writes this file where "
        "it is\ninstalled.",
        '"""\n',
        "THEIRS = {",
    ]
    for module, found in names.items():
        wrapped = textwrap.fill(
            " ".join(found), 100, initial_indent=" " * 8, subsequent_indent=" " * 8
        )
        lines += [f'    "{module}": """', *filter(None, [wrapped]), '    """,']
    lines += ["}", "THEIRS_BY_MODULE = {module: names.split() for module, names in THEIRS.items()}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    package, *paths = sys.argv[1:]
    found = names_of(package)
    for path in paths:
        version = importlib.import_module(package).__version__
        Path(path).write_text(text_of(found, version), encoding="utf-8")
    json.dump(found, sys.stdout, indent=0)
