"""Helpers of the GPU tests: operands in every memory layout, outputs that detect missing and stray
writes, and errors relative to torch's.
"""

import copy
import math
import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GemmArguments, PerformanceControls

from support.helpers import INTEGERS

#: The device of operands. A variable, so that the harness itself can run on the CPU.
DEVICE = torch.device("cuda")

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
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
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

#: About 0.1 s at 1 to 2 GHz: long enough that a launch on the wrong stream reads the old values.
SLEEP_CYCLES = 200_000_000

#: Bytes on either side of every operand. A multiple of 16, so that it leaves the operand aligned.
GUARD_BYTES = 256
#: Parts of the names of errors that destroy the CUDA context.
FATAL = (
    "ILLEGAL_ADDRESS",
    "MISALIGNED_ADDRESS",
    "LAUNCH_FAILED",
    "ILLEGAL_INSTRUCTION",
    "LAUNCH_TIMEOUT",
)


class Gemm:
    """Operands with an obvious product: all elements of A are equal, and all elements of B are."""

    def __init__(
        self, m: int = 128, n: int = 256, k: int = 64, dtype: torch.dtype = torch.float16
    ) -> None:
        self.k = k
        self.a = torch.ones(m, k, dtype=dtype, device="cuda")
        self.b = torch.ones(k, n, dtype=dtype, device="cuda")
        self.out = torch.full((m, n), torch.nan, dtype=dtype, device="cuda")
        self.args = GemmArguments(self.a, self.b, self.out, accumulator_type=torch.float32)
        self.kernel = cutlass_api.get_kernels(self.args)[0]
        self.artifact = self.kernel.compile(self.args)
        torch.cuda.synchronize()

    def shows(self, value: float) -> bool:
        """Whether out is the product of an A full of this value."""
        torch.cuda.synchronize()
        return bool((self.out == value * self.k).all())


def say(request: pytest.FixtureRequest, text: str) -> None:
    """Prints past pytest's capture, so that passing tests also print their figures."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{text}", flush=True)


# ---- kernels -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Types:
    a: torch.dtype
    b: torch.dtype
    accumulator: torch.dtype
    out: torch.dtype

    def __str__(self) -> str:
        short = [
            str(dtype).removeprefix("torch.")
            for dtype in (self.a, self.b, self.accumulator, self.out)
        ]
        return "{}x{}->{}->{}".format(*short)

    @property
    def integer(self) -> bool:
        """Whether sums are integers, which are exact modulo 2^32."""
        return self.accumulator == torch.int32


def types_of(kernel: cutlass_api.Kernel) -> Types:
    operands = kernel.metadata.operands
    sides = (operands.A.dtype, operands.B.dtype, operands.accumulator_type, operands.out.dtype)
    return Types(*(getattr(torch, dtype.name) for dtype in sides))


def family_of(kernel: cutlass_api.Kernel) -> str:
    return kernel.metadata.kernel_name.split("_")[0]


def rounds_to_tf32(kernel: cutlass_api.Kernel) -> bool:
    return family_of(kernel) in ("sm80", "sm90") and types_of(kernel).a == torch.float32


def truncates(kernel: cutlass_api.Kernel) -> bool:
    """Whether tensor cores add up float8 products, of which they keep 14 bits."""
    if family_of(kernel) != "sm90":
        return False
    types = types_of(kernel)
    return types.a in FLOAT8 and types.b in FLOAT8


def sums_fast(kernel: cutlass_api.Kernel) -> bool:
    """Whether a kernel adds up float8 products in one chain."""
    return getattr(kernel.metadata.design, "fast_sums", False)


def layouts_of(kernel: cutlass_api.Kernel) -> list[str]:
    """A kernel's layouts of A, B and out, such as "tnt": t row-major, n column-major."""
    operands = kernel.metadata.operands
    letters = {(0, 0, 1): "t", (0, 1, 0): "n", None: "tn"}
    a, b, out = (letters[side.stride] for side in (operands.A, operands.B, operands.out))
    return [i + j + k for i in a for j in b for k in out]


def from_registers(kernel: cutlass_api.Kernel) -> bool:
    """Whether a kernel loads an operand into registers: float32 that wgmma cannot read from shared
    memory.
    """
    if family_of(kernel) != "sm90" or types_of(kernel).a != torch.float32:
        return False
    operands, packed = kernel.metadata.operands, kernel.metadata.design.packed
    by_rows = not packed[0] and operands.A.stride == (0, 1, 0)
    by_columns = not packed[1] and operands.B.stride == (0, 0, 1)
    return by_rows or by_columns


