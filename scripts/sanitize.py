"""Runs every family, schedule, type, layout and load width on small odd shapes, and the ladder.

    python scripts/sanitize.py                      # first without a tool: fills the disk cache
    compute-sanitizer --tool memcheck --error-exitcode 9 python scripts/sanitize.py

`scripts/sanitizers.py` runs this script by each tool and prints a table. Every operand is an
allocation that ends with its last element, so that memcheck sees any access past it. Values are
generated and compared on the CPU: only kernels of Rutlass run. `--only PART` selects kernels by a
part of their name. `--batches 150` makes each CTA of the persistent sm90 grids compute several
tiles.
"""

import argparse
import json
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

# In a memory pool, accesses past the end of an operand would go unnoticed.
os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
os.environ.setdefault("CUTLASS_API_CACHE_DIR", "/tmp/rutlass-sanitize")

import cutlass_api
import torch
from cutlass_api import quantize
from cutlass_api.arguments import (
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    PerformanceControls,
    PrologueArguments,
)
from cutlass_api.bench.ladder import STEPS
from cutlass_api.metadata import GemmOperandsMetadata, Sm90DesignMetadata
from sanitize_groups import groups, slots

T = TypeVar("T")

# Several small tiles, a part of a large tile, several blocks along K, remainders in each dimension.
M, N, K = 67, 131, 77
LETTERS = {(0, 0, 1): "t", (0, 1, 0): "n", None: "tn"}
SIDES = ("A", "B", "out")
INTEGERS = (torch.int8, torch.uint8, torch.int32)

REDUCING = """
def reducing(accum, C):
    D = relu(accum + C)
    rows = sum(D, -1)
    columns = max(D, -2)
    return D, rows, columns
"""

BLOCK_SCALED = """
def block_scaled(accum, scale_a, scale_b):
    D = scale_blocks(accum, scale_a, scale_b, a_block=(1, 128), b_block=(128, {}))
    return D
"""

GROUP_SCALED = """
def group_scaled(accum, scale, zero):
    D = scale_blocks(accum, b=scale, b_block=(64, 1), b_zero=zero)
    return D
"""

NORM = """
def norm(A, residual, weight):
    total = A + residual
    A = total * rsqrt(mean(total * total) + 1e-5) * weight
    return A, total
"""


class Results:
    """The number of results by family, and the names of wrong ones.

    ``share``: the number of this process, and of how many that each make a part of the calls.
    """

    def __init__(self, share: tuple[int, int]) -> None:
        self.families: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.first, self.shares = share
        self.calls = 0

    def mine(self, calls: Iterable[T]) -> Iterator[T]:
        """Those calls that this process makes."""
        for call in calls:
            self.calls += 1
            if self.calls % self.shares == self.first:
                yield call

    def compare(self, name: str, result: torch.Tensor, expected: torch.Tensor) -> None:
        self.families[name.split("_")[0]] += 1
        expected = expected.double()
        near = (result.cpu().double() - expected).norm() <= 2e-2 * expected.norm() + 1e-6
        # Sums may exceed the range of float8 or float16.
        if not near and not expected.isinf().any():
            self.wrong.append(name)


def family_of(kernel: cutlass_api.Kernel) -> str:
    return kernel.metadata.kernel_name.split("_")[0]


def by_family(kernels: list[cutlass_api.Kernel]) -> list[list[cutlass_api.Kernel]]:
    families: dict[str, list[cutlass_api.Kernel]] = {}
    for kernel in kernels:
        families.setdefault(family_of(kernel), []).append(kernel)
    return list(families.values())


def run(kernel: cutlass_api.Kernel, args: cutlass_api.arguments.RuntimeArguments) -> None:
    """Launches a kernel, and waits. Workspace may hold anything, which grid splits of sm90 read."""
    size = kernel.get_workspace_size(args)
    workspace = torch.full((size,), 0xA5, dtype=torch.uint8).cuda() if size else None
    kernel.run(args, workspace=workspace)
    torch.cuda.synchronize()


# Products.


def loads_of_b(design: Sm90DesignMetadata, layout: str) -> str:
    """How the operand tile along wgmma's N is loaded.

    A K-major tile arrives in slices of the CTAs that share it ("equal" or "unequal"). Otherwise it
    arrives in TMA boxes; the last box is "half empty" if at least half of it is outside the tile.
    """
    crossed = (layout[2] == "n") != design.swapped  # the tile is of the user's A
    n, along_k = (0, layout[0] == "t") if crossed else (1, layout[1] == "n")
    tile, sharers = design.tile_shape[n], design.cluster_shape[1 - n]
    if along_k or any(design.packed):
        return "unequal" if tile % (8 * sharers) else "equal"
    return "half empty" if -tile % 64 >= 32 else "full"


