"""Mixtures of experts: tokens become rows of groups, one for each expert, and rows become tokens.

A slot is one choice of a token: slot ``token * top_k + choice``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlass_api.ops._operator import OPS


class Routing(NamedTuple):
    """The group of each slot, in memory of the device.

    - ``experts``: the expert of each row, ascending. Slots of no expert lie behind the last group.
    - ``slots``: the slot of each row. Slots of one expert keep their order.
    - ``rows``: the row of each slot, (tokens, top_k).
    - ``offsets``: the end row of each group, int32.
    """

    experts: Tensor
    slots: Tensor
    rows: Tensor
    offsets: Tensor

    def of_rows(self, values: Tensor) -> Tensor:
        """The value of each row's expert; behind the last group, any value."""
        return values[self.experts.clamp(max=values.shape[0] - 1)]


def route(index: Tensor, count: int) -> Routing:
    """Sorts the slots of ``index``, (tokens, top_k), by their expert: 0 to ``count`` - 1, or a
    larger number for no expert. The host reads nothing: CUDA graphs can capture it."""
    experts, slots = index.flatten().sort(stable=True)
    rows = torch.empty_like(slots)
    rows[slots] = torch.arange(slots.shape[0], device=slots.device)
    numbers = torch.arange(count, device=experts.device, dtype=experts.dtype)
    offsets = torch.searchsorted(experts, numbers, right=True, out_int32=True)
    return Routing(experts, slots, rows.view(index.shape), offsets)


class Gather(torch.autograd.Function):
    """The row of each slot's token. Its gradient adds those of a token's slots in order, and rounds
    once; that of torch's indexing sorts the slots again, or adds in any order."""

    @staticmethod
    def forward(tokens: Tensor, *routing: Tensor) -> Tensor:
        return of_tokens(tokens, Routing(*routing))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        routing = Routing(*ctx.saved_tensors)
        total = of_slots(grad, routing).sum(1, dtype=sums_of(grad)).to(grad.dtype)
        return total, *(None for _ in routing)


class Combine(torch.autograd.Function):
    """Adds the rows of a token's slots by their weights, (tokens, top_k), in order, and rounds
    once."""

    @staticmethod
    def forward(values: Tensor, weights: Tensor, *routing: Tensor) -> Tensor:
        weighted = of_slots(values, Routing(*routing)) * weights.unsqueeze(-1)
        return weighted.sum(1, dtype=sums_of(weighted)).to(values.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        values, weights, *saved = ctx.saved_tensors
        routing, of_values, of_weights = Routing(*saved), None, None
        if ctx.needs_input_grad[0]:
            factors = weights.flatten()[routing.slots].unsqueeze(-1)
            of_values = (of_tokens(grad, routing) * factors).to(values.dtype)
        if ctx.needs_input_grad[1]:
            products = of_slots(values, routing) * grad.unsqueeze(1)
            of_weights = products.sum(-1, dtype=sums_of(products)).to(weights.dtype)
        return of_values, of_weights, *(None for _ in routing)


def of_tokens(values: Tensor, routing: Routing) -> Tensor:
    """The value of each row's token."""
    return values[routing.slots // routing.rows.shape[1]]


def of_slots(values: Tensor, routing: Routing) -> Tensor:
    """The row of each slot, (tokens, top_k, N); zeros for those of no expert, whose rows no product
    writes."""
    is_inside = routing.rows < routing.offsets[-1]
    return torch.where(is_inside.unsqueeze(-1), values[routing.rows], 0)


def sums_of(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None, routing: Routing) -> Tensor:
    """Each group's rows times its matrix of ``weight``, (experts, K, N), plus its row of
    ``bias``."""
    out: Tensor = OPS.grouped_mm(input, weight, routing.offsets)
    return out if bias is None else out + routing.of_rows(bias)


def experts(
    tokens: Tensor,
    index: Tensor,
    weights: Tensor,
    up: tuple[Tensor, Tensor | None],
    down: tuple[Tensor, Tensor | None],
    activate: Callable[[Tensor], Tensor],
    finish: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The sum over a token's slots of weight * finish(down(activate(up(token)))), of the slot's
    expert.

    - ``tokens``: (tokens, K). ``index``, ``weights``: (tokens, top_k), the expert of each slot, and
      its factor. Slots whose index is the number of experts or above count nothing.
    - ``up``, ``down``: the matrices, (experts, K, N), and the biases, (experts, N).

    Sums of slots are float32, in order: results repeat bit for bit.
    """
    routing = route(index, up[0].shape[0])
    rows = Gather.apply(tokens, *routing)
    rows = linear(activate(linear(rows, *up, routing)), *down, routing)
    if finish is not None:
        rows = finish(rows)
    result: Tensor = Combine.apply(rows, weights, *routing)
    return result.to(tokens.dtype)
