"""The kernels of the core as operators: what operators of all families do."""

from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any, ClassVar

from cutlass_api import _core
from cutlass_api._core import Kernel, Status
from cutlass_api.metadata import KernelMetadata
from cutlass_api.operators.arch import ArchPortability, TargetSm, served_cc
from cutlass_api.operators.arguments import RuntimeArguments
from cutlass_api.operators.arguments.base import UNREADABLE
from cutlass_api.operators.arguments.gemm import GemmArguments
from cutlass_api.operators.artifact import CompiledArtifact
from cutlass_api.operators.base import Operator, unsupported
from cutlass_api.operators.metadata import EpilogueMetadata, OperatorMetadata
from cutlass_api.operators.metadata.design.kernel import design_of_core
from cutlass_api.operators.metadata.operands.kernel import operands_of_core
from cutlass_api.operators.mma import MmaInstruction
from cutlass_api.operators.providers import checks
from cutlass_api.operators.providers.names import kernel_named
from cutlass_api.operators.workspace import AllocationRequirement, Workspace

#: The address of workspace is a multiple of this (`check_workspace` of the core).
_WORKSPACE_ALIGNMENT_BYTES = 16
_METADATA_LOCK = Lock()


class KernelOperator(Operator):
    """A kernel of the core. ``metadata.operator_class(metadata)`` finds the kernel by its name.

    Pickles hold the name. A process that loads the pickle of an operator with an epilogue, or of
    one of a user's kernels, must have found that operator in a search.

    Raises ValueError for a name that no kernel has, and for a design that is not the kernel's.
    """

    #: The instruction that multiplies, if it is one of tensor cores.
    _instruction: ClassVar[type[MmaInstruction] | None] = None
    #: Operators that several searches return: those that no client has read metadata of, or set
    #: attributes of. By kernel, which the core keeps.
    _shared: ClassVar[dict[Kernel, "KernelOperator"]] = {}
    #: The epilogue of the search that has found the operator.
    _epilogue: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        has_own = not {"_compile", "_run", "_supports"}.isdisjoint(vars(cls))
        if has_own and "run" not in vars(cls):  # `Operator.run` calls them
            cls.run = Operator.run  # type: ignore[method-assign, misc]

    def __init__(self, metadata: OperatorMetadata) -> None:
        self._kernel, self._epilogue = kernel_named(metadata.operator_name)
        super().__init__(metadata)
        if metadata.operator_name != (name := self._name_of(self._kernel.metadata)):
            raise ValueError(
                f"operator_name is {metadata.operator_name!r}, and that {type(self).__name__} has "
                f"the name {name!r}; call operator_class of the metadata"
            )
        own = design_of_core(self._kernel.metadata.design, self._instruction)
        if metadata.design != own:
            raise ValueError(
                f"design is {metadata.design}, and {metadata.operator_name} has {own}; search for "
                "another design with the metadata_filter of get_operators"
            )

    @classmethod
    def of_kernel(cls, kernel: Kernel, epilogue: Any = None) -> "KernelOperator":
        """The operator of a kernel and its epilogue. Its metadata is made when it is read."""
        self = cls.__new__(cls)
        own = self.__dict__
        own["_kernel"], own["_metadata"] = kernel, None
        if epilogue is not None:
            own["_epilogue"] = epilogue
        return self

    @classmethod
    def named(cls, name: str) -> "KernelOperator":
        """The operator of this class with a name. Raises ValueError if there is none."""
        return cls.of_kernel(*kernel_named(name))

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute of this operator, which later searches do not return."""
        self._shared.pop(self.__dict__.get("_kernel"), None)  # type: ignore[arg-type]
        super().__setattr__(name, value)

    @property
    def kernel(self) -> Kernel:
        """The kernel of the core."""
        return self._kernel

    @property
    def metadata(self) -> OperatorMetadata:
        """The description of the operator."""
        if self._metadata is None:
            with _METADATA_LOCK:
                if self._metadata is None:
                    self._metadata = self._describe()
        return self._metadata

    def _describe(self) -> OperatorMetadata:
        of_core = self._kernel.metadata
        return OperatorMetadata(
            self._name_of(of_core),
            type(self),
            self._targets(of_core.min_cc),
            operands_of_core(of_core.operands),
            design_of_core(of_core.design, self._instruction),
            EpilogueMetadata.of_core(of_core.epilogue, self._epilogue),
        )

    @classmethod
    def _targets(cls, min_cc: int) -> list[TargetSm]:
        return [TargetSm(cc=min_cc, portability=ArchPortability.Portable)] if min_cc else []

    @classmethod
    def _name_of(cls, of_core: KernelMetadata) -> str:
        return of_core.kernel_name

    def _supports(self, args: RuntimeArguments | None, target_sm: TargetSm | None = None) -> Status:
        """Whether the core's kernel serves the arguments; with a target, on any device."""
        if args is None:
            return Status.success()
        try:
            current = args.current()
            status = self._kernel.supports(current)
            if status or target_sm is None:
                return status
            # The core checks the operands' device, in whose place the target stands.
            if self._kernel in _core.get_kernels(current, None, served_cc(target_sm)):
                return Status.success()
        except UNREADABLE as error:
            return Status.fail(error)
        return status

    def _compile(
        self, args: RuntimeArguments, target_sm: TargetSm | None = None
    ) -> CompiledArtifact:
        """Compiles with NVRTC, or loads the program from the cache.

        For FakeTensors on a GPU, compiles for that GPU without a CUDA context, as a process that
        only compiles needs it. The arguments may have another accumulator type.

        Raises ValueError for a target that does not run the operator, for operands with other
        dtypes or layouts, and without a target for operands on a device that does not run it.
        """
        checks.check_arguments(args)
        checks.refuse_groups(args)
        cc = checks.fake_cc(args) if target_sm is None else served_cc(target_sm)
        targets = self.metadata.supported_targets
        if target_sm is not None:
            status = self.metadata.supports(None, target_sm=target_sm)
            if not status:
                raise unsupported(status)
        kernel = self._kernel_for(args, cc)
        try:
            compiled = kernel.compile(args.current(), cc)
        except ValueError:
            if cc is not None or not targets or (status := self.supports(args)):
                raise
            raise ValueError(
                f"{unsupported(status)}; to compile for another device, pass a target: "
                f"compile(args, target_sm={str(targets[0])!r})"
            ) from None
        architecture = getattr(compiled.compiled_obj, "architecture", None)
        if target_sm is None and architecture is not None:
            target_sm = TargetSm(architecture.removeprefix("sm_"))
        return CompiledArtifact(compiled, self, target_sm)

    def _kernel_for(self, args: Any, cc: int | None) -> Kernel:
        """The kernel to compile for arguments.

        Raises ValueError for operands with other dtypes or layouts, and for another epilogue.
        """
        operands = self.metadata.operands
        if hasattr(operands, "accumulator_type"):
            operands = replace(operands, accumulator_type=args.accumulator_type)
        if not (status := operands.supports(args)):
            raise unsupported(status)
        is_plain = args.epilogue is None and self._epilogue is None
        if not is_plain and self._kernel not in _core.get_kernels(args.searched(), None, cc):
            fused = "no epilogue" if self._epilogue is None else "another epilogue"
            raise ValueError(
                f"operator {self._name_of(self._kernel.metadata)} fuses {fused}; search with "
                "get_operators(args) for one that fuses the epilogue of these arguments"
            )
        return self._kernel

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
        try:
            self._kernel.run(
                args.current() if args.is_unpacked else args,
                None if compiled_artifact is None else compiled_artifact.compiled_obj,
                stream,
                workspace,
                assume_supported_args,
            )
        except AttributeError:
            checks.check_run(args, compiled_artifact)
            raise
        except UNREADABLE:
            checks.check_run(args, compiled_artifact)
            if assume_supported_args or (status := self._supports(args)):
                raise
            raise unsupported(status) from None

    #: ``run`` of this class, which a subclass with a ``_run`` of its own does not have.
    _run_kernel = run

    def _run(
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact,
        stream: Any,
        workspace: Any = None,
    ) -> None:
        """As :meth:`run`, without the check."""
        self._run_kernel(args, compiled_artifact, stream, workspace, True)

    @classmethod
    def _generate_operators(
        cls,
        metadata_filter: Callable[[OperatorMetadata], bool],
        epilogue_args: Any = None,
        target_sm: TargetSm | None = None,
        args: RuntimeArguments | None = None,
    ) -> list[Operator]:
        """The operators of this class."""
        found = cls._provider.generate_operators(metadata_filter, epilogue_args, target_sm, args)
        return [operator for operator in found if isinstance(operator, cls)]

    def _get_workspace_size(self, args: RuntimeArguments) -> AllocationRequirement:
        """What the kernel needs for the arguments."""
        checks.check_arguments(args)
        size = self._kernel.get_workspace_size(args.current())
        return AllocationRequirement(size, _WORKSPACE_ALIGNMENT_BYTES if size else 1)

    def _initialize_workspace(self, args: RuntimeArguments, workspace: Any) -> None:
        """Kernels of this package need no preparation."""
        checks.check_arguments(args)
        data = workspace.data if isinstance(workspace, Workspace) else workspace
        self._kernel.initialize_workspace(args.current(), data)

    def __eq__(self, other: object) -> bool:
        """Operators of one kernel are equal, also those of different searches."""
        return type(other) is type(self) and getattr(other, "_kernel", None) is self._kernel

    def __hash__(self) -> int:
        return hash(self._kernel)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.named, (self._name_of(self._kernel.metadata),)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._kernel.metadata.kernel_name}>"

    supported_args_type: ClassVar[Any] = GemmArguments
    designed_for_min_cc: ClassVar[int] = 80


