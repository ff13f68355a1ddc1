"""The types that commands measure products in: each element type of A and B, and tf32."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cutlass_api._core import ELEMENT_TYPES

#: What multiplies the types of a class, as `chip_rates` names it, and the share of that rate:
#: tensor cores multiply 8 bits at twice the rate of 16 bits, and tf32 at half of it. CUDA cores
#: multiply int32 at most at the rate of float32.
_UNITS = {
    "half": ("tensor_flop_per_clock", 1.0),
    "float8": ("tensor_flop_per_clock", 2.0),
    "integer8": ("tensor_flop_per_clock", 2.0),
    "single": ("fma_flop_per_clock", 1.0),
    "integer32": ("fma_flop_per_clock", 1.0),
    "double": ("float64_flop_per_clock", 1.0),
}
#: The output's type where it is not that of A and B.
_OUTPUTS = {"float8": "bfloat16", "integer8": "int32"}


@dataclass(frozen=True)
class Type:
    """How a product of one type is measured.

    - ``element``, ``output``: names of torch's dtypes, of A and B and of the output.
    - ``accumulator``: the name of the accumulator's dtype.
    - ``unit``: what multiplies it, as `chip_rates` names it; ``share``: of that rate.
    """

    element: str
    output: str
    accumulator: str
    unit: str
    share: float

    def random(self, *shape: int) -> Any:
        """A random tensor on the GPU: normally distributed floats, or integers of up to 8 bits."""
        import torch

        dtype = getattr(torch, self.element)
        if not dtype.is_floating_point:
            bounds = (0, 256) if self.element == "uint8" else (-128, 128)
            return torch.randint(*bounds, shape, device="cuda", dtype=dtype)
        if dtype.itemsize == 1:
            return torch.randn(*shape, device="cuda").to(dtype)
        return torch.randn(*shape, device="cuda", dtype=dtype)

    def torch_product(self) -> Callable[[Any, Any, Any], Any]:
        """torch's product of A and B into an output. It raises RuntimeError for operands that torch
        does not multiply: of uint8 and int32 all, of int8 and float8 some layouts and extents.
        """
        import torch

        if self.element == "int8":
            return lambda a, b, out: torch._int_mm(a, b, out=out)
        if self.element.startswith("float8"):
            # Outside of a CUDA graph of the product.
            one, dtype = torch.ones((), device="cuda"), getattr(torch, self.output)
            return lambda a, b, out: torch._scaled_mm(a, b, one, one, out_dtype=dtype, out=out)
        return lambda a, b, out: torch.matmul(a, b, out=out)


def _types() -> dict[str, Type]:
    found = {}
    for element in ELEMENT_TYPES:
        if not element.accumulators:
            continue
        kind = element.element_class
        unit, share = _UNITS[kind]
        output = _OUTPUTS.get(kind, element.name)
        names = (element.name, output, str(element.accumulators[0]))
        found[element.name] = Type(*names, unit, share)
        if kind == "single":
            found["tf32"] = Type(*names, _UNITS["half"][0], _UNITS["half"][1] / 2)
    return found


#: By the name of ``--dtype``.
TYPES = _types()

__all__ = ["TYPES", "Type"]
