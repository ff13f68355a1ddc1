"""The arguments of a GEMM, and what all arguments of the core's operations share."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import is_
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from cutlass_api import _core
from cutlass_api._faces import core_of
from cutlass_api.operators.arguments.base import (
    Operand,
    PerformanceControls,
    RuntimeArguments,
    check_performance,
)
from cutlass_api.operators.arguments.epilogue import (
    EpilogueArguments,
    GeneratedEpilogue,
    check_epilogue,
    owned_epilogue,
)
from cutlass_api.operators.arguments.operand import (
    DenseTensor,
    detached_operand,
    operand_of,
    operand_of_core,
)
from cutlass_api.operators.typing import NumericLike, TensorLike
from cutlass_api.operators.utils.dtype import to_cutlass_type
from cutlass_api.operators.utils.tensor import fake_like, is_torch_fake_tensor

if TYPE_CHECKING:
    from typing_extensions import Self

Arguments = TypeVar("Arguments", bound="type[CoreArguments]")


class ArgumentField:
    """A parameter of the core's arguments. The first access to one unpacks all of them."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, args: Any, owner: type | None = None) -> Any:
        if args is None:
            return self
        args.unpack()
        try:
            return args.__dict__[self._name]
        except KeyError:
            raise AttributeError(f"{type(args).__name__} has no {self._name} yet") from None

    def __set__(self, args: Any, value: Any) -> None:
        args.unpack()
        args.__dict__[self._name] = value


class EpilogueField(ArgumentField):
    """The epilogue of the core's arguments. ``read``: the getter of the core."""

    def __init__(self, read: Any) -> None:
        super().__init__("epilogue")
        self.read: Callable[[Any], Any] = read.__get__

    def __get__(self, args: Any, owner: type | None = None) -> Any:
        if args is not None and not args.is_unpacked and self.read(args) is None:
            return None
        return super().__get__(args, owner)

    def __set__(self, args: Any, value: Any) -> None:
        check_epilogue(value)
        super().__set__(args, value)


class PerformanceField(ArgumentField):
    """The performance controls, of which the class is checked."""

    def __set__(self, args: Any, value: Any) -> None:
        check_performance(value)
        super().__set__(args, value)


class AccumulatorField(ArgumentField):
    """The accumulator type, read as a class of ``cutlass``, which is imported then. Checked."""

    def __get__(self, args: Any, owner: type | None = None) -> Any:
        value = super().__get__(args, owner)
        return value if args is None else to_cutlass_type(value)

    def __set__(self, args: Any, value: Any) -> None:
        try:
            to_cutlass_type(value)
        except TypeError:
            raise TypeError(
                f"accumulator_type is {value!r}; pass an element type such as torch.float32"
            ) from None
        super().__set__(args, value)


def with_fields(arguments: Arguments) -> Arguments:
    """A class decorator that makes the fields of a dataclass, and ``prologue``, descriptors."""
    of_core = arguments._class
    for name in (*(each.name for each in fields(arguments)), "prologue"):
        if hasattr(of_core, name):
            setattr(arguments, name, ArgumentField(name))
    arguments.accumulator_type = AccumulatorField("accumulator_type")
    arguments.performance = PerformanceField("performance")
    arguments.epilogue = EpilogueField(of_core.epilogue)
    return arguments


