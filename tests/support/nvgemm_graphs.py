"""Graphs of products for PyTorch's NVGEMM backend, and their lowering, for each PyTorch with it."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch._inductor.codegen.nv_universal_gemm import nv_universal_gemm as backend

from support.pretended_gpu import Lowered, lower


def lower_by_nvgemm(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], **options: Any
) -> Lowered:
    """Inductor's code for a function of CUDA tensors like these. ``options``: as of ``lower``."""
    backends = options.pop("backends", "NVGEMM")
    with mock.patch.object(backend, "get_cuda_arch", lambda: "90"):
        return lower(function, inputs, max_autotune_gemm_backends=backends, **options)


def assert_rounded_once(out: torch.Tensor, expected: torch.Tensor) -> None:
    """The unit roundoff bounds the error of each element of a reference kernel's output."""
    roundoff = torch.finfo(out.dtype).eps / 2
    torch.testing.assert_close(out.double(), expected, rtol=1.001 * roundoff, atol=1e-7)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight)


def from_the_left(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.mT @ b


#: Functions, and the shapes of their inputs, by name.
PRODUCTS = {
    "mm": (matmul, (192, 256), (256, 320)),
    "linear": (linear, (192, 256), (320, 256)),
    "linear, batch": (linear, (3, 64, 256), (320, 256)),
    "column-major A": (from_the_left, (256, 192), (256, 320)),
    "bmm": (torch.bmm, (3, 64, 128), (3, 128, 96)),
    "bmm, column-major A": (from_the_left, (3, 128, 64), (3, 128, 96)),
    "mm, nothing aligned": (matmul, (67, 131), (131, 37)),
    "bmm, nothing aligned": (torch.bmm, (3, 7, 5), (3, 5, 11)),
    "one row": (matmul, (1, 256), (256, 320)),
}

__all__ = [
    "PRODUCTS",
    "assert_rounded_once",
    "backend",
    "from_the_left",
    "linear",
    "lower_by_nvgemm",
    "matmul",
]
