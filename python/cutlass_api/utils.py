"""Helpers for tensors, devices and streams."""

import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from cutlass_api import _core, _cutlass_stub
from cutlass_api._core import DType, Status, TensorWrapper
from cutlass_api.config import GlobalOptions
from cutlass_api.typing import NumericLike, TensorLike


def device_cc(device: int = 0) -> int:
    """The compute capability of a CUDA device as 10 * major + minor: 90 for an H100.

    Raises RuntimeError if the device does not exist.
    """
    return _core.device_cc(device)


def is_device_cc_supported(supported: Iterable[int], device: int = 0) -> Status:
    """Whether a device's compute capability is one of ``supported``, as a Status.

    The Status fails, with the reason, if there is no device.
    """
    supported = set(supported)
    try:
        cc = _core.device_cc(device)
    except RuntimeError as error:
        return Status.fail(error)
    if cc in supported:
        return Status.success()
    return Status.fail(f"compute capability {cc} is not among the supported {sorted(supported)}")


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """The smallest multiple of b that is at least a."""
    return ceil_div(a, b) * b


def _is_instance(tensor: Any, module: str, name: str) -> bool:
    return any(
        base.__module__.split(".")[0] == module and base.__name__ == name
        for base in type(tensor).__mro__
    )


def is_torch_tensor(tensor: Any) -> bool:
    """Whether ``tensor`` is a torch tensor. Does not import torch."""
    return _is_instance(tensor, "torch", "Tensor")


def is_torch_fake_tensor(tensor: Any) -> bool:
    """Whether ``tensor`` is a torch FakeTensor. Does not import torch."""
    return _is_instance(tensor, "torch", "FakeTensor")


def is_numpy_tensor(tensor: Any) -> bool:
    """Whether ``tensor`` is a NumPy array. Does not import NumPy."""
    return _is_instance(tensor, "numpy", "ndarray")


def is_package_available(module: str) -> bool:
    """Whether a package can be imported. Does not import it."""
    if module in sys.modules:
        return sys.modules[module] is not None
    return find_spec(module) is not None


def is_torch_available() -> bool:
    """Whether torch can be imported. Does not import torch."""
    return is_package_available("torch")


def is_numpy_available() -> bool:
    """Whether NumPy can be imported. Does not import NumPy."""
    return is_package_available("numpy")


def to_cuda_stream(stream: Any, skip_if_ffi: bool = False) -> Any:
    """The CUDA handle of a stream, as an integer.

    - ``stream``: a ``torch.cuda.Stream``, a CuPy stream, a ``CUstream`` of ``cuda.bindings``, or
      the handle itself.
    - ``skip_if_ffi``: return ``stream`` unchanged while ``GlobalOptions().use_tvm_ffi`` is True.

    Raises TypeError for None and for other types.
    """
    if stream is None:
        raise TypeError(
            "stream is None, which has no handle; pass a stream, "
            "such as torch.cuda.current_stream()"
        )
    handle = _core.stream_handle(stream)
    return stream if skip_if_ffi and GlobalOptions().use_tvm_ffi else handle


def check_cuda_errors(result: Sequence[Any]) -> Any:
    """The values in a result of ``cuda.bindings``, without the error code in front.

    ``result``: the tuple (error, value, ...) that functions of the driver, the runtime and NVRTC
    return. Returns None without values, the value if there is one, else a tuple of the values.
    Raises RuntimeError with the name of the error if the code is not 0.
    """
    error, *values = result
    if int(error) != 0:
        raise RuntimeError(f"a CUDA call failed: {getattr(error, 'name', 'error')} ({int(error)})")
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


#: The classes of ``cutlass`` by names of dtypes.
_CUTLASS_CLASSES = {element.name: element.cutlass_name for element in _core.ELEMENT_TYPES}


def to_cutlass_type(dtype: NumericLike) -> Any:
    """The class of NVIDIA's ``cutlass`` that names an element type, such as ``cutlass.Float32``.

    ``dtype``: a torch or NumPy dtype, a name, a ``DType`` or a class of ``cutlass``. If the
    installed ``cutlass`` lacks the class, returns a ``DType``, which equals classes of that name.
    Raises TypeError for a type that no kernel supports.
    """
    import cutlass  # NVIDIA's package, or the stub

    known = DType(dtype)
    return getattr(cutlass, _CUTLASS_CLASSES[known.name], known)


