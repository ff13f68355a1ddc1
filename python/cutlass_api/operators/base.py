"""The base class of operators."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, final

from cutlass_api._core import Status
from cutlass_api.operators.arch import TargetSm
from cutlass_api.operators.arguments.base import RuntimeArguments, no_arguments, no_subject
from cutlass_api.operators.workspace import AllocationRequirement

if TYPE_CHECKING:
    from cutlass_api.operators.artifact import CompiledArtifact
    from cutlass_api.operators.metadata import OperatorMetadata


class Operator(ABC):
    """A kernel behind one interface: ``supports``, ``compile``, ``run``.

    Operators of this package come from :func:`get_operators`. A subclass defines
    ``supported_args_type``, ``designed_for_min_cc``, ``_compile``, ``_run``, the class method
    ``_generate_operators``, and optionally ``_supports``, ``_get_workspace_size`` and
    ``_initialize_workspace``. :meth:`Provider.register` adds it to :func:`get_operators`.
    """

    #: The class of arguments that operators of this class serve.
    supported_args_type: ClassVar[Any]
    #: The lowest compute capability that may run operators of this class.
    designed_for_min_cc: ClassVar[int]
    #: The provider that has registered the class.
    _provider: ClassVar[Any] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raises TypeError if a concrete class lacks an attribute."""
        super().__init_subclass__(**kwargs)
        if inspect.isabstract(cls):
            return
        for name in ("supported_args_type", "designed_for_min_cc"):
            if name not in vars(cls):
                raise TypeError(f"class {cls.__name__} has no {name}; define it in the class")

    def __init__(self, metadata: "OperatorMetadata") -> None:
        self._metadata = metadata

    @property
    def metadata(self) -> "OperatorMetadata":
        """The description of the operator."""
        return self._metadata

    @final
    def supports(
        self, args: RuntimeArguments | None, target_sm: TargetSm | str | None = None
    ) -> Status:
        """A Status: truthy if the operator serves the arguments on the target, else the reason.

        ``args``: None checks the target alone. ``target_sm``: a target in place of the operands'
        device; None checks no target. A Status also fails for what are no arguments, and for both
        None. Raises ValueError and TypeError for what is no target.
        """
        target = TargetSm.ensure(target_sm)
        if args is None and target is None:
            return Status.fail(no_subject())
        if args is not None and not isinstance(args, RuntimeArguments):
            return Status.fail(no_arguments(args))
        status = self.metadata.supports(args, target_sm=target)
        return self._supports(args, target) if status else status

    @final
    def compile(
        self, args: RuntimeArguments, target_sm: TargetSm | str | None = None
    ) -> "CompiledArtifact":
        """Compiles the operator for arguments. ``target_sm``: None compiles for their device."""
        return self._compile(args, TargetSm.ensure(target_sm))

    @final
    def run(
        self,
        args: RuntimeArguments,
        compiled_artifact: "CompiledArtifact | None" = None,
        stream: Any = None,
        workspace: Any = None,
        assume_supported_args: bool = False,
    ) -> Any:
        """Runs the operator on arguments. Returns what ``_run`` of a subclass returns.

        - ``compiled_artifact``: from :meth:`compile`; None compiles.
        - ``stream``: a ``torch.cuda.Stream``, a ``CUstream``, an integer handle; None: the current
          stream of the framework that owns the operands of an operator of this package, and the
          null stream of other operators: ``CUstream(0)``, or 0 without ``cuda.bindings``.
        - ``workspace``: a :class:`Workspace`, or a tensor, of :meth:`get_workspace_size`; None
          allocates it if an operator of this package needs it.
        - ``assume_supported_args``: skips :meth:`supports`.

        Raises ValueError if the operator does not serve the arguments.
        """
        if not assume_supported_args and not (status := self.supports(args)):
            raise unsupported(status)
        artifact = compiled_artifact or self.compile(args)
        return self._run(args, artifact, stream or _null_stream(), workspace)

    @final
    def get_workspace_size(self, args: RuntimeArguments) -> AllocationRequirement:
        """The device memory that :meth:`run` needs."""
        return self._get_workspace_size(args)

    @final
    def initialize_workspace(self, args: RuntimeArguments, workspace: Any) -> None:
        """Prepares workspace for its first use."""
        self._initialize_workspace(args, workspace)

    @classmethod
    @final
    def generate_operators(
        cls,
        metadata_filter: "Callable[[OperatorMetadata], bool]",
        epilogue_args: Any = None,
        target_sm: TargetSm | str | None = None,
        args: RuntimeArguments | None = None,
    ) -> "list[Operator]":
        """The operators of this class.

        - ``metadata_filter``: a predicate over their metadata.
        - ``epilogue_args``: the epilogue that they fuse, or None.
        - ``target_sm``: a target that runs them; None: any.
        - ``args``: arguments that they serve; None: any.
        """
        target = TargetSm.ensure(target_sm)
        return list(cls._generate_operators(metadata_filter, epilogue_args, target, args))

    def _supports(self, args: RuntimeArguments | None, target_sm: TargetSm | None = None) -> Status:
        """The checks of :meth:`supports` beyond the metadata."""
        return Status.success()

    @abstractmethod
    def _compile(
        self, args: RuntimeArguments, target_sm: TargetSm | None = None
    ) -> "CompiledArtifact":
        """Compiles for arguments."""

    @abstractmethod
    def _run(
        self,
        args: RuntimeArguments,
        compiled_artifact: "CompiledArtifact",
        stream: Any,
        workspace: Any = None,
    ) -> Any:
        """Launches a compiled operator on arguments that it serves."""

    @classmethod
    @abstractmethod
    def _generate_operators(
        cls,
        metadata_filter: "Callable[[OperatorMetadata], bool]",
        epilogue_args: Any = None,
        target_sm: TargetSm | None = None,
        args: RuntimeArguments | None = None,
    ) -> "Iterable[Operator]":
        """The operators of the class that pass all of these."""

    def _get_workspace_size(self, args: RuntimeArguments) -> AllocationRequirement:
        """No memory, unless a subclass defines it."""
        return AllocationRequirement.empty()

    def _initialize_workspace(self, args: RuntimeArguments, workspace: Any) -> None:
        """Raises NotImplementedError, unless a subclass defines it."""
        raise NotImplementedError(
            f"{type(self).__name__} needs no workspace to be initialized; leave the call out"
        )


def unsupported(status: Status) -> ValueError:
    """The error of an operator that does not serve arguments, with the reason."""
    return ValueError(f"Operator does not support the provided arguments: {status.error}")


@cache
def _null_stream() -> Any:
    try:
        driver: Any = import_module("cuda.bindings.driver")
    except ModuleNotFoundError:
        return 0
    return driver.CUstream(0)


__all__ = ["Operator", "unsupported"]
