"""Random grouped GEMMs, along M and along K."""

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise

import cutlass_api
import torch
from cutlass_api.arguments import GroupedGemmArguments, PerformanceControls
from cutlass_api.metadata import GroupedGemmOperandsMetadata

from support import memory
from support.memory import Form, generator_for, just_aligned, random_operand
from support.problems import Problem
from support.properties import Types, by_family_and_types, first_of_families

#: Rows of A and of the output after the last group.
SPARE = 19
#: Ends of three groups that decrease or exceed the extent that the groups divide.
ENDS_OUT_OF_ORDER = [
    [50, 40, 90],
    [-5, 200, 9999],
    [9999, 0, 300],
    [2**31 - 1, -(2**31), 7],
]
HALF = Types(torch.bfloat16, torch.bfloat16, torch.float32, torch.bfloat16)
FLOAT8 = Types(torch.float8_e4m3fn, torch.float8_e4m3fn, torch.float32, torch.bfloat16)
#: The operands that sm90 multiplies in groups along K, aligned to 16 bytes: contiguous along M and
#: N; of 8 bits, along K.
FORMS_ALONG_K = {
    HALF.a: [Form("n", multiple=8), Form("t", multiple=8)],
    FLOAT8.a: [Form("t", multiple=16), Form("n", multiple=16)],
}


