"""Epilogues with the product of a second matrix, in GEMMs with groups along M."""

from itertools import accumulate, pairwise

import cutlass_api
import torch
from cutlass_api.arguments import EpilogueArguments, GroupedGemmArguments

from support import memory
from support.epilogue_trials import BF16, F16, F32, gated, in_form, swiglu
from support.epilogues import assert_close
from support.groups import SPARE, gathered
from support.helpers import coarse
from support.memory import Form, Output


def halves(weights, n):
    both = weights(2 * n)
    return both[:, :n].mT, both[:, n:].mT


def interleaved(weights, n):
    both = weights(2 * n)
    return both[:, 0::2].mT, both[:, 1::2].mT


#: Where B and `up` lie, each (G, K, N) and K-major. `weights` makes a tensor (G, rows, K).
WEIGHTS = {
    "two tensors": lambda weights, n: (weights(n).mT, weights(n).mT),
    "halves": halves,
    "halves, up first": lambda weights, n: halves(weights, n)[::-1],
    "interleaved": interleaved,
    "interleaved, up first": lambda weights, n: interleaved(weights, n)[::-1],
}

#: Rows of each group, N, K and dtype: empty groups first, last and in a row; one row; group ends
#: inside a tile and inside a strip of 16 rows; more than a tile; more groups than a warp has lanes;
#: no K; no rows.
CASES = [
    ([0, 1, 261, 0, 0, 64, 3, 77, 0], 136, 136, BF16),
    ([131, 5, 0, 66], 200, 72, F16),
    ([300], 72, 264, BF16),
    ([(7 * group) % 5 if group % 9 else 0 for group in range(70)], 24, 40, F16),
    ([3, 70, 0], 48, 0, BF16),
    ([0, 0], 64, 64, F16),
]


def clamped(accum, up, bias, of_up, C, row):
    """With a row of `bias` and of `of_up` for each group."""
    gate = minimum(accum + bias, 7.0)  # noqa: F821, resolved by the tracer
    linear = clamp(product(up) + of_up, -7.0, 7.0)  # noqa: F821
    D = gate * sigmoid(gate * 1.702) * (linear + 1) * row + C  # noqa: F821
    return D, gate


class DualGroups:
    """Groups of rows, each multiplied by its matrices of B and of `up`. The rows behind the last
    group belong to no group: those of A are NaN. `has_index`: an index names the rows of A.
    """

    def __init__(self, sizes, n, k, dtype, weights="two tensors", seed=0, has_index=False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.ends, rows = list(accumulate(sizes)), sum(sizes) + SPARE

        def values(*extents, dtype=dtype):
            return coarse(*extents, dtype=dtype, generator=generator)

        # Rows of K = 0 are aligned, too.
        table = in_form(values(rows // 2 if has_index else rows, max(k, 8)), Form(multiple=8))
        table, self.index = table[:, :k], None
        if has_index:
            self.index, self.a = gathered(table, rows, self.ends[-1])
        else:
            self.a = table
            self.a[self.ends[-1] :] = torch.nan
        self.b, self.up = WEIGHTS[weights](
            lambda count: values(len(sizes), count, max(k, 8)).to(memory.DEVICE)[..., :k], n
        )
        self.offsets = torch.tensor(self.ends, dtype=torch.int32, device=memory.DEVICE)
        # An output that TMA can address, or one that it cannot.
        form = Form(multiple=8) if seed % 2 == 0 else Form(multiple=8, pad=1, offset=1)
        self.outputs = {"D": Output((rows, n), dtype, form)}
        self.operands, self.function = {"up": self.up}, [swiglu, gated, clamped][seed % 3]
        if self.function is not swiglu:
            self.operands |= {"bias": values(n), "C": in_form(values(rows, n), Form())}
            self.outputs["gate"] = Output((rows, n), F32, Form())
        if self.function is gated:
            self.operands["scale"] = 0.5
        if self.function is clamped:
            of_groups = {"bias": values(len(sizes), 1, n), "of_up": values(len(sizes), 1, n)}
            self.operands |= {**of_groups, "row": values(rows, 1, dtype=F32)}
        self.operands = {
            name: x.to(memory.DEVICE) if isinstance(x, torch.Tensor) else x
            for name, x in self.operands.items()
        }
        others = {name: output.tensor for name, output in self.outputs.items()}
        epilogue = EpilogueArguments(self.function, **self.operands, **others)
        self.args = GroupedGemmArguments(
            *(table, self.b, others["D"], F32, self.offsets, epilogue), index=self.index
        )
        self.said = f"{sizes} {n} {k} {dtype}, {weights}, seed {seed}, index {has_index}"

    def kernels(self) -> list[cutlass_api.Kernel]:
        return list(cutlass_api.get_kernels(self.args))

    def wanted(self) -> dict[str, torch.Tensor]:
        """The rows of all groups, in float64."""
        spans = list(enumerate(pairwise([0, *self.ends])))
        accum, product = (
            torch.cat([self.a[start:end].double() @ of[at].double() for at, (start, end) in spans])
            for of in (self.b, self.up)
        )
        if self.function is swiglu:
            return {"D": torch.nn.functional.silu(accum) * product}
        bias, C = self.operands["bias"].double(), self.operands["C"].double()[: self.ends[-1]]
        if self.function is gated:
            gate = accum * 0.5 + bias
            return {"D": torch.nn.functional.gelu(gate) * product + C * product, "gate": gate}
        sizes = [end - start for _, (start, end) in spans]
        bias, of_up = (
            torch.cat([x[at].expand(size, -1) for at, size in enumerate(sizes)])
            for x in (bias, self.operands["of_up"].double())
        )
        gate, row = (accum + bias).clamp(max=7), self.operands["row"][: self.ends[-1]]
        linear = (product + of_up).clamp(-7, 7) + 1
        return {"D": gate * torch.sigmoid(gate * 1.702) * linear * row + C, "gate": gate}

    def set_ends(self, ends: list[int], own: list[int] | None = None) -> None:
        """Changes the offsets. `own`: the ends that kernels make of offsets out of order."""
        self.offsets.copy_(torch.tensor(ends, dtype=torch.int32))
        self.ends = own or ends

    def poison(self) -> None:
        for output in self.outputs.values():
            output.memory.bytes.fill_(output.poison)

    def check(self, kernel: cutlass_api.Kernel, artifact=None) -> None:
        self.poison()
        kernel.run(self.args, artifact)
        self.compare(kernel)

    def compare(self, kernel: cutlass_api.Kernel) -> None:
        """Compares all rows of each output, also those behind the last group."""
        wanted, last = self.wanted(), self.ends[-1]
        for name, output in self.outputs.items():
            what = f"{name} of {self.said}, {kernel.metadata.kernel_name}"
            assert_close(output.tensor[:last], wanted[name], what)
            assert output.intact_around(last), f"written outside of the groups: {what}"