def chosen(part: str) -> Iterator[tuple[cutlass_api.Kernel, str]]:
    """The kernels to run, each with a layout of A, B and out.

    For each family, types, layout and load width: the kernel with the smallest tile and, with full
    loads, the one with the largest. For sm80 and simt also each split; for sm90 in float16 each
    schedule, split and orientation, by `loads_of_b`. simt has one program for all layouts but in
    float32: three layouts in other types.
    """
    groups: dict[tuple, list[cutlass_api.Kernel]] = {}
    for kernel in cutlass_api.get_kernels(cc=cutlass_api.utils.device_cc()):
        operands, design = kernel.metadata.operands, kernel.metadata.design
        if (
            not isinstance(operands, GemmOperandsMetadata)
            or part not in kernel.metadata.kernel_name
            or operands.B.dtype.width < 8  # codes, which weights() runs
        ):
            continue
        types = (
            *(getattr(operands, side).dtype.name for side in SIDES),
            operands.accumulator_type.name,
        )
        letters = [LETTERS[getattr(operands, side).stride] for side in SIDES]
        layouts = [i + j + k for i in letters[0] for j in letters[1] for k in letters[2]]
        family, kind = family_of(kernel), getattr(design, "load_bytes", 1)
        few = ("ttt", "tnt", "nnn")
        if family == "simt" and types[0] != "float32":
            layouts = list(few)
        if family in ("sm80", "simt") and design.cluster_shape[2] > 1:
            kind = design.cluster_shape
        if family == "sm90":
            whole = types == ("float16", "float16", "float16", "float32")
            layouts = [layout for layout in layouts if whole or layout in few]
            of_all = (design.schedule, design.load_bytes, design.swapped)
            of_each = (design.consumers, design.split > 1, design.over_grid, design.packed)
            kind = (*of_all, *of_each) if whole else of_all
        else:
            types = (*types[:2], types[3])  # stores are the same code for all output types
        for layout in layouts:
            loads = loads_of_b(design, layout) if family == "sm90" and whole else None
            groups.setdefault((family, types, layout, kind, loads), []).append(kernel)
    for (_, _, layout, kind, _), kernels in groups.items():
        by_size = sorted(kernels, key=lambda kernel: kernel.metadata.design.tile_shape)
        for kernel in dict.fromkeys([by_size[0], by_size[-1]] if kind == 16 else [by_size[0]]):
            yield kernel, layout


