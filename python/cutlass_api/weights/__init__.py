"""Weights of 4 and 8 bits: a class for each format, and readers of checkpoints.

A weight is a matrix (N, K), where K is the contracted dimension. Classes are plain: their fields
are tensors, which a ``state_dict`` and safetensors save::

    weight = cutlass_api.quantize.int4(linear.weight)  # or a reader, as from_gptq
    saved = weight.tensors()  # {"values": ..., "scales": ...}
    weight = cutlass_api.weights.Int4.from_tensors(saved).repack()
    matrix = weight.dequantize(torch.bfloat16)

The experts of a layer are a stack (G, N, K) of such weights: :func:`stack`.

Importing this module imports torch.
"""

# Formats: ``_scales.py`` has a record for each way to share scales, ``_formats.py`` one for each
# format, which combines an element type with scales, ``_classes.py`` the classes. ``_kernels.py``
# enqueues ``kernels/quantize.cuh``, ``_reordering.py`` ``kernels/repack.cuh``. ``_stacks.py``
# makes stacks of weights.

# In front: the import of torch imports the operators, which import the modules below.
import torch  # noqa: F401

from cutlass_api.weights._classes import MXFP4, NVFP4, Float8, Int4, Int8, UInt4, UInt8, Weight
from cutlass_api.weights._compressed_tensors import from_compressed_tensors
from cutlass_api.weights._packing import pack
from cutlass_api.weights._readers import (
    from_awq,
    from_deepseek,
    from_gguf,
    from_gpt_oss,
    from_gptq,
    from_modelopt,
    from_torchao,
)
from cutlass_api.weights._stacks import stack

__all__ = [
    "MXFP4",
    "NVFP4",
    "Float8",
    "Int4",
    "Int8",
    "UInt4",
    "UInt8",
    "Weight",
    "from_awq",
    "from_compressed_tensors",
    "from_deepseek",
    "from_gguf",
    "from_gpt_oss",
    "from_gptq",
    "from_modelopt",
    "from_torchao",
    "pack",
    "stack",
]
