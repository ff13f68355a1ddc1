"""Benchmarks that users can run: ``python -m cutlass_api bench --help``."""

__all__: list[str] = []
