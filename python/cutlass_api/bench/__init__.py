"""Benchmarks. ``python -m cutlass_api bench --help`` lists them."""

#: Rounds in which the methods of a benchmark take turns.
ROUNDS = 15

__all__ = ["ROUNDS"]
