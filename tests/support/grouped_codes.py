"""Grouped products by stacks of weights: the formats of `codes`."""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import cutlass_api
import torch
from cutlass_api import weights
from cutlass_api.arguments import GroupedGemmArguments

from support import memory
from support.codes import CASES, F32, Case, Product, matrices

#: Rows of A and of the output after the last group.
SPARE = 3


class GroupedProduct:
    """The product of a case by groups of these sizes."""

    def __init__(self, case: Case, sizes: Sequence[int], n: int, k: int) -> None:
        made = [case.make(n, k) for _ in sizes]
        ends = list(accumulate(sizes))
        rows = ends[-1]
        x = torch.randn(rows + SPARE, k).to(case.wide)
        spans = pairwise([0, *ends])
        of_groups = (matrices(weight, case.wide) for weight in made)
        of_spans = list(zip(spans, of_groups, strict=True))
        expected = [
            torch.cat([x[s:e].double() @ each[at].t() for (s, e), each in of_spans])
            for at in range(2)
        ]
        self.out = torch.empty(rows + SPARE, n, dtype=case.out, device=memory.DEVICE)
        self.stack = weights.stack(made).to(memory.DEVICE).repack()
        offsets = torch.tensor(ends, dtype=torch.int32, device=memory.DEVICE)
        args = GroupedGemmArguments(x.to(memory.DEVICE), self.stack, self.out, F32, offsets)
        expected = [each.to(memory.DEVICE) for each in expected]
        self.product = Product(args, case.slack, self.out[:rows], expected)

    def is_right(self, kernel: cutlass_api.Kernel) -> bool:
        """Whether a kernel computes the products, and leaves the rows behind the last group."""
        self.out.fill_(torch.nan)
        kernel.run(self.product.args)
        memory.synchronize()
        rest = self.out[self.product.out.shape[0] :]
        return self.product.is_right() and bool(rest.isnan().all())


def failures_of(
    name: str, sizes: Sequence[int], n: int, k: int, first: int = 0, step: int = 1
) -> Iterator[str]:
    """What is wrong with every ``step``-th kernel of a case."""
    case = GroupedProduct(CASES[name], sizes, n, k)
    kernels = cutlass_api.get_kernels(case.product.args)
    assert kernels, f"no kernel for {name}"
    for kernel in kernels[first % step :: step]:
        if not case.is_right(kernel):
            yield f"{kernel.metadata.kernel_name}, {name}, {list(sizes)}, {n}, {k}"
