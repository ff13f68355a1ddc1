"""Products in compiled graphs: our kernels are candidates beside ATEN's, in the installed PyTorch's
Inductor, on a machine without a GPU."""

from collections.abc import Callable
from typing import Any

import cutlass_api
import cutlass_api.inductor
import pytest
import torch
import torch.nn.functional as F
from support.pretended_gpu import FUSION_TIMINGS, lower, run_on_the_cpu
from support.torch_compile import (
    HALVES,
    OFFERED,
    Cases,
    assert_close,
    grouped,
    has_ours,
    is_ours,
    is_replaced,
    relu_of_linear,
    swiglu,
    tensors,
)

PRODUCTS: Cases = {
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
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


def test_a_kernel_that_is_chosen_with_the_fusions_runs(enabled) -> None:
    # With Triton's templates, Inductor chooses after it has lowered the graph.
    inputs = tensors((64, 128), (128, 96))
    patches: Any = {"max_autotune_gemm_backends": "ATEN,TRITON", FUSION_TIMINGS: True}
    lowered = lower(torch.mm, inputs, prefers=is_ours, **patches)
    assert "extern_kernels.cutlass_api_gemm" in lowered.call
    assert_close(run_on_the_cpu(lowered, inputs), torch.mm, inputs)


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


def test_what_our_kernels_do_not_serve_still_compiles(enabled) -> None:
    a, b = (torch.randint(-9, 9, (64, 64), dtype=torch.int64) for _ in range(2))
    lowered = lower(torch.mm, [a, b])
    assert "cutlass_api" not in lowered.code


# ---- products of one row or column ---------------------------------------------------------------

#: What max-autotune sets: Inductor then decomposes products of one row or column.
TUNED = {"coordinate_descent_tuning": True}


VECTORS: Cases = {
    "row": (lambda x, w: torch.relu(F.linear(x, w)), [(1, 256), (320, 256)]),
    "alone": (F.linear, [(1, 256), (320, 256)]),
    "batch of one row": (
        lambda x, w, y: y + F.linear(x, w),
        [(1, 1, 256), (320, 256), (1, 1, 320)],
    ),
    "column": (lambda a, b: torch.relu(a @ b), [(320, 256), (256, 1)]),
    "SwiGLU": (swiglu, [(1, 256), (320, 256), (320, 256)]),
    "norm": (
        lambda x, w: F.linear(F.rms_norm(x, x.shape[-1:]), w),
        [(1, 256), (320, 256)],
    ),
    "followed by a reduction": (lambda x, w: F.linear(x, w).sum(), [(1, 256), (320, 256)]),
    "casts to float32": (
        lambda x, w: torch.relu(F.linear(x.float(), w.float())),
        [(1, 256), (320, 256)],
    ),
    "computed integers": (
        lambda x, w: torch.relu(F.linear(x, w.to(torch.int8).to(x.dtype))),
        [(1, 256), (320, 256)],
    ),
}


@pytest.mark.parametrize("fuse", [True, False], ids=["fuse", "no fusion"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", VECTORS)
def test_products_of_one_row_or_column_stay_inductor_s(name: str, dtype, fuse) -> None:
    """Inductor decomposes them, and fuses them with what stands around them."""
    function, shapes = VECTORS[name]
    inputs = tensors(*shapes, dtype=dtype)
    theirs = lower(function, inputs, **TUNED)
    with cutlass_api.inductor.enabled(fuse=fuse):
        lowered = lower(function, inputs, prefers=is_ours, **TUNED)
    assert lowered.call == theirs.call and "triton_" in lowered.call and not lowered.choices


@pytest.mark.parametrize("dtypes", [(HALVES[0], torch.int32), (torch.float8_e4m3fn, HALVES[0])])
def test_rows_of_other_integers_and_of_float8_stay_inductor_s(dtypes, enabled) -> None:
    x, w = (torch.ones(rows, 256).to(to) for rows, to in zip((1, 320), dtypes, strict=True))

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.linear(x.to(HALVES[0]), w.to(HALVES[0])).relu()

    lowered = lower(function, [x, w], prefers=is_ours, **TUNED)
    assert "triton_" in lowered.call and not lowered.choices


INTEGER_ROWS: dict[str, Callable[..., torch.Tensor]] = {
    "row": lambda x, w: x @ w.to(x.dtype),
    "linear": lambda x, w: F.linear(x, w.mT.to(x.dtype)),
    "transposed cast": lambda x, w: F.linear(x, w.to(x.dtype).mT),
    "scaled": lambda x, w: torch.relu(x @ w.to(x.dtype)) * 0.125,
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("narrow", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("name", INTEGER_ROWS)
def test_a_row_by_8_bit_integers_is_ours_where_faster(name, narrow, dtype, enabled) -> None:
    function = INTEGER_ROWS[name]
    (x,) = tensors((1, 128), dtype=dtype)
    w = torch.randint(0, 9, (128, 96)).to(narrow)
    lowered = lower(function, [x, w], prefers=is_ours, **TUNED)
    call = lowered.call
    assert call.count("extern_kernels.cutlass_api_gemm(") == 1 and "triton" not in call
    assert_close(run_on_the_cpu(lowered, [x, w]), function, [x, w])
    call = lower(function, [x, w], prefers=is_replaced, **TUNED).call
    assert "extern_kernels" not in call and "triton_" in call, "the decomposition is inlined"


def test_a_row_of_float64_stays_inductor_s(enabled) -> None:
    inputs = tensors((1, 256), (320, 256), dtype=torch.float64)
    lowered = lower(lambda x, w: torch.relu(F.linear(x, w)), inputs, prefers=is_ours, **TUNED)
    assert "extern_kernels" not in lowered.call
