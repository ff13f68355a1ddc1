"""The bases of requirements on all operands."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from cutlass_api._core import Status
from cutlass_api._faces import core_of
from cutlass_api.operators.utils.dtype import shown_type


@dataclass
class OperandsMetadata(ABC):
    """The base of requirements on all operands of an operation."""

    @abstractmethod
    def supports(self, args: Any) -> Status:
        """Whether arguments, or all that meet other requirements, meet these."""


class ProductOperands(OperandsMetadata):
    """What the metadata of products share."""

    #: The fields with constraints.
    _operands: ClassVar[tuple[str, ...]] = ("A", "B", "out")

    accumulator_type: Any

    def __post_init__(self) -> None:
        self.accumulator_type = shown_type(self.accumulator_type)

    @abstractmethod
    def __cutlass_operand__(self) -> Any:
        """The core's metadata without constraints, which may be of classes of the user's."""

    def supports(self, args: Any) -> Status:
        """Whether arguments, or all that meet other metadata, meet these requirements."""
        status: Status = core_of(self).supports(core_of(args))
        for name in self._operands if status else ():
            status = getattr(self, name).supports(getattr(args, name))
            if not status:
                return Status.fail(f"{name} is not supported: {status.error}")
        return status


__all__ = ["OperandsMetadata"]
