"""The kernels of this package as operators of NVIDIA's ``cutlass.operators``."""

from collections.abc import Callable
from typing import Any, ClassVar

import cutlass.operators as nvidia
from cutlass.operators.workspace import AllocationRequirement, Workspace

from cutlass_api.operators.arch import TargetSm, served_cc
from cutlass_api.operators.artifact import CompiledArtifact
from cutlass_api.operators.export.arguments import REFUSALS, converted, taken
from cutlass_api.operators.export.metadata import described, status
from cutlass_api.operators.providers import families, kernels
from cutlass_api.operators.providers.checks import refuse_groups
from cutlass_api.utils import device_cc

#: The first compute capability with instructions that no kernel of this package uses.
_BLACKWELL_CC = 100


class RutlassProvider(nvidia.Provider):
    """The kernels of this package, ranked by estimated time, fastest first.

    Where another provider has an operator of compute capability 10.0 or later, this one has none.
    """

    @classmethod
    def generate_operators(
        cls,
        metadata_filter: Callable[[Any], bool] | None = None,
        epilogue_args: Any = None,
        target_sm: Any = None,
        args: Any = None,
    ) -> list[Any]:
        """The operators for a target that serve the arguments and pass the filter.

        None for arguments that this package does not serve, and for targets that it does not run
        on.
        """
        target = nvidia.TargetSm.ensure(target_sm)
        try:
            conversion = None if args is None else converted(args)
            own = families.find_operators(
                None, _own_target(target), None if conversion is None else conversion.own
            )
        except REFUSALS:
            return []
        if conversion is not None:
            conversion.kernels(None if target is None else target.cc)
        found = [operator for each in own if (operator := _exported(each, epilogue_args))]
        if metadata_filter is not None:
            found = [each for each in found if metadata_filter(each.metadata)]
        is_last = args is not None and _is_later(target) and bool(found)
        if is_last and _others_use_more(metadata_filter, epilogue_args, target, args):
            return []
        return found


class _Found(Exception):
    """Ends a search."""


def _others_use_more(
    metadata_filter: Callable[[Any], bool] | None, epilogue_args: Any, target: Any, args: Any
) -> bool:
    """Whether another provider has an operator with instructions of Blackwell or later."""

    def end(metadata: Any) -> bool:
        is_later = metadata.operator_class.designed_for_min_cc >= _BLACKWELL_CC
        if is_later and (metadata_filter is None or metadata_filter(metadata)):
            raise _Found
        return False

    try:
        for provider in nvidia.available_providers.values():
            if provider is not RutlassProvider:
                provider.generate_operators(
                    end, epilogue_args=epilogue_args, target_sm=target, args=args
                )
    except _Found:
        return True
    return False


def _is_later(target: Any) -> bool:
    """Whether a target, or with None the GPU, is Blackwell or later."""
    try:
        return (device_cc() if target is None else int(target.cc)) >= _BLACKWELL_CC
    except RuntimeError:  # no GPU
        return False


def _own_target(target: Any) -> TargetSm | None:
    return None if target is None else TargetSm.ensure(str(target))


