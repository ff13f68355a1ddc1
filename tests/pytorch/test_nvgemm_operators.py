"""PyTorch's own NVGEMM backend, unmodified, over `cutlass.operators`: products and epilogues.

Inductor's lowering, scheduling and generated code are real. The answers of a GPU (its properties,
autotuning timings) are simulated. Operators of the CPU run the generated code.
"""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.nvgemm_graphs import PRODUCTS, assert_rounded_once, lower_by_nvgemm, matmul
from support.nvgemm_operators import (
    IS_2_14,
    TRIED,
    fresh_kernel_cache,  # noqa: F401, a fixture
    fuses,
    is_fused,
    is_nvgemm,
    makes_all_operators,
    operators_of_the_cpu,
    run_operators,
)
from support.pretended_gpu import Lowered, loaded_on_the_cpu
from support.torch_compile import HALVES, grouped_reference, tensors

Function = Callable[..., Any]
#: A, B, a bias, a matrix, a column, and a scalar.
SHAPES = ((192, 256), (256, 320), (320,), (192, 320), (192, 1), ())


def family(choice: Any) -> str:
    return choice.kernel.metadata.operator_name.split("_")[0]


#: All products in one dtype, and the plain ones in others.
TYPED = [(name, torch.float16) for name in PRODUCTS]
TYPED += [(name, dtype) for name in ("mm", "bmm") for dtype in (torch.bfloat16, torch.float32)]


@pytest.mark.parametrize(("name", "dtype"), TYPED)
def test_the_generated_code_computes_the_product(name: str, dtype: torch.dtype) -> None:
    function, *shapes = PRODUCTS[name]
    inputs = tensors(*shapes, dtype=dtype)
    lowered = lower_by_nvgemm(function, inputs)
    (choices,) = lowered.choices
    plain, fusing = ([c for c in choices if fuses(c) == is_efc] for is_efc in (False, True))
    assert all(map(is_nvgemm, choices)) and 1 <= len(plain) <= TRIED and len(fusing) <= TRIED + 2
    assert "async_compile.nv_universal_gemm" in lowered.code
    (out,), looked_up = run_operators(lowered, inputs)
    assert looked_up == [choices[0].kernel.metadata.operator_name]
    reference = function(*(tensor.double() for tensor in inputs))
    assert out.shape == reference.shape and out.dtype == dtype
    assert_rounded_once(out, reference)


@pytest.mark.parametrize(
    ("name", "dtype"),
    zip(["mm", "linear", "column-major A", "bmm"], 2 * HALVES, strict=True),
)
def test_the_lowering_offers_tensor_cores_for_aligned_halves(name: str, dtype: torch.dtype) -> None:
    function, *shapes = PRODUCTS[name]
    (choices,) = lower_by_nvgemm(function, tensors(*shapes, dtype=dtype)).choices
    assert set(map(family, choices)) == {"sm90"}
    assert {fuses(choice) for choice in choices} == {False, True}
    assert len({choice.kernel.metadata.design.tile_shape for choice in choices}) >= 6


@makes_all_operators
@pytest.mark.parametrize("is_linear", [False, True], ids=["row-row", "linear"])
def test_the_generated_code_computes_a_grouped_product(is_linear: bool) -> None:
    """One matrix per group of A's rows. The activation behind it is a kernel of its own."""
    a, b = tensors((200, 64), (4, 96, 64))
    offsets = torch.tensor([70, 70, 199, 200], dtype=torch.int32)
    inputs = [a, b if is_linear else b.mT.contiguous(), offsets]

    def function(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, b.mT if is_linear else b, offs=offsets)

    with pytest.warns(DeprecationWarning, match="IndexPtrGroupedGemmArguments"):
        lowered = lower_by_nvgemm(function, inputs)
    (choices,) = lowered.choices
    assert {family(choice) for choice in choices} <= {"sm90", "sm80"}
    assert len(choices) == TRIED and not any(map(fuses, choices))
    with pytest.warns(DeprecationWarning, match="IndexPtrGroupedGemmArguments"):
        (out,), looked_up = run_operators(lowered, inputs)
    assert looked_up == [choices[0].kernel.metadata.operator_name]
    assert_rounded_once(out, grouped_reference(a.double(), b.double(), offsets))


# ---- epilogues -----------------------------------------------------------------------------------


def behind(activation: Function) -> Function:
    return lambda a, b, *_: activation(a @ b)


