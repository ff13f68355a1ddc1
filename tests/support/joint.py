"""Joint GEMMs: one A, and several matrices B whose products lie side by side in the output."""

import cutlass_api
import torch
from cutlass_api.arguments import EpilogueArguments, GemmArguments

from support import memory
from support.epilogue_trials import BF16, F16, F32, Trial, in_form
from support.helpers import coarse
from support.memory import Form, Output

#: M, K, the columns of each matrix, and the dtype: two to four matrices, partial tiles along M, K
#: and the last matrix, few rows, grid splits, an empty product.
CASES = [
    (37, 520, (256, 512, 40), BF16),
    (5, 264, (192, 384), F16),
    (131, 200, (512, 256, 256, 72), BF16),
    (16, 1096, (32, 64, 32, 5), F16),
    (64, 2184, (64, 64, 32), BF16),
    (1, 8, (64, 1), F16),
    (33, 0, (64, 128), BF16),
]


def scaled(accum, bias, C):
    D = accum * bias + C
    return D


class JointTrial(Trial):
    """A joint GEMM. The rows of its matrices B have strides of their own. With an epilogue for odd
    seeds, whose bias is a list of vectors up to seed 4, and A by columns for seeds 2, 3, 6, 7 and
    so on.
    """

    def __init__(self, m, k, columns, dtype, seed=0):
        generator = torch.Generator().manual_seed(seed)
        letter, shape = "tn"[seed // 2 % 2], (m, sum(columns))

        def values(*extents):
            return coarse(*extents, dtype=dtype, generator=generator)

        a = values(m, k)
        self.a = in_form(a, Form(order=letter, multiple=8)) if k else a.to(memory.DEVICE)
        # Of few rows, also matrices of which kernels read 4 bytes at a time.
        step = 2 if m == 16 else 8
        self.matrices = [
            in_form(values(k, n), Form(order="n", multiple=8, pad=step * at))
            if k
            else values(n, 0).to(memory.DEVICE).mT
            for at, n in enumerate(columns)
        ]
        self.out, self.others = Output(shape, dtype, Form(multiple=[8, 1][seed // 2 % 2])), {}
        accum = torch.cat([self.a.double() @ b.double() for b in self.matrices], 1).float()
        epilogue, self.wanted = None, {"D": accum}
        if seed % 2:
            bias, C = (values(*extents).to(memory.DEVICE) for extents in (shape[1:], shape))
            self.wanted = {"D": accum * bias.float() + C.float()}
            if seed < 5:
                bias = [part.clone() for part in bias.split(columns)]
            epilogue = EpilogueArguments(scaled, bias=bias, C=C, D=self.out.tensor)
        self.args = GemmArguments(self.a, self.matrices, self.out.tensor, F32, epilogue=epilogue)
        self.said = f"joint {m}x{k}x{columns} {letter} {dtype} seed {seed}"

    def kernels(self):
        return list(cutlass_api.get_kernels(self.args))
