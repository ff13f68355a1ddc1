"""``mm``, ``bmm``, ``addmm`` and ``baddbmm``, and the rules of all products."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cutlass_api._dtypes import FLOAT8
from cutlass_api.ops import _epilogues, _labels, _vmap
from cutlass_api.ops._library import empty, launch, product_shape, refuse
from cutlass_api.ops._operator import OPS, Call, Gradient, NoDerivative, Operator


def mm(
    A: Tensor, B: Tensor, *, out_dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """A @ B for A (M, K) and B (K, N)."""
    if out is None:
        out = empty(A, B, (A.shape[0], B.shape[-1]), out_dtype)
    return launch("mm", A, B, out=out)


def bmm(
    A: Tensor,
    B: Tensor,
    *,
    broadcast: bool = False,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """A @ B for A (L, M, K) and B (L, K, N). broadcast: one may be a matrix, or a batch of 1."""
    if not broadcast:
        check_batches("bmm", "A", A, "B", B)
    if out is None:
        out = empty(A, B, product_shape("bmm", A, B), out_dtype)
    return launch("bmm", A, B, out=out)


def check_batches(operator: str, a: str, A: Tensor, b: str, B: Tensor) -> None:
    if A.dim() != 3 or B.dim() != 3 or A.shape[0] != B.shape[0]:
        raise refuse(
            operator,
            f"{a} has shape {list(A.shape)} and {b} {list(B.shape)}; pass tensors of rank 3 and "
            "of one batch size, or call cutlass_api.matmul, which broadcasts",
        )


def addmm(
    input: Tensor,
    mat1: Tensor,
    mat2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    out: Tensor | None = None,
) -> Tensor:
    """beta * input + alpha * (mat1 @ mat2), in one launch. input broadcasts to (M, N)."""
    if out is None:
        out = empty(mat1, mat2, (mat1.shape[0], mat2.shape[-1]), None)
    return add_product("addmm", input, mat1, mat2, beta, alpha, out)


def baddbmm(
    input: Tensor,
    batch1: Tensor,
    batch2: Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
    broadcast: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """beta * input + alpha * (batch1 @ batch2), in one launch. input broadcasts to (L, M, N).
    broadcast: one factor may be a matrix, or a batch of 1.
    """
    if not broadcast:
        check_batches("baddbmm", "batch1", batch1, "batch2", batch2)
    if out is None:
        out = empty(batch1, batch2, product_shape("baddbmm", batch1, batch2), None)
    return add_product("baddbmm", input, batch1, batch2, beta, alpha, out)


def add_product(
    operator: str,
    input: Tensor,
    A: Tensor,
    B: Tensor,
    beta: float,
    alpha: float,
    out: Tensor,
) -> Tensor:
    if input.dim() > out.dim():
        raise refuse(
            operator,
            f"input with shape {list(input.shape)} does not broadcast to the output's shape "
            f"{list(out.shape)}",
        )
    # beta = 0: input may be uninitialized memory. It is checked, but not read.
    if beta == 0:
        return launch(operator, A, B, input, alpha, out=out, epilogue=_epilogues.SCALED)
    if beta == 1 and alpha == 1:
        return launch(operator, A, B, input, out=out, epilogue=_epilogues.SUM)
    return launch(operator, A, B, input, beta, alpha, out=out, epilogue=_epilogues.SCALED_SUM)


# ---- gradients -----------------------------------------------------------------------------------


def multiply(A: Tensor, B: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    """A @ B, where a matrix or a batch of 1 repeats over the batch of the other."""
    if A.dim() == 2 and B.dim() == 2:
        return OPS.mm(A, B, out_dtype=out_dtype)
    return OPS.bmm(A, B, broadcast=True, out_dtype=out_dtype)


def factor_gradients(
    needs: Sequence[bool], grad: Tensor, A: Tensor, B: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of A and B, from that of A @ B. grad is rounded to the dtype of A and B."""
    grad = grad.to(A.dtype if A.is_floating_point() else B.dtype)
    of_a = summed_product(grad, B.mT, A.shape) if needs[0] else None
    return of_a, summed_product(A.mT, grad, B.shape) if needs[1] else None