#: What every release fuses, behind a product.
FUSED: dict[str, Function] = {
    "relu": behind(torch.relu),
    "gelu": behind(F.gelu),
    "gelu by tanh": behind(lambda x: F.gelu(x, approximate="tanh")),
    "silu": behind(F.silu),
    "sigmoid": behind(torch.sigmoid),
    "tanh": behind(torch.tanh),
    "float32 output": behind(lambda x: x.float() + 1),
    "bfloat16 output": behind(lambda x: x.bfloat16()),
    "square": behind(lambda x: x * x),
    "half as value": behind(lambda x: (x.float() * 2).half() * 3),
    "row": lambda a, b, row, c, column, scalar: a @ b * row,
    "matrix": lambda a, b, row, c, column, scalar: a @ b * c - c,
    "column": lambda a, b, row, c, column, scalar: a @ b * column,
    "addmm": lambda a, b, row, c, column, scalar: torch.addmm(row, a, b),
    "addmm of a matrix": lambda a, b, row, c, column, scalar: torch.addmm(c, a, b),
    "linear and gelu": lambda a, b, row, c, *_: F.gelu(F.linear(a, b.mT, row)),
    "addmm, matrix, relu": lambda a, b, row, c, *_: torch.relu(torch.addmm(row, a, b) * c),
}
#: What PyTorch 2.15 fuses, too.
FUSED_BY_2_15: dict[str, Function] = {
    "sin": behind(torch.sin),
    "cos": behind(torch.cos),
    "exp": behind(lambda x: torch.exp(-x.abs())),
    "sqrt": behind(lambda x: x.abs().sqrt()),
    "rsqrt": behind(lambda x: (x.abs() + 1).rsqrt()),
    "log": behind(lambda x: torch.log(x.abs() + 1)),
    "log2": behind(lambda x: torch.log2(x.abs() + 1)),
    "erfc": behind(torch.erfc),
    "clamp": behind(lambda x: x.clamp(-1, 1)),
    "leaky_relu": behind(F.leaky_relu),
    "hardswish": behind(F.hardswish),
    "softplus": behind(F.softplus),
    "mish": behind(F.mish),
    "maximum": lambda a, b, row, c, *_: torch.maximum(a @ b, c),
    "where": lambda a, b, row, c, *_: torch.where(a @ b > 0, a @ b, c),
    "scalar": lambda a, b, row, c, column, scalar: a @ b * scalar,
}


