"""A stand-in for NVIDIA's ``cutlass`` package, for code that uses its names of element types.

PyTorch's generated code contains ``import cutlass`` and ``accumulator_type=cutlass.Float32``. If
NVIDIA's package is installed, the stand-in is not used: classes of ``cutlass`` match by name.
"""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

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
    "Float8E4M3FN",
    "Float8E5M2",
)


def install() -> None:
    """Registers the stand-in as ``cutlass``, unless a real package is loaded or importable."""
    if "cutlass" in sys.modules or find_spec("cutlass") is not None:
        return
    module = ModuleType(
        "cutlass",
        "Element types with the names of NVIDIA's cutlass package, provided by cutlass_api.",
    )
    # torch checks `importlib.util.find_spec("cutlass")` first, which needs a spec.
    module.__spec__ = ModuleSpec("cutlass", loader=None, origin=__file__)
    module.__file__ = __file__
    for name in NAMES:
        setattr(module, name, type(name, (), {"__module__": "cutlass"}))
    sys.modules["cutlass"] = module


__all__ = ["install"]
