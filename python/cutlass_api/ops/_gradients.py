"""Gradients. A backward computes with the operators of this library, so it can be differentiated
again, and reads transposed views, which every kernel serves without a copy.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from cutlass_api._dtypes import FLOAT8
from cutlass_api.ops import _epilogues, _quantize  # noqa: F401, defines an operator
from cutlass_api.ops._evaluate import DERIVATIVES, evaluate
from cutlass_api.ops._library import LIBRARY
from cutlass_api.ops._products import OPS
from cutlass_api.ops._scales import mixed_operands

Gradients = tuple[Any, ...]


def differentiate(
    name: str, setup_context: Callable[..., None], backward: Callable[..., Gradients]
) -> None:
    """Registers a gradient formula.

    ``setup_context(ctx, args, output)`` gets all arguments by position. ``backward(ctx, *grads)``
    returns a gradient or None for each, a tensor list flattened; ``ctx.needs`` holds a boolean for
    each. ``torch.library.register_autograd`` would drop tangents, raise inside of
    ``torch.func.grad``, and build the autograd function now, which takes longer than all else.
    """
    operator = getattr(OPS, name).default

    @cache
    def function() -> Callable[..., Any]:
        return autograd_function(operator, setup_context, backward)

    def kernel(keyset: Any, *args: Any, **options: Any) -> Any:
        if forward_ad._current_level >= 0:
            refuse_tangents(name, args, options)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
            return function()(keyset, args, options)
        return below_autograd(operator, keyset, *args, **options)

    LIBRARY.impl(name, guarded(name, kernel), "Autograd", with_keyset=True)


def autograd_function(
    operator: Any, setup_context: Callable[..., None], backward: Callable[..., Gradients]
) -> Callable[..., Any]:
    """A function of the dispatch keys and the arguments that records the operator for autograd."""

    def forward(ctx: Any, keyset: Any, spec: Any, *leaves: Any) -> Any:
        args, options = tree_unflatten(leaves, spec)
        output = below_autograd(operator, keyset, *args, **options)
        defaults = operator._schema.arguments[len(args) :]
        rest = (options.get(argument.name, argument.default_value) for argument in defaults)
        setup_context(ctx, (*args, *rest), output)
        return output

    def formula(ctx: Any, *grads: Any) -> Gradients:
        count = len(ctx.needs_input_grad)
        # A formula may expect arguments that were left out: their gradients are not needed.
        ctx.needs = (*ctx.needs_input_grad[2:], False, False)
        gradients = (None, None, *backward(ctx, *grads), *(None,) * count)
        return gradients[:count]

    members = {"forward": staticmethod(forward), "backward": staticmethod(formula)}
    name = f"cutlass_api_{operator._schema.name.partition('::')[2]}"
    # The base class of autograd.Function. The dispatcher enters the transforms of torch.func one by
    # one, which autograd.Function would do again.
    apply = type(name, (_SingleLevelFunction,), members).apply  # type: ignore[attr-defined]

    def call(keyset: Any, args: Any, options: Any) -> Any:
        leaves, spec = tree_flatten((args, options))
        if torch._C._functorch.maybe_current_level() is None:
            return apply(keyset, spec, *leaves)
        with enable_single_level_autograd_function():
            return apply(keyset, spec, *leaves)

    return call


def refuse_gradients(overload: str, reason: str) -> None:
    """Makes an operator raise if an operand requires grad."""
    name, _, suffix = overload.partition(".")
    operator = getattr(getattr(OPS, name), suffix or "default")

    def kernel(keyset: Any, *args: Any, **options: Any) -> Any:
        if forward_ad._current_level >= 0:
            refuse_tangents(overload, args, options)
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*args, *options.values()):
            raise RuntimeError(f"cutlass_api::{overload} {reason}")
        return below_autograd(operator, keyset, *args, **options)

    LIBRARY.impl(overload, guarded(overload, kernel), "Autograd", with_keyset=True)


def below_autograd(operator: Any, keyset: Any, *args: Any, **options: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keyset & torch._C._after_autograd_keyset, *args, **options)


def refuse_tangents(name: str, *arguments: Any) -> None:
    for tensor in tree_leaves(arguments):
        if isinstance(tensor, Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
            raise RuntimeError(
                f"cutlass_api::{name}: an operand has a tangent, and the operator has no "
                "forward-mode derivative: detach the operand, or use torch's operator"
            )


def guarded(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, with errors that name the tensors that no implementation serves."""

    def call(keyset: Any, *args: Any, **options: Any) -> Any:
        try:
            return kernel(keyset, *args, **options)
        except Exception as error:
            tensors = [x for x in tree_leaves((args, options)) if isinstance(x, Tensor)]
            kinds = (unserved(name, tensor) for tensor in tensors)
            found = next((kind for kind in kinds if kind), None)
            if found is not None:
                raise NotImplementedError(
                    f"cutlass_api::{name} does not serve {found}; pass dense tensors on the CPU or "
                    "a CUDA device, or use torch's operator"
                ) from error
            if any(map(is_distributed, tensors)):
                raise distributed_error(name, error) from error
            raise

    return call