def assert_rounded(out: torch.Tensor, expected: torch.Tensor) -> None:
    """The output's type rounds once, behind functions in float32. So may the expected values'."""
    roundoff = torch.finfo(out.dtype).eps / 2
    if expected.dtype != torch.float64:
        roundoff = 2 * max(roundoff, torch.finfo(expected.dtype).eps / 2)
    torch.testing.assert_close(
        out.double(), expected.double(), rtol=1.05 * roundoff + 1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", [*FUSED, *FUSED_BY_2_15])
def test_an_epilogue_is_fused(name: str) -> None:
    function = {**FUSED, **FUSED_BY_2_15}[name]
    inputs = tensors(*SHAPES, dtype=torch.float16)
    lowered = lower_by_nvgemm(function, inputs, prefers=fuses)
    if IS_2_14 and name in FUSED_BY_2_15:
        assert not is_fused(lowered) and "nv_universal_gemm" in lowered.code
        return
    assert is_fused(lowered)
    (out,), looked_up = run_operators(lowered, inputs)
    assert "_tile" in looked_up[0]
    assert_rounded(out, function(*(tensor.double() for tensor in inputs)))


def test_an_epilogue_of_a_batch_is_fused() -> None:
    inputs = tensors((3, 64, 128), (3, 128, 96), (3, 64, 96), dtype=torch.float16)

    def function(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.bmm(a, b)) + c

    lowered = lower_by_nvgemm(function, inputs, prefers=fuses)
    assert is_fused(lowered)
    (out,), _ = run_operators(lowered, inputs)
    assert_rounded(out, function(*(tensor.double() for tensor in inputs)))


def test_a_kernel_writes_several_outputs() -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = a @ b
        return torch.relu(product), product, (product + 1).float()

    inputs = tensors(*SHAPES[:2], dtype=torch.float16)
    lowered = lower_by_nvgemm(function, inputs, prefers=fuses)
    assert is_fused(lowered)
    outputs, _ = run_operators(lowered, inputs)
    for out, expected in zip(outputs, function(*(x.double() for x in inputs)), strict=True):
        assert_rounded(out, expected)


def test_nan_passes_a_maximum() -> None:
    inputs = tensors(*SHAPES, dtype=torch.float16)
    inputs[0][3, 5] = torch.nan
    for name in ["relu", *([] if IS_2_14 else ["maximum", "clamp"])]:
        function = {**FUSED, **FUSED_BY_2_15}[name]
        (out,), _ = run_operators(lower_by_nvgemm(function, inputs, prefers=fuses), inputs)
        assert out[3].isnan().all() and not out[4].isnan().any(), name


# ---- what is left to PyTorch's kernels -----------------------------------------------------------


def groups(x: torch.Tensor) -> torch.Tensor:
    return x.view(192, 20, 16)


#: Behind a product: what no kernel fuses.
UNFUSED: dict[str, Function] = {
    "floor": torch.floor,
    "atan": torch.atan,
    "integer output": lambda x: (x * 10).int(),
    "integer as value": lambda x: x.int().float() * 0.5,
    "boolean output": lambda x: x > 0,
    "float64 output": lambda x: x.double(),
    "sum of rows": lambda x: torch.relu(x).sum(-1),
    "softmax": lambda x: torch.softmax(x, -1),
    "sum of groups": lambda x: groups(x).sum(-1),
    "maximum of groups": lambda x: groups(x).abs().amax(-1),
    "sum of groups of rows": lambda x: x.view(12, 16, 320).sum(1),
    "mean of pairs of rows": lambda x: x.view(96, 2, 320).mean(1),
    "groups by their maximum": lambda x: groups(x) / groups(x).abs().amax(-1, keepdim=True),
    "rows without their mean": lambda x: x.view(96, 2, 320) - x.view(96, 2, 320).mean(1, True),
}


@pytest.mark.parametrize("name", UNFUSED)
def test_what_no_kernel_fuses_is_left_to_torch(name: str) -> None:
    lowered = lower_by_nvgemm(
        behind(UNFUSED[name]), tensors(*SHAPES[:2], dtype=torch.float16), prefers=fuses
    )
    assert "async_compile.nv_universal_gemm(" in lowered.code
    assert "async_compile.triton(" in lowered.code
    assert "local_reduce" not in lowered.code and "_EPILOGUE_FN_SRC" not in lowered.code


def left(name: str) -> tuple[Function, list[torch.Tensor]]:
    """A function and inputs for which no operator is offered."""
    a, b, row = tensors(*SHAPES[:3], dtype=torch.float16)
    codes, weights = (x.to(torch.float8_e4m3fn) for x in tensors((256, 256), (256, 256)))
    ones = torch.ones(2048).to(torch.float8_e8m0fnu)
    one = torch.tensor(1.0)
    return {
        "float64": (matmul, [a.double(), b.double()]),
        "int64": (matmul, [a.long(), b.long()]),
        "complex": (matmul, [a.cfloat(), b.cfloat()]),
        "addmm with a factor": (lambda a, b, c: torch.addmm(c, a, b, beta=2), [a, b, row]),
        "scales of tensors": (scaled, [codes, weights, one, one]),
        "scales of blocks": (scaled, [codes, weights, ones, ones]),
        "scales of blocks, relu": (lambda *x: torch.relu(scaled(*x)), [codes, weights, ones, ones]),
    }[name]


def scaled(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(a, b.mT, x, y, out_dtype=torch.bfloat16)


LEFT = ["float64", "int64", "complex", "addmm with a factor"]
LEFT += [
    pytest.param(name, marks=makes_all_operators)
    for name in ("scales of tensors", "scales of blocks", "scales of blocks, relu")
]


@pytest.mark.parametrize("name", LEFT)
def test_products_that_are_left_to_torch(name: str) -> None:
    function, inputs = left(name)
    lowered = lower_by_nvgemm(function, inputs, prefers=is_nvgemm, backends="ATEN,NVGEMM")
    assert not any(is_nvgemm(choice) for choices in lowered.choices for choice in choices)
    assert "nv_universal_gemm" not in lowered.code


# ---- repeated calls ------------------------------------------------------------------------------


def lower_bias_and_relu(inputs: list[torch.Tensor]) -> tuple[Function, Lowered]:
    def function(a: torch.Tensor, b: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.addmm(row, a, b))

    return function, lower_by_nvgemm(function, inputs, prefers=fuses)


@pytest.mark.parametrize("has_epilogue", [False, True])
def test_repeated_calls_compute_of_their_own_tensors(has_epilogue: bool) -> None:
    """torch keeps the arguments of the first call, and replaces their tensors in later ones."""
    inputs = tensors(*SHAPES[:3], dtype=torch.float16)
    if has_epilogue:
        function, lowered = lower_bias_and_relu(inputs)
    else:
        function, inputs = matmul, inputs[:2]
        lowered = lower_by_nvgemm(function, inputs)
    with operators_of_the_cpu(), loaded_on_the_cpu(lowered) as call:
        for seed in range(4):
            torch.manual_seed(seed)
            values = [torch.randn(x.shape).to(x.dtype) for x in inputs]
            (out,) = call(list(values))
            assert_rounded(out, function(*(x.double() for x in values)))


@pytest.mark.parametrize("has_epilogue", [False, True])
def test_no_tensor_outlives_its_call(has_epilogue: bool) -> None:
    """A CUDA graph cannot be captured while an object holds a tensor of its pool."""
    shapes = SHAPES[:3] if has_epilogue else SHAPES[:2]
    inputs = tensors(*shapes, dtype=torch.float16)
    lowered = lower_bias_and_relu(inputs)[1] if has_epilogue else lower_by_nvgemm(matmul, inputs)
    gc.collect()
    gc.disable()
    try:
        with operators_of_the_cpu(), loaded_on_the_cpu(lowered) as call:
            for _ in range(3):
                values = tensors(*shapes, dtype=torch.float16)
                references = [weakref.ref(x) for x in values]
                outputs = call(values)
                references.append(weakref.ref(outputs[0]))
                del outputs
                values.clear()
                assert [each() for each in references] == [None] * len(references)
    finally:
        gc.enable()
