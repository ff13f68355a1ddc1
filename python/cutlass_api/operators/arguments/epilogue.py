"""The arguments of an epilogue, and how its tensors are copied."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from cutlass_api import _core
from cutlass_api._faces import core_of
from cutlass_api.operators.utils.tensor import TensorWrapper
from cutlass_api.typing import TensorLike

if TYPE_CHECKING:
    from typing_extensions import Self


class Transport(Enum):
    """How a tensor of an epilogue is copied. Kernels of this package choose it themselves."""

    TMA = "tma"
    SYNC_GMEM_LOAD = "sync_gmem_load"
    SYNC_GMEM_STORE = "sync_gmem_store"
    ASYNC_GMEM_LOAD = "async_gmem_load"


@dataclass
class _Copy:
    tensor: Any
    via: Transport | str = Transport.TMA
    num_bits_per_copy: int | None = None

    _allowed: ClassVar[tuple[Transport, ...]] = ()

    def __post_init__(self) -> None:
        name, bits = type(self).__name__, self.num_bits_per_copy
        self.via = Transport(self.via)
        if self.via not in self._allowed:
            allowed = ", ".join(transport.value for transport in self._allowed)
            raise ValueError(f"via of {name} is {self.via.value}; pass one of {allowed}")
        if bits is not None and (isinstance(bits, bool) or not isinstance(bits, int)):
            raise TypeError(f"num_bits_per_copy of {name} is {bits!r}; pass an int or None")
        if bits is not None and self.via is Transport.TMA:
            raise ValueError(
                f"num_bits_per_copy of {name} is {bits}, but TMA has no such width; pass None or "
                "another transport"
            )


class Load(_Copy):
    """An input of an epilogue with the transport of its reads.

    - ``tensor``: the tensor.
    - ``via``: ``TMA``, ``SYNC_GMEM_LOAD`` or ``ASYNC_GMEM_LOAD``, or the value of one.
    - ``num_bits_per_copy``: the width of one copy in bits, of transports other than TMA.

    The kernels of this package validate the transport and choose their own.
    """

    _allowed = (Transport.TMA, Transport.SYNC_GMEM_LOAD, Transport.ASYNC_GMEM_LOAD)


class Store(_Copy):
    """An output of an epilogue with the transport of its writes: ``TMA`` or ``SYNC_GMEM_STORE``.

    Otherwise as :class:`Load`.
    """

    _allowed = (Transport.TMA, Transport.SYNC_GMEM_STORE)


class EpilogueArguments(_core.EpilogueArguments):
    """An epilogue function with its operands, as :class:`cutlass_api.arguments.EpilogueArguments`.

    A keyword also takes a :class:`Load` or a :class:`Store`.

    Raises ValueError if an input is wrapped in ``Store`` or an output in ``Load``.
    """

    #: The transports by name of the operand, for those that have one.
    transports: dict[str, Load | Store]
    _tensors: dict[str, Any]
    #: Whether `_tensors` are wrappers whose tensors may have been replaced.
    _is_owned = False

    def __new__(cls, epilogue_fn: Callable[..., Any] | str, **kwargs: Any) -> "Self":
        plain = {name: _tensor_of(value) for name, value in kwargs.items()}
        self: Any = super().__new__(
            cls, epilogue_fn, **{name: core_of(value) for name, value in plain.items()}
        )
        self.transports = {
            name: value for name, value in kwargs.items() if isinstance(value, (Load, Store))
        }
        traced = self.traced_epilogue
        for name, copied in self.transports.items():
            expected = [Load] * (name in traced.inputs) + [Store] * (name in traced.outputs)
            if type(copied) not in expected:
                raise ValueError(
                    f"operand {name!r} of the epilogue is a {type(copied).__name__}; pass "
                    f"{' or '.join(wanted.__name__ for wanted in expected)}"
                )
        self._tensors = {name: plain[name] for name in self.parameter_names}
        made: Self = self
        return made

    @property
    def tensors(self) -> Mapping[str, Any]:  # type: ignore[override]
        """The operands by name: tensors and numbers. Read-only: make new arguments of others."""
        return MappingProxyType(self._tensors)

    @property
    def parameters(self) -> list[Any]:
        """The operands."""
        return list(self._tensors.values())

    def copy(self) -> "Self":
        """New arguments of the same function and tensors."""
        return self.__copy__()

    def __copy__(self) -> "Self":
        return type(self)(self.epilogue_fn, **{**self._tensors, **self.transports})

    def current(self) -> _core.EpilogueArguments:
        """These arguments, or those of the tensors that have replaced theirs."""
        if not self._is_owned:
            return self
        values = {name: core_of(value) for name, value in self._tensors.items()}
        return _core.EpilogueArguments(self.epilogue_fn, **values)

    def owned_by(self, owner: Any) -> "Self":
        """A copy whose tensors are wrapped. A replaced tensor changes the ``owner``."""
        copied = self.copy()
        for name, value in self._tensors.items():
            if isinstance(value, TensorLike):
                wrapper = _core.TensorWrapper(core_of(value))
                copied._tensors[name] = TensorWrapper.of_core(wrapper, owner)
        copied._is_owned = True
        return copied


def _tensor_of(value: Any) -> Any:
    return value.tensor if isinstance(value, (Load, Store)) else value


__all__ = ["EpilogueArguments", "Load", "Store", "Transport"]