def unserved(name: str, tensor: Tensor) -> str | None:
    """What a tensor is, if the operator does not serve its kind."""
    if tensor.is_nested:
        return "nested tensors (unbind() returns dense ones)"
    if tensor.layout is not torch.strided:
        return f"layout {tensor.layout} (to_dense() returns a dense tensor)"
    if tensor.is_quantized:
        return "quantized tensors (dequantize() returns floats, int_repr() integers)"
    if is_distributed(tensor) and name.endswith(".out"):
        return "DTensor (to_local() returns the shard; without out, the operator takes DTensors)"
    if tensor.device.type not in ("cpu", "cuda", "meta"):
        return f"device {tensor.device}"
    return None


def is_distributed(tensor: Tensor) -> bool:
    return type(tensor).__name__ == "DTensor"


def distributed_error(name: str, error: Exception) -> Exception:
    """An error of a call with DTensors that names the operator and what to do."""
    # DTensor calls the operator for its output's shape, and turns errors into RuntimeError.
    cause = error.__cause__
    if isinstance(cause, (TypeError, ValueError, BufferError)):
        error = cause
    if str(error).startswith("cutlass_api::") or not is_of_runtime(error):
        return error
    if "mixed torch.Tensor and DTensor" in str(error):
        return TypeError(
            f"cutlass_api::{name}: some operands are DTensors and others are not; distribute the "
            "others, too (distribute_tensor, DTensor.from_local), or pass shards (to_local())"
        )
    return RuntimeError(f"cutlass_api::{name} on DTensors: {error}")


def is_of_runtime(error: Exception) -> bool:
    """Whether an error is no subclass of RuntimeError that torch.compile reacts to."""
    return type(error) is RuntimeError or isinstance(error, torch.distributed.DistError)


# ---- mm, bmm, addmm, baddbmm ---------------------------------------------------------------------


def multiply(A: Tensor, B: Tensor, out_dtype: torch.dtype | None = None) -> Tensor:
    """A @ B, where an operand of rank 2 repeats over the batch of the other."""
    if A.dim() == 2 and B.dim() == 2:
        return OPS.mm(A, B, out_dtype=out_dtype)
    batch = max(x.shape[0] for x in (A, B) if x.dim() == 3)
    A, B = (x.expand(batch, *x.shape[-2:]) for x in (A, B))
    return OPS.bmm(A, B, out_dtype=out_dtype)


