"""Benchmarks. ``python -m cutlass_api bench --help`` lists them."""

__all__: list[str] = []
