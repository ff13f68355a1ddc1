"""What the tests of `cutlass_api.inductor` share: choices, functions, inputs and references."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from cutlass_api.inductor import Options, _candidates, _lowering

from support.pretended_gpu import Lowered

HALVES = [torch.float16, torch.bfloat16]
OFFERED = Options().candidates
#: Two factors of `relu_of_linear`.
X, W = (64, 96), (128, 96)
Shapes = list[tuple[int, ...]]
#: Functions, and the shapes of their inputs, by name.
Cases = dict[str, tuple[Callable[..., Any], Shapes]]


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


def float8(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [value.to(torch.float8_e4m3fn) for value in tensors(*shapes)]


def scales(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [value.abs() + 0.5 for value in tensors(*shapes, dtype=torch.float32)]


def integers(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [(9 * value).to(torch.int8) for value in tensors(*shapes)]


def assert_close(out: torch.Tensor, function: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Against float64, with the tolerance of a few roundings of the output's type."""
    reference = function(*(value.double() for value in inputs))
    assert out.shape == reference.shape
    error = (out.double() - reference).norm() / reference.norm()
    assert error < 2 * torch.finfo(out.dtype).eps


def relu_of_linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.linear(x, w))


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def scaled(a: torch.Tensor, b: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(a, b.mT, *others, out_dtype=torch.bfloat16)


def scaled_reference(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: Any = 0
) -> torch.Tensor:
    """`scaled` in float64, of scales of a tensor, rows and columns, or blocks of 128 along K."""

    def expanded(scale: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        for dim, extent in enumerate(like.shape if scale.dim() else ()):
            repeats = 128 if 1 < scale.shape[dim] < extent else -(-extent // scale.shape[dim])
            scale = scale.repeat_interleave(repeats, dim).narrow(dim, 0, extent)
        return scale

    return (a * expanded(scale_a, a)) @ (b.mT * expanded(scale_b, b.mT)) + bias


def grouped(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch._grouped_mm(a, b.mT, offs=offsets)


def grouped_reference(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    ends = [0, *offsets.int().tolist()]
    return torch.cat([a[i:j] @ w.mT for w, (i, j) in zip(b, pairwise(ends), strict=True)])
