"""Kernels with fused epilogues, and operands in random memory layouts."""

import math
import random

import cutlass_api
import torch

from support import memory
from support.epilogues import (
    assert_close,
    expected,
    fused,
    shape_of,
)
from support.helpers import coarse
from support.memory import Form, Output, random_operand

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
E4M3, E5M2, S8, S32 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int32
#: Memory layouts of an operand of the epilogue.
FORMS = [
    Form(),
    Form(order="n"),
    Form(multiple=8),
    Form(multiple=8, pad=1),
    Form(multiple=8, offset=1),
    Form(step=2),
    Form(order="n", multiple=8, offset=3),
]


def in_form(values, form):
    """A copy of a tensor in this memory layout."""
    generator = torch.Generator(memory.DEVICE).manual_seed(0)
    if values.dim() < 2:
        return values.to(memory.DEVICE)
    copy = random_operand(values.shape, values.dtype, form, generator)
    copy.copy_(values.to(copy.device))
    return copy


def factors(batch, m, n, k, dtype, layout, seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = (coarse(*batch, *shape, dtype=dtype, generator=generator) for shape in ((m, k), (k, n)))
    aligned = seed % 2 == 0
    forms = [Form(order=letter, multiple=16 if aligned else 1) for letter in layout[:2]]
    return [
        in_form(x, form) if x.numel() else x.to(memory.DEVICE)
        for x, form in zip((a, b), forms, strict=True)
    ]


class Trial:
    """One epilogue fused into one problem, with operands in random layouts."""

    def __init__(
        self,
        case,
        batch,
        m,
        n,
        k,
        dtype=F16,
        out_dtype=None,
        accumulator=F32,
        seed=0,
        reductions=None,
    ):
        self.case, choose = case, random.Random(seed)
        layout = "".join(choose.choice("tn") for _ in range(3))
        self.a, self.b = factors(batch, m, n, k, dtype, layout, seed)
        shape = (*batch, m, n)
        generator = torch.Generator().manual_seed(seed)
        self.given = dict(case.numbers)
        for name, kind in case.tensors.items():
            tensor = coarse(
                *shape_of(kind, shape),
                dtype=choose.choice([F16, BF16, F32, F64, E5M2]),
                generator=generator,
            )
            tensor = (tensor.float().abs() + 1).to(tensor.dtype) if name == "scale" else tensor
            self.given[name] = (
                in_form(tensor, choose.choice(FORMS)) if tensor.dim() else float(tensor)
            )
        self.out = Output(
            shape, out_dtype or dtype, Form(order=layout[2], multiple=choose.choice([1, 8]))
        )
        self.others = {
            name: Output(shape, choose.choice([F16, BF16, F32, F64]), choose.choice(FORMS))
            for name in case.others
        }
        others = {name: output.tensor for name, output in self.others.items()}
        for name, kind in (reductions or {}).items():
            extents = shape_of(kind, shape)
            self.others[name] = Output((1, math.prod(extents)), choose.choice([F32, F64]), Form())
            others[name] = self.others[name].tensor.view(extents)
        self.operands = self.given | others
        self.args = fused(
            self.a, self.b, self.out.tensor, case.function, accumulator, **self.operands
        )
        compute = F64 if accumulator == F64 else F32
        self.wanted = expected(
            case.function, (self.a.double() @ self.b.double()).to(compute), self.given, compute
        )
        self.said = f"{case.name} {shape} k={k} {layout} {dtype} seed {seed}"

    def kernels(self):
        """A few supporting kernels of every family."""
        found = cutlass_api.get_kernels(self.args)
        choose = random.Random(len(found))
        by_family = {}
        for kernel in found:
            by_family.setdefault(type(kernel), []).append(kernel)
        assert len(by_family) > 1 or self.a.dtype in (F64, E4M3, E5M2, S32), self.said
        return [
            kernel
            for kernels in by_family.values()
            for kernel in {kernels[0], choose.choice(kernels)}
        ]

    def check(self, kernel):
        outputs = {"D": self.out, **self.others}
        for output in outputs.values():
            output.memory.bytes.fill_(output.poison)
        kernel.run(self.args)
        for name, output in outputs.items():
            what = f"{name} of {self.said}, {kernel.metadata.kernel_name}"
            assert_close(output.tensor, self.wanted[name].reshape(output.tensor.shape), what)
            assert output.intact_around(), f"written around {what}"


def swiglu(accum, up):
    D = silu(accum) * product(up)  # noqa: F821, resolved by the tracer
    return D


def gated(accum, bias, up, C, scale):
    gate = accum * scale + bias
    other = product(up)  # noqa: F821
    D = gelu(gate) * other + C * other  # noqa: F821
    return D, gate


#: Batch, M, N, K and dtype of dual GEMMs: partial tiles along M, N and K, few rows, several
#: matrices, an empty product.
DUAL = [
    ((), 131, 136, 200, BF16),
    ((), 37, 72, 136, F16),
    ((), 5, 264, 520, BF16),
    ((), 300, 520, 72, F16),
    ((3,), 70, 104, 72, BF16),
    ((2,), 1, 8, 8, F16),
    ((), 33, 48, 0, BF16),
]


class DualTrial(Trial):
    """An epilogue with the product of a second matrix, which lies behind B or, for odd seeds, in
    front of it.
    """

    def __init__(self, batch, m, n, k, dtype, seed=0):
        generator = torch.Generator().manual_seed(seed)
        letter, shape = "tn"[seed // 2 % 2], (*batch, m, n)

        def values(*extents):
            return coarse(*extents, dtype=dtype, generator=generator)

        a = values(*batch, m, k)
        self.a = in_form(a, Form(order=letter, multiple=8)) if k else a.to(memory.DEVICE)
        both = values(2, *batch, n, k).to(memory.DEVICE).mT
        self.b, up = (both[1], both[0]) if seed % 2 else (both[0], both[1])
        self.out, self.others = Output(shape, dtype, Form(multiple=[8, 1][seed % 2])), {}
        accum, product = ((self.a.double() @ x.double()).float().cpu() for x in (self.b, up))
        if seed % 3 < 2:
            function, self.given = swiglu, {"up": up}
            self.wanted = {"D": torch.nn.functional.silu(accum) * product}
        else:
            bias, C = (values(*extents).to(memory.DEVICE) for extents in ((n,), shape))
            function, self.given = gated, {"bias": bias, "up": up, "C": C, "scale": 0.5}
            gate = accum * 0.5 + bias.float().cpu()
            self.others = {"gate": Output(shape, F32, Form())}
            gelu = torch.nn.functional.gelu(gate)
            self.wanted = {"D": gelu * product + C.float().cpu() * product, "gate": gate}
        others = {name: output.tensor for name, output in self.others.items()}
        self.args = fused(self.a, self.b, self.out.tensor, function, F32, **self.given, **others)
        self.wanted = {name: x.to(memory.DEVICE) for name, x in self.wanted.items()}
        self.said = f"dual {shape} k={k} {letter} {dtype} seed {seed}"

    def kernels(self):
        return list(cutlass_api.get_kernels(self.args))


def gemm_operands(m=256, n=256, k=64):
    a, b = (coarse(*shape, dtype=F16).cuda() for shape in ((m, k), (k, n)))
    return a, b, coarse(m, n, dtype=F16).cuda(), torch.zeros(m, n, dtype=F16, device="cuda")
