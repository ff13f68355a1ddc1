"""Arguments of `cutlass_api.operators` for its tests."""

import torch
from cutlass_api import operators as ops
from support.helpers import accumulator_of, fake


def fake_arguments(m=512, n=256, k=768, dtype=torch.bfloat16, **options):
    """Arguments of a GEMM of FakeTensors on a GPU."""
    tensors = (fake(*shape, dtype=dtype) for shape in ((m, k), (k, n), (m, n)))
    return ops.GemmArguments(*tensors, accumulator_of(dtype), **options)


def real_arguments(m=24, n=16, k=32, dtype=torch.float32, **options):
    """Arguments of a GEMM on the CPU, and their tensors."""
    tensors = (
        torch.randn(m, k).to(dtype),
        torch.randn(k, n).to(dtype),
        torch.empty(m, n, dtype=dtype),
    )
    return ops.GemmArguments(*tensors, accumulator_of(dtype), **options), tensors
