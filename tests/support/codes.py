"""Products by weights of 4 bits and of float8: formats, and dtypes of all operands."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import cutlass_api
import torch
from cutlass_api import quantize
from cutlass_api.arguments import GemmArguments, PerformanceControls
from cutlass_api.weights import NVFP4, Float8, UInt4, Weight
from cutlass_api.weights._formats import Format

from support import memory

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def uint4(group: int, scales: torch.dtype, zeros: torch.dtype) -> Callable[[int, int], Weight]:
    """Random codes; zero points 0 to 16, or added, some of them with a scale of 0."""

    def make(n: int, k: int) -> Weight:
        shape = n, -(-k // group)
        codes = torch.randint(0, 256, (n, k // 2)).to(torch.uint8)
        factors = torch.rand(shape) + 0.5
        if zeros is torch.uint8:
            return UInt4(codes, factors.to(scales), torch.randint(0, 17, shape).to(zeros))
        is_constant = torch.rand(shape) < 0.2
        return UInt4(codes, factors.where(~is_constant, 0).to(scales), torch.randn(shape).to(zeros))

    return make


class Subtracting(UInt4):
    """Floating-point zero points that are subtracted, as an epilogue with ``scale_blocks`` may."""

    def _find_format(self) -> Format:
        return replace(super()._find_format(), adds_zero=False)


def zeros_with_fractions(n: int, k: int) -> Weight:
    shape = n, k // 32
    codes = torch.randint(0, 256, (n, k // 2)).to(torch.uint8)
    scales, zeros = torch.rand(shape) + 0.5, 16 * torch.rand(shape)
    return Subtracting(codes, scales.bfloat16(), zeros.bfloat16())


def int4(group: int | None, scales: torch.dtype) -> Callable[[int, int], Weight]:
    return lambda n, k: quantize.int4(torch.randn(n, k).to(scales), group)


def mxfp4(n: int, k: int) -> Weight:
    return quantize.mxfp4(torch.randn(n, k) * torch.rand(n, 1) * 1e4)


def nvfp4_of_rows(n: int, k: int) -> Weight:
    """Fused layers, each row with a factor of its own."""
    weight = quantize.nvfp4(torch.randn(n, k))
    return NVFP4(weight.values, weight.scales, torch.rand(n, 1) * 1e-3)


def float8(rows: int, depth: int) -> Callable[[int, int], Weight]:
    """Blocks of ``rows`` x ``depth`` that share a scale; of the whole matrix for 0."""

    def make(n: int, k: int) -> Weight:
        shape = (-(-n // rows), -(-k // depth)) if rows else ()
        return Float8(torch.randn(n, k).to(torch.float8_e4m3fn), torch.rand(shape) + 0.5)

    return make


class Case(NamedTuple):
    """The dtypes of the activations and of the output, and a weight of extents (N, K). ``slack``:
    the error of float32 sums, relative to the largest sum.
    """

    wide: torch.dtype
    out: torch.dtype
    make: Callable[[int, int], Weight]
    slack: float = 2e-5


#: The kernels differ in the element type, the dtypes of scales and of zero points.
CASES = {
    "int4 in groups of 128": Case(BF16, BF16, int4(128, BF16)),
    "int4, scales of rows": Case(F16, F16, int4(None, F16)),
    "int4, scales of another dtype": Case(BF16, BF16, int4(32, F16)),
    "uint4 with zero points": Case(BF16, BF16, uint4(64, BF16, torch.uint8)),
    "uint4, float32 scales": Case(F16, F16, uint4(128, F32, torch.uint8)),
    # (q - -zero / scale) * scale may round to the neighbour of what q * scale + zero rounds to.
    "uint4, added zero points": Case(BF16, BF16, uint4(32, BF16, BF16), 2e-3),
    "uint4, zero points with fractions": Case(BF16, BF16, zeros_with_fractions),
    "mxfp4": Case(BF16, BF16, mxfp4),
    "nvfp4": Case(F16, F16, lambda n, k: quantize.nvfp4(torch.randn(n, k))),
    "nvfp4, factors of rows": Case(BF16, BF16, nvfp4_of_rows),
    "float8, one scale": Case(F16, F16, float8(0, 0)),
    "float8, scales of 1 x 128": Case(BF16, BF16, float8(1, 128)),
    "float8, scales of 128 x 128": Case(BF16, BF16, float8(128, 128)),
    "float32 output": Case(BF16, F32, int4(64, BF16)),
}


def matrices(weight: Weight, wide: torch.dtype) -> list[torch.Tensor]:
    """What activations may be multiplied by, in float64: the weight with each element rounded once
    to the dtype of the activations, as in kernels of tensor cores, or with exact elements. The
    factor of NVFP4 multiplies the sum. Those of a stack of weights have a dimension for them.
    """
    factor = 1.0 if weight.factor is None else weight.factor.double()
    if weight.factor is not None and weight.factor.dim() < 2:
        factor = factor[..., None, None]
    elements = weight.dequantize(F32).double() / factor
    return [elements.to(wide).double() * factor, elements * factor]


class Product(NamedTuple):
    """A product, and what it may be, one for each of `matrices`."""

    args: GemmArguments
    slack: float
    out: torch.Tensor
    expected: list[torch.Tensor]

    def is_right(self) -> bool:
        """Whether the output is one of both, rounded once, up to the error of float32 sums."""
        eps = torch.finfo(self.out.dtype).eps
        return any(
            bool(((self.out.double() - x).abs() <= x.abs() * eps / 2 + self.slack * most).all())
            for x, most in ((x, x.abs().max() if x.numel() else 0) for x in self.expected)
        )


def product(case: Case, m: int, n: int, k: int, free_multiprocessors: int = 0) -> Product:
    weight = case.make(n, k)
    x = torch.randn(m, k).to(case.wide)
    products = (x.double() @ matrix.t() for matrix in matrices(weight, case.wide))
    expected = [each.to(memory.DEVICE) for each in products]
    out = torch.empty(m, n, dtype=case.out, device=memory.DEVICE)
    x, weight = x.to(memory.DEVICE), weight.to(memory.DEVICE).repack()
    controls = PerformanceControls(free_multiprocessors=free_multiprocessors)
    args = GemmArguments(x, weight, out, F32, performance=controls)
    return Product(args, case.slack, out, expected)


def failures_of(
    name: str, shape: tuple[int, int, int], first: int = 0, step: int = 1
) -> Iterator[str]:
    """What is wrong with every ``step``-th kernel of a case."""
    case = product(CASES[name], *shape)
    kernels = cutlass_api.get_kernels(case.args)
    assert kernels, f"no kernel for {name}"
    for kernel in kernels[first % step :: step]:
        case.out.fill_(torch.nan)
        kernel.run(case.args)
        memory.synchronize()
        if not case.is_right():
            yield f"{kernel.metadata.kernel_name}, {name}, {shape}"
