"""As emulation.py: tests of scales, zero points and factors of 8-bit operands."""

import re
from itertools import product
from math import prod

import cutlass_api
import torch
from cutlass_api import arguments
from cutlass_api.ops import _epilogues
from cutlass_api.ops._scales import grouped_operands

from support.eight_bits import blocks, factors, of_blocks, spread, swizzled
from support.emulation import Kernel, finish
from support.memory import random_values
from support.properties import SPARSE, family_of, over_grid, some

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
S8, U8, S32 = torch.int8, torch.uint8, torch.int32
Block = tuple[int, int]
KINDS = ("matrix", "batch", "groups")

#: Types of B, of the scales and of the output; blocks of A and of B; layouts of A, B and out. B has
#: zero points if its elements are integers. A depth of -1 is all of K. Every second problem
#: swizzles scales of type E8M0.
SCALES: list[tuple[tuple[torch.dtype, ...], Block | None, Block, str]] = [
    ((E4M3, F32, F32), (1, 128), (128, 128), "tnt"),
    ((E4M3, F32, BF16), (1, 128), (128, 1), "tnn"),
    ((E4M3, F32, F32), (128, 128), (128, 1), "ttt"),
    ((E4M3, E8M0, F32), (1, 32), (32, 1), "tnt"),
    ((E5M2, E8M0, BF16), (1, 32), (32, 1), "tnn"),
    ((E4M3, F32, BF16), (64, 256), (64, 24), "tnt"),
    ((E5M2, F32, F32), (1, -1), (-1, 128), "tnn"),
    ((S8, BF16, F32), None, (48, 1), "tnt"),
    ((U8, F16, F32), (3, 7), (5, 11), "ttn"),
    ((E4M3, F32, F32), (1, 128), (128, 32), "tnt"),
]
#: The kinds of problems and their K. sm90 packs float8 operands with the first K, has a partial K
#: block with the second, whole ones with the third, and several times as many as it loads scales
#: ahead with the fourth, which is for the first scales and for the last.
PACKED, PARTIAL, WHOLE, DEEP = 150, 304, 384, 1168
PROBLEMS = [
    *((kind, PACKED) for kind in KINDS),
    *[("matrix", PARTIAL), ("batch", WHOLE), ("groups", PARTIAL), ("matrix", DEEP)],
]


def in_order(x: torch.Tensor, order: str) -> torch.Tensor:
    """The elements of x, row-major ("t") or column-major ("n")."""
    return x.contiguous() if order == "t" else x.mT.contiguous().mT


def all_swizzled(scales: torch.Tensor) -> torch.Tensor:
    """The scales of a matrix, or of each matrix of a batch, in tiles of 128 x 4."""
    return swizzled(scales) if scales.dim() == 2 else torch.stack([swizzled(x) for x in scales])


def packs(kernel: Kernel) -> bool:
    """Whether a kernel copies an operand before the product."""
    return any(getattr(kernel.metadata.design, "packed", ()))


