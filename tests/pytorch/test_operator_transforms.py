"""Autocast, FLOPs and vmap of `torch.ops.cutlass_api`."""

import cutlass_api.ops
import pytest
import torch
from cutlass_api.ops import OPS
from support.operator_calls import (
    BIAS_RELU,
    EVERY,
    F8,
    OPERATORS,
    SWIGLU,
    ends,
    every,
    operator_of,
    randn,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode


def test_flops_of_weight_gradients():
    with FlopCounterMode(display=False) as counter:
        OPS.grouped_mm_weight_grad(randn(4, 8), randn(4, 6), ends(1, 4))
    assert counter.get_total_flops() == 2 * 4 * 8 * 6


V = 3


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("mm", [(V, 4, 8), (2, 8, 6)]),
        ("bmm", [(V, 4, 8), (2, 8, 6)]),
        ("bmm", [(V, 1, 4, 8), (2, 8, 6)]),
        ("addmm", [(V, 6), (4, 8), (2, 8, 6)]),
        ("baddbmm", [(V, 6), (1, 4, 8), (2, 8, 6)]),
    ],
)
def test_vmap_refuses_what_the_operator_refuses(name, shapes):
    args = [randn(*shape) for shape in shapes]
    with pytest.raises(ValueError, match=f"^cutlass_api::{name}: .*; pass tensors of rank"):
        torch.vmap(operator_of(name), (0, *(None for _ in args[1:])))(*args)


#: Operators with the shapes of their tensors, some of them behind a mapped dimension.
MAPPED = [
    ("addmm", [(V, 4, 6), (4, 8), (8, 6)]),
    ("addmm", [(V,), (4, 8), (8, 6)]),
    ("baddbmm", [(V, 6), (2, 4, 8), (2, 8, 6)]),
    ("baddbmm", [(V, 2, 4, 6), (V, 2, 4, 8), (2, 8, 6)]),
    ("baddbmm", [(2, 4, 6), (2, 4, 8), (V, 2, 8, 6)]),
    ("linear", [(2, 4, 8), (6, 8), (V, 6)]),
    ("linear", [(4, 8), (6, 8), (V, 4, 6)]),
    ("linear", [(4, 8), (8,), (V, 4)]),
    ("linear_forward", [(4, 8), (6, 8), (V, 6)]),
    ("bias_relu", [(4, 8), (8, 6), (V, 6)]),
    ("bias_relu", [(2, 4, 8), (2, 8, 6), (V, 2, 1, 6)]),
    ("bias_relu", [(V, 2, 4, 8), (2, 8, 6), (6,)]),
    ("swiglu", [(2, 4, 8), (V, 2, 8, 6), (2, 8, 6)]),
    ("scaled_mm", [(4, 8), (8, 6), (V, 6)]),
    ("scaled_mm", [(2, 4, 8), (8, 6), (V, 2, 1, 6)]),
    ("int8_mm", [(4, 8), (8, 6), (V, 6)]),
    ("int8_mm", [(4, 8), (2, 8, 6), (V, 2, 1, 6)]),
    ("int8_mm, scale", [(4, 8), (8, 6), (V, 4, 1)]),
]
OTHERS = {
    "bias_relu": lambda a, b, x: OPS.mm_epilogue(a, b, [x], BIAS_RELU),
    "swiglu": lambda a, b, x: OPS.mm_epilogue(a, b, [x], SWIGLU),
    "linear_forward": lambda *args: OPS.linear_forward(*args, "gelu")[0],
    "int8_mm": lambda a, b, bias: cutlass_api.int8_mm(
        *((64 * a).char(), (64 * b).char(), torch.full((4, 1), 0.25), None, bias)
    ),
    "int8_mm, scale": lambda a, b, scale: cutlass_api.int8_mm(
        *((64 * a).char(), (64 * b).char(), scale, torch.full((1, 6), 0.25), None, torch.float32)
    ),
    "scaled_mm": lambda a, b, bias: OPS.scaled_mm(
        *(a.to(F8), b.to(F8), torch.ones(4, 1), torch.ones(1), bias, torch.ones(()), torch.half)
    ),
}


@pytest.mark.parametrize(("name", "shapes"), MAPPED, ids=str)
def test_tangents_under_vmap_are_refused(name, shapes):
    call, tensors = OTHERS.get(name) or operator_of(name), [randn(*shape) for shape in shapes]
    dims = tuple(0 if shape[0] == V else None for shape in shapes)
    at = dims.index(0)

    def mapped(x):
        return torch.vmap(call, dims)(*tensors[:at], x, *tensors[at + 1 :])

    with pytest.raises(RuntimeError, match="has a tangent"):
        torch.func.jvp(mapped, (tensors[at],), (tensors[at],))


@pytest.mark.parametrize(("name", "shapes"), MAPPED, ids=str)
def test_vmap_multiplies_and_copies_no_factor_again(name, shapes):
    """Where examples share a factor, or both."""
    call, tensors = OTHERS.get(name) or operator_of(name), [randn(*shape) for shape in shapes]
    dims = tuple(0 if shape[0] == V else None for shape in shapes)
    with Factors() as factors:
        outs = torch.vmap(call, dims)(*tensors)
    own = {"addmm": tensors[1:], "baddbmm": tensors[1:], "swiglu": tensors}.get(name, tensors[:2])
    assert max(factors.sizes) <= sum(x.numel() for x in own)
    pairs = list(zip(tensors, dims, strict=True))
    each = [call(*(x if dim is None else x[at] for x, dim in pairs)) for at in range(V)]
    torch.testing.assert_close(outs.float(), torch.stack(each).float())
    assert outs.dtype is each[0].dtype and outs.is_contiguous()


def test_vmap_keeps_integers_of_epilogues():
    a, b = torch.full((1, 1101), 127, dtype=torch.int8), torch.full((1101, 1), 127).char()
    source = f"def epilogue(accum, x): D = (accum - {1101 * 127**2 - 1}) * x; return D"

    def call(x):
        return OPS.mm_epilogue(a, b, [x], source, out_dtype=torch.float32)

    assert torch.vmap(call)(torch.tensor([1.0, 2.0])).flatten().tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("addmm", [(V, 5, 6), (4, 8), (8, 6)]),
        ("addmm", [(V, 4, 6), (1, 8), (8, 6)]),
        ("addmm", [(V, 2, 4, 6), (4, 8), (8, 6)]),
        ("linear", [(4, 8), (6, 8), (V, 5)]),
        ("bias_relu", [(4, 8), (8, 6), (V, 5)]),
        ("scaled_mm", [(4, 8), (8, 6), (V, 5)]),
    ],
    ids=str,
)
def test_vmap_refuses_operands_that_do_not_broadcast(name, shapes):
    call, tensors = OTHERS.get(name) or operator_of(name), [randn(*shape) for shape in shapes]
    dims = tuple(0 if shape[0] == V else None for shape in shapes)
    operator = "mm_epilogue" if name == "bias_relu" else name
    with pytest.raises(ValueError, match=f"^cutlass_api::{operator}: .* has shape|with shape"):
        torch.vmap(call, dims)(*tensors)


class Factors(TorchDispatchMode):
    """Counts the elements of the factors of each product."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "cutlass_api":
            operator = OPERATORS[function.name().split("::")[1]]
            self.sizes.append(sum(x.numel() for x in operator.bind(args, kwargs or {}).factors))
        return function(*args, **(kwargs or {}))


@every
def test_vmap_of_no_examples(name):
    args = EVERY[name](randn)
    flat, spec = tree_flatten(args)
    dims = tree_unflatten([0 if isinstance(x, torch.Tensor) else None for x in flat], spec)
    none = tree_map(lambda x: x.expand(0, *x.shape) if isinstance(x, torch.Tensor) else x, args)
    outs = tree_leaves(torch.vmap(operator_of(name), dims)(*none))
    wanted = tree_leaves(operator_of(name)(*args))
    assert [(x.shape, x.dtype) for x in outs] == [((0, *x.shape), x.dtype) for x in wanted]


@pytest.mark.parametrize("scale", [(), (4, 1), (4, 2)], ids=str)
def test_vmap_of_scaled_mm_permits_fast_sums(scale, monkeypatch):
    permitted = recorded_permissions(monkeypatch)
    a, b, scale_a = randn(V, 4, 256).to(F8), randn(256, 6).to(F8), randn(*scale).abs()
    for fast in (False, True):
        options = (torch.ones(()), None, None, torch.float32, fast)
        torch.vmap(lambda x, options=options: OPS.scaled_mm(x, b, scale_a, *options))(a)
    assert permitted == [False, True]


@pytest.mark.parametrize("scale", [(), (2,), (2, 1, 6)], ids=str)
def test_scaled_grouped_mm_permits_fast_sums(scale, monkeypatch):
    permitted = recorded_permissions(monkeypatch)
    a, b, scale_b = randn(4, 256).to(F8), randn(2, 256, 6).to(F8), randn(*scale).abs()
    for fast in (False, True):
        cutlass_api.scaled_grouped_mm(a, b, torch.ones(()), scale_b, ends(1, 4), None, fast)
    assert permitted == [False, True]


def recorded_permissions(monkeypatch):
    """Whether each launch from now on permits fast sums."""
    launch, permitted = cutlass_api.ops._quantized.launch, []

    def recorded(*args, fast_sums=False, **options):
        permitted.append(fast_sums)
        return launch(*args, fast_sums=fast_sums, **options)

    monkeypatch.setattr(cutlass_api.ops._quantized, "launch", recorded)
    return permitted
