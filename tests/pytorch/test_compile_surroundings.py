"""The choice between an operator of ours and torch's operations counts what stands around them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from cutlass_api.bench.generated_code import launches
from cutlass_api.inductor import _surroundings
from cutlass_api.inductor._surroundings import Surroundings
from support.pretended_gpu import lower
from support.torch_compile import is_ours, is_replaced, swiglu, tensors
from torch._inductor.graph import GraphLowering

TUNED = {"coordinate_descent_tuning": True}


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x.float(), x.shape[-1:]).to(x.dtype) * weight


def block(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A residual stream, and what the next layer reads."""
    first, gate, up, down, last = weights
    x = x + F.linear(swiglu(norm(x, first), gate, up), down)
    return x, norm(x, last)


SHAPES = [(96,), (128, 96), (128, 96), (96, 128), (96,)]


def around(choice: Any) -> Surroundings:
    return choice.benchmark.func.__self__


def count(code: str) -> int:
    return launches(code.split("def call")[1]).total()


#: The launches of the region with what stands around it as torch computes both, and of the rest
#: without the region: of gate and up with the norm before them, which torch fuses; of the last
#: product with the residual and the norm behind it.
LAUNCHES = [(2, 1), (2, 1)]


def test_norms_around_a_region_of_one_row_are_timed_with_it(enabled, monkeypatch) -> None:
    monkeypatch.setattr(GraphLowering, "compile_to_module", lambda graph: graph.codegen()[0].value)
    found: list[tuple[str, str]] = []

    def prefers(choice: Any) -> bool:
        if is_replaced(choice) and choice.at == 0:
            both = around(choice)
            found.append((_surroundings._compiled(both.whole), _surroundings._compiled(both.rest)))
        return is_ours(choice)

    lower(block, tensors((1, 96), *SHAPES), prefers=prefers, **TUNED)
    assert [tuple(map(count, both)) for both in found] == LAUNCHES


def relu_of_product(x, w):
    return F.linear(x, w).relu()


@pytest.mark.parametrize("function, products", [(relu_of_product, 1), (swiglu, 2)])
@pytest.mark.parametrize("has_norm", [True, False])
def test_what_fuses_with_a_norm_behind_takes_no_time(
    function: Any, products: int, has_norm: bool, enabled, monkeypatch
) -> None:
    monkeypatch.setattr(GraphLowering, "compile_to_module", lambda graph: graph.codegen()[0].value)
    found: list[int] = []

    def prefers(choice: Any) -> bool:
        if is_replaced(choice) and choice.at == 0:
            found.append(count(choice._compile_for_benchmarking()))
        return is_ours(choice)

    def layer(x, last, *weights):
        y = function(x, *weights)
        return norm(y, last) if has_norm else y

    lower(layer, tensors((8, 96), (128,), *[(128, 96)] * products), prefers=prefers)
    assert found == [products if has_norm else products + 1]


def test_times_of_choices_are_those_with_what_stands_around(monkeypatch) -> None:
    monkeypatch.setattr(_surroundings, "_TIMES", {})
    times = {"whole": 7.0, "rest": 2.0}
    monkeypatch.setattr(_surroundings, "_milliseconds", lambda module, **_: times[module])
    monkeypatch.setattr(_surroundings, "_text", str)
    both = Surroundings("whole", "rest")  # type: ignore[arg-type]
    ours, torchs = (SimpleNamespace(benchmark=lambda *_, out: 4.0) for _ in range(2))
    both.add_to(ours, is_whole=False)
    both.add_to(torchs, is_whole=True)
    assert (ours.benchmark(out=None), torchs.benchmark(out=None)) == (6.0, 7.0)


def test_what_cannot_be_timed_does_not_count(monkeypatch) -> None:
    def fails(*_: Any, **__: Any) -> float:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(_surroundings, "_TIMES", {})
    monkeypatch.setattr(_surroundings, "_milliseconds", fails)
    monkeypatch.setattr(_surroundings, "_text", str)
    both = Surroundings("whole", "rest")  # type: ignore[arg-type]
    choice = SimpleNamespace(benchmark=lambda *_, out: 4.0)
    both.add_to(choice, is_whole=True)
    assert choice.benchmark(out=None) == 4.0


def test_equal_layers_are_timed_once(enabled) -> None:
    keys: list[str] = []

    def prefers(choice: Any) -> bool:
        if is_replaced(choice):
            keys.append(choice.hash_key())
        return is_ours(choice)

    def layers(x, *weights):
        for at in range(0, 10, 5):
            x, _ = block(x, *weights[at : at + 5])
        return x

    lower(layers, tensors((1, 96), *SHAPES, *SHAPES), prefers=prefers, **TUNED)
    # Inductor's autotuner knows the second pair of gate and up. The last region has no norm behind.
    assert len(keys) == len(set(keys)) == 3
