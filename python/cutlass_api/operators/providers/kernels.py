"""The kernels of the core as operators."""

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

from cutlass_api import _core
from cutlass_api._core import Kernel, Status
from cutlass_api.operators.arch import ArchPortability, TargetSm, served_cc
from cutlass_api.operators.arguments import RuntimeArguments
from cutlass_api.operators.arguments.gemm import CoreArguments, GemmArguments
from cutlass_api.operators.artifact import CompiledArtifact
from cutlass_api.operators.base import Operator
from cutlass_api.operators.metadata import OperatorMetadata
from cutlass_api.operators.metadata.design import design_of_core
from cutlass_api.operators.metadata.operands import operands_of_core
from cutlass_api.operators.mma import AmpereMma, HopperWgmma, MmaInstruction
from cutlass_api.operators.providers.provider import Provider, register_provider
from cutlass_api.operators.workspace import AllocationRequirement, Workspace

#: The address of workspace is a multiple of this (`check_workspace` of the core).
_WORKSPACE_ALIGNMENT_BYTES = 16


@register_provider("cutedsl")
class CuTeDSLProvider(Provider):
    """The kernels of this package, under the name of the original's provider.

    They are CUDA C++ that NVRTC compiles, and need no DSL. Classes of one's own can be registered
    here, too.
    """

    @classmethod
    def generate_operators(
        cls,
        metadata_filter: Callable[[OperatorMetadata], bool] | None = None,
        epilogue_args: Any = None,
        target_sm: TargetSm | str | None = None,
        args: RuntimeArguments | None = None,
    ) -> list[Operator]:
        """The kernels, ranked by estimated time, and then the operators of registered classes.

        With ``args`` on the CPU and no target: the operators of the CPU.

        Raises NotImplementedError for a target that no kernel runs on.
        """
        found = _kernel_operators(metadata_filter, TargetSm.ensure(target_sm), args)
        if cls._classes:
            found += super().generate_operators(metadata_filter, epilogue_args, target_sm, args)
        return found


class KernelOperator(Operator):
    """A kernel of the core. ``metadata.operator_class(metadata)`` finds the kernel by its name.

    Raises KeyError for the name of no kernel.
    """

    #: The instruction that multiplies, if it is one of tensor cores.
    _instruction: ClassVar[type[MmaInstruction] | None] = None

    def __init__(self, metadata: OperatorMetadata) -> None:
        super().__init__(metadata)
        self._kernel = _kernel_named(metadata.operator_name)

    @classmethod
    def of_kernel(cls, kernel: Kernel) -> "KernelOperator":
        """The operator of a kernel. Its metadata is made when it is read."""
        self = cls.__new__(cls)
        self._kernel = kernel
        self._metadata = None  # type: ignore[assignment]
        return self

    @property
    def kernel(self) -> Kernel:
        """The kernel of the core."""
        return self._kernel

    @property
    def metadata(self) -> OperatorMetadata:
        """The description of the operator."""
        if self._metadata is None:
            self._metadata = self._describe()
        return self._metadata

    def _describe(self) -> OperatorMetadata:
        of_core = self._kernel.metadata
        if of_core.epilogue is not None or type(self._kernel) not in _CLASSES:
            _FURTHER[of_core.kernel_name] = self._kernel
        return OperatorMetadata(
            of_core.kernel_name,
            type(self),
            self._targets(of_core.min_cc),
            operands_of_core(of_core.operands),
            design_of_core(of_core.design, self._instruction),
            of_core.epilogue,
        )

    @classmethod
    def _targets(cls, min_cc: int) -> list[TargetSm]:
        return [TargetSm(cc=min_cc, portability=ArchPortability.Portable)] if min_cc else []

    def _supports(self, args: RuntimeArguments, target_sm: TargetSm | None = None) -> Status:
        """Whether the core's kernel serves the arguments."""
        return self._kernel.supports(args.current())

    def _compile(
        self, args: RuntimeArguments, target_sm: TargetSm | None = None
    ) -> CompiledArtifact:
        """Compiles with NVRTC, or loads the program from the cache."""
        cc = None if target_sm is None else served_cc(target_sm)
        compiled = self._kernel.compile(args.current(), cc)
        architecture = getattr(compiled.compiled_obj, "architecture", None)
        target = TargetSm(architecture.removeprefix("sm_")) if architecture else target_sm
        return CompiledArtifact(compiled, self, target)

    def run(  # type: ignore[misc]
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact | None = None,
        stream: Any = None,
        workspace: Any = None,
        assume_supported_args: bool = False,
    ) -> None:
        """As :meth:`Operator.run`, in one call of the core, which also checks the arguments."""
        if workspace is not None and isinstance(workspace, Workspace):
            workspace = workspace.data
        self._kernel.run(
            args.current() if args.is_changed else args,
            None if compiled_artifact is None else compiled_artifact.compiled_obj,
            stream,
            workspace,
            assume_supported_args,
        )

    def _run(
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact,
        stream: Any,
        workspace: Any = None,
    ) -> None:
        """As :meth:`run`, without the check."""
        self.run(args, compiled_artifact, stream, workspace, True)

    @classmethod
    def _generate_operators(
        cls,
        metadata_filter: Callable[[OperatorMetadata], bool],
        epilogue_args: Any = None,
        target_sm: TargetSm | None = None,
        args: RuntimeArguments | None = None,
    ) -> list[Operator]:
        """The operators of this class."""
        found = _kernel_operators(metadata_filter, target_sm, args)
        return [operator for operator in found if isinstance(operator, cls)]

    def _get_workspace_size(self, args: RuntimeArguments) -> AllocationRequirement:
        """What the kernel needs for the arguments."""
        size = self._kernel.get_workspace_size(args.current())
        return AllocationRequirement(size, _WORKSPACE_ALIGNMENT_BYTES if size else 1)

    def _initialize_workspace(self, args: RuntimeArguments, workspace: Any) -> None:
        """Kernels of this package need no preparation."""
        data = workspace.data if isinstance(workspace, Workspace) else workspace
        self._kernel.initialize_workspace(args.current(), data)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._kernel.metadata.kernel_name}>"

    supported_args_type: ClassVar[Any] = GemmArguments
    designed_for_min_cc: ClassVar[int] = 80


