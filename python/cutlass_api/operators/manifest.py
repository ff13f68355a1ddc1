"""Searches for operators."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from cutlass_api.operators.arch import TargetSm, UnservedTargetError
from cutlass_api.operators.arguments import RuntimeArguments
from cutlass_api.operators.arguments.base import no_arguments, no_subject
from cutlass_api.operators.base import Operator
from cutlass_api.operators.metadata import OperatorMetadata
from cutlass_api.operators.providers import CuTeDSLProvider, available_providers
from cutlass_api.operators.providers.provider import checked_operators


class Manifest:
    """A list of operators that grows with each :meth:`add_operators`."""

    def __init__(self) -> None:
        self._operators: list[Operator] = []

    @staticmethod
    def get_operators(
        args: RuntimeArguments | None = None,
        metadata_filter: Callable[[OperatorMetadata], bool] | None = None,
        target_sm: TargetSm | str | None = None,
        providers: Sequence[Any] | None = None,
    ) -> list[Operator]:
        """As :func:`cutlass_api.operators.get_operators` without a heuristic."""
        target = TargetSm.ensure(target_sm)
        if args is not None and not isinstance(args, RuntimeArguments):
            raise no_arguments(args)
        chosen: Any = available_providers.values() if providers is None else _checked(providers)
        if metadata_filter is not None and not callable(metadata_filter):
            raise TypeError(f"metadata_filter is {metadata_filter!r}; pass a function, or None")
        found, unserved = [], None
        for provider in chosen:
            generate = provider.generate_operators
            try:
                if provider is CuTeDSLProvider:  # checks its operators without their metadata
                    operators = generate(metadata_filter, None, target, args)
                else:
                    epilogue = getattr(args, "epilogue", None)
                    operators = checked_operators(generate, metadata_filter, epilogue, target, args)
            except UnservedTargetError as error:  # another provider may serve the target
                unserved = error
            else:
                found.append(operators)
        operators = found[0] if len(found) == 1 else list(chain.from_iterable(found))
        if unserved is not None and not operators:
            raise unserved
        return operators

    @property
    def operators(self) -> list[Operator]:
        """The collected operators."""
        return self._operators

    def add_operators(self, operators: Sequence[Operator]) -> None:
        """Adds operators to the list."""
        self._operators.extend(operators)

    def filter_operators(
        self,
        args: RuntimeArguments | None = None,
        metadata_filter: Callable[[OperatorMetadata], bool] | None = None,
        target_sm: TargetSm | str | None = None,
        providers: Sequence[Any] | None = None,
    ) -> list[Operator]:
        """The collected operators that serve arguments and target, and pass the filter.

        ``providers``: classes of providers; None: all. Raises ValueError if ``args`` and
        ``target_sm`` are None and there are operators.
        """
        target = TargetSm.ensure(target_sm)
        if self._operators and args is None and target is None:
            raise no_subject()

        def is_wanted(operator: Operator) -> bool:
            if not operator.supports(args, target_sm=target):
                return False
            metadata = operator.metadata
            if providers is not None and metadata.provider not in providers:
                return False
            return metadata_filter is None or bool(metadata_filter(metadata))

        return [operator for operator in self._operators if is_wanted(operator)]

    def __repr__(self) -> str:
        return f"<Manifest of {len(self._operators)} operators>"


def _checked(providers: Any) -> Any:
    """The providers. Raises TypeError unless they are a collection of classes of providers."""
    is_collection = isinstance(providers, Iterable) and not isinstance(providers, (str, type))
    providers = list(providers) if is_collection else providers
    if not (is_collection and all(hasattr(each, "generate_operators") for each in providers)):
        raise TypeError(
            f"providers is {providers!r}; pass a list of provider classes, such as "
            "[CuTeDSLProvider], or None for all"
        )
    return providers


__all__ = ["Manifest"]
