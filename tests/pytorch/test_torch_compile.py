"""`cutlass_api.inductor` against the installed PyTorch's Inductor, on a machine without a GPU."""

import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import cutlass_api
import cutlass_api.inductor
import pytest
import torch
import torch.nn.functional as F
from cutlass_api.inductor import _candidates, _integration, _lowering, _torch
from cutlass_api.inductor._fusion import ProductPass
from support.pretended_gpu import Lowered, compiled, lower, lower_training, run_on_the_cpu
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

HALVES = [torch.float16, torch.bfloat16]
OFFERED = cutlass_api.inductor.Options().candidates


@pytest.fixture(autouse=True)
def nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of these tests run on the CPU."""
    monkeypatch.setattr(_candidates.Caller, "precompile", lambda self: None)


@pytest.fixture
def enabled() -> Iterator[None]:
    with cutlass_api.inductor.enabled():
        yield


def is_ours(choice: Any) -> bool:
    return isinstance(choice, _candidates.Caller)


def is_replaced(choice: Any) -> bool:
    return isinstance(choice, _lowering.ReplacedCaller)


def is_dual(choice: Any) -> bool:
    return is_ours(choice) and "product(" in choice.kwargs.get("epilogue", "")


def has_ours(lowered: Lowered) -> bool:
    """Whether the graph or a choice is ours."""
    ours = any(is_ours(choice) for choices in lowered.choices for choice in choices)
    return ours or "cutlass_api" in str(lowered.graph)


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def assert_close(out: torch.Tensor, function: Callable[..., Any], inputs: list[torch.Tensor]):
    """Against float64, with the tolerance of a few roundings of the output's type."""
    reference = function(*(value.double() for value in inputs))
    assert out.shape == reference.shape
    error = (out.double() - reference).norm() / reference.norm()
    assert error < 2 * torch.finfo(out.dtype).eps


def relu_of_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.linear(x, w))


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


# ---- candidates of a product ---------------------------------------------------------------------

PRODUCTS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(192, 256), (256, 320)]),
    "linear": (lambda x, w: F.linear(x, w), [(192, 256), (320, 256)]),
    "column-major A": (lambda a, b: a.mT @ b, [(256, 192), (256, 320)]),
    "unaligned": (torch.mm, [(67, 131), (131, 37)]),
    "bmm": (torch.bmm, [(3, 64, 128), (3, 128, 96)]),
    "addmm, bias": (torch.addmm, [(320,), (192, 256), (256, 320)]),
    "addmm, matrix": (torch.addmm, [(192, 320), (192, 256), (256, 320)]),
    "addmm, scaled": (
        lambda c, a, b: torch.addmm(c, a, b, alpha=0.5, beta=2),
        [(320,), (192, 256), (256, 320)],
    ),
    "baddbmm": (torch.baddbmm, [(3, 64, 96), (3, 64, 128), (3, 128, 96)]),
}


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_our_kernels_are_timed_beside_aten_and_run(name: str, dtype: torch.dtype, enabled) -> None:
    function, shapes = PRODUCTS[name]
    inputs = tensors(*shapes, dtype=dtype)
    lowered = lower(function, inputs, prefers=is_ours)
    (choices,) = lowered.choices
    ours = [choice for choice in choices if is_ours(choice)]
    assert 1 <= len(ours) <= OFFERED and len(ours) < len(choices), "ATEN is offered, too"
    # Those that rank first, by name; the code calls the fastest.
    assert ours[0].kwargs["kernel"] in lowered.code
    assert "extern_kernels.cutlass_api_" in lowered.code
    assert_close(run_on_the_cpu(lowered, inputs), function, inputs)


def test_a_product_that_aten_wins_is_aten_s(enabled) -> None:
    inputs = tensors((192, 256), (256, 320))
    lowered = lower(torch.mm, inputs, prefers=lambda choice: not is_ours(choice))
    assert "extern_kernels.mm(" in lowered.code and "cutlass_api" not in lowered.code


def test_the_options_bound_the_candidates() -> None:
    inputs = tensors((192, 256), (256, 320))
    for count in (1, 2):
        with cutlass_api.inductor.enabled(candidates=count):
            (choices,) = lower(torch.mm, inputs).choices
        assert sum(is_ours(choice) for choice in choices) == count
    with pytest.raises(ValueError, match="candidates is 0"):
        cutlass_api.inductor.enable(candidates=0)


def test_integers_have_candidates(enabled) -> None:
    a = torch.randint(-9, 9, (64, 128), dtype=torch.int8)
    b = torch.randint(-9, 9, (96, 128), dtype=torch.int8)
    lowered = lower(lambda a, b: torch._int_mm(a, b.mT), [a, b], prefers=is_ours)
    assert "extern_kernels.cutlass_api_gemm" in lowered.code
    assert torch.equal(run_on_the_cpu(lowered, [a, b]), a.int() @ b.int().mT)


INTEGERS: dict[str, Callable[..., torch.Tensor]] = {
    "scales": lambda y, r, c, b: (y * r * c).to(torch.bfloat16),
    "scales and bias": lambda y, r, c, b: (y * (r * c) + b).to(torch.bfloat16),
    "casts": lambda y, r, c, b: (y.float() * 2**-10 * r * c + b).half(),
    "quotient": lambda y, r, c, b: torch.relu(y / 127),
    "float32": lambda y, r, c, b: y * c - b,
}


@pytest.mark.parametrize("name", INTEGERS)
def test_what_scales_a_product_of_integers_is_fused(name: str, enabled) -> None:
    follow = INTEGERS[name]
    # Sums beyond the integers that float16 and bfloat16 represent.
    a, b = (torch.randint(-128, 128, shape, dtype=torch.int8) for shape in ((64, 512), (96, 512)))
    row, column, bias = tensors((64, 1), (1, 96), (96,), dtype=torch.float32)

    def function(a, b, *others):
        return follow(torch._int_mm(a, b.mT), *others)

    inputs = [a, b, row, column, bias]
    lowered = lower(function, inputs, prefers=is_ours)
    assert lowered.code.count("epilogue='def epilogue") == 1
    assert ("triton" in lowered.code.split("def call")[1]) == (name == "scales and bias")
    slower = lower(function, inputs, prefers=is_replaced).code.split("def call")[1]
    assert "epilogue=" not in slower and "triton_" in slower
    if name == "scales and bias":  # Triton multiplies the scales
        return
    out = run_on_the_cpu(lowered, inputs)
    reference = follow((a.double() @ b.double().mT), *(x.double() for x in inputs[2:]))
    assert (out.double() - reference.double()).norm() < 2**-7 * reference.double().norm()