class EFCOperator(KernelOperator):
    """A kernel that fuses any epilogue of arguments, not only one that a search knew.

    The name says what PyTorch looks for: EFC is the original's "epilogue fusion configuration", and
    ``tile`` precedes the extents of the tile. Without an epilogue, the kernel runs as it is. With
    one, :meth:`compile` selects the kernel of this design that fuses it.
    """

    @classmethod
    def _name_of(cls, of_core: KernelMetadata) -> str:
        tile = "x".join(map(str, checks.tile_of(of_core)))
        return of_core.kernel_name.replace(f"_{tile}", f"_tile{tile}", 1)

    def _kernel_for(self, args: Any, cc: int | None) -> Kernel:
        if args.epilogue is None:
            return super()._kernel_for(args, cc)
        mine = self._kernel.metadata

        def distance(kernel: Kernel) -> int:
            other = kernel.metadata
            if other.design == mine.design:
                return 0
            return 1 if checks.tile_of(other) == checks.tile_of(mine) else 2

        # The first of equals is the fastest.
        found = min(_core.get_kernels(args.searched(), None, cc), key=distance, default=None)
        if found is None:
            raise NotImplementedError(f"no operator fuses the epilogue of {args}")
        return found

    def run(  # type: ignore[misc]
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact | None = None,
        stream: Any = None,
        workspace: Any = None,
        assume_supported_args: bool = False,
    ) -> None:
        """As :meth:`KernelOperator.run`. A kernel with an epilogue allocates its workspace."""
        try:
            if compiled_artifact is None and getattr(args, "epilogue", None) is not None:
                compiled_artifact = self.compile(args)
            kernel = self._kernel
            if (
                workspace is None
                and compiled_artifact is not None
                and compiled_artifact._kernel is kernel
            ):
                # What generated code calls: without a further frame of Python.
                current = args.current() if args.is_unpacked else args
                of_core = compiled_artifact.compiled_obj
                kernel.run(current, of_core, stream, None, assume_supported_args)
            elif compiled_artifact is None or getattr(args, "epilogue", None) is None:
                super().run(args, compiled_artifact, stream, workspace, assume_supported_args)
            else:
                of_core = compiled_artifact.compiled_obj
                of_core.kernel_obj.run(args.current(), of_core, stream, None, assume_supported_args)
        except AttributeError:
            checks.check_run(args, compiled_artifact)
            raise

    _run_kernel = run
    supported_args_type: ClassVar[Any] = GemmArguments
    designed_for_min_cc: ClassVar[int] = 80


__all__ = ["EFCOperator", "KernelOperator"]
