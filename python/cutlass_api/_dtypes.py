"""torch's dtypes by class, from the core's table of element types.

Imports torch, which ``import cutlass_api`` must not.
"""

import torch

from cutlass_api._core import ELEMENT_TYPES


def _of_class(*classes: str) -> tuple[torch.dtype, ...]:
    """The dtypes of these classes that torch has and kernels compute with."""
    return tuple(
        getattr(torch, element.name)
        for element in ELEMENT_TYPES
        if element.accumulators
        and element.element_class in classes
        and hasattr(torch, element.name)
    )


HALF = _of_class("half")
FLOAT8 = _of_class("float8")
INT8 = _of_class("integer8")
INTEGER = _of_class("integer8", "integer32")
#: The floating-point dtypes of scales, zero points and epilogues.
FLOATS = (*HALF, *_of_class("single"))
#: The powers of two that scale blocks in MX formats.
E8M0 = torch.float8_e8m0fnu
#: The descriptors of element types by name.
ELEMENTS = {element.name: element for element in ELEMENT_TYPES}
#: The names in CUDA code.
CUDA_NAMES = {
    getattr(torch, element.name): element.cuda_name
    for element in ELEMENT_TYPES
    if element.cuda_name and hasattr(torch, element.name)
}

__all__ = ["CUDA_NAMES", "E8M0", "ELEMENTS", "FLOAT8", "FLOATS", "HALF", "INT8", "INTEGER"]
