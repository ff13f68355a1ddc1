"""The arguments of a GEMM, and what all arguments of the core's operations share."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from cutlass_api import _core
from cutlass_api._faces import core_of
from cutlass_api.operators.arguments.base import RuntimeArguments
from cutlass_api.operators.arguments.epilogue import GeneratedEpilogue
from cutlass_api.operators.arguments.operand import (
    detached_operand,
    operand_of,
    operand_of_core,
)
from cutlass_api.operators.utils.dtype import to_cutlass_type
from cutlass_api.operators.utils.tensor import fake_like, is_torch_fake_tensor


class OperandField:
    """An operand of the core's arguments, made when a client reads it for the first time."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, args: Any, owner: type | None = None) -> Any:
        if args is None:
            return self
        args.make_operands()
        return args.__dict__[self._name]

    def __set__(self, args: Any, value: Any) -> None:
        args.make_operands()
        args.__dict__[self._name] = operand_of(value)
        args.forget()


class EpilogueField(OperandField):
    """The epilogue of the core's arguments. ``read``: the getter of the core."""

    def __init__(self, read: Any) -> None:
        self.read: Callable[[Any], Any] = read.__get__

    def __get__(self, args: Any, owner: type | None = None) -> Any:
        if args is not None and self.read(args) is None:
            return None
        return super().__get__(args, owner)

    def __set__(self, args: Any, value: Any) -> None:
        raise AttributeError("epilogue is part of the arguments; construct new ones with another")


class AccumulatorField:
    """The accumulator type of the core's arguments as a class of ``cutlass``. ``read``: its getter.

    It is read-only.
    """

    def __init__(self, read: Any) -> None:
        self._read: Callable[[Any], Any] = read.__get__

    def __get__(self, args: Any, owner: type | None = None) -> Any:
        return self if args is None else to_cutlass_type(self._read(args))

    def __set__(self, args: Any, value: Any) -> None:
        raise AttributeError("accumulator_type is part of the arguments; construct new ones")


class CoreArguments(RuntimeArguments):
    """Arguments of the core whose operands accept attributes and other tensors.

    The operands are made when a client reads one. After a client has changed an operand, or its
    tensor, :meth:`current` makes arguments of the current tensors.
    """

    #: The class of the core, and its operands.
    _class: ClassVar[Any]
    _operands: ClassVar[tuple[str, ...]] = ("A", "B", "out")
    _current: Any = None

    def make_operands(self) -> None:
        """Makes the operands and the epilogue, unless they are made."""
        own = self.__dict__
        if "A" in own:
            return
        for name in self._operands:
            own[name] = operand_of_core(getattr(self._class, name).__get__(self), self)
        epilogue = self._class.epilogue.__get__(self)
        if hasattr(epilogue, "owned_by"):
            epilogue = epilogue.owned_by(self)
        elif _is_generated(epilogue):
            epilogue = GeneratedEpilogue.owned(epilogue, self)
        own["epilogue"] = epilogue

    def forget(self) -> None:
        """Notes that an operand has changed."""
        self.is_changed, self._current = True, None

    def current(self) -> _core.RuntimeArguments:
        """These arguments, or those of the tensors that have replaced theirs.

        The epilogue of what it returns is one of the core, unless a kernel of the user's takes
        another class. Raises ValueError if the tensor of an operand has been set to None.
        """
        if not self.is_changed:
            if not _is_generated(self._class.epilogue.__get__(self)):
                return self
            self.make_operands()
            self.is_changed = True
        if self._current is None:
            accumulator_type = self._class.accumulator_type.__get__(self)
            self._current = _of_operands(self, accumulator_type, getattr(self, "prologue", None))
        found: _core.RuntimeArguments = self._current
        return found

    def detached(self) -> "DetachedArguments":
        """The same arguments without their tensors."""
        return DetachedArguments(self)

    def searched(self) -> _core.RuntimeArguments:
        """Arguments for a search of kernels. Those of FakeTensors are FakeTensors of the CPU.

        A search for operands on a GPU reads the GPU's properties, and makes a CUDA context.
        """
        self.make_operands()
        own = self.__dict__
        if not is_torch_fake_tensor(core_of(own["out"])):
            return self.current()

        def moved(value: Any) -> Any:
            tensor = core_of(value)
            return fake_like(tensor, "cpu") if is_torch_fake_tensor(tensor) else tensor

        epilogue = own["epilogue"]
        if epilogue is not None:
            tensors = {name: moved(value) for name, value in epilogue.tensors.items()}
            epilogue = GeneratedEpilogue(epilogue.epilogue_fn, tensors).current()
        found: _core.RuntimeArguments = self._class(
            **{name: moved(own[name]) for name in self._operands},
            accumulator_type=self._class.accumulator_type.__get__(self),
            epilogue=epilogue,
            performance=self.performance,
        )
        return found