def summed_product(A: Tensor, B: Tensor, shape: Sequence[int]) -> Tensor:
    """A @ B of this shape, where a factor of the shape repeats over a batch: one product that sums
    over the batch, too, in place of a sum of products.
    """
    if A.dim() == 3 and B.dim() == 3 and (len(shape) == 2 or shape[0] == 1):
        # Gradients of a batch (`is_grads_batched`) have no rule for flatten.
        batch, rows, depth = A.shape
        A = A.transpose(0, 1).reshape(rows, batch * depth)
        B = B.reshape(batch * depth, B.shape[-1])
    return multiply(A, B).view(shape)


def check_differentiable(call: Call) -> None:
    for name, tensor in zip(call.operator.factors, call.factors, strict=True):
        if tensor.requires_grad and tensor.dtype in FLOAT8:
            raise NoDerivative("pass a wider dtype", f" of {tensor.dtype}", [name])


def save_product(ctx: Any, call: Call, output: Any) -> None:
    check_differentiable(call)
    ctx.save_for_backward(*call.factors)


def product_backward(ctx: Any, needs: Call, grad: Tensor) -> dict[str, Any]:
    A, B = ctx.saved_tensors
    return named_factors(needs, *factor_gradients(needs.factors, grad, A, B))


def named_factors(call: Call, of_a: Any, of_b: Any) -> dict[str, Any]:
    return dict(zip(call.operator.factors, (of_a, of_b), strict=True))


def save_sum(ctx: Any, call: Call, output: Any) -> None:
    save_product(ctx, call, output)
    ctx.beta, ctx.alpha = call.beta, call.alpha
    ctx.shape, ctx.dtype = call.input.shape, call.input.dtype


def sum_backward(ctx: Any, needs: Call, grad: Tensor) -> dict[str, Any]:
    gradients = product_backward(ctx, needs, scaled(grad, ctx.alpha))
    if needs.input:
        gradients["input"] = scaled(grad, ctx.beta).sum_to_size(ctx.shape).to(ctx.dtype)
    return gradients


def scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else tensor * factor


def sum_examples(call: Call, dims: Call, size: int) -> _vmap.Result:
    """The rule of products. beta = 0: input is checked, but not read."""
    input = call.input if call.beta != 0 else call.input.new_zeros(()).expand_as(call.input)
    operands = [input, call.beta, call.alpha]
    epilogue = _vmap.Epilogue(_epilogues.SCALED_SUM, operands, [dims.input, None, None])
    out = _vmap.composed(call, dims, size, epilogue)
    return _vmap.product(call, dims, size) if out is None else (out, 0)


# ---- records -------------------------------------------------------------------------------------


def product_flops(call: Call) -> Any:
    """A (*, M, K) @ B (*, K, N)."""
    a, b = call.factors
    batch = max(math.prod(a[:-2]), math.prod(b[:-2]))
    return 2 * batch * a[-2] * a[-1] * b[-1]


def record(
    schema: str, compute: Any, *, factors: tuple[str, ...] = ("A", "B"), **fields: Any
) -> Operator:
    """A product: by default with gradients, and with the rules that all products share."""
    rules: dict[str, Any] = {
        "gradient": Gradient(save_product, product_backward),
        "vmap": _vmap.product,
        "flops": product_flops,
        "sharding": _labels.product,
        "autocast": factors,
    }
    return Operator(schema=schema, compute=compute, factors=factors, **{**rules, **fields})


#: The gradient, and the operands that are cast, of products that add ``input``.
SUM = Gradient(save_sum, sum_backward)

OPERATORS = (
    record(
        "mm(Tensor A, Tensor B, *, ScalarType? out_dtype=None) -> Tensor",
        mm,
        batched="bmm",
        summary="A @ B, with `out_dtype`",
    ),
    record(
        "bmm(Tensor A, Tensor B, *, bool broadcast=False, ScalarType? out_dtype=None) -> Tensor",
        bmm,
        batched="bmm",
        summary="A @ B, with `out_dtype`",
    ),
    record(
        "addmm(Tensor input, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor",
        addmm,
        factors=("mat1", "mat2"),
        batched="baddbmm",
        gradient=SUM,
        vmap=sum_examples,
        autocast=("input", "mat1", "mat2"),
        summary="beta * input + alpha * (A @ B)",
    ),
    record(
        "baddbmm(Tensor input, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1, "
        "bool broadcast=False) -> Tensor",
        baddbmm,
        factors=("batch1", "batch2"),
        batched="baddbmm",
        gradient=SUM,
        vmap=sum_examples,
        autocast=("input", "batch1", "batch2"),
        summary="beta * input + alpha * (A @ B)",
    ),
)
