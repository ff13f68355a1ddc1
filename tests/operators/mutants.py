"""Samples with one tensor of another shape or dtype, most of which torch refuses."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from operators.calls import Arguments

FLOATS = {torch.float32: torch.float16, torch.float64: torch.float32}


def longer(dim: int) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.cat([x, x.narrow(dim, 0, 1)], dim)


MUTATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "one more column": longer(-1),
    "one more row": longer(0),
    "one more dimension": lambda x: x.unsqueeze(0),
    "one dimension less": lambda x: x.select(0, 0),
    "one dimension more at the end": lambda x: x.unsqueeze(-1),
    "another float": lambda x: x.to(FLOATS.get(x.dtype, torch.float32)),
    "int64": lambda x: x.to(torch.int64),
    "bool": lambda x: x.to(torch.bool),
    "complex": lambda x: x.to(torch.complex64),
}


def mutants(sample: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Each tensor in turn under each mutation, with the name of the mutation."""
    flat, spec = tree_flatten(sample)
    for at, value in enumerate(flat):
        if not isinstance(value, Tensor):
            continue
        for name, mutate in MUTATIONS.items():
            try:
                changed = mutate(value)
            except (RuntimeError, IndexError):  # a number has no dimension, an empty tensor no row
                continue
            others = [*flat[:at], changed, *flat[at + 1 :]]
            yield f"{name} of tensor {at}", tree_unflatten(others, spec)