def cutlass_type_from_torch_type(dtype: Any) -> type:
    """The class of ``cutlass`` for a ``torch.dtype``: ``cutlass.Float16`` for ``torch.float16``.

    Includes dtypes that no kernel supports, since Inductor's NVGEMM backend converts all of them.
    Raises TypeError for other objects, and KeyError if ``cutlass`` has no class for the dtype.
    """
    if not _is_instance(dtype, "torch", "dtype"):
        raise TypeError(f"dtype is {dtype!r}; pass a torch.dtype, or call to_cutlass_type")
    import cutlass

    name = str(dtype).removeprefix("torch.").removesuffix("_x2").replace("_", "")
    classes = {known.lower(): known for known in _cutlass_stub.NAMES} | {"bool": "Boolean"}
    found = getattr(cutlass, classes.get(name, ""), None)
    if not isinstance(found, type):
        raise KeyError(f"cutlass has no class for {dtype}; it has {', '.join(_cutlass_stub.NAMES)}")
    return found


def get_stride_order(stride: Sequence[int], reverse: bool = False) -> tuple[int, ...]:
    """The dimensions in order of increasing stride; at equal strides, the later one first.

    ``reverse``: the opposite order, which for a contiguous tensor is 0, 1, 2, and so on.
    """
    order = sorted(range(len(stride)), key=lambda dim: (stride[dim], -dim))
    return tuple(reversed(order)) if reverse else tuple(order)


def get_stride_rank(stride: Sequence[int]) -> tuple[int, ...]:
    """The position of each dimension in :func:`get_stride_order`: 0 for the contiguous one."""
    order = get_stride_order(stride)
    return tuple(order.index(dim) for dim in range(len(stride)))


def leading_dim(tensor: TensorLike | Any) -> int | None:
    """The contiguous dimension of a tensor, or of an operand of arguments.

    This is the last dimension with stride 1 and an extent above 1. If there is none, it is the last
    dimension if its extent is 1, else None. Raises ValueError for a tensor without dimensions and
    for more than three.
    """
    wrapper = TensorWrapper(tensor)
    shape, stride = wrapper.shape, wrapper.stride
    if not shape:
        raise ValueError("tensor has no dimensions; pass a tensor of rank 1 to 3")
    for dim in reversed(range(len(shape))):
        if stride[dim] == 1 and shape[dim] > 1:
            return dim
    return len(shape) - 1 if shape[-1] <= 1 else None


def strides_to_layout_string(*strides: Sequence[int]) -> str:
    """One letter per operand: "t" for row-major, "n" for column-major.

    ``strides``: the strides of each operand; the last two belong to rows and columns.
    ``strides_to_layout_string((8, 1), (1, 8))`` is "tn". Raises ValueError if neither of the two is
    1.
    """
    return "".join(map(_layout_letter, strides))


def _layout_letter(stride: Sequence[int]) -> str:
    if len(stride) >= 2 and 1 in stride[-2:]:
        return "t" if stride[-1] == 1 else "n"
    raise ValueError(
        f"strides {tuple(stride)} are neither row-major nor column-major; pass the strides of each "
        "operand as an argument of its own, with 1 for the row or the column"
    )


def tuple_to_string(values: Iterable[Any], separator: str = "x") -> str:
    """``(128, 256, 64)`` as ``"128x256x64"``."""
    return separator.join(map(str, values))


__all__ = [
    "TensorWrapper",
    "ceil_div",
    "check_cuda_errors",
    "cutlass_type_from_torch_type",
    "device_cc",
    "get_stride_order",
    "get_stride_rank",
    "is_device_cc_supported",
    "is_numpy_available",
    "is_numpy_tensor",
    "is_torch_available",
    "is_torch_fake_tensor",
    "is_torch_tensor",
    "leading_dim",
    "round_up",
    "strides_to_layout_string",
    "to_cuda_stream",
    "to_cutlass_type",
    "tuple_to_string",
]
