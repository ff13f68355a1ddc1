"""A stand-in for NVIDIA's ``cutlass`` package, for code that imports it only to name element types.

PyTorch's generated code writes ``import cutlass`` and ``accumulator_type=cutlass.Float32`` beside its calls to
``cutlass_api``. Where NVIDIA's package is installed it is left alone, and its classes are recognised by name.
"""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

#: The classes of NVIDIA's package that torch's code generation can name.
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
    """Puts the stand-in in place of ``cutlass``, unless a real one is loaded or could be."""
    if "cutlass" in sys.modules or find_spec("cutlass") is not None:
        return
    module = ModuleType(
        "cutlass",
        "Element types by the names of NVIDIA's cutlass package. Put here by cutlass_api.",
    )
    # With a spec, `importlib.util.find_spec("cutlass")`, which torch asks first, finds the module too.
    module.__spec__ = ModuleSpec("cutlass", loader=None, origin=__file__)
    module.__file__ = __file__
    for name in NAMES:
        setattr(module, name, type(name, (), {"__module__": "cutlass"}))
    sys.modules["cutlass"] = module


__all__ = ["install"]