class DetachedArguments(RuntimeArguments):
    """Arguments that keep no tensors: each call sets its own as ``args.A.tensor._runtime_tensor``.

    The core's arguments keep the tensors of their construction for their life. A graph that is
    captured into a pool of memory must not find any tensor of the pool alive.
    """

    is_changed = True

    def __init__(self, args: CoreArguments) -> None:
        args.make_operands()
        own = vars(args)
        self._class, self._operands = args._class, args._operands
        self._fixed = args._class.accumulator_type.__get__(args), getattr(args, "prologue", None)
        self.performance = args.performance
        self._current: Any = None
        vars(self).update(
            {name: value for name, value in own.items() if name not in vars(self)},
            **{name: detached_operand(own[name], self) for name in args._operands},
            is_changed=True,
        )
        epilogue = own["epilogue"]
        self.epilogue = None if epilogue is None else epilogue.detached(self)

    def forget(self) -> None:
        """Notes that an operand has changed."""
        self._current = None

    def current(self) -> _core.RuntimeArguments:
        """Arguments of the current tensors. Raises ValueError if one is missing."""
        if self._current is None:
            self._current = _of_operands(self, *self._fixed)
        found: _core.RuntimeArguments = self._current
        return found


def _of_operands(args: Any, accumulator_type: Any, prologue: Any) -> Any:
    own = args.__dict__
    epilogue = own["epilogue"]
    return args._class(
        **{name: core_of(own[name]) for name in args._operands},
        **({} if prologue is None else {"prologue": prologue}),
        accumulator_type=accumulator_type,
        epilogue=epilogue.current() if hasattr(epilogue, "current") else epilogue,
        performance=args.performance,
    )


def _is_generated(epilogue: Any) -> bool:
    """Whether an epilogue is source in an object of a class that the core does not know."""
    if epilogue is None or isinstance(epilogue, _core.EpilogueArguments):
        return False
    return isinstance(getattr(epilogue, "epilogue_fn", None), str) and hasattr(epilogue, "tensors")


class GemmProblemSize(NamedTuple):
    """The extents of a GEMM: A has shape (L, M, K), B (L, K, N), out (L, M, N)."""

    M: int
    N: int
    K: int
    L: int


class GemmArguments(_core.GemmArguments, CoreArguments):
    """out = A @ B. The arguments, operands and tensors accept new attributes.

    The parameters, what they accept and the errors are those of
    :class:`cutlass_api.arguments.GemmArguments`.

    Setting ``args.A.tensor._runtime_tensor`` replaces a tensor by one with the same dtype, shape
    and strides; None releases it, and the arguments cannot run until there is another one.
    """

    # The constructor of the core is called without a frame of Python.
    __init__ = object.__init__
    __repr__ = _core.RuntimeArguments.__repr__
    _class = _core.GemmArguments

    A: Any = OperandField()
    B: Any = OperandField()
    out: Any = OperandField()
    accumulator_type: Any = AccumulatorField(_core.GemmArguments.accumulator_type)
    epilogue: Any = EpilogueField(_core.GemmArguments.epilogue)
    performance: Any = _core.RuntimeArguments.performance

    @property
    def problem_size(self) -> GemmProblemSize:
        """The extents."""
        a, b = self.A.shape, self.B.shape
        return GemmProblemSize(a[-2], b[-1], a[-1], a[0] if len(a) == 3 else 1)


__all__ = ["GemmArguments", "GemmProblemSize"]
