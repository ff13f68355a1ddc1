"""Products of 8-bit operands and grouped products in compiled graphs."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import cutlass_api
import cutlass_api.inductor
import pytest
import torch
import torch.nn.functional as F
from support.pretended_gpu import lower, run_on_the_cpu
from support.torch_compile import (
    HALVES,
    assert_close,
    float8,
    grouped,
    grouped_reference,
    has_ours,
    integers,
    is_ours,
    is_replaced,
    scaled,
    scaled_reference,
    scales,
    tensors,
)

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
    assert ("triton" in lowered.call) == (name == "scales and bias")
    slower = lower(function, inputs, prefers=is_replaced).call
    assert "epilogue=" not in slower and "triton_" in slower
    if name == "scales and bias":  # Triton multiplies the scales
        return
    out = run_on_the_cpu(lowered, inputs)
    assert_close(out, lambda a, b, *others: follow(a @ b.mT, *others), inputs)


def test_integers_behind_a_product_of_integers_are_not_fused(enabled) -> None:
    a, b = (torch.randint(-9, 9, shape, dtype=torch.int8) for shape in ((64, 128), (96, 128)))
    for function in (
        lambda a, b: torch.relu(torch._int_mm(a, b.mT)),
        lambda a, b: torch._int_mm(a, b.mT) * 3,
        lambda a, b: torch._int_mm(a, b.mT).to(torch.bfloat16),
    ):
        assert "mm_epilogue" not in str(lower(function, [a, b]).graph)


def test_scales_of_blocks_in_e8m0_call_the_operator(enabled) -> None:
    a, b = (torch.randn(shape).to(torch.float8_e4m3fn) for shape in ((64, 256), (96, 256)))
    row, block = torch.rand(64, 2), torch.tensor([[1.0, 2.0]]).to(torch.float8_e8m0fnu)

    def function(a, b, row, block):
        return cutlass_api.scaled_mm(a, b.t(), row, block.t())

    lowered = lower(function, inputs := [a, b, row, block])
    assert "cutlass_api.scaled_mm" in lowered.call
    assert torch.equal(run_on_the_cpu(lowered, inputs), function(*inputs))


MIXED: dict[str, Callable[..., torch.Tensor]] = {
    "weight": lambda x, w: x @ w.to(x.dtype),
    "transposed": lambda x, w: F.linear(x, w.mT.to(x.dtype)),
    "first": lambda x, w: w.mT.to(x.dtype) @ x.mT,
    "scaled": lambda x, w: (x @ w.to(x.dtype)) * 0.125,
}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("narrow", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("name", MIXED)
def test_a_cast_of_8_bit_integers_becomes_a_mixed_product(name, narrow, dtype, enabled) -> None:
    function, (x,) = MIXED[name], tensors((48, 128), dtype=dtype)
    w = torch.randint(0, 9, (128, 96)).to(narrow)
    lowered = lower(function, [x, w], prefers=is_ours)
    assert "extern_kernels.cutlass_api_gemm" in lowered.code
    assert [is_ours(choice) for choice in lowered.choices[0]].count(True) >= 1
    assert is_replaced(lowered.choices[0][-1]), "the cast and ATEN's product are offered, too"
    assert_close(run_on_the_cpu(lowered, [x, w]), function, [x, w])


ADDENDS: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = {
    "linear": (lambda c, x, w: F.linear(x, w.mT.to(x.dtype), c), (96,)),
    "addmm": (lambda c, x, w: torch.addmm(c, x, w.to(x.dtype)), (96,)),
    "matrix": (lambda c, x, w: torch.addmm(c, x, w.to(x.dtype), alpha=0.5, beta=2), (48, 96)),
    "relu": (lambda c, x, w: torch.relu(F.linear(x, w.mT.to(x.dtype), c)), (96,)),
    "first": (lambda c, x, w: torch.addmm(c, w.mT.to(x.dtype), x.mT), (48,)),
}


@pytest.mark.parametrize("fuse", [True, False], ids=["fuse", "no fusion"])
@pytest.mark.parametrize("name", ADDENDS)
def test_an_addend_of_a_mixed_product_is_fused(name: str, fuse: bool) -> None:
    function, shape = ADDENDS[name]
    c, x = tensors(shape, (48, 128))
    (w,) = integers((128, 96))
    with cutlass_api.inductor.enabled(fuse=fuse):
        lowered = lower(function, [c, x, w], prefers=is_ours)
        slower = lower(function, [c, x, w], prefers=is_replaced)
    assert lowered.code.count("epilogue='def epilogue") == 1
    has_pointwise = name == "relu" and not fuse
    assert ("triton" in lowered.call) == has_pointwise
    # torch 2.11 has a choice of its own for a bias.
    assert re.search(r"extern_kernels\.(bias_)?addmm\(", slower.code)
    assert "cutlass_api" not in slower.code
    if has_pointwise:  # which Triton does not run on the CPU
        return
    assert_close(run_on_the_cpu(lowered, [c, x, w]), function, [c, x, w])


def test_an_addend_that_does_not_count_stays_torch_s(enabled) -> None:
    """torch does not read it, not even a NaN; an epilogue would."""
    c, x = tensors((48, 96), (48, 128))
    (w,) = integers((128, 96))
    lowered = lower(lambda c, x, w: torch.addmm(c, x, w.to(x.dtype), beta=0), [c, x, w])
    assert "mm_epilogue" not in str(lowered.graph) and "epilogue=" not in lowered.code


def test_casts_that_are_needed_or_computed_stay_inductor_s(enabled) -> None:
    (x,) = tensors((48, 128))
    (w,) = integers((128, 96))

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
    (w,) = integers((128, 96))
    lowered = lower(lambda x, w: x @ w.to(x.dtype), [x, w], prefers=is_replaced)
    assert "extern_kernels.mm(" in lowered.code and "cutlass_api" not in lowered.code


#: Products by weights (128, 96) that are scaled in 32 or 16 bits, and the shape of the scale.
DEQUANTIZED: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = {
    "rows": (lambda x, w, s: F.linear(x, (w.mT.float() * s).to(x.dtype)), (96, 1)),
    "columns": (lambda x, w, s: x @ (s * w.float()).to(x.dtype), (1, 96)),
    "vector": (lambda x, w, s: x @ (w.to(x.dtype) * s.to(x.dtype)), (96,)),
    "matrix": (lambda x, w, s: x @ (w.float() * s).to(x.dtype), (1, 1)),
    "scalar": (lambda x, w, s: x @ (w.float() * s).to(x.dtype), ()),
    "expanded": (lambda x, w, s: x @ (w.float() * s.expand(128, 96)).to(x.dtype), (1, 96)),
    "first": (lambda x, w, s: (w.mT.float() * s).to(x.dtype) @ x.mT, (96, 1)),
    "bias": (
        lambda x, w, s: F.linear(x, (w.mT.float() * s).to(x.dtype), s[:, 0].to(x.dtype)),
        (96, 1),
    ),
    "relu": (lambda x, w, s: torch.relu(x @ (w.float() * s).to(x.dtype)), (1, 96)),
}


@pytest.mark.parametrize(
    ("name", "rows"), [*((name, 48) for name in DEQUANTIZED), ("rows", 1), ("bias", 1)]
)
def test_a_scale_of_a_cast_weight_is_part_of_the_epilogue(name, rows, enabled) -> None:
    function, shape = DEQUANTIZED[name]
    weights = [] if name == "first" else float8((128, 96))
    weights += integers((128, 96)) if name in ("first", "rows") else []
    for w in weights:
        inputs = [*tensors((rows, 128)), w, *scales(shape)]
        lowered = lower(function, inputs, prefers=is_ours, joint_graph_constant_folding=False)
        assert lowered.code.count("epilogue='def epilogue") == 1
        (choices,) = lowered.choices
        assert w.dtype in [node.get_dtype() for node in choices[0].input_nodes]
        assert is_replaced(choices[-1]), "the scaled weight and ATEN's product are offered, too"
        if name not in ("vector", "bias"):  # Triton casts the scale
            assert_close(run_on_the_cpu(lowered, inputs), function, inputs)
    with cutlass_api.inductor.enabled(fuse=False):
        slower = lower(function, inputs, prefers=is_replaced)
    assert "cutlass_api" not in slower.call and "triton" in slower.call


def of_twice(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    wide = (w.float() * s).to(x.dtype)
    return (x @ wide) * ((2 * x) @ wide)


#: What no epilogue computes, and the shape of the scale.
OTHERS: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = {
    "along K": (lambda x, w, s: x @ (w.float() * s).to(x.dtype), (128, 1)),
    "of each element": (lambda x, w, s: x @ (w.float() * s).to(x.dtype), (128, 96)),
    "twice": (lambda x, w, s: x @ (w.float() * s * s).to(x.dtype), (1, 96)),
    "square": (lambda x, w, s: x @ (w.float() * w.float()).to(x.dtype), (1,)),
    "needed elsewhere": (of_twice, (1, 96)),
    "first": (lambda x, w, s: (w.mT.float() * s).to(x.dtype) @ x.mT, (96, 1)),
    "e5m2": (lambda x, w, s: x @ (w.float() * s).to(x.dtype), (1, 96)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_scaled_weights_in_float8_stay_inductor_s(name, enabled) -> None:
    function, shape = OTHERS[name]
    (w,) = float8((128, 96))
    w = w.to(torch.float8_e5m2) if name == "e5m2" else w
    inputs = [*tensors((48, 128)), w, *scales(shape)]
    lowered = lower(function, inputs, prefers=is_ours)
    nodes = [node for choices in lowered.choices for node in choices[0].input_nodes]
    assert {node.get_dtype() for node in nodes} == {torch.bfloat16}


#: The shapes of A, B and their scales, and of a bias.
SCALED: dict[str, list[tuple[int, ...]]] = {
    "tensors": [(48, 128), (96, 128), (), ()],
    "tensors and bias": [(48, 128), (96, 128), (), (), (96,)],
    "rows": [(48, 128), (96, 128), (48, 1), (1, 96)],
    "rows and bias": [(48, 128), (96, 128), (48, 1), (1, 96), (96,)],
    "one row": [(1, 128), (96, 128), (1, 1), (1, 96)],
    "blocks, 1 and 128": [(144, 256), (160, 256), (144, 2), (2, 2)],
    "blocks, 1 and 1": [(144, 256), (160, 256), (144, 2), (2, 160)],
    "blocks, 128 and 1": [(144, 256), (160, 256), (2, 2), (2, 160)],
}


@pytest.mark.parametrize("name", SCALED)
def test_scaled_products_are_ours_where_faster(name: str, enabled) -> None:
    a, b, scale_a, scale_b, *bias = SCALED[name]
    # torch requires scales of blocks of B whose depth is contiguous.
    (of_b,) = scales(scale_b[::-1])
    inputs = [*float8(a, b), *scales(scale_a), of_b.t() if scale_b else of_b, *tensors(*bias)]
    lowered = lower(scaled, inputs, prefers=is_ours)
    assert "extern_kernels.cutlass_api_gemm" in lowered.code
    assert ("scale_blocks" in lowered.code) == name.startswith("blocks")
    assert_close(run_on_the_cpu(lowered, inputs), scaled_reference, inputs)
    assert "_scaled_mm" in lower(scaled, inputs, prefers=is_replaced).code


@pytest.mark.parametrize("shape", [(-1,), (256, 8)], ids=["vector", "matrix"])
def test_mxfp8_products_are_ours_where_faster(shape: tuple[int, ...], enabled) -> None:
    """torch takes swizzled scales of this number in any shape."""
    a, b = float8((256, 256), (160, 256))
    plain = [torch.randint(120, 130, (rows, 8), dtype=torch.uint8) for rows in (256, 160)]
    padded = [F.pad(scale, (0, 0, 0, 256 - len(scale))) for scale in plain]
    swizzled = [
        scale.view(2, 4, 32, 2, 4).permute(0, 3, 2, 1, 4).reshape(shape).contiguous()
        for scale in padded
    ]
    inputs = [a, b, *(scale.view(torch.float8_e8m0fnu) for scale in swizzled)]
    lowered = lower(scaled, inputs, prefers=is_ours)
    assert "32x4x4" in lowered.code

    def reference(a: torch.Tensor, b: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        factors = (2.0 ** (scale.double() - 127).repeat_interleave(32, 1) for scale in plain)
        return (a * next(factors)) @ (b * next(factors)).mT

    assert_close(run_on_the_cpu(lowered, inputs), reference, inputs)
    assert "_scaled_mm(" in lower(scaled, inputs, prefers=is_replaced).code


def scaled_grouped_reference(
    a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor, offsets: Any
) -> torch.Tensor:
    return grouped_reference(a * rows[:, None], b * columns[:, :, None], offsets)


@pytest.mark.parametrize("is_grouped", [False, True], ids=["dense", "grouped"])
@pytest.mark.parametrize("use_fast_accum", [False, True])
def test_fast_sums_are_offered_where_torch_may_use_them(
    use_fast_accum: bool, is_grouped: bool, enabled
) -> None:
    options = {"out_dtype": torch.bfloat16, "use_fast_accum": use_fast_accum}
    if is_grouped:
        inputs = scaled_inputs()
    else:
        inputs = [*float8((4096, 512), (4096, 512)), torch.ones(()), torch.ones(())]

    def function(a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        multiply = torch._scaled_grouped_mm if is_grouped else torch._scaled_mm
        return multiply(a, b.mT, *others, **options)

    lowered = lower(function, inputs, prefers=is_ours)
    assert ("fast_sums=True" in lowered.code) == use_fast_accum
    names = [getattr(choice, "description", "") for of in lowered.choices for choice in of]
    assert any("_fast" in name for name in names) == use_fast_accum
    if not is_grouped:
        return
    assert "extern_kernels.cutlass_api_scaled_grouped_gemm" in lowered.code
    assert_close(run_on_the_cpu(lowered, inputs), scaled_grouped_reference, inputs)
    slower = lower(function, inputs, prefers=is_replaced)
    assert "_scaled_grouped_mm" in slower.code
    assert "extern_kernels.cutlass_api" not in slower.code


def test_other_8_bit_products_stay_torch_s(enabled) -> None:
    (x,) = tensors((2, 48, 128))
    w = torch.ones(2, 128, 96, dtype=torch.int8)
    lowered = lower(lambda x, w: torch.bmm(x, w.to(x.dtype)), [x, w], prefers=is_ours)
    assert "triton_poi" in lowered.code and has_ours(lowered), "the cast is a kernel of its own"


@pytest.mark.parametrize("shape", [(96,), (4, 96)], ids=["columns", "groups"])
def test_scales_of_mixed_products_stay_with_their_consumers(shape, enabled) -> None:
    (x,) = tensors((48, 128))
    inputs = [x, *integers((128, 96)), *scales(shape)]
    lowered = lower(lambda *args: torch.relu(cutlass_api.mixed_mm(*args)) * 2, inputs)
    targets = {node.target: node for node in lowered.graph.nodes}
    assert len(targets[torch.ops.cutlass_api.mixed_mm.default].args) == 3
    assert torch.ops.cutlass_api.mm_epilogue.default not in targets
    assert ("scale_blocks" in lowered.code) == (len(shape) == 2)
    assert "scale_b" in lowered.code


#: An operator, the same in float64, and the dtypes of its factors.
BATCHES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[torch.dtype, ...]]] = {
    "mixed_mm": (
        lambda a, b, scale: cutlass_api.mixed_mm(a, b, scale),
        lambda a, b, scale: a @ (b * scale),
        (torch.bfloat16, torch.int8),
    ),
    "scaled_mm": (
        lambda a, b, scale: cutlass_api.scaled_mm(
            *(a, b, scale[0], scale[1]), out_dtype=torch.bfloat16
        ),
        lambda a, b, scale: a @ b * scale[0] * scale[1],
        (torch.float8_e4m3fn, torch.float8_e4m3fn),
    ),
    "int8_mm": (
        lambda a, b, scale: cutlass_api.int8_mm(a, b, scale_b=scale[None], out_dtype=torch.float16),
        lambda a, b, scale: a @ b * scale,
        (torch.int8, torch.int8),
    ),
}


@pytest.mark.parametrize("batches", [((2,), (2,)), ((2,), ()), ((), (2,))], ids=str)
@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_8_bit_products_compile(name: str, batches: Any, enabled) -> None:
    function, reference, dtypes = BATCHES[name]
    shapes = [(*batches[0], 48, 128), (*batches[1], 128, 96)]
    factors = [(8 * x).to(dtype) for x, dtype in zip(tensors(*shapes), dtypes, strict=True)]
    inputs = [*factors, *scales((96,))]
    assert_close(run_on_the_cpu(lower(function, inputs), inputs), reference, inputs)


# ---- grouped products ----------------------------------------------------------------------------

ENDS = torch.tensor([64, 64, 200, 256, 300], dtype=torch.int32)


@pytest.mark.parametrize("prefers", [is_ours, is_replaced], ids=["ours", "ATEN"])
def test_a_grouped_product_is_timed_beside_aten(prefers: Callable[[Any], bool], enabled) -> None:
    inputs = [*tensors((300, 64), (5, 96, 64)), ENDS]
    lowered = lower(grouped, inputs, prefers=prefers)
    if prefers is is_replaced:
        assert "extern_kernels._grouped_mm(" in lowered.code
        return
    assert "extern_kernels.cutlass_api_grouped_gemm(" in lowered.code
    assert_close(run_on_the_cpu(lowered, inputs), grouped_reference, inputs)


def test_a_bias_of_the_product_is_refused_by_torch() -> None:
    """The pass serves none."""
    a, b, bias = tensors((300, 64), (5, 96, 64), (5, 96))
    with pytest.raises(RuntimeError, match=r"(?i)bias"):
        torch._grouped_mm(a, b.mT, offs=ENDS, bias=bias)


def test_a_dtype_of_the_result_is_served(enabled) -> None:
    def function(a: torch.Tensor, w: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, w.mT, offs=offsets, out_dtype=torch.bfloat16)

    lowered = lower(function, [*tensors((300, 64), (5, 96, 64)), ENDS], prefers=is_ours)
    assert "extern_kernels.cutlass_api_grouped_gemm(" in lowered.call


ROWS, BLOCKS = 1, 4  # of torch.nn.functional.ScalingType
needs_meta = pytest.mark.skipif(
    not torch._C._dispatch_has_kernel_for_dispatch_key("aten::_scaled_grouped_mm_v2", "Meta"),
    reason="this release of torch does not trace _scaled_grouped_mm_v2",
)


def scaled_by_recipe(*inputs: torch.Tensor, recipe: int = ROWS, swizzle: int = 0) -> torch.Tensor:
    a, b, rows, columns, offsets = inputs
    return torch._scaled_grouped_mm_v2(
        *(a, b.mT, [rows], [recipe], [swizzle], [columns], [recipe], [swizzle]),
        *(offsets, None, torch.bfloat16),
    )


def scaled_inputs() -> list[torch.Tensor]:
    offsets = torch.tensor([100, 256], dtype=torch.int32)
    return [*float8((256, 512), (2, 512, 512)), *scales((256,), (2, 512)), offsets]


@needs_meta
def test_products_with_scales_of_rows_by_recipe_are_ours_where_faster(enabled) -> None:
    inputs = scaled_inputs()
    lowered = lower(scaled_by_recipe, inputs, prefers=is_ours)
    assert "extern_kernels.cutlass_api_scaled_grouped_gemm(" in lowered.call
    assert_close(run_on_the_cpu(lowered, inputs), scaled_grouped_reference, inputs)
    slower = lower(scaled_by_recipe, inputs, prefers=is_replaced).call
    assert "aten._scaled_grouped_mm_v2" in slower and "cutlass_api" not in slower


@needs_meta
@pytest.mark.parametrize("options", [{"recipe": BLOCKS}, {"swizzle": 1}], ids=str)
def test_other_recipes_stay_torch_s(options: dict[str, int], enabled) -> None:
    lowered = lower(partial(scaled_by_recipe, **options), scaled_inputs(), prefers=is_ours)
    assert "aten._scaled_grouped_mm_v2" in lowered.call and not lowered.choices
