"""The base of providers, and the registry."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from cutlass_api.operators.arch import TargetSm
from cutlass_api.operators.arguments import RuntimeArguments
from cutlass_api.operators.base import Operator
from cutlass_api.operators.metadata import OperatorMetadata

ProviderType = TypeVar("ProviderType", bound="type[Provider]")
OperatorType = TypeVar("OperatorType", bound=type[Operator])

#: The provider classes by name.
available_providers: dict[str, "type[Provider]"] = {}


class Provider:
    """A source of operators. A subclass has the operator classes that it registers."""

    _classes: ClassVar[list[type[Operator]]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._classes = []

    @classmethod
    def register(cls, operator_class: OperatorType) -> OperatorType:
        """Registers an operator class: ``get_operators`` then includes its operators.

        Works as a decorator. Raises TypeError if the class is not derived from ``Operator``.
        """
        if not (isinstance(operator_class, type) and issubclass(operator_class, Operator)):
            raise TypeError(f"{operator_class!r} is no operator class; derive it from Operator")
        operator_class._provider = cls
        cls._classes.append(operator_class)
        return operator_class

    @classmethod
    def generate_operators(
        cls,
        metadata_filter: Callable[[OperatorMetadata], bool] | None = None,
        epilogue_args: Any = None,
        target_sm: TargetSm | str | None = None,
        args: RuntimeArguments | None = None,
    ) -> list[Operator]:
        """The operators of the registered classes.

        - ``metadata_filter``: a predicate over their metadata; None: all pass.
        - ``epilogue_args``: the epilogue that they fuse, or None.
        - ``target_sm``: a target whose compute capability the classes are designed for; None: any.
        - ``args``: None: any. Operator classes take part whose ``supported_args_type`` is the class
          of ``args``, else those of its nearest base.

        A provider of another kind overrides this method. A search passes a filter that also checks
        the metadata for ``args`` and ``target_sm``, and :func:`checked_operators` the operators.
        """
        target = TargetSm.ensure(target_sm)
        classes = cls._classes
        if args is not None:
            served = {each.supported_args_type for each in classes}
            nearest = next((base for base in type(args).__mro__ if base in served), None)
            classes = [each for each in classes if each.supported_args_type is nearest]
        is_wanted = metadata_filter or _all_pass
        return [
            operator
            for each in classes
            if target is None or each.designed_for_min_cc <= target.cc
            for operator in each.generate_operators(is_wanted, epilogue_args, target, args)
        ]


def _all_pass(metadata: OperatorMetadata) -> bool:
    return True


def checked_operators(
    generate: Callable[..., Iterable[Operator]],
    metadata_filter: Callable[[OperatorMetadata], bool] | None,
    epilogue_args: Any,
    target: TargetSm | None,
    args: RuntimeArguments | None,
) -> list[Operator]:
    """The operators that serve the arguments on the target, and pass the filter.

    ``generate``: the method ``generate_operators`` of a provider.
    """

    def is_wanted(metadata: OperatorMetadata) -> bool:
        if metadata_filter is not None and not metadata_filter(metadata):
            return False
        if args is None and target is None:
            return True
        return bool(metadata.supports(args, target_sm=target))

    found = generate(is_wanted, epilogue_args=epilogue_args, target_sm=target, args=args)
    return [each for each in found if args is None or each._supports(args, target_sm=target)]


def register_provider(name: str) -> Callable[[ProviderType], ProviderType]:
    """A class decorator that registers a provider, in place of an earlier one of that name."""

    def register(provider: ProviderType) -> ProviderType:
        available_providers[name] = provider
        return provider

    return register


__all__ = ["Provider", "available_providers", "checked_operators", "register_provider"]
