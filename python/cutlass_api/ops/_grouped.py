"""``grouped_mm``, and the operator by which it differentiates."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from cutlass_api._core import device_cc
from cutlass_api._tracing import is_readable
from cutlass_api.ops import _epilogues, _vmap
from cutlass_api.ops._dense import check_differentiable
from cutlass_api.ops._labels import SUMS, Labels, Rule, broadcast
from cutlass_api.ops._library import empty, launch, refuse, sum_dtype
from cutlass_api.ops._operator import OPS, Call, Gradient, Lowering, Operator


def grouped_mm(
    A: Tensor,
    B: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    zero_rest: bool = False,
    index: Tensor | None = None,
) -> Tensor:
    """Rows offs[g-1] to offs[g] of A (TotalM, K) times B[g], for B (G, K, N) and offs (G,), int32
    or int64. bias (G, N): a row for each group, which is added to its rows before they are rounded.
    index (TotalM,), int32 or int64: row i of the groups is row index[i] of A, which then has any
    number of rows. Kernels for compute capability 9.0 read such rows of 16 bits where they are;
    elsewhere they are copied first.

    Rows of the output past offs[-1] are uninitialized, as those of ``torch._grouped_mm``; with
    zero_rest, they are zeros. So is the gradient of A there.
    """
    if A.dim() != 2 or B.dim() != 3 or offs is None:
        raise refuse(
            "grouped_mm",
            f"A has rank {A.dim()}, B rank {B.dim()}, and offs is "
            f"{'missing' if offs is None else 'passed'}; pass A (TotalM, K), B (G, K, N) and offs "
            "(G,), or call torch._grouped_mm, which computes other forms",
        )
    offs = offsets_of("grouped_mm", offs, B.shape[0])
    operands, epilogue = [], None
    if bias is not None:
        operands, epilogue = [rows_of_groups("grouped_mm", "bias", bias, B)], _epilogues.BIAS
    out = empty(A, B, (rows_in(A, index), B.shape[2]), out_dtype)
    if zero_rest:
        out.zero_()
    options = {"out": out, "epilogue": epilogue, "offsets": offs}
    return launch_gathered("grouped_mm", index, A, B, *operands, **options)


def launch_gathered(
    operator: str, index: Tensor | None, A: Tensor, B: Tensor, *operands: Tensor, **options: Any
) -> Any:
    """A launch for the rows of A that an index names. Where kernels read rows in order only, those
    rows are copied first; an index of no row then stands for the nearest one."""
    if index is not None:
        index = offsets_of(operator, index, None, "index", "row of A")
        if all(map(reads_any_row, (A, B))):
            try:
                return launch(operator, A, B, *operands, index=index, **options)
            except ValueError:
                if A.device.type != "cuda":
                    raise
        # Operands that fit no kernel raise again.
        A = A[within(index, A)]
    return launch(operator, A, B, *operands, **options)


def reads_any_row(operand: Tensor) -> bool:
    """Whether kernels may read rows in any order beside this operand: on the CPU, and on compute
    capability 9.0 for 16 bits and rows of whole 16 bytes. Without a GPU, as for 9.0."""
    if operand.device.type != "cuda":
        return True
    is_half = operand.dtype in (torch.float16, torch.bfloat16)
    strides = operand.stride()[-2:]
    is_aligned = min(strides) == 1 and max(strides) % 8 == 0
    return is_half and is_aligned and capability(operand.device.index or 0) == 90


@cache
def capability(ordinal: int) -> int:
    """That of a device as 10 * major + minor; 90 without a driver."""
    try:
        return device_cc(ordinal)
    except RuntimeError:
        return 90


def rows_in(A: Tensor, index: Tensor | None) -> Any:
    """The number of rows of the groups."""
    return A.shape[0] if index is None else index.shape[0]


def rows_of_groups(operator: str, name: str, bias: Tensor, B: Tensor) -> Tensor:
    """A bias (G, N) as an epilogue reads it: (G, 1, N)."""
    groups, _, columns = B.shape
    if bias.shape != (groups, columns):
        raise refuse(
            operator,
            f"{name} has shape {list(bias.shape)}; pass a row for each group, of shape "
            f"{[groups, columns]}",
        )
    return bias.unsqueeze(1)


def masked_grouped_mm(
    A: Tensor,
    B: Tensor,
    counts: Tensor,
    bias: Tensor | None = None,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A[g, :counts[g]] @ B[g] + bias[g] for A (G, M, K), B (G, K, N), bias (G, N) and counts (G,),
    int32 or int64. Other rows of the output stay unchanged; those of a new one are uninitialized.
    """
    if not A.dim() == B.dim() == 3 or A.shape[0] != B.shape[0]:
        raise refuse(
            "masked_grouped_mm",
            f"A has shape {list(A.shape)} and B {list(B.shape)}; pass A (G, M, K) and B (G, K, N)",
        )
    counts = offsets_of("masked_grouped_mm", counts, B.shape[0], "counts", "count of rows")
    operands, epilogue = [], None
    if bias is not None:
        operands = [rows_of_groups("masked_grouped_mm", "bias", bias, B)]
        epilogue = _epilogues.BIAS
    if out is None:
        out = empty(A, B, (*A.shape[:2], B.shape[2]), out_dtype)
    return launch("masked_grouped_mm", A, B, *operands, out=out, epilogue=epilogue, offsets=counts)


