"""Benchmarks. ``python -m cutlass_api bench --help`` lists them."""
