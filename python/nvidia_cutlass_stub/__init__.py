"""A stand-in for NVIDIA's ``cutlass`` package: element types, and ``cutlass.operators``.

Code that PyTorch's NVGEMM backend generates contains ``import cutlass``, and from PyTorch 2.14 on
``import cutlass.operators``. :func:`install` adds a finder that serves these imports if no other
finder does: NVIDIA's packages are used where they are installed, and classes of both match by name.
``cutlass.operators`` is :mod:`cutlass_api.operators`.

PyTorch calls :func:`install` at ``import torch``, through the entry point of the group
``torch.backends``. Code from a warm Inductor cache then runs in a process that imports only torch.
This package therefore imports neither ``cutlass_api`` nor anything that costs time:
``importlib.abc`` takes 20 ms. Where ``cutlass`` is imported before either, ``rutlass_cutlass.pth``,
which Python reads when it starts, calls :func:`find_first`.
"""

import sys
from importlib import import_module, util
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from nvidia_cutlass_stub import hooks, nvgemm, probes
from nvidia_cutlass_stub.releases import NVGEMM

#: The environment variable that switches the stand-in off if it is 0, false, no or off.
VARIABLE = "CUTLASS_API_STAND_IN"

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
    "Float8E8M0FNU",
)


def find(name: str) -> ModuleSpec | None:
    """The spec of ``cutlass`` or a submodule that no other finder has found.

    None where the stand-in is of no use. Raises ModuleNotFoundError if a submodule is imported that
    the stand-in lacks.
    """
    _, _, submodule = name.partition(".")
    if not submodule:
        if not is_wanted(is_probed()):
            return None
        loader: Any = Loader()
        return ModuleSpec(name, loader, origin=__file__, is_package=True)
    own = f"cutlass_api.{submodule}"
    # `cutlass_api` is not imported to look for `cutlass.operators`, only for what is in it.
    if submodule == "operators" or (
        submodule.startswith("operators.") and util.find_spec(own) is not None
    ):
        second: Any = OperatorsLoader(own)
        return ModuleSpec(name, second)
    # `find_spec` of an absent module returns None.
    if is_probed():
        return None
    reason = nearest_module(name) if submodule.startswith("operators.") else explanation()
    # With the name of the submodule, `from cutlass import cute` would replace the message.
    raise ModuleNotFoundError(f"No module named {name!r}; {reason}", name="cutlass")


def find_first() -> ModuleSpec | None:
    """The spec of ``cutlass`` where it is imported before torch and ``cutlass_api``.

    None for a probe, and if the finder declined before.
    """
    return None if is_probed() or not install() else find("cutlass")


class Loader:
    """Fills the stand-in."""

    def create_module(self, spec: ModuleSpec) -> None:
        """The default module."""

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Element types with the names of NVIDIA's cutlass, from cutlass_api."
        module.__file__ = __file__
        from nvidia_cutlass_stub.numeric import element_types

        vars(module).update(element_types(module.__name__))


class OperatorsLoader:
    """Loads a module of :mod:`cutlass_api.operators` under its second name."""

    def __init__(self, own: str) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._own)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has put the spec of the second name in its place.
        module.__spec__ = self._spec


def explanation() -> str:
    """What the stand-in is, and what to install in its place."""
    return (
        "this cutlass is the stand-in of rutlass, which has element types and cutlass.operators. "
        "For the CuTe DSL, install NVIDIA's package: pip install nvidia-cutlass-dsl"
    )


def nearest_module(name: str) -> str:
    """The module of ``cutlass.operators`` that is nearest to an absent one, and its names."""
    parent = name.rpartition(".")[0]
    names = getattr(sys.modules[parent], "__all__", None)
    if names is None:
        return nearest_module(parent)
    return f"the nearest module of rutlass is {parent}, with {', '.join(names)}"


def is_probed() -> bool:
    """Whether a caller only looks for a module, by ``importlib.util.find_spec`` or a finder."""
    frame: Any = sys._getframe()
    while frame and frame.f_code.co_name != "_find_spec":  # of importlib._bootstrap, for imports
        frame = frame.f_back
    return not frame or frame.f_back.f_code is util.find_spec.__code__


def is_served() -> bool:
    """Whether ``cutlass`` is imported, and is the stand-in."""
    loader: Any = getattr(sys.modules.get("cutlass"), "__loader__", None)
    return type(loader).__module__ == __name__


def is_wanted(is_probe: bool) -> bool:
    """Whether to serve an import of ``cutlass``, or a probe for it."""
    if not is_probe:
        return True
    has_api = "cutlass_api" in sys.modules
    torch = sys.modules.get("torch")
    if torch is None:
        return has_api
    # Libraries that look for NVIDIA's package before Inductor is loaded do not find it, nor does
    # a PyTorch that takes any `cutlass` for the DSL.
    serves_nvgemm = NVGEMM.holds(str(getattr(torch, "__version__", "")))
    return serves_nvgemm and (has_api or "torch._inductor" in sys.modules)


def install() -> bool:
    """Serves NVGEMM, and ``cutlass`` unless that is switched off.

    Returns whether ``cutlass`` was not served before.
    """
    finder = hooks.installed_finder()
    if not finder.serves_nvgemm:
        finder.serves_nvgemm = True
        nvgemm.prepare()
    if finder.serves_cutlass or hooks.is_switched_off(VARIABLE):
        return False
    finder.serves_cutlass = True
    probes.correct()
    nvgemm.replace_wrappers()
    return True


__all__ = ["NAMES", "VARIABLE", "find_first", "install"]
