"""Products to compare kernels with, and the limits of errors, relative to torch's."""

import copy
import math
from functools import cached_property

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GemmArguments, PerformanceControls

from support import memory
from support.helpers import FLOAT8, INTEGERS
from support.memory import Form, Output
from support.properties import Types, family_of, sums_fast, truncates

#: The relative error of rounding once to the nearest.
ROUNDOFF = {
    torch.float8_e5m2: 2.0**-3,
    torch.float8_e4m3fn: 2.0**-4,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
    torch.float32: 2.0**-24,
    torch.float64: 2.0**-53,
}
TF32_ROUNDOFF = 2.0**-11
#: The limit of the error of float8 sums on tensor cores, relative to `Problem.scales`. A wgmma
#: instruction adds 32 products to a partial sum: it aligns these 33 terms to the largest one, keeps
#: 14 bits and truncates the rest. Products have at most 8 significant bits, so few lose any. The
#: error of an instruction is about one unit of the last bit, at most 2^-13 of the largest term.
#: - The largest term is at most about `scales`, the root of the sum of all squared products, which
#:   is also the root mean square of sums with random signs.
#: - The errors of the 4 instructions of a chain of 128 products mostly have the same sign: 4 units.
#: - Chains are added in float32. Their errors are independent, so that the total error and `scales`
#:   both grow with the square root of the number of chains.
TRUNCATION = 4 * 2.0**-13
#: If all products of an element are equal, they lose the same bits: each of 33 terms up to one
#: unit, in 4 instructions, relative to the sum.
TRUNCATION_OF_EQUAL_TERMS = 33 * TRUNCATION
#: Outputs with fewer distinct elements have errors that scatter too much to be compared as a ratio.
ENOUGH_FOR_A_RATIO = 4096
#: Parts of the names of errors that destroy the CUDA context.
FATAL = (
    "ILLEGAL_ADDRESS",
    "MISALIGNED_ADDRESS",
    "LAUNCH_FAILED",
    "ILLEGAL_INSTRUCTION",
    "LAUNCH_TIMEOUT",
)


# ---- references and errors -----------------------------------------------------------------------


