"""The operator classes of the families of kernels, and searches for operators."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar

from cutlass_api import _core
from cutlass_api._core import Kernel
from cutlass_api.metadata import GroupedGemmOperandsMetadata
from cutlass_api.operators.arch import ArchPortability, TargetSm, served_cc
from cutlass_api.operators.arguments import RuntimeArguments
from cutlass_api.operators.arguments.epilogue import without_tensors
from cutlass_api.operators.arguments.gemm import CoreArguments, GemmArguments
from cutlass_api.operators.arguments.grouped_gemm import IndexPtrGroupedGemmArguments
from cutlass_api.operators.base import Operator
from cutlass_api.operators.metadata import OperatorMetadata
from cutlass_api.operators.mma import AmpereMma, HopperWgmma
from cutlass_api.operators.providers import checks
from cutlass_api.operators.providers.kernels import EFCOperator, KernelOperator
from cutlass_api.operators.providers.names import MOST_REMEMBERED, kernel_named, remember


class Sm90GemmOperator(KernelOperator):
    """A kernel of the sm90 family, for Hopper only."""

    supported_args_type: ClassVar[Any] = GemmArguments
    designed_for_min_cc = 90
    _instruction = HopperWgmma

    @classmethod
    def _targets(cls, min_cc: int) -> list[TargetSm]:
        return HopperWgmma.supported_targets()


class Sm80GemmOperator(KernelOperator):
    """A kernel of the sm80 family."""

    supported_args_type: ClassVar[Any] = GemmArguments
    designed_for_min_cc = 80
    _instruction = AmpereMma


class SkinnyGemmOperator(Sm80GemmOperator):
    """A kernel for outputs with few rows or columns."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 80


class SimtGemmOperator(KernelOperator):
    """A kernel without tensor cores."""

    supported_args_type: ClassVar[Any] = GemmArguments
    designed_for_min_cc = 80


class Sm90GemmEFCOperator(EFCOperator, Sm90GemmOperator):
    """A kernel of the sm90 family with at least 128 rows in a tile."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 90


class Sm80GemmEFCOperator(EFCOperator, Sm80GemmOperator):
    """A kernel of the sm80 family with at least 128 rows in a tile."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 80


