"""What a kernel has to compute for a case: float64 values and error bounds."""

from functools import cached_property
from itertools import pairwise

import cutlass_api
import torch
from support.eight_bits import number, spread
from support.helpers import FLOAT8, INTEGERS
from support.problems import ROUNDOFF, Problem, exact_integer_product
from support.properties import (
    family_of,
    multiplies_codes,
    rounds_to_tf32,
    sums_fast,
    truncates,
    types_of,
)
from torch.nn.functional import pad

from .cases import ALONG_K, ELEMENTWISE, GROUPED, MASKED, NUMBER_OF_GROUP, ROW_OF_GROUP
from .drawing import FLOATS, GROUPS
from .operands import Operands
from .stages import PRODUCT, Bounded, apply, folded, results_of


def chains_16_bits(kernel: cutlass_api.Kernel) -> bool:
    """Whether tensor cores add up 16-bit products in long chains (docs/design/accuracy.md). For
    float32 outputs, sm80 adds up the sums of single instructions.
    """
    family = family_of(kernel)
    if family == "skinny":
        return multiplies_codes(kernel)
    if family not in ("sm90", "sm80"):
        return False
    types = types_of(kernel)
    if family == "sm80" and types.out == torch.float32:
        return False
    return max(types.a.itemsize, types.b.itemsize) == 2 and types.accumulator == torch.float32


class AnyKernelProblem(Problem):
    """A product by any kernel, with limits for those that do not split K of deep products with few
    tiles, as torch does and as the kernels do that rank first (docs/design/accuracy.md).
    """

    #: Whether tensor cores add up 16-bit products in long chains.
    chains_16_bits = False

    @property
    def truncations_of_16_bits(self) -> torch.Tensor:
        """Each instruction adds 16 products to the sum so far, and truncates it to float32: by half
        of a last bit on average, always towards zero.
        """
        sums = sum(self.parts).abs() if self.has_equal_terms else self.scales
        return self.k / 16 * ROUNDOFF[torch.float32] * sums

    @cached_property
    def sum_allowance(self) -> torch.Tensor:
        # Sums of subnormal numbers of the accumulator's type have a fixed step.
        info = torch.finfo(self.types.accumulator)
        step = info.smallest_normal * info.eps * max(self.k, 1) ** 0.5
        allowed = super().sum_allowance + step
        return allowed + 8 * self.truncations_of_16_bits if self.chains_16_bits else allowed

    @property
    def noise(self) -> float:
        if not self.has_equal_terms:
            return super().noise
        # Equal products have equal signs.
        size = float(sum(self.parts).norm())
        return ROUNDOFF[self.types.accumulator] * max(self.k, 1) ** 0.5 * size

    @property
    def limit(self) -> float:
        limit = super().limit
        if self.types.out == torch.float32 and self.types.a not in FLOAT8:
            # One chain (`Problem.limit`); for 16-bit operands, tensor cores round once for 16
            # products.
            limit = max(limit, self.noise / (6 * (16 if self.types.a.itemsize == 2 else 1)) ** 0.5)
        if self.chains_16_bits:
            # The sum so far grows to `scale`, and changes its sign.
            limit += float(self.truncations_of_16_bits.norm()) / 2
        return limit


class UncomparedProblem(AnyKernelProblem):
    """A product that is not compared with torch's: torch has none, or splits fast float8 sums."""

    torch_error = None


class ScaledProblem(UncomparedProblem):
    """A product of factors with scales along K, in float64. torch has no such product."""

    #: The error of a scaled element of 8 bits as kernels for tensor cores round it to the type of
    #: the other factor.
    dequantized_roundoff = 0.0

    @property
    def input_roundoff(self) -> float:
        return super().input_roundoff + self.dequantized_roundoff


