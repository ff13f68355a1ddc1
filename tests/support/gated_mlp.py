"""The launches of `grouped_gated_mlp` and of its derivative, against torch in float64."""

from itertools import accumulate
from typing import Any

import cutlass_api
import pytest
import torch
from cutlass_api import arguments
from cutlass_api._core import trace_epilogue
from cutlass_api.ops import _gated_mlp
from cutlass_api.ops._gated_mlp import gate_and_up
from torch.nn import functional

from support import memory
from support.epilogue_trials import BF16, F16, F32
from support.epilogues import assert_close
from support.groups import SPARE
from support.helpers import coarse
from support.properties import family_of

#: Rows of each group, K, N, H, dtype, activation, and whether columns of gate and up alternate:
#: empty groups first, last and in a row; one row; more than a tile; ends inside a tile.
CASES = [
    ([0, 1, 131, 0, 0, 66, 0], 72, 136, 64, BF16, "silu", False),
    ([0, 1, 131, 0, 0, 66, 0], 72, 136, 64, F16, "silu", True),
    ([70, 5], 136, 72, 40, F16, "gelu", False),
    ([3, 0, 21], 64, 24, 72, BF16, "hardswish", True),
]


class Launches:
    """In place of `_gated_mlp.launch`: runs kernels of sm90, and compares the outputs of each.

    ``first``, ``step``: one in so many kernels runs, from which on. Rows behind the last group stay
    NaN.
    """

    def __init__(self, rows: int, first: int, step: int) -> None:
        self.rows, self.first, self.step, self.wanted, self.count = rows, first, step, [], 0

    def __call__(self, operator: str, A: Any, B: Any, *operands: Any, **options: Any) -> None:
        out, traced = options["out"], trace_epilogue(options["epilogue"])
        tensors = [*zip(traced.inputs, operands, strict=True)]
        tensors += zip(traced.outputs, out, strict=True)
        fused = arguments.EpilogueArguments(options["epilogue"], **dict(tensors))
        args = arguments.GroupedGemmArguments(A, B, out[0], F32, options["offsets"], fused)
        kernels = [each for each in cutlass_api.get_kernels(args) if family_of(each) == "sm90"]
        assert len(kernels) >= 4, operator
        for kernel in kernels[self.first % len(kernels) :: self.step]:
            for each in out:
                each.fill_(torch.nan)
            kernel.run(args)
            self.count += 1
            for name, each, wanted in zip(traced.outputs, out, self.wanted, strict=True):
                what = f"{name} of {operator}, {kernel.metadata.kernel_name}"
                assert_close(each[: self.rows], wanted, what)
                assert each[self.rows :].isnan().all(), f"written outside of the groups: {what}"


def check(case: Any, first: int = 0, step: int = 1) -> int:
    """Runs one in ``step`` kernels of both launches, from ``first`` on. Returns their number."""
    sizes, k, n, h, dtype, activation, interleaved = case
    generator = torch.Generator().manual_seed(0)

    def values(*extents: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return coarse(*extents, dtype=dtype, generator=generator).to(memory.DEVICE)

    rows, groups = sum(sizes), len(sizes)
    offs = torch.tensor(list(accumulate(sizes)), dtype=torch.int32, device=memory.DEVICE)
    of_row = torch.repeat_interleave(torch.tensor(sizes)).to(memory.DEVICE)
    a, up = values(rows + SPARE, k), values(groups, 2 * n, k).mT
    bias = values(groups, 2 * n, dtype=F32)
    grad, down, sums = values(rows + SPARE, h), values(groups, h, n).mT, values(rows + SPARE, 2 * n)

    def products(x: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
        return torch.einsum("rk,rkn->rn", x[:rows].double(), matrices[of_row].double())

    def activated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return getattr(functional, activation)(gate) * up

    launches = Launches(rows, first, step)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_gated_mlp, "launch", launches)
        both = gate_and_up(products(a, up) + bias[of_row].double(), interleaved)
        launches.wanted = [activated(*both), *both]
        _gated_mlp.launched_at_once(a, up, offs, activation, interleaved, bias)
        both = gate_and_up(sums[:rows].double(), interleaved)
        value, pullback = torch.func.vjp(activated, *both)
        launches.wanted = [value, *pullback(products(grad, down.mT))]
        _gated_mlp.grouped_gated_mlp_grad(grad, down, sums, offs, activation, interleaved)
    return launches.count
