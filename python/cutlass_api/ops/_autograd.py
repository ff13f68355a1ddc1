"""The autograd kernel of every operator, made from its record."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.utils._pytree import tree_leaves

from cutlass_api.ops._operator import DEVICES, LIBRARY, OPS, Call, Gradient, Operator, Through

#: Why the overloads `out` have no gradient.
NO_OUT_GRADIENT = "does not support autograd, but an operand requires grad: omit out"


def register(operator: Operator) -> None:
    """Registers the autograd kernels of an operator.

    ``torch.library.register_autograd`` would drop tangents, raise inside of ``torch.func.grad``,
    and build the autograd function now, which takes longer than all else.
    """
    gradient = operator.gradient
    recorded = cache(lambda: autograd_function(operator))

    def refused(keyset: Any, args: Any, options: Any) -> Any:
        raise RuntimeError(f"cutlass_api::{operator.name} {gradient}")

    def refused_out(keyset: Any, args: Any, options: Any) -> Any:
        raise RuntimeError(f"cutlass_api::{operator.name}.out {NO_OUT_GRADIENT}")

    def differentiated(keyset: Any, args: Any, options: Any) -> Any:
        return recorded()(keyset, args, options)

    def through(keyset: Any, args: Any, options: Any) -> Any:
        assert isinstance(gradient, Through)
        return getattr(OPS, gradient.name)(*args, **options)[0]

    kinds = {Gradient: differentiated, Through: through, str: refused}
    add_kernel(operator.name, operator.overload, kinds[type(gradient)])
    if operator.has_out:
        add_kernel(f"{operator.name}.out", getattr(OPS, operator.name).out, refused_out)


def add_kernel(name: str, overload: Any, differentiate: Callable[..., Any]) -> None:
    """Registers a kernel that calls ``differentiate(keyset, args, options)`` if an operand requires
    grad.
    """
    writes = name.endswith(".out")

    def kernel(keyset: Any, *args: Any, **options: Any) -> Any:
        try:
            if forward_ad._current_level >= 0:
                refuse_tangents(name, args, options)
            if torch.is_grad_enabled() and torch._C._any_requires_grad(*args, *options.values()):
                return differentiate(keyset, args, options)
            result = below_autograd(overload, keyset, *args, **options)
        except Exception as error:
            named = named_error(name, error, args, options)
            if named is None:
                raise
            raise named from error
        if writes and not options["out"].is_inference():
            # Autograd raises if it saved what is overwritten.
            torch.autograd.graph.increment_version(options["out"])
        return result

    LIBRARY.impl(name, kernel, "Autograd", with_keyset=True)


def below_autograd(overload: Any, keyset: Any, *args: Any, **options: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return overload.redispatch(keyset & torch._C._after_autograd_keyset, *args, **options)


def autograd_function(operator: Operator) -> Callable[..., Any]:
    """A function of the dispatch keys and the arguments that records a call for autograd."""
    gradient, overload = operator.gradient, operator.overload
    assert isinstance(gradient, Gradient)

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
        gradient.save(ctx, Call(operator, values), output)
        ctx.lengths = lengths
        return output

    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        needs = Call(operator, grouped(ctx.needs_input_grad[2:], ctx.lengths))
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


def refuse_tangents(name: str, *arguments: Any) -> None:
    for tensor in tree_leaves(arguments):
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
