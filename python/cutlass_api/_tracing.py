"""What may be done with a tensor outside of torch's operators: launch a kernel, read its values."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from cutlass_api._core import get_device_checks


def is_launched(values: Tensor) -> bool:
    """Whether values have memory on a GPU, and nothing observes torch's operators."""
    return values.is_cuda and values.numel() > 0 and is_eager(values)


def is_eager(values: Tensor) -> bool:
    """Whether no trace and no transform holds values, and nothing observes torch's operators."""
    return (
        type(values) in (Tensor, torch.nn.Parameter)
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(values)
        and not _get_current_dispatch_mode_stack()
    )


def is_readable(values: Tensor) -> bool:
    """Whether the host may read values to check them: those of a GPU with ``CUTLASS_API_CHECK=1``
    and outside of captures only, since it waits for the stream.
    """
    if not is_eager(values):
        return False
    if values.device.type == "cpu":
        return True
    return get_device_checks() and values.is_cuda and not torch.cuda.is_current_stream_capturing()
