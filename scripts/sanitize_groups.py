"""The grouped GEMMs of `scripts/sanitize.py`, and the kernels of slots."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import cutlass_api
import torch
from cutlass_api import quantize
from cutlass_api.arguments import EpilogueArguments, GroupedGemmArguments
from cutlass_api.nn import _experts

#: Rows of groups, or K: empty groups first and between others, one row, an end inside a tile.
SIZES = [0, 5, 0, 65, 1, 60]
ENDS = torch.tensor(SIZES).cumsum(0).int()
TOTAL = sum(SIZES)
GATED = "def gated(accum, up):\n    D = silu(accum) * product(up)\n    return D\n"


class Trial(NamedTuple):
    """Arguments on the GPU, their output, and its values as the rows of all groups."""

    args: GroupedGemmArguments
    out: torch.Tensor
    expected: torch.Tensor
    #: What `expected` is compared with.
    pick: Callable[[torch.Tensor], torch.Tensor] = lambda out: out


def rows(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of each group's rows, in float64."""
    parts = zip(a.double().split(SIZES), b.double(), strict=True)
    return torch.cat([part @ matrix for part, matrix in parts])


def trials() -> Iterator[Trial]:
    half = torch.bfloat16
    for dtype, n, k in [(half, 136, 72), (torch.float16, 131, 77), (torch.float32, 131, 77)]:
        a, b = torch.randn(TOTAL, k).to(dtype), torch.randn(6, n, k).to(dtype).mT
        out = torch.empty(TOTAL, n, dtype=dtype, device="cuda")
        on_gpu = b.mT.contiguous().cuda().mT
        args = GroupedGemmArguments(a.cuda(), on_gpu, out, "float32", ENDS.cuda())
        yield Trial(args, out, rows(a, b))

        masked = torch.full((6, 70, k), torch.nan, dtype=dtype)
        for matrix, part in zip(masked, a.split(SIZES), strict=True):
            matrix[: len(part)] = part
        out = torch.empty(6, 70, n, dtype=dtype, device="cuda")
        counts = torch.tensor(SIZES, dtype=torch.int32)
        args = GroupedGemmArguments(masked.cuda(), on_gpu, out, "float32", counts.cuda())
        yield Trial(args, out, rows(a, b), exist)

        grad = torch.randn(TOTAL, n).to(dtype)
        out = torch.empty(6, k, n, dtype=dtype, device="cuda")
        args = GroupedGemmArguments(a.cuda().mT, grad.cuda(), out, "float32", ENDS.cuda())
        parts = zip(a.double().split(SIZES), grad.double().split(SIZES), strict=True)
        yield Trial(args, out, torch.stack([x.mT @ y for x, y in parts]))

    table, index = torch.randn(40, 72, dtype=half), torch.randint(40, (TOTAL,), dtype=torch.int32)
    b, up = (torch.randn(6, 136, 72, dtype=half) / 8 for _ in range(2))
    gate, linear = (rows(table[index.long()], x.mT) for x in (b, up))
    for is_gated in (False, True):
        out = torch.empty(TOTAL, 136, dtype=half, device="cuda")
        operands = (table.cuda(), b.cuda().mT, out, "float32", ENDS.cuda())
        epilogue = EpilogueArguments(GATED, up=up.cuda().mT, D=out) if is_gated else None
        args = GroupedGemmArguments(*operands, epilogue, index=index.cuda())
        expected = torch.nn.functional.silu(gate) * linear if is_gated else gate
        yield Trial(args, out, expected)

    full, a = torch.randn(6, 136, 352, dtype=half), torch.randn(TOTAL, 352, dtype=half)
    # 11 and 10 scales of 32 elements a row, which are read one and two at a time.
    for k in (352, 320):
        formats = quantize.int4(full[..., :k], 32), quantize.mxfp4(full[..., :k])
        for weight in (*formats, quantize.fp8(full[..., :k], "row")):
            out = torch.empty(TOTAL, 136, dtype=half, device="cuda")
            stack = weight.to("cuda").repack()
            args = GroupedGemmArguments(a[:, :k].cuda(), stack, out, "float32", ENDS.cuda())
            yield Trial(args, out, rows(a[:, :k], weight.dequantize().mT))


def exist(out: torch.Tensor) -> torch.Tensor:
    """The rows of masked groups that exist."""
    return torch.cat([matrix[:size] for matrix, size in zip(out, SIZES, strict=True)])


def groups(results: Any, wanted: Callable[[cutlass_api.Kernel], bool], run: Any) -> None:
    """The first and the last kernel of each family, by their ranks."""
    for args, out, expected, pick in trials():
        families: dict[str, list[cutlass_api.Kernel]] = {}
        for kernel in filter(wanted, cutlass_api.get_kernels(args)):
            families.setdefault(kernel.metadata.kernel_name.split("_")[0], []).append(kernel)
        few = [of[at] for of in families.values() for at in {0, len(of) - 1}]
        for kernel in results.mine(few):
            out.copy_(torch.full(out.shape, torch.nan, dtype=out.dtype))
            run(kernel, args)
            results.compare(kernel.metadata.kernel_name, pick(out.cpu()), expected)


def slots(results: Any) -> None:
    """The kernels that sort slots and add their rows."""
    for tokens, top_k, experts in results.mine([(3, 1, 5), (350, 3, 33), (300, 8, 511)]):
        index = torch.randint(experts + 1, (tokens, top_k))
        routing = _experts.sort(index.cuda(), experts)
        expected = _experts.route(index, experts)
        torch.cuda.synchronize()
        for found, wanted in zip(routing, expected, strict=True):
            results.compare("slots_sort", found, wanted)
        values, weights = torch.randn(tokens * top_k, 264).bfloat16(), torch.rand(tokens, top_k)
        found = _experts.launch(values.cuda(), weights.cuda(), routing)
        torch.cuda.synchronize()
        results.compare("slots_add", found, _experts.add_slots(values, weights, expected))
