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
    compiled_for: "TargetSm | None"
    _reused = None
    #: The kernel that is compiled. Read once: runs compare it.
    _kernel = None

    def __post_init__(self) -> None:
        self._kernel = getattr(self.compiled_obj, "kernel_obj", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.compiled_obj, self.operator_obj, self.compiled_for)

    @property
    def _nvgemm_reuse(self) -> Any:
        """The arguments, operator and lock with which PyTorch repeats a launch."""
        return self._reused

    @_nvgemm_reuse.setter
    def _nvgemm_reuse(self, reused: tuple[Any, Any, Any]) -> None:
        args, *others = reused
        detach = getattr(args, "detached", None)
        self._reused = (args if detach is None else detach(), *others)


__all__ = ["CompiledArtifact"]
