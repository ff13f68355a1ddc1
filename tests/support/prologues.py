"""Prologue functions for tests, with their operands and the same computation in float64."""

# The tracer resolves the names of the functions' operations, which this module does not define.
# ruff: noqa: F821

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import cutlass_api
import torch
from cutlass_api import arguments

from support import memory
from support.memory import Form, Output, random_operand
from support.properties import first_of_families

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
EPSILON = 1e-5

#: Kinds of operands: the shape of A, one number for each column, one for each row, one.
FULL, ROW, COLUMN, ONE = "full", "row", "column", "one"


def shape_of(kind, batch, m, k):
    """The shape of an operand of this kind."""
    return {FULL: (*batch, m, k), ROW: (k,), COLUMN: (*batch, m, 1), ONE: (1,)}[kind]


# ---- functions -----------------------------------------------------------------------------------


def rms_norm(A, weight, eps):
    A = A * torch.rsqrt(torch.mean(A * A, dim=-1, keepdim=True) + eps) * weight
    return A


def residual_rms_norm(A, residual, weight):
    total = A + residual
    A = total * rsqrt(mean(total * total) + 1e-5) * weight
    return A, total


def llama_rms_norm(A, residual, weight):
    total = cast(A + residual, torch.bfloat16)
    scaled = cast(total * rsqrt(total.square().mean(-1, keepdim=True) + 1e-5), torch.bfloat16)
    A = weight * scaled
    return A, total


def layer_norm(A, weight, bias):
    centred = A - mean(A)
    A = centred * rsqrt(mean(centred * centred) + 1e-5) * weight + bias
    return A


def gated(A, up):
    A = silu(A) * up
    return A


def scaled_to_largest(A, factor, shift):
    largest = amax(absolute(A))
    other = A * factor + shift
    A = other / maximum(largest, 1e-3) + sum(other) * 1e-3
    return A, other


def unchanged(A):
    return A


def of_rms_norm(A, weight, eps):
    return {"A": A * torch.rsqrt((A * A).mean(-1, keepdim=True) + eps) * weight}


def of_residual_rms_norm(A, residual, weight):
    total = A + residual
    return {**of_rms_norm(total, weight, EPSILON), "total": total}


def of_llama_rms_norm(A, residual, weight):
    total = (A + residual).to(BF16).double()
    scaled = of_rms_norm(total, 1.0, EPSILON)["A"].to(BF16).double()
    return {"A": weight * scaled, "total": total}


def of_layer_norm(A, weight, bias):
    return {"A": torch.nn.functional.layer_norm(A, A.shape[-1:], weight, bias, EPSILON)}


def of_gated(A, up):
    return {"A": torch.nn.functional.silu(A) * up}


def of_scaled(A, factor, shift):
    other = A * factor + shift
    largest = A.abs().amax(-1, keepdim=True).clamp(min=1e-3)
    return {"A": other / largest + other.sum(-1, keepdim=True) * 1e-3, "other": other}


@dataclass(frozen=True)
class Case:
    """A prologue function, the same in float64, and its operands."""

    function: Callable
    expected: Callable
    tensors: dict[str, str] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.function.__name__


CASES = [
    Case(rms_norm, of_rms_norm, {"weight": ROW}, {"eps": EPSILON}),
    Case(
        residual_rms_norm,
        of_residual_rms_norm,
        {"residual": FULL, "weight": ROW},
        outputs=("total",),
    ),
    Case(layer_norm, of_layer_norm, {"weight": ROW, "bias": ROW}),
    Case(gated, of_gated, {"up": FULL}),
    Case(scaled_to_largest, of_scaled, {"factor": COLUMN, "shift": ONE}, outputs=("other",)),
    Case(llama_rms_norm, of_llama_rms_norm, {"residual": FULL, "weight": ROW}, outputs=("total",)),
    Case(unchanged, lambda A: {"A": A}),
]


def biased_silu(accum, added):
    D = silu(accum + added)
    return D


#: The distance of neighbouring numbers over their size.
ULP = {F16: 2.0**-10, BF16: 2.0**-7, F32: 2.0**-22}
#: Memory layouts of operands of the shape of A.
FORMS = [Form(), Form(multiple=8), Form(multiple=8, pad=1), Form(step=2), Form(order="n")]


