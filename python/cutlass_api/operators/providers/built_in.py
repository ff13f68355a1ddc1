"""The provider of the kernels of the core."""

from collections.abc import Callable
from typing import Any

from cutlass_api.operators.arch import TargetSm, UnservedTargetError
from cutlass_api.operators.arguments import RuntimeArguments
from cutlass_api.operators.base import Operator
from cutlass_api.operators.metadata import OperatorMetadata
from cutlass_api.operators.providers.families import find_operators
from cutlass_api.operators.providers.kernels import KernelOperator
from cutlass_api.operators.providers.provider import (
    Provider,
    checked_operators,
    register_provider,
)


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

        With ``args`` on the CPU and no target: the operators of the CPU. ``epilogue_args``: None
        is the epilogue of ``args``.

        Raises NotImplementedError for a target that neither a kernel nor such an operator runs on.
        """
        target, unserved = TargetSm.ensure(target_sm), None
        try:
            found = find_operators(metadata_filter, target, args)
        except UnservedTargetError as error:
            found, unserved = [], error
        if cls._classes:
            generate = super().generate_operators
            if epilogue_args is None:
                epilogue_args = getattr(args, "epilogue", None)
            found += checked_operators(generate, metadata_filter, epilogue_args, target, args)
        if unserved is not None and not found:
            raise unserved
        return found


KernelOperator._provider = CuTeDSLProvider

__all__ = ["CuTeDSLProvider"]