def exact_integer_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b modulo 2^32, as int32. Multiplies 16-bit halves, whose sums of products are exact in
    float64.
    """

    def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.to(torch.int64)
        return (wide & 0xFFFF).double(), (wide >> 16 & 0xFFFF).double()

    (a_low, a_high), (b_low, b_high) = halves(a), halves(b)
    low = (a_low @ b_low).to(torch.int64)
    high = (a_low @ b_high + a_high @ b_low).to(torch.int64)
    wrapped = (low + (high << 16)) & 0xFFFFFFFF
    return torch.where(wrapped >= 2**31, wrapped - 2**32, wrapped).to(torch.int32)


def rounded_once(sums: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    """int32 sums rounded to nearest even. torch rounds to float32 first, and so twice to the 16-bit
    types: here that first rounding is towards zero, and sets the last bit where it drops others.
    """
    if to not in (torch.float16, torch.bfloat16):
        return sums.to(to)
    wide = sums.float()
    bits = wide.view(torch.int32) - (wide.double().abs() > sums.double().abs()).int()
    return (bits | (wide.double() != sums.double()).int()).view(torch.float32).to(to)


def smallest_step(dtype: torch.dtype) -> float:
    """The distance of the smallest numbers of a type; 0 for integers, whose sums are exact."""
    if not dtype.is_floating_point:
        return 0.0
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps


def float8_product(
    a: torch.Tensor, b: torch.Tensor, out: torch.dtype, fast_sums: bool
) -> torch.Tensor:
    """torch's own product of two float8 matrices, with scales of one. Copies them as
    torch._scaled_mm requires: A row-major, B column-major, K and N filled up with zeros to
    multiples of 16.
    """

    def with_whole_rows(matrix: torch.Tensor, rows: int) -> torch.Tensor:
        columns = -(-matrix.shape[1] // 16) * 16
        copied = torch.zeros(rows, columns, dtype=torch.uint8, device=matrix.device)
        copied[: matrix.shape[0], : matrix.shape[1]] = matrix.view(torch.uint8)
        return copied.view(matrix.dtype)

    n = b.shape[1]
    one = torch.ones((), device=a.device)
    left, right = with_whole_rows(a, a.shape[0]), with_whole_rows(b.mT, -(-n // 16) * 16)
    product = torch._scaled_mm(left, right.mT, one, one, out_dtype=out, use_fast_accum=fast_sums)
    return product[:, :n]


class Problem:
    """Inputs, and the lazily computed, cached values that their product is compared with."""

    #: The number of rows that a kernel writes, the first ones; None if it writes all.
    rows: int | None = None

    def __init__(self, types: Types, a: torch.Tensor, b: torch.Tensor, tf32: bool = False) -> None:
        self.types, self.a, self.b, self.tf32 = types, a, b, tf32
        self.truncates = self.fast_sums = False
        self.chain = math.inf
        self.shape = (*a.shape[:-1], b.shape[-1])
        self.k = a.shape[-1]

    @cached_property
    def on_float8_tensor_cores(self) -> "Problem":
        """The same problem, with the limits for kernels that truncate sums of float8 products, in
        chains of 128.
        """
        return self._truncated(chain=128)

    @cached_property
    def before_rounding(self) -> "Problem":
        """The same, for what an epilogue gets if the output is bfloat16 or float8, whose rounding
        hides the error of chains of 512.
        """
        return self._truncated(chain=512)

    @cached_property
    def with_fast_sums(self) -> "Problem":
        """The same, for kernels that add up all products in one chain."""
        return self._truncated(chain=math.inf, fast_sums=True)

    def _truncated(self, chain: float, fast_sums: bool = False) -> "Problem":
        other = copy.copy(self)
        other.truncates, other.chain, other.fast_sums = True, chain, fast_sums
        for name in ("sum_allowance", "torch_error"):  # cached values that depend on it
            vars(other).pop(name, None)
        return other

    @cached_property
    def exact(self) -> torch.Tensor:
        """For integers: the output, wrapped around as 32-bit sums do, then as narrow outputs do."""
        return rounded_once(exact_integer_product(self.a, self.b), self.types.out)

    @cached_property
    def parts(self) -> list[torch.Tensor]:
        """Terms whose sum is the float64 product, largest first; exact for float64 inputs."""
        a, b = self.a.double(), self.b.double()
        if self.types.a != torch.float64:
            return [a @ b]
        a_high, b_high = (torch.round(x * 2.0**16) * 2.0**-16 for x in (a, b))
        a_low, b_low = a - a_high, b - b_high
        return [a_high @ b_high, a_high @ b_low + a_low @ b_high, a_low @ b_low]

    def arguments(self, out: torch.Tensor) -> GemmArguments:
        controls = PerformanceControls(fast_sums=True) if self.fast_sums else None
        return GemmArguments(self.a, self.b, out, self.types.accumulator, performance=controls)

    def difference(self, out: torch.Tensor) -> torch.Tensor:
        difference = out.double()
        for part in self.parts:
            difference = difference - part
        return difference

    def error(self, out: torch.Tensor) -> float:
        """norm(out - product), NaN where out has one."""
        return float(self.difference(out).norm())

    @cached_property
    def scales(self) -> torch.Tensor:
        """The magnitude of each sum if the signs of its terms were random."""
        return (self.a.double().square() @ self.b.double().square()).sqrt()

    @cached_property
    def scale(self) -> float:
        return float(self.scales.norm())

    @property
    def has_equal_terms(self) -> bool:
        """Whether both operands repeat along K, so that all products of an element are equal."""
        return self.k > 1 and self.a.stride(-1) == 0 and self.b.stride(-2) == 0

    @property
    def truncations(self) -> torch.Tensor:
        """What truncation on float8 tensor cores may add to the error of each element."""
        # In one chain, the errors of all instructions mostly have the same sign.
        chains = max(1, min(self.k, self.chain) / 128)
        if self.has_equal_terms:
            return chains * TRUNCATION_OF_EQUAL_TERMS * sum(self.parts).abs()
        return chains * TRUNCATION * self.scales

    @property
    def input_roundoff(self) -> float:
        """The relative error of products of rounded inputs."""
        return 2 * TF32_ROUNDOFF if self.tf32 else 0.0

    @cached_property
    def sum_allowance(self) -> torch.Tensor:
        """The error bound of each sum. It is generous: it finds single wrong elements, which a norm
        over many elements hides.
        """
        relative = ROUNDOFF[self.types.accumulator] * max(self.k, 1) ** 0.5 + self.input_roundoff
        sums = 8 * relative * self.scales
        return sums + 8 * self.truncations if self.truncates else sums

    @property
    def allowance(self) -> torch.Tensor:
        """The error bound of each element: of the sum and of rounding to the output's type."""
        out = self.types.out
        if out in INTEGERS:  # rounding towards zero drops less than one
            return self.sum_allowance + 1
        rounding = 1.01 * ROUNDOFF[out] * sum(self.parts).abs()
        # Each addition to a float16 sum below its smallest normal rounds to a step of 6e-8.
        steps = smallest_step(out) + max(self.k, 1) * smallest_step(self.types.accumulator)
        return self.sum_allowance + rounding + steps

    @cached_property
    def rounding_error(self) -> float:
        """The error of the product rounded once to the output's type: a lower bound."""
        product = sum(reversed(self.parts))
        return self.error(
            product.to(self.types.out) if self.types.out == torch.float64 else self.rounded(product)
        )

    def rounded(self, product: torch.Tensor) -> torch.Tensor:
        return product.float().to(self.types.out)

    @cached_property
    def torch_error(self) -> float | None:
        """The error of torch's own product of these inputs; None where it has no such product."""
        types = self.types
        if self.truncates:
            return self.torch_float8_error
        if (
            types.a != types.b
            or types.a not in ROUNDOFF
            or types.accumulator == torch.float16
            or self.k == 0
        ):
            return None
        if types.out == types.a and types.a not in FLOAT8:
            return self.error(self.a @ self.b)
        if types.out == torch.float32 and types.a in (torch.float16, torch.bfloat16):
            multiply = torch.mm if self.a.dim() == 2 else torch.bmm
            try:
                return self.error(multiply(self.a, self.b, out_dtype=torch.float32))
            except (RuntimeError, TypeError, NotImplementedError):
                return None  # `out_dtype` is young, and does not take every shape
        return None

    @property
    def torch_float8_error(self) -> float | None:
        """The error of torch's product on float8 tensor cores. cuBLAS has none of two float8_e5m2,
        and none that rounds to float8 without a scale of the result.
        """
        types = self.types
        is_served = types.out in (torch.float32, torch.float16, torch.bfloat16) and (
            torch.float8_e4m3fn in (types.a, types.b)
        )
        if not is_served or self.k == 0 or memory.DEVICE.type != "cuda":
            return None
        batch = zip(self.a, self.b, strict=True) if self.a.dim() == 3 else [(self.a, self.b)]
        try:
            products = [float8_product(a, b, types.out, self.fast_sums) for a, b in batch]
        except RuntimeError:
            return None  # for the shapes that cuBLAS refuses
        return self.error(torch.stack(products).view(self.shape))

    @property
    def compares_with_torch(self) -> bool:
        """Whether the ratio to torch's error is meaningful: torch has an error, over enough
        elements, of the same kind.
        """
        if self.types.integer or self.different < ENOUGH_FOR_A_RATIO or not self.torch_error:
            return False
        # With equal terms, the error depends on the order of additions alone, in the same way for
        # every element.
        if self.has_equal_terms:
            return False
        # cuBLAS has no tf32 for operands that are not aligned, and computes them in full float32.
        return not (self.tf32 and self.torch_error < TF32_ROUNDOFF / 8 * self.scale)

    @property
    def different(self) -> int:
        """The number of distinct output elements: rows of A that share memory make equal rows of
        out.
        """

        def apart(tensor: torch.Tensor, dimension: int) -> int:
            return 1 if tensor.stride(dimension) == 0 else tensor.shape[dimension]

        batches = max(apart(self.a, 0), apart(self.b, 0)) if self.a.dim() == 3 else 1
        return batches * apart(self.a, -2) * apart(self.b, -1)

    @property
    def noise(self) -> float:
        """The norm of errors of one rounding for each product, with random signs."""
        return ROUNDOFF[self.types.accumulator] * max(self.k, 1) ** 0.5 * self.scale

    @property
    def limit(self) -> float:
        """The largest acceptable error."""
        if self.compares_with_torch:
            # For small K, cuBLAS adds up float64 products in several chains, ours in one. Each of
            # the K roundings of a chain is off by up to ROUNDOFF of the sum so far, evenly spread:
            # the variances, of sums that grow to `scale`, add up to K / 2 / 3 of ROUNDOFF squared.
            chain = self.noise / 6**0.5 if self.types.out == torch.float64 else 0.0
            return max(1.2 * self.torch_error, chain)
        inputs = self.input_roundoff * self.scale
        if self.truncates:
            inputs += float(self.truncations.norm())
        return 1.2 * max(self.torch_error or 0.0, self.rounding_error) + 2 * self.noise + inputs

    def inaccuracy(self, out: torch.Tensor) -> str | None:
        """None if the values of an output are within the limits, or a description."""
        error = self.error(out)
        far_off = int((self.difference(out).abs() > self.allowance).sum())
        if error <= self.limit and not far_off:  # false for NaN
            return None
        return (
            f"error {error:.3e}, limit {self.limit:.3e}, torch {self.torch_error}, "
            f"scale {self.scale:.3e}, {far_off} elements far off"
        )


