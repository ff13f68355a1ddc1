"""User kernels in CUDA C++."""

import linecache
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeAlias

from cutlass_api._core import (
    CompiledArtifact,
    CudaFunction,
    Kernel,
    RuntimeArguments,
    Status,
    TensorMap,
)
from cutlass_api.metadata import DesignMetadata, KernelMetadata

#: A number of blocks or threads along x, or one to three numbers along x, y and z.
Extents: TypeAlias = int | Sequence[int]


def cuda_kernel(
    source: str | os.PathLike[str],
    name: str,
    *,
    grid: Extents | Callable[..., Extents],
    block: Extents = 256,
    cluster: Extents = 1,
    shared_bytes: int = 0,
    options: Sequence[str] = (),
    contiguous: bool = True,
) -> CudaFunction:
    """A ``__global__`` function as a Python callable that takes tensors and numbers.

    The source is compiled and runs with the rights of the caller's process: never pass source that
    you do not trust.

    - ``source``: CUDA C++ source, or the path of a file (a ``pathlib.Path``).
    - ``name``: the function in C++, such as ``"f"``, ``"ns::f"`` or ``"f<float>"``.
    - ``grid``: the number of blocks, an int or one to three ints, or a function of the arguments
      that returns it.
    - ``block``: the threads of a block.
    - ``cluster``: the blocks of a cluster (Hopper and later).
    - ``shared_bytes``: the size of the dynamic shared memory.
    - ``options``: options for NVRTC, such as ``"-DTILE=32"``, ``"-I/folder"`` or
      ``"--use_fast_math"``.
    - ``contiguous``: whether to refuse tensors that are not contiguous. Pass False if the kernel
      takes strides as parameters.

    A call launches on the current stream, or on ``stream=``, and returns None::

        square = cutlass_api.cuda_kernel(
            "__global__ void square(const float* x, float* out, int n) {"
            "  int i = blockIdx.x * blockDim.x + threadIdx.x;"
            "  if (i < n) out[i] = x[i] * x[i];"
            "}",
            "square",
            grid=lambda x, out, n: cutlass_api.utils.ceil_div(n, 256),
        )
        square(x, out, x.numel())

    A kernel for Hopper that copies with TMA takes tensor maps as parameters
    ``const __grid_constant__ TensorMap map`` (of ``"common/tma.cuh"``, or CUDA's ``CUtensorMap``).
    A call passes a :class:`TensorMap` for each.

    Each call checks the arguments against the parameters of the compiled function: dtypes of
    tensors, ranges of numbers, one CUDA device for all tensors. Mismatches raise TypeError or
    ValueError.

    ``.compile()`` or the first call compiles the source with NVRTC and caches the program on disk.
    The source holds device code only. It can include the headers of this package
    (``"common/types.cuh"`` has ``f16``, ``bf16``, ``decode`` and ``encode``) and those of the CUDA
    toolkit if it is installed. Compiler errors name the file and the line of the source.
    """
    return _function(
        source,
        name,
        sys._getframe(1).f_code.co_filename,
        grid,
        block,
        cluster,
        shared_bytes,
        options,
        contiguous,
    )


def _function(
    source: str | os.PathLike[str],
    name: str,
    caller: str,
    grid: Extents | Callable[..., Extents],
    block: Extents,
    cluster: Extents,
    shared_bytes: int,
    options: Sequence[str],
    contiguous: bool,
) -> CudaFunction:
    if isinstance(options, str):
        raise TypeError(f"options is the string {options!r}; pass a list of options: {[options]!r}")
    text, file, line = _located(source, name, caller)
    return CudaFunction(
        text,
        name,
        grid=grid,
        block=block,
        cluster=cluster,
        shared_bytes=shared_bytes,
        options=list(options),
        contiguous=contiguous,
        file=file,
        line=line,
    )


def _located(source: str | os.PathLike[str], name: str, caller: str) -> tuple[str, str, int]:
    """The text of a source, with the file and line where it begins.

    A string literal begins in the Python file of the caller.
    """
    if not isinstance(source, str):
        with open(source, encoding="utf-8-sig") as file:
            return file.read(), os.fspath(source), 1
    # linecache also holds the cells of a notebook, under names that differ in each process.
    module = "".join(linecache.getlines(caller))
    at = module.find(source)
    if not source or at < 0:
        return source, f"{name}.cu", 1
    return source, caller if os.path.exists(caller) else "this cell", module.count("\n", 0, at) + 1


