"""Rules for vmap: a mapped dimension becomes a batch dimension of one launch."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cutlass_api._batches import checked_shape, one_batch
from cutlass_api._core import trace_epilogue
from cutlass_api._dtypes import FLOATS, INT8
from cutlass_api.ops import _broadcast, _epilogues
from cutlass_api.ops._autograd import refuse_tangents
from cutlass_api.ops._evaluate import evaluate
from cutlass_api.ops._library import product_dtype, refuse, rows_of, sum_dtype
from cutlass_api.ops._operator import LIBRARY, OPS, Call, Operator

Result = tuple[Any, Any]


def register(operator: Operator) -> None:
    def rule(info: Any, in_dims: Sequence[Any], *args: Any, **options: Any) -> Result:
        dims = [*in_dims, *(None for _ in operator.names[len(args) :])]
        call = operator.bind(args, options)
        if forward_ad._current_level >= 0:  # torch would differentiate epilogues that it computes
            refuse_tangents(operator.name, args, options)
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


class Epilogue(NamedTuple):
    """The source of an epilogue, its operands, and the mapped dimension of each. ``factor``: the
    position of the operand that A is multiplied by, too.
    """

    source: str
    operands: Sequence[Any]
    dims: Sequence[int | None] = ()
    factor: int | None = None
    out_dtype: torch.dtype | None = None


def composed(call: Call, dims: Call, size: int, epilogue: Epilogue) -> Tensor | None:
    """The outputs of ``size`` examples: products, then the epilogue by torch. None where one launch
    repeats no product and copies no factor, and for dtypes whose epilogues are the kernels' alone.
    """
    of, second = dims.factors, epilogue.factor
    if not is_composable(*call.factors, epilogue):
        return None
    ranks = [x.dim() - (dim is not None) for x, dim in zip(call.factors, of, strict=True)]
    a, b = (front(x, dim, max(ranks)) for x, dim in zip(call.factors, of, strict=True))
    batch = checked_shape(a.shape[:-2], b.shape[:-2])
    copies = len(batch) > 1 and any(x.dim() > 2 and x.shape[:-2] != batch for x in (a, b))
    differ = second is not None and (of[1] is None) != (epilogue.dims[second] is None)
    if of != (None, None) and not copies and not differ:
        return None
    if call.operator.batched is not None:
        check_examples(call, dims)
    pairs = zip(epilogue.operands, epilogue.dims, strict=True)
    operands = [x if dim is None else front(x, dim, max(ranks)) for x, dim in pairs]
    shape = (*(batch if of != (None, None) else (size, *batch)), a.shape[-2], b.shape[-1])
    return compose(call.operator.name, a, b, epilogue._replace(operands=operands), shape)


def is_composable(A: Tensor, B: Tensor, epilogue: Epilogue) -> bool:
    """Whether torch computes the epilogue as kernels do."""
    traced = trace_epilogue(epilogue.source)
    others = [x for x in epilogue.operands if isinstance(x, Tensor)]
    factors, dtype = {A.dtype, B.dtype}, epilogue.out_dtype or product_dtype(A.dtype, B.dtype)
    if factors <= {*INT8}:  # whose products have no derivatives
        is_float = dtype in FLOATS and _epilogues.reads_floats(epilogue.source)
        is_float = is_float and not any(x.requires_grad for x in others)
        served = FLOATS
    else:
        is_float = {*factors, dtype} <= {*FLOATS, torch.float64}
        served = (*FLOATS, A.dtype)
    is_float = is_float and all(x.dtype in served for x in others)
    is_complete = len(traced.inputs) == len(epilogue.operands)
    has_sums = _epilogues.scales_blocks(epilogue.source)
    return is_float and is_complete and traced.outputs == ["D"] and not has_sums


def compose(
    operator: str, A: Tensor, B: Tensor, epilogue: Epilogue, shape: Sequence[int]
) -> Tensor:
    """A product and an epilogue of this shape, rounded once."""
    dtype = sum_dtype(A.dtype)
    inputs = list(epilogue.operands)
    for at, x in enumerate(inputs):
        if at == epilogue.factor:
            inputs[at] = _broadcast.product(A, x, dtype)
        elif isinstance(x, Tensor):
            pairs = zip(reversed(x.shape), reversed(shape), strict=False)
            if x.dim() > len(shape) or any(n not in (1, m) for n, m in pairs):
                raise refuse(
                    operator,
                    f"an operand with shape {list(x.shape)} does not broadcast to the output's "
                    f"shape {list(shape)}",
                )
            inputs[at] = x.to(dtype)
    out = evaluate(epilogue.source, _broadcast.product(A, B, dtype), inputs)
    out = out.expand(*shape).to(epilogue.out_dtype or product_dtype(A.dtype, B.dtype))
    return out.contiguous()


def check_examples(call: Call, dims: Call) -> None:
    """Raises ValueError for factors that the operator refuses outside of vmap, by their ranks and
    batches.
    """
    pairs = zip(call.factors, dims.factors, strict=True)
    shapes = [[n for at, n in enumerate(x.shape) if at != dim] for x, dim in pairs]
    operator = call.operator
    batches = [shape[:-2] for shape in shapes]
    rank = 3 if operator.batched == operator.name else 2
    is_broadcast = "broadcast" in operator.names and call.broadcast
    if not is_broadcast and ({*map(len, shapes)} != {rank} or batches[0] != batches[1]):
        (a, b), (of_a, of_b) = operator.factors, shapes
        reason = f"{a} has shape {of_a} and {b} {of_b}; pass tensors of rank {rank}"
        raise refuse(operator.name, reason + (" and of one batch size" if rank == 3 else ""))


def one_by_one(call: Call, dims: Call, size: int) -> Result:
    """A rule that launches for each example. Of none, zeros have the shapes of outputs."""
    tensors = {name: getattr(dims, name) for name in call.operator.tensors}
    mapped = {name: dim for name, dim in tensors.items() if dim is not None}

    def of(at: int) -> Any:
        chosen = {name: examples[name][at] for name in mapped}
        return call.replace(**chosen).run()

    examples = {name: getattr(call, name).movedim(dim, 0) for name, dim in mapped.items()}
    if size == 0:
        examples = {name: x.new_zeros((1, *x.shape[1:])) for name, x in examples.items()}
    outs = [of(example) for example in range(max(size, 1))]
    if isinstance(outs[0], Tensor):
        return torch.stack(outs)[:size], 0
    return [torch.stack(each)[:size] for each in zip(*outs, strict=True)], [0] * len(outs[0])
