"""As emulation.py: products with a weight in each format."""

import cutlass_api
import torch
from cutlass_api.weights._formats import FORMATS

from support.emulation import finish
from support.emulation_scales import is_wrong
from support.formats import operand_for, product, quantized, random_weight
from support.properties import SPARSE, family_of


def formats() -> None:
    """By the first kernel of sm90. Weights of integers with scales along K are rounded once to the
    dtype of the float operand.
    """
    failures = []
    generator = torch.Generator().manual_seed(1)
    for format in FORMATS[::SPARSE]:
        fields = quantized(format, random_weight(generator))
        x = operand_for(format, generator)
        is_float = format.dtype.is_floating_point
        out = torch.empty(
            len(x), fields.values.shape[0], dtype=torch.float32 if is_float else x.dtype
        )
        args = product(format, fields, x, out)
        weight = format.dequantize(fields)
        if not is_float and format.scales.varies_along_k:
            weight = weight.to(x.dtype)
        kernel = next(x for x in cutlass_api.get_kernels(args) if family_of(x) == "sm90")
        if is_wrong(kernel, args, out, x.double() @ weight.double().t()):
            failures.append(f"{kernel.metadata.kernel_name}, {format.name}")
    finish(failures)
