"""The description of an epilogue."""

from typing import Any

from cutlass_api import metadata
from cutlass_api._core import Status
from cutlass_api._faces import core_of
from cutlass_api.operators.arguments.epilogue import TracedEpilogue


class EpilogueMetadata:
    """The epilogue that an operator fuses, from :class:`EpilogueArguments`.

    It has the arguments' ``epilogue_fn``, ``tensors``, ``traced_epilogue`` and ``transports``.
    ``epilogue_args`` may also be of another class with these attributes but the last.
    """

    def __init__(self, epilogue_args: Any) -> None:
        self.epilogue_fn = epilogue_args.epilogue_fn
        self.tensors: dict[str, Any] = dict(epilogue_args.tensors)
        self.transports: dict[str, Any] = dict(getattr(epilogue_args, "transports", {}))
        of_core = metadata.EpilogueMetadata.from_args(core_of(epilogue_args))
        self._of_core = of_core or metadata.EpilogueMetadata()

    @classmethod
    def from_args(cls, args: Any) -> "EpilogueMetadata":
        """The metadata for epilogue arguments."""
        return cls(args)

    @classmethod
    def of_core(cls, of_core: Any, epilogue_args: Any) -> Any:
        """The metadata of a kernel that a search with epilogue arguments has found.

        Returns the core's if the arguments are None, or of a class without tensors.
        """
        if of_core is None or not hasattr(epilogue_args, "tensors"):
            return of_core
        self = cls(epilogue_args)
        self._of_core = of_core
        return self

    @property
    def traced_epilogue(self) -> TracedEpilogue:
        """The function as an expression graph."""
        return TracedEpilogue.of_function(self.epilogue_fn, self.tensors)

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

    def __eq__(self, other: object) -> bool:
        """Whether both fuse the same outputs, of any tensors."""
        return type(other) is type(self) and vars(other).get("_of_core") == self._of_core

    def __repr__(self) -> str:
        return f"EpilogueMetadata(epilogue={self.epilogue!r})"


__all__ = ["EpilogueMetadata"]
