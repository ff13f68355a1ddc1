"""Tensors without memory, for traces of epilogues."""

from collections.abc import Sequence
from math import prod
from typing import Any

from cutlass_api.operators.utils.dtype import to_cutlass_type
from cutlass_api.operators.utils.layout import LayoutType
from cutlass_api.operators.utils.tensor import TensorWrapper
from cutlass_api.typing import NumericLike


class EmptyTensor:
    """A tensor without memory: an element type, extents and strides.

    - ``tensor``: a tensor, a number or an ``EmptyTensor`` with the same description; None: the
      description consists of ``element``, ``shape``, and ``stride`` or ``layout_tag``.
    - ``element``: the element type.
    - ``shape``, ``stride``: the extents, and the strides in elements. The stride of an extent 1
      is 0.
    - ``layout_tag``: a :class:`LayoutType` in place of ``stride``.
    - ``is_constant``: whether ``value`` keeps ``tensor``.

    A number has dtype float32 and shape (1,). Raises ValueError for other combinations.
    """

    def __init__(
        self,
        tensor: Any = None,
        element: NumericLike | None = None,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        layout_tag: LayoutType | None = None,
        is_constant: bool = False,
    ) -> None:
        if isinstance(tensor, EmptyTensor):
            vars(self).update(vars(tensor))
            return
        described = {"element": element, "shape": shape, "stride": stride, "layout_tag": layout_tag}
        passed = [name for name, value in described.items() if value is not None]
        if passed not in (
            [["element", "shape", "stride"], ["element", "shape", "layout_tag"]]
            if tensor is None
            else [[]]
        ):
            names = ", ".join(passed if tensor is None else ["tensor", *passed]) or "nothing"
            raise ValueError(
                f"EmptyTensor received {names}; pass tensor alone, or element, shape and one of "
                "stride and layout_tag"
            )
        self.is_constant = is_constant
        if is_constant and tensor is not None:
            self.value = tensor
        if tensor is None:
            assert shape is not None
            self.element = to_cutlass_type(element)
            self._shape = tuple(shape)
            self._stride = tuple(stride or _contiguous(self._shape, layout_tag))
        elif isinstance(tensor, (int, float)):
            self.element, self._shape, self._stride = to_cutlass_type("float32"), (1,), (0,)
        else:
            wrapper = TensorWrapper(tensor)
            self.element = wrapper.dtype
            self._shape, self._stride = wrapper.shape, wrapper.stride
        self._stride = tuple(
            0 if extent == 1 else step
            for extent, step in zip(self._shape, self._stride, strict=True)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents."""
        return self._shape

    @property
    def stride(self) -> tuple[int, ...]:
        """The strides in elements; 0 along which the tensor is broadcast."""
        return self._stride

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    def broadcast(self, shape: Sequence[int]) -> None:
        """Broadcasts to ``shape``. Raises ValueError for an extent that is not 1 and differs."""
        front = len(shape) - self.rank
        extents = (1,) * front + self._shape
        steps = (0,) * front + self._stride
        if front < 0 or any(own not in (1, to) for own, to in zip(extents, shape, strict=True)):
            raise ValueError(f"shape {self._shape} does not broadcast to {tuple(shape)}")
        pairs = zip(extents, shape, steps, strict=True)
        self._stride = tuple(0 if own != to else step for own, to, step in pairs)
        self._shape = tuple(shape)

    def reshape(self, shape: Sequence[int]) -> None:
        """Divides and joins dimensions.

        Raises ValueError if the count of elements differs or the elements would have to move.
        """
        if prod(shape) != prod(self._shape) or min(shape, default=1) < 0:
            raise ValueError(f"shape {self._shape} cannot become {tuple(shape)}")
        if self._stride == _strides_of_rows(self._shape):
            self._stride = _strides_of_rows(shape)
        elif self._shape != tuple(shape):
            raise ValueError(
                f"strides {self._stride} of shape {self._shape} are not those of contiguous rows; "
                f"it cannot become {tuple(shape)}"
            )
        self._shape = tuple(shape)

    def permute(self, indices: Sequence[int]) -> None:
        """Puts the dimensions in the order of ``indices``, as ``torch.permute``."""
        if sorted(indices) != list(range(self.rank)):
            raise ValueError(f"indices are {tuple(indices)}; pass an order of {self.rank} numbers")
        self._shape = tuple(self._shape[index] for index in indices)
        self._stride = tuple(self._stride[index] for index in indices)

    def __repr__(self) -> str:
        return f"<EmptyTensor {self.element}{list(self._shape)}>"


def _strides_of_rows(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(0 if extent == 1 else prod(shape[at + 1 :]) for at, extent in enumerate(shape))


def _contiguous(shape: Sequence[int], layout: LayoutType | None) -> tuple[int, ...]:
    if layout is LayoutType.ColumnMajor:
        return _strides_of_rows(shape[::-1])[::-1]
    return _strides_of_rows(shape)


__all__ = ["EmptyTensor"]