def is_wrong(kernel: Kernel, args: object, out: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether a kernel writes other values than the expected ones, rounded to the output's type."""
    if not out.dtype.is_floating_point:
        out.fill_(77)
        kernel.run(args)
        return not torch.equal(out.double(), expected)
    out.fill_(torch.nan)
    kernel.run(args)
    eps = torch.finfo(out.dtype).eps
    limit = expected.abs() * eps / 2 + 1e-5 * expected.abs().max()
    return not ((out.double() - expected).abs() <= limit).all()


def block_scales() -> None:
    """Scales and zero points of blocks along K: blocks larger and smaller than tiles, partial
    blocks, matrices, batches and groups. Every kernel with the first scales, unpacked, a tenth of
    them with the others.
    """
    failures = []
    for (at, case), (turn, (kind, k)) in some(product(enumerate(SCALES), enumerate(PROBLEMS))):
        (narrow, dtype, to), a_block, b_block, layout = case
        is_integer = not narrow.is_floating_point
        if k != PACKED and (is_integer or layout[1] == "t"):
            continue  # the same kernels serve every K
        if at == len(SCALES) - 1 if k != DEEP else at not in (0, len(SCALES) - 1):
            continue
        m, n = 70, 90
        batch = () if kind == "matrix" else (2,)
        of_a = () if kind == "groups" else batch
        a = torch.randn(*of_a, m, k).to(F16 if is_integer else E4M3)
        b = torch.randn(*batch, k, n)
        b = (40 * b + 60).clamp(0, 120).to(narrow) if is_integer else b.to(narrow)
        out = torch.empty(*of_a, m, n, dtype=to)
        orders = layout[:2] + ("t" if kind == "groups" else layout[2])
        a, b, out = (in_order(x, order) for x, order in zip((a, b, out), orders, strict=True))
        left, right = a.double(), b.double()
        is_swizzled = dtype is E8M0 and turn % 2 == 1
        operands: dict[str, torch.Tensor] = {}
        calls = []
        if a_block is not None:
            scale = factors(*of_a, *blocks((m, k), a_block), dtype=dtype)
            operands["x"] = all_swizzled(scale) if is_swizzled else scale
            calls.append(f"a=x, a_block={a_block}")
            left = left * spread(scale, *a_block, (m, k))
        scale = factors(*batch, *blocks((k, n), b_block), dtype=dtype)
        operands["y"] = all_swizzled(scale.mT) if is_swizzled else scale
        calls.append(f"b=y, b_block={b_block}")
        if is_swizzled:
            calls.append('a_swizzle="32x4x4", b_swizzle="32x4x4"')
        if is_integer:
            operands["z"] = zero = torch.randint(0, 9, scale.shape).to(S8)
            calls.append("b_zero=z")
            right = right - spread(zero, *b_block, (k, n))
        right = right * spread(scale, *b_block, (k, n))
        source = (
            f"def f(accum, {', '.join(operands)}):\n"
            f"    D = scale_blocks(accum, {', '.join(calls)})\n    return D\n"
        )
        epilogue = arguments.EpilogueArguments(source, D=out, **operands)
        if kind == "groups":
            ends = torch.tensor([33, m], dtype=S32)
            args = arguments.GroupedGemmArguments(a, b, out, "float32", ends, epilogue=epilogue)
            expected = torch.cat([left[:33] @ right[0], left[33:] @ right[1]])
        else:
            args = arguments.GemmArguments(a, b, out, "float32", epilogue=epilogue)
            expected = left @ right
        kernels = cutlass_api.get_kernels(args)
        if k != PACKED:
            kernels = [x for x in kernels if family_of(x) == "sm90" and not packs(x)]
            assert kernels, (at, kind, k)
        every = at == 0 and k == PARTIAL
        for kernel in kernels[::SPARSE] if every else kernels[(at + turn) % 3 :: 10 * SPARSE]:
            if is_wrong(kernel, args, out, expected):
                failures.append(f"{kernel.metadata.kernel_name}, {kind} {k} {at}")
    finish(failures)


def grouped_scales() -> None:
    """The scales of `scaled_grouped_mm`, by the kernels of sm90, also those of fast sums: one for
    all, scales of rows, columns, groups and blocks; an empty group, rows after the last group.
    """
    failures = []
    controls = arguments.PerformanceControls(fast_sums=True)
    m, n, k, ends = 230, 152, 304, [20, 20, 221]  # 201 rows reach each block of a tile of 256
    a, b = torch.randn(m, k).to(E4M3), torch.randn(3, n, k).to(E4M3).mT
    of_a = [(), (m, 1), (m, 3), (2, 3)]
    of_b = [(), (3, 1, 1), (3, 1, n), (3, 3, 2), (3, 3, n)]
    for at, shapes in enumerate(product(of_a, of_b)):
        scale_a, scale_b = (factors(*shape) for shape in shapes)
        operands, calls = grouped_operands("scaled_grouped_mm", a, b, scale_a, scale_b)
        out = torch.empty(m, n, dtype=F32 if at % 2 else BF16)
        source = _epilogues.scaled(*operands, blocks=calls)
        epilogue = arguments.EpilogueArguments(source, D=out, **operands)
        offsets = torch.tensor(ends, dtype=S32)
        args = arguments.GroupedGemmArguments(a, b, out, "float32", offsets, epilogue, controls)
        left = a.double() * of_blocks(scale_a, (m, k))
        right = b.double() * of_blocks(scale_b, (k, n))
        expected = torch.cat([left[:20] @ right[0], left[20:221] @ right[2]])
        kernels = [x for x in cutlass_api.get_kernels(args) if family_of(x) == "sm90"]
        assert kernels, shapes
        for kernel in kernels[at // 2 % 4 :: 4]:
            out[221:] = torch.nan
            if is_wrong(kernel, args, out[:221], expected) or not out[221:].isnan().all():
                failures.append(f"{kernel.metadata.kernel_name}, {shapes}")
    finish(failures)


SUM, REQUANTIZED = "accum * x * y", "clamp(round(accum * x * y) + z, low, high)"
#: Types of A, B and the output; layouts; kinds of the factors x and y; the epilogue.
FACTORS: list[tuple[tuple[torch.dtype, ...], str, str, str, str]] = [
    ((E4M3, E4M3, BF16), "tnt", "rows", "columns", SUM),
    ((E4M3, E5M2, F16), "tnn", "rows", "columns", SUM),
    ((E5M2, E4M3, BF16), "tnt", "tensor", "tensor", SUM),
    ((E5M2, E5M2, F16), "ttn", "tensor", "columns", SUM),
    ((E4M3, E4M3, F32), "tnt", "rows", "tensor", SUM),
    ((S8, S8, BF16), "tnt", "rows", "columns", SUM),
    ((U8, U8, F16), "tnn", "tensor", "columns", SUM),
    ((S8, S8, S8), "tnt", "rows", "columns", REQUANTIZED),
    ((S8, S8, U8), "tnn", "tensor", "tensor", REQUANTIZED),
    ((U8, U8, U8), "tnt", "rows", "tensor", REQUANTIZED),
    ((U8, U8, S8), "nnt", "tensor", "columns", REQUANTIZED),
    ((F16, S8, F16), "tnt", "tensor", "columns", SUM),
    ((U8, BF16, BF16), "tnn", "rows", "tensor", SUM),
]


def sums_with_factors() -> None:
    """Factors of all elements, of rows and of columns, and requantized integers: matrices, batches
    and groups, by a few of the kernels for tensor cores. Operands that are K-major are not packed.
    """
    failures = []
    for (at, case), (turn, kind) in some(product(enumerate(FACTORS), enumerate(KINDS))):
        (type_a, type_b, to), layout, of_x, of_y, formula = case
        if kind == "groups" and (layout[:2] != "tn" or type_a.itemsize != type_b.itemsize):
            continue  # no such kernels for tensor cores
        m, n, k = 70, 90, 304
        batch = () if kind == "matrix" else (2,)
        of_a = () if kind == "groups" else batch
        generator = torch.Generator().manual_seed(at)
        a, b = (
            random_values(prod(shape), dtype, generator, small=False).view(shape)
            for shape, dtype in (((*of_a, m, k), type_a), ((*batch, k, n), type_b))
        )
        out = torch.empty(*of_a, m, n, dtype=to)
        orders = layout[:2] + ("t" if kind == "groups" else layout[2])
        a, b, out = (in_order(x, order) for x, order in zip((a, b, out), orders, strict=True))
        if kind == "groups":
            sums = torch.cat([a[:33].double() @ b[0].double(), a[33:].double() @ b[1].double()])
        else:
            sums = a.double() @ b.double()
        # A column of the batch's rows, and a row for all matrices.
        shape = {"rows": (*of_a, m, 1), "columns": (1, n), "tensor": (1,)}
        x, y = factors(*shape[of_x]), factors(*shape[of_y])
        # Some results exceed the range of 8 bits, none that of 16.
        x *= 180 / (sums * x * y).abs().mean()
        operands = {"x": x, "y": y}
        is_integer = not type_a.is_floating_point and not type_b.is_floating_point
        if formula == SUM:
            expected = sums * x * y
        else:
            info = torch.iinfo(to)
            low, high = float(info.min), float(info.max)
            operands |= {"z": torch.randint(-9, 9, (1, n), dtype=S32), "low": low}
            operands["high"] = high
            scaled = sums.float() * x * y
            expected = (torch.round(scaled) + operands["z"]).clamp(low, high).double()
            assert (expected == high).any() and (expected != high).any()
        source = f"def f(accum, {', '.join(operands)}):\n    D = {formula}\n    return D\n"
        epilogue = arguments.EpilogueArguments(source, D=out, **operands)
        accumulator = "int32" if is_integer else "float32"
        controls = arguments.PerformanceControls(fast_sums=True)
        if kind == "groups":
            ends = torch.tensor([33, m], dtype=S32)
            args = arguments.GroupedGemmArguments(a, b, out, accumulator, ends, epilogue, controls)
        else:
            args = arguments.GemmArguments(a, b, out, accumulator, epilogue, controls)
        kernels = [
            kernel
            for kernel in cutlass_api.get_kernels(args)
            if family_of(kernel) in ("sm80", "sm90") and (layout[:2] != "tn" or not packs(kernel))
        ]
        kernels.sort(key=lambda kernel: kernel.metadata.kernel_name)
        assert kernels, (at, kind)
        # Integer sums become float32 in registers, differently for each store.
        is_converted = is_integer and formula == SUM and kind == "matrix"
        for kernel in kernels[(at + turn) % 7 :: 4 if is_converted else 24 * SPARSE]:
            if is_wrong(kernel, args, out, expected):
                failures.append(f"{kernel.metadata.kernel_name}, {kind} {at}")
    finish(failures)


#: Types of A, B and the output of grid splits, and the epilogue.
GRID_SPLITS = [
    ((E5M2, E4M3, BF16), "accum * x * y"),
    ((E4M3, E4M3, F16), "scale_blocks(accum, a=u, b=v, a_block=(1, 128), b_block=(128, 1)) * x"),
    ((S8, S8, S32), None),
    ((U8, U8, F32), "accum * x * y"),
]


def grid_splits() -> None:
    """Partial sums of 8-bit operands that meet in workspace: several slices of K, clusters that
    overhang, integers whose partial sums are -1, 0 and large. All kernels, or two of the three,
    others with the next types.
    """
    failures = []
    m, n, k = 70, 90, 4112
    for at, ((type_a, type_b, to), formula) in enumerate(GRID_SPLITS):
        generator = torch.Generator().manual_seed(at)
        a = random_values(m * k, type_a, generator, small=False).view(m, k)
        b = random_values(n * k, type_b, generator, small=False).view(n, k).mT
        if type_a is S8:
            # Rows of -1 in one element, and of the least integers.
            a[:5] = 0
            a[:5, 7], b[7] = -1, 1
            a[5:9], b[:, 3] = -128, 127
        out = torch.empty(m, n, dtype=to)
        left, right = a.double(), b.double()
        values = {"x": factors(m, 1), "y": factors(1, n), "u": factors(m, 33), "v": factors(33, n)}
        names = [name for name in values if re.search(rf"\b{name}\b", formula or "")]
        operands, epilogue = {name: values[name] for name in names}, None
        if formula is not None:
            source = f"def f(accum, {', '.join(operands)}):\n    D = {formula}\n    return D\n"
            epilogue = arguments.EpilogueArguments(source, D=out, **operands)
        if "u" in operands:
            left = left * spread(operands["u"], 1, 128, (m, k))
            right = right * spread(operands["v"], 128, 1, (k, n))
        expected = left @ right * operands.get("x", 1.0) * operands.get("y", 1.0)
        accumulator = "float32" if type_a.is_floating_point else "int32"
        args = arguments.GemmArguments(a, b, out, accumulator, epilogue=epilogue)
        kernels = over_grid(args)
        assert len(kernels) == 3
        failures += [
            f"{kernel.metadata.kernel_name}, {at}"
            for kernel in (kernels if SPARSE == 1 else kernels[at % 3 :: 2])
            if is_wrong(kernel, args, out, expected)
        ]
    finish(failures)


def infinite_factors() -> None:
    """Kernels that split K multiply the whole sum by an infinite factor: their partial sums differ
    in sign.
    """
    failures = []
    for dtype, k in ((E4M3, 512), (F16, 2176)):
        a, b = torch.randn(20, k).to(dtype), torch.randn(24, k).to(dtype).mT
        x, y = torch.full((20, 1), torch.inf), factors(1, 24)
        out = torch.empty(20, 24, dtype=BF16 if dtype is E4M3 else dtype)
        source = "def f(accum, x, y):\n    D = accum * x * y\n    return D\n"
        epilogue = arguments.EpilogueArguments(source, D=out, x=x, y=y)
        args = arguments.GemmArguments(a, b, out, "float32", epilogue=epilogue)
        expected = (a.double() @ b.double()) * x * y
        kernels = [
            kernel
            for kernel in cutlass_api.get_kernels(args)
            if family_of(kernel) == "sm90" and kernel.metadata.design.split > 1
        ]
        for kernel in kernels if dtype is E4M3 else kernels[::4]:
            out.zero_()
            kernel.run(args)
            if not torch.equal(out.double(), expected):
                failures.append(kernel.metadata.kernel_name)
    finish(failures)


#: Types of A and B, of the scales and of the zero points; the rows (columns) and the elements of K
#: that share a scale; whether the integers are K-major, otherwise they are packed; extents of a
#: batch and of the product.
INTEGER_SCALES = [
    ((F16, S8), F32, S8, (1, 32), True, (), (70, 190, 400)),
    ((F16, U8), F16, U8, (1, 128), True, (2,), (130, 70, 272)),
    ((BF16, S8), BF16, F32, (1, 64), True, (), (24, 200, 336)),
    ((BF16, U8), F32, S32, (3, 96), True, (), (70, 136, 400)),
    ((S8, F16), F32, F16, (1, 256), True, (), (200, 24, 784)),
    ((U8, F16), BF16, None, (64, 32), True, (2,), (70, 72, 144)),
    ((S8, BF16), F32, None, (1, 128), True, (), (136, 136, 16)),
    ((U8, BF16), F32, BF16, (1, 32), True, (), (72, 264, 152)),
    ((F16, U8), F32, F16, (1, 16), True, (), (70, 136, 208)),
    ((S8, BF16), BF16, None, (3, 48), True, (2,), (136, 24, 336)),
    ((F16, S8), F16, S8, (1, 128), False, (), (70, 144, 272)),
    ((BF16, U8), BF16, F32, (1, 32), False, (2,), (24, 100, 150)),
    ((U8, F16), F32, U8, (1, 64), False, (), (136, 24, 336)),
    ((S8, BF16), F32, None, (3, 96), False, (), (70, 70, 400)),
]


def integer_scales() -> None:
    """Scales and zero points of the integers of mixed products, by the kernels that convert them in
    registers: partial blocks along K, rows outside the operands. All designs with the first types
    and an eighth of them, or a fourth of those with packed integers, with the others.
    """
    failures = []
    for at, (types, dtype, zeros, (rows, depth), is_k_major, batch, (m, n, k)) in enumerate(
        INTEGER_SCALES
    ):
        is_a = not types[0].is_floating_point
        narrow, wide = types if is_a else types[::-1]
        shape, block = ((m, k), (rows, depth)) if is_a else ((k, n), (depth, rows))
        low = -128 if narrow == torch.int8 else 0
        integers = torch.randint(low, low + 256, (*batch, *shape)).to(narrow)
        integers = in_order(integers, "t" if is_a == is_k_major else "n")
        other = torch.randn(*batch, *((k, n) if is_a else (m, k))).to(wide)
        scale = (factors(*batch, *blocks(shape, block)) / 100).to(dtype)
        operands, more, dequantized = {"x": scale}, "", integers.double()
        side = "a" if is_a else "b"
        if zeros is not None:
            zero = low + 256 * torch.rand(scale.shape)
            operands["z"] = zero = zero.to(zeros)
            more = f", {side}_zero=z"
            dequantized = dequantized - spread(zero, *block, shape)
        dequantized = dequantized * spread(scale, *block, shape)
        # Rounded once, as torch computes in float32.
        dequantized = dequantized.float().to(wide).double()
        right = other.double()
        expected = dequantized @ right if is_a else right @ dequantized
        source = (
            f"def f(accum, {', '.join(operands)}):\n"
            f"    D = scale_blocks(accum, {side}=x, {side}_block={block}{more})\n    return D\n"
        )
        out = torch.empty(*batch, m, n, dtype=wide)
        epilogue = arguments.EpilogueArguments(source, D=out, **operands)
        a, b = (integers, other) if is_a else (other, integers)
        args = arguments.GemmArguments(a, b, out, "float32", epilogue=epilogue)
        kernels = [k for k in cutlass_api.get_kernels(args) if family_of(k) == "sm90"]
        assert kernels, at
        some = kernels[at % 8 :: 8] if is_k_major else kernels[at % 4 :: 4]
        for kernel in kernels[::SPARSE] if at == 0 else some:
            out.fill_(torch.nan)
            kernel.run(args)
            limit = expected.abs() * torch.finfo(wide).eps / 2 + 2e-5 * expected.abs().max()
            if not ((out - expected).abs() <= limit).all():
                failures.append(f"{kernel.metadata.kernel_name}, {at}")
    finish(failures)