def offsets_of(
    operator: str,
    offs: Tensor,
    groups: Any = None,
    name: str = "offs",
    what: str = "end row",
) -> Tensor:
    """Offsets or counts as int32. Those of int64 are a view of their low words. What int32 does not
    hold is refused if the host may read it."""
    if offs.dtype not in (torch.int32, torch.int64):
        raise refuse(operator, f"{name} is {offs.dtype}; pass torch.int32 or torch.int64")
    if offs.dim() != 1 or (groups is not None and offs.shape[0] != groups):
        each = "each group" if groups is None else f"each of {groups} groups"
        raise refuse(operator, f"{name} has shape {list(offs.shape)}; pass the {what} of {each}")
    if offs.dtype is torch.int32:
        return offs
    # The last of two dimensions has a stride of 1, also that of one offset.
    low = offs.unsqueeze(1).view(torch.int32)[:, 0]
    if is_readable(offs) and len(wide := offs[low != offs]):
        raise refuse(
            operator,
            f"{name} holds {int(wide[0])}, past the range of int32; pass the {what} of each group",
        )
    return low


def grouped_mm_weight_grad(
    A: Tensor,
    grad: Tensor,
    offs: Tensor,
    input: Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient of grouped_mm's B: for each group, its rows of A, transposed, times its rows of
    grad. The shape is (G, K, N). Adds input, which broadcasts to this shape and may be out.
    """
    offs = offsets_of("grouped_mm_weight_grad", offs)
    if not A.dim() == grad.dim() == 2 or A.shape[0] != grad.shape[0]:
        raise refuse(
            "grouped_mm_weight_grad",
            f"A has shape {list(A.shape)} and grad {list(grad.shape)}; pass matrices of equal rows",
        )
    if out is None:
        shape = offs.shape[0], A.shape[1], grad.shape[1]
        out = A.new_empty(shape, dtype=A.dtype if input is None else input.dtype)
    operands, epilogue = ([], None) if input is None else ([input], _epilogues.SUM)
    return launch(
        *("grouped_mm_weight_grad", A.mT, grad, *operands),
        out=out,
        epilogue=epilogue,
        offsets=offs,
    )


# ---- rules ---------------------------------------------------------------------------------------


def save_grouped(ctx: Any, call: Call, output: Any) -> None:
    check_differentiable(call)
    ctx.save_for_backward(call.A, call.B, call.offs, call.index)
    ctx.bias = None if call.bias is None else call.bias.dtype


def grouped_backward(ctx: Any, needs: Call, grad: Tensor) -> dict[str, Any]:
    A, B, offs, index = ctx.saved_tensors
    of_bias = sums_of_groups(grad, offs, ctx.bias) if needs.bias else None
    grad = grad.to(A.dtype)
    of_a = of_b = None
    if needs.A:
        of_a = OPS.grouped_mm(grad, B.mT, offs, zero_rest=True)
        of_a = of_a if index is None else added(of_a, index, A)
    if needs.B:
        rows = A if index is None else A[within(index, A)]
        of_b = OPS.grouped_mm_weight_grad(rows, grad, offs)
    return {"bias": of_bias, "A": of_a, "B": of_b}


def within(index: Tensor, A: Tensor) -> Tensor:
    """The index as PyTorch takes it; what is behind the last group may be no row of A."""
    return index.clamp(0, max(A.shape[0] - 1, 0)).long()


def added(rows: Tensor, index: Tensor, A: Tensor) -> Tensor:
    """The gradient of A from that of the rows that an index names. Sums repeat bit for bit."""
    total = torch.zeros_like(A, dtype=sum_dtype(A.dtype))
    return total.index_put((within(index, A),), rows.to(total.dtype), accumulate=True).to(A.dtype)


def sums_of_groups(rows: Tensor, offs: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of each group's rows (TotalM, N), in this dtype: (G, N), the gradient of a bias. A
    product with ones computes it, in as many columns as kernels for Hopper load at once."""
    ones = rows.new_ones(rows.shape[0], 16 // rows.element_size())
    # The addend alone has another dtype than the products.
    nothing = None if dtype is rows.dtype else rows.new_zeros((), dtype=dtype)
    sums: Tensor = OPS.grouped_mm_weight_grad(ones, rows, offs, nothing)
    return sums[:, 0]


def save_weight_gradient(ctx: Any, call: Call, output: Any) -> None:
    ctx.save_for_backward(call.A, call.grad, call.offs)
    ctx.shape = None if call.input is None else call.input.shape


def weight_gradient_backward(ctx: Any, needs: Call, of_b: Tensor) -> dict[str, Any]:
    A, grad, offs = ctx.saved_tensors
    of_input = of_b.sum_to_size(ctx.shape) if needs.input else None
    of_b = of_b.to(A.dtype)
    return {
        "A": OPS.grouped_mm(grad, of_b.mT, offs, zero_rest=True) if needs.A else None,
        "grad": OPS.grouped_mm(A, of_b, offs, zero_rest=True) if needs.grad else None,
        "input": of_input,
    }


def grouped_flops(call: Call) -> Any:
    """Each row of A (TotalM, K) times one matrix of (G, K, N), or of grad (TotalM, N)."""
    a, b = call.factors
    rows, depth = a
    index = getattr(call, "index", None)
    return 2 * (rows if index is None else index[0]) * depth * b[-1]


def grouped_labels(call: Call) -> Rule:
    # Offsets count the rows of all shards, so that `m` and `g` stay whole.
    inputs: dict[str, Labels] = {"A": ("m", "k"), "B": ("g", "k", "n"), "offs": ("g",)}
    whole = ["m"]
    if call.index is not None:
        inputs |= {"A": ("t", "k"), "index": ("m",)}
        whole.append("t")
    addends = ["bias"] if call.bias is not None else []
    if addends:
        inputs["bias"] = ("g", "n")
    factors = call.operator.factors
    return Rule([("m", "n")], inputs, whole=whole, sums=SUMS, factors=factors, addends=addends)


def masked_flops(call: Call) -> Any:
    """All rows of A (G, M, K): the counts are unknown."""
    groups, rows, depth = call.A
    return 2 * groups * rows * depth * call.B[-1]


def masked_labels(call: Call) -> Rule:
    # A count is of the rows of whole matrices.
    inputs: dict[str, Labels] = {"A": ("g", "m", "k"), "B": ("g", "k", "n"), "counts": ("g",)}
    addends = ["bias"] if call.bias is not None else []
    if addends:
        inputs["bias"] = ("g", "n")
    factors = call.operator.factors
    return Rule([("g", "m", "n")], inputs, whole=["m"], sums=SUMS, factors=factors, addends=addends)


def weight_gradient_labels(call: Call) -> Rule:
    # The sum is over `m`, and `k` is a dimension of the output.
    inputs: dict[str, Labels] = {"A": ("m", "k"), "grad": ("m", "n"), "offs": ("g",)}
    out = ("g", "k", "n")
    if call.input is not None:
        inputs["input"] = broadcast(call.input, out)
    return Rule([out], inputs, whole=["g"], factors=call.operator.factors)


def grouped_lowering(call: Call) -> Lowering | None:
    if call.offs is None or call.bias is not None or call.zero_rest or call.index is not None:
        return None
    if call.offs.dtype is not torch.int32:
        return None
    return Lowering(out_dtype=call.out_dtype, offsets="offs")


OPERATORS = (
    Operator(
        schema="grouped_mm(Tensor A, Tensor B, Tensor? offs=None, Tensor? bias=None, "
        "ScalarType? out_dtype=None, bool zero_rest=False, Tensor? index=None) -> Tensor",
        compute=grouped_mm,
        factors=("A", "B"),
        gradient=Gradient(save_grouped, grouped_backward),
        vmap=_vmap.one_by_one,  # the sizes of groups differ between examples
        flops=grouped_flops,
        sharding=grouped_labels,
        autocast=("A", "B"),
        has_out=False,
        lowering=grouped_lowering,
        summary="groups of A's rows, each times its own B and plus its own bias, as "
        "`torch._grouped_mm`",
    ),
    Operator(
        schema="masked_grouped_mm(Tensor A, Tensor B, Tensor counts, Tensor? bias=None, *, "
        "ScalarType? out_dtype=None) -> Tensor",
        compute=masked_grouped_mm,
        factors=("A", "B"),
        gradient="call grouped_mm, whose groups are rows of one matrix",
        vmap=_vmap.one_by_one,
        flops=masked_flops,
        sharding=masked_labels,
        autocast=("A", "B"),
        summary="the first counts[g] rows of each matrix of A, times its own B, plus its own bias",
    ),
    Operator(
        schema="grouped_mm_weight_grad(Tensor A, Tensor grad, Tensor offs, Tensor? input=None) "
        "-> Tensor",
        compute=grouped_mm_weight_grad,
        factors=("A", "grad"),
        gradient=Gradient(save_weight_gradient, weight_gradient_backward),
        vmap=_vmap.one_by_one,
        flops=grouped_flops,
        sharding=weight_gradient_labels,
        autocast=("A", "grad"),
    ),
)
