"""Calls functions when another package is imported, so that ``import cutlass_api`` imports neither
torch nor the parts of torch that take long.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Finder(MetaPathFinder):
    """Finds the awaited modules through the other finders, and wraps their execution."""

    def __init__(self) -> None:
        self.awaited: dict[str, Callable[[], None]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.awaited:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                self._wrap(spec.loader, self.awaited[fullname])
                return spec
        return None

    def _wrap(self, loader: object, function: Callable[[], None]) -> None:
        execute = loader.exec_module  # type: ignore[attr-defined]

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self.awaited.pop(module.__name__, None) is not None:
                _call(function)

        loader.exec_module = exec_module  # type: ignore[attr-defined]


_FINDER = _Finder()


def after_import(module: str, function: Callable[[], None]) -> None:
    """Calls a function when a module has been imported: now if it is already.

    An error of the function becomes a warning: it must not break the import of another package.
    """
    loaded = sys.modules.get(module)
    spec = getattr(loaded, "__spec__", None)
    if loaded is not None and not getattr(spec, "_initializing", False):
        _call(function)
        return
    _FINDER.awaited[module] = function
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def _call(function: Callable[[], None]) -> None:
    try:
        function()
    except Exception as error:
        warnings.warn(
            f"cutlass_api serves torch in part: {function.__module__}.{function.__name__} raised "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )
