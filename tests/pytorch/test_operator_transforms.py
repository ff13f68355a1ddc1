"""Autocast, FLOPs and vmap of `torch.ops.cutlass_api`."""

import cutlass_api.ops
import pytest
import torch
from cutlass_api.ops import OPS
from support.operator_calls import (  # noqa: F401
    BIAS_RELU,
    CASES,
    EVERY,
    F8,
    SWIGLU,
    cases,
    devices,
    ends,
    every,
    groups,
    integers,
    moved,
    operator_of,
    randn,
    seed,
    widened,
)
from torch.utils.flop_counter import FlopCounterMode


@devices
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@cases
def test_autocast(case, dtype, device):
    if device == "cuda" and "dual" in case:
        pytest.skip("no kernel for a GPU")
    args = [moved(x, device) for x in CASES[case][0](randn)]
    with torch.autocast(device, dtype=dtype):
        assert operator_of(case)(*args).dtype == dtype
        doubled = [widened(x) for x in args]
        assert operator_of(case)(*doubled).dtype == torch.float64
    assert operator_of(case)(*args).dtype == torch.float32


@every
def test_autocast_of_every_operator(name):
    unchanged = {"int_mm": torch.int32, "quantize": torch.uint8}
    unchanged |= dict.fromkeys(("scaled_mm", "scaled_grouped_mm"), F8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = operator_of(name)(*EVERY[name](randn))
    out = result[0] if isinstance(result, (tuple, list)) else result
    assert out.dtype is unchanged.get(name, torch.bfloat16)


def test_autocast_of_mixed_mm():
    x, weight, scale = randn(4, 8), integers(8, 6), randn(6).abs() / 100
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = OPS.mixed_mm(x, weight, scale)
        public = cutlass_api.mixed_mm(
            weight.t(), x.t(), scale=scale[:, None], out_dtype=torch.float32
        )
        with pytest.raises(ValueError, match="mixed_mm: A is torch"):  # which torch does not cast
            OPS.mixed_mm(x.double(), weight)
    assert torch.equal(out, OPS.mixed_mm(x.bfloat16(), weight, scale))
    torch.testing.assert_close(public.t(), out.float(), rtol=1e-2, atol=1e-2)


def test_autocast_of_scaled_products_as_torchs():
    """torch casts neither the operands nor the bias of `_scaled_mm`. Without oneDNN's float8
    products, its CPU implementation calls an operator that autocast rounds: compare with its result
    outside of autocast.
    """
    a, b, one, bias = randn(16, 16).to(F8), randn(16, 16).to(F8).t(), torch.tensor(0.5), randn(16)
    args = (a, b, one, one, bias, None, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = OPS.scaled_mm(*args), torch._scaled_mm(*args)
    assert ours.dtype is theirs.dtype is torch.float32
    assert torch.equal(ours, OPS.scaled_mm(*args))
    torch.testing.assert_close(ours, torch._scaled_mm(*args))
    integer = integers(32, 32), integers(32, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(OPS.int_mm(*integer), torch._int_mm(*integer))


def test_autocast_as_torchs():
    a, b, c = randn(4, 8), randn(8, 6), randn(4, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(OPS.mm(a, b), torch.mm(a, b))
        torch.testing.assert_close(OPS.addmm(c, a, b), torch.addmm(c, a, b), rtol=2e-2, atol=2e-2)
        assert OPS.int_mm(integers(4, 8), integers(8, 6)).dtype == torch.int32


@pytest.mark.parametrize("case", ["mm", "bmm", "addmm", "baddbmm", "linear", "linear, rank 4"])
def test_flops_are_those_of_torch(case):
    make, reference = CASES[case]
    args = make(lambda *shape: randn(*shape, requires_grad=True))
    counts = []
    for function in (operator_of(case), reference):
        with FlopCounterMode(display=False) as counter:
            function(*args).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_flops_of_other_operators():
    a, b = randn(4, 8), randn(8, 6)
    e, i = a.to(F8), a.to(torch.int8)
    one = torch.ones(1)
    calls = [
        lambda: OPS.mm_epilogue(a, b, [randn(6)], BIAS_RELU),
        lambda: OPS.scaled_mm(e, b.to(F8), one, one),
        lambda: OPS.int_mm(i, b.to(torch.int8)),
        lambda: OPS.mixed_mm(a.half(), b.to(torch.int8)),
        lambda: OPS.grouped_mm(a, b.expand(2, 8, 6), ends(1, 4)),
        lambda: OPS.grouped_mm_weight_grad(a, randn(4, 6), ends(1, 4)),
    ]
    for call in calls:
        with FlopCounterMode(display=False) as counter:
            call()
        assert counter.get_total_flops() == 2 * 4 * 8 * 6


def examples(dims, args, at):
    """The arguments of one example of a vmapped call."""
    return [
        examples(dim, arg, at)
        if isinstance(arg, list)
        else arg
        if dim is None
        else arg.select(dim, at)
        for dim, arg in zip(dims, args, strict=True)
    ]


V = 3
VMAP = {
    "mm": [((V, 4, 8), 0), ((8, 6), None)],
    "mm, B": [((4, 8), None), ((8, V, 6), 1)],
    "mm, both": [((4, 8, V), 2), ((V, 8, 6), 0)],
    "bmm": [((2, V, 4, 8), 1), ((2, 8, 6), None)],
    "bmm, both": [((V, 2, 4, 8), 0), ((2, 8, 6, V), -1)],
    "addmm": [((V, 6), 0), ((V, 4, 8), 0), ((8, 6), None)],
    "addmm, input": [((V, 4, 6), 0), ((4, 8), None), ((8, 6), None)],
    "addmm, not input": [((6,), None), ((4, 8), None), ((V, 8, 6), 0)],
    "baddbmm": [((4, V, 6), 1), ((V, 2, 4, 8), 0), ((2, 8, 6), None)],
    "linear": [((V, 2, 4, 8), 0), ((6, 8), None), ((6,), None), "gelu"],
    "linear, weight": [((2, 4, 8), None), ((V, 6, 8), 0), ((6,), None), "silu"],
    "linear, bias": [((4, 8), None), ((6, 8), None), ((6, V), 1), "relu"],
    "linear, all": [((8, V), 1), ((V, 6, 8), 0), ((6, V), 1), None],
    "mm_epilogue": [((V, 4, 8), 0), ((8, 6), None), [((6, V), 1)], BIAS_RELU],
    "mm_epilogue, dual": [((V, 4, 8), 0), ((8, 6), None), [((8, 6), None)], SWIGLU],
    "mm_epilogue, dual factors": [((4, 8), None), ((V, 8, 6), 0), [((V, 8, 6), 0)], SWIGLU],
    "mm_epilogue, dual B": [((4, 8), None), ((V, 8, 6), 0), [((8, 6), None)], SWIGLU],
    "mm_epilogue, dual second": [((4, 8), None), ((8, 6), None), [((V, 8, 6), 0)], SWIGLU],
    "mm_epilogue, dual batches": [((2, 4, 8), None), ((V, 8, 6), 0), [((8, 6), None)], SWIGLU],
    "mm_epilogue, operand": [((4, 8), None), ((8, 6), None), [((V, 4, 1), 0)], BIAS_RELU],
    "mm_epilogue, batches": [((4, V, 8), 1), ((2, 8, 6), None), [((6,), None)], BIAS_RELU],
    "mm_epilogue, all batches": [((V, 2, 4, 8), 0), ((8, 6), None), [((V, 2, 4, 6), 0)], BIAS_RELU],
}


def vmap_arguments(case):
    def split(value):
        if isinstance(value, list):
            pairs = [split(x) for x in value]
            return [arg for arg, _ in pairs], [dim for _, dim in pairs]
        if isinstance(value, tuple):
            return randn(*value[0]), value[1]
        return value, None

    return split(VMAP[case])


@pytest.mark.parametrize("case", VMAP)
def test_vmap(case):
    args, dims = vmap_arguments(case)
    operator = operator_of(case)
    expected = torch.stack([operator(*examples(dims, args, at)) for at in range(V)])
    out = torch.vmap(operator, tuple(dims))(*args)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    inner = [isinstance(dim, int) for dim in dims]
    if any(inner):
        outer = [torch.stack([x, x + 1]) if b else x for x, b in zip(args, inner, strict=True)]
        outer_dims = tuple(0 if b else None for b in inner)
        nested = torch.vmap(torch.vmap(operator, tuple(dims)), outer_dims)(*outer)
        torch.testing.assert_close(nested[0], expected, rtol=1e-5, atol=1e-5)


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


def test_vmap_of_eight_bit_and_grouped_products():
    a, b = integers(V, 4, 8), integers(8, 6)
    assert torch.equal(torch.vmap(OPS.int_mm, (0, None))(a, b), a.int() @ b.int())
    half, scale = randn(V, 4, 8, dtype=torch.float16), randn(V, 6).half().abs() / 10
    mixed = torch.vmap(OPS.mixed_mm, (0, None, 0))(half, b, scale)
    expected = (half.double() @ b.double()) * scale[:, None]
    torch.testing.assert_close(mixed.double(), expected, rtol=2e-2, atol=2e-2)
    e, scale_a, scale_b = randn(V, 4, 8).to(F8), randn(V, 4, 1).abs(), randn(V)
    out = torch.vmap(lambda x, s, t: OPS.scaled_mm(x, b.to(F8), s, t, out_dtype=torch.float32))(
        e, scale_a, scale_b
    )
    expected = (e.double() @ b.to(F8).double()) * scale_a * scale_b[:, None, None]
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    both = torch.vmap(  # vmap in vmap, of a batch
        torch.vmap(lambda x, s, t: OPS.scaled_mm(x, b.to(F8), s, t, out_dtype=torch.float32)),
        (0, None, None),
    )(torch.stack([e, e])[:, :, None].expand(2, V, 5, 4, 8), scale_a, scale_b)
    assert torch.equal(both, out[None, :, None].expand(2, V, 5, 4, 6))
    with pytest.raises(ValueError, match="int_mm: A is torch"):
        torch.vmap(OPS.int_mm, (0, None))(randn(V, 4, 8), b)
    a, b, rows = randn(V, 9, 8), randn(2, 8, 6), torch.stack([ends(3, 9), ends(0, 9), ends(9, 9)])
    out = torch.vmap(OPS.grouped_mm, (0, None, 0))(a, b, rows)
    torch.testing.assert_close(out, torch.stack([groups(a[i], b, rows[i]) for i in range(V)]))


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


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_gradients_of_each_example(activation):
    """vmap(grad(...)), with a weight for all examples, and one for each."""
    x, weight, bias = randn(V, 4, 8), randn(6, 8), randn(6)
    act = getattr(cutlass_api.fusion.activation, activation or "identity")

    def ours(weight, bias, x):
        return OPS.linear(x, weight, bias, activation).square().sum()

    def theirs(weight, bias, x):
        return act(torch.nn.functional.linear(x, weight, bias)).square().sum()

    for dims, args in (
        ((None, None, 0), (weight, bias, x)),
        ((0, 0, 0), (randn(V, 6, 8), randn(V, 6), x)),
    ):
        gradients = [
            torch.vmap(torch.func.grad(f, argnums=(0, 1, 2)), dims)(*args) for f in (ours, theirs)
        ]
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
