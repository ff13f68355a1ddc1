"""Mixtures of experts: tokens become rows of groups, one for each expert, and rows become tokens.

A slot is one choice of a token: slot ``token * top_k + choice``.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from cutlass_api._core import CudaFunction
from cutlass_api._dtypes import CUDA_NAMES
from cutlass_api._tracing import is_launched, is_readable
from cutlass_api.cuda import cuda_kernel
from cutlass_api.nn._stacks import Stack
from cutlass_api.ops import _epilogues
from cutlass_api.ops._evaluate import evaluate
from cutlass_api.ops._gated_mlp import gate_and_up
from cutlass_api.ops._library import sum_dtype
from cutlass_api.ops._operator import OPS
from cutlass_api.utils import ceil_div

#: Of ``kernels/slots.cuh``.
THREADS, CHUNK, MOST_EXPERTS = 256, 1024, 511


class Routing(NamedTuple):
    """The group of each slot, in memory of the device.

    - ``experts``: the expert of each row, ascending. Slots of no expert lie behind the last group.
    - ``slots``: the slot of each row. Slots of one expert keep their order.
    - ``rows``: the row of each slot, (tokens, top_k), int32.
    - ``tokens``: the token of each row.
    - ``offsets``: the end row of each group, int32.
    """

    experts: Tensor
    slots: Tensor
    rows: Tensor
    tokens: Tensor
    offsets: Tensor

    def of_rows(self, values: Tensor) -> Tensor:
        """The value of each row's expert; zeros behind the last group, which have no gradient."""
        count = values.shape[0]
        return torch.nn.functional.pad(values, (0, 0, 0, 1))[self.experts.clamp(0, count)]


def route(index: Tensor, count: int) -> Routing:
    """Sorts the slots of ``index``, (tokens, top_k), by their expert: 0 to ``count`` - 1, or a
    larger number for no expert. The host reads nothing from a GPU: CUDA graphs can capture it.

    Raises ValueError for a negative number on the CPU, and on a GPU with ``CUTLASS_API_CHECK=1``
    outside of captures. Otherwise, it counts as expert 0 there.
    """
    if is_readable(index) and index.numel() and index.min() < 0:
        raise ValueError(
            f"the index of an expert is {int(index.min())}; pass 0 to {count - 1}, or {count} for "
            "no expert"
        )
    if is_launched(index) and count <= MOST_EXPERTS:
        return sort(index, count)
    experts, slots = index.flatten().sort(stable=True)
    rows = torch.empty_like(slots, dtype=torch.int32)
    rows[slots] = torch.arange(slots.shape[0], device=slots.device, dtype=torch.int32)
    numbers = torch.arange(count, device=experts.device, dtype=experts.dtype)
    offsets = torch.searchsorted(experts, numbers, right=True, out_int32=True)
    tokens = slots // index.shape[1]
    return Routing(experts, slots, rows.view(index.shape), tokens, offsets)


def sort(index: Tensor, count: int) -> Routing:
    """The same by one kernel."""
    index = (index if index.dtype is torch.int32 else index.long()).contiguous()
    slots = index.numel()
    wide, narrow = (partial(index.new_empty, dtype=of) for of in (torch.int64, torch.int32))
    routing = Routing(wide(slots), wide(slots), narrow(index.shape), narrow(slots), narrow(count))
    experts, of_rows, rows, tokens, ends = routing
    numbers = (index, slots, index.shape[1], count)
    kernel = sorting("int" if index.dtype is torch.int32 else "long long")
    kernel.launch((*numbers, experts, of_rows, tokens, rows, ends), ceil_div(slots, CHUNK))
    return routing


@cache
def sorting(index: str) -> CudaFunction:
    """The function of ``kernels/slots.cuh`` that sorts numbers of a type of C++."""
    return cuda_kernel('#include "slots.cuh"\n', f"slots::sort<{index}>", grid=1, block=CHUNK)


