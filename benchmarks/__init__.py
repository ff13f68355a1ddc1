"""Benchmarks that report on this project. ``python -m benchmarks --help`` lists the commands."""
