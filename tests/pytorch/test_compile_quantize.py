"""Activations that layers quantize at run time, in compiled graphs."""

from typing import Any
from unittest import mock

import cutlass_api.inductor
import pytest
import torch
from cutlass_api.bench.generated_code import launches
from cutlass_api.nn import convert
from cutlass_api.ops import OPS
from support.pretended_gpu import PROPERTIES, ConstantsOnTheCPU, Lowered, compiled, lower
from support.torch_compile import is_ours, tensors
from torch import fx, nn

QUANTIZE = "torch.ops.cutlass_api.quantize.default"
BESIDE = "extern_kernels.cutlass_api_beside"
E4M3 = torch.float8_e4m3fn


class Attention(nn.Module):
    """Layers of one input, behind a norm or not."""

    def __init__(self, k: int, *, has_norm: bool, bias: bool) -> None:
        super().__init__()
        options: Any = {"dtype": torch.bfloat16}
        self.norm = nn.RMSNorm(k, **options) if has_norm else nn.Identity()
        self.q, self.k, self.v = (nn.Linear(k, n, bias, **options) for n in (256, 128, 128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        q, k, v = self.q(x), self.k(x), self.v(x)
        return torch.mm(torch.mm(q, torch.mm(q.t(), k)).t(), v)


def lowered_attention(scheme: str, k: int = 256, *, has_norm: bool, bias: bool = False) -> Lowered:
    model = Attention(k, has_norm=has_norm, bias=bias)
    convert(model, scheme)
    call, graphs = compiled(model, prefers=is_ours, runs=False)
    with torch.no_grad(), cutlass_api.inductor.enabled():
        call(*tensors((8, k)))
    (lowered,) = graphs
    return lowered


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scheme", ["fp8", "fp8-block", "int8"])
def test_layers_of_one_input_are_two_launches(scheme, bias) -> None:
    """One quantizes the input, one multiplies by all weights."""
    found = launches(lowered_attention(scheme, 512, has_norm=False, bias=bias).call)
    assert (found[QUANTIZE], found[BESIDE]) == (1, 1)
    assert found.total() == 5, "three products of their results"


@pytest.mark.parametrize("n, is_joined", [(256, True), (200, False), (320, False), (192, False)])
def test_blocks_that_end_inside_a_layer_are_multiplied_apart(n, is_joined) -> None:
    model = nn.ModuleList(nn.Linear(512, n, bias=False, dtype=torch.bfloat16) for _ in range(2))
    convert(model, "fp8-block")

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(model[0](x).t(), model[1](x))

    call, graphs = compiled(function, prefers=is_ours, runs=False)
    with torch.no_grad(), cutlass_api.inductor.enabled():
        call(*tensors((8, 512)))
    assert (launches(graphs[0].call)[BESIDE] == 1) == is_joined


@pytest.mark.parametrize("scheme", ["fp8", "int8"])
def test_any_number_of_rows_has_one_graph(scheme) -> None:
    model = Attention(256, has_norm=True, bias=False)
    convert(model, scheme)
    call, graphs = compiled(model, prefers=is_ours, runs=False)
    for rows in (8, 5, 300, 17):
        (x,) = tensors((rows, 256))
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad(), cutlass_api.inductor.enabled():
            call(x)
    (lowered,) = graphs
    assert QUANTIZE not in launches(lowered.call)


@pytest.mark.parametrize("scheme", ["fp8", "int8"])
def test_a_norm_and_the_quantization_behind_it_are_one_launch(scheme) -> None:
    lowered = lowered_attention(scheme, has_norm=True)
    found = launches(lowered.call)
    assert QUANTIZE not in found and found[BESIDE] == 1
    before = lowered.call[: lowered.call.index("cutlass_api_beside")]
    assert launches(before).total() == 1, "the kernel of the norm"


@pytest.mark.parametrize(
    "scheme, k, capability",
    [("fp8-block", 256, (9, 0)), ("fp8", 8320, (9, 0)), ("fp8", 256, (8, 0))],
)
def test_what_would_be_more_launches_stays_ours(scheme, k, capability) -> None:
    """Blocks of a row, long rows, and float8 where Triton does not convert to it."""
    major, minor = capability
    with mock.patch.multiple(PROPERTIES, major=major, minor=minor):
        lowered = lowered_attention(scheme, k, has_norm=True)
    assert launches(lowered.call)[QUANTIZE] == 1


def test_int8_also_fuses_where_triton_has_no_float8() -> None:
    with mock.patch.multiple(PROPERTIES, major=8, minor=0):
        lowered = lowered_attention("int8", has_norm=True)
    assert QUANTIZE not in launches(lowered.call)


@pytest.mark.parametrize("dtype", [E4M3, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize("shape", [(5, 256), (2, 3, 256)])
def test_fused_operations_compute_what_the_operator_does(shape, dtype, enabled) -> None:
    def function(x: torch.Tensor) -> Any:
        return OPS.quantize((3 * x).relu().view(-1, 256), dtype, (1, -1))

    (x,) = tensors(shape)
    special = x.view(-1, 256)
    special[0, 0], special[1, 1] = torch.nan, torch.inf
    special[2] = 0
    special[3] *= 2.0**-130
    graph = lower(function, [x]).graph
    assert not graph.find_nodes(op="call_function", target=OPS.quantize.default)
    with ConstantsOnTheCPU():
        values, scales = fx.Interpreter(fx.GraphModule(nn.Module(), graph)).run(x)
    expected_values, expected_scales = function(x)
    assert torch.equal(scales.nan_to_num(-1), expected_scales.nan_to_num(-1))
    assert values.dtype is dtype and scales.shape == expected_scales.shape
    floats = values.float().nan_to_num(-1), expected_values.float().nan_to_num(-1)
    assert torch.equal(*floats)


@pytest.mark.parametrize("settings", [(E4M3, (1, 128)), (torch.int8, (1, -1))])
def test_other_settings_are_other_quantizations(settings, enabled) -> None:
    def function(x: torch.Tensor) -> Any:
        once = OPS.quantize(x, E4M3, (1, -1))
        return [*once, *OPS.quantize(x, *settings), *OPS.quantize(x + 1, E4M3, (1, -1))[:1]]

    found = lower(function, tensors((5, 256))).graph
    assert len(found.find_nodes(op="call_function", target=OPS.quantize.default)) == 2
    (x,) = tensors((5, 256))
    with ConstantsOnTheCPU():
        outs = fx.Interpreter(fx.GraphModule(nn.Module(), found)).run(x)
    for out, expected in zip(outs, function(x), strict=True):
        assert torch.equal(out.float(), expected.float())
