"""Enqueues ``kernels/repack.cuh``: elements of 4 bits from the order of storage to that of kernels,
and back.
"""

import math
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cutlass_api._core import CudaFunction
from cutlass_api._tracing import is_launched
from cutlass_api.cuda import cuda_kernel
from cutlass_api.utils import ceil_div
from cutlass_api.weights._packing import FLOAT_BITS, REPACKED, repacked, unpacked
from cutlass_api.weights._shards import is_dtensor, of_shard

THREADS = 256


@cache
def program(to_kernels: bool, is_float: bool) -> CudaFunction:
    """Takes both orders, and how many vectors of 16 bytes they have."""
    bits = [str(bit) for place in FLOAT_BITS for bit in place] if is_float else []
    name = f"repack::reorder<{', '.join([str(to_kernels).lower(), *bits])}>"
    return cuda_kernel('#include "repack.cuh"\n', name, grid=1, block=THREADS)


def reorder(values: Tensor, to_kernels: bool, is_float: bool) -> Tensor:
    """:func:`repacked`, or :func:`unpacked`; of a tensor on a GPU outside of tracing, by one kernel
    that reads and writes each byte once. Of a DTensor, the local shard is reordered.
    """
    if not torch.compiler.is_compiling() and is_dtensor(values):
        return reorder_shard(values, to_kernels, is_float)
    if is_launched(values):
        return launch(values, to_kernels, is_float)
    return (repacked if to_kernels else unpacked)(values, is_float)


def reorder_shard(values: Any, to_kernels: bool, is_float: bool) -> Tensor:
    """:func:`reorder` of a DTensor, without communication: both orders have N and blocks of K as
    their first dimensions. Raises ValueError if shards divide a block.
    """
    mesh, block = values.device_mesh, 16 if to_kernels else 1
    ranks = [
        size for size, each in zip(mesh.shape, values.placements, strict=True) if each.is_shard(1)
    ]
    is_partial = any(each.is_partial() or each.is_shard(2) for each in values.placements)
    if is_partial or values.shape[1] % (block * math.prod(ranks)):
        raise ValueError(
            f"values has shape {list(values.shape)} and placements {values.placements}; shard N, "
            "or K in equal multiples of 32 elements, or repack before"
        )
    empty = torch.empty(values.shape, dtype=values.dtype, device="meta")
    whole = reorder(empty, to_kernels, is_float)
    return of_shard(lambda shard: reorder(shard, to_kernels, is_float), values, whole)


def launch(values: Tensor, to_kernels: bool, is_float: bool) -> Tensor:
    """Enqueues the kernel."""
    values = values.contiguous()
    if values.data_ptr() % 16:
        values = values.clone()
    n, vectors = values.shape[0], values.numel() * values.itemsize // 16
    shape, dtype = ((n, -1, 4), REPACKED) if to_kernels else ((n, -1), torch.uint8)
    out = torch.empty_like(values).view(dtype).view(shape)
    program(to_kernels, is_float).launch((values, out, vectors), ceil_div(vectors, THREADS))
    return out
