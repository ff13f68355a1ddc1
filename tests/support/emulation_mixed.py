"""As emulation.py: products of 16-bit floats and 8-bit weights by sm80."""

from cutlass_api.metadata import GemmOperandsMetadata
from stand_in import device

from support import mixed
from support.emulation import check_design, few, finish, parts
from support.properties import SPARSE, every_kernel, family_of, types_of


def products(cc: int) -> None:
    """All combinations of types, in all layouts or in some of them."""
    device.library.stand_in_set_capability(cc)
    finish(mixed.failures("cpu", SPARSE > 1))


def designs(cc: int) -> None:
    """A sample of all designs, types and layouts, on partial tiles."""
    device.library.stand_in_set_capability(cc)
    kernels = [
        kernel
        for kernel in every_kernel(cc)
        if family_of(kernel) == "sm80"
        and isinstance(kernel.metadata.operands, GemmOperandsMetadata)
        and types_of(kernel).a.itemsize != types_of(kernel).b.itemsize
    ]
    finish([check_design(kernel, at) for at, kernel in enumerate(few(kernels, parts))])
