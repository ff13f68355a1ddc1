"""Rules for vmap: a mapped dimension becomes a batch dimension of one launch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cutlass_api._batches import checked_shape, one_batch
from cutlass_api.ops import _broadcast
from cutlass_api.ops._library import refuse, rows_of
from cutlass_api.ops._operator import LIBRARY, OPS, Call, Operator

Result = tuple[Any, Any]


def register(operator: Operator) -> None:
    def rule(info: Any, in_dims: Sequence[Any], *args: Any, **options: Any) -> Result:
        dims = [*in_dims, *(None for _ in operator.names[len(args) :])]
        call = operator.bind(args, options)
        return operator.vmap(call, Call(operator, dims), info.batch_size)

    torch.library.register_vmap(f"cutlass_api::{operator.name}", rule, lib=LIBRARY)


def front(tensor: Tensor, dim: int | None, rank: int = 0) -> Tensor:
    """The tensor with its mapped dimension first. Ones follow the mapped dimension, so that the
    other dimensions align with those of tensors of this rank.
    """
    if dim is None:
        return tensor
    tensor = tensor.movedim(dim, 0)
    ones = (1,) * (rank + 1 - tensor.dim())
    return tensor.reshape(tensor.shape[0], *ones, *tensor.shape[1:]) if ones else tensor


def product(call: Call, dims: Call, size: int) -> Result:
    """The rule of products: the other operands broadcast to the output."""
    of = dims.factors
    ranks = [x.dim() - (dim is not None) for x, dim in zip(call.factors, of, strict=True)]
    rank = max(ranks)
    a, b = (front(x, dim, rank) for x, dim in zip(call.factors, of, strict=True))
    if of == (None, None):
        a = a.expand(size, *(1,) * (rank - ranks[0]), *a.shape)
    batch = checked_shape(a.shape[:-2], b.shape[:-2])
    name = call.operator.batched
    if name is not None:
        check_examples(call, dims)
    if name == "bmm":
        return _broadcast.product(a, b, call.out_dtype), 0
    if b.dim() == 2 and not call.others:
        matrix = call.replace(**dict(zip(call.operator.factors, (rows_of(a), b), strict=True)))
        out = matrix.run()
    else:
        flat = [one_batch(x, batch) for x in (a, b)]
        values: dict[str, Any] = dict(zip(call.operator.factors, flat, strict=True))
        for other, value in call.others.items():
            dim = getattr(dims, other)
            if isinstance(value, list):
                pairs = zip(value, dim, strict=True)
                values[other] = [one_batch(front(x, d, rank), batch) for x, d in pairs]
            else:
                values[other] = one_batch(front(value, dim, rank), batch)
        call = call.replace(**values)
        out = call.run() if name is None else call.run(getattr(OPS, name), broadcast=True)
    return out.reshape(*batch, a.shape[-2], b.shape[-1]), 0


def check_examples(call: Call, dims: Call) -> None:
    """Raises ValueError for factors that the operator refuses outside of vmap, by their ranks and
    batches.
    """
    pairs = zip(call.factors, dims.factors, strict=True)
    shapes = [list(x.shape if dim is None else x.select(dim, 0).shape) for x, dim in pairs]
    operator = call.operator
    batches = [shape[:-2] for shape in shapes]
    rank = 3 if operator.batched == operator.name else 2
    is_broadcast = "broadcast" in operator.names and call.broadcast
    if not is_broadcast and ({*map(len, shapes)} != {rank} or batches[0] != batches[1]):
        (a, b), (of_a, of_b) = operator.factors, shapes
        reason = f"{a} has shape {of_a} and {b} {of_b}; pass tensors of rank {rank}"
        raise refuse(operator.name, reason + (" and of one batch size" if rank == 3 else ""))


def one_by_one(call: Call, dims: Call, size: int) -> Result:
    """A rule that launches for each example."""

    tensors = {name: getattr(dims, name) for name in call.operator.tensors}
    mapped = {name: dim for name, dim in tensors.items() if dim is not None}

    def of(at: int) -> Any:
        chosen = {name: getattr(call, name).select(dim, at) for name, dim in mapped.items()}
        return call.replace(**chosen).run()

    outs = [of(example) for example in range(size)]
    if isinstance(outs[0], Tensor):
        return torch.stack(outs), 0
    return [torch.stack(each) for each in zip(*outs, strict=True)], [0] * len(outs[0])
