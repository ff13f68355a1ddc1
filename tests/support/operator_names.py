"""Lists the public names of ``cutlass.operators``: NVIDIA's, or this package's.

``python tests/support/operator_names.py cutlass.operators`` prints them as JSON, by module. A
second argument is the file to write: tests/operators_face/their_names.py, for a new release. It
runs in any environment, and NVIDIA's package imports torch.
"""

import importlib
import json
import pkgutil
import sys
import textwrap
from pathlib import Path
from types import ModuleType

#: The modules of the interface.
MODULES = (
    "",
    "arch",
    "arguments",
    "artifact",
    "base",
    "config",
    "fusion",
    "fusion.activation",
    "heuristics",
    "manifest",
    "metadata",
    "mma",
    "providers",
    "status",
    "typing",
    "utils.common",
    "utils.device",
    "utils.dtype",
    "utils.gemm",
    "utils.generate",
    "utils.layout",
    "utils.tensor",
    "workspace",
)
#: Modules left out, with those in them: kernels and the generators of their code, and the parts of
#: a C++ emitter of epilogues.
LEFT_OUT = (
    "fusion.backend",
    "fusion.epilogue",
    "fusion.evt_ops",
    "fusion.frontend",
    "fusion.ir",
    "fusion.library",
    "fusion.passes",
    "fusion.pycute",
    "heuristics.nvmatmul",
    "providers.cutedsl",
)
#: What modules import or keep to themselves: the classes behind the activations of an emitter.
INTERNAL = {"TYPE_CHECKING", "ActivationFunctor", "ActivationMeta", "dtype2ctype"}


def names_of(package: str) -> dict[str, list[str]]:
    """The public names by module: those of ``__all__``, else those that the module defines."""
    return {module: _names(f"{package}.{module}".rstrip(".")) for module in MODULES}


def further_names_of(package: str) -> dict[str, list[str]]:
    """The names of other modules, unless they are left out, or are in the interface, or modules."""
    known = {name for names in names_of(package).values() for name in names}
    prefix = f"{package}."
    found = {}
    for each in pkgutil.walk_packages(importlib.import_module(package).__path__, prefix):
        module = each.name.removeprefix(prefix)
        if module in MODULES or f"{module}.".startswith(tuple(f"{name}." for name in LEFT_OUT)):
            continue
        loaded = importlib.import_module(each.name)
        found[module] = [
            name
            for name in _names(each.name)
            if name not in known and not isinstance(getattr(loaded, name), ModuleType)
        ]
    return {module: names for module, names in found.items() if names}


def _names(name: str) -> list[str]:
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None) or [
        key
        for key, value in vars(module).items()
        if not key.startswith("_")
        and not isinstance(value, ModuleType)
        and getattr(value, "__module__", name) == name
        and type(value).__module__ != "__future__"
    ]
    return sorted(each for each in names if each not in INTERNAL and not each.endswith("Meta"))


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
        lines += [f'    "{module}": """', wrapped, '    """,']
    lines += ["}", "THEIRS_BY_MODULE = {module: names.split() for module, names in THEIRS.items()}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    package, *paths = sys.argv[1:]
    found = names_of(package) | further_names_of(package)
    for path in paths:
        version = importlib.import_module(package).__version__
        Path(path).write_text(text_of(found, version), encoding="utf-8")
    json.dump(found, sys.stdout, indent=0)