#: The worst ratio of error to torch's error by family and types, over the meaningful cases.
WORST: dict[tuple[str, str], tuple[float, str]] = {}


def check(
    kernel: cutlass_api.Kernel,
    artifact,
    problem: Problem,
    form: Form,
    what: str,
    assume_supported: bool = False,
) -> str | None:
    """Runs a kernel on a problem, into an output of this form. Returns None, or a description of
    the failure. `assume_supported`: also outside the extents for which `get_kernels` offers it.
    """
    name = f"{kernel.metadata.kernel_name}, {what}"
    if sums_fast(kernel):
        problem = problem.with_fast_sums
    elif truncates(kernel):
        problem = problem.on_float8_tensor_cores
    output = Output(problem.shape, problem.types.out, form)
    try:
        args = problem.arguments(output.tensor)
        kernel.run(args, artifact, assume_supported_args=assume_supported)
        memory.synchronize()
    except Exception as error:  # one bad kernel must not hide the others
        if isinstance(error, torch.AcceleratorError) or any(word in str(error) for word in FATAL):
            # The context is lost, so all later tests would fail.
            pytest.exit(f"{name}: {error}", returncode=1)
        return f"{name}: {type(error).__name__}: {error}"
    if not output.intact_around(problem.rows):
        return f"{name}: wrote outside the output"
    out = output.tensor[: problem.rows]
    if problem.types.integer:
        wrong = int((out != problem.exact).sum())
        return f"{name}: {wrong} of {out.numel()} elements differ" if wrong else None
    if problem.compares_with_torch:
        family, ratio = family_of(kernel), problem.error(out) / problem.torch_error
        if not ratio <= WORST.get((family, str(problem.types)), (0.0, ""))[0]:
            WORST[family, str(problem.types)] = (ratio, name)
    wrong = problem.inaccuracy(out)
    return f"{name}: {wrong}" if wrong else None
