"""Products by weights of 4 and 8 bits in compiled graphs: ours, and torch's packed ones."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from cutlass_api import quantize, weights
from cutlass_api.inductor import Options, _packed
from cutlass_api.inductor._fusion import ProductPass
from cutlass_api.ops import OPS
from cutlass_api.ops._quantized_linear import FIELDS
from cutlass_api.weights import Weight
from support.pretended_gpu import compiled, lower, run_on_the_cpu
from support.torch_compile import (
    HALVES,
    OFFERED,
    assert_close,
    has_ours,
    is_ours,
    is_replaced,
    tensors,
)
from support.weights import PACKED, uint8
from torch._inductor import config

N, K = 96, 256
MATRIX = torch.randn(N, K, generator=torch.Generator().manual_seed(0))
INT4, UINT4 = quantize.int4(MATRIX, 64), quantize.uint4(MATRIX, 32)
#: Weights, and whether kernels are offered for them: others are copied in each call.
WEIGHTS: dict[str, tuple[Weight, bool]] = {
    **{name: (kind.quantize(MATRIX).repack(), True) for name, kind in PACKED.items()},
    "not repacked": (INT4, False),
    "act-order": (
        weights.Int4(INT4.values, INT4.scales, torch.arange(K).flip(0).int()).repack(),
        True,
    ),
    "added": (weights.UInt4(UINT4.values, UINT4.scales, UINT4.scales / 2).repack(), True),
    "int8": (weights.Int8(*quantize.per_group(MATRIX, 32)), True),
    "uint8": (uint8(MATRIX), True),
    "fp8": (quantize.fp8(MATRIX), True),
}


def quantized(weight: Weight, activation: str | None = None):
    """A function of the input, the fields and a bias."""
    names = list(weight.tensors())

    def function(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        fields = dict(zip(names, others, strict=False))
        passed = [fields.get(name) for name in FIELDS]
        bias = others[len(names)] if len(others) > len(names) else None
        return OPS.quantized_linear(x, *passed, type(weight).__name__, bias, activation)

    return function


@pytest.mark.parametrize("name", WEIGHTS)
def test_kernels_of_quantized_linear_are_timed(name, enabled) -> None:
    weight, is_offered = WEIGHTS[name]
    inputs = [*tensors((2, 3, K)), *weight.tensors().values()]
    activation = "gelu" if name in ("uint4", "nvfp4", "act-order") else None
    if activation:
        inputs += tensors((N,))
    function = quantized(weight, activation)
    lowered = lower(function, inputs)
    assert [len(choices) for choices in lowered.choices] == [OFFERED] * is_offered
    assert ("extern_kernels.cutlass_api_quantized_linear(" in lowered.code) == is_offered
    # The code launches the kernel of the fields, without the operator, where they are operands.
    computes_operands = name in ("act-order", "added")
    assert ("format=" in lowered.call) == (computes_operands and is_offered)
    out = run_on_the_cpu(lowered, inputs)
    assert torch.equal(out, function(*inputs))


def test_without_autotuning_the_operator_is_called(enabled) -> None:
    inputs = [*tensors((3, K)), *INT4.repack().tensors().values()]
    lowered = lower(quantized(INT4.repack()), inputs, max_autotune=False)
    assert "torch.ops.cutlass_api.quantized_linear.default(" in lowered.code


def test_any_number_of_rows_has_one_graph(enabled) -> None:
    weight = INT4.repack()
    function = quantized(weight)
    call, graphs = compiled(function)
    for m in (16, 5, 300):
        x, fields = tensors((m, K))[0], weight.tensors().values()
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(call(x, *fields), function(x, *fields))
    (lowered,) = graphs
    assert "kernel=" not in lowered.call, "it is chosen by shape"


# ---- several weights of one input ----------------------------------------------------------------

#: Rows of weights of one input, as q, k and v of attention.
ROWS = (64, 32, 32)


def parts(weight: Weight) -> list[Weight]:
    """Weights side by side in memory: the rows of one weight."""
    ends = [sum(ROWS[:at]) for at in range(len(ROWS) + 1)]
    fields = weight.tensors()
    return [
        type(weight).from_tensors({name: x[start:end] for name, x in fields.items()})
        for start, end in pairwise(ends)
    ]


def attended(kind: Weight, factors: int):
    """A function of an input and the fields of weights."""

    def function(x: torch.Tensor, *fields: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            quantized(kind)(x, *fields[at * factors : (at + 1) * factors])
            for at in range(len(ROWS))
        )
        q, k, v = (each.view(-1, each.shape[-1]) for each in (q, k, v))
        return torch.mm(torch.mm(q, torch.mm(q.t(), k)).t(), v)

    return function


def side_by_side(kind: str) -> Weight:
    matrix = torch.randn(sum(ROWS), K, generator=torch.Generator().manual_seed(0))
    kinds = {"uint4": partial(quantize.uint4, group=64), "fp8": quantize.fp8}
    return kinds.get(kind, getattr(quantize, kind))(matrix).repack()


@pytest.mark.parametrize("lies", ["beside", "reversed", "apart"])
@pytest.mark.parametrize("name", ["int4", "uint4", "mxfp4", "fp8"])
@pytest.mark.parametrize("shape", [(5, K), (2, 3, K)])
def test_weights_of_one_input_are_one_call_if_they_lie_side_by_side(
    shape, name, lies, enabled
) -> None:
    weight = side_by_side(name)
    layers = parts(weight)[:: -1 if lies == "reversed" else 1]
    factors = len(weight.tensors())
    fields = [x for each in layers for x in each.tensors().values()]
    if lies == "apart":
        fields = [x.clone() for x in fields]
    inputs = [*tensors(shape), *fields]
    function = attended(weight, factors)
    lowered = lower(function, inputs, prefers=is_ours)
    joined = lowered.call.count("cutlass_api_beside(")
    alone = lowered.call.count("cutlass_api_quantized_linear(")
    assert (joined, alone) == ((0, 3) if lies == "apart" else (1, 0))
    assert torch.equal(run_on_the_cpu(lowered, inputs), function(*inputs))
    # The graph also runs with weights that lie apart.
    copies = [inputs[0], *(x.clone() for x in fields)]
    assert torch.equal(run_on_the_cpu(lowered, copies), function(*inputs))


@pytest.mark.parametrize("is_view", [False, True])
def test_a_product_that_is_read_by_strides_is_a_launch_of_its_own(is_view, enabled) -> None:
    weight = side_by_side("int4")
    layers = parts(weight)
    fields = [x for each in layers for x in each.tensors().values()]
    factors = len(weight.tensors())

    def function(x: torch.Tensor, *fields: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            quantized(weight)(x, *fields[at * factors : (at + 1) * factors]) for at in range(3)
        )
        read = q.view(-1) if is_view else q
        strided = read.as_strided((5, 32), (64, 1), 32)
        return torch.mm(torch.mm(k.t(), v), strided.t())

    inputs = [*tensors((5, K)), *fields]
    lowered = lower(function, inputs, prefers=is_ours)
    assert lowered.call.count("cutlass_api_beside(") == 1
    assert lowered.call.count("cutlass_api_quantized_linear(") == 1
    assert torch.equal(run_on_the_cpu(lowered, inputs), function(*inputs))


def test_products_one_by_one_where_they_are_faster(enabled) -> None:
    weight = side_by_side("int4")
    fields = [x for each in parts(weight) for x in each.tensors().values()]
    inputs = [*tensors((5, K)), *fields]
    function = attended(weight, len(weight.tensors()))
    lowered = lower(function, inputs, prefers=is_replaced)
    offered = lowered.choices[0]
    assert [is_replaced(choice) for choice in offered] == [False] * OFFERED + [True]
    assert lowered.call.count("cutlass_api_quantized_linear(") == len(ROWS)
    assert "beside" not in lowered.call
    assert torch.equal(run_on_the_cpu(lowered, inputs), function(*inputs))


# ---- torch's packed products ---------------------------------------------------------------------


def int8pack(x: torch.Tensor, w: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten._weight_int8pack_mm(x, w, scales)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_int8pack_is_ours_where_faster(dtype, enabled) -> None:
    x, scales = tensors((5, K), (N,), dtype=dtype)
    inputs = [x, torch.randint(-128, 128, (N, K), dtype=torch.int8), scales]
    lowered = lower(int8pack, inputs, prefers=is_ours)
    assert "extern_kernels.cutlass_api_gemm(" in lowered.code
    out = run_on_the_cpu(lowered, inputs)
    assert_close(out, lambda x, w, scales: (x @ w.t()) * scales, inputs)
    slower = lower(int8pack, inputs, prefers=is_replaced)
    assert "extern_kernels._weight_int8pack_mm(" in slower.code
    assert "cutlass_api" not in slower.call


def test_int8pack_of_float32_stays_torch_s(enabled) -> None:
    x, scales = tensors((5, K), (N,), dtype=torch.float32)
    assert not has_ours(lower(int8pack, [x, torch.ones(N, K, dtype=torch.int8), scales]))


def int4pack(group: int):
    return lambda x, packed, both: torch.ops.aten._weight_int4pack_mm(x, packed, group, both)


def of_tinygemm(group: int, tiles: int, k: int = 1024) -> list[torch.Tensor]:
    """A weight (16, k), and its scales and zero points."""
    words = torch.randint(-(2**31), 2**31, (2, k // 16 // tiles, 32, tiles // 2))
    return [words.int(), *tensors((k // group, 16, 2))]


@pytest.mark.parametrize(("group", "tiles"), [(32, 2), (64, 4), (128, 8)])
def test_a_constant_int4pack_is_ours_where_faster(group, tiles, enabled) -> None:
    inputs = [*tensors((5, 1024)), *of_tinygemm(group, tiles)]
    lowered = lower(int4pack(group), inputs, prefers=is_ours, constants=[1, 2])
    assert "extern_kernels.cutlass_api_gemm(" in lowered.code
    assert [is_ours(choice) for choice in lowered.choices[0]] == [True] * OFFERED + [False]
    matrix = weights.from_torchao(inputs[1], inputs[2], (16, 1024)).dequantize(torch.float64)
    out = run_on_the_cpu(lowered, inputs[:1])
    assert_close(out, lambda x: x @ matrix.t(), inputs[:1])


def test_a_slower_copy_is_dropped(enabled) -> None:
    inputs = [*tensors((5, 1024)), *of_tinygemm(64, 8)]
    lowered = lower(int4pack(64), inputs, prefers=is_replaced, constants=[1, 2])
    assert "torch.ops.aten._weight_int4pack_mm.default(" in lowered.code
    assert len(lowered.choices[0]) == OFFERED + 1 and "cutlass_api" not in lowered.call
    assert [tuple(x.shape) for x in lowered.constants.values()] == [(2, 8, 32, 4), (16, 16, 2)]


@pytest.mark.parametrize(
    ("group", "constants", "patches"),
    [(64, [], {}), (64, [1], {}), (256, [1, 2], {}), (64, [1, 2], {"max_autotune": False})],
    ids=["inputs", "scales are inputs", "group of 256", "no autotuning"],
)
def test_other_int4pack_stays_torch_s(group, constants, patches, enabled) -> None:
    inputs = [*tensors((5, 1024)), *of_tinygemm(group, 8)]
    lowered = lower(int4pack(group), inputs, constants=constants, **patches)
    assert not has_ours(lowered)
    assert "torch.ops.aten._weight_int4pack_mm.default(" in lowered.code


def test_without_the_integration_int4pack_stays_torch_s() -> None:
    inputs = [*tensors((5, 1024)), *of_tinygemm(64, 8)]
    lowered = lower(int4pack(64), inputs, constants=[1, 2])
    assert not has_ours(lowered) and not lowered.choices


def test_choices_are_timed_with_their_own_inputs() -> None:
    def time(*inputs: int, out: str) -> float:
        assert (inputs, out) == ((10, 14, 15), "out")
        return 1.0

    assert _packed._benchmark(time, [0, 4, 5], *range(10, 16), out="out") == 1.0


def test_frozen_graphs_are_not_cached() -> None:
    """Cache keys do not depend on the values of frozen parameters, but converted copies do."""
    own = ProductPass(Options(), "1", None)
    assert own.uuid() is not None
    with config.patch(freezing=True):
        assert own.uuid() is None
