"""Stacks of weights: the experts of a layer."""

from collections.abc import Sequence
from typing import TypeVar

import torch

from cutlass_api.weights._classes import Weight, described

Form = TypeVar("Form", bound=Weight)


def stack(weights: Sequence[Form]) -> Form:
    """A stack (G, N, K) of G weights of one class with fields of equal shapes and dtypes on one
    device: a copy of the fields.

    Raises ValueError for no weights, weights that differ, stacks and permutations, and TypeError
    for other objects.
    """
    for at, each in enumerate(weights):
        if not isinstance(each, Weight):
            raise TypeError(f"stack: weights[{at}] is {described(each)}; pass weights")
    if not weights:
        raise ValueError("stack: weights is empty; pass at least one weight")
    first = weights[0]
    for at, each in enumerate(weights):
        name = f"stack: weights[{at}]"
        if each.is_stack or each.permutation is not None:
            what = "is a stack" if each.is_stack else "has a permutation"
            raise ValueError(f"{name} {what}; pass weights (N, K) without permutations")
        if type(each) is not type(first):
            raise ValueError(f"{name} is {each!r} and weights[0] {first!r}; pass one class")
        for key, tensor in each.tensors().items():
            of_first = first.tensors()[key]
            for aspect in ("shape", "dtype", "device"):
                own, other = getattr(tensor, aspect), getattr(of_first, aspect)
                if own != other:
                    raise ValueError(
                        f"{name}.{key} has {aspect} {own} and that of weights[0] {other}; pass "
                        "weights of one form"
                    )
    fields = [each.tensors() for each in weights]
    return type(first)(**{key: torch.stack([each[key] for each in fields]) for key in fields[0]})
