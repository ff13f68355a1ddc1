"""``mm_epilogue``: a product and an epilogue in one launch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cutlass_api._core import trace_epilogue
from cutlass_api._dtypes import FLOAT8, INTEGER
from cutlass_api.ops import _dense, _epilogues, _vmap
from cutlass_api.ops._evaluate import evaluate
from cutlass_api.ops._labels import SUMS, Product, Rule, broadcast, dtype_of
from cutlass_api.ops._library import launch, product_dtype, product_shape, sum_dtype
from cutlass_api.ops._operator import Call, Gradient, Lowering, NoDerivative


def mm_epilogue(
    A: Tensor,
    B: Tensor,
    operands: Sequence[Tensor],
    epilogue: str,
    *,
    out_dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """D = epilogue(A @ B, *operands), in one launch.

    A (M, K) or (L, M, K), B (K, N) or (L, K, N); a batch of 1 broadcasts. epilogue: the source of
    an epilogue function (:mod:`cutlass_api.fusion`) that returns D. The operands follow the order
    of its parameters and broadcast to D.
    """
    if out is None:
        shape = product_shape("mm_epilogue", A, B)
        out = A.new_empty(shape, dtype=out_dtype or product_dtype(A.dtype, B.dtype))
    try:
        return launch("mm_epilogue", A, B, *operands, out=out, epilogue=epilogue)
    except (TypeError, ValueError):
        _epilogues.check_outputs("mm_epilogue", epilogue)
        raise


# ---- rules ---------------------------------------------------------------------------------------


def save(ctx: Any, call: Call, output: Any) -> None:
    A, B, ctx.epilogue = call.A, call.B, call.epilogue
    _dense.check_differentiable(call)
    inputs = zip(trace_epilogue(ctx.epilogue).inputs, call.operands, strict=True)
    names = [name for name, x in (("A", A), ("B", B), *inputs) if x.requires_grad]
    if _epilogues.scales_blocks(ctx.epilogue):
        condition = " of an epilogue with scale_blocks"
        raise NoDerivative("scale the factors with torch", condition, names)
    if not (A.is_floating_point() and B.is_floating_point()):
        raise NoDerivative(
            "cast A and B to one float dtype, or apply the epilogue to the product with torch",
            f" with A of {A.dtype} and B of {B.dtype}",
            names,
        )
    ctx.save_for_backward(A, B, *call.operands)


def backward(ctx: Any, needs: Call, grad: Tensor) -> dict[str, Any]:
    """Computes the accumulator again, and differentiates the epilogue in its dtype with torch."""
    A, B, *operands = ctx.saved_tensors
    dtype = sum_dtype(A.dtype)
    accumulator = _dense.multiply(A, B, dtype)
    factor = _epilogues.factor(ctx.epilogue)
    # In the place of a second matrix B, its product.
    inputs = [
        _dense.multiply(A, tensor, dtype) if at == factor else tensor.to(dtype)
        for at, tensor in enumerate(operands)
    ]
    _, pullback = torch.func.vjp(
        lambda accum, *inputs: evaluate(ctx.epilogue, accum, inputs), accumulator, *inputs
    )
    of_accumulator, *of_inputs = pullback(grad.to(dtype))
    of_operands = [
        gradient.to(tensor.dtype) if needed else None
        for gradient, tensor, needed in zip(of_inputs, operands, needs.operands, strict=True)
    ]
    of_a, of_b = _dense.factor_gradients(needs.factors, of_accumulator, A, B)
    if factor is not None:
        wanted = (needs.A, needs.operands[factor])
        other, of_operands[factor] = _dense.factor_gradients(
            wanted, of_inputs[factor], A, operands[factor]
        )
        of_a = of_a + other if of_a is not None else None
    return {"A": of_a, "B": of_b, "operands": of_operands}


def flops(call: Call) -> Any:
    """One product, or two if the epilogue multiplies A by a second matrix."""
    count = 1 if _epilogues.factor(call.epilogue) is None else 2
    return count * _dense.product_flops(call)


def labels(call: Call) -> Rule:
    product = Product(call)
    if _epilogues.scales_blocks(call.epilogue):
        # The shapes of the scales do not say which factor they belong to.
        return Rule([product.out], {}, whole=product.out)
    factor = _epilogues.factor(call.epilogue)
    inputs = product.inputs
    for at, operand in enumerate(call.operands):
        is_factor = at == factor
        inputs["operands", at] = (
            product.behind_batch(operand, ("k", "n"))
            if is_factor
            else broadcast(operand, product.out)
        )
    addends = _epilogues.addends(call.epilogue)
    dtypes = dtype_of(call.A), dtype_of(call.B)
    dtype = call.out_dtype or product_dtype(*dtypes)
    is_linear = addends is not None and is_wide(dtype)
    return Rule(
        [product.out],
        inputs,
        sums=SUMS if is_linear else (),
        factors=call.operator.factors if is_linear and all(map(is_wide, dtypes)) else (),
        addends=[("operands", at) for at in addends or ()],
    )


def is_wide(dtype: torch.dtype) -> bool:
    """Whether partial sums of a dtype are added without much loss."""
    return dtype not in (*INTEGER, *FLOAT8)


def autocast(call: Call, cast: Callable[[Any], Any]) -> Call:
    """Casts the factors. An epilogue reads its operands in any dtype, except a second matrix B."""
    operands = list(call.operands)
    if (at := _epilogues.factor(call.epilogue)) is not None:
        operands[at] = cast(operands[at])
    return call.replace(A=cast(call.A), B=cast(call.B), operands=operands)


def lowering(call: Call) -> Lowering:
    return Lowering(["operands"], call.epilogue, call.out_dtype)


def examples(call: Call, dims: Call, size: int) -> _vmap.Result:
    """The rule of products. A second matrix B has the strides of B."""
    at = _epilogues.factor(call.epilogue)
    epilogue = _vmap.Epilogue(call.epilogue, call.operands, dims.operands, at, call.out_dtype)
    if (out := _vmap.composed(call, dims, size, epilogue)) is not None:
        return out, 0
    if at is not None:
        pairs = ((call.B, dims.B), (call.operands[at], dims.operands[at]))
        if any(dim is not None for _, dim in pairs):
            B, second = (
                x.expand(size, *x.shape) if dim is None else _vmap.front(x, dim) for x, dim in pairs
            )
            if B.stride() != second.stride():
                B, second = B.contiguous(), second.contiguous()
            operands, mapped = list(call.operands), list(dims.operands)
            operands[at], mapped[at] = second, 0
            call, dims = call.replace(B=B, operands=operands), dims.replace(B=0, operands=mapped)
    return _vmap.product(call, dims, size)


OPERATORS = (
    _dense.record(
        "mm_epilogue(Tensor A, Tensor B, Tensor[] operands, str epilogue, *, "
        "ScalarType? out_dtype=None) -> Tensor",
        mm_epilogue,
        gradient=Gradient(save, backward),
        vmap=examples,
        flops=flops,
        sharding=labels,
        autocast=autocast,
        lowering=lowering,
        summary="an epilogue of A @ B, as source text ([epilogues](../design/epilogues.md)), in "
        "one line for `torch.compile` of PyTorch 2.11, which cannot compile more",
    ),
)