def compile_all(kernels: list[cutlass_api.Kernel], shares: int) -> None:
    """Compiles in parallel. Row-major outputs first: column-major ones use the same programs."""
    cc, threads = cutlass_api.utils.device_cc(), max((os.cpu_count() or 1) // shares, 1)

    def compile_one(kernel: cutlass_api.Kernel) -> None:
        operands = kernel.metadata.operands
        tensors = (
            torch.zeros(16, 16, dtype=getattr(torch, getattr(operands, side).dtype.name))
            for side in SIDES
        )
        kernel.compile(GemmArguments(*tensors, accumulator_type=operands.accumulator_type), cc=cc)

    with ThreadPoolExecutor(threads) as pool:
        for stride in LETTERS:
            list(
                pool.map(
                    compile_one, [k for k in kernels if k.metadata.operands.out.stride == stride]
                )
            )


def operand(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    order: str,
    load_bytes: int,
    fill: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A CUDA tensor whose rows are aligned to `load_bytes`, and the same tensor on the CPU."""
    elements = max(load_bytes // dtype.itemsize, 1)
    *batch, rows, columns = shape
    minor, major = (columns, rows) if order == "t" else (rows, columns)
    pitch = -(-minor // elements) * elements
    strides = (pitch, 1) if order == "t" else (1, pitch)
    strides = (pitch * major,) * len(batch) + strides
    count = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if fill is not None:
        flat = torch.full((count,), fill, dtype=torch.float32).to(dtype)
    elif dtype in INTEGERS:
        flat = torch.randint(0, 100, (count,), dtype=torch.int32).to(dtype)
    else:
        flat = torch.randn(count).to(dtype)
    return flat.to("cuda").as_strided(shape, strides), flat.as_strided(shape, strides)


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a strided tensor on the CPU, without a kernel of torch."""
    count = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    storage = torch.empty(count, dtype=tensor.dtype)
    storage.copy_(tensor.as_strided((count,), (1,), 0))
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def products(results: Results, part: str, batches: int) -> None:
    work = list(results.mine(chosen(part)))
    compile_all(list(dict.fromkeys(kernel for kernel, _ in work)), results.shares)
    for kernel, layout in work:
        name, operands, design = (
            kernel.metadata.kernel_name,
            kernel.metadata.operands,
            kernel.metadata.design,
        )
        sides = [getattr(operands, side) for side in SIDES]
        types = [getattr(torch, side.dtype.name) for side in sides]
        # Operands may require larger alignment than their loads.
        loads = [
            max(side.divisibility * dtype.itemsize, side.ptr_alignment_bytes)
            for side, dtype in zip(sides, types, strict=True)
        ]
        m, n, k = M, N, K
        if family_of(kernel) == "sm90" and types[0].itemsize == 2 and types[2] == torch.float32:
            m, n, k = 72, 136, 80  # sm90 requires aligned extents for float32 outputs
        if family_of(kernel) == "sm90" and design.load_bytes < 16:
            k = 76  # rows are multiples of the load width
        if family_of(kernel) == "sm90" and design.split > 1 and batches > 2:
            continue  # splits of K serve few tiles
        if family_of(kernel) == "sm90" and design.over_grid:
            # 33, 33 or 65 blocks along K for 8, 16 or 32 bits: four or eight splits
            k = 4112 if types[0].itemsize == 1 else 2064
        narrow = getattr(design, "narrow", None)
        if narrow == "m":
            m = min(13, design.tile_shape[0])
        if narrow == "n":
            n = min(13, design.tile_shape[1])
        a, a_cpu = operand((batches, m, k), types[0], layout[0], loads[0])
        b, b_cpu = operand((batches, k, n), types[1], layout[1], loads[1])
        out, _ = operand((batches, m, n), types[2], layout[2], loads[2], fill=99)
        controls = PerformanceControls(fast_sums=getattr(design, "fast_sums", False))
        run(
            kernel,
            GemmArguments(
                a, b, out, accumulator_type=operands.accumulator_type, performance=controls
            ),
        )
        expected = a_cpu.double() @ b_cpu.double()
        rounded = expected.to(torch.int64) if types[2] in INTEGERS else expected.float()
        results.compare(f"{name} {layout}", on_cpu(out), rounded.to(types[2]))


# Elementwise sums, reductions, block scales.


def sums(results: Results, wanted: Callable[[cutlass_api.Kernel], bool]) -> None:
    for dtype in (torch.float32, torch.float16, torch.int8, torch.float64):
        of_two = ((67, 131), 1, 1), ((67, 131), 0, 2), ((5, 4096), 0, 1)
        for shape, offset, step in (((3, 37, 53), 0, 1), *of_two):
            strides = [math.prod(shape[at + 1 :]) * step for at in range(len(shape))]
            flat = [
                torch.randint(-9, 9, (math.prod(shape) * step + offset,)).to(dtype)
                for _ in range(3)
            ]
            a, b, out = (each.to("cuda").as_strided(shape, strides, offset) for each in flat)
            a_cpu, b_cpu, _ = (each.as_strided(shape, strides, offset) for each in flat)
            args = ElementwiseArguments(a, b, out)
            for kernel in results.mine(filter(wanted, cutlass_api.get_kernels(args))):
                run(kernel, args)
                results.compare(
                    f"{kernel.metadata.kernel_name} {shape} {offset} {step}",
                    on_cpu(out),
                    a_cpu + b_cpu,
                )


def reductions(results: Results, wanted: Callable[[cutlass_api.Kernel], bool]) -> None:
    for m, n, k in [(67, 136, 72), (13, 131, 77)]:
        a, b, c = torch.randn(m, k).half(), torch.randn(k, n).half(), torch.randn(1, n)
        expected = torch.relu(a.double() @ b.double() + c.double())
        for order in "tn":
            empty = torch.empty(m, n) if order == "t" else torch.empty(n, m).T
            out = empty.half().cuda()
            rows, columns = torch.empty(m, 1, device="cuda"), torch.empty(1, n, device="cuda")
            fused = EpilogueArguments(REDUCING, C=c.cuda(), D=out, rows=rows, columns=columns)
            args = GemmArguments(a.cuda(), b.cuda(), out, "float32", fused)
            for kernels in by_family(list(filter(wanted, cutlass_api.get_kernels(args)))):
                few = dict.fromkeys([kernels[0], kernels[len(kernels) // 2], kernels[-1]])
                for kernel in results.mine(few):
                    for tensor in (out, rows, columns):
                        tensor.copy_(torch.full(tensor.shape, torch.nan))
                    run(kernel, args)
                    name = kernel.metadata.kernel_name
                    results.compare(f"{name} D", on_cpu(out), expected)
                    results.compare(f"{name} rows", rows, expected.sum(-1, keepdim=True))
                    results.compare(f"{name} columns", columns, expected.amax(-2, keepdim=True))


def scales(results: Results, wanted: Callable[[cutlass_api.Kernel], bool]) -> None:
    """Scales of blocks of float8 operands, also in groups, and scales of 8-bit integers."""
    m, n, k = 67, 136, 320  # the last blocks are partial

    def repeated(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
        wide = scale.double().repeat_interleave(rows, -2).repeat_interleave(columns, -1)
        return wide[:m, :k] if rows == 1 else wide[..., :k, :n]

    def check(
        a: torch.Tensor,
        b: torch.Tensor,
        epilogue: str,
        expected: torch.Tensor,
        ends: torch.Tensor | None = None,
        **scales: torch.Tensor,
    ) -> None:
        out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        on_gpu = {name: scale.cuda() for name, scale in scales.items()}
        fused, operands = EpilogueArguments(epilogue, D=out, **on_gpu), (a.cuda(), b.cuda(), out)
        if ends is None:
            args = GemmArguments(*operands, "float32", fused)
        else:
            args = GroupedGemmArguments(*operands, "float32", ends.cuda(), fused)
        for kernel in results.mine(filter(wanted, cutlass_api.get_kernels(args))):
            out.copy_(torch.full(out.shape, torch.nan))
            run(kernel, args)
            results.compare(kernel.metadata.kernel_name, out, expected)

    ends = torch.tensor([0, 5, m], dtype=torch.int32)
    a, b = torch.randn(m, k), torch.randn(3, n, k).mT
    e4m3_a, e4m3_b = (x.to(torch.float8_e4m3fn) for x in (a, b))
    scale_a = torch.rand(m, 3) + 0.5
    left = e4m3_a.double() * repeated(scale_a, 1, 128)
    for columns in (128, 1):  # of a block of B
        scale_b = torch.rand(3, 3, -(-n // columns)) + 0.5
        right = e4m3_b.double() * repeated(scale_b, 128, columns)
        epilogue = BLOCK_SCALED.format(columns)
        check(e4m3_a, e4m3_b[0], epilogue, left @ right[0], scale_a=scale_a, scale_b=scale_b[0])
        expected = torch.cat([left[:5] @ right[1], left[5:] @ right[2]])
        check(e4m3_a, e4m3_b, epilogue, expected, ends, scale_a=scale_a, scale_b=scale_b)

    a, b = a.bfloat16(), torch.randint(-100, 100, (n, k), dtype=torch.int8).T
    scale, zero = torch.rand(5, n) + 0.5, torch.randint(-9, 9, (5, n), dtype=torch.int8)
    weight = (b.double() - repeated(zero, 64, 1)) * repeated(scale, 64, 1)
    check(a, b, GROUP_SCALED, a.double() @ weight, scale=scale, zero=zero)


def weights(results: Results, wanted: Callable[[cutlass_api.Kernel], bool]) -> None:
    """Weights of 4 bits and of float8; K ends inside a group, and inside a K block."""
    n, k, dtype = 136, 352, torch.bfloat16
    full = torch.randn(n, k, dtype=dtype)
    formats = (
        *(quantize.int4(full, 128), quantize.int4(full, None), quantize.uint4(full, 32)),
        *(quantize.mxfp4(full), quantize.nvfp4(full), quantize.fp8(full, (128, 128))),
    )
    for m in (7, 16, 67):
        a = torch.randn(m, k, dtype=dtype)
        out = torch.empty(m, n, dtype=dtype, device="cuda")
        for weight in formats:
            args = GemmArguments(a.cuda(), weight.to("cuda").repack(), out, "float32")
            expected = a.double() @ weight.dequantize().double().t()
            for kernel in results.mine(filter(wanted, cutlass_api.get_kernels(args))):
                out.copy_(torch.full(out.shape, torch.nan))
                run(kernel, args)
                name = f"{kernel.metadata.kernel_name} {m} {type(weight).__name__}"
                results.compare(name, out, expected)


def joints(results: Results, wanted: Callable[[cutlass_api.Kernel], bool]) -> None:
    """Several matrices B of one A."""
    columns, k, dtype = (128, 64, 72), 72, torch.bfloat16
    matrices = [torch.randn(n, k, dtype=dtype) for n in columns]
    for m in (7, 67):
        a, out = torch.randn(m, k, dtype=dtype), torch.empty(m, sum(columns), dtype=dtype).cuda()
        args = GemmArguments(a.cuda(), [b.cuda().T for b in matrices], out, "float32")
        for kernel in results.mine(filter(wanted, cutlass_api.get_kernels(args))):
            out.copy_(torch.full(out.shape, torch.nan))
            run(kernel, args)
            expected = a.double() @ torch.cat(matrices).double().T
            results.compare(kernel.metadata.kernel_name, out, expected)


def prologues(results: Results, wanted: Callable[[cutlass_api.Kernel], bool]) -> None:
    """A norm of A and of a residual, with vectors of 16 bytes and, of K = 77, without."""
    for m, n, k in [(7, 136, 1032), (67, 131, 77)]:
        a, residual, total = (torch.randn(m, k).half() for _ in range(3))
        weight, b, out = torch.randn(k), torch.randn(n, k).half(), torch.empty(m, n).half().cuda()
        on_gpu = {"residual": residual.cuda(), "weight": weight.cuda(), "total": total.cuda()}
        prologue = PrologueArguments(NORM, **on_gpu)
        args = GemmArguments(a.cuda(), b.cuda().T, out, "float32", prologue=prologue)
        added = a.double() + residual.double()
        norm = added * (added.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
        for kernels in by_family(list(filter(wanted, cutlass_api.get_kernels(args)))):
            for kernel in results.mine(dict.fromkeys([kernels[0], kernels[-1]])):
                for tensor in (out, on_gpu["total"]):
                    tensor.copy_(torch.full(tensor.shape, torch.nan))
                run(kernel, args)
                results.compare(kernel.metadata.kernel_name, out, norm @ b.double().T)
                results.compare(f"{kernel.metadata.kernel_name} total", on_gpu["total"], added)


def ladder(results: Results, part: str) -> None:
    """The steps of ``bench ladder``, whose persistent kernels also get more tiles than CTAs."""
    for step in STEPS:
        name = f"ladder_{step.file}"
        if part not in name or not step.runs_on(cutlass_api.utils.device_cc()):
            continue
        shapes = [(67, 136, 72), *([(2056, 2568, 328)] if step.persistent else [])]
        for m, n, k in results.mine(shapes):
            a, b = (torch.randn(rows, k).half() for rows in (m, n))
            out = torch.full((m, n), torch.nan, dtype=torch.float16).cuda()
            step.bind(a.cuda(), b.cuda(), out, (m, n, k))()
            torch.cuda.synchronize()
            results.compare(name, out, a.double() @ b.double().T)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="PART", help="run only kernels with PART in their name"
    )
    parser.add_argument("--batches", type=int, default=2, help="batches of each product")
    parser.add_argument("--skip-products", action="store_true", help="run all but plain products")
    parser.add_argument("--share", default="0/1", help="0/4: the first of four processes")
    arguments = parser.parse_args()
    first, shares = map(int, arguments.share.split("/"))
    start, results = time.time(), Results((first, shares))
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # tf32 kernels refuse to run otherwise
    if not arguments.skip_products:
        products(results, arguments.only, arguments.batches)
    if arguments.batches == 2:
        ladder(results, arguments.only)

        def wanted(kernel: cutlass_api.Kernel) -> bool:
            return arguments.only in kernel.metadata.kernel_name

        for more in (sums, reductions, scales, weights, joints, prologues):
            more(results, wanted)
        groups(results, wanted, run)
        if arguments.only in "slots":
            slots(results)
    total, seconds = results.families.total(), time.time() - start
    print(f"{total} results in {seconds:.1f} s: {json.dumps(results.families)}", flush=True)
    for name in results.wrong:
        print(f"WRONG: {name}")
    return 1 if results.wrong or not results.calls else 0


if __name__ == "__main__":
    sys.exit(main())