def test_integers_behind_a_product_of_integers_are_not_fused(enabled) -> None:
    a, b = (torch.randint(-9, 9, shape, dtype=torch.int8) for shape in ((64, 128), (96, 128)))
    for function in (
        lambda a, b: torch.relu(torch._int_mm(a, b.mT)),
        lambda a, b: torch._int_mm(a, b.mT) * 3,
        lambda a, b: torch._int_mm(a, b.mT).to(torch.bfloat16),
    ):
        assert "mm_epilogue" not in str(lower(function, [a, b]).graph)


@pytest.mark.parametrize("function", [F.linear, relu_of_linear], ids=["product", "fused"])
@pytest.mark.parametrize(
    ("precision", "family"), [("highest", "simt"), ("high", "sm90"), ("medium", "sm90")]
)
def test_float32_follows_torch_s_precision(precision: str, family: str, function, enabled) -> None:
    inputs = tensors((192, 256), (320, 256), dtype=torch.float32)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        lowered = lower(function, inputs, prefers=is_ours)
    finally:
        torch.set_float32_matmul_precision(before)
    first = next(choice for choice in lowered.choices[0] if is_ours(choice))
    assert first.kwargs["kernel"].startswith(family)
    assert ("epilogue=" in lowered.code) == (function is relu_of_linear)
    assert_close(run_on_the_cpu(lowered, inputs), function, inputs)


WITHDRAWN: dict[str, dict[str, Any]] = {
    "no autotuning": {"max_autotune": False},
    "C++": {"cpp_wrapper": True},
    "AOTInductor": {"cpp_wrapper": True, "ahead_of_time": True},
    "AOTInductor without C++": {"ahead_of_time": True},
}


OFFERED_PRODUCTS: dict[str, Callable[..., torch.Tensor]] = {
    "mm": torch.mm,
    "addmm": lambda a, b: torch.addmm(b[0], a, b),
    "fused": lambda a, b: torch.relu(a @ b),
    "mixed": lambda a, b: a @ b.to(a.dtype),
    "grouped": lambda a, b, offsets: grouped(a, b.mT[None], offsets),
}


@pytest.mark.parametrize("name", OFFERED_PRODUCTS)
def test_otherwise_graphs_stay_as_they_are(name: str, enabled) -> None:
    a, b = tensors((192, 256), (256, 320))
    inputs = [a, b.to(torch.int8) if name == "mixed" else b]
    if name == "grouped":
        inputs.append(torch.tensor([192], dtype=torch.int32))
    function = OFFERED_PRODUCTS[name]
    assert has_ours(lower(function, inputs)), "with autotuning, from Python"
    for mode, settings in WITHDRAWN.items():
        assert not has_ours(lower(function, inputs, **settings)), mode


# ---- dynamic shapes ------------------------------------------------------------------------------


