"""Pointwise operations behind products in compiled graphs become epilogues."""

from collections.abc import Callable
from typing import Any

import cutlass_api.inductor
import pytest
import torch
import torch.nn.functional as F
from cutlass_api.bench.generated_code import launches
from support.pretended_gpu import lower, lower_training, run_on_the_cpu
from support.torch_compile import (
    HALVES,
    OFFERED,
    Cases,
    W,
    X,
    assert_close,
    is_dual,
    is_ours,
    is_replaced,
    relu_of_linear,
    swiglu,
    tensors,
)
from torch._inductor.graph import GraphLowering


def mlp(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return x + F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def gelu_of_powers(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.797885 * (x + 0.044715 * torch.pow(x, 3.0))))


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
    "squared relu": (lambda x, w: torch.relu(F.linear(x, w)).square(), [X, W], 1),
    "gelu of GPT-2": (lambda x, w, b: gelu_of_powers(F.linear(x, w, b)), [X, W, (128,)], 1),
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
    arguments = [arg for node in lowered.graph.nodes for arg in node.args if isinstance(arg, str)]
    assert len(arguments) == fused and "\n" not in "".join(arguments)
    assert "triton" not in lowered.call, "nothing is left for Triton"
    assert_close(run_on_the_cpu(lowered, inputs), function, inputs)


#: The dtypes of the operands, in the middle of the epilogue, and of the output.
CASTS = {
    "to float32": (torch.bfloat16, torch.bfloat16, torch.float32),
    "between halves": (torch.bfloat16, torch.bfloat16, torch.float16),
    "to a half": (torch.float32, torch.float32, torch.bfloat16),
    "in the middle": (torch.bfloat16, torch.float32, torch.bfloat16),
}


@pytest.mark.parametrize("dtype, between, stored", CASTS.values(), ids=CASTS)
def test_casts_are_part_of_the_epilogue(dtype, between, stored, enabled) -> None:
    inputs = tensors(X, W, dtype=dtype)

    def function(x, w):
        return torch.tanh(F.linear(x, w).to(between)).to(stored)

    lowered = lower(function, inputs, prefers=is_ours)
    assert lowered.code.count("epilogue='def epilogue") == 1
    assert "triton" not in lowered.call
    out = run_on_the_cpu(lowered, inputs)
    assert out.dtype == stored
    assert_close(out, lambda x, w: torch.tanh(F.linear(x, w)), inputs)


def test_training_has_ours_forward_and_backward(enabled) -> None:
    """The backward pass needs the sum before GELU: only what follows it can be fused."""
    inputs = tensors(X, W, (128,))
    function, _, _ = EPILOGUES["bias and exact gelu"]
    forward, backward = lower_training(function, inputs, prefers=is_ours)
    for lowered, products in (forward, 1), (backward, 2):
        calls = lowered.call.count("extern_kernels.cutlass_api_")
        assert len(lowered.choices) == calls == products
        assert all(any(map(is_ours, choices)) for choices in lowered.choices)


def test_training_fuses_what_the_backward_pass_does_not_need(enabled) -> None:
    """The gradient of ReLU needs its result, and that of the scale nothing."""
    forward, _ = lower_training(relu_of_linear, tensors(X, W), prefers=is_ours)
    assert forward.code.count("epilogue='def epilogue") == 1


def test_the_unfused_operations_are_timed_and_inlined_if_faster(enabled) -> None:
    inputs = tensors(X, W, (128,))
    lowered = lower(lambda x, w, b: F.gelu(F.linear(x, w, b)), inputs, prefers=is_replaced)
    assert any(is_replaced(choice) for choices in lowered.choices for choice in choices)
    call = lowered.call
    assert "epilogue=" not in call and "triton_" in call
    # The inlined product is autotuned with our kernels, too.
    choices = [choice for choices in lowered.choices for choice in choices]
    assert any(is_ours(choice) and "epilogue" not in choice.kwargs for choice in choices)


