"""The library ``cutlass_api`` of torch's dispatcher: definitions, launches and their checks."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cutlass_api._core import check_gemm, launch_gemm

#: Owns the registrations: they last until the process ends.
LIBRARY = torch.library.Library("cutlass_api", "DEF")
#: Kernels are chosen for the strides at hand, so compiled code keeps the strides of eager code.
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)

Function = TypeVar("Function", bound=Callable[..., Any])


def refuse(operator: str, reason: str) -> ValueError:
    return ValueError(f"cutlass_api::{operator}: {reason}")


def batch_of(A: torch.Tensor, B: torch.Tensor) -> Any:
    """The number of products that A @ B is; None for two matrices."""
    batches = [x.shape[0] for x in (A, B) if x.dim() == 3]
    return next((size for size in batches if size != 1), batches[0] if batches else None)


def product_shape(operator: str, A: torch.Tensor, B: torch.Tensor) -> tuple[Any, ...]:
    """The shape of A @ B: (M, N), or (L, M, N) if an operand has a batch."""
    if A.dim() == 2 and B.dim() == 2:
        return A.shape[0], B.shape[1]
    if not {A.dim(), B.dim()} <= {2, 3}:
        raise refuse(
            operator,
            f"A has shape {list(A.shape)} and B {list(B.shape)}; pass tensors of rank 2 or 3 "
            "(flatten several batch dimensions to one)",
        )
    return batch_of(A, B), A.shape[-2], B.shape[-1]


def operator(schema: str, *, has_out: bool = True) -> Callable[[Function], Function]:
    """Registers the decorated function as an operator, for CPU, CUDA and FakeTensors.

    ``has_out``: also register the overload ``out``, which passes the output as ``out=``. It
    returns nothing, because compiled code cannot functionalize an operator that returns an alias.
    """
    name = schema.partition("(")[0]

    def register(function: Function) -> Function:
        register_overload(schema, name, function)
        if has_out:

            def into(*args: Any, out: torch.Tensor, **options: Any) -> None:
                function(*args, out=out, **options)

            register_overload(out_schema(schema), f"{name}.out", into)
        return function

    return register


def register_overload(schema: str, name: str, function: Callable[..., Any]) -> None:
    LIBRARY.define(schema, tags=TAGS)
    for key in ("CPU", "CUDA"):
        LIBRARY.impl(name, function, key)
    torch.library.register_fake(f"cutlass_api::{name}", function, lib=LIBRARY)


def out_schema(schema: str) -> str:
    """The schema of the overload ``out``, which takes the output in place of its dtype."""
    name, _, rest = schema.partition("(")
    arguments = rest.rpartition(") ->")[0]
    arguments = arguments.removesuffix(", ScalarType? out_dtype=None")
    arguments = arguments.removesuffix(", *")
    keywords = "" if ", *, " in arguments else ", *"
    return f"{name}.out({arguments}{keywords}, Tensor(a!) out) -> ()"


def launch(
    operator: str,
    A: torch.Tensor,
    B: torch.Tensor,
    *operands: torch.Tensor | float,
    out: Any,
    epilogue: str | None = None,
    offsets: torch.Tensor | None = None,
    fast_sums: bool = False,
) -> Any:
    """Runs ``launch_gemm`` and returns ``out``. Errors name the operator.

    For FakeTensors, raises what the launch of real tensors would raise.
    """
    if isinstance(A, FakeTensor):
        check(
            *(operator, A, B, *operands),
            out=out,
            epilogue=epilogue,
            offsets=offsets,
            fast_sums=fast_sums,
        )
        return out
    try:
        launch_gemm(
            A, B, *operands, out=out, epilogue=epilogue, offsets=offsets, fast_sums=fast_sums
        )
    except (TypeError, ValueError, BufferError) as error:
        if not A.is_meta:
            raise type(error)(f"cutlass_api::{operator}: {error}") from None
    return out


def check(
    operator: str,
    A: torch.Tensor,
    B: torch.Tensor,
    *operands: Any,
    out: Any,
    epilogue: str | None,
    offsets: torch.Tensor | None,
    fast_sums: bool = False,
) -> None:
    """Checks a launch of FakeTensors. A symbolic size counts as that of the example input."""
    try:
        a, b, *others = map(example, (A, B, *operands))
        outs = tuple(map(example, out)) if isinstance(out, tuple) else example(out)
        ends = None if offsets is None else example(offsets)
        check_gemm(a, b, *others, out=outs, epilogue=epilogue, offsets=ends, fast_sums=fast_sums)
    except DataDependentSize:
        pass  # the launch checks the operands
    except (TypeError, ValueError, BufferError) as error:
        raise type(error)(f"cutlass_api::{operator}: {error}") from None
    # A guard: the compiled code serves operands that agree in K.
    torch._check(A.shape[-1] == B.shape[-2])


class DataDependentSize(Exception):
    """A symbolic size without an example, such as a count that a kernel computes."""


def example(tensor: Any) -> Any:
    """A number, a FakeTensor without symbolic sizes, or such a tensor of the example's sizes."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    sizes = (*tensor.shape, *tensor.stride())
    if not any(isinstance(size, torch.SymInt) for size in sizes):
        return tensor
    hints = [size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes]
    if None in hints:
        raise DataDependentSize
    shape, stride = hints[: tensor.dim()], hints[tensor.dim() :]
    return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
