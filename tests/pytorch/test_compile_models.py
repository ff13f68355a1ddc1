"""Kernels of compiled models of transformers' library, with and without ours."""

import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import cutlass_api.inductor
import pytest
import torch
import torch.nn.functional as F
from cutlass_api.bench.generated_code import launches

pytest.importorskip("transformers")

from support.model_graphs import CASES, lower_model
from support.pretended_gpu import Lowered, lower, run_on_the_cpu
from support.properties import some
from support.torch_compile import W, X, assert_close, is_ours, tensors
from transformers.activations import ACT2FN


def launched(lowered: Lowered) -> Counter[str]:
    return launches(lowered.call)


@cache
def without_us(name: str, count: int) -> Lowered:
    """The code without our kernels, which several tests compare."""
    return lower_model(name, count, lambda choice: True)


def without_paths(lowered: Lowered) -> str:
    """The code without the folder of its files, whose names are hashes of kernels."""
    return re.sub(r"kernel path: .*/", "", lowered.code)


def with_us(name: str, count: int, prefers: Callable[[Any], bool]) -> Lowered:
    with cutlass_api.inductor.enabled():
        return lower_model(name, count, prefers)


@pytest.mark.parametrize("name, count", some(CASES))
def test_models_have_as_many_launches_as_without_us_at_most(name: str, count: int) -> None:
    theirs = launched(without_us(name, count))
    ours = launched(with_us(name, count, is_ours))
    assert any("cutlass_api" in kernel for kernel in ours)
    assert ours.total() <= theirs.total(), (ours, theirs)


@pytest.mark.parametrize("name, count", CASES[::3])
def test_where_torch_is_faster_the_code_is_that_without_us(name: str, count: int) -> None:
    theirs = without_us(name, count)
    torchs = with_us(name, count, lambda choice: not is_ours(choice))
    assert any(is_ours(choice) for choices in torchs.choices for choice in choices), "offered"
    assert launched(torchs) == launched(theirs)
    assert without_paths(torchs) == without_paths(theirs)


def test_a_model_of_one_row_compiles_as_without_us() -> None:
    """Inductor decomposes its products."""
    theirs = without_us("llama", 1)
    ours = with_us("llama", 1, is_ours)
    assert without_paths(ours) == without_paths(theirs) and not ours.choices


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_q_k_and_v_of_some_rows_are_one_launch(name: str) -> None:
    ours, theirs = with_us(name, 8, is_ours), without_us(name, 8)
    launches = launched(ours)
    assert launches["extern_kernels.cutlass_api_joint_linear"] == 1
    # Gate and up are one launch, too, with the operation behind them.
    assert launches.total() <= launched(theirs).total() - 4


#: Those that are more than one function of torch's, or that `test_compile_fusion` lacks.
ACTIVATIONS = ["gelu_10", "gelu_python", "hardswish", "laplace", "leaky_relu", "mish", "relu6"]
ACTIVATIONS += ["quick_gelu", "sqrtsoftplus"]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_of_transformers_become_epilogues(name: str) -> None:
    inputs = tensors(X, W, (128,))

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ACT2FN[name](F.linear(x, w, b))

    with cutlass_api.inductor.enabled():
        lowered = lower(function, inputs, prefers=is_ours)
    assert lowered.code.count("epilogue='def epilogue") == 1 and "triton" not in lowered.call
    assert_close(run_on_the_cpu(lowered, inputs), function, inputs)
