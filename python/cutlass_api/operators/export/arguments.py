"""The arguments of NVIDIA's ``cutlass.operators`` as arguments of this package.

Tensors are shared, not copied.
"""

from enum import Enum
from functools import cache
from operator import is_
from typing import Any

import cutlass.operators as nvidia

from cutlass_api import _core
from cutlass_api.operators._unserved import refuse
from cutlass_api.operators.arguments import (
    EpilogueArguments,
    GemmArguments,
    IndexPtrGroupedGemmArguments,
    ScaledOperand,
    ScaleSwizzleMode,
)
from cutlass_api.operators.arguments.epilogue import GeneratedEpilogue, check_epilogue
from cutlass_api.operators.utils.dtype import (
    torch_storage_packing_factor,
    torch_type_from_cutlass_type,
)
from cutlass_api.operators.utils.tensor import without_memory

#: What :func:`converted` raises for arguments that no kernel of this package serves.
REFUSALS = (BufferError, KeyError, NotImplementedError, TypeError, ValueError)
#: The attribute of NVIDIA's arguments that keeps their :class:`Conversion`.
_ATTRIBUTE = "_rutlass_conversion"


class Conversion:
    """Arguments of this package, ``own``, that stand for NVIDIA's.

    ``parts``: what NVIDIA's arguments consist of, to notice a replaced tensor.
    """

    def __init__(self, args: Any, parts: list[Any]) -> None:
        self.own = _arguments(args)
        self._parts = parts
        self._kernels: dict[int | None, set[_core.Kernel]] = {}

    def is_of(self, parts: list[Any]) -> bool:
        """Whether the arguments still consist of the same objects."""
        return len(self._parts) == len(parts) and all(map(is_, self._parts, parts))

    def kernels(self, cc: int | None) -> set[_core.Kernel]:
        """The kernels of the core for the arguments and a compute capability."""
        if cc not in self._kernels:
            self._kernels[cc] = set(_core.get_kernels(self.own, None, cc))
        return self._kernels[cc]

    def is_served_by(self, kernel: _core.Kernel) -> bool:
        """Whether a search has found the kernel for the arguments."""
        return any(kernel in found for found in self._kernels.values())


def converted(args: Any) -> Conversion:
    """The conversion of NVIDIA's arguments, made anew after a tensor was replaced.

    Raises one of ``REFUSALS`` if the core does not take them.
    """
    if not isinstance(args, (nvidia.GemmArguments, nvidia.IndexPtrGroupedGemmArguments)):
        raise TypeError(f"{type(args).__name__} has no counterpart in this package")
    check_epilogue(args.epilogue)
    parts = _parts(args)
    known: Conversion | None = getattr(args, _ATTRIBUTE, None)
    if known is not None and known.is_of(parts):
        return known
    made = Conversion(args, parts)
    setattr(args, _ATTRIBUTE, made)
    return made


def taken(args: Any) -> Any:
    """The arguments of this package for a launch.

    NVIDIA's arguments do not keep them: PyTorch keeps the arguments and clears the tensors in them.

    Raises ValueError if an operand has no tensor.
    """
    if any(isinstance(part, nvidia.utils.tensor.TensorWrapper) for part in _parts(args)):
        raise ValueError(
            "an operand is a FakeTensor, or its tensor was released, and has no memory; set "
            "_runtime_tensor"
        )
    own = converted(args).own
    vars(args).pop(_ATTRIBUTE, None)
    return own


def _parts(args: Any) -> list[Any]:
    """What arguments consist of. A search calls this for each operator."""
    parts = [args.accumulator_type, args.performance]
    for operand in (args.A, args.B, args.out, getattr(args, "offsets", None)):
        if isinstance(operand, nvidia.ScaledOperand):
            parts += map(_content, (operand.quantized.tensor, operand.scale.tensor))
        elif isinstance(operand, nvidia.DenseTensor):
            parts.append(_content(operand.tensor))
        else:
            parts.append(operand)
    if args.epilogue is not None:
        parts.append(args.epilogue.epilogue_fn)
        parts += map(_content, args.epilogue.tensors.values())
    return parts


