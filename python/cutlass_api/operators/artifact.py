"""Compiled operators."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutlass_api.operators.arch import TargetSm
    from cutlass_api.operators.base import Operator


@dataclass
class CompiledArtifact:
    """A compiled operator. It accepts new attributes.

    - ``compiled_obj``: what the operator compiled. An operator of this package has a
      :class:`cutlass_api.artifact.CompiledArtifact`.
    - ``operator_obj``: the operator.
    - ``compiled_for``: the target; None for an operator of the CPU.
    """

    compiled_obj: Any
    operator_obj: "Operator"
    compiled_for: "TargetSm | None" = None


__all__ = ["CompiledArtifact"]
