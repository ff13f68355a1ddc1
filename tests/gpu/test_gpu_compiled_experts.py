"""Grouped products in compiled graphs on a GPU: gate and up, and scales of rows."""

import logging
from collections.abc import Iterator

import cutlass_api.inductor
import pytest
import torch
import torch.nn.functional as F
from support.torch_compile import grouped, grouped_reference
from torch._inductor import config

pytestmark = pytest.mark.gpu

GROUPS, ROWS, K, N = 8, 256, 512, 384
#: The end rows of the groups, for calls of one compiled function.
ENDS = [[0, 10, 10, 100, 130, 200, 255, 256], [32 * group for group in range(1, 9)], [ROWS] * 8]


def halves(a, w, offsets, multiply=grouped):
    gate, up = multiply(a, w, offsets).chunk(2, -1)
    return F.silu(gate) * up


def interleaved(a, w, offsets, multiply=grouped):
    """The gate of gpt-oss."""
    rows = multiply(a, w, offsets)
    gate, up = rows[..., ::2].clamp(max=7.0), rows[..., 1::2].clamp(-7.0, 7.0)
    return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


def two_products(a, w, offsets, multiply=grouped):
    gate, up = (multiply(a, each, offsets) for each in w)
    return F.gelu(gate) * up


@pytest.fixture
def compiles(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Compiles with our kernels, and fails if a trial of them does."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    caplog.set_level(logging.DEBUG, "cutlass_api.inductor")
    settings = {
        "max_autotune": True,
        "max_autotune_gemm_backends": "ATEN",
        "force_disable_caches": True,
    }
    with cutlass_api.inductor.enabled(), config.patch(**settings), torch.no_grad():
        yield
    messages = [record.getMessage() for record in caplog.records]
    assert not [text for text in messages if text.startswith(("no trial", "no kernels"))]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda")


@pytest.mark.parametrize("function", [halves, interleaved, two_products])
def test_gate_and_up(function, compiles) -> None:
    """Right whatever is the fastest."""
    parts = 2 if function is two_products else 1
    weights = [(random(GROUPS, 2 * N // parts, K) / K**0.5).bfloat16() for _ in range(parts)]
    w = weights if function is two_products else weights[0]
    doubles = [each.double() for each in weights]
    compiled = torch.compile(function, dynamic=False)
    for ends in ENDS:
        a, offsets = random(ROWS, K).bfloat16(), torch.tensor(ends, dtype=torch.int32).cuda()
        expected = function(
            *(a.double(), doubles if function is two_products else doubles[0], offsets),
            multiply=grouped_reference,
        )
        error = (compiled(a, w, offsets).double() - expected).norm() / expected.norm()
        assert error < 2 * torch.finfo(a.dtype).eps


@pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_grouped_mm_v2", "Meta"),
    reason="this release of torch does not trace _scaled_grouped_mm_v2",
)
def test_scales_of_rows_by_recipe(compiles) -> None:
    by_row = F.ScalingType.RowWise

    def function(a, b, rows, columns, offsets):
        return F.scaled_grouped_mm(a, b.mT, rows, by_row, columns, by_row, offs=offsets)

    a, b = (random(*shape).to(torch.float8_e4m3fn) for shape in ((ROWS, K), (GROUPS, N, K)))
    rows, columns = random(ROWS).abs() + 0.5, random(GROUPS, N).abs() + 0.5
    offsets = torch.tensor(ENDS[0], dtype=torch.int32).cuda()
    out = torch.compile(function, dynamic=False)(a, b, rows, columns, offsets)
    factors = a.double() * rows[:, None], b.double() * columns[:, :, None]
    expected = grouped_reference(*factors, offsets)
    assert (out.double() - expected).norm() / expected.norm() < 2 * torch.finfo(out.dtype).eps