@pytest.mark.parametrize("shape", [X, (2, 32, 96)], ids=str)
def test_two_products_that_meet_are_offered_as_one_kernel_as_two_and_unfused(shape, enabled):
    inputs = tensors(shape, W, W)
    dual = lower(swiglu, inputs, prefers=is_dual)
    (choices,) = dual.choices
    replaced = [choice.name for choice in choices if is_replaced(choice)]
    assert replaced == ["cutlass_api_replaced_0", "cutlass_api_replaced_1"]
    assert sum(map(is_dual, choices)) == OFFERED
    assert dual.code.count("extern_kernels.cutlass_api_gemm(") == 1
    assert_close(run_on_the_cpu(dual, inputs), swiglu, inputs)
    # The product of `up`, then that of `gate` with the rest as its epilogue.

    def is_one_of_two(choice):
        return choice.name == replaced[1] or (is_ours(choice) and not is_dual(choice))

    two = lower(swiglu, inputs, prefers=is_one_of_two)
    assert two.code.count("extern_kernels.cutlass_api_gemm(") == 2
    assert two.code.count("epilogue=") == 1 and "product(" not in two.code
    assert "triton" not in two.call
    error = run_on_the_cpu(two, inputs).double() - run_on_the_cpu(dual, inputs).double()
    assert error.norm() < 2**-7 * run_on_the_cpu(dual, inputs).double().norm()
    call = lower(swiglu, inputs, prefers=lambda choice: choice.name == replaced[0]).call
    assert "epilogue=" not in call and "triton_" in call


APART: Cases = {
    "different inputs": (lambda x, y, g, u: F.silu(F.linear(x, g)) * F.linear(y, u), [X, X, W, W]),
    "an odd number of columns": (swiglu, [X, (100, 96), (100, 96)]),
    "row-major weights": (lambda x, g, u: F.silu(x @ g) * (x @ u), [X, (96, 128), (96, 128)]),
    "one product is needed elsewhere": (
        lambda x, g, u: (F.silu(F.linear(x, g)) * (y := F.linear(x, u)), y.sum()),
        [X, W, W],
    ),
    "different columns": (lambda x, g, u: F.silu(x @ g.mT) * F.linear(x, u)[:, :1], [X, W, W]),
    "queries and keys": (lambda x, g, u: torch.cat([x @ g.mT, x @ u.mT], 1), [X, W, W]),
}


@pytest.mark.parametrize("name", APART)
def test_other_pairs_of_products_stay_apart(name: str, enabled) -> None:
    function, shapes = APART[name]
    assert "product(" not in str(lower(function, tensors(*shapes)).graph)


def test_float32_products_stay_apart(enabled) -> None:
    assert "product(" not in str(lower(swiglu, tensors(X, W, W, dtype=torch.float32)).graph)


UNFUSED: Cases = {
    "the product is used elsewhere": (
        lambda x, w: (y := F.linear(x, w)).relu() + y.mT.contiguous().mT.sum(),
        [X, W],
    ),
    "another shape": (lambda x, w: F.linear(x, w).mT.contiguous(), [X, W]),
    "a truth value": (lambda x, w: F.linear(x, w) > 0, [X, W]),
    "a mask of another tensor": (
        lambda x, w, m: torch.where(m > 0, F.linear(x, w), 0),
        [X, W, (64, 128)],
    ),
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


@pytest.mark.parametrize(("function", "products"), [(relu_of_linear, 1), (swiglu, 2)])
@pytest.mark.parametrize("has_norm", [True, False])
def test_what_fuses_with_a_norm_behind_takes_no_time(
    function: Any, products: int, has_norm: bool, enabled, monkeypatch
) -> None:
    monkeypatch.setattr(GraphLowering, "compile_to_module", lambda graph: graph.codegen()[0].value)
    found: list[int] = []

    def prefers(choice: Any) -> bool:
        if is_replaced(choice) and choice.at == 0:
            code = choice._compile_for_benchmarking()
            found.append(launches(code.split("def call")[1]).total())
        return is_ours(choice)

    def layer(x: torch.Tensor, last: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        y = function(x, *weights)
        return F.rms_norm(y.float(), y.shape[-1:]).to(y.dtype) * last if has_norm else y

    lower(layer, tensors((8, 96), (128,), *[(128, 96)] * products), prefers=prefers)
    assert found == [products if has_norm else products + 1]