class Expected:
    """The values of all outputs, behind those rows that a kernel must leave as they are.

    Reads the operands, before a launch. ``b``: B of the product, one of `Operands.candidates`.
    """

    def __init__(self, operands: Operands, kernel: cutlass_api.Kernel, b: torch.Tensor) -> None:
        self.operands, self.kernel = operands, kernel
        self.case, self.types = operands.case, operands.types
        #: The rows of each group, or its part of K; or all rows. Kernels clamp an offset to the
        #: range from its predecessor to the extent that groups divide, and a count to the rows.
        ends, extent, is_masked = [0], self.case.divided, self.case.operation == MASKED
        for end in self.case.ends if self.case.operation in GROUPS else [extent]:
            ends.append(min(max(0 if is_masked else ends[-1], end), extent))
        self.spans = [(0, end) for end in ends[1:]] if is_masked else list(pairwise(ends))
        #: The rows that a kernel writes; of masked groups, some of them.
        self.rows = ends[-1] if self.case.operation == GROUPED else self.case.m
        at = torch.arange(self.case.m, device=operands.a.device)
        counts = torch.tensor(ends[1:], device=operands.a.device)
        #: Which rows of masked groups exist.
        self.exists = at < counts[:, None]
        #: The products, for the limits of the norm of the error.
        self.problems: list[Problem] = []
        if self.case.operation == ELEMENTWISE:
            x = self._sum()
        else:
            self.problems = self._problems(b)
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
        kind = UncomparedProblem if sums_fast(self.kernel) else AnyKernelProblem
        if self.case.scales or self.case.codes:
            a, b, kind = self._scaled("a", a), self._scaled("b", b), ScaledProblem
        pairs = [(a, b)]
        if self.case.operation == GROUPED:
            pairs = [(a[start:end], of) for (start, end), of in zip(self.spans, b, strict=True)]
        elif self.case.operation == MASKED:
            pairs = [(x[:end], of) for x, (_, end), of in zip(a, self.spans, b, strict=True)]
        elif self.case.operation == ALONG_K:
            pairs = [(a[:, start:end], b[start:end]) for start, end in self.spans]
        problems = [kind(types, *pair, rounds_to_tf32(self.kernel)) for pair in pairs]
        narrow = [types.a in INTEGERS, types.b in INTEGERS]
        if narrow[0] == narrow[1]:
            narrow = [each.itemsize == 1 for each in (types.a, types.b)]
        if self.case.scales and narrow[0] != narrow[1]:
            for problem in problems:
                problem.dequantized_roundoff = ROUNDOFF[types.b if narrow[0] else types.a]
        if self.case.codes and self.case.codes.zeros in FLOATS:
            # (q - -zero / scale) * scale rounds to a neighbour of what q * scale + zero rounds to.
            for problem in problems:
                problem.dequantized_roundoff = ROUNDOFF[types.a]
        if sums_fast(self.kernel):
            return [problem.with_fast_sums for problem in problems]
        if truncates(self.kernel) and self.case.stages and types.out in (torch.bfloat16, *FLOAT8):
            return [problem.before_rounding for problem in problems]
        if truncates(self.kernel):
            return [problem.on_float8_tensor_cores for problem in problems]
        for problem in problems:
            problem.chains_16_bits = chains_16_bits(self.kernel)
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
        if self.case.operation not in GROUPS:
            return Bounded(values[0], errors[0])
        rows = 0 if self.case.operation == GROUPED else self.case.m
        empty = torch.zeros(rows, self.case.n, dtype=torch.float64, device=self.operands.a.device)
        kind = torch.int64 if self.types.integer else torch.float64
        if self.case.operation != GROUPED:
            empty = empty[None][:0]
            # Rows that do not exist are not compared.
            values, errors = (
                [pad(each, (0, 0, 0, self.case.m - each.shape[0]))[None] for each in of]
                for of in (values, errors)
            )
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
        kind = self.case.stages[at].operand.kind
        if self.case.operation == GROUPED and kind in (ROW_OF_GROUP, NUMBER_OF_GROUP):
            sizes = torch.tensor([end - start for start, end in self.spans], dtype=torch.int64)
            of_rows = given[:, 0].repeat_interleave(sizes.to(given.device), 0)
            return Bounded.of(of_rows.expand(-1, self.case.n))
        # A row behind the last group is not computed.
        return Bounded.of(given.expand(self.case.shape)[..., : self.rows, :].clone())