def scaled(a: torch.Tensor, b: torch.Tensor, *scales: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(a, b.mT, *scales, out_dtype=torch.bfloat16)


def scaled_reference(a, b, scale_a, scale_b) -> torch.Tensor:
    """`scaled` in float64, of scales of a tensor, rows and columns, or blocks."""

    def expanded(scale: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        for dim, extent in enumerate(like.shape if scale.dim() else ()):
            repeats = -(-extent // scale.shape[dim])
            scale = scale.repeat_interleave(repeats, dim).narrow(dim, 0, extent)
        return scale

    return (a * expanded(scale_a, a)) @ (b.mT * expanded(scale_b, b.mT))


def grouped(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch._grouped_mm(a, b.mT, offs=offsets)


def grouped_reference(a, b, offsets) -> torch.Tensor:
    ends = [0, *offsets.int().tolist()]
    return torch.cat([a[i:j] @ w.mT for w, (i, j) in zip(b, pairwise(ends), strict=True)])


def float8(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [value.to(torch.float8_e4m3fn) for value in tensors(*shapes)]


def scales(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [value.abs() + 0.5 for value in tensors(*shapes, dtype=torch.float32)]


def integers(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [(9 * value).to(torch.int8) for value in tensors(*shapes)]


def int_mm(a: torch.Tensor, b: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
    out = torch._int_mm(a, b.mT) if a.dtype == torch.int8 else a @ b.mT
    for factor in factors:
        out = out * factor
    return out


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
    "mixed": (
        lambda x, w: x @ w.to(x.dtype),
        lambda m: [*tensors((m, 128)), *integers((128, 96))],
    ),
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
    "scaled": (scaled, lambda m: [*float8((m, 128), (96, 128)), *scales((), ())]),
    "scaled rows": (scaled, lambda m: [*float8((m, 128), (96, 128)), *scales((m, 1), (1, 96))]),
    "scaled blocks": (
        scaled,
        lambda m: [*float8((m, 256), (256, 256)), *scales((m, 2), (2, 2))],
    ),
}
FUSED = ("activation", "batches", "batches of any size", "pair", "mixed, fused", "integers")
REFERENCES = {scaled: scaled_reference, grouped: grouped_reference}


@pytest.mark.parametrize("name", DYNAMIC)
def test_one_graph_serves_every_size(name: str, enabled) -> None:
    function, inputs = DYNAMIC[name]
    call, graphs = compiled(function, prefers=is_ours)
    for rows in (48, 7, 201):
        values = inputs(rows)
        mark_dynamic(values, inputs(rows + 1))
        assert_close(call(*values), REFERENCES.get(function, function), values)
    (lowered,) = graphs
    code = lowered.code.split("def call")[1]
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
    "name", ["batches of any size", "pair", "mixed, fused", "integers", "grouped", "scaled rows"]
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
    assert "cutlass_api" not in lowered.code.split("def call")[1]
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


def test_what_our_kernels_do_not_serve_still_compiles(enabled) -> None:
    a, b = (torch.randint(-9, 9, (64, 64), dtype=torch.int64) for _ in range(2))
    lowered = lower(torch.mm, [a, b])
    assert "cutlass_api" not in lowered.code


# ---- products of one row or column ---------------------------------------------------------------

#: What max-autotune sets: Inductor then decomposes products of one row or column.
TUNED = {"coordinate_descent_tuning": True}


VECTORS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "row": (lambda x, w: torch.relu(F.linear(x, w)), [(1, 256), (320, 256)]),
    "batch of one row": (
        lambda x, w, y: y + F.linear(x, w),
        [(1, 1, 256), (320, 256), (1, 1, 320)],
    ),
    "column": (lambda a, b: torch.relu(a @ b), [(320, 256), (256, 1)]),
    "row, activation and residual": (
        lambda x, w, y: y + F.silu(F.linear(x, w)),
        [(1, 256), (320, 256), (1, 320)],
    ),
    "SwiGLU": (swiglu, [(1, 256), (320, 256), (320, 256)]),
    "factor of float32 arithmetic": (
        lambda x, w: torch.relu(F.linear((x.float().square() + 1).to(x.dtype), w)),
        [(1, 256), (320, 256)],
    ),
}


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("name", VECTORS)
def test_what_follows_a_product_of_one_row_or_column_is_fused(name: str, dtype, enabled) -> None:
    function, shapes = VECTORS[name]
    inputs = tensors(*shapes, dtype=dtype)
    ours = lower(function, inputs, prefers=is_ours, **TUNED)
    assert ours.code.count("extern_kernels.cutlass_api_gemm(") == 1
    (choices,) = ours.choices
    assert [is_replaced(choice) for choice in choices].count(True) == 1
    if "triton" not in ours.code.split("def call")[1]:
        assert_close(run_on_the_cpu(ours, inputs), function, inputs)
    else:  # the other product in float32, or the arithmetic of a factor
        assert name in ("SwiGLU", "factor of float32 arithmetic")
    theirs = lower(function, inputs, prefers=is_replaced, **TUNED)
    call = theirs.code.split("def call")[1]
    assert "extern_kernels" not in call and "triton_" in call, "the decomposition is inlined"


ROWS: dict[str, Callable[..., Any]] = {
    "alone": F.linear,
    "of casts to float32": lambda x, w: torch.relu(F.linear(x.float(), w.float())),
    "of computed integers": lambda x, w: torch.relu(F.linear(x, w.to(torch.int8).to(x.dtype))),
    "of wide integers": lambda x, w: torch.relu(F.linear(x, w.to(x.dtype))),
}


@pytest.mark.parametrize("fuse", [True, False], ids=["fuse", "no fusion"])
@pytest.mark.parametrize("name", [*ROWS, "followed by a reduction"])
def test_other_products_of_one_row_stay_inductor_s(name: str, fuse: bool) -> None:
    function = ROWS.get(name, lambda x, w: F.linear(x, w).sum())
    x, w = tensors((1, 256), (320, 256))
    inputs = [x, w.to(torch.int32) if name == "of wide integers" else w]
    with cutlass_api.inductor.enabled(fuse=fuse):
        lowered = lower(function, inputs, prefers=is_ours, **TUNED)
    call = lowered.code.split("def call")[1]
    assert "extern_kernels" not in call and "triton_" in call and not lowered.choices


INTEGER_ROWS: dict[str, Callable[..., torch.Tensor]] = {
    "row": lambda x, w: x @ w.to(x.dtype),
    "linear": lambda x, w: F.linear(x, w.mT.to(x.dtype)),
    "transposed cast": lambda x, w: F.linear(x, w.to(x.dtype).mT),
    "scaled": lambda x, w: torch.relu(x @ w.to(x.dtype)) * 0.125,
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("integers", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("name", INTEGER_ROWS)
def test_a_row_by_8_bit_integers_is_ours_where_faster(name, integers, dtype, enabled) -> None:
    function = INTEGER_ROWS[name]
    (x,) = tensors((1, 128), dtype=dtype)
    w = torch.randint(0, 9, (128, 96)).to(integers)
    lowered = lower(function, [x, w], prefers=is_ours, **TUNED)
    call = lowered.code.split("def call")[1]
    assert call.count("extern_kernels.cutlass_api_gemm(") == 1 and "triton" not in call
    out, reference = run_on_the_cpu(lowered, [x, w]), function(x.double(), w)
    assert (out.double() - reference).norm() < 2 * torch.finfo(dtype).eps * reference.norm()
    call = lower(function, [x, w], prefers=is_replaced, **TUNED).code.split("def call")[1]
    assert "extern_kernels" not in call and "triton_" in call, "the decomposition is inlined"


def test_a_row_of_float64_stays_inductor_s(enabled) -> None:
    inputs = tensors((1, 256), (320, 256), dtype=torch.float64)
    lowered = lower(lambda x, w: torch.relu(F.linear(x, w)), inputs, prefers=is_ours, **TUNED)
    assert "extern_kernels" not in lowered.code.split("def call")[1]


# ---- 8-bit products ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("integers", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize(
    "function",
    {
        "weight": lambda x, w: x @ w.to(x.dtype),
        "transposed": lambda x, w: F.linear(x, w.mT.to(x.dtype)),
        "first": lambda x, w: w.mT.to(x.dtype) @ x.mT,
        "scaled": lambda x, w: (x @ w.to(x.dtype)) * 0.125,
    }.items(),
    ids=lambda item: item[0],
)
def test_a_cast_of_8_bit_integers_becomes_a_mixed_product(function, integers, dtype, enabled):
    (x,) = tensors((48, 128), dtype=dtype)
    w = torch.randint(0, 9, (128, 96)).to(integers)
    lowered = lower(function[1], [x, w], prefers=is_ours)
    assert "extern_kernels.cutlass_api_gemm" in lowered.code
    assert [is_ours(choice) for choice in lowered.choices[0]].count(True) >= 1
    assert is_replaced(lowered.choices[0][-1]), "the cast and ATEN's product are offered, too"
    out = run_on_the_cpu(lowered, [x, w])
    reference = function[1](x.double(), w)
    assert (out.double() - reference).norm() < 2 * torch.finfo(dtype).eps * reference.norm()


ADDENDS: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = {
    "linear": (lambda c, x, w: F.linear(x, w.mT.to(x.dtype), c), (96,)),
    "addmm": (lambda c, x, w: torch.addmm(c, x, w.to(x.dtype)), (96,)),
    "matrix": (lambda c, x, w: torch.addmm(c, x, w.to(x.dtype), alpha=0.5, beta=2), (48, 96)),
    "relu": (lambda c, x, w: torch.relu(F.linear(x, w.mT.to(x.dtype), c)), (96,)),
    "first": (lambda c, x, w: torch.addmm(c, w.mT.to(x.dtype), x.mT), (48,)),
}


@pytest.mark.parametrize("fuse", [True, False], ids=["fuse", "no fusion"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ADDENDS)
def test_an_addend_of_a_mixed_product_is_fused(name: str, dtype: torch.dtype, fuse: bool) -> None:
    function, shape = ADDENDS[name]
    c, x = tensors(shape, (48, 128), dtype=dtype)
    w = torch.randint(-9, 9, (128, 96), dtype=torch.int8)
    with cutlass_api.inductor.enabled(fuse=fuse):
        lowered = lower(function, [c, x, w], prefers=is_ours)
        slower = lower(function, [c, x, w], prefers=is_replaced)
    assert lowered.code.count("epilogue='def epilogue") == 1
    has_pointwise = name == "relu" and not fuse
    assert ("triton" in lowered.code.split("def call")[1]) == has_pointwise
    # torch 2.11 has a choice of its own for a bias.
    assert re.search(r"extern_kernels\.(bias_)?addmm\(", slower.code)
    assert "cutlass_api" not in slower.code
    if has_pointwise:  # which Triton does not run on the CPU
        return
    out, reference = run_on_the_cpu(lowered, [c, x, w]), function(c.double(), x.double(), w)
    assert (out.double() - reference).norm() < 2 * torch.finfo(dtype).eps * reference.norm()


def test_an_addend_that_does_not_count_stays_torch_s(enabled) -> None:
    """torch does not read it, not even a NaN; an epilogue would."""
    c, x = tensors((48, 96), (48, 128))
    w = torch.randint(-9, 9, (128, 96), dtype=torch.int8)
    lowered = lower(lambda c, x, w: torch.addmm(c, x, w.to(x.dtype), beta=0), [c, x, w])
    assert "mm_epilogue" not in str(lowered.graph) and "epilogue=" not in lowered.code


def test_casts_that_are_needed_or_computed_stay_inductor_s(enabled) -> None:
    (x,) = tensors((48, 128))
    w = torch.randint(-9, 9, (128, 96), dtype=torch.int8)

    def shared(x, w):
        wide = w.to(x.dtype)
        return x @ wide, (2 * x) @ wide

    def computed(x, w):
        return x @ ((w & 15) - 8).to(torch.int8).to(x.dtype)

    for function in (shared, computed):
        targets = [node.target for node in lower(function, [x, w]).graph.nodes]
        assert torch.ops.cutlass_api.mixed_mm.default not in targets, function


def test_a_mixed_product_that_is_slower_stays_torch_s(enabled) -> None:
    (x,) = tensors((48, 128))
    w = torch.randint(-9, 9, (128, 96), dtype=torch.int8)
    lowered = lower(lambda x, w: x @ w.to(x.dtype), [x, w], prefers=is_replaced)
    assert "extern_kernels.mm(" in lowered.code and "cutlass_api" not in lowered.code


def test_a_scaled_product_of_one_row_has_scales_of_columns(enabled) -> None:
    a, b = (x.to(torch.float8_e4m3fn) for x in tensors((1, 128), (96, 128)))
    inputs = [a, b, torch.rand(1, 1) + 0.5, torch.rand(1, 96) + 0.5]

    def function(a, b, scale_a, scale_b):
        return torch._scaled_mm(a, b.mT, scale_a, scale_b, out_dtype=torch.bfloat16)

    out = run_on_the_cpu(lower(function, inputs, prefers=is_ours), inputs)
    reference = (a.double() @ b.double().mT) * inputs[2].double() * inputs[3].double()
    assert (out.double() - reference).norm() < 2**-7 * reference.norm()
    assert "_scaled_mm" in lower(function, inputs, prefers=is_replaced).code


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("kind", ["tensor", "rows"])
def test_scaled_products_are_ours_where_faster(kind: str, has_bias: bool, enabled) -> None:
    a, b, bias = tensors((48, 128), (96, 128), (96,))
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    scale_a = torch.tensor(0.5) if kind == "tensor" else torch.rand(48, 1) + 0.5
    scale_b = torch.tensor(2.0) if kind == "tensor" else torch.rand(1, 96) + 0.5
    inputs = [a, b, scale_a, scale_b, *([bias] if has_bias else [])]

    def function(a, b, *others):
        return torch._scaled_mm(a, b.mT, *others, out_dtype=torch.bfloat16)

    lowered = lower(function, inputs, prefers=is_ours)
    assert "extern_kernels.cutlass_api_gemm" in lowered.code
    out = run_on_the_cpu(lowered, inputs)
    reference = (a.double() @ b.double().mT) * scale_a.double() * scale_b.double()
    reference = reference + bias.double() if has_bias else reference
    assert (out.double() - reference).norm() < 2**-7 * reference.norm()
    slower = lower(function, inputs, prefers=is_replaced)
    assert "extern_kernels._scaled_mm" in slower.code or "aten._scaled_mm" in slower.code


@pytest.mark.parametrize("use_fast_accum", [False, True])
def test_fast_sums_are_offered_where_torch_may_use_them(use_fast_accum: bool, enabled) -> None:
    a, b = (x.to(torch.float8_e4m3fn) for x in tensors((4096, 512), (4096, 512)))
    one = torch.ones(())

    def function(a, b, scale_a, scale_b):
        return torch._scaled_mm(
            a, b.mT, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=use_fast_accum
        )

    lowered = lower(function, [a, b, one, one], prefers=is_ours)
    assert ("fast_sums=True" in lowered.code) == use_fast_accum
    names = [getattr(choice, "description", "") for of in lowered.choices for choice in of]
    assert any("_fast" in name for name in names) == use_fast_accum


@pytest.mark.parametrize("rows, columns", [(1, 128), (1, 1), (128, 1)])
def test_scaled_products_of_blocks_are_ours_where_faster(rows: int, columns: int, enabled) -> None:
    a, b = (x.to(torch.float8_e4m3fn) for x in tensors((144, 256), (160, 256)))
    scale_a = torch.rand(-(-144 // rows), 2) + 0.5
    scale_b = (torch.rand(-(-160 // columns), 2) + 0.5).t()
    inputs = [a, b, scale_a, scale_b]

    def function(a, b, scale_a, scale_b):
        return torch._scaled_mm(a, b.mT, scale_a, scale_b, out_dtype=torch.bfloat16)

    lowered = lower(function, inputs, prefers=is_ours)
    assert "scale_blocks" in lowered.code
    out = run_on_the_cpu(lowered, inputs)
    left = a.double() * scale_a.repeat_interleave(rows, 0)[:144].repeat_interleave(128, 1)
    right = scale_b.repeat_interleave(128, 0).repeat_interleave(columns, 1)[:, :160]
    reference = left @ (b.double().mT * right)
    assert (out.double() - reference).norm() < 2**-7 * reference.norm()


@pytest.mark.parametrize("use_fast_accum", [False, True])
def test_scaled_grouped_products_are_ours_where_faster(use_fast_accum: bool, enabled) -> None:
    a, b = (x.to(torch.float8_e4m3fn) for x in tensors((256, 512), (2, 512, 512)))
    rows, columns = torch.rand(256) + 0.5, torch.rand(2, 512) + 0.5
    inputs = [a, b, rows, columns, torch.tensor([100, 256], dtype=torch.int32)]

    def function(a, b, rows, columns, offsets):
        return torch._scaled_grouped_mm(
            *(a, b.mT, rows, columns, offsets),
            out_dtype=torch.bfloat16,
            use_fast_accum=use_fast_accum,
        )

    lowered = lower(function, inputs, prefers=is_ours)
    assert "extern_kernels.cutlass_api_scaled_grouped_gemm" in lowered.code
    names = [getattr(choice, "description", "") for of in lowered.choices for choice in of]
    assert any("_fast" in name for name in names) == use_fast_accum
    out = run_on_the_cpu(lowered, inputs)
    left, right = a.double() * rows[:, None], b.double().mT * columns[:, None]
    reference = torch.cat([left[:100] @ right[0], left[100:] @ right[1]])
    assert (out.double() - reference).norm() < 2**-7 * reference.norm()
    slower = lower(function, inputs, prefers=is_replaced)
    assert "_scaled_grouped_mm" in slower.code
    assert "extern_kernels.cutlass_api" not in slower.code


def test_other_8_bit_products_stay_torch_s(enabled) -> None:
    (x,) = tensors((2, 48, 128))
    w = torch.ones(2, 128, 96, dtype=torch.int8)
    lowered = lower(lambda x, w: torch.bmm(x, w.to(x.dtype)), [x, w], prefers=is_ours)
    assert "triton_poi" in lowered.code and has_ours(lowered), "the cast is a kernel of its own"


@pytest.mark.parametrize("shape", [(-1,), (256, 8)], ids=["vector", "matrix"])
def test_mxfp8_products_are_ours_where_faster(shape: tuple[int, ...], enabled) -> None:
    """torch takes swizzled scales of this number in any shape."""
    a, b = (x.to(torch.float8_e4m3fn) for x in tensors((256, 256), (160, 256)))
    plain = [torch.randint(120, 130, (rows, 8), dtype=torch.uint8) for rows in (256, 160)]
    padded = [F.pad(scale, (0, 0, 0, 256 - len(scale))) for scale in plain]
    swizzled = [
        scale.view(2, 4, 32, 2, 4).permute(0, 3, 2, 1, 4).reshape(shape).contiguous()
        for scale in padded
    ]
    inputs = [a, b, *(scale.view(torch.float8_e8m0fnu) for scale in swizzled)]

    def function(a, b, scale_a, scale_b):
        return torch._scaled_mm(a, b.mT, scale_a, scale_b, out_dtype=torch.bfloat16)

    lowered = lower(function, inputs, prefers=is_ours)
    assert "32x4x4" in lowered.code
    left, right = (
        value.double() * 2.0 ** (scale.double() - 127).repeat_interleave(32, 1)
        for value, scale in zip((a, b), plain, strict=True)
    )
    reference = left @ right.mT
    error = (run_on_the_cpu(lowered, inputs).double() - reference).norm()
    assert error < 2**-7 * reference.norm()
    assert "_scaled_mm(" in lower(function, inputs, prefers=is_replaced).code


@pytest.mark.parametrize("shape", [(96,), (4, 96)], ids=["columns", "groups"])
def test_scales_of_mixed_products_stay_with_their_consumers(shape, enabled) -> None:
    (x,) = tensors((48, 128))
    w, scale = torch.randint(-9, 9, (128, 96), dtype=torch.int8), torch.rand(shape) + 0.5
    lowered = lower(lambda *args: torch.relu(cutlass_api.mixed_mm(*args)) * 2, [x, w, scale])
    targets = {node.target: node for node in lowered.graph.nodes}
    assert len(targets[torch.ops.cutlass_api.mixed_mm.default].args) == 3
    assert torch.ops.cutlass_api.mm_epilogue.default not in targets
    assert ("scale_blocks" in lowered.code) == (len(shape) == 2)
    assert "scale_b" in lowered.code


@pytest.mark.parametrize("ranks", [(3, 3), (3, 2), (2, 3)], ids=str)
def test_batches_of_8_bit_products_compile(ranks: tuple[int, int], enabled) -> None:
    def operand(rank: int, *extents: int) -> torch.Tensor:
        return tensors(((2,) if rank == 3 else ()) + extents)[0]

    x, w = operand(ranks[0], 48, 128), operand(ranks[1], 128, 96)
    integers, scale = (8 * w).to(torch.int8), torch.rand(96) + 0.5
    inputs = [x, integers, scale]
    out = run_on_the_cpu(lower(lambda *args: cutlass_api.mixed_mm(*args), inputs), inputs)
    assert_close(out, lambda x, w, scale: x @ (w * scale), inputs)

    a, b, one = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn), torch.ones(())

    def scaled(a, b, one):
        return cutlass_api.scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)

    out = run_on_the_cpu(lower(scaled, [a, b, one]), [a, b, one])
    assert_close(out, lambda a, b, one: a @ b, [a, b, one])

    def integer(a, b, scale):
        return cutlass_api.int8_mm(a, b, scale_b=scale[None], out_dtype=torch.float16)

    inputs = [(8 * x).to(torch.int8), integers, scale]
    out = run_on_the_cpu(lower(integer, inputs), inputs)
    assert_close(out, lambda a, b, scale: a @ b * scale, inputs)


# ---- fused epilogues -----------------------------------------------------------------------------


def mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return x + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


X, W = (64, 96), (128, 96)
BLOCK = [(2, 32, 64), (96, 64), (96, 64), (64, 96)]
EPILOGUES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int]] = {
    "relu": (lambda x, w: torch.relu(F.linear(x, w)), [X, W], 1),
    "bias and exact gelu": (lambda x, w, b: F.gelu(F.linear(x, w, b)), [X, W, (128,)], 1),
    "bias, gelu, residual": (
        lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r,
        [X, W, (128,), (64, 128)],
        1,
    ),
    "gelu with tanh": (lambda x, w: F.gelu(F.linear(x, w), approximate="tanh"), [X, W], 1),
    "silu and a product": (lambda x, w, u: F.silu(F.linear(x, w)) * u, [X, W, (64, 128)], 1),
    "scale": (lambda x, w: F.linear(x, w) * 0.125, [X, W], 1),
    "a column": (lambda x, w, c: F.linear(x, w) * c, [X, W, (64, 1)], 1),
    "sigmoid and tanh": (lambda x, w: torch.sigmoid(F.linear(x, w)).tanh(), [X, W], 1),
    "rows of a batch": (
        lambda x, w, b, r: torch.relu(F.linear(x, w, b)) + r,
        [(2, 32, 96), W, (128,), (2, 32, 128)],
        1,
    ),
    "batched": (
        lambda a, b, r: torch.relu(torch.bmm(a, b)) + r,
        [(3, 32, 64), (3, 64, 96), (3, 32, 96)],
        1,
    ),
    # The first layers of a SwiGLU in one kernel, the last with the residual.
    "a SwiGLU block": (mlp, BLOCK, 2),
    "a SwiGLU of biased layers": (
        lambda x, g, b, u, c: F.silu(F.linear(x, g, b)) * F.linear(x, u, c),
        [X, W, (128,), W, (128,)],
        1,
    ),
    "the factor first": (lambda x, g, u: F.linear(x, u) * F.gelu(F.linear(x, g)), [X, W, W], 1),
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", EPILOGUES)
def test_pointwise_operations_become_an_epilogue(name: str, dtype: torch.dtype, enabled) -> None:
    function, shapes, fused = EPILOGUES[name]
    inputs = tensors(*shapes, dtype=dtype)
    lowered = lower(function, inputs, prefers=is_ours)
    assert lowered.code.count("epilogue='def epilogue") == fused
    assert "triton" not in lowered.code.split("def call")[1], "nothing is left for Triton"
    assert_close(run_on_the_cpu(lowered, inputs), function, inputs)


CASTS: dict[str, tuple[Callable[..., Any], torch.dtype, torch.dtype]] = {
    "to float32": (lambda x, w: torch.relu(F.linear(x, w)).float(), torch.bfloat16, torch.float32),
    "between halves": (
        lambda x, w: torch.relu(F.linear(x, w)).to(torch.float16),
        torch.bfloat16,
        torch.float16,
    ),
    "to a half": (
        lambda x, w: torch.relu(F.linear(x, w)).to(torch.bfloat16),
        torch.float32,
        torch.bfloat16,
    ),
    "in the middle": (
        lambda x, w: torch.tanh(F.linear(x, w).float()).to(torch.bfloat16),
        torch.bfloat16,
        torch.bfloat16,
    ),
}


@pytest.mark.parametrize("name", CASTS)
def test_casts_are_part_of_the_epilogue(name: str, enabled) -> None:
    function, dtype, stored = CASTS[name]
    inputs = tensors(X, W, dtype=dtype)
    lowered = lower(function, inputs, prefers=is_ours)
    assert lowered.code.count("epilogue='def epilogue") == 1
    assert "triton" not in lowered.code.split("def call")[1]
    out = run_on_the_cpu(lowered, inputs)
    assert out.dtype == stored
    reference = torch.tanh if name == "in the middle" else torch.relu
    assert_close(out, lambda x, w: reference(F.linear(x, w)), inputs)


def trained(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def test_training_has_ours_forward_and_backward(enabled) -> None:
    """The backward pass needs the sum before GELU: only what follows it can be fused."""
    inputs = tensors(X, W, (128,))
    forward, backward = lower_training(trained, inputs, prefers=is_ours)
    for lowered, products in (forward, 1), (backward, 2):
        calls = lowered.code.split("def call")[1].count("extern_kernels.cutlass_api_")
        assert len(lowered.choices) == calls == products
        assert all(any(map(is_ours, choices)) for choices in lowered.choices)


def test_training_fuses_what_the_backward_pass_does_not_need(enabled) -> None:
    """The gradient of ReLU needs its result, and that of the scale nothing."""
    forward, _ = lower_training(lambda x, w: relu_of_linear(x, w), tensors(X, W), prefers=is_ours)
    assert forward.code.count("epilogue='def epilogue") == 1


def test_the_unfused_operations_are_timed_and_inlined_if_faster(enabled) -> None:
    inputs = tensors(X, W, (128,))
    lowered = lower(lambda x, w, b: F.gelu(F.linear(x, w, b)), inputs, prefers=is_replaced)
    assert any(is_replaced(choice) for choices in lowered.choices for choice in choices)
    call = lowered.code.split("def call")[1]
    assert "epilogue=" not in call and "triton_" in call
    # The inlined product is autotuned with our kernels, too.
    assert any(
        is_ours(choice) and "epilogue" not in choice.kwargs
        for choices in lowered.choices
        for choice in choices
    )


@pytest.mark.parametrize("shape", [X, (2, 32, 96)], ids=str)
def test_two_products_that_meet_are_offered_as_one_kernel_as_two_and_unfused(shape, enabled):
    inputs = tensors(shape, W, W)
    dual = lower(swiglu, inputs, prefers=is_dual)
    (choices,) = dual.choices
    assert [choice.name for choice in choices if is_replaced(choice)] == [
        "cutlass_api_replaced_0",
        "cutlass_api_replaced_1",
    ]
    assert sum(map(is_dual, choices)) == OFFERED
    assert dual.code.count("extern_kernels.cutlass_api_gemm(") == 1
    assert_close(run_on_the_cpu(dual, inputs), swiglu, inputs)
    # The product of `up`, then that of `gate` with the rest as its epilogue.
    two = lower(
        swiglu,
        inputs,
        prefers=lambda choice: (
            choice.name == "cutlass_api_replaced_1" or (is_ours(choice) and not is_dual(choice))
        ),
    )
    assert two.code.count("extern_kernels.cutlass_api_gemm(") == 2
    assert two.code.count("epilogue=") == 1 and "product(" not in two.code
    assert "triton" not in two.code.split("def call")[1]
    error = run_on_the_cpu(two, inputs).double() - run_on_the_cpu(dual, inputs).double()
    assert error.norm() < 2**-7 * run_on_the_cpu(dual, inputs).double().norm()
    unfused = lower(swiglu, inputs, prefers=lambda choice: choice.name == "cutlass_api_replaced_0")
    call = unfused.code.split("def call")[1]
    assert "epilogue=" not in call and "triton_" in call


APART: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "different inputs": (
        lambda x, y, g, u: F.silu(F.linear(x, g)) * F.linear(y, u),
        [X, X, W, W],
    ),
    "an odd number of columns": (swiglu, [X, (100, 96), (100, 96)]),
    "row-major weights": (lambda x, g, u: F.silu(x @ g) * (x @ u), [X, (96, 128), (96, 128)]),
    "one product is needed elsewhere": (
        lambda x, g, u: (F.silu(F.linear(x, g)) * (y := F.linear(x, u)), y.sum()),
        [X, W, W],
    ),
    "different columns": (
        lambda x, g, u: F.silu(F.linear(x, g)) * F.linear(x, u)[:, :1],
        [X, W, W],
    ),
    "queries and keys": (
        lambda x, g, u: torch.cat([F.linear(x, g), F.linear(x, u)], 1),
        [X, W, W],
    ),
}


@pytest.mark.parametrize("name", APART)
def test_other_pairs_of_products_stay_apart(name: str, enabled) -> None:
    function, shapes = APART[name]
    assert "product(" not in str(lower(function, tensors(*shapes)).graph)


def test_float32_products_stay_apart(enabled) -> None:
    assert "product(" not in str(lower(swiglu, tensors(X, W, W, dtype=torch.float32)).graph)


UNFUSED: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "the product is used elsewhere": (
        lambda x, w: (y := F.linear(x, w)).relu() + y.mT.contiguous().mT.sum(),
        [X, W],
    ),
    "another shape": (lambda x, w: F.linear(x, w).mT.contiguous(), [X, W]),
    "a reduction": (lambda x, w: F.linear(x, w).softmax(-1), [X, W]),
    "nothing behind it": (lambda x, w: F.linear(x, w), [X, W]),
}


@pytest.mark.parametrize("name", UNFUSED)
def test_other_operations_are_left_alone(name: str, enabled) -> None:
    function, shapes = UNFUSED[name]
    lowered = lower(function, tensors(*shapes))
    assert "mm_epilogue" not in str(lowered.graph)


def test_fusion_can_be_switched_off() -> None:
    with cutlass_api.inductor.enabled(fuse=False):
        lowered = lower(lambda x, w: torch.relu(F.linear(x, w)), tensors(X, W))
    assert "mm_epilogue" not in str(lowered.graph)


def test_an_operand_that_depends_on_the_product_is_no_operand(enabled) -> None:
    """relu(y) * max(y): the maximum needs the whole product."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.linear(x, w)
        return torch.relu(y) * y.amax()

    lowered = lower(function, tensors(X, W))
    assert "mm_epilogue" not in str(lowered.graph)


# ---- grouped products ----------------------------------------------------------------------------


@pytest.mark.parametrize("prefers", [is_ours, is_replaced], ids=["ours", "ATEN"])
def test_a_grouped_product_is_timed_beside_aten(prefers: Callable[[Any], bool], enabled) -> None:
    a, b = tensors((300, 64), (5, 96, 64))
    offsets = torch.tensor([64, 64, 200, 256, 300], dtype=torch.int32)

    def function(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, b.mT, offs=offsets)

    lowered = lower(function, [a, b, offsets], prefers=prefers)
    if prefers is is_replaced:
        assert "extern_kernels._grouped_mm(" in lowered.code
        return
    assert "extern_kernels.cutlass_api_grouped_gemm(" in lowered.code
    out = run_on_the_cpu(lowered, [a, b, offsets])
    ends = [0, *offsets.tolist()]
    for group, (start, end) in enumerate(pairwise(ends)):
        if start < end:
            assert_close(out[start:end], lambda x, w: x @ w.mT, [a[start:end], b[group]])


# ---- switching on and off ------------------------------------------------------------------------


class EarlierPass(CustomGraphPass):
    calls = 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        EarlierPass.calls += 1

    def uuid(self) -> str:
        return "earlier"


class EarlierChoices(InductorChoices):
    def uuid(self) -> str:
        return "earlier"

    def triton_kernel_kwargs(self, *args: Any) -> Any:
        return "mine"


def test_disable_restores_what_was_configured() -> None:
    earlier = EarlierPass()
    with config.patch(post_grad_custom_post_pass=earlier, inductor_choices_class=EarlierChoices):
        with cutlass_api.inductor.enabled():
            assert cutlass_api.inductor.is_enabled() == cutlass_api.inductor.Options()
            lower(torch.mm, tensors((32, 32), (32, 32)))
            assert EarlierPass.calls == 1
            assert config.post_grad_custom_post_pass.uuid()[-1] == "earlier"
            assert V.choices.triton_kernel_kwargs(None, None, None, {}) == "mine"
            with cutlass_api.inductor.enabled(candidates=1, fuse=False):
                assert cutlass_api.inductor.is_enabled() == cutlass_api.inductor.Options(1, False)
                assert not config.post_grad_custom_post_pass.cutlass_api_options.fuse
            assert cutlass_api.inductor.is_enabled() == cutlass_api.inductor.Options()
        assert cutlass_api.inductor.is_enabled() is None
        assert config.post_grad_custom_post_pass is earlier
        assert config.inductor_choices_class is EarlierChoices
    cutlass_api.inductor.disable()  # does nothing
    assert "cutlass_api" not in lower(torch.mm, tensors((32, 32), (32, 32))).code


def in_a_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def names_ours() -> bool:
    """Whether the calling thread offers a plain product of ours, or fuses one."""
    product, fused = lower(torch.mm, tensors(X, W[::-1])), lower(relu_of_linear, tensors(X, W))
    offers = any(is_ours(choice) for choices in product.choices for choice in choices)
    assert offers == ("mm_epilogue" in str(fused.graph)), "half of the integration is in force"
    return offers


def test_a_thread_reports_what_is_in_force_in_it(enabled) -> None:
    options = cutlass_api.inductor.Options()

    def report() -> tuple[bool, bool]:
        return cutlass_api.inductor.is_enabled() == options, names_ours()

    def report_with_a_handler() -> tuple[bool, bool]:
        V.set_choices_handler(InductorChoices())  # as in a thread that has compiled before
        return report()

    # Up to PyTorch 2.11, the configuration belongs to the process.
    is_global = torch.__version__.startswith("2.11.")
    assert in_a_thread(report) == (is_global, is_global)
    assert in_a_thread(report_with_a_handler) == (False, False)
    assert report() == (True, True)


def test_a_thread_enables_for_itself() -> None:
    def enable_and_disable() -> list[Any]:
        found = []
        with cutlass_api.inductor.enabled(candidates=2):
            found += [cutlass_api.inductor.is_enabled(), names_ours()]
        return [*found, cutlass_api.inductor.is_enabled(), names_ours()]

    options = cutlass_api.inductor.Options(candidates=2)
    assert in_a_thread(enable_and_disable) == [options, True, None, False]
    assert cutlass_api.inductor.is_enabled() is None and not names_ours()


@pytest.mark.parametrize("missing", ["pass", "handler"])
def test_half_of_the_integration_is_none(missing: str, enabled) -> None:
    """Another extension replaces our pass or our handler after `enable`."""
    if missing == "pass":
        with config.patch(post_grad_custom_post_pass=None):
            assert cutlass_api.inductor.is_enabled() is None and not names_ours()
    else:
        with V.set_choices_handler(InductorChoices()):
            assert cutlass_api.inductor.is_enabled() is None and not names_ours()
    assert cutlass_api.inductor.is_enabled() is not None and names_ours()


def cache_key() -> bytes:
    """What Inductor's cache keys contain of the handler of choices."""
    register = getattr(_torch.choices, "inductor_choices_cache_key", None)
    if register is not None:
        return pickle.dumps(register(config.inductor_choices_class))
    return pickle.dumps(config.inductor_choices_class)


def test_version_and_options_are_part_of_the_cache_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [cache_key()]
    with cutlass_api.inductor.enabled():
        keys.append(cache_key())
        first = config.post_grad_custom_post_pass.uuid()
    with cutlass_api.inductor.enabled(candidates=2):
        keys.append(cache_key())
    monkeypatch.setattr(_integration, "__version__", "99.0")
    with cutlass_api.inductor.enabled():
        keys.append(cache_key())
    assert len(set(keys)) == 4
    assert cutlass_api.__version__ in first
    # A thread with the pass alone offers nothing, and must not share a graph.
    with cutlass_api.inductor.enabled(), V.set_choices_handler(InductorChoices()):
        assert config.post_grad_custom_post_pass.uuid() != first


def test_the_autotuning_cache_knows_kernels_and_versions(enabled, monkeypatch) -> None:
    (choices,) = lower(torch.mm, tensors((64, 64), (64, 64))).choices
    ours = [choice for choice in choices if is_ours(choice)]
    keys = {choice.hash_key() for choice in ours}
    monkeypatch.setattr(_candidates._core, "__version__", "99.0")
    assert len(keys | {choice.hash_key() for choice in ours}) == 2 * len(ours)


def test_a_warm_cache_serves_the_same_version_only(tmp_path: Path) -> None:
    """The second process imports only torch, and the package after its first compilation."""
    found = []
    for settings in (["enabled", "enabled"], ["torch", "enabled", "other"]):
        script = Path(__file__).parents[1] / "support" / "warm_cache.py"
        command = [sys.executable, str(script), *settings]
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        found += subprocess.check_output(command, env=environment, text=True, timeout=300).split()
    assert found == ["False", "True", "False", "True", "False"]


def test_code_of_before_is_replaced_after_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[torch.fx.Graph] = []
    monkeypatch.setattr(ProductPass, "__call__", lambda self, graph: graphs.append(graph))
    inputs = tensors((8, 16), (16, 8), dtype=torch.float32)
    compiled = torch.compile(lambda a, b: a @ b)
    with config.patch(force_disable_caches=True):
        compiled(*inputs)
        with cutlass_api.inductor.enabled():
            compiled(*inputs)
            assert not graphs, "the code of before serves"
            torch.compiler.reset()
            compiled(*inputs)
            assert len(graphs) == 1


def test_importing_the_package_does_not_import_inductor() -> None:
    code = (
        "import torch, sys, cutlass_api\n"
        "assert 'torch._inductor.select_algorithm' not in sys.modules\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_compiled_function_on_the_cpu_is_unchanged(enabled) -> None:
    """`torch.compile` before `enable`, and graphs without a CUDA tensor."""
    compiled = torch.compile(lambda x, w: torch.relu(F.linear(x, w)), mode="max-autotune")
    x, w = tensors((16, 32), (24, 32), dtype=torch.float32)
    torch.testing.assert_close(compiled(x, w), torch.relu(F.linear(x, w)))


def test_lowered_is_what_it_says() -> None:
    """Without the integration, the same harness sees none of our kernels."""
    lowered: Lowered = lower(torch.mm, tensors((64, 64), (64, 64)))
    assert "extern_kernels.mm(" in lowered.code


def test_inductor_s_autotuning_process_finds_our_functions(enabled, tmp_path) -> None:
    """With `autotune_in_subproc`, a process that imported nothing of ours unpickles the request."""
    (choices,) = lower(torch.mm, tensors((64, 64), (64, 64))).choices
    first = next(choice for choice in choices if is_ours(choice))
    (tmp_path / "request").write_bytes(pickle.dumps(first.bmreq))
    code = (
        "import pickle, sys, torch\n"
        "request = pickle.loads(open(sys.argv[1], 'rb').read())\n"
        "a, b, out = (torch.ones(64, 64, dtype=torch.bfloat16) for _ in range(3))\n"
        "request.make_run_fn(a, b, out=out)()\n"
        "assert (out == 64).all()\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "request"], check=True, timeout=120)
