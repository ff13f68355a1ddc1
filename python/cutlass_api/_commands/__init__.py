"""The commands of ``python -m cutlass_api``, by group. Each module adds its parsers."""

__all__: list[str] = []
