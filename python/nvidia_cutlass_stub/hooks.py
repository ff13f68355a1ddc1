"""The one finder of this distribution in ``sys.meta_path``.

It serves ``cutlass`` where no other finder does, and calls functions when another package is
imported, so that ``import cutlass_api`` imports neither torch nor the parts of torch that take
long.
"""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class Finder:
    """Precedes the other finders, and serves what none of them finds.

    - ``awaited``: by module, what to call when it has been imported.
    - ``stand_ins``: by module, the function that finds its spec; None leaves it to other finders.
    - ``serves_cutlass``: whether ``cutlass`` is served.
    - ``serves_nvgemm``: whether PyTorch's NVGEMM backend is served.
    """

    def __init__(self) -> None:
        self.awaited: dict[str, list[Callable[[], None]]] = {}
        self.stand_ins: dict[str, Callable[[str], ModuleSpec | None]] = {}
        self.serves_cutlass = False
        self.serves_nvgemm = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self.awaited:
            spec = self._from_others(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._wrap(spec.loader)
                return spec
        if fullname in self.stand_ins:
            return self.stand_ins[fullname](fullname)
        if not self.serves_cutlass or fullname.partition(".")[0] != "cutlass":
            return None
        import nvidia_cutlass_stub

        # Others would load modules of `cutlass_api.operators` a second time.
        if "." in fullname:
            return nvidia_cutlass_stub.find(fullname) if nvidia_cutlass_stub.is_served() else None
        return self._from_others(fullname, path, target) or nvidia_cutlass_stub.find(fullname)

    def _from_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(fullname, path, target)
            if spec is not None:
                found: ModuleSpec = spec
                return found
        return None

    def _wrap(self, loader: object) -> None:
        execute = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: ModuleType) -> None:
            execute(module)
            # A function may await the same module: Python still counts it as half imported.
            while functions := self.awaited.pop(module.__name__, ()):
                for function in functions:
                    _call(function, module.__name__)

        loader.exec_module = exec_module  # type: ignore[attr-defined]


def installed_finder() -> Finder:
    """The finder, which is added to ``sys.meta_path`` unless it is there."""
    # Compared by name: this module may be imported anew.
    for finder in sys.meta_path:
        if type(finder).__module__ == __name__:
            return finder  # type: ignore[return-value]
    sys.meta_path.insert(0, Finder())
    return sys.meta_path[0]  # type: ignore[return-value]


def after_import(module: str, function: Callable[[], None]) -> None:
    """Calls a function when a module has been imported: now if it is already.

    An error of the function becomes a warning: it must not break the import of another package.
    """
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None)
    if loaded is not None and not getattr(spec, "_initializing", False):
        _call(function, module)
        return
    installed_finder().awaited.setdefault(module, []).append(function)


def is_switched_off(variable: str) -> bool:
    """Whether an environment variable is 0, false, no or off."""
    return os.environ.get(variable, "").strip().lower() in ("0", "false", "no", "off")


def _call(function: Callable[[], None], module: str) -> None:
    try:
        function()
    except Exception as error:
        package = module.partition(".")[0]
        warnings.warn(
            f"cutlass_api serves {package} in part: {function.__module__}.{function.__name__} "
            f"raised {type(error).__name__}: {error}",
            stacklevel=2,
        )


__all__ = ["after_import", "installed_finder", "is_switched_off"]