class SimtGemmEFCOperator(EFCOperator, SimtGemmOperator):
    """A kernel without tensor cores, with at least 128 rows in a tile."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 80


class ReferenceOperator(KernelOperator):
    """A kernel of the CPU."""

    supported_args_type: ClassVar[Any] = GemmArguments
    designed_for_min_cc = 0


class Sm90GroupedGemmOperator(Sm90GemmOperator):
    """A kernel of the sm90 family for groups."""

    supported_args_type = IndexPtrGroupedGemmArguments
    designed_for_min_cc = 90


class Sm80GroupedGemmOperator(Sm80GemmOperator):
    """A kernel of the sm80 family for groups."""

    supported_args_type = IndexPtrGroupedGemmArguments
    designed_for_min_cc = 80


class SimtGroupedGemmOperator(SimtGemmOperator):
    """A kernel without tensor cores for groups."""

    supported_args_type = IndexPtrGroupedGemmArguments
    designed_for_min_cc = 80


class ReferenceGroupedOperator(ReferenceOperator):
    """A kernel of the CPU for groups."""

    supported_args_type = IndexPtrGroupedGemmArguments
    designed_for_min_cc = 0


#: The operator classes of the core's kernels. The original has no elementwise operation.
_CLASSES: dict[type, type[KernelOperator]] = {
    _core.Sm90GemmKernel: Sm90GemmOperator,
    _core.Sm80GemmKernel: Sm80GemmOperator,
    _core.SkinnyGemmKernel: SkinnyGemmOperator,
    _core.SimtGemmKernel: SimtGemmOperator,
    _core.ReferenceKernel: ReferenceOperator,
}
#: Those of kernels for groups.
_GROUPED_CLASSES: dict[type, type[KernelOperator]] = {
    _core.Sm90GemmKernel: Sm90GroupedGemmOperator,
    _core.Sm80GemmKernel: Sm80GroupedGemmOperator,
    _core.SimtGemmKernel: SimtGroupedGemmOperator,
    _core.ReferenceKernel: ReferenceGroupedOperator,
}
#: Those of kernels whose tile PyTorch fuses epilogues into: of a GEMM, with at least 128 rows.
_EFC_CLASSES: dict[type, type[EFCOperator]] = {
    _core.Sm90GemmKernel: Sm90GemmEFCOperator,
    _core.Sm80GemmKernel: Sm80GemmEFCOperator,
    _core.SimtGemmKernel: SimtGemmEFCOperator,
}
#: The operator classes of built-in kernels.
OPERATOR_CLASSES = (
    *_CLASSES.values(),
    *_GROUPED_CLASSES.values(),
    *_EFC_CLASSES.values(),
)


@lru_cache(MOST_REMEMBERED)
def _class_of(kernel: Kernel) -> type[KernelOperator]:
    of_core = kernel.metadata
    is_grouped = isinstance(of_core.operands, GroupedGemmOperandsMetadata)
    known = (_GROUPED_CLASSES if is_grouped else _CLASSES).get(type(kernel), KernelOperator)
    if type(kernel) in _EFC_CLASSES and checks.is_fused_later(of_core):
        known = _EFC_CLASSES[type(kernel)]
    return known


class _Shared(dict[Kernel, KernelOperator]):
    """``KernelOperator._shared``, of kernels without an epilogue."""

    def __missing__(self, kernel: Kernel) -> KernelOperator:
        known = _class_of(kernel)
        operator = known.of_kernel(kernel)
        if known is KernelOperator:
            remember(kernel, None)
        else:
            self[kernel] = operator
        return operator


KernelOperator._shared = _SHARED = _Shared()


def operator_named(name: str) -> KernelOperator:
    """The operator of a name. Raises ValueError if there is none."""
    kernel, epilogue = kernel_named(name)
    return _class_of(kernel).of_kernel(kernel, epilogue)


def find_operators(
    metadata_filter: Callable[[OperatorMetadata], bool] | None,
    target: TargetSm | None,
    args: RuntimeArguments | None,
) -> list[Operator]:
    """The operators of the kernels, as ``CuTeDSLProvider.generate_operators``."""
    if args is not None and not isinstance(args, CoreArguments):
        return []
    current = None if args is None else args.current()
    cc = None if target is None else served_cc(target)
    kernels = _core.get_kernels(current, None, cc)
    if args is None:
        kernels = [each for each in kernels if not checks.is_elementwise(each)]
    epilogue = None if args is None else args.epilogue
    found: list[Operator]
    if epilogue is None:
        found = list(map(_SHARED.__getitem__, kernels))
    else:
        found = _fusing(kernels, epilogue)
    if target is not None and target.portability is not ArchPortability.ArchConditional:
        found = [each for each in found if not isinstance(each, Sm90GemmOperator)]
    if metadata_filter is not None:
        found = [each for each in found if metadata_filter(each.metadata)]
    return found


def _fusing(kernels: list[Kernel], epilogue: Any) -> list[Operator]:
    """Operators of kernels that fuse the epilogue of arguments."""
    described = without_tensors(epilogue)
    found: list[Operator] = []
    for kernel in kernels:
        remember(kernel, described)
        found.append(_class_of(kernel).of_kernel(kernel, described))
    return found


__all__ = [
    "OPERATOR_CLASSES",
    "ReferenceGroupedOperator",
    "ReferenceOperator",
    "SimtGemmEFCOperator",
    "SimtGemmOperator",
    "SimtGroupedGemmOperator",
    "SkinnyGemmOperator",
    "Sm80GemmEFCOperator",
    "Sm80GemmOperator",
    "Sm80GroupedGemmOperator",
    "Sm90GemmEFCOperator",
    "Sm90GemmOperator",
    "Sm90GroupedGemmOperator",
    "find_operators",
    "operator_named",
]
