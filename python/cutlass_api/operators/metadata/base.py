"""The description of an operator, and of its epilogue."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cutlass_api import metadata
from cutlass_api._core import Status
from cutlass_api.operators.arch import TargetSm
from cutlass_api.operators.metadata.design import DesignMetadata

if TYPE_CHECKING:
    from cutlass_api.operators.base import Operator


class EpilogueMetadata:
    """The epilogue that an operator fuses, from :class:`EpilogueArguments`.

    It has the arguments' ``epilogue_fn``, ``tensors``, ``traced_epilogue`` and ``transports``.
    ``epilogue_args`` may also be of another class with these attributes but the last.
    """

    def __init__(self, epilogue_args: Any) -> None:
        self.epilogue_fn = epilogue_args.epilogue_fn
        self.tensors = epilogue_args.tensors
        self.traced_epilogue = epilogue_args.traced_epilogue
        self.transports: dict[str, Any] = getattr(epilogue_args, "transports", {})
        of_core = metadata.EpilogueMetadata.from_args(epilogue_args)
        self._of_core = of_core or metadata.EpilogueMetadata()

    @classmethod
    def from_args(cls, args: Any) -> "EpilogueMetadata":
        """The metadata for epilogue arguments."""
        return cls(args)

    @property
    def epilogue(self) -> Any:
        """The outputs as expressions of the inputs, or the arguments of another class."""
        return self._of_core.epilogue

    @property
    def parameters(self) -> list[Any]:
        """The operands of the epilogue."""
        return list(self.tensors.values())

    @property
    def parameter_names(self) -> list[str]:
        """The names of ``parameters``."""
        return list(self.tensors)

    def supports(self, args: Any) -> Status:
        """Whether arguments have an epilogue, or other metadata the same one.

        The kernel itself compares the epilogue of arguments.
        """
        return self._of_core.supports(args._of_core if isinstance(args, EpilogueMetadata) else args)

    def __repr__(self) -> str:
        return f"EpilogueMetadata(epilogue={self.epilogue!r})"


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
            raise ValueError("args and target_sm are None; pass one of them")
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


__all__ = ["EpilogueMetadata", "OperatorMetadata"]
