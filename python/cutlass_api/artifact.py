"""Compiled kernels."""

from cutlass_api._core import CompiledArtifact, Program

__all__ = ["CompiledArtifact", "Program"]