def gathered(table: torch.Tensor, rows: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An index of so many rows of a matrix, some twice, and the rows. What is behind the last group
    names no row."""
    generator = torch.Generator().manual_seed(rows)
    index = torch.randint(table.shape[0], (rows,), generator=generator, dtype=torch.int32)
    taken = table[index.long().to(table.device)]
    index[last::2], index[last + 1 :: 2] = -1, 2**31 - 1
    return index.to(table.device), taken


class Groups(Problem):
    """Random groups, and the values to compare their products with."""

    def each(self, product) -> torch.Tensor:
        """The results of a function of each group's A and B, in the shape of the written output."""
        raise NotImplementedError

    def of_group(self, kind: str):
        return lambda a, b: getattr(Problem(self.types, a, b), kind)

    @cached_property
    def exact(self) -> torch.Tensor:
        return self.each(self.of_group("exact"))

    @cached_property
    def parts(self) -> list[torch.Tensor]:
        count = 3 if self.types.a == torch.float64 else 1
        return [
            self.each(lambda a, b, at=at: Problem(self.types, a, b).parts[at])
            for at in range(count)
        ]

    @cached_property
    def scales(self) -> torch.Tensor:
        return self.each(self.of_group("scales"))

    @cached_property
    def torch_error(self) -> float | None:
        if (
            self.types.a not in (torch.float16, torch.bfloat16)
            or self.types.out != self.types.a
            or self.k == 0
        ):
            return None
        if self.types.accumulator == torch.float16 or self.types.b != self.types.a:
            return None
        return self.error(self.each(torch.mm))


class GroupedProblem(Groups):
    """Random groups with these numbers of rows."""

    def __init__(
        self, types: Types, sizes, n: int, k: int, a_form: Form, b_form: Form, step: int = 1
    ) -> None:
        generator = generator_for(types, sizes, n, k, a_form, b_form)
        small = types.integer and types.out == torch.float16
        self.ends = list(accumulate(sizes))
        rows = self.ends[-1] if sizes else 0
        super().__init__(
            types,
            random_operand((rows + SPARE, k), types.a, a_form, generator, small),
            random_operand((len(sizes), k, n), types.b, b_form, generator, small),
        )
        self.offsets = torch.zeros(len(sizes) * step, dtype=torch.int32, device=memory.DEVICE)[
            ::step
        ]
        self.offsets.copy_(torch.tensor(self.ends, dtype=torch.int32))
        self.rows = rows
        self.shape = (rows + SPARE, n)
        #: Whether A and out have the shapes (1, TotalM, K) and (1, TotalM, N).
        self.leading_one = False
        #: The index of the rows in a matrix, if A has them in another order.
        self.index: torch.Tensor | None = None
        self.table = self.a

    def arguments(self, out: torch.Tensor, epilogue=None) -> GroupedGemmArguments:
        a = self.a if self.index is None else self.table
        a, out = (a[None], out[None]) if self.leading_one else (a, out)
        return GroupedGemmArguments(
            *(a, self.b, out, self.types.accumulator, self.offsets, epilogue),
            performance=PerformanceControls(fast_sums=self.fast_sums),
            index=self.index,
        )

    def each(self, product) -> torch.Tensor:
        spans = pairwise([0, *self.ends])
        results = [
            product(self.a[start:end], self.b[group]) for group, (start, end) in enumerate(spans)
        ]
        return (
            torch.cat(results) if results else torch.zeros(0, self.shape[1], device=self.a.device)
        )


class GroupsAlongK(Groups):
    """Random groups with these extents of K. Floats behind the last group are NaN."""

    def __init__(
        self,
        types: Types,
        sizes: Sequence[int],
        shape: tuple[int, int],
        forms: Sequence[Form],
        tf32: bool = False,
        spare: int = SPARE,
    ) -> None:
        generator = generator_for(types, sizes, shape, forms)
        small = types.integer and types.out == torch.float16
        self.ends = list(accumulate(sizes))
        last = sum(sizes)
        (m, n), (a_form, b_form) = shape, forms
        super().__init__(
            types,
            random_operand((m, last + spare), types.a, a_form, generator, small),
            random_operand((last + spare, n), types.b, b_form, generator, small),
            tf32,
        )
        for rest in (self.a[:, last:], self.b[last:]):
            if rest.dtype.is_floating_point:
                rest.copy_(torch.full_like(rest, torch.nan, dtype=torch.float32))
        self.offsets = torch.tensor(self.ends, dtype=torch.int32, device=memory.DEVICE)
        self.k = max(sizes, default=0)
        self.shape = (len(sizes), m, n)

    def arguments(self, out: torch.Tensor, epilogue=None) -> GroupedGemmArguments:
        return GroupedGemmArguments(
            *(self.a, self.b, out, self.types.accumulator, self.offsets, epilogue),
            performance=PerformanceControls(fast_sums=self.fast_sums),
        )

    def each(self, product) -> torch.Tensor:
        spans = pairwise([0, *self.ends])
        results = [product(self.a[:, start:end], self.b[start:end]) for start, end in spans]
        return torch.stack(results) if results else self.a.new_zeros(self.shape)


def grouped_kernels(along: str) -> dict[tuple[str, Types], list[cutlass_api.Kernel]]:
    """The kernels for an H100 whose groups divide M ("m") or K ("k"), by family and types."""
    found = by_family_and_types(GroupedGemmOperandsMetadata)
    chosen = {
        key: [kernel for kernel in kernels if kernel.metadata.operands.offsets_along == along]
        for key, kernels in found.items()
    }
    return {key: kernels for key, kernels in chosen.items() if kernels}


def forms_of(kernel) -> list[Form]:
    """A, B and the output with the layouts that a kernel requires, and no larger alignment."""
    operands = kernel.metadata.operands
    letters = ["n" if side.stride == (0, 1, 0) else "t" for side in (operands.A, operands.B)]
    a, b = (
        just_aligned(letter, getattr(torch, side.dtype.name), side.ptr_alignment_bytes)
        for letter, side in zip(letters, (operands.A, operands.B), strict=True)
    )
    multiple = operands.out.divisibility
    return [a, b, Form("t", multiple=multiple) if multiple > 1 else Form("t", pad=3, offset=1)]


def fill_group(problem: GroupsAlongK, group: int, value: float) -> None:
    """Sets the K of a group in both operands."""
    start, end = [0, *problem.ends][group : group + 2]
    for part in (problem.a[:, start:end], problem.b[start:end]):
        part.copy_(torch.full_like(part, value, dtype=torch.float32))


def with_wrong_ends(wrong_ends: list[int], problem: GroupsAlongK) -> GroupsAlongK:
    """The problem with the ends of three groups, and the ends that kernels make of them."""
    problem.offsets.copy_(torch.tensor(wrong_ends, dtype=torch.int32))
    extent = problem.a.shape[1]
    problem.ends = [min(max(0, *wrong_ends[: at + 1]), extent) for at in range(3)]
    problem.k = extent
    return problem


def bf16_problem(sizes, n=320, k=192) -> GroupedProblem:
    return GroupedProblem(HALF, sizes, n, k, Form("t"), Form("n"))


def check_no_groups() -> None:
    """No groups, groups without rows, outputs without columns."""
    for sizes, n in (([], 64), ([0, 0], 64), ([3, 4], 0)):
        problem = bf16_problem(sizes, n=n)
        out = torch.full(problem.shape, 7.0, dtype=torch.bfloat16, device=memory.DEVICE)
        for kernel in first_of_families(args := problem.arguments(out)):
            kernel.run(args)
        assert (out[problem.rows :] == 7).all()
