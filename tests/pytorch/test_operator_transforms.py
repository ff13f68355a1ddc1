"""Autocast, FLOPs and vmap of `torch.ops.cutlass_api`."""

import cutlass_api.ops
import pytest
import torch
from cutlass_api.ops import OPS
from support.operator_calls import (  # noqa: F401
    EVERY,
    F8,
    ends,
    every,
    integers,
    operator_of,
    randn,
    seed,
)
from torch.utils.flop_counter import FlopCounterMode


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
