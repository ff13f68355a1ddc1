"""What the computations of operators share: refusals, shapes, launches and their checks."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import has_torch_function

from cutlass_api import _batches
from cutlass_api._calls import OBSERVED
from cutlass_api._core import check_gemm, launch_gemm, product_dtypes
from cutlass_api.ops._operator import check_out_dtype


def refuse(operator: str, reason: str) -> ValueError:
    return ValueError(f"cutlass_api::{operator}: {reason}")


def proxies_of(*tensors: Any) -> tuple[Any, ...]:
    """Those of the tensors that stand for one in a symbolic trace, as the proxies of torch.fx."""
    others = tuple(x for x in tensors if x is not None and not isinstance(x, Tensor))
    return others if has_torch_function(others) else ()


def batch_of(A: Tensor, B: Tensor) -> Any:
    """The number of products that A @ B is; None for two matrices."""
    if len(A.shape) == len(B.shape) == 2:
        return None
    return _batches.broadcast_shape(A.shape[:-2], B.shape[:-2])[0]


def check_k(operator: str, A: Tensor, B: Tensor, names: tuple[str, str] = ("A", "B")) -> None:
    """Refuses matrices that differ in K, before the shapes of their scales are compared with it.
    The launch compares symbolic sizes.
    """
    k, other = A.shape[-1], B.shape[-2]
    if isinstance(k, int) and isinstance(other, int) and k != other:
        a, b = names
        remedy = f"; pass the transpose of {b}" if B.shape[-1] == k else ""
        raise refuse(
            operator,
            f"dimension K differs: it is {k} in {a} with shape {list(A.shape)}, but {other} in {b} "
            f"with shape {list(B.shape)}{remedy}",
        )


def product_shape(operator: str, A: Tensor, B: Tensor) -> tuple[Any, ...]:
    """The shape of A @ B: (M, N), or (L, M, N) if an operand has a batch."""
    if {A.dim(), B.dim()} <= {2, 3}:
        check_k(operator, A, B)
    if A.dim() == 2 and B.dim() == 2:
        return A.shape[0], B.shape[1]
    if not {A.dim(), B.dim()} <= {2, 3}:
        raise refuse(
            operator,
            f"A has shape {list(A.shape)} and B {list(B.shape)}; pass tensors of rank 2 or 3 "
            "(flatten several batch dimensions to one)",
        )
    return batch_of(A, B), A.shape[-2], B.shape[-1]


@cache
def product_dtype(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """The dtype of A @ B unless the caller passes one: that of ``cutlass_api.matmul``."""
    try:
        dtype: torch.dtype = getattr(torch, product_dtypes(a, b)[0].name)
    except (TypeError, AttributeError):  # no kernel serves it, as the launch says
        return a
    return dtype


def sum_dtype(of: torch.dtype) -> torch.dtype:
    """The dtype of sums of floats: float64 of float64, else float32."""
    return torch.float64 if of is torch.float64 else torch.float32


def empty(A: Tensor, B: Tensor, shape: Sequence[int], out_dtype: torch.dtype | None) -> Tensor:
    """A row-major tensor for A @ B."""
    if out_dtype is None:
        out_dtype = product_dtype(A.dtype, B.dtype)
    else:
        check_out_dtype("out_dtype", out_dtype, A.dtype)
    return A.new_empty(shape, dtype=out_dtype)


def rows_of(tensor: Tensor) -> Tensor:
    """All rows of a tensor as a matrix, a view if the strides permit."""
    if tensor.dim() == 2:
        return tensor
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def launch(
    operator: str,
    A: Tensor,
    B: Tensor,
    *operands: Tensor | float,
    out: Any,
    epilogue: str | None = None,
    offsets: Tensor | None = None,
    index: Tensor | None = None,
    fast_sums: bool = False,
    element: str | None = None,
    kernel: str | None = None,
) -> Any:
    """Runs ``launch_gemm`` and returns ``out``. Errors name the operator. ``element``: the type of
    4 bits of B, which is then the int32 words (N, K / 32, 4) of a repacked weight; with
    ``offsets``, those of a stack (G, N, K / 8). ``kernel``: the name of the kernel to run, if it
    serves the operands.

    For FakeTensors and meta tensors, raises what the launch of real tensors would raise.
    """
    if OBSERVED:
        noted = {"out": out, "epilogue": epilogue, "offsets": offsets, "index": index}
        OBSERVED[-1].append({"A": A, "B": B, "operands": operands, "element": element, **noted})
    if not isinstance(A, FakeTensor):
        try:
            launch_gemm(
                *(A, B, *operands),
                out=out,
                epilogue=epilogue,
                offsets=offsets,
                index=index,
                fast_sums=fast_sums,
                element=element,
                kernel=kernel,
            )
            return out
        except (TypeError, ValueError, BufferError) as error:
            if not any(isinstance(x, Tensor) and x.is_meta for x in (A, B, *operands)):
                raise type(error)(f"cutlass_api::{operator}: {error}") from None
    with nullcontext() if isinstance(A, FakeTensor) else fake_mode():
        check(
            *(operator, A, B, *operands),
            out=out,
            epilogue=epilogue,
            offsets=offsets,
            index=index,
            fast_sums=fast_sums,
            element=element,
        )
    return out


@cache
def fake_mode() -> FakeTensorMode:
    """Makes the FakeTensors that stand for meta tensors."""
    return FakeTensorMode()


def check(
    operator: str,
    A: Tensor,
    B: Tensor,
    *operands: Any,
    out: Any,
    epilogue: str | None,
    offsets: Tensor | None,
    index: Tensor | None = None,
    fast_sums: bool = False,
    element: str | None = None,
) -> None:
    """Checks a launch of FakeTensors. A symbolic size counts as that of the example input, and the
    device meta as the CPU.
    """
    devices = {x.device.type for x in (A, B, *operands, offsets, index) if isinstance(x, Tensor)}
    if "meta" in devices and len(devices) > 1:
        raise refuse(operator, "some operands are on the device meta and others are not; move them")
    try:
        a, b, *others = map(example, (A, B, *operands))
        outs = tuple(map(example, out)) if isinstance(out, tuple) else example(out)
        ends, rows = (None if of is None else example(of) for of in (offsets, index))
        check_gemm(
            *(a, b, *others),
            out=outs,
            epilogue=epilogue,
            offsets=ends,
            index=rows,
            fast_sums=fast_sums,
            element=element,
        )
    except DataDependentSize:
        pass  # the launch checks the operands
    except (TypeError, ValueError, BufferError) as error:
        raise type(error)(f"cutlass_api::{operator}: {error}") from None
    # A guard: the compiled code serves operands that agree in K.
    words = B.shape[1] * 4 if offsets is None else B.shape[-1]
    torch._check(A.shape[-1] == (B.shape[-2] if element is None else 8 * words))


class DataDependentSize(Exception):
    """A symbolic size without an example, such as a count that a kernel computes."""


def example(tensor: Any) -> Any:
    """A number, a FakeTensor without symbolic sizes, or such a tensor of the example's sizes."""
    if not isinstance(tensor, Tensor):
        return hint(tensor)
    sizes = (*tensor.shape, *tensor.stride())
    is_meta = tensor.device.type == "meta"
    if not is_meta and not any(isinstance(size, torch.SymInt) for size in sizes):
        return tensor
    hints = list(map(hint, sizes))
    shape, stride = hints[: tensor.dim()], hints[tensor.dim() :]
    device = "cpu" if is_meta else tensor.device
    return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=device)


def hint(number: Any) -> Any:
    """The value of a symbolic number for the example input."""
    if not isinstance(number, (torch.SymInt, torch.SymFloat)):
        return number
    if number.node.hint is None:
        raise DataDependentSize
    return number.node.hint
