"""The transforms of ``torch.func``, alone and nested in pairs."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, func

from operators.calls import RUNS_ALL, Call

#: A function of a vector.
Function = Callable[[Tensor], Tensor]
#: The derivatives are those along as many directions of each tensor.
STEPS = 2


def scalar(x: Tensor) -> Tensor:
    """A scalar with curvature, in float64."""
    x = x.double().flatten()
    weights = torch.cos(torch.arange(x.numel(), device=x.device, dtype=torch.float64))
    return (x * weights).sum() + x.square().sum() / 256


def loss(results: Sequence[Tensor]) -> Tensor:
    first, *rest = map(scalar, results)
    return sum(rest, first)


def two(x: Tensor) -> Tensor:
    return torch.stack([scalar(x), x.sum()])


def vmap(f: Function) -> Function:
    return lambda x: torch.vmap(f)(torch.stack([x, x.flip(0)]))


def grad(f: Function) -> Function:
    return func.grad(lambda x: scalar(f(x)))


def vjp(f: Function) -> Function:
    def pulled_back(x: Tensor) -> Tensor:
        y, pull = func.vjp(f, x)
        (found,) = pull(1 + y.detach() / 256)
        return found

    return pulled_back


def jvp(f: Function) -> Function:
    def pushed_forward(x: Tensor) -> Tensor:
        tangent = torch.cos(torch.arange(x.numel(), device=x.device, dtype=x.dtype))
        return func.jvp(f, (x,), (tangent.view(x.shape),))[1]

    return pushed_forward


def jacrev(f: Function) -> Function:
    return func.jacrev(lambda x: two(f(x)))


def jacfwd(f: Function) -> Function:
    return func.jacfwd(lambda x: two(f(x)))


def hessian(f: Function) -> Function:
    return func.hessian(lambda x: scalar(f(x)))


FUNCTIONALS = (vmap, grad, vjp, jvp, jacrev, jacfwd, hessian)


def of_vector(call: Call, active: Sequence[int]) -> tuple[Function, Tensor]:
    """The loss of calls as a function of steps from some tensors along directions, and steps."""
    directions = [directions_of(call.tensors[at]) for at in active]
    start = torch.linspace(-0.5, 0.5, STEPS * len(active), dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        tensors = list(call.tensors)
        for at, along, steps in zip(active, directions, x.split(STEPS), strict=True):
            like = call.tensors[at]
            moved = like.double() + torch.tensordot(steps, along, 1)
            # The reference in float64 has the rounded operands, too.
            rounding = (moved.to(call.dtypes[at]).double() - moved).detach()
            tensors[at] = (moved + rounding).to(like.dtype)
        return loss(call(*tensors))

    return function, start.to(call.tensors[0].device)


def directions_of(x: Tensor) -> Tensor:
    count = STEPS * x.numel()
    return torch.cos(torch.arange(count, device=x.device).double()).view(STEPS, *x.shape)


def applied(call: Call, functionals: Sequence[Callable[[Function], Function]]) -> list[Tensor]:
    """Of all leaves together. If all samples run, also of each leaf alone, nested only with vmap:
    it then maps one tensor.
    """
    if not call.leaves:
        raise RuntimeError("no operand to differentiate")
    has_alone = RUNS_ALL and len(call.leaves) > 1 and (len(functionals) == 1 or vmap in functionals)
    alone = [[at] for at in call.leaves] if has_alone else []
    results = []
    for active in ([*call.leaves], *alone):
        f, x = of_vector(call, active)
        for functional in functionals:
            f = functional(f)
        results.append(f(x))
    return results


# ---- vmap along dimensions -----------------------------------------------------------------------


def examples(x: Tensor) -> list[Tensor]:
    """Two tensors of the shape of one. int32 holds offsets, which have an order."""
    if x.dtype is torch.int32 or not x.dim():
        return [x, x]
    if x.dtype.itemsize == 1:
        return [x, x.view(torch.uint8).flip(0).view(x.dtype)]
    return [x, x.flip(0)]


def mappings(call: Call) -> list[list[int | None]]:
    """The dimensions to map: the first or last one of all tensors, and of each one alone."""
    count = len(call.tensors)
    alone = [[0 if at == one else None for at in range(count)] for one in range(count)]
    return [[0] * count, [-1] * count, *(alone if count > 1 else [])]


def mapped(call: Call) -> list[Tensor]:
    results = []
    for dims in mappings(call):
        tensors = [
            x if dim is None else torch.stack(examples(x), dim)
            for x, dim in zip(call.tensors, dims, strict=True)
        ]
        results += torch.vmap(call, tuple(dims))(*tensors)
    tensors = [torch.stack([torch.stack(examples(x), -1)] * 2) for x in call.tensors]
    count = len(tensors)
    results += torch.vmap(torch.vmap(call, (-1,) * count), (0,) * count)(*tensors)
    return results


def looped(call: Call) -> list[Tensor]:
    def of_example(dims: Sequence[int | None], at: int) -> list[Tensor]:
        pairs = zip(call.tensors, dims, strict=True)
        return call(*(x if dim is None else examples(x)[at] for x, dim in pairs))

    *alone, whole = (
        [torch.stack(pair) for pair in zip(of_example(dims, 0), of_example(dims, 1), strict=True)]
        for dims in [*mappings(call), [0] * len(call.tensors)]
    )
    return [x for each in alone for x in each] + [torch.stack([x, x]) for x in whole]