class Trial:
    """One prologue in front of one product, with operands in random layouts."""

    def __init__(
        self, case, batch, m, n, k, dtype=BF16, layout="tn", align=8, epilogue=None, seed=0
    ):
        self.case, choose = case, random.Random(seed)
        generator = torch.Generator(memory.DEVICE).manual_seed(seed)

        def values(extents, dtype, form):
            if len(extents) < 2:
                return torch.randn(extents, generator=generator, device=memory.DEVICE).to(dtype)
            return random_operand(extents, dtype, form, generator)

        forms = [Form(order, multiple=align, offset=align % 8) for order in layout]
        self.a = values((*batch, m, k), dtype, forms[0])
        self.b = values((*batch, k, n), dtype, forms[1])
        self.given = dict(case.numbers)
        for name, kind in case.tensors.items():
            extents = shape_of(kind, batch, m, k)
            self.given[name] = values(extents, choose.choice([dtype, F32]), choose.choice(FORMS))
        self.out = Output((*batch, m, n), dtype, Form())
        self.others = {
            name: Output((*batch, m, k), choose.choice([dtype, F32]), choose.choice(FORMS))
            for name in case.outputs
        }
        others = {name: output.tensor for name, output in self.others.items()}
        prologue = arguments.PrologueArguments(case.function, **self.given, **others)
        self.bias = None
        if epilogue:
            self.bias = values((n,), F32, Form())
            epilogue = arguments.EpilogueArguments(biased_silu, D=self.out.tensor, added=self.bias)
        self.args = arguments.GemmArguments(
            self.a,
            self.b,
            self.out.tensor,
            F32,
            epilogue=epilogue or None,
            prologue=prologue,
        )
        doubles = {
            name: value.double() if isinstance(value, torch.Tensor) else value
            for name, value in self.given.items()
        }
        self.wanted = case.expected(self.a.double(), **doubles)
        self.said = f"{case.name} {batch} {m} {n} {k} {dtype} {layout} {align} seed {seed}"

    def kernels(self, **options):
        return list(cutlass_api.get_kernels(self.args, **options))

    def failure(self, kernel):
        """What is wrong with a kernel's outputs; None if nothing is."""
        outputs = {"out": self.out, **self.others}
        for output in outputs.values():
            output.memory.bytes.fill_(output.poison)
        kernel.run(self.args)
        memory.synchronize()
        what = f"{kernel.metadata.kernel_name}, {self.said}"
        for name, output in outputs.items():
            wanted, slack = self.of_output(name)
            actual = output.tensor.double()
            error = (actual - wanted).abs()
            if not bool((error <= ULP[output.tensor.dtype] * wanted.abs() + slack).all()):
                return f"{what}: {name} is off by {error.max()}"
            if not output.intact_around():
                return f"{what}: written around {name}"
        return None

    def of_output(self, name):
        """What an output should be, and the error that its summands permit."""
        if name != "out":
            return self.wanted[name], 1e-6
        rounded = self.wanted["A"].to(self.a.dtype).double()
        product = rounded @ self.b.double()
        # An element of A between two numbers may be rounded to either.
        slack = 2e-5 * (rounded.abs() @ self.b.double().abs())
        slack = slack + ULP[self.a.dtype] * rounded.abs().amax() * self.b.double().abs().amax()
        if self.bias is None:
            return product, slack
        return torch.nn.functional.silu(product + self.bias.double()), 2 * slack


#: Batch, M, N, K: less than a tile of each, ragged K, several matrices, rows longer than the row
#: kernel keeps in registers.
SHAPES = [
    ((), 1, 40, 72),
    ((), 5, 67, 301),
    ((), 40, 72, 264),
    ((3,), 7, 150, 100),
    ((), 13, 16, 5),
    ((), 2, 24, 20488),
]


def trials():
    """Every function in two shapes and other layouts."""
    for seed, case in enumerate([*CASES, *CASES]):
        shape = SHAPES[seed % len(SHAPES)]
        layout = ["tn", "nt", "tt"][seed % 3]
        align = 8 if shape[-1] % 8 == 0 and shape[-2] % 8 == 0 else 1
        dtype = BF16 if case.function is llama_rms_norm or seed % 3 else F16
        yield Trial(case, *shape, dtype, layout, align, seed % 2 == 0, seed)