class Gather(torch.autograd.Function):
    """The row of each slot's token. The backward adds the gradients of a token's slots in order and
    rounds once. The backward of torch's indexing sorts the slots again, or adds in any order."""

    @staticmethod
    def forward(tokens: Tensor, *routing: Tensor) -> Tensor:
        return of_tokens(tokens, Routing(*routing))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        routing = Routing(*ctx.saved_tensors)
        return add_slots(grad, None, routing), *(None for _ in routing)


class Combine(torch.autograd.Function):
    """Adds the rows of a token's slots by their weights, (tokens, top_k), in order and in float32,
    and rounds once."""

    @staticmethod
    def forward(values: Tensor, weights: Tensor, *routing: Tensor) -> Tensor:
        return add_slots(values, weights, Routing(*routing))

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
            of_weights = products.sum(-1, dtype=sum_dtype(products.dtype)).to(weights.dtype)
        return of_values, of_weights, *(None for _ in routing)


def add_slots(values: Tensor, weights: Tensor | None, routing: Routing) -> Tensor:
    """The sum of each token's rows, in order; on a GPU by one kernel, unless torch traces or
    differentiates it."""
    tensors = [values] if weights is None else [values, weights]
    if not needs_gradient(*tensors) and all(map(is_launched, tensors)):
        return launch(values, weights, routing)
    rows = of_slots(values, routing).to(sum_dtype(values.dtype))
    if weights is not None:
        rows = rows * weights.unsqueeze(-1)
    total = rows.sum(1)
    # PyTorch 2.11 compiles a function that ends in a cast to the same dtype without its gradient
    # (findings/compiled_function_ends_in_a_cast.sh).
    return total if total.dtype is values.dtype else total.to(values.dtype)


@cache
def program(value: torch.dtype, weight: torch.dtype | None, is_aligned: bool) -> CudaFunction:
    """The function of ``kernels/slots.cuh``."""
    names = [CUDA_NAMES[value], CUDA_NAMES[weight or value]]
    flags = [str(flag).lower() for flag in (weight is not None, is_aligned)]
    name = f"slots::add<{', '.join([*names, *flags])}>"
    return cuda_kernel('#include "slots.cuh"\n', name, grid=1, block=THREADS)


