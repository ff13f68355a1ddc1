"""Compiled kernels."""

from cutlass_api._core import CompiledArtifact, Program, Resources

__all__ = ["CompiledArtifact", "Program", "Resources"]
