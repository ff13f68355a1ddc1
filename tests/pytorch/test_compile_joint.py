"""Products of one matrix A in compiled graphs become one launch where our kernels are faster."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cutlass_api.bench.generated_code import launches
from support.pretended_gpu import Lowered, compiled, lower, run_on_the_cpu
from support.torch_compile import HALVES, is_ours, is_replaced, tensors
from torch._inductor.graph import GraphLowering

JOINT = "extern_kernels.cutlass_api_joint_linear("
MM = "extern_kernels.mm("
#: A, and the weights of q, k and v.
SHAPES = [(8, 96), (128, 96), (64, 96), (64, 96)]


def chained(parts: list[torch.Tensor]) -> torch.Tensor:
    """Products alone, which the CPU runs, too, and no epilogues."""
    first, *others = (part.flatten(0, -2) for part in parts)
    for other in others:
        first = (first @ first.mT) @ other
    return first


def attention(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    return chained([F.linear(x, weight) for weight in weights])


def operands(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """Small numbers, of which chains of products stay in the range of float16."""
    return [value / 8 for value in tensors(*shapes, dtype=dtype)]


def check(lowered: Lowered, inputs: list[torch.Tensor], function: Callable[..., Any]) -> None:
    """Against torch on the CPU, which rounds as often."""
    out, wanted = run_on_the_cpu(lowered, inputs), function(*inputs)
    torch.testing.assert_close(out, wanted, rtol=0.05, atol=0.02 * float(wanted.abs().max()))


def is_joint(choice: Any) -> bool:
    return is_ours(choice) and "joint" in choice.name


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize(
    "shapes",
    [
        SHAPES,
        SHAPES[:3],
        [*SHAPES, (96, 96)],
        [(2, 4, 96), *SHAPES[1:]],
        [(300, 96), (256, 96), (256, 96), (33, 96)],
        [(8, 96), (33, 96), (64, 96)],
    ],
)
def test_products_of_one_matrix_are_one_launch(shapes, dtype, enabled) -> None:
    inputs = operands(*shapes, dtype=dtype)
    lowered = lower(attention, inputs, prefers=is_joint)
    assert lowered.call.count(JOINT) == 1
    assert lowered.call.count(MM) == 2 * (len(shapes) - 2)
    check(lowered, inputs, attention)


def test_the_separate_products_are_timed_alone(enabled, monkeypatch) -> None:
    compile_to_module = GraphLowering.compile_to_module
    found: list[str] = []

    def prefers(choice: Any) -> bool:
        if is_replaced(choice):
            with monkeypatch.context() as patch:
                patch.setattr(GraphLowering, "compile_to_module", code_of)
                found.append(choice._compile_for_benchmarking().split("def call")[1])
        return not is_ours(choice)

    lowered = lower(attention, operands(*SHAPES), prefers=prefers)
    assert GraphLowering.compile_to_module is compile_to_module
    assert [launches(code).total() for code in found] == [3] and "triton" not in found[0]
    # As without us.
    assert JOINT not in lowered.call and lowered.call.count(MM) == 7


def code_of(graph: GraphLowering) -> str:
    return graph.codegen()[0].value


def of_columns(x: torch.Tensor, *factors: torch.Tensor) -> torch.Tensor:
    return chained([x @ factor for factor in factors])


def returned(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Copies of slices would be launches, too."""
    return tuple(F.linear(x, weight) for weight in weights)


def of_two(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    first, *others = weights
    return chained([F.linear(x, first), F.linear(x + 1, *others[:1])])


def by_strides(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    """Reads the storages of views of the products."""
    first, other = (F.linear(x, weight) for weight in weights)
    rows = first.view(-1).as_strided((4, 64), (128, 1), 64)
    return torch.mm(rows, other[1:].as_strided((64, 7), (1, 64)))


#: Functions, and the shapes of their inputs, of which no products are joined.
SEPARATE: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "other orders": (of_columns, [(8, 96), (96, 128), (96, 64)]),
    "results of the graph": (returned, SHAPES),
    "results read by strides": (by_strides, [(8, 96), (64, 96), (64, 96)]),
    "columns in no tiles": (attention, [(8, 96), (33, 96), (33, 96)]),
    "other matrices A": (of_two, SHAPES[:3]),
}


@pytest.mark.parametrize("name", SEPARATE)
def test_other_products_stay_separate(name: str, enabled) -> None:
    function, shapes = SEPARATE[name]
    lowered = lower(function, tensors(*shapes), prefers=is_ours)
    assert JOINT not in lowered.code and "joint_linear" not in str(lowered.graph)


def test_float32_stays_separate(enabled) -> None:
    lowered = lower(attention, tensors(*SHAPES, dtype=torch.float32), prefers=is_ours)
    assert "joint_linear" not in str(lowered.graph)


def test_more_matrices_take_more_launches(enabled) -> None:
    inputs = operands((8, 96), *[(32, 96)] * 6)
    lowered = lower(attention, inputs, prefers=is_joint)
    assert lowered.call.count(JOINT) == 2
    check(lowered, inputs, attention)


def test_one_row_stays_inductor_s(enabled) -> None:
    """Inductor fuses its products of one row with the norm before them."""
    inputs = operands((1, 96), *SHAPES[1:])
    lowered = lower(attention, inputs, prefers=is_ours, coordinate_descent_tuning=True)
    assert "joint_linear" not in str(lowered.graph)


def test_a_product_with_an_epilogue_keeps_its_launch(enabled) -> None:
    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        first, *others = weights
        return chained([torch.relu(F.linear(x, first)), *(F.linear(x, each) for each in others)])

    inputs = operands(*SHAPES)
    lowered = lower(function, inputs, prefers=is_ours)
    assert lowered.call.count(JOINT) == 1 and lowered.call.count("epilogue='def epilogue") == 1
    check(lowered, inputs, function)


def test_rows_of_any_number(enabled) -> None:
    function, graphs = compiled(attention, prefers=is_joint)
    for rows in (8, 24, 40):
        inputs = operands((rows, 96), *SHAPES[1:])
        out, wanted = function(*inputs), attention(*inputs)
        torch.testing.assert_close(out, wanted, rtol=0.05, atol=0.02 * float(wanted.abs().max()))
    assert graphs[-1].call.count(JOINT) == 1
    assert "kernel=" not in graphs[-1].call.partition(JOINT)[2].partition("\n")[0]


def test_the_operator_of_a_model_is_lowered(enabled) -> None:
    def function(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        out = torch.ops.cutlass_api.joint_linear(x, weights, [])
        return out @ out.mT

    inputs = operands(*SHAPES)
    lowered = lower(function, inputs, prefers=is_ours)
    assert lowered.call.count(JOINT) == 1
    check(lowered, inputs, function)