def launch(values: Tensor, weights: Tensor | None, routing: Routing) -> Tensor:
    tokens, top_k = routing.rows.shape
    values, columns = values.contiguous(), values.shape[1]
    out = values.new_empty(tokens, columns)
    if out.numel() == 0:
        return out
    size = values.element_size()
    is_aligned = columns * size % 16 == values.data_ptr() % 16 == 0
    ctas = ceil_div(columns, THREADS * (16 // size if is_aligned else 1))
    kernel = program(values.dtype, None if weights is None else weights.dtype, is_aligned)
    factors = None if weights is None else weights.contiguous()
    tensors = (values, factors, routing.rows, routing.offsets[-1:], out)
    kernel.launch((*tensors, top_k, columns, ctas), tokens * ctas)
    return out


def of_tokens(values: Tensor, routing: Routing) -> Tensor:
    """The value of each row's token."""
    return values[routing.tokens]


def of_slots(values: Tensor, routing: Routing) -> Tensor:
    """The row of each slot, (tokens, top_k, N); zeros for those of no expert, whose rows no product
    writes."""
    is_inside = routing.rows < routing.offsets[-1]
    return torch.where(is_inside.unsqueeze(-1), values[routing.rows], 0)


#: The matrices of experts: (experts, K, N), or quantized.
Matrices: TypeAlias = Tensor | Stack


class Gate(NamedTuple):
    """What columns of gate and of up become.

    - ``activation``: the name of an activation of :mod:`cutlass_api.fusion`, for activation(gate) *
      up; or an expression of ``gate`` and ``up``, as ``grouped_gated_mm`` takes.
    - ``is_interleaved``: whether columns of gate and of up alternate. The columns of gate, then
      those of up, otherwise.
    """

    activation: str
    is_interleaved: bool = False

    def split(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """The columns of gate, and of up."""
        return gate_and_up(columns, self.is_interleaved)


def linear(
    input: Tensor,
    weight: Matrices,
    bias: Tensor | None,
    routing: Routing,
    numbers: Tensor | None = None,
) -> Tensor:
    """Each group's rows times its matrix of ``weight``, plus its row of ``bias``. ``numbers``: as
    for :meth:`Stack.multiply`, which then gathers what it has quantized."""
    out: Tensor
    if isinstance(weight, Stack):
        out = weight.multiply(input, routing.offsets, numbers)
        return out if bias is None else (out + routing.of_rows(bias)).to(out.dtype)
    out = OPS.grouped_mm(input, weight, routing.offsets, bias)
    return out


def activated(
    rows: Tensor,
    up: tuple[Matrices, Tensor | None],
    routing: Routing,
    activate: Callable[[Tensor], Tensor] | Gate,
    numbers: Tensor | None,
) -> Tensor:
    """activate(up(rows)). Without a gradient, which needs the argument of the activation, gate and
    up are one launch if each column of the weight is contiguous, as kernels require."""
    weight, bias = up
    if not isinstance(activate, Gate):
        return activate(linear(rows, weight, bias, routing, numbers))
    if isinstance(weight, Stack) or weight.stride(-2) != 1 or needs_gradient(rows, weight, bias):
        gate, other = activate.split(linear(rows, weight, bias, routing, numbers))
        return evaluate(_epilogues.gated(activate.activation), gate, [other])
    biases = (None, None) if bias is None else activate.split(bias)
    out: Tensor = OPS.grouped_gated_mm(
        *(rows, *activate.split(weight), routing.offsets, activate.activation, *biases)
    )
    return out


def layers(
    rows: Tensor,
    up: tuple[Matrices, Tensor | None],
    down: tuple[Matrices, Tensor | None],
    routing: Routing,
    activate: Callable[[Tensor], Tensor] | Gate,
    numbers: Tensor | None,
) -> Tensor:
    """down(activate(up(rows))). With a gradient, of an activation by name and of tensors, the
    epilogues of the products compute the activation and its derivative."""
    if (
        not (isinstance(up[0], Stack) or isinstance(down[0], Stack))
        and isinstance(activate, Gate)
        and activate.activation in _epilogues.GATE_DERIVATIVES
        and needs_gradient(rows, *up)
    ):
        out: Tensor
        out, _ = OPS.grouped_gated_mlp(
            *(rows, up[0], down[0], routing.offsets, *activate, up[1], down[1])
        )
        return out
    return linear(activated(rows, up, routing, activate, numbers), *down, routing)


def needs_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def experts(
    tokens: Tensor,
    index: Tensor,
    weights: Tensor,
    up: tuple[Matrices, Tensor | None],
    down: tuple[Matrices, Tensor | None],
    activate: Callable[[Tensor], Tensor] | Gate,
    finish: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """The sum over a token's slots of weight * finish(down(activate(up(token)))), of the slot's
    expert.

    - ``tokens``: (tokens, K). ``index``, ``weights``: (tokens, top_k), the expert of each slot, and
      its factor. Slots whose index is the number of experts or above count nothing.
    - ``up``, ``down``: the matrices, and the biases, (experts, N).
    - ``activate``: a function of the rows of up, or a gate.

    Sums of slots are float32, in order: results repeat bit for bit.

    Raises ValueError as :func:`route` does.
    """
    routing = route(index, len(up[0].fields.values if isinstance(up[0], Stack) else up[0]))
    # PyTorch 2.11 compiles no autograd.Function of variable arguments without a gradient
    # (findings/compiled_function_of_variable_arguments.sh).
    numbers = None
    if needs_gradient(tokens):
        rows = Gather.apply(tokens, *routing)
    elif isinstance(up[0], Stack) and up[0].activations is not None:
        rows, numbers = tokens, routing.tokens
    else:
        # A product that reads rows by their index gains nothing in the mean (docs/design/sm90.md).
        rows = of_tokens(tokens, routing)
    rows = layers(rows, up, down, routing, activate, numbers)
    if finish is not None:
        rows = finish(rows)
    result: Tensor
    if needs_gradient(rows, weights):
        result = Combine.apply(rows, weights, *routing)
    else:
        result = add_slots(rows, weights, routing)
    return result.to(tokens.dtype)
