"""The arguments of an epilogue, and how its tensors are copied."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar

from cutlass_api import _core
from cutlass_api._faces import core_of
from cutlass_api.operators.fusion.generated import translate
from cutlass_api.operators.utils.tensor import TensorWrapper, is_torch_tensor, without_memory
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


class EpilogueArguments:
    """An epilogue function with its operands, as :class:`cutlass_api.arguments.EpilogueArguments`.

    Source may also be what PyTorch generates for the CuTe DSL, such as ``cute.math.tanh(accum)``.
    A keyword also takes a :class:`Load` or a :class:`Store`, and a torch tensor on the meta device,
    which has no memory.

    - ``epilogue_fn``: the function or its source.
    - ``tensors``: the operands by name: tensors and numbers, and wrappers of tensors in arguments.
    - ``transports``: the transports by name of the operand, for those that have one.

    Searches, compilations and runs use what the attributes hold then.

    Raises ValueError if an input is wrapped in ``Store`` or an output in ``Load``.
    """

    def __init__(self, epilogue_fn: Callable[..., Any] | str, **kwargs: Any) -> None:
        self.epilogue_fn = epilogue_fn
        self.transports: dict[str, Load | Store] = {
            name: value for name, value in kwargs.items() if isinstance(value, (Load, Store))
        }
        plain = {name: _tensor_of(value) for name, value in kwargs.items()}
        self.tensors: dict[str, Any] = plain
        #: The values that the epilogue of the core was made of, and that epilogue.
        self._made: tuple[dict[str, Any], _core.EpilogueArguments] | None = None
        made = self.current()
        traced = made.traced_epilogue
        for name, copied in self.transports.items():
            expected = [Load] * (name in traced.inputs) + [Store] * (name in traced.outputs)
            if type(copied) not in expected:
                raise ValueError(
                    f"operand {name!r} of the epilogue is a {type(copied).__name__}; pass "
                    f"{' or '.join(wanted.__name__ for wanted in expected)}"
                )
        self.tensors = {name: plain[name] for name in made.parameter_names}

    @property
    def traced_epilogue(self) -> "TracedEpilogue":
        """The function as an expression graph, with its accumulator as ``example_inputs``."""
        made = self._made
        is_current = made is not None and made[0]["epilogue_fn"] is self.epilogue_fn
        of_core = made[1] if made is not None and is_current else self.current()
        return TracedEpilogue(of_core.traced_epilogue, tuple(self.tensors["D"].shape))

    @property
    def parameters(self) -> list[Any]:
        """The operands."""
        return list(self.tensors.values())

    @property
    def parameter_names(self) -> list[str]:
        """The names of the operands."""
        return list(self.tensors)

    def trace(self, accumulator_shape: tuple[int, ...], accumulator_type: Any) -> None:
        """Checks the operands for an accumulator.

        Raises ValueError if ``D`` has another shape or an operand does not broadcast to it.
        """
        self.current().trace(list(accumulator_shape), accumulator_type)

    def to_tensor_wrappers(self, permute: Sequence[int] | None = None) -> None:
        """Wraps the tensors. ``permute``: the order that their dimensions are put in before."""
        if permute is not None:
            self.tensors = {
                name: value.permute(permute) if is_torch_tensor(value) else value
                for name, value in self.tensors.items()
            }
        self.tensors = _wrapped(self.tensors)

    def copy(self) -> "Self":
        """New arguments of the same function and tensors."""
        return self.__copy__()

    def __copy__(self) -> "Self":
        copied = type(self).__new__(type(self))
        own = {"tensors": dict(self.tensors), "transports": dict(self.transports)}
        vars(copied).update(vars(self), **own)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_made": None}

    def current(self) -> _core.EpilogueArguments:
        """The epilogue of the core. Raises ValueError if a tensor was released."""
        values = {name: without_memory(core_of(value)) for name, value in self.tensors.items()}
        values["epilogue_fn"] = function = self.epilogue_fn
        made = self._made
        if made is None or not _are_same(made[0], values):
            source = translate(function) if isinstance(function, str) else function
            operands = {name: values[name] for name in values if name != "epilogue_fn"}
            self._made = made = values, _core.EpilogueArguments(source, **operands)
        return made[1]

    __cutlass_operand__ = current

    def owned(self) -> "Self":
        """A copy with wrapped tensors."""
        copied = self.copy()
        copied.to_tensor_wrappers()
        return copied

    def detached(self) -> "GeneratedEpilogue":
        """The same epilogue without the tensors, of which wrappers remain."""
        return _detached_epilogue(self)

    def __repr__(self) -> str:
        graph, operands = self.traced_epilogue, ", ".join(self.tensors)
        return f"<{type(self).__name__} {graph}: {operands}>"


class TracedEpilogue:
    """An expression graph, with the attributes of :class:`cutlass_api.fusion.TracedEpilogue`.

    ``example_inputs``: ``accum``, the accumulated product, as an ``EmptyTensor``.
    """

    def __init__(self, traced: _core.TracedEpilogue, shape: tuple[int, ...]) -> None:
        from cutlass_api.operators.fusion import EmptyTensor
        from cutlass_api.operators.utils.layout import LayoutType

        self._traced = traced
        accumulator = EmptyTensor(element="float32", shape=shape, layout_tag=LayoutType.RowMajor)
        self.example_inputs = {"accum": accumulator}

    @classmethod
    def of_function(cls, function: Any, tensors: Mapping[str, Any]) -> "TracedEpilogue":
        """The graph of a function or its source. ``tensors``: the operands, with ``D``."""
        source = translate(function) if isinstance(function, str) else function
        return cls(_core.trace_epilogue(source), tuple(tensors["D"].shape))

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
        #: The transports by name of the operand, of which PyTorch's class has none.
        self.transports: dict[str, Load | Store] = {}

    @classmethod
    def of(cls, epilogue: Any) -> "GeneratedEpilogue":
        """The same epilogue with wrapped tensors."""
        if hasattr(epilogue, "to_tensor_wrappers"):
            # PyTorch copies strided inputs, here and in front of each later launch.
            epilogue = epilogue.copy()
            epilogue.to_tensor_wrappers()
        return cls(epilogue.epilogue_fn, _wrapped(epilogue.tensors))

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

    def detached(self) -> "GeneratedEpilogue":
        """The same epilogue without the tensors, of which wrappers remain."""
        return _detached_epilogue(self)

    def current(self) -> _core.EpilogueArguments:
        """The epilogue of the current tensors.

        Raises ValueError for source that the language of epilogues cannot express.
        """
        function = self.epilogue_fn
        operands = {name: core_of(value) for name, value in self.tensors.items()}
        schema = getattr(function, "schema", None)
        for name in getattr(schema, "scalar_broadcast_names", ()):
            # PyTorch repeats a scalar along dimensions that kernels of NVIDIA read.
            if operands[name].ndim == 2:
                operands[name] = operands[name][:1, :1]
        source = translate(function) if isinstance(function, str) else function
        return _core.EpilogueArguments(source, **operands)


def owned_epilogue(epilogue: Any) -> Any:
    """The epilogue of arguments: a copy with wrapped tensors. Other classes stay as they are."""
    if isinstance(epilogue, EpilogueArguments):
        return epilogue.owned()
    return GeneratedEpilogue.of(epilogue) if is_generated(epilogue) else epilogue


def without_tensors(epilogue: Any) -> Any:
    """The epilogue of arguments without its tensors. None for one of another class."""
    detach = getattr(epilogue, "detached", None)
    return None if detach is None else detach()


def check_epilogue(epilogue: Any) -> None:
    """Raises TypeError for what is no epilogue: an object of any class with ``epilogue_fn``."""
    if epilogue is not None and not hasattr(epilogue, "epilogue_fn"):
        raise TypeError(
            f"epilogue is {epilogue!r}; pass EpilogueArguments(fn, ...) with the function or its "
            "source, and its operands as keywords"
        )


def is_generated(epilogue: Any) -> bool:
    """Whether an epilogue is source in an object of a class that this package does not know."""
    if isinstance(epilogue, (EpilogueArguments, _core.EpilogueArguments)):
        return False
    return isinstance(getattr(epilogue, "epilogue_fn", None), str) and hasattr(epilogue, "tensors")


def _tensor_of(value: Any) -> Any:
    return value.tensor if isinstance(value, (Load, Store)) else value


def _wrapped(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The operands with their tensors wrapped."""

    def wrapped(value: Any) -> Any:
        if not isinstance(value, TensorLike):
            return value
        return TensorWrapper.of_core(_core.TensorWrapper(without_memory(core_of(value))))

    return {name: wrapped(value) for name, value in tensors.items()}


def _detached_epilogue(epilogue: Any) -> GeneratedEpilogue:
    tensors = {
        name: value.detached() if isinstance(value, TensorWrapper) else value
        for name, value in epilogue.tensors.items()
    }
    transports = getattr(epilogue, "transports", {}).items()
    detached = GeneratedEpilogue(epilogue.epilogue_fn, tensors)
    detached.transports = {name: replace(each, tensor=tensors[name]) for name, each in transports}
    return detached


def _are_same(values: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether two mappings have the same objects under the same names."""
    return values.keys() == others.keys() and all(map(is_, values.values(), others.values()))


__all__ = [
    "EpilogueArguments",
    "GeneratedEpilogue",
    "Load",
    "Store",
    "Transport",
    "check_epilogue",
    "is_generated",
    "owned_epilogue",
    "without_tensors",
]
