"""Grouped products in compiled graphs: gate and up as one launch, and what stands around them."""

import re
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import cutlass_api.inductor
import pytest
import torch
import torch.nn.functional as F
from cutlass_api.ops import OPS
from support.pretended_gpu import lower, lower_training, run_on_the_cpu
from support.torch_compile import (
    HALVES,
    assert_close,
    grouped,
    grouped_reference,
    is_ours,
    is_replaced,
    tensors,
)

A, W = (300, 64), (5, 192, 64)
OFFSETS = torch.tensor([64, 64, 200, 256, 300], dtype=torch.int32)
GATED = OPS.grouped_gated_mm.default
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def is_traced(dtype: torch.dtype) -> bool:
    """Whether torch traces a grouped product: 2.11 does of bfloat16 only."""
    a, b = (torch.empty(*shape, dtype=dtype, device="meta") for shape in (A, W))
    try:
        torch._grouped_mm(a, b.mT, offs=torch.empty(5, dtype=torch.int32, device="meta"))
    except RuntimeError:
        return False
    return True


def interleaved(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return rows[..., ::2], rows[..., 1::2]


def chunks(rows: torch.Tensor) -> Any:
    return rows.chunk(2, -1)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def clamped(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The gate of gpt-oss."""
    gate, up = gate.clamp(max=7.0), up.clamp(-7.0, 7.0)
    return (up + 1) * (gate * torch.sigmoid(gate * 1.702))


def of_one(
    *inputs: torch.Tensor,
    multiply: Product = grouped,
    parts: Callable[[torch.Tensor], Any] = chunks,
    activate: Callable[..., torch.Tensor] = swiglu,
) -> torch.Tensor:
    return activate(*parts(multiply(*inputs)))


def of_two(
    a: torch.Tensor, *others: torch.Tensor, multiply: Product = grouped, activate: Any = swiglu
) -> torch.Tensor:
    *weights, offsets = others
    return activate(*(multiply(a, weight, offsets) for weight in weights))


#: A function, the shapes of its factors, and the expression of the launch.
GATES: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]], str]] = {
    "halves": (of_one, [A, W], "multiply(silu(gate), up)"),
    "halves, up first": (
        partial(of_one, activate=lambda up, gate: up * F.gelu(gate)),
        [A, W],
        "multiply(gate, gelu(up))",
    ),
    "halves by sizes": (
        partial(of_one, parts=lambda rows: rows.split([96, 96], 1), activate=torch.mul),
        [A, W],
        "multiply(gate, up)",
    ),
    "halves by slices": (
        partial(of_one, parts=lambda rows: (rows[:, :-96], rows[:, 96:])),
        [A, W],
        "multiply(silu(gate), up)",
    ),
    "interleaved": (
        partial(of_one, parts=interleaved, activate=lambda gate, up: F.relu(gate) * up),
        [A, W],
        "multiply(relu(gate), up)",
    ),
    "interleaved, clamped": (partial(of_one, parts=interleaved, activate=clamped), [A, W], ""),
    "two products": (of_two, [A, (5, 96, 64), (5, 96, 64)], "multiply(silu(gate), up)"),
    "two products, up first": (
        partial(of_two, activate=lambda up, gate: swiglu(gate, up)),
        [A, (5, 96, 64), (5, 96, 64)],
        "silu",
    ),
}


def gates(lowered: Any) -> list[Any]:
    return [node for node in lowered.graph.nodes if node.target is GATED]


@pytest.mark.parametrize("dtype", list(filter(is_traced, HALVES)), ids=str)
@pytest.mark.parametrize("name", GATES)
def test_gate_and_up_are_one_launch_where_faster(name: str, dtype: torch.dtype, enabled) -> None:
    function, shapes, expression = GATES[name]
    inputs = [*tensors(*shapes, dtype=dtype), OFFSETS]
    lowered = lower(function, inputs, prefers=is_ours)
    (gate,) = gates(lowered)
    assert expression in gate.args[-1]
    assert lowered.call.count("extern_kernels.") == 1 and "triton" not in lowered.call
    assert "product(factor)" in lowered.call and "kernel='sm90_grouped" in lowered.call
    assert_close(
        run_on_the_cpu(lowered, inputs), partial(function, multiply=grouped_reference), inputs
    )


@pytest.mark.parametrize("name", GATES)
def test_where_torch_is_faster_the_graph_is_its_own(name: str) -> None:
    function, shapes, _ = GATES[name]
    inputs = [*tensors(*shapes), OFFSETS]
    theirs = lower(function, inputs)
    with cutlass_api.inductor.enabled():
        lowered = lower(function, inputs, prefers=is_replaced)
    assert lowered.call == theirs.call
    assert any(map(is_ours, lowered.choices[0])), "one launch was timed"


@pytest.mark.parametrize("name", ["halves", "interleaved, clamped", "two products"])
def test_what_is_timed_as_one_launch_computes_the_gate(name: str, enabled) -> None:
    function, shapes, _ = GATES[name]
    a, *weights = tensors(*shapes)
    choice = lower(function, [a, *weights, OFFSETS], prefers=is_ours).choices[0][0]
    out = torch.empty(300, 96, dtype=a.dtype)
    run = choice.bmreq.make_run_fn(a, *(weight.mT for weight in weights), OFFSETS, out=out)
    run()
    reference = partial(function, multiply=grouped_reference)
    assert_close(out, reference, [a, *weights, OFFSETS])


@pytest.mark.parametrize("name", ["halves", "two products"])
def test_our_products_compete_with_one_launch(name: str, enabled) -> None:
    """With the activation in a kernel of its own."""
    function, shapes, _ = GATES[name]

    def prefers(choice: Any) -> bool:
        is_gate = is_ours(choice) and "product(" in choice.kwargs.get("epilogue", "")
        return not is_gate and choice.name != "cutlass_api_replaced_0"

    lowered = lower(function, [*tensors(*shapes), OFFSETS], prefers=prefers)
    assert "cutlass_api_replaced_1" in [choice.name for choice in lowered.choices[0]]
    products = 1 if name == "halves" else 2
    assert not gates(lowered) and "triton_" in lowered.call
    assert lowered.call.count("extern_kernels.cutlass_api_grouped_gemm(") == products


def with_others(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the rows of a product, their halves, and the inputs."""

    def whole(*inputs: torch.Tensor) -> Any:
        rows = grouped(*inputs)
        return function(rows, *chunks(rows), *inputs)

    return whole


def changed(a, gate, up, offsets) -> torch.Tensor:
    first = grouped(a, gate, offsets)
    a.mul_(2)
    return swiglu(first, grouped(a, up, offsets))


def squared(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        gate = gate * gate
    return gate * up


PAIR = [A, (5, 96, 64), (5, 96, 64)]
#: A function and the shapes of its factors.
SEPARATE: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "rows are returned": (with_others(lambda rows, g, u, *_: (swiglu(g, u), rows)), [A, W]),
    "a half is returned": (with_others(lambda rows, g, u, *_: (swiglu(g, u), g)), [A, W]),
    "the activation is returned": (
        with_others(lambda rows, g, u, *_: (F.relu(g) * u, F.relu(g))),
        [A, W],
    ),
    "rows are summed": (with_others(lambda rows, g, u, *_: (swiglu(g, u), rows.sum(0))), [A, W]),
    "a half alone": (with_others(lambda rows, g, u, *_: F.silu(g)), [A, W]),
    "three parts": (
        partial(of_one, parts=lambda r: r.chunk(3, -1), activate=torch.addcmul),
        [A, W],
    ),
    "halves of rows": (partial(of_one, parts=lambda rows: rows.chunk(2, 0)), [A, W]),
    "float32 result": (
        partial(of_one, activate=lambda g, u: F.silu(g.float()) * u.float()),
        [A, W],
    ),
    "weights of rows": (
        with_others(lambda rows, g, u, a, *_: F.silu(g) * a[:, :1] * u),
        [A, W],
    ),
    "arithmetic behind": (
        with_others(lambda rows, g, u, a, *_: swiglu(g, u) * a[:, :1]),
        [A, W],
    ),
    "masked rows": (
        with_others(lambda r, g, u, a, *_: swiglu(*chunks(r.masked_fill(a[:, :1] > 0, 0)))),
        [A, W],
    ),
    "bias by an index": (
        lambda a, w, bias, o: swiglu(*chunks(grouped(a, w, o) + bias[a[:, 0].long() % 5])),
        [A, W, (5, 192)],
    ),
    "long expression": (partial(of_one, activate=squared), [A, W]),
    "columns are no multiples of 8": (of_one, [A, (5, 24, 64)]),
    "row-major matrices": (
        lambda a, w, o: swiglu(*chunks(torch._grouped_mm(a, w, offs=o))),
        [A, (5, 64, 192)],
    ),
    "computed matrices": (lambda a, w, o: of_one(a, w * 2, o), [A, W]),
    "other rows": (
        lambda a, b, g, u, o: swiglu(grouped(a, g, o), grouped(b, u, o)),
        [A, *PAIR],
    ),
    "other offsets": (
        lambda a, g, u, o: swiglu(grouped(a, g, o), grouped(a, u, o + 1)),
        PAIR,
    ),
    "other matrices": (
        lambda a, w, u, o: swiglu(chunks(grouped(a, w, o))[0], grouped(a, u, o)),
        [A, W, (5, 96, 64)],
    ),
    "one matrix twice": (lambda *inputs: swiglu(grouped(*inputs), grouped(*inputs)), PAIR[:2]),
    "one half twice": (partial(of_one, parts=lambda r: (r[:, :96], r[:, :96])), [A, W]),
    "rows change in between": (changed, PAIR),
}


@pytest.mark.parametrize("name", SEPARATE)
def test_other_rows_stay_products(name: str, enabled) -> None:
    function, shapes = SEPARATE[name]
    lowered = lower(function, [*tensors(*shapes), OFFSETS], prefers=is_ours)
    assert not gates(lowered) and "product(" not in lowered.call
    count = 2 if shapes[-1][1] == 96 else 1  # products
    assert lowered.call.count("extern_kernels.cutlass_api_grouped_gemm(") == count


def test_rows_change_behind_one_product(enabled) -> None:
    def function(a: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        gate, up = chunks(grouped(a, w, offsets))
        a.mul_(2)
        return swiglu(gate, up)

    lowered = lower(function, [*tensors(A, W), OFFSETS], prefers=is_ours)
    assert len(gates(lowered)) == 1
    launches = re.findall(r"extern_kernels|triton", lowered.call)
    assert launches == ["extern_kernels", "triton"], "the launch reads the rows before they change"


def test_training_keeps_the_rows(enabled) -> None:
    def function(a: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        offsets = (a[:5, 0].detach() > 0).cumsum(0, dtype=torch.int32)
        return of_one(a, w, offsets)

    forward, backward = lower_training(function, tensors(A, W), prefers=is_ours)
    assert not gates(forward) and not gates(backward)
    assert "cutlass_api.grouped_mm" in str(forward.graph)


@pytest.mark.parametrize("options", [{"fuse": False}, {}], ids=["fuse=False", "emulated casts"])
def test_gates_are_not_fused_without_fusion(options: dict[str, Any]) -> None:
    with cutlass_api.inductor.enabled(**options):
        patches: Any = {"emulate_precision_casts": not options}
        lowered = lower(of_one, [*tensors(A, W), OFFSETS], prefers=is_ours, **patches)
    assert not gates(lowered) and "cutlass_api.grouped_mm" in str(lowered.graph)


# ---- what stands around --------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [2, 8, 10])
def test_experts_of_transformers(top_k: int, enabled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gate and up are one launch. Behind the second product, one kernel of Inductor's adds the rows
    of a token and reads each of them once: no kernel of ours would read less. Another one may
    invert the permutation of the slots."""
    moe = pytest.importorskip("transformers.integrations.moe")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))

    def function(tokens, index, weights, gate_up_proj, down_proj) -> torch.Tensor:
        names = ("has_bias", "is_transposed", "_is_expert_parallel", "has_post_expert_norm")
        module = SimpleNamespace(
            **dict.fromkeys(names, False),
            num_experts=16,
            has_gate=True,
            gate_up_proj=gate_up_proj,
            down_proj=down_proj,
            _apply_gate=lambda rows: swiglu(*chunks(rows)),
        )
        return moe.grouped_mm_experts_forward(module, tokens, index, weights)

    tokens, up, down = tensors((96, 64), (16, 192, 64), (16, 64, 96))
    index, weights = torch.zeros(96, top_k, dtype=torch.int64), torch.rand(96, top_k)
    lowered = lower(function, [tokens, index, weights, up, down], prefers=is_ours)
    assert len(gates(lowered)) == 1
    launches = re.findall(r"extern_kernels\.\w+|triton_\w+(?=\.run)", lowered.call)
    of_up, of_down, *behind = launches[launches.index("extern_kernels.cutlass_api_grouped_gemm") :]
    assert of_up == of_down and ["index_put" in name for name in behind] in ([False], [True, False])


def test_the_operator_of_the_user_is_tuned(enabled) -> None:
    def function(a, gate, up, offsets, *bias) -> torch.Tensor:
        return OPS.grouped_gated_mm(a, gate.mT, up.mT, offsets, "silu", *bias)

    inputs = [*tensors(*PAIR), OFFSETS]
    lowered = lower(function, inputs, prefers=is_ours)
    assert "extern_kernels.cutlass_api_grouped_gemm(" in lowered.call
    assert_close(
        run_on_the_cpu(lowered, inputs), partial(of_two, multiply=grouped_reference), inputs
    )
    bias = tensors((5, 96))
    a, gate, up, offsets = inputs
    for others in ([*inputs, *bias], [a, gate, up.mT.contiguous().mT, offsets]):
        assert "torch.ops.cutlass_api.grouped_gated_mm" in lower(function, others).call