def quantize(A, largest):
    scale = maximum(amax(absolute(A)), 1e-12) / largest
    A = A / scale
    return A, scale


def descale(accum, scale, of_columns):
    D = accum * scale * of_columns
    return D


class Quantized:
    """A product of activations that a prologue quantizes: the scale of each row is stored, and the
    epilogue reads it.
    """

    def __init__(self, dtype, m, n, k, seed=0):
        generator = torch.Generator(memory.DEVICE).manual_seed(seed)

        def values(*shape):
            return torch.randn(shape, generator=generator, device=memory.DEVICE)

        is_integer = not dtype.is_floating_point
        self.dtype, self.largest = dtype, 127.0 if is_integer else 448.0
        self.a = random_operand((m, k), BF16, Form(), generator)
        b = values(n, k)
        self.b = ((b * 30).round() if is_integer else b).to(dtype).T
        self.of_columns = values(n)
        self.scale, self.out = Output((m, 1), F32, Form()), Output((m, n), BF16, Form())
        prologue = arguments.PrologueArguments(
            quantize, dtype=dtype, largest=self.largest, scale=self.scale.tensor
        )
        epilogue = arguments.EpilogueArguments(
            descale, D=self.out.tensor, scale=self.scale.tensor, of_columns=self.of_columns
        )
        accumulator = torch.int32 if is_integer else F32
        self.args = arguments.GemmArguments(
            self.a, self.b, self.out.tensor, accumulator, epilogue=epilogue, prologue=prologue
        )

    def check(self, kernel):
        """Compares with the same roundings in torch."""
        for output in (self.scale, self.out):
            output.memory.bytes.fill_(output.poison)
        kernel.run(self.args)
        memory.synchronize()
        a = self.a.float()
        scale = a.abs().amax(-1, keepdim=True) / self.largest
        quantized = a / scale
        if not self.dtype.is_floating_point:
            quantized = quantized.round()
        quantized = quantized.to(self.dtype).double()
        wanted = quantized @ self.b.double() * scale.double() * self.of_columns.double()
        torch.testing.assert_close(self.scale.tensor, scale, rtol=2e-7, atol=0)
        error = (self.out.tensor.double() - wanted).norm() / wanted.norm()
        assert error < 4e-3, f"{kernel.metadata.kernel_name} is off by {error}"
        assert self.scale.intact_around() and self.out.intact_around()


def gate_and_up(accum, up):
    D = silu(accum) * product(up)
    return D


def several(k=72, columns=(48, 16, 16)):
    """Arguments of a joint and of a dual GEMM behind a norm, with the output, actual and wanted."""
    generator = torch.Generator(memory.DEVICE).manual_seed(0)

    def values(*shape):
        return torch.randn(shape, generator=generator, device=memory.DEVICE).to(BF16)

    a, weight = values(5, k), values(k)
    matrices = [values(n, k).T for n in columns]
    prologue = arguments.PrologueArguments(rms_norm, weight=weight, eps=EPSILON)
    scaled = of_rms_norm(a.double(), weight.double(), EPSILON)["A"].to(BF16).double()
    joint, dual = values(5, sum(columns)), values(5, columns[0])
    args = arguments.GemmArguments(a, matrices, joint, F32, prologue=prologue)
    yield args, joint, torch.cat([scaled @ matrix.double() for matrix in matrices], dim=1)
    up = values(columns[0], k).T
    epilogue = arguments.EpilogueArguments(gate_and_up, D=dual, up=up)
    args = arguments.GemmArguments(a, matrices[0], dual, F32, epilogue, prologue=prologue)
    wanted = torch.nn.functional.silu(scaled @ matrices[0].double()) * (scaled @ up.double())
    yield args, dual, wanted


def check_several(**options):
    """Runs the first kernel of each family."""
    for args, out, wanted in several(**options):
        kernels = first_of_families(args)
        assert kernels
        for kernel in kernels:
            out.fill_(torch.nan)
            kernel.run(args)
            memory.synchronize()
            error = (out.double() - wanted).norm() / wanted.norm()
            assert error < 1e-2, f"{kernel.metadata.kernel_name} is off by {error}"
