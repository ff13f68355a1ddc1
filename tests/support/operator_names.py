"""Lists the public names of ``cutlass.operators``: NVIDIA's, or this package's.

``python tests/support/operator_names.py cutlass.operators`` prints them as JSON, by module. It runs
in any environment, and NVIDIA's package imports torch.
"""

import importlib
import json
import sys
from types import ModuleType

#: The modules of the interface. Left out: kernels with what generates their code, such as
#: `providers.cutedsl`, and `fusion.library`, the enumerations of a C++ emitter.
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
#: What modules import or keep to themselves: the classes behind the activations of an emitter.
INTERNAL = {"TYPE_CHECKING", "ActivationFunctor", "ActivationMeta", "dtype2ctype"}


def names_of(package: str) -> dict[str, list[str]]:
    """The public names by module: those of ``__all__``, else those that the module defines."""
    return {module: _names(f"{package}.{module}".rstrip(".")) for module in MODULES}


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


if __name__ == "__main__":
    json.dump(names_of(sys.argv[1]), sys.stdout, indent=0)
