"""Linear layers of tensor parallelism whose communication overlaps with their products.

::

    import torch
    from cutlass_api import distributed

    hidden = distributed.all_gather_linear(x, up, activation="silu")  # rows of x on each rank
    y = distributed.linear_reduce_scatter(hidden, down)  # rows of y on each rank

The rows are cut into chunks. While one chunk is multiplied, the next one is communicated on the
stream of the process group. ``parallelize_module`` and ``fully_shard`` need none of this: the
operators take DTensors (docs/guide/distributed.md).
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cutlass_api._core import launch_gemm
from cutlass_api.ops import OPS, _epilogues

#: Chunks of the rows. More chunks hide more of the communication, and make smaller products.
CHUNKS = 4
#: Multiprocessors that NCCL's kernels find free while a product runs.
FREE_MULTIPROCESSORS = 16


def all_gather_linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    *,
    group: Any = None,
    chunks: int = CHUNKS,
    free_multiprocessors: int = FREE_MULTIPROCESSORS,
) -> Tensor:
    """activation(all_gather(input) @ weight.T + bias): a column-parallel layer.

    ``input``: the rows of this rank, (M / ranks, K), as many as those of the others. ``weight``:
    the columns of this rank, (N / ranks, K); ``bias``: (N / ranks,). The result is
    (M, N / ranks). ``group``: the process group, by default that of all ranks. ``chunks``: how many
    parts of the rows are gathered and multiplied in turns. ``free_multiprocessors``: as of
    :class:`cutlass_api.arguments.PerformanceControls`.

    Differentiates without an activation; backward overlaps in the same way. Raises ValueError if
    shapes do not match. With an activation, backward raises RuntimeError.
    """
    check("all_gather_linear", input, weight, chunks)
    options = (group, chunks, free_multiprocessors)
    result: Tensor = Gathered.apply(input, weight, bias, activation, *options)
    return result


def linear_reduce_scatter(
    input: Tensor,
    weight: Tensor,
    *,
    group: Any = None,
    chunks: int = CHUNKS,
    free_multiprocessors: int = FREE_MULTIPROCESSORS,
) -> Tensor:
    """reduce_scatter(input @ weight.T): a row-parallel layer without a bias.

    ``input``: all rows, (M, K / ranks), of which M is a multiple of the ranks. ``weight``: the part
    of this rank, (N, K / ranks). The result is the rows of this rank, (M / ranks, N). Other
    arguments as of :func:`all_gather_linear`. Differentiates.

    Raises ValueError if shapes do not match.
    """
    check("linear_reduce_scatter", input, weight, chunks)
    ranks = dist.get_world_size(group)
    if input.shape[0] % ranks:
        raise ValueError(
            f"linear_reduce_scatter: input has {input.shape[0]} rows; pass a multiple of the "
            f"{ranks} ranks of the group"
        )
    result: Tensor = Scattered.apply(input, weight, group, chunks, free_multiprocessors)
    return result


def check(name: str, input: Tensor, weight: Tensor, chunks: int) -> None:
    if input.dim() != 2 or weight.dim() != 2 or input.shape[1] != weight.shape[1]:
        raise ValueError(
            f"{name}: input has shape {list(input.shape)} and weight {list(weight.shape)}; pass "
            "matrices (rows, K) and (N, K)"
        )
    if chunks < 1:
        raise ValueError(f"{name}: chunks is {chunks}; pass a positive number")


class Gathered(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        activation: str | None,
        *options: Any,
    ) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.options, ctx.activation = options, activation
        return gather_and_multiply(input, weight, bias, activation, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.activation is not None:
            raise RuntimeError(
                f"all_gather_linear has no derivative with activation={ctx.activation!r}: omit it "
                "and call torch's function on the result, or detach input, weight and bias"
            )
        input, weight = ctx.saved_tensors
        wants_input, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        of_input = of_weight = of_bias = None
        if wants_input:
            of_input = multiply_and_scatter(grad, weight.t(), *ctx.options)
        if wants_weight:
            of_weight = OPS.linear_weight_grad(grad, gather(input, ctx.options[0]))
        if wants_bias:
            of_bias = grad.sum(0)
        return of_input, of_weight, of_bias, *(None for _ in range(4))


class Scattered(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, *options: Any) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.options = options
        return multiply_and_scatter(input, weight, *options)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        of_input = of_weight = None
        if ctx.needs_input_grad[0]:
            of_input = gather_and_multiply(grad, weight.t(), None, None, *ctx.options)
        if ctx.needs_input_grad[1]:
            of_weight = OPS.linear_weight_grad(gather(grad, ctx.options[0]), input)
        return of_input, of_weight, None, None, None


def gather(rows: Tensor, group: Any) -> Tensor:
    whole = rows.new_empty(dist.get_world_size(group) * rows.shape[0], rows.shape[1])
    dist.all_gather_into_tensor(whole, rows.contiguous(), group=group)
    return whole


def parts(rows: int, chunks: int) -> Iterator[slice]:
    """The rows of each chunk; fewer chunks if there are fewer rows."""
    count = max(1, min(rows, chunks))
    for at in range(count):
        yield slice(at * rows // count, (at + 1) * rows // count)


def gather_and_multiply(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    group: Any,
    chunks: int,
    free_multiprocessors: int,
) -> Tensor:
    ranks, (rows, depth) = dist.get_world_size(group), input.shape
    input = input.contiguous()
    out = input.new_empty(ranks * rows, weight.shape[0])
    gathered = []
    # The process group runs the collectives one after another, beside the products.
    for part in parts(rows, chunks):
        chunk = input.new_empty(ranks, part.stop - part.start, depth)
        work = dist.all_gather_into_tensor(
            chunk.view(-1, depth), input[part], group=group, async_op=True
        )
        gathered.append((part, chunk, work))
    epilogue = None
    if bias is not None or activation is not None:
        epilogue = _epilogues.linear(activation, bias is not None)
    operands = () if bias is None else (bias,)
    # A chunk holds some rows of each rank, which are a batch of the output.
    by_rank = out.view(ranks, rows, weight.shape[0])
    for part, chunk, work in gathered:
        work.wait()
        launch_gemm(
            *(chunk, weight.t(), *operands),
            out=by_rank[:, part],
            epilogue=epilogue,
            free_multiprocessors=free_multiprocessors,
        )
    return out


def multiply_and_scatter(
    input: Tensor, weight: Tensor, group: Any, chunks: int, free_multiprocessors: int
) -> Tensor:
    ranks = dist.get_world_size(group)
    rows, columns = input.shape[0] // ranks, weight.shape[0]
    out = input.new_empty(rows, columns)
    by_rank = input.view(ranks, rows, input.shape[1])
    scattered = []
    for part in parts(rows, chunks):
        sums = input.new_empty(ranks, part.stop - part.start, columns)
        launch_gemm(
            by_rank[:, part], weight.t(), out=sums, free_multiprocessors=free_multiprocessors
        )
        work = dist.reduce_scatter_tensor(
            out[part], sums.view(-1, columns), group=group, async_op=True
        )
        # Keeps the sums until they are read.
        scattered.append((sums, work))
    for _, work in scattered:
        work.wait()
    return out


__all__ = ["all_gather_linear", "linear_reduce_scatter"]
