"""Dynamic shapes: one compiled graph serves every size with our kernels."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.pretended_gpu import compiled, lower
from support.torch_compile import (
    assert_close,
    float8,
    grouped,
    grouped_reference,
    integers,
    is_dual,
    is_ours,
    is_replaced,
    relu_of_linear,
    scaled,
    scaled_reference,
    scales,
    swiglu,
    tensors,
)
from torch._inductor.graph import GraphLowering


def int_mm(a: torch.Tensor, b: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
    out = torch._int_mm(a, b.mT) if a.dtype == torch.int8 else a @ b.mT
    for factor in factors:
        out = out * factor
    return out


def gated(*inputs: torch.Tensor, multiply: Callable[..., torch.Tensor] = grouped) -> torch.Tensor:
    gate, up = multiply(*inputs).chunk(2, -1)
    return F.silu(gate) * up


#: A function, and its inputs for a number of rows.
DYNAMIC: dict[str, tuple[Callable[..., Any], Callable[[int], list[torch.Tensor]]]] = {
    "mm": (torch.mm, lambda m: tensors((m, 256), (256, 320))),
    "bmm": (torch.bmm, lambda m: tensors((3, m, 128), (3, 128, 96))),
    "addmm": (F.linear, lambda m: tensors((m, 256), (320, 256), (320,))),
    "addmm, scaled": (
        lambda a, b, c: torch.addmm(c, a, b, alpha=0.5, beta=2),
        lambda m: tensors((m, 256), (256, 320), (320,)),
    ),
    "baddbmm": (
        lambda a, b, c: torch.baddbmm(c, a, b),
        lambda m: tensors((3, m, 128), (3, 128, 96), (3, 1, 96)),
    ),
    "column-major A": (
        lambda x, w, y: x.mT @ w + y,
        lambda m: tensors((256, m), (256, 320), (m, 320)),
    ),
    "activation": (relu_of_linear, lambda m: tensors((m, 256), (320, 256))),
    "batches": (
        lambda x, w, b, y, s: (y + F.silu(F.linear(x, w, b))) * s,
        lambda m: tensors((m, 3, 256), (320, 256), (320,), (m, 3, 320), (m, 3, 1)),
    ),
    "batches of any size": (
        lambda x, w, y: F.gelu(F.linear(x, w)) + y,
        lambda m: tensors((m, m + 1, 64), (32, 64), (m, m + 1, 32)),
    ),
    "pair": (swiglu, lambda m: tensors((m, 256), (320, 256), (320, 256))),
    "mixed": (lambda x, w: x @ w.to(x.dtype), lambda m: [*tensors((m, 128)), *integers((128, 96))]),
    "mixed, fused": (
        lambda x, w, b: torch.relu(F.linear(x, w.to(x.dtype), b)),
        lambda m: [*tensors((m, 3, 128)), *integers((96, 128)), *tensors((96,))],
    ),
    "integers": (
        lambda a, b, row, column: int_mm(a, b, row, column),
        lambda m: [*integers((m, 128), (96, 128)), *scales((m, 1), (1, 96))],
    ),
    "grouped": (
        grouped,
        lambda m: [
            *tensors((m, 64), (3, 96, 64)),
            torch.tensor([m // 3, m // 2, m], dtype=torch.int32),
        ],
    ),
    "gate and up": (
        gated,
        lambda m: [
            *tensors((m, 64), (3, 192, 64)),
            torch.tensor([m // 3, m // 2, m], dtype=torch.int32),
        ],
    ),
    "scaled": (scaled, lambda m: [*float8((m, 128), (96, 128)), *scales((), ())]),
    "scaled rows": (scaled, lambda m: [*float8((m, 128), (96, 128)), *scales((m, 1), (1, 96))]),
    "scaled blocks": (scaled, lambda m: [*float8((m, 256), (256, 256)), *scales((m, 2), (2, 2))]),
}
FUSED = ("activation", "batches", "batches of any size", "pair", "mixed, fused", "integers")
REFERENCES = {
    scaled: scaled_reference,
    grouped: grouped_reference,
    gated: partial(gated, multiply=grouped_reference),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_one_graph_serves_every_size(name: str, enabled) -> None:
    function, inputs = DYNAMIC[name]
    call, graphs = compiled(function, prefers=is_ours)
    for rows in (48, 7, 201):
        values = inputs(rows)
        mark_dynamic(values, inputs(rows + 1))
        assert_close(call(*values), REFERENCES.get(function, function), values)
    (lowered,) = graphs
    code = lowered.call
    assert code.count("extern_kernels.") == 1 and "extern_kernels.cutlass_api_" in code
    assert "kernel=" not in code, "the kernel is chosen by shape, at run time"
    assert "triton" not in code
    assert (name in FUSED) == ("mm_epilogue" in str(lowered.graph))


def mark_dynamic(inputs: list[torch.Tensor], others: list[torch.Tensor]) -> None:
    """Requires symbols for the extents in which the inputs differ from others."""
    for value, other in zip(inputs, others, strict=True):
        for dim, (extent, of_other) in enumerate(zip(value.shape, other.shape, strict=True)):
            if extent != of_other:
                torch._dynamo.mark_dynamic(value, dim)


@pytest.mark.parametrize(
    "name",
    [
        *("batches of any size", "pair", "mixed, fused", "integers"),
        *("grouped", "gate and up", "scaled rows"),
    ],
)
def test_what_a_graph_of_every_size_replaces_is_inlined_if_faster(
    name: str, enabled, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, inputs = DYNAMIC[name]
    to_time: list[str] = []
    monkeypatch.setattr(GraphLowering, "compile_to_module", lambda graph: graph.codegen()[0].value)

    def prefers(choice: Any) -> bool:
        if is_replaced(choice):
            to_time.append(choice._compile_for_benchmarking())
        return is_replaced(choice)

    call, graphs = compiled(function, prefers=prefers, runs=False)
    for rows in (48, 7, 201):
        values = inputs(rows)
        mark_dynamic(values, inputs(rows + 1))
        call(*values)
    (lowered,) = graphs
    assert any(is_ours(choice) for choice in lowered.choices[0])
    assert "cutlass_api" not in lowered.call
    assert to_time and not any(re.search(r"\bs\d+\b", code) for code in to_time), "of 48 rows"
    assert re.search(r"\bs\d+\b", lowered.code), "of any number"


def test_a_pair_that_no_kernel_serves_at_odd_sizes_stays_two_products(enabled) -> None:
    """Kernels of pairs need 16-byte aligned columns of A, here of a dynamic number of elements."""

    def function(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return swiglu(x.mT, gate, up)

    call, graphs = compiled(
        function, prefers=lambda choice: is_ours(choice) or choice.name == "cutlass_api_replaced_1"
    )
    for rows in (48, 7):
        values = tensors((256, rows), (320, 256), (320, 256))
        torch._dynamo.mark_dynamic(values[0], 1)
        assert_close(call(*values), function, values)
    (lowered,) = graphs
    assert not any(is_dual(choice) for choices in lowered.choices for choice in choices)
    x, *weights = tensors((256, 48), (320, 256), (320, 256))
    assert is_dual(lower(function, [x, *weights], prefers=is_ours).choices[0][0]), "of 48 rows"
