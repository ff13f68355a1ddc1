"""Helpers for tensors and strides."""

from collections.abc import Sequence
from typing import Any, NoReturn

from cutlass_api import _core
from cutlass_api import utils as core_utils
from cutlass_api._faces import core_of
from cutlass_api.operators._unserved import refuse
from cutlass_api.operators.utils.dtype import PAIRS_OF_FOUR_BITS, to_cutlass_type
from cutlass_api.utils import (
    get_stride_rank,
    is_numpy_tensor,
    is_torch_fake_tensor,
    is_torch_tensor,
    leading_dim,
    strides_to_layout_string,
)


class TensorWrapper:
    """A tensor of any framework, with the same attributes for all. It accepts new attributes.

    - ``tensor``: an object with ``__dlpack__``, a torch FakeTensor, or a wrapper. A torch tensor on
      the meta device becomes a FakeTensor on the GPU.
    - ``alignment_bytes``: the address is a multiple of this; None: the size of an element.
    - ``static_layout``: has no effect, because kernels read extents at run time.

    Setting ``_runtime_tensor`` replaces the tensor by one with the same dtype, shape and strides;
    None releases it. ``_data_ptr`` may be set too, but the address is always that of the tensor.

    Raises ValueError if the address is no multiple of ``alignment_bytes``, TypeError if ``tensor``
    is no tensor, BufferError if it has no strided memory.
    """

    def __init__(
        self, tensor: Any, alignment_bytes: int | None = None, static_layout: bool = False
    ) -> None:
        if isinstance(tensor, TensorWrapper):
            alignment_bytes = alignment_bytes or tensor._alignment_bytes
            tensor = core_of(tensor)
        self._describe(_core.TensorWrapper(without_memory(tensor), alignment_bytes))

    @classmethod
    def of_core(cls, native: _core.TensorWrapper) -> "TensorWrapper":
        """A wrapper of a tensor of the core."""
        self = cls.__new__(cls)
        self._describe(native)
        return self

    def _describe(self, native: _core.TensorWrapper) -> None:
        tensor = native.compile_time_tensor
        self._fake = tensor if is_torch_fake_tensor(tensor) else None
        self._runtime_tensor: Any = None if self._fake is not None else tensor
        self._alignment_bytes = native.alignment_bytes
        self._shape, self._stride = native.shape, native.stride
        self._element_type = native.element_type
        if is_torch_tensor(tensor):
            self._stride = tuple(tensor.stride())
        elif 1 in self._shape:
            self._stride = _with_unit_extents(self._shape, self._stride)
        if native.element_type.name == PAIRS_OF_FOUR_BITS:
            self._shape, self._stride = _unpacked(self._shape, self._stride)

    def detached(self) -> "TensorWrapper":
        """A wrapper with the same description, without the tensor."""
        copied = type(self).__new__(type(self))
        vars(copied).update(vars(self), _runtime_tensor=None, _fake=None)
        return copied

    @property
    def runtime_tensor(self) -> Any:
        """The tensor. Raises ValueError for a FakeTensor and after the tensor was released."""
        if self._runtime_tensor is None:
            what = "is a FakeTensor" if self._fake is not None else "was released"
            raise ValueError(f"the tensor {what} and has no memory; set _runtime_tensor")
        return self._runtime_tensor

    @property
    def compile_time_tensor(self) -> Any:
        """The tensor, which may be a FakeTensor."""
        return self.runtime_tensor if self._fake is None else self._fake

    def __cutlass_operand__(self) -> Any:
        """The tensor for the core. Raises ValueError after it was released."""
        tensor = self._runtime_tensor
        return self.compile_time_tensor if tensor is None else tensor

    @property
    def dtype(self) -> Any:
        """The element type: a class of ``cutlass``, or a ``DType`` if ``cutlass`` has none."""
        return to_cutlass_type(self._element_type)

    @property
    def element_type(self) -> Any:
        """As ``dtype``."""
        return self.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents in elements, also where a byte holds two."""
        return self._shape

    @property
    def stride(self) -> tuple[int, ...]:
        """The strides in elements. Those of extent 1 are torch's, else as of contiguous rows."""
        return self._stride

    @property
    def data_ptr(self) -> int:
        """The address of the first element; 0 without memory."""
        tensor = self._runtime_tensor
        return 0 if tensor is None else _core.TensorWrapper(tensor).data_ptr

    @property
    def _data_ptr(self) -> int:
        return self.data_ptr

    @_data_ptr.setter
    def _data_ptr(self, address: int) -> None:
        """The address follows the tensor."""

    def numel(self) -> int:
        """The number of elements."""
        count = 1
        for extent in self._shape:
            count *= extent
        return count

    def to(self, dtype: Any = None, device: Any = None) -> Any:
        """The framework's copy in another dtype or on another device, ``"cuda"`` or ``"cpu"``.

        Returns None without memory.
        """
        tensor = self._runtime_tensor
        if tensor is None:
            return None
        if not is_jax_array(tensor):
            return tensor.to(dtype=dtype, device=device)
        import jax

        if dtype is not None:
            tensor = tensor.astype(dtype)
        if device is None:
            return tensor
        return jax.device_put(tensor, jax.devices("gpu" if device == "cuda" else device)[0])

    def cuda(self) -> Any:
        """A copy on the GPU."""
        return self.to(device="cuda")

    def cpu(self) -> Any:
        """A copy on the CPU."""
        return self.to(device="cpu")

    def __dlpack__(self, **options: Any) -> Any:
        return self.runtime_tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.runtime_tensor.__dlpack_device__()

    def __repr__(self) -> str:
        return f"<TensorWrapper {self._element_type}{list(self._shape)}>"