class CoreArguments(RuntimeArguments):
    """Arguments of the core whose attributes can be read and set.

    The constructor makes the core's arguments, which runs take as they are. The first time that a
    client reads or sets an attribute, :meth:`unpack` makes all attributes. From then on they say
    what the arguments are, and :meth:`current` makes the core's arguments of them. Arguments of a
    subclass are always unpacked, because its constructor may have other parameters.
    """

    accumulator_type: Any
    epilogue: Any
    performance: Any
    #: The class of the core, its operands, and the constructor of the base.
    _class: ClassVar[Any]
    _operands: ClassVar[tuple[str, ...]] = ("A", "B", "out")
    _new: ClassVar[Any]
    #: The values that arguments of the core were made of, and these arguments.
    _made: tuple[tuple[Any, ...], _core.RuntimeArguments] | None = None
    #: Whether `_made` is kept for the next call.
    _is_kept = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "_class" not in vars(cls) and "__new__" not in vars(cls):
            cls.__new__ = staticmethod(unread)  # type: ignore[method-assign]

    def initialize(self, **parameters: Any) -> None:
        """Sets the attributes to copies of the operands, and to the other parameters."""
        own = vars(self)
        own.update(parameters, is_unpacked=True)
        own.update({name: operand_of(own[name]) for name in self._operands})
        self.__post_init__()

    def __post_init__(self) -> None:
        """Converts the attributes. Raises as the constructor of the core."""
        super().__post_init__()
        check_performance(self.performance)
        check_epilogue(self.epilogue)
        self.epilogue = owned_epilogue(self.epilogue)
        self.current()
        self._validate()

    def __reduce__(self) -> tuple[Any, ...]:
        self.unpack()
        state = {name: value for name, value in vars(self).items() if name != "_made"}
        return unread, (type(self),), state

    def unpack(self) -> None:
        """Makes the attributes of the core's arguments, unless they are made."""
        if self.is_unpacked:
            return
        made = {"epilogue": owned_epilogue(self._class.epilogue.__get__(self))}
        for name in ("accumulator_type", "performance", "prologue", *self._operands):
            read = getattr(self._class, name, None)
            made[name] = read and operand_of_core(read.__get__(self))
        own = self.__dict__
        for name, value in made.items():
            own.setdefault(name, value)  # Another thread may have made it, and a client changed it.
        own["is_unpacked"] = True

    def current(self) -> _core.RuntimeArguments:
        """The core's arguments for the attributes. These, if an operand has no counterpart there.

        The epilogue of what it returns is one of the core, unless a kernel of the user's takes
        another class. Raises ValueError if a tensor of an operand has been set to None, and
        BufferError, TypeError or ValueError as the constructor.
        """
        if not self.is_unpacked:
            return self
        own = self.__dict__
        epilogue, prologue = own["epilogue"], own.get("prologue")
        epilogue = epilogue.current() if hasattr(epilogue, "current") else epilogue
        operands = [core_of(own[name]) for name in self._operands]
        values = (*operands, own["accumulator_type"], epilogue, own["performance"], prologue)
        known = self._made
        if known is not None and all(map(is_, known[0], values)):
            return known[1]
        if any(operand is None for operand in operands):
            return self._without_counterpart()
        made: _core.RuntimeArguments = self._class(
            **dict(zip(self._operands, operands, strict=True)),
            accumulator_type=own["accumulator_type"],
            epilogue=epilogue,
            performance=own["performance"],
            **({} if prologue is None else {"prologue": prologue}),
        )
        if self._is_kept:
            own["_made"] = values, made
        return made

    def _without_counterpart(self) -> "Self":
        """Arguments of which the core has read no operand. Raises TypeError for operand None."""
        for name in self._operands:
            value = self.__dict__[name]
            if value is None or (isinstance(value, DenseTensor) and value.tensor is None):
                raise TypeError(f"{name} is {value!r}; pass a tensor or an Operand of tensors")
        if self._class.out.__get__(self) is None:
            return self
        blank: Self = unread(type(self))
        vars(blank).update(vars(self))
        return blank

    def detached(self) -> "Self":
        """The same arguments without their tensors, for calls that each set their own tensors.

        They keep no tensor between two calls: a graph that is captured into a pool of memory must
        not find any tensor of the pool alive.
        """
        copied = copy.copy(self)
        own = vars(copied)
        own.update({name: detached_operand(own[name]) for name in self._operands}, _is_kept=False)
        if (epilogue := own["epilogue"]) is not None:
            own["epilogue"] = epilogue.detached()
        return copied

    def searched(self) -> _core.RuntimeArguments:
        """Arguments for a search of kernels. Those of FakeTensors are FakeTensors of the CPU.

        A search for operands on a GPU reads the GPU's properties, and makes a CUDA context.
        """
        self.unpack()
        if not is_torch_fake_tensor(core_of(self.__dict__["out"])):
            return self.current()

        def moved(value: Any) -> Any:
            tensor = core_of(value)
            return fake_like(tensor, "cpu") if is_torch_fake_tensor(tensor) else tensor

        copied = copy.copy(self)
        own = vars(copied)
        own.update({name: moved(own[name]) for name in self._operands})
        if (epilogue := own["epilogue"]) is not None:
            tensors = {name: moved(value) for name, value in epilogue.tensors.items()}
            own["epilogue"] = GeneratedEpilogue(epilogue.epilogue_fn, tensors)
        return copied.current()


def unread(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Arguments that the core has not read: ``__init__`` sets their attributes."""
    required = (*cls._operands, "accumulator_type")
    self = cls._new(cls, **dict.fromkeys(required, ...))
    self.__dict__.update(is_unpacked=True, epilogue=None, performance=None)
    return self


class GemmProblemSize(NamedTuple):
    """The extents of a GEMM: A has shape (L, M, K), B (L, K, N), out (L, M, N)."""

    M: int
    N: int
    K: int
    L: int


@with_fields
@dataclass(init=False)
class GemmArguments(_core.OpenGemmArguments, CoreArguments):
    """out = A @ B. The arguments, operands and tensors accept new attributes.

    The parameters, what they accept and the errors are those of
    :class:`cutlass_api.arguments.GemmArguments`.

    The next search, compilation and run use what the attributes hold then. Setting
    ``args.A.tensor._runtime_tensor`` replaces a tensor by one with the same dtype, shape and
    strides; after None, the arguments cannot run until there is another one.
    """

    _class = _core.GemmArguments
    _new = _core.OpenGemmArguments.__new__

    A: Any = field()
    B: Any = field()
    out: Any = field()
    accumulator_type: NumericLike = field()  # type: ignore[assignment]
    epilogue: EpilogueArguments | None = field()

    def __cutlass_init__(
        self,
        A: TensorLike | Operand,
        B: TensorLike | Operand,
        out: TensorLike | Operand,
        accumulator_type: NumericLike,
        epilogue: Any = None,
        performance: PerformanceControls | None = None,
        prologue: Any = None,
    ) -> None:
        """The constructor if an :class:`Operand`, an epilogue or performance is passed."""
        parameters = {"performance": performance, "prologue": prologue, "epilogue": epilogue}
        self.initialize(A=A, B=B, out=out, accumulator_type=accumulator_type, **parameters)

    @property
    def problem_size(self) -> GemmProblemSize:
        """The extents."""
        a, b = self.A.shape, self.B.shape
        return GemmProblemSize(a[-2], b[-1], a[-1], a[0] if len(a) == 3 else 1)


__all__ = ["GemmArguments", "GemmProblemSize"]