def over_grid(args: GemmArguments) -> list[cutlass_api.Kernel]:
    """The kernels for these arguments that have a grid split."""
    kernels = cutlass_api.get_kernels(args)
    return [kernel for kernel in kernels if getattr(kernel.metadata.design, "over_grid", False)]


def splits_over_cluster(kernel: cutlass_api.Kernel) -> bool:
    design = kernel.metadata.design
    return getattr(design, "split", 1) > 1 and not getattr(design, "over_grid", False)


@contextmanager
def float32_precision(precision: str):
    """torch's tf32 setting, which our kernels follow."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# ---- operands ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """The memory layout of a matrix or of a batch, in elements."""

    order: str = "t"
    #: The row stride (column stride if column-major) is a multiple of this, plus `pad`.
    multiple: int = 1
    pad: int = 0
    #: Elements before the first element.
    offset: int = 0
    #: The step within a row: 1 is contiguous.
    step: int = 1
    #: Dimensions that all read the same elements.
    broadcast: tuple[int, ...] = ()
    #: "apart"; "same": all matrices of the batch share memory; "overlapping": each begins one row
    #: after the previous one.
    batches: str = "apart"

    def strides(self, shape: Sequence[int]) -> list[int]:
        *batch, rows, columns = shape
        minor, major = (columns, rows) if self.order == "t" else (rows, columns)
        pitch = -(-max(minor * self.step, 1) // self.multiple) * self.multiple + self.pad
        steps = [pitch, self.step] if self.order == "t" else [self.step, pitch]
        between = {"apart": pitch * max(major, 1), "same": 0, "overlapping": pitch}[self.batches]
        strides = [between] * len(batch) + steps
        for dimension in self.broadcast:
            strides[dimension] = 0
        return strides


class Memory:
    """A tensor in its own memory, with the elements around it and between its rows."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, form: Form) -> None:
        strides = form.strides(shape)
        item = dtype.itemsize
        start = GUARD_BYTES // item + form.offset
        index = torch.full([1] * len(shape), start, device=DEVICE)
        for dimension, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
            steps = torch.arange(extent, device=DEVICE) * stride
            index = index + steps.view([-1 if at == dimension else 1 for at in range(len(shape))])
        # The index of the last element, computed on the host. An empty tensor has none.
        last = start + sum(
            max(extent - 1, 0) * stride for extent, stride in zip(shape, strides, strict=True)
        )
        size = last + 1 + GUARD_BYTES // item
        self.dtype = dtype
        self.bytes = torch.empty(size, item, dtype=torch.uint8, device=DEVICE)
        self.around = torch.ones(size, dtype=torch.bool, device=DEVICE)
        self.around[index.flatten()] = False
        self.tensor = (
            self.bytes.view(dtype).flatten().as_strided(tuple(shape), tuple(strides), start)
        )


def random_values(
    count: int, dtype: torch.dtype, generator: torch.Generator, small: bool
) -> torch.Tensor:
    if dtype in INTEGERS:
        low, high = (torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1)
        if small:
            low, high = max(low, -9), 10
        return torch.randint(low, high, (count,), generator=generator, device=DEVICE).to(dtype)
    values = torch.randn(count, generator=generator, device=DEVICE, dtype=torch.float64)
    if dtype == torch.float64:
        # A grid that lets `Reference` split numbers into two halves, whose products are exact.
        values = torch.round(values * 2.0**33) * 2.0**-33
        return values
    if small:
        values = values / 2
    return values.float().to(dtype)


def random_operand(
    shape: Sequence[int],
    dtype: torch.dtype,
    form: Form,
    generator: torch.Generator,
    small: bool = False,
) -> torch.Tensor:
    """Random values, with NaN (in integers, 255 or -1) wherever a kernel must not read."""
    memory = Memory(shape, dtype, form)
    flat = random_values(memory.bytes.shape[0], dtype, generator, small)
    memory.bytes.copy_(flat.view(torch.uint8).view(memory.bytes.shape))
    memory.bytes[memory.around] = 0xFF
    return memory.tensor


