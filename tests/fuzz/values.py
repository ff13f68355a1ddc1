"""What a kernel has to compute for a case: float64 values and error bounds."""

from itertools import pairwise

import cutlass_api
import torch
from gpu_helpers import (
    FLOAT8,
    ROUNDOFF,
    Problem,
    chains_16_bits,
    exact_integer_product,
    rounds_to_tf32,
    sums_fast,
    truncates,
)
from helpers import INTEGERS
from test_block_scales import number, spread

from .cases import ELEMENTWISE, GROUPED
from .operands import Operands
from .stages import PRODUCT, Bounded, apply, folded, results_of


class Uncompared(Problem):
    """A product that torch has not, or adds up otherwise: cuBLAS splits some chains of fast float8
    sums.
    """

    torch_error = None


class ScaledProblem(Uncompared):
    """A product of factors with scales along K, in float64."""

    #: The error of a scaled integer as kernels for tensor cores round it.
    dequantized_roundoff = 0.0

    @property
    def input_roundoff(self) -> float:
        return super().input_roundoff + self.dequantized_roundoff


class Expected:
    """The values of all outputs, behind those rows that a kernel must leave as they are.

    Reads the operands, before a launch.
    """

    def __init__(self, operands: Operands, kernel: cutlass_api.Kernel) -> None:
        self.operands, self.kernel = operands, kernel
        self.case, self.types = operands.case, operands.types
        #: The rows of each group, or all rows. Kernels clamp an offset to the range from its
        #: predecessor to the number of rows.
        ends = [0]
        for end in self.case.ends if self.case.operation == GROUPED else [self.case.m]:
            ends.append(min(max(ends[-1], end), self.case.m))
        self.spans = list(pairwise(ends))
        self.rows = ends[-1]
        #: The products, for the limits of the norm of the error.
        self.problems: list[Problem] = []
        if self.case.operation == ELEMENTWISE:
            x = self._sum()
        else:
            self.problems = self._problems(operands.b)
            x = self._accumulator(self.problems)
        self.outputs = self._stages(x)

    def _sum(self) -> Bounded:
        x, y = Bounded.of(self.operands.a), Bounded.of(self.operands.b)
        value = x.value + y.value
        is_exact = self.types.out in INTEGERS
        error = x.error if is_exact else ROUNDOFF[self.types.accumulator] * value.abs()
        return Bounded(value, error)

    def _problems(self, b: torch.Tensor) -> list[Problem]:
        """The product with B, or that of each group, with the limits for the kernel."""
        a, types = self.operands.a, self.types
        kind = Uncompared if sums_fast(self.kernel) else Problem
        if self.case.scales:
            a, b, kind = self._scaled("a", a), self._scaled("b", b), ScaledProblem
        pairs = [(a, b)]
        if self.case.operation == GROUPED:
            pairs = [(a[start:end], of) for (start, end), of in zip(self.spans, b, strict=True)]
        problems = [kind(types, *pair, rounds_to_tf32(self.kernel)) for pair in pairs]
        if self.case.scales and (types.a in INTEGERS) != (types.b in INTEGERS):
            for problem in problems:
                problem.dequantized_roundoff = ROUNDOFF[types.b if types.a in INTEGERS else types.a]
        if sums_fast(self.kernel):
            return [problem.with_fast_sums for problem in problems]
        if truncates(self.kernel) and self.case.stages and types.out in (torch.bfloat16, *FLOAT8):
            return [problem.before_rounding for problem in problems]
        if truncates(self.kernel):
            return [problem.on_float8_tensor_cores for problem in problems]
        if chains_16_bits(self.kernel):
            return [problem.in_one_chain for problem in problems]
        return problems

    def _scaled(self, factor: str, tensor: torch.Tensor) -> torch.Tensor:
        """A factor with its scales and zero points, in float64."""

        def each(values: torch.Tensor) -> torch.Tensor:
            return spread(number(values), *self.operands.block_of(factor), tensor.shape[-2:])

        wide = tensor.double()
        if factor in self.operands.zeros:
            wide = wide - each(self.operands.zeros[factor])
        return wide * each(self.operands.scales[factor]) if factor in self.case.scales else wide

    def _accumulator(self, problems: list[Problem]) -> Bounded:
        """The sums that the epilogue gets, of all groups."""
        if self.types.integer:
            values = [exact_integer_product(each.a, each.b).to(torch.int64) for each in problems]
            errors = [torch.zeros_like(value, dtype=torch.float64) for value in values]
        else:
            values = [sum(reversed(each.parts)) for each in problems]
            errors = [each.sum_allowance for each in problems]
        if self.case.operation != GROUPED:
            return Bounded(values[0], errors[0])
        empty = torch.zeros(0, self.case.n, dtype=torch.float64, device=self.operands.a.device)
        kind = torch.int64 if self.types.integer else torch.float64
        return Bounded(torch.cat([empty.to(kind), *values]), torch.cat([empty, *errors]))

    def _stages(self, x: Bounded) -> dict[str, Bounded]:
        """The outputs by name."""
        is_double = self.types.accumulator == torch.float64
        compute = torch.float64 if is_double else torch.float32
        found: dict[str, Bounded] = {}
        for at, stage in enumerate(self.case.stages):
            x = apply(stage.expression, x, self._parameter(at, x), compute)
            for name, result in results_of(self.case, at):
                found[name] = folded(result, x, compute) if result.fold else x
        return found | {"D": x}

    def _parameter(self, at: int, x: Bounded) -> Bounded:
        """The operand of a stage."""
        given = self.operands.parameters.get(f"c{at}", 0.0)
        if self.case.stages[at].expression == PRODUCT:
            return self._accumulator(self._problems(given))
        if not isinstance(given, torch.Tensor):
            return Bounded.of(torch.tensor(given, dtype=torch.float64, device=x.value.device))
        # A row behind the last group is not computed.
        return Bounded.of(given.expand(self.case.shape)[..., : self.rows, :].clone())
