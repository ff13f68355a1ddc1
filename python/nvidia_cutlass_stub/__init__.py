"""A stub of NVIDIA's ``cutlass`` package, for code that uses its names of element types.

Code that PyTorch's NVGEMM backend generates contains ``import cutlass`` and
``accumulator_type=cutlass.Float32``. :func:`install` adds a finder that serves this import if no
other finder does: NVIDIA's package is used where it is installed, and classes of both match by
name.

PyTorch calls :func:`install` at ``import torch``, through the entry point of the group
``torch.backends``. Code from a warm Inductor cache then runs in a process that imports only torch.
This package therefore imports neither ``cutlass_api`` nor anything that costs time.
"""

import sys
from collections.abc import Sequence
from importlib import abc, util
from importlib.machinery import ModuleSpec
from types import ModuleType

from nvidia_cutlass_stub.releases import NVGEMM

#: The classes of NVIDIA's package that torch's code generation uses.
NAMES = (
    "Boolean",
    "Int8",
    "Int16",
    "Int32",
    "Int64",
    "Uint8",
    "Uint16",
    "Uint32",
    "Uint64",
    "Float16",
    "BFloat16",
    "Float32",
    "TFloat32",
    "Float64",
    "Float4E2M1FN",
    "Float8E4M3FN",
    "Float8E5M2",
)


class Finder:
    """Finds the stub, after the finders of installed packages."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the stub; None for other modules, and where the stub is of no use.

        Raises ModuleNotFoundError if a submodule is imported.
        """
        package, _, submodule = name.partition(".")
        if package != "cutlass":
            return None
        if not submodule:
            if not is_wanted(is_probed()):
                return None
            return util.spec_from_loader(name, Loader(), origin=__file__, is_package=True)
        if type(getattr(sys.modules.get(package), "__loader__", None)).__module__ == __name__:
            # `find_spec` of an absent module returns None.
            if is_probed():
                return None
            # With the name of the submodule, `from cutlass import cute` would replace the message.
            raise ModuleNotFoundError(f"No module named {name!r}; {explanation()}", name=package)
        return None


class Loader(abc.Loader):
    """Fills the stub."""

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Element types with the names of NVIDIA's cutlass, from cutlass_api."
        module.__file__ = __file__
        for name in NAMES:
            setattr(module, name, type(name, (), {"__module__": module.__name__}))


def explanation() -> str:
    """What the stub is, and what to install in its place."""
    return (
        "this cutlass is the stub of rutlass, which has element types only. For the CuTe DSL, "
        "install NVIDIA's package: pip install nvidia-cutlass-dsl"
    )


def is_probed() -> bool:
    """Whether a caller only looks for a module, by ``importlib.util.find_spec``."""
    # The stack from here: `Finder.find_spec`, `importlib._bootstrap._find_spec`, its caller.
    return sys._getframe(3).f_code is util.find_spec.__code__


def is_wanted(is_probe: bool) -> bool:
    """Whether to serve an import of ``cutlass``, or a probe for it."""
    has_api = "cutlass_api" in sys.modules
    torch = sys.modules.get("torch")
    if torch is None:
        return has_api
    if NVGEMM.holds(str(getattr(torch, "__version__", ""))):
        # Libraries that look for NVIDIA's package before Inductor is loaded do not find it.
        return has_api or "torch._inductor" in sys.modules
    return has_api and not is_probe


def install() -> bool:
    """Adds the finder, unless it is there. Returns whether it did."""
    # Compared by name: this module may be imported anew.
    if any(getattr(finder, "__module__", None) == __name__ for finder in sys.meta_path):
        return False
    sys.meta_path.append(Finder)
    return True


__all__ = ["NAMES", "install"]
