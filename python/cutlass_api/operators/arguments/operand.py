"""Operands: dense tensors, and tensors with scales."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from cutlass_api import _core
from cutlass_api._faces import core_of
from cutlass_api.library import ScaleMode, ScaleSwizzleMode
from cutlass_api.operators.arguments.base import Operand
from cutlass_api.operators.utils.tensor import TensorWrapper, without_memory
from cutlass_api.typing import TensorLike
from cutlass_api.utils import ceil_div, round_up


@dataclass
class DenseTensor(Operand):
    """A tensor without scales. Attributes that it lacks are those of ``tensor``.

    ``tensor``: what the constructor received. In arguments, a
    :class:`~cutlass_api.operators.utils.tensor.TensorWrapper`, so that ``dtype``, ``shape``,
    ``stride`` and ``data_ptr`` are the same for every framework.
    """

    tensor: TensorLike

    def __copy__(self) -> "DenseTensor":
        return DenseTensor(self.tensor)

    def __getattr__(self, name: str) -> Any:
        # Without __dlpack__ of the tensor: the core reads the tensor itself.
        if name.startswith("__") or name == "tensor":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.tensor, name)

    def __cutlass_operand__(self) -> Any:
        """The tensor, which the core takes for a dense operand."""
        tensor: Any = self.tensor
        if isinstance(tensor, TensorWrapper):
            return tensor.__cutlass_operand__()
        return without_memory(core_of(tensor))


@dataclass(init=False)
class ScaledOperand(Operand):
    """A tensor of values with a tensor of scales, each shared by a block of values.

    - ``quantized``, ``scale``: tensors.
    - ``mode``: the extents of a block, a :class:`ScaleMode` or a tuple (batch, row, column).
    - ``swizzle``: the :class:`ScaleSwizzleMode` of ``scale``.

    The layouts of scales are those of :class:`cutlass_api.arguments.ScaledTensor`. Attributes that
    it lacks are those of ``quantized``. Raises TypeError for what is no tensor, mode or swizzle.
    """

    quantized: DenseTensor
    scale: DenseTensor
    mode: ScaleMode | tuple[int, ...]
    swizzle: ScaleSwizzleMode

    def __init__(
        self,
        quantized: TensorLike | DenseTensor,
        scale: TensorLike | DenseTensor,
        mode: ScaleMode | tuple[int, ...],
        swizzle: ScaleSwizzleMode,
    ) -> None:
        self.quantized, self.scale = _dense("quantized", quantized), _dense("scale", scale)
        if not isinstance(mode, (ScaleMode, tuple)):
            raise TypeError(f"mode of ScaledOperand is {mode!r}; pass a ScaleMode, or a tuple")
        if not isinstance(swizzle, ScaleSwizzleMode):
            raise TypeError(f"swizzle of ScaledOperand is {swizzle!r}; pass a ScaleSwizzleMode")
        self.mode, self.swizzle = mode, swizzle

    def __copy__(self) -> "ScaledOperand":
        return ScaledOperand(self.quantized, self.scale, self.mode, self.swizzle)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "quantized":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.quantized, name)

    def __cutlass_operand__(self) -> Any:
        """The ``ScaledTensor`` of the core."""
        parts = core_of(self.quantized), core_of(self.scale)
        return _core.ScaledTensor(*parts, self.mode, self.swizzle)

    @staticmethod
    def numel_scale(
        quantized_shape: Sequence[int],
        mode: ScaleMode | tuple[int, ...],
        swizzle: ScaleSwizzleMode,
    ) -> int:
        """The number of scales of an operand.

        ``quantized_shape``: (rows, K) or (batch, rows, K); the rows of B are those of its
        transpose. Raises ValueError for another rank and for an unknown swizzle.
        """
        if len(quantized_shape) not in (2, 3):
            raise ValueError(
                f"quantized_shape is {tuple(quantized_shape)}; pass (rows, K) or (batch, rows, K)"
            )
        *outer, k = quantized_shape
        blocks = ceil_div(k, ScaleMode.numel(mode))
        if swizzle == ScaleSwizzleMode.SwizzleNone:
            return prod(outer) * blocks
        if swizzle == ScaleSwizzleMode.Swizzle32x4x4:
            return prod(outer[:-1]) * round_up(outer[-1], 128) * round_up(blocks, 4)
        raise ValueError(f"swizzle is {swizzle!r}; pass a ScaleSwizzleMode")


def _dense(name: str, tensor: TensorLike | DenseTensor) -> DenseTensor:
    if isinstance(tensor, DenseTensor):
        copied = tensor.copy()
        assert isinstance(copied, DenseTensor)
        return copied
    if isinstance(tensor, TensorLike):
        return DenseTensor(tensor)
    reason = ", which has scales of its own" if isinstance(tensor, ScaledOperand) else ""
    value = type(tensor).__name__ if reason else repr(tensor)
    raise TypeError(f"{name} of ScaledOperand is {value}{reason}; pass a tensor or a DenseTensor")


def operand_of(value: Any) -> Any:
    """An operand for what arguments received: a copy of an operand, or of a dense tensor.

    Returns other objects, such as a list of matrices, as they are.
    """
    if isinstance(value, Operand):
        return value.copy()
    return DenseTensor(value) if isinstance(value, TensorLike) else value


def operand_of_core(operand: Any) -> Any:
    """The operand for one of the core.

    Returns as they are a list of matrices, and weights with zero points or factors.
    """
    if isinstance(operand, _core.ScaledTensor):
        if operand.zero is not None or operand.factor is not None:
            return operand
        values, scales = (
            DenseTensor(TensorWrapper.of_core(part.tensor))
            for part in (operand.base, operand.scale)
        )
        return ScaledOperand(values, scales, operand.mode, operand.swizzle)
    if not isinstance(operand, _core.DenseTensor):
        return operand
    return DenseTensor(TensorWrapper.of_core(operand.tensor))


def detached_operand(operand: Any) -> Any:
    """The operand without its tensors.

    Returns as they are operands other than dense tensors and tensors with scales.
    """
    if isinstance(operand, ScaledOperand):
        values, scales = detached_operand(operand.quantized), detached_operand(operand.scale)
        return ScaledOperand(values, scales, operand.mode, operand.swizzle)
    if isinstance(operand, DenseTensor) and isinstance(operand.tensor, TensorWrapper):
        return DenseTensor(operand.tensor.detached())
    return operand


__all__ = ["DenseTensor", "ScaleMode", "ScaleSwizzleMode", "ScaledOperand"]
