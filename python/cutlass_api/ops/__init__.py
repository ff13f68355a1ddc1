"""The operators ``torch.ops.cutlass_api.*``: matrix products for autograd, compile and export.

Importing this module imports torch and registers the operators. ``import cutlass_api`` does so if
torch is imported, before or after.
"""

from importlib import import_module

from nvidia_cutlass_stub.hooks import after_import

from cutlass_api.ops._eight_bits import int8_mm, mixed_mm, scaled_grouped_mm, scaled_mm
from cutlass_api.ops._operator import LIBRARY, OPS
from cutlass_api.ops._operators import OPERATORS
from cutlass_api.ops._python import (
    grouped_mm,
    grouped_mm_weight_grad,
    linear,
    linears,
    masked_grouped_mm,
    matmul,
    quantized_grouped_mm,
    quantized_linear,
)


def register_flop_formulas() -> None:
    import_module("cutlass_api.ops._flops")


def register_with_dynamo() -> None:
    import_module("cutlass_api.ops._dynamo")


def register_sharding_rules() -> None:
    import_module("cutlass_api.ops._sharding")


# `import torch` imports none of these modules.
after_import("torch.utils.flop_counter", register_flop_formulas)
after_import("torch._dynamo", register_with_dynamo)
after_import("torch.distributed.tensor", register_sharding_rules)

__all__ = [
    "LIBRARY",
    "OPERATORS",
    "OPS",
    "grouped_mm",
    "grouped_mm_weight_grad",
    "int8_mm",
    "linear",
    "linears",
    "masked_grouped_mm",
    "matmul",
    "mixed_mm",
    "quantized_grouped_mm",
    "quantized_linear",
    "scaled_grouped_mm",
    "scaled_mm",
]
