"""Checks of the shapes of a GEMM's arguments."""

from collections.abc import Sequence
from typing import Any

from cutlass_api._core import Status


def strip_batch_mode(dims: Sequence[int]) -> tuple[int, int]:
    """The last two of two or three dimensions. Raises ValueError for other ranks."""
    if len(dims) not in (2, 3):
        raise ValueError(f"dims is {tuple(dims)}; pass (rows, columns) or (batch, rows, columns)")
    return dims[-2], dims[-1]


def tensor_rank_2_or_3(args: Any) -> Status:
    """Whether A, B and out have rank 2 or 3, as a Status."""
    for name in ("A", "B", "out"):
        shape = getattr(args, name).shape
        if len(shape) not in (2, 3):
            return Status.fail(f"{name} has shape {tuple(shape)}; a GEMM takes rank 2 or 3")
    return Status.success()


def tensor_reduction_mode_matches(args: Any) -> Status:
    """Whether A and B have the same K, as a Status."""
    return _same("K", "A", args.A.shape[-1], "B", args.B.shape[-2])


def tensor_output_shape_matches(args: Any) -> Status:
    """Whether out has the rows of A and the columns of B, as a Status."""
    status = _same("M", "A", args.A.shape[-2], "out", args.out.shape[-2])
    return status and _same("N", "B", args.B.shape[-1], "out", args.out.shape[-1])


def _same(dimension: str, one: str, first: int, other: str, second: int) -> Status:
    if first == second:
        return Status.success()
    return Status.fail(f"dimension {dimension} is {first} in {one} and {second} in {other}")


__all__ = [
    "strip_batch_mode",
    "tensor_output_shape_matches",
    "tensor_rank_2_or_3",
    "tensor_reduction_mode_matches",
]
