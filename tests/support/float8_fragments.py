"""`mma.sync` of float8 by one warp: the instruction itself, which ptxas translates on chips without
it, and `ptx::Mma`, by which kernels multiply.
"""

from itertools import product

import torch
from cutlass_api import cuda_kernel

NAMES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
ROWS, COLUMNS, DEPTH = 16, 8, 32

#: A is 16 x 32 and B, column-major, 32 x 8: words of four elements along K.
SOURCE = r"""
#include "common/ptx.cuh"
__global__ void multiply(const int* a, const int* b, float* out) {{
  const int g = threadIdx.x / 4, j = threadIdx.x % 4;
  const unsigned a0 = a[8 * g + j], a1 = a[8 * g + 64 + j], a2 = a[8 * g + 4 + j],
                 a3 = a[8 * g + 68 + j], b0 = b[8 * g + j], b1 = b[8 * g + 4 + j];
  using Mma = ptx::Mma<{a}, {b}, f32>;
  typename Mma::Sums sums = {{}};
  float (&s)[4] = sums.values;
  {statement}
  for (int e = 0; e < 4; ++e) out[8 * (g + e / 2 * 8) + 2 * j + e % 2] = s[e];
}}
"""
STATEMENTS = {
    "instruction": r"""
  asm("mma.sync.aligned.m16n8k32.row.col.f32.{a}.{b}.f32 {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, "
      "{{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
""",
    "program": "Mma::accumulate(sums, a0, a1, a2, a3, b0, b1);",
}


def failures(device: str, of_device=lambda tensor: tensor) -> list[str]:
    """The combinations of types that differ from float64. The products are multiples of 2^-6, of
    which sums of 32 are exact. `of_device`: the argument that stands for a tensor.
    """
    found = []
    for (a_type, b_type), statement in product(product(NAMES, repeat=2), STATEMENTS):
        names = {"a": NAMES[a_type], "b": NAMES[b_type]}
        text = STATEMENTS[statement].format(**names)
        kernel = cuda_kernel(SOURCE.format(statement=text, **names), "multiply", grid=1, block=32)
        a = (torch.randint(-7, 8, (ROWS, DEPTH), device=device) / 8).to(a_type)
        b = (torch.randint(-7, 8, (COLUMNS, DEPTH), device=device) / 8).to(b_type)
        out = torch.full((ROWS, COLUMNS), torch.nan, device=device)
        kernel(*map(of_device, (a.view(torch.int32), b.view(torch.int32), out)))
        if not torch.equal(out.double(), a.double() @ b.double().mT):
            found.append(f"{a_type} {b_type} {statement}")
    return found