class Output:
    """An output filled with NaN (in integers, a sentinel) that detects writes around it."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, form: Form) -> None:
        self.memory = Memory(shape, dtype, form)
        # All bits set is a NaN in every float type here.
        self.poison = 0x5A if dtype in INTEGERS else 0xFF
        self.memory.bytes.fill_(self.poison)

    @property
    def tensor(self) -> torch.Tensor:
        return self.memory.tensor

    def intact_around(self) -> bool:
        return bool((self.memory.bytes[self.memory.around] == self.poison).all())


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
        smallest_step = torch.finfo(out).smallest_normal * torch.finfo(out).eps
        rounding = 1.01 * ROUNDOFF[out] * sum(self.parts).abs()
        return self.sum_allowance + rounding + smallest_step

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
        if not is_served or self.k == 0 or DEVICE.type != "cuda":
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
    name = kernel.metadata.kernel_name
    controls = None
    if sums_fast(kernel):
        problem, controls = problem.with_fast_sums, PerformanceControls(fast_sums=True)
    elif truncates(kernel):
        problem = problem.on_float8_tensor_cores
    output = Output(problem.shape, problem.types.out, form)
    try:
        args = GemmArguments(
            *(problem.a, problem.b, output.tensor, problem.types.accumulator),
            performance=controls,
        )
        kernel.run(args, artifact, assume_supported_args=assume_supported)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # one bad kernel must not hide the others
        if isinstance(error, torch.AcceleratorError) or any(word in str(error) for word in FATAL):
            # The context is lost, so all later tests would fail.
            pytest.exit(f"{name}, {what}: {error}", returncode=1)
        return f"{name}, {what}: {type(error).__name__}: {error}"
    if not output.intact_around():
        return f"{name}, {what}: wrote outside the output"
    if problem.types.integer:
        wrong = int((output.tensor != problem.exact).sum())
        return (
            f"{name}, {what}: {wrong} of {output.tensor.numel()} elements differ" if wrong else None
        )
    if problem.compares_with_torch:
        error = problem.error(output.tensor)
        family, ratio = family_of(kernel), error / problem.torch_error
        if not ratio <= WORST.get((family, str(problem.types)), (0.0, ""))[0]:
            WORST[family, str(problem.types)] = (ratio, f"{name}, {what}")
    wrong = problem.inaccuracy(output.tensor)
    return f"{name}, {what}: {wrong}" if wrong else None


# ---- helpers for tests of many kernels -----------------------------------------------------------


def by_family_and_types(kind: type) -> dict[tuple[str, Types], list[cutlass_api.Kernel]]:
    """All kernels for an H100 whose operands' metadata are of a kind."""
    groups = defaultdict(list)
    for kernel in cutlass_api.get_kernels(cc=90):
        if isinstance(kernel.metadata.operands, kind):
            groups[family_of(kernel), types_of(kernel)].append(kernel)
    return dict(groups)


class Artifacts:
    """Kernels, compiled at the first use in a test: many at once, on all cores."""

    def __init__(self) -> None:
        self._known: dict[str, object] = {}
        self._arguments: dict[Types, GemmArguments] = {}

    def of(self, kernels: list[cutlass_api.Kernel]) -> list[object]:
        """The artifact of each kernel, or the exception that its compilation raised.

        Kernels with row-major outputs come first. A kernel with a column-major output shares its
        program with the transpose among them, and then finds it in the disk cache: half of the
        work.
        """
        missing = [kernel for kernel in kernels if kernel.metadata.kernel_name not in self._known]
        arguments = {types: self._arguments_for(types) for types in set(map(types_of, missing))}

        def compile_one(kernel):
            try:
                return kernel.compile(arguments[types_of(kernel)])
            except Exception as error:
                return error

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for major in "tn":
                wave = [kernel for kernel in missing if layouts_of(kernel)[0][2] == major]
                for kernel, result in zip(wave, pool.map(compile_one, wave), strict=True):
                    self._known[kernel.metadata.kernel_name] = result
        return [self._known[kernel.metadata.kernel_name] for kernel in kernels]

    def _arguments_for(self, types: Types) -> GemmArguments:
        if types not in self._arguments:
            sides = (types.a, types.b, types.out)
            operands = (torch.zeros(16, 16, dtype=dtype, device=DEVICE) for dtype in sides)
            self._arguments[types] = GemmArguments(*operands, accumulator_type=types.accumulator)
        return self._arguments[types]


def generator_for(*seed: object) -> torch.Generator:
    """Random numbers that are the same in every run, and different from case to case."""
    number = 0
    for character in repr(seed):
        number = (number * 31 + ord(character)) % 2**31
    return torch.Generator(DEVICE).manual_seed(number)


def just_aligned(order: str, dtype: torch.dtype, load_bytes: int) -> Form:
    """A layout aligned to a kernel's load size and, where possible, not further."""
    elements = max(load_bytes // dtype.itemsize, 1)
    wider = 2 * elements if load_bytes < 16 else elements
    # An odd multiple of `elements`, at which nothing wider than a load can be used by mistake.
    return Form(order, multiple=wider, pad=elements if load_bytes < 16 else 0, offset=elements)


def fail_with(failures: list[str]) -> None:
    if failures:
        shown = "\n".join(failures[:40])
        more = f"\n... and {len(failures) - 40} more" if len(failures) > 40 else ""
        pytest.fail(f"{len(failures)} failures:\n{shown}{more}", pytrace=False)
