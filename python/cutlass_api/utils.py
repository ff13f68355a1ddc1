"""Helpers for tensors, devices and streams."""

from collections.abc import Iterable, Sequence
from typing import Any

from cutlass_api import _core
from cutlass_api._core import Status, TensorWrapper, leading_dim, strides_to_layout_string


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


def to_cuda_stream(stream: Any) -> int:
    """The CUDA handle of a stream, as an integer.

    ``stream``: a ``torch.cuda.Stream``, a CuPy stream, a ``CUstream`` of ``cuda.bindings``, or the
    handle itself. Raises TypeError for None and for other types.
    """
    if stream is None:
        raise TypeError(
            "stream is None, which has no handle; pass a stream, "
            "such as torch.cuda.current_stream()"
        )
    return _core.stream_handle(stream)


def get_stride_order(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The dimensions in order of increasing stride; at equal strides, the later one first."""
    return tuple(_core.stride_order(shape, stride))


def get_stride_rank(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...]:
    """The position of each dimension in :func:`get_stride_order`: 0 for the contiguous one."""
    return tuple(_core.stride_rank(shape, stride))


def tuple_to_string(values: Iterable[Any], separator: str = "x") -> str:
    """``(128, 256, 64)`` as ``"128x256x64"``."""
    return separator.join(map(str, values))


__all__ = [
    "TensorWrapper",
    "ceil_div",
    "device_cc",
    "get_stride_order",
    "get_stride_rank",
    "is_device_cc_supported",
    "is_numpy_tensor",
    "is_torch_fake_tensor",
    "is_torch_tensor",
    "leading_dim",
    "round_up",
    "strides_to_layout_string",
    "to_cuda_stream",
    "tuple_to_string",
]
