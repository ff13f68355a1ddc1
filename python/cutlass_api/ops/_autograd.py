"""The autograd kernel of every operator, made from its record."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from cutlass_api.ops._operator import (
    DEVICES,
    LIBRARY,
    OPS,
    Call,
    Gradient,
    NoDerivative,
    Operator,
)

#: Why the overloads `out` have no gradient.
NO_OUT_GRADIENT = "does not support autograd, but an operand requires grad: omit out"


def register(operator: Operator) -> None:
    """Registers the autograd kernels of an operator.

    ``torch.library.register_autograd`` would drop tangents, raise inside of ``torch.func.grad``,
    and build the autograd function now, which takes longer than all else.
    """
    stores = operator.gradient.stores if isinstance(operator.gradient, Gradient) else None
    recorded = cache(lambda: autograd_function(operator))

    def differentiated(keyset: Any, args: Any, options: Any) -> Any:
        other = stores and stores(operator.bind(args, options))
        if other and not is_observed():
            return getattr(OPS, other)(*args, **options)[0]
        return recorded()(keyset, args, options)

    def refused_out(keyset: Any, args: Any, options: Any) -> Any:
        raise RuntimeError(f"cutlass_api::{operator.name}.out {NO_OUT_GRADIENT}")

    add_kernel(operator.name, operator.overload, differentiated)
    if operator.has_out:
        name, overload = f"{operator.name}.out", getattr(OPS, operator.name).out
        add_kernel(name, overload, refused_out, counted_write)
        # In inference mode, the dispatcher calls this kernel alone, for an output made outside.
        LIBRARY.impl(name, partial(counted_write, overload), "ADInplaceOrView", with_keyset=True)


def is_observed() -> bool:
    """Whether a dispatch mode of the user is active, which may replace the results of operators, as
    those of selective checkpointing do. torch's tracers have a key, and its counter counts all.
    """
    return any(
        getattr(mode, "_mode_key", None) is None
        and type(mode).__module__ != "torch.utils.flop_counter"
        for mode in _get_current_dispatch_mode_stack()
    )


def below_autograd(overload: Any, keyset: Any, *args: Any, **options: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return overload.redispatch(keyset & torch._C._after_autograd_keyset, *args, **options)


def counted_write(overload: Any, keyset: Any, *args: Any, out: Any, **options: Any) -> None:
    """Calls an overload ``out``. Autograd then raises if it saved what is overwritten."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        rest = keyset & torch._C._after_ADInplaceOrView_keyset
        overload.redispatch(rest, *args, out=out, **options)
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)


def add_kernel(
    name: str,
    overload: Any,
    differentiate: Callable[..., Any],
    compute: Callable[..., Any] = below_autograd,
) -> None:
    """Registers a kernel that calls ``differentiate(keyset, args, options)`` if an operand requires
    grad, else ``compute(overload, keyset, *args, **options)``.
    """

    def kernel(keyset: Any, *args: Any, **options: Any) -> Any:
        try:
            if forward_ad._current_level >= 0:
                refuse_tangents(name, args, options)
            if torch.is_grad_enabled() and torch._C._any_requires_grad(*args, *options.values()):
                return differentiate(keyset, args, options)
            return compute(overload, keyset, *args, **options)
        except Exception as error:
            named = named_error(name, error, args, options)
            if named is None:
                raise
            raise named from (error if error.__cause__ is not named else None)

    LIBRARY.impl(name, kernel, "Autograd", with_keyset=True)