def factor_gradients(
    needs: tuple[bool, ...], grad: Tensor, A: Tensor, B: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of A and B, from that of A @ B. grad is rounded to the dtype of A and B."""
    grad = grad.to(A.dtype if A.is_floating_point() else B.dtype)
    of_a = multiply(grad, B.mT).sum_to_size(A.shape) if needs[0] else None
    if not needs[1]:
        return of_a, None
    if A.dim() == 3 and B.dim() == 2:  # one product over all rows, in place of a sum of products
        A, grad = A.flatten(0, 1), grad.flatten(0, 1)
    return of_a, multiply(A.mT, grad).sum_to_size(B.shape)


def check_differentiable(name: str, *factors: Tensor) -> None:
    for tensor in factors:
        if tensor.requires_grad and tensor.dtype in FLOAT8:
            raise RuntimeError(
                f"cutlass_api::{name}: an operand of {tensor.dtype} requires grad, but gradients "
                "in float8 would be too coarse: detach it, or pass a wider dtype"
            )


def setup_product(name: str) -> Callable[..., None]:
    def setup(ctx: Any, args: Any, output: Any) -> None:
        A, B, *_ = args
        check_differentiable(name, A, B)
        ctx.save_for_backward(A, B)

    return setup


def product_backward(ctx: Any, grad: Tensor) -> Gradients:
    return factor_gradients(ctx.needs, grad, *ctx.saved_tensors)


def setup_sum(ctx: Any, args: Any, output: Any) -> None:
    input, A, B, ctx.beta, ctx.alpha = args
    check_differentiable("addmm", A, B)
    ctx.save_for_backward(A, B)
    ctx.shape, ctx.dtype = input.shape, input.dtype


def sum_backward(ctx: Any, grad: Tensor) -> Gradients:
    of_input = None
    if ctx.needs[0]:
        of_input = scaled(grad, ctx.beta).sum_to_size(ctx.shape).to(ctx.dtype)
    factors = ctx.needs[1:]
    return of_input, *factor_gradients(factors, scaled(grad, ctx.alpha), *ctx.saved_tensors)


def scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1 else tensor * factor


for name in ("mm", "bmm"):
    differentiate(name, setup_product(name), product_backward)
for name in ("addmm", "baddbmm"):
    differentiate(name, setup_sum, sum_backward)


# ---- linear --------------------------------------------------------------------------------------


def setup_linear(ctx: Any, args: Any, output: Any) -> None:
    input, weight, bias, activation = args
    check_differentiable("linear", input, weight)
    out, preactivation = output
    ctx.is_preactivation = activation in _epilogues.PREACTIVATION_DERIVATIVES
    ctx.activation = activation or "identity"
    saved = preactivation if ctx.is_preactivation else out
    ctx.save_for_backward(input, weight, saved if ctx.activation != "identity" else None)
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.set_materialize_grads(False)


def linear_backward(ctx: Any, grad: Tensor | None, grad_preactivation: Tensor | None) -> Gradients:
    input, weight, saved = ctx.saved_tensors
    if grad is not None:
        grad = DERIVATIVES[ctx.activation](grad, saved)
    if ctx.is_preactivation and grad_preactivation is not None:
        grad = grad_preactivation if grad is None else grad + grad_preactivation
    if grad is None:
        return None, None, None, None
    wants_input, wants_weight, wants_bias = ctx.needs[:3]
    of_input = of_weight = of_bias = None
    # Nothing is flattened: a DTensor may be sharded along any dimension.
    if wants_input:
        of_input = OPS.linear(grad.to(weight.dtype), weight.t()).to(input.dtype)
    if wants_weight:
        of_weight = OPS.linear_weight_grad(grad.to(input.dtype), input)
    if wants_bias:
        of_bias = grad.sum_to_size(grad.shape[-1:]).to(ctx.bias_dtype)
    return of_input, of_weight, of_bias, None


def setup_linear_weight_gradient(ctx: Any, args: Any, output: Any) -> None:
    ctx.save_for_backward(*args)


def linear_weight_gradient_backward(ctx: Any, of_weight: Tensor) -> Gradients:
    grad, input = ctx.saved_tensors
    of_grad = OPS.linear(input, of_weight) if ctx.needs[0] else None
    of_input = OPS.linear(grad, of_weight.t()) if ctx.needs[1] else None
    return of_grad, of_input


differentiate("linear_forward", setup_linear, linear_backward)
differentiate("linear_weight_grad", setup_linear_weight_gradient, linear_weight_gradient_backward)


def linear_kernel(keyset: Any, *args: Any) -> Any:
    """The autograd kernel of `linear`: computes what the gradient needs only if one is needed."""
    if forward_ad._current_level >= 0:
        refuse_tangents("linear", args)
    if torch.is_grad_enabled() and torch._C._any_requires_grad(*args):
        return OPS.linear_forward(*args)[0]
    return below_autograd(OPS.linear.default, keyset, *args)


LIBRARY.impl("linear", guarded("linear", linear_kernel), "Autograd", with_keyset=True)


# ---- grouped, integer, mixed and scaled products -------------------------------------------------


def setup_grouped(ctx: Any, args: Any, output: Any) -> None:
    A, B, offs, *_ = args
    check_differentiable("grouped_mm", A, B)
    ctx.save_for_backward(A, B, offs)


def grouped_backward(ctx: Any, grad: Tensor) -> Gradients:
    A, B, offs = ctx.saved_tensors
    grad = grad.to(A.dtype)
    of_a = OPS.grouped_mm(grad, B.mT, offs) if ctx.needs[0] else None
    of_b = OPS.grouped_mm_weight_grad(A, grad, offs) if ctx.needs[1] else None
    return of_a, of_b, None, None, None


def setup_weight_gradient(ctx: Any, args: Any, output: Any) -> None:
    ctx.save_for_backward(*args)


def weight_gradient_backward(ctx: Any, grad_b: Tensor) -> Gradients:
    A, grad, offs = ctx.saved_tensors
    of_a = OPS.grouped_mm(grad, grad_b.mT, offs) if ctx.needs[0] else None
    of_grad = OPS.grouped_mm(A, grad_b, offs) if ctx.needs[1] else None
    return of_a, of_grad, None


def setup_mixed(ctx: Any, args: Any, output: Any) -> None:
    A, B, scale, zero_point, _ = args
    if zero_point is not None or (scale is not None and mixed_operands(A, B, scale, None)[1]):
        raise RuntimeError(
            "cutlass_api::mixed_mm has no derivative with scales of groups or zero points: detach "
            "the operands, or dequantize the integers and call cutlass_api.matmul"
        )
    if scale is not None and scale.requires_grad:
        raise RuntimeError(
            "cutlass_api::mixed_mm has no derivative for scale: detach it, or multiply the "
            "product by it with torch"
        )
    ctx.save_for_backward(A, B, scale)


def mixed_backward(ctx: Any, grad: Tensor) -> Gradients:
    A, B, scale = ctx.saved_tensors
    grad = grad if scale is None else (grad * scale).to(grad.dtype)
    return *factor_gradients(ctx.needs, grad, A, B), None, None


differentiate("grouped_mm", setup_grouped, grouped_backward)
differentiate("grouped_mm_weight_grad", setup_weight_gradient, weight_gradient_backward)
differentiate("mixed_mm", setup_mixed, mixed_backward)
refuse_gradients("int_mm", "has no derivative: cast the operands and call cutlass_api.matmul")
refuse_gradients(
    "scaled_mm", "has no derivative: detach the operands, or cast them and call cutlass_api.matmul"
)
refuse_gradients(
    "scaled_grouped_mm",
    "has no derivative: detach the operands, or cast them and call cutlass_api's grouped_mm",
)
refuse_gradients("quantize", "has no derivative: detach the input")
WITH_OUT = ("mm", "bmm", "addmm", "baddbmm", "linear", "int_mm", "mixed_mm", "scaled_mm")
for name in (*WITH_OUT, "mm_epilogue"):
    refuse_gradients(
        f"{name}.out", "does not support autograd, but an operand requires grad: omit out"
    )


# ---- mm_epilogue ---------------------------------------------------------------------------------


def setup_epilogue(ctx: Any, args: Any, output: Any) -> None:
    A, B, operands, ctx.epilogue, _ = args
    check_differentiable("mm_epilogue", A, B)
    if _epilogues.scales_blocks(ctx.epilogue):
        raise RuntimeError(
            "cutlass_api::mm_epilogue has no derivative for scale_blocks: detach the operands, or "
            "scale the factors with torch"
        )
    if not (A.is_floating_point() and B.is_floating_point()):
        raise RuntimeError(
            f"cutlass_api::mm_epilogue has no derivative for A of {A.dtype} and B of {B.dtype}: "
            "cast them to one float dtype, or apply the epilogue to the product with torch"
        )
    ctx.save_for_backward(A, B, *operands)


def epilogue_backward(ctx: Any, grad: Tensor) -> Gradients:
    """Computes the accumulator again, and differentiates the epilogue in its dtype with torch."""
    A, B, *operands = ctx.saved_tensors
    dtype = torch.float64 if A.dtype is torch.float64 else torch.float32
    accumulator = multiply(A, B, dtype)
    factor = _epilogues.factor(ctx.epilogue)
    # In the place of a second matrix B, its product.
    inputs = [
        multiply(A, tensor, dtype) if at == factor else tensor.to(dtype)
        for at, tensor in enumerate(operands)
    ]
    _, pullback = torch.func.vjp(
        lambda accum, *inputs: evaluate(ctx.epilogue, accum, inputs), accumulator, *inputs
    )
    of_accumulator, *of_inputs = pullback(grad.to(dtype))
    of_operands = [
        gradient.to(tensor.dtype) if needed else None
        for gradient, tensor, needed in zip(of_inputs, operands, ctx.needs[2:], strict=False)
    ]
    of_a, of_b = factor_gradients(ctx.needs, of_accumulator, A, B)
    if factor is not None:
        needs = (ctx.needs[0], ctx.needs[2 + factor])
        other, of_operands[factor] = factor_gradients(needs, of_inputs[factor], A, operands[factor])
        of_a = of_a + other if of_a is not None else None
    return of_a, of_b, *of_operands, None


differentiate("mm_epilogue", setup_epilogue, epilogue_backward)
