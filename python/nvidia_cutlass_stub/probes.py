"""The functions of PyTorch that take any ``cutlass`` for the CuTe DSL.

From PyTorch 2.14 on, Inductor calls ``find_spec("cutlass")`` to look for the DSL, which the
stand-in lacks. The functions are replaced when their modules are imported. The NVGEMM backend
looks for the DSL and for ``cutlass.operators``, and needs only the latter.
"""

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from nvidia_cutlass_stub.hooks import after_import
from nvidia_cutlass_stub.releases import NVGEMM

_INDUCTOR = "torch._inductor.utils"
#: The function of `_INDUCTOR` that decides whether the NVGEMM backend is used.
_NVGEMM_GATE = "use_nv_universal_gemm_template"
#: The functions by module.
_PROBES = {
    _INDUCTOR: "ensure_cute_available",
    "torch._inductor.kernel.flex_gemm.lowering": "has_flex_gemm_quack",
}


def correct() -> None:
    """Replaces the functions, now or when their modules are imported."""
    for module, name in _PROBES.items():

        def replace(module: str = module, name: str = name) -> None:
            _replace(sys.modules[module], name)

        after_import(module, replace)


def _replace(module: Any, name: str) -> None:
    probe = getattr(module, name, None)
    version = str(getattr(sys.modules.get("torch"), "__version__", ""))
    if probe is None or NVGEMM.holds(version) or getattr(probe, "knows_the_stand_in", False):
        return
    corrected = _corrected(probe)
    # Modules that were imported earlier have the function under the same name.
    for importer in [each for key, each in sys.modules.items() if key.startswith("torch._ind")]:
        if getattr(importer, "__dict__", {}).get(name) is probe:
            setattr(importer, name, corrected)


def _corrected(probe: Callable[[], bool]) -> Callable[[], bool]:
    from nvidia_cutlass_stub import is_served

    @wraps(probe)
    def corrected() -> bool:
        caller = sys._getframe(1)
        if caller.f_code.co_name == _NVGEMM_GATE and caller.f_globals["__name__"] == _INDUCTOR:
            return bool(sys.modules[_INDUCTOR].ensure_nv_universal_gemm_available())
        return not is_served() and probe()

    corrected.knows_the_stand_in = True  # type: ignore[attr-defined]
    for name in ("cache_clear", "cache_info"):
        if hasattr(probe, name):
            setattr(corrected, name, getattr(probe, name))
    return corrected


def forget() -> None:
    """Makes torch look again for ``cutlass``, ``cutlass_api`` and ``cutlass.operators``."""
    for name in ("ensure_cute_available", "ensure_nv_universal_gemm_available"):
        clear = getattr(getattr(sys.modules.get(_INDUCTOR), name, None), "cache_clear", None)
        if clear is not None:
            clear()


__all__ = ["correct", "forget"]