class Sm90GemmOperator(KernelOperator):
    """A kernel of the sm90 family, for Hopper only."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 90
    _instruction = HopperWgmma

    @classmethod
    def _targets(cls, min_cc: int) -> list[TargetSm]:
        return HopperWgmma.supported_targets()


class Sm80GemmOperator(KernelOperator):
    """A kernel of the sm80 family."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 80
    _instruction = AmpereMma


class SkinnyGemmOperator(Sm80GemmOperator):
    """A kernel for outputs with few rows or columns."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 80


class SimtGemmOperator(KernelOperator):
    """A kernel without tensor cores."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 80


class ReferenceOperator(KernelOperator):
    """A kernel of the CPU."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 0


#: The operator classes of the core's kernels. The original has no elementwise operation.
_CLASSES: dict[type, type[KernelOperator]] = {
    _core.Sm90GemmKernel: Sm90GemmOperator,
    _core.Sm80GemmKernel: Sm80GemmOperator,
    _core.SkinnyGemmKernel: SkinnyGemmOperator,
    _core.SimtGemmKernel: SimtGemmOperator,
    _core.ReferenceKernel: ReferenceOperator,
}
KernelOperator._provider = CuTeDSLProvider


class _Operators(dict[Kernel, KernelOperator]):
    """The operators by kernel. The core keeps its kernels for the life of the process."""

    def __missing__(self, kernel: Kernel) -> KernelOperator:
        known = _CLASSES.get(type(kernel))
        if known is None:
            return KernelOperator.of_kernel(kernel)
        self[kernel] = operator = known.of_kernel(kernel)
        return operator


_OPERATORS = _Operators()
#: Kernels by name: those that fuse the epilogue of earlier arguments, and those of users.
_FURTHER: dict[str, Kernel] = {}


@cache
def _plain_kernels() -> dict[str, Kernel]:
    return {kernel.metadata.kernel_name: kernel for kernel in _core.get_kernels()}


def _kernel_named(name: str) -> Kernel:
    kernel = _FURTHER.get(name) or _plain_kernels().get(name)
    if kernel is None:
        raise KeyError(f"operator_name is {name!r}, which is no kernel of this package")
    return kernel


def _is_elementwise(operator: Operator) -> bool:
    return isinstance(getattr(operator, "kernel", None), _core.ElementwiseKernel)


def _kernel_operators(
    metadata_filter: Callable[[OperatorMetadata], bool] | None,
    target: TargetSm | None,
    args: RuntimeArguments | None,
) -> list[Operator]:
    if args is not None and not isinstance(args, CoreArguments):
        return []
    current = None if args is None else args.current()
    cc = None if target is None else served_cc(target)
    found: list[Operator] = list(map(_OPERATORS.__getitem__, _core.get_kernels(current, None, cc)))
    if args is None:
        found = [each for each in found if not _is_elementwise(each)]
    if target is not None and target.portability is not ArchPortability.ArchConditional:
        found = [each for each in found if not isinstance(each, Sm90GemmOperator)]
    if metadata_filter is not None:
        found = [each for each in found if metadata_filter(each.metadata)]
    return found


__all__ = [
    "CuTeDSLProvider",
    "KernelOperator",
    "ReferenceOperator",
    "SimtGemmOperator",
    "SkinnyGemmOperator",
    "Sm80GemmOperator",
    "Sm90GemmOperator",
]