class CudaKernel(Kernel):
    """The base class of user kernels in CUDA C++ that ``get_kernels`` finds.

    Register a subclass with ``@cutlass_api.providers.NvrtcProvider.register``.

    Class attributes:

    - ``source``, ``function`` (the ``__global__`` function), ``block``, ``cluster``,
      ``shared_bytes``, ``options`` and ``contiguous``: as for :func:`cuda_kernel`.
    - ``operands``, from :mod:`cutlass_api.metadata`, ``min_cc``, ``design`` and ``kernel_name``
      (default: the name of the class): fields of the kernel's ``KernelMetadata``.

    Methods to define: ``parameters(args)`` and ``grid(args)``. A family of kernels also overrides
    ``generate_kernels`` and reads ``self.metadata``.
    """

    source: ClassVar[str | os.PathLike[str]]
    function: ClassVar[str]
    operands: ClassVar[Any]
    block: ClassVar[Extents] = 256
    cluster: ClassVar[Extents] = 1
    shared_bytes: ClassVar[int] = 0
    options: ClassVar[Sequence[str]] = ()
    contiguous: ClassVar[bool] = True
    kernel_name: ClassVar[str | None] = None
    min_cc: ClassVar[int] = 80
    design: ClassVar[DesignMetadata | None] = None

    _kernels: ClassVar[dict[type, Kernel]] = {}

    def __init__(self, metadata: KernelMetadata) -> None:
        super().__init__(metadata)
        code = getattr(type(self).parameters, "__code__", None)
        caller = code.co_filename if code else ""
        geometry = (self.block, self.cluster, self.shared_bytes, self.options, self.contiguous)
        self._function = _function(self.source, self.function, caller, 1, *geometry)

    def grid(self, args: Any) -> Extents:
        """The number of blocks for ``args``, as an int or one to three ints."""
        raise NotImplementedError(f"{type(self).__name__} must define grid")

    def parameters(self, args: Any) -> Sequence[Any]:
        """The arguments of the ``__global__`` function, in the order of its parameters.

        Operands (``args.A``) for pointers, numbers (``args.A.shape[0]``) for scalars.
        """
        raise NotImplementedError(f"{type(self).__name__} must define parameters")

    def compile(self, args: RuntimeArguments, cc: int | None = None) -> CompiledArtifact:
        """Compiles the function for compute capability ``cc``, else for the operands' device."""
        return CompiledArtifact(self._function.compile(*self.parameters(args), cc=cc), self)

    def _run(
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact,
        stream: Any,
        workspace: Any | None = None,
    ) -> None:
        if not isinstance(compiled_artifact, CompiledArtifact):
            name = type(compiled_artifact).__name__
            raise TypeError(f"compiled_artifact is a {name}; pass the result of compile(), or None")
        if compiled_artifact.kernel_obj is not self:
            other = compiled_artifact.kernel_obj.metadata.kernel_name
            own = self.metadata.kernel_name
            raise ValueError(f"compiled_artifact is of {other}; pass one of {own}, or None")
        program = compiled_artifact.compiled_obj
        self._function.launch(tuple(self.parameters(args)), self.grid(args), stream, program)

    def _supports(self, args: RuntimeArguments) -> Status:
        reason = self._function.refusal(tuple(self.parameters(args)))
        return Status.success() if reason is None else Status.fail(reason)

    @classmethod
    def check_declaration(cls) -> None:
        """Raises TypeError if the class lacks an attribute that its kernel needs."""
        inherited = CudaKernel.generate_kernels.__func__  # type: ignore[attr-defined]
        if cls.generate_kernels.__func__ is not inherited:  # type: ignore[attr-defined]
            return
        missing = [
            name
            for name in ("source", "function", "operands")
            if getattr(cls, name, None) is getattr(Kernel, name, None)
        ]
        if missing:
            raise TypeError(
                f"{cls.__qualname__} lacks {', '.join(missing)}: define them as class attributes"
            )

    @classmethod
    def generate_kernels(
        cls,
        metadata_filter: Callable[[KernelMetadata], bool] | None = None,
        epilogue_args: Any | None = None,
        cc: int | None = None,
    ) -> Iterable[Kernel]:
        """Yields the kernel of this class if its metadata passes the filter."""
        if cls not in cls._kernels:
            name = cls.kernel_name or cls.__name__
            cls._kernels[cls] = cls(KernelMetadata(name, cls, cls.min_cc, cls.operands, cls.design))
        kernel = cls._kernels[cls]
        if metadata_filter is None or metadata_filter(kernel.metadata):
            yield kernel


__all__ = ["CudaKernel", "Extents", "TensorMap", "cuda_kernel"]