def _content(value: Any) -> Any:
    """The tensor in a wrapper. Returns wrappers of a FakeTensor, and other objects, as they are."""
    tensor = getattr(value, "_runtime_tensor", None)
    return value if tensor is None else tensor


def _arguments(args: Any) -> Any:
    options = {"epilogue": _epilogue(args.epilogue), "performance": args.performance}
    A, B, out = _operand(args.A), _operand(args.B, is_b=True), _operand(args.out)
    if isinstance(args, nvidia.IndexPtrGroupedGemmArguments):
        offsets = _operand(args.offsets), args.offsets_along
        return IndexPtrGroupedGemmArguments(A, B, out, args.accumulator_type, *offsets, **options)
    return GemmArguments(A, B, out, args.accumulator_type, **options)


def _epilogue(args: Any) -> EpilogueArguments | GeneratedEpilogue | None:
    """The epilogue of this package for NVIDIA's, whose function this package parses itself.

    PyTorch has a class of its own for source that it generates, which reduces nothing.

    Raises NotImplementedError if the epilogue reduces: NVIDIA's combines the result with what the
    destination holds, this package's overwrites it.
    """
    if args is None:
        return None
    tensors = {name: _tensor(value) for name, value in args.tensors.items()}
    if not isinstance(args, nvidia.EpilogueArguments):
        return GeneratedEpilogue(args.epilogue_fn, tensors)
    own = EpilogueArguments(args.epilogue_fn, **tensors)
    if any(is_reduced for _, _, is_reduced in own.traced_epilogue.results):
        refuse("a reduction that adds to its destination", "cutlass_api.operators")
    return own


def _operand(operand: Any, is_b: bool = False) -> Any:
    if isinstance(operand, nvidia.ScaledOperand):
        mode = operand.mode.value if isinstance(operand.mode, Enum) else operand.mode
        swizzle = ScaleSwizzleMode[operand.swizzle.name]
        scale = _tensor(operand.scale.tensor)
        # NVIDIA's scales of B are those of its transpose, as both packages have swizzled ones.
        if is_b and swizzle is ScaleSwizzleMode.SwizzleNone:
            scale = _transpose(scale)
        return ScaledOperand(_tensor(operand.quantized.tensor), scale, mode, swizzle)
    if isinstance(operand, nvidia.DenseTensor):
        return _tensor(operand.tensor)
    raise TypeError(f"{type(operand).__name__} has no counterpart; pass a DenseTensor")


def _transpose(scale: Any) -> Any:
    if not hasattr(scale, "data_ptr") or scale.ndim < 2:  # JAX copies what it transposes.
        raise TypeError("scales of B without a swizzle are not a torch matrix")
    return scale.mT


def _tensor(value: Any) -> Any:
    """The tensor of a wrapper, or a FakeTensor. Returns other objects as they are."""
    if not isinstance(value, nvidia.utils.tensor.TensorWrapper):
        return value
    tensor = value._runtime_tensor
    if tensor is None:
        return _fake(value)
    # Without TVM-FFI, NVIDIA's wrapper keeps a capsule that is used up.
    if not hasattr(tensor, "__dlpack__"):
        raise TypeError("the tensor is not kept: set GlobalOptions().use_tvm_ffi to True")
    return without_memory(tensor)


def _fake(wrapper: Any) -> Any:
    """A FakeTensor for a wrapper of one. The wrapper does not keep the device: that of a GPU."""
    if torch_storage_packing_factor(wrapper.dtype) != 1:
        refuse("a FakeTensor of four bits", "a tensor")
    import torch

    dtype = torch_type_from_cutlass_type(wrapper.dtype)
    with _fake_mode():
        return torch.empty_strided(wrapper.shape, wrapper.stride, dtype=dtype, device="cuda")


@cache
def _fake_mode() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


__all__ = ["REFUSALS", "Conversion", "converted", "taken"]