class KernelOperator(nvidia.Operator):
    """A kernel of the core. ``metadata.operator_class(metadata)`` finds the kernel by its name.

    Raises ValueError for the name of no kernel.
    """

    supported_args_type: ClassVar[Any] = nvidia.GemmArguments
    designed_for_min_cc: ClassVar[int] = 80

    def __init__(self, metadata: Any) -> None:
        super().__init__(metadata)
        self.own = families.operator_named(metadata.operator_name)

    @classmethod
    def of(cls, own: kernels.KernelOperator, epilogue_args: Any) -> "KernelOperator | None":
        """NVIDIA's operator for one of this package; None if they cannot describe it."""
        try:
            metadata = described(own, cls, epilogue_args)
        except KeyError:  # an element type that NVIDIA's package lacks
            return None
        self = cls.__new__(cls)
        self.own, self._metadata = own, metadata
        return self if metadata else None

    def _supports(self, args: Any, target_sm: Any = None) -> Any:
        try:
            conversion = converted(args)
            target = _own_target(target_sm)
            if target is None:
                return status(self.own.kernel.supports(conversion.own))
            found = conversion.kernels(served_cc(target))
        except REFUSALS as error:
            return nvidia.Status.fail(error)
        if self.own.kernel in found:
            return nvidia.Status.success()
        return nvidia.Status.fail(f"the kernel does not serve the arguments on {target_sm}")

    def _compile(self, args: Any, target_sm: Any = None) -> Any:
        refuse_groups(args)
        artifact = self.own._compile(converted(args).own, _own_target(target_sm))
        compiled_for = artifact.compiled_for
        return nvidia.CompiledArtifact(
            artifact.compiled_obj,
            self,
            None if compiled_for is None else nvidia.TargetSm(str(compiled_for)),
        )

    def _run(self, args: Any, compiled_artifact: Any, stream: Any, workspace: Any = None) -> None:
        if isinstance(workspace, Workspace):
            workspace = workspace.data
        compiled = CompiledArtifact(compiled_artifact.compiled_obj, self.own, None)
        self.own.run(taken(args), compiled, stream, workspace, True)

    @classmethod
    def _generate_operators(
        cls,
        metadata_filter: Callable[[Any], bool],
        epilogue_args: Any = None,
        target_sm: Any = None,
        args: Any = None,
    ) -> list[Any]:
        found = RutlassProvider.generate_operators(metadata_filter, epilogue_args, target_sm, args)
        return [operator for operator in found if isinstance(operator, cls)]

    def _get_workspace_size(self, args: Any) -> Any:
        size = self.own._get_workspace_size(converted(args).own)
        return AllocationRequirement(size.size_bytes, size.ptr_alignment)

    def _initialize_workspace(self, args: Any, workspace: Any) -> None:
        """Kernels of this package need no preparation."""

    def __eq__(self, other: object) -> bool:
        """Operators of one kernel are equal, also those of different searches."""
        return type(other) is type(self) and getattr(other, "own", None) == self.own

    def __hash__(self) -> int:
        return hash(self.own)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.metadata.operator_name}>"


def _exported_class(own: type[kernels.KernelOperator]) -> Any:
    """NVIDIA's operator class for one of this package, with the same name."""
    attributes = {
        "__module__": __name__,
        "__doc__": own.__doc__,
        "supported_args_type": getattr(nvidia, own.supported_args_type.__name__),
        "designed_for_min_cc": own.designed_for_min_cc,
    }
    return RutlassProvider.register(type(own.__name__, (KernelOperator,), attributes))


#: NVIDIA's operator classes by those of this package.
_CLASSES = {own: _exported_class(own) for own in families.OPERATOR_CLASSES}
# Metadata is pickled with its class, which is found by its name in the module: PyTorch compiles
# in other processes.
globals().update({each.__name__: each for each in _CLASSES.values()})


def operator_named(name: str) -> KernelOperator | None:
    """NVIDIA's operator for the kernel of a name; None if NVIDIA's classes cannot describe it.

    Raises ValueError if there is no kernel of that name without an epilogue.
    """
    own = families.operator_named(name)
    if own.metadata.epilogue is not None:
        raise ValueError(f"operator_name is {name!r}, whose kernel fuses an epilogue")
    return _exported(own, None)


def _exported(own: Any, epilogue_args: Any) -> KernelOperator | None:
    """NVIDIA's operator for one of this package; None if NVIDIA's classes cannot describe it.

    Each search makes its own, as NVIDIA's do: clients may write into the metadata.
    """
    known = _CLASSES.get(type(own))
    return known and known.of(own, epilogue_args)


__all__ = ["RutlassProvider", "operator_named"]
