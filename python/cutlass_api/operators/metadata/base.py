"""The description of an operator."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cutlass_api import metadata
from cutlass_api._core import Status
from cutlass_api.operators.arch import TargetSm
from cutlass_api.operators.arguments.base import no_subject
from cutlass_api.operators.metadata.design import DesignMetadata
from cutlass_api.operators.metadata.epilogue import EpilogueMetadata

if TYPE_CHECKING:
    from cutlass_api.operators.base import Operator


@dataclass
class OperatorMetadata:
    """The description of an operator.

    - ``operator_name``: unique among all operators.
    - ``operator_class``: its class. ``operator_class(metadata)`` is the operator.
    - ``supported_targets``: the targets that it is compiled for, and with them the targets that
      they are portable to. An operator of the CPU has none.
    - ``operands``: the metadata of its operands, such as :class:`GemmOperandsMetadata`.
    - ``design``: its configuration.
    - ``epilogue``: the fused epilogue, or None.
    """

    operator_name: str
    operator_class: "type[Operator]"
    supported_targets: list[TargetSm]
    operands: Any
    design: DesignMetadata | None = None
    epilogue: EpilogueMetadata | metadata.EpilogueMetadata | None = None

    @property
    def provider(self) -> Any:
        """The provider that has registered ``operator_class``."""
        return self.operator_class._provider

    def supports(self, args: Any, *, target_sm: TargetSm | str | None = None) -> Status:
        """Whether the operator runs on a target and serves arguments.

        ``args``: arguments, or None to check the target alone. Raises ValueError if both are None.
        """
        if args is None and target_sm is None:
            raise no_subject()
        target = TargetSm.ensure(target_sm)
        if target is not None and not target.supports_operators_from(self.supported_targets):
            names = ", ".join(map(str, self.supported_targets)) or "none"
            return Status.fail(f"target_sm is {target}; the operator supports {names}")
        if args is None:
            return Status.success()
        checks = (
            (self.design, getattr(args, "performance", None), "performance"),
            (self.epilogue, getattr(args, "epilogue", None), "epilogue"),
        )
        status: Status = self.operands.supports(args)
        for part, argument, name in checks:
            if not status:
                break
            if part is not None:
                status = part.supports(args)
            elif argument is not None:
                status = Status.fail(f"the arguments have {name}, which the operator does not")
        return status


__all__ = ["OperatorMetadata"]
