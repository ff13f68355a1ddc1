"""Epilogues with a row or a number for each group, in GEMMs with groups along M."""

import torch
from cutlass_api.arguments import EpilogueArguments, GroupedGemmArguments

from support import memory
from support.epilogue_trials import BF16, F16, F32, F64, in_form
from support.epilogues import assert_close
from support.groups import GroupedProblem, gathered
from support.helpers import coarse
from support.memory import Form, Output
from support.properties import Types


def biased(accum, bias):
    D = relu(accum + bias)  # noqa: F821, resolved by the tracer
    return D


def factors(accum, row, column):
    """By which `sm90` multiplies its sums."""
    D = accum * row * column
    return D


def several(accum, number, bias, C):
    gate = accum * number + bias
    D = silu(gate) + C  # noqa: F821
    return D, gate


#: The function, the rows of each group, N, K and the dtype: empty groups, one row, ends inside a
#: tile, more groups than a warp has lanes, one group, no K.
CASES = [
    (biased, [0, 1, 131, 0, 0, 64, 0], 72, 72, BF16),
    (factors, [0, 1, 131, 0, 0, 64, 0], 72, 72, BF16),
    (several, [37, 0, 66], 67, 45, F16),
    (biased, [(7 * group) % 5 if group % 9 else 0 for group in range(70)], 40, 24, F32),
    (factors, [70], 136, 40, F16),
    (several, [3, 70, 0], 72, 0, F64),
]


class GroupRows(GroupedProblem):
    """Groups with an epilogue. Rows behind the last group stay as they are. `has_index`: an index
    names the rows of A."""

    def __init__(self, function, sizes, n, k, dtype, seed=0, has_index=False) -> None:
        accumulator = F64 if dtype == F64 else F32
        form = Form(multiple=8) if k % 8 == 0 else Form()
        super().__init__(Types(dtype, dtype, accumulator, dtype), sizes, n, k, form, form)
        generator = torch.Generator().manual_seed(seed)
        groups, rows = len(sizes), self.shape[0]

        def values(*extents, dtype=dtype):
            made = coarse(*extents, dtype=dtype, generator=generator)
            return made.to(memory.DEVICE)

        # Whose sums float32 holds.
        self.a.copy_(values(*self.a.shape))
        self.b.copy_(values(*self.b.shape))
        if has_index:
            self.table = self.a[: rows // 2]
            self.index, self.a = gathered(self.table, rows, self.rows)
        self.function = function
        self.given = {
            # Of other strides between groups than a row's length.
            "bias": values(groups, 2, n, dtype=F32)[:, 1:],
            "column": values(groups, 1, n),
            "number": values(groups, 1, 1, dtype=F32),
            "row": values(rows, 1, dtype=F32),
            "C": in_form(values(rows, n), Form()),
        }
        names = function.__code__.co_varnames[1 : function.__code__.co_argcount]
        self.given = {name: self.given[name] for name in names}
        # An output that TMA can address, or one that it cannot.
        form = Form(multiple=8) if seed % 2 == 0 else Form(multiple=8, pad=1, offset=1)
        self.outputs = {"D": Output((rows, n), dtype, form)}
        if function is several:
            self.outputs["gate"] = Output((rows, n), F32, Form())
        tensors = {name: output.tensor for name, output in self.outputs.items()}
        epilogue = EpilogueArguments(function, **self.given, **tensors)
        self.args: GroupedGemmArguments = self.arguments(tensors["D"], epilogue)
        self.said = f"{function.__name__} {sizes} {n} {k} {dtype}, seed {seed}, index {has_index}"

    def wanted(self) -> dict[str, torch.Tensor]:
        """The rows of all groups, in float64."""
        sums = self.each(lambda a, b: a.double() @ b.double())
        of_group = torch.bucketize(torch.arange(self.rows), torch.tensor(self.ends), right=True).to(
            memory.DEVICE
        )
        given = {
            name: (x[of_group, 0] if x.dim() == 3 else x[: self.rows]).double()
            for name, x in self.given.items()
        }
        if self.function is biased:
            return {"D": torch.relu(sums + given["bias"])}
        if self.function is factors:
            return {"D": sums * given["row"] * given["column"]}
        gate = sums * given["number"] + given["bias"]
        return {"D": torch.nn.functional.silu(gate) + given["C"], "gate": gate}

    def check(self, kernel, artifact=None) -> None:
        for output in self.outputs.values():
            output.memory.bytes.fill_(output.poison)
        kernel.run(self.args, artifact)
        wanted = self.wanted()
        for name, output in self.outputs.items():
            what = f"{name} of {self.said}, {kernel.metadata.kernel_name}"
            assert_close(output.tensor[: self.rows], wanted[name], what)
            assert output.intact_around(self.rows), f"written outside of the groups: {what}"
