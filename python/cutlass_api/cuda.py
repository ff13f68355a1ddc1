"""Kernels of one's own, in CUDA C++."""

import linecache
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeAlias

from cutlass_api._core import CompiledArtifact, CudaFunction, Kernel, RuntimeArguments, Status
from cutlass_api.metadata import DesignMetadata, KernelMetadata

#: Blocks or threads: along x, or along x, y and z.
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

    ``source``: CUDA C++, or the path of a file of it (a ``pathlib.Path``). ``name``: the function as C++ names it, so
    ``"ns::f"`` for one in a namespace and ``"f<float>"`` for a template. ``grid``: the number of blocks, as an int or
    one to three of them; or a function of the arguments that returns it. ``block``: threads of a block. ``cluster``:
    blocks of a cluster (Hopper and later). ``shared_bytes``: dynamic shared memory. ``options``: further options of
    NVRTC, such as ``"-DTILE=32"``, ``"-I/folder"``, ``"--use_fast_math"``. ``contiguous``: whether tensors that are not
    contiguous are refused; say False for a kernel that is told the strides.

    Calling it launches on the current stream, or on ``stream=``, and returns nothing::

        square = cutlass_api.cuda_kernel(
            "__global__ void square(const float* x, float* out, int n) {"
            "  int i = blockIdx.x * blockDim.x + threadIdx.x;"
            "  if (i < n) out[i] = x[i] * x[i];"
            "}",
            "square",
            grid=lambda x, out, n: cutlass_api.utils.ceil_div(n, 256),
        )
        square(x, out, x.numel())

    The arguments are checked against the function's own parameters, which the compiler tells: dtypes, the range of
    numbers, one CUDA device for all tensors. The package's headers can be included (``"common/types.cuh"`` has ``f16``,
    ``bf16``, ``decode`` and ``encode``), and those of the CUDA toolkit where they are installed. NVRTC compiles device
    code only, at the first call or in ``.compile()``; the disk keeps the result. Errors of the compiler name the file
    and the line of the source.
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
        raise TypeError(f"options is the string {options!r}; give a list of options: {[options]!r}")
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
    """The text of a source, and the file and line that it begins on: of a string, in the Python file that has it."""
    if not isinstance(source, str):
        with open(source, encoding="utf-8-sig") as file:
            return file.read(), os.fspath(source), 1
    # Cells of a notebook are in linecache, too, under a name that changes from one session to the next.
    module = "".join(linecache.getlines(caller))
    at = module.find(source)
    if not source or at < 0:
        return source, f"{name}.cu", 1
    return source, caller if os.path.exists(caller) else "this cell", module.count("\n", 0, at) + 1


class CudaKernel(Kernel):
    """The base of kernels in CUDA C++ that are found, compiled and run like the built-in ones.

    A subclass says what it computes (``operands``, from :mod:`cutlass_api.metadata`) and how it is launched, and is
    made known by ``@cutlass_api.providers.NvrtcProvider.register``. Its class attributes: ``source``, ``function`` (the
    ``__global__`` function), ``block``, ``cluster``, ``shared_bytes``, ``options`` and ``contiguous`` are those of
    :func:`cuda_kernel`; ``kernel_name`` (the class's own unless given), ``min_cc``, ``operands`` and ``design`` become
    its ``KernelMetadata``. Its methods: ``parameters(args)`` lists what the function is launched with, operands
    (``args.A``) for pointers and numbers (``args.A.shape[0]``, ``args.A.stride[1]``) for the rest; ``grid(args)``
    counts the blocks. A family of kernels overrides ``generate_kernels`` and reads ``self.metadata``.
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
        """The number of blocks for some arguments, as an int or up to three."""
        raise NotImplementedError(f"{type(self).__name__} must define grid")

    def parameters(self, args: Any) -> Sequence[Any]:
        """What the function is launched with for some arguments, in the order of its parameters."""
        raise NotImplementedError(f"{type(self).__name__} must define parameters")

    def compile(self, args: RuntimeArguments, cc: int | None = None) -> CompiledArtifact:
        """Compiles the function for the device of the operands, or for a compute capability."""
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
            raise TypeError(f"compiled_artifact is a {name}; give what compile() returned, or None")
        if compiled_artifact.kernel_obj is not self:
            raise ValueError(
                f"compiled_artifact is of another kernel, {compiled_artifact.kernel_obj}; this is {self}"
            )
        program = compiled_artifact.compiled_obj
        self._function.launch(tuple(self.parameters(args)), self.grid(args), stream, program)

    def _supports(self, args: RuntimeArguments) -> Status:
        reason = self._function.refusal(tuple(self.parameters(args)))
        return Status.success() if reason is None else Status.fail(reason)

    @classmethod
    def check_declaration(cls) -> None:
        """Raises TypeError where the class lacks an attribute that its one kernel needs."""
        if cls.generate_kernels.__func__ is not CudaKernel.generate_kernels.__func__:  # type: ignore[attr-defined]
            return
        lacking = [name for name in ("source", "function", "operands") if not hasattr(cls, name)]
        if lacking:
            raise TypeError(
                f"{cls.__qualname__} lacks {', '.join(lacking)}, which a CudaKernel says of itself"
            )

    @classmethod
    def generate_kernels(
        cls,
        metadata_filter: Callable[[KernelMetadata], bool] | None = None,
        epilogue_args: Any | None = None,
        cc: int | None = None,
    ) -> Iterable[Kernel]:
        """The one kernel that the class describes."""
        if cls not in cls._kernels:
            name = cls.kernel_name or cls.__name__
            cls._kernels[cls] = cls(KernelMetadata(name, cls, cls.min_cc, cls.operands, cls.design))
        kernel = cls._kernels[cls]
        if metadata_filter is None or metadata_filter(kernel.metadata):
            yield kernel


__all__ = ["CudaKernel", "Extents", "cuda_kernel"]
