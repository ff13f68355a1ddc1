"""The arguments of an epilogue, and how its tensors are copied."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from cutlass_api import _core
from cutlass_api._faces import core_of
from cutlass_api.operators.fusion.generated import translate
from cutlass_api.operators.utils.tensor import TensorWrapper, without_memory
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

    Source may also be what PyTorch generates for the CuTe DSL, such as ``cute.math.tanh(accum)``.
    A keyword also takes a :class:`Load` or a :class:`Store`, and a torch tensor on the meta device,
    which has no memory.

    Raises ValueError if an input is wrapped in ``Store`` or an output in ``Load``.
    """

    #: The transports by name of the operand, for those that have one.
    transports: dict[str, Load | Store]
    _tensors: dict[str, Any]
    #: Whether `_tensors` are wrappers whose tensors may have been replaced.
    _is_owned = False

    def __new__(cls, epilogue_fn: Callable[..., Any] | str, **kwargs: Any) -> "Self":
        if isinstance(epilogue_fn, str):
            epilogue_fn = translate(epilogue_fn)
        plain = {name: _tensor_of(value) for name, value in kwargs.items()}
        self: Any = super().__new__(
            cls,
            epilogue_fn,
            **{name: without_memory(core_of(value)) for name, value in plain.items()},
        )
        self.transports = {
            name: value for name, value in kwargs.items() if isinstance(value, (Load, Store))
        }
        traced = _TRACED(self)
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
    def traced_epilogue(self) -> "TracedEpilogue":  # type: ignore[override]
        """The function as an expression graph, with its accumulator as ``example_inputs``."""
        return TracedEpilogue(_TRACED(self), tuple(self._tensors["D"].shape))

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
        copied._tensors |= _wrapped(self._tensors, owner)
        copied._is_owned = True
        return copied

    def detached(self, owner: Any) -> "GeneratedEpilogue":
        """The same epilogue without the tensors, of which wrappers remain."""
        return GeneratedEpilogue(self.epilogue_fn, _detached(self._tensors, owner))


class TracedEpilogue:
    """An expression graph, with the attributes of :class:`cutlass_api.fusion.TracedEpilogue`.

    ``example_inputs``: ``accum``, the accumulated product, as an ``EmptyTensor``.
    """

    def __init__(self, traced: _core.TracedEpilogue, shape: tuple[int, ...]) -> None:
        from cutlass_api.operators.fusion import EmptyTensor

        self._traced = traced
        self.example_inputs = {"accum": EmptyTensor(_core.DType("float32"), shape)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._traced, name)

    def __eq__(self, other: object) -> bool:
        return self._traced == getattr(other, "_traced", other)

    def __hash__(self) -> int:
        return hash(self._traced)

    def __repr__(self) -> str:
        return repr(self._traced)


class GeneratedEpilogue:
    """An epilogue of any class with ``epilogue_fn`` and ``tensors``, whose tensors are wrapped.

    PyTorch has a class of its own for epilogues that it generates as source for the CuTe DSL.

    - ``epilogue_fn``: the function or source. A ``schema`` of a source names the inputs without
      dimensions as ``scalar_broadcast_names``.
    - ``tensors``: the operands by name.
    """

    traced_epilogue = None

    def __init__(self, epilogue_fn: Callable[..., Any] | str, tensors: dict[str, Any]) -> None:
        self.epilogue_fn = epilogue_fn
        self.tensors = tensors

    @classmethod
    def owned(cls, epilogue: Any, owner: Any) -> "GeneratedEpilogue":
        """The same epilogue with wrapped tensors. A replaced tensor changes the ``owner``."""
        if hasattr(epilogue, "to_tensor_wrappers"):
            # PyTorch copies strided inputs, here and in front of each later launch.
            epilogue = epilogue.copy()
            epilogue.to_tensor_wrappers()
        return cls(epilogue.epilogue_fn, _wrapped(epilogue.tensors, owner))

    @property
    def parameters(self) -> list[Any]:
        """The operands."""
        return list(self.tensors.values())

    @property
    def parameter_names(self) -> list[str]:
        """The names of the operands."""
        return list(self.tensors)

    def with_tensors(self, tensors: Mapping[str, Any]) -> "GeneratedEpilogue":
        """The same function with other operands."""
        return GeneratedEpilogue(self.epilogue_fn, dict(tensors))

    def detached(self, owner: Any) -> "GeneratedEpilogue":
        """The same epilogue without the tensors, of which wrappers remain."""
        return GeneratedEpilogue(self.epilogue_fn, _detached(self.tensors, owner))

    def current(self) -> _core.EpilogueArguments:
        """The epilogue of the current tensors.

        Raises ValueError for source that the language of epilogues cannot express.
        """
        values = {name: core_of(value) for name, value in self.tensors.items()}
        schema = getattr(self.epilogue_fn, "schema", None)
        for name in getattr(schema, "scalar_broadcast_names", ()):
            # PyTorch repeats a scalar along dimensions that kernels of NVIDIA read.
            if values[name].ndim == 2:
                values[name] = values[name][:1, :1]
        function = self.epilogue_fn
        source = translate(function) if isinstance(function, str) else function
        return _core.EpilogueArguments(source, **values)


_getter: Any = _core.EpilogueArguments.traced_epilogue
#: The graph of epilogue arguments, without its accumulator.
_TRACED: Callable[[Any], _core.TracedEpilogue] = _getter.__get__


def _tensor_of(value: Any) -> Any:
    return value.tensor if isinstance(value, (Load, Store)) else value


def _wrapped(tensors: Mapping[str, Any], owner: Any) -> dict[str, Any]:
    """The operands with their tensors wrapped. A replaced tensor changes the ``owner``."""

    def wrapped(value: Any) -> Any:
        if not isinstance(value, TensorLike):
            return value
        native = _core.TensorWrapper(without_memory(core_of(value)))
        return TensorWrapper.of_core(native, owner)

    return {name: wrapped(value) for name, value in tensors.items()}


def _detached(tensors: Mapping[str, Any], owner: Any) -> dict[str, Any]:
    return {
        name: value.detached(owner) if isinstance(value, TensorWrapper) else value
        for name, value in tensors.items()
    }


__all__ = ["EpilogueArguments", "GeneratedEpilogue", "Load", "Store", "Transport"]