def autograd_function(operator: Operator) -> Callable[..., Any]:
    """A function of the dispatch keys and the arguments that records a call for autograd."""
    gradient, overload = operator.gradient, operator.overload
    returns_list = str(overload._schema.returns[0].type) == "List[Tensor]"

    def forward(ctx: Any, keyset: Any, lengths: Sequence[int | None], *leaves: Any) -> Any:
        values = grouped(leaves, lengths)
        args, options = operator.split(values)
        with ExitStack() as stack:
            if torch._C._functorch.maybe_current_level() is not None:
                # torch turns both modes off in an autograd function. Transforms outside of this one
                # have modes of their own, which the dispatcher sets.
                stack.enter_context(torch.enable_grad())
                stack.enter_context(forward_ad._set_fwd_grad_enabled(True))
            output = below_autograd(overload, keyset, *args, **options)
        ctx.lengths, ctx.refusal = lengths, None
        try:
            if isinstance(gradient, str):
                raise NoDerivative(gradient)
            gradient.save(ctx, Call(operator, values), output)
        except NoDerivative as refusal:
            ctx.refusal = refusal
            ctx.shapes = [x.shape if isinstance(x, Tensor) else None for x in leaves]
        return tuple(output) if returns_list else output

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        wanted = ctx.needs_input_grad[2:]
        needs = Call(operator, grouped(wanted, ctx.lengths))
        if ctx.refusal is not None:
            message = refusal_of(operator, needs, ctx.refusal)
            if torch._C._len_torch_dispatch_stack() == 0:
                raise RuntimeError(message)
            grad = next(grad for grad in grads if grad is not None)
            pairs = zip(wanted, ctx.shapes, strict=True)
            return None, None, *(REFUSED(grad, s, message) if w else None for w, s in pairs)
        assert isinstance(gradient, Gradient)
        gradients = gradient.backward(ctx, needs, *grads)
        values = [gradients.pop(name, None) for name in operator.names]
        assert not gradients, f"gradients of unknown arguments: {list(gradients)}"
        return None, None, *flattened(values, ctx.lengths)

    members = {
        "forward": staticmethod(forward),
        "backward": staticmethod(backward),
        # Compiled autograd calls this method of an autograd.Function.
        "_compiled_autograd_key": staticmethod(torch.autograd.Function._compiled_autograd_key),
    }
    # The base class of autograd.Function. The dispatcher enters the transforms of torch.func one by
    # one, which autograd.Function would do again.
    kind = type(f"cutlass_api_{operator.name}", (_SingleLevelFunction,), members)

    def call(keyset: Any, args: Any, options: Any) -> Any:
        values = operator.values(args, options)
        lengths = [len(value) if isinstance(value, list) else None for value in values]
        leaves = flattened(values, lengths)
        if torch._C._functorch.maybe_current_level() is None:
            return kind.apply(keyset, lengths, *leaves)  # type: ignore[attr-defined]
        with enable_single_level_autograd_function():
            return kind.apply(keyset, lengths, *leaves)  # type: ignore[attr-defined]

    return call


def flattened(values: Sequence[Any], lengths: Sequence[int | None]) -> list[Any]:
    """The values, with the members of lists in place of lists. None counts as a list of None."""
    leaves: list[Any] = []
    for value, length in zip(values, lengths, strict=True):
        if length is None:
            leaves.append(value)
        else:
            leaves += [None] * length if value is None else value
    return leaves


def grouped(leaves: Sequence[Any], lengths: Sequence[int | None]) -> list[Any]:
    """The values of which these are the leaves."""
    rest = iter(leaves)
    return [
        next(rest) if length is None else [next(rest) for _ in range(length)] for length in lengths
    ]


# ---- refusals ------------------------------------------------------------------------------------

# Stands in a trace for a gradient that does not exist, and raises when it runs: compiled code whose
# backward never runs computes, as eager code does.
REFUSALS = torch.library.Library("cutlass_api_autograd", "DEF")
REFUSALS.define("refuse(Tensor grad, SymInt[] shape, str message) -> Tensor")
REFUSED: Any = torch.ops.cutlass_api_autograd.refuse.default


def refuse_gradient(grad: Tensor, shape: Sequence[int], message: str) -> Tensor:
    raise RuntimeError(message)


def refused_gradient(grad: Tensor, shape: Sequence[int], message: str) -> Tensor:
    return grad.new_empty(shape)


REFUSALS.impl("refuse", refuse_gradient, "CompositeExplicitAutograd")
torch.library.register_fake("cutlass_api_autograd::refuse", refused_gradient, lib=REFUSALS)


def refusal_of(operator: Operator, needs: Call, refusal: NoDerivative) -> str:
    required = [name for name in operator.tensors if any(tree_leaves(getattr(needs, name)))]
    names = " and ".join(refusal.names or required)
    return (
        f"cutlass_api::{operator.name} has no derivative for {names}{refusal.condition}: detach "
        f"{names}, or {refusal.advice}"
    )


def refuse_tangents(name: str, *arguments: Any) -> None:
    for tensor in tree_leaves(arguments):
        while isinstance(tensor, Tensor) and torch._C._functorch.is_batchedtensor(tensor):
            tensor = torch._C._functorch.get_unwrapped(tensor)
        if isinstance(tensor, Tensor) and forward_ad.unpack_dual(tensor).tangent is not None:
            raise RuntimeError(
                f"cutlass_api::{name}: an operand has a tangent, and the operator has no "
                "forward-mode derivative: detach the operand, or use torch's operator"
            )


def named_error(name: str, error: Exception, *arguments: Any) -> Exception | None:
    """An error in place of that of a call: names the tensors that no implementation serves."""
    tensors = [x for x in tree_leaves(arguments) if isinstance(x, Tensor)]
    found = next(filter(None, (unserved(name, tensor) for tensor in tensors)), None)
    if found is not None:
        return NotImplementedError(
            f"cutlass_api::{name} does not serve {found}; pass dense tensors on the CPU or a CUDA "
            "device, or use torch's operator"
        )
    return distributed_error(name, error) if any(map(is_distributed, tensors)) else None


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
    if tensor.device.type not in DEVICES:
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