def without_memory(tensor: Any) -> Any:
    """A FakeTensor on a GPU for a torch tensor on the meta device; else the tensor itself."""
    is_meta = is_torch_tensor(tensor) and tensor.device.type == "meta"
    return fake_like(tensor, "cuda") if is_meta else tensor


def fake_like(tensor: Any, device: str) -> Any:
    """A FakeTensor on a device, with the shape, strides and dtype of a torch tensor."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


def _with_unit_extents(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """Strides of which those of extent 1 span the dimension behind them; the core has 0."""
    steps: list[int] = []
    inner = 1
    for extent, step in zip(reversed(shape), reversed(stride), strict=True):
        steps.append(inner if extent == 1 else step)
        inner = steps[-1] * extent
    return tuple(reversed(steps))


def _unpacked(
    shape: Sequence[int], stride: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides in elements, from those in bytes that hold two elements each."""
    packed = major_mode(shape, stride)
    return (
        tuple(extent * 2 if at == packed else extent for at, extent in enumerate(shape)),
        tuple(step if at == packed else step * 2 for at, step in enumerate(stride)),
    )


def is_jax_array(tensor: Any) -> bool:
    """Whether ``tensor`` is a JAX array. Does not import JAX."""
    module = type(tensor).__module__.partition(".")[0]
    return module in ("jax", "jaxlib") and type(tensor).__name__.startswith("Array")


def get_stride_order(stride: Sequence[int]) -> tuple[int, ...]:
    """The dimensions in order of decreasing stride: (0, 2, 1) for (1024, 1, 512)."""
    return core_utils.get_stride_order(stride, reverse=True)


def major_mode(shape: Sequence[int], stride: Sequence[int]) -> int | None:
    """The first dimension with stride 1 and an extent other than 1; None if there is none.

    The last dimension if all extents are 1.
    """
    if all(extent == 1 for extent in shape):
        return len(shape) - 1
    pairs = enumerate(zip(shape, stride, strict=True))
    return next((at for at, (extent, step) in pairs if step == 1 and extent != 1), None)


def major_mode_from_tensor(tensor: TensorWrapper) -> int | None:
    """The :func:`major_mode` of a tensor's shape and strides."""
    return major_mode(tensor.shape, tensor.stride)


def normalized_major_stride(
    shape: Sequence[int], stride: Sequence[int], prepend_zeros_to_rank: int | None = None
) -> tuple[int, ...] | None:
    """1 for the :func:`major_mode` and 0 for other dimensions; None if there is no major mode.

    ``prepend_zeros_to_rank``: the length up to which zeros stand in front.
    """
    mode = major_mode(shape, stride)
    if mode is None:
        return None
    front = max((prepend_zeros_to_rank or 0) - len(shape), 0)
    return (0,) * front + tuple(int(at == mode) for at in range(len(stride)))


def pre_shuffle_int4_a(tensor: Any) -> NoReturn:
    """Raises NotImplementedError: the layout is that of a kernel of Blackwell."""
    refuse("pre_shuffle_int4_a", "cutlass_api.weights, which packs weights of four bits")


__all__ = [
    "TensorWrapper",
    "get_stride_order",
    "get_stride_rank",
    "is_jax_array",
    "is_numpy_tensor",
    "is_torch_fake_tensor",
    "is_torch_tensor",
    "leading_dim",
    "major_mode",
    "major_mode_from_tensor",
    "normalized_major_stride",
    "pre_shuffle_int4_a",
    "strides_to_layout_string",
]
