"""The types of the Rust extension. tests/test_stubs.py compares them with the extension."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, final

from typing_extensions import Never, Self, disjoint_base

from cutlass_api.metadata import KernelMetadata
from cutlass_api.typing import NumericLike, TensorLike

__version__: str
__all__ = [
    "CompiledArtifact",
    "CudaFunction",
    "DType",
    "DenseTensor",
    "ElementwiseArguments",
    "ElementwiseKernel",
    "EpilogueArguments",
    "Estimate",
    "GemmArguments",
    "GroupedGemmArguments",
    "Kernel",
    "KernelOperand",
    "PreparedLaunch",
    "Program",
    "ReferenceKernel",
    "RuntimeArguments",
    "ScaledTensor",
    "SimtGemmKernel",
    "SkinnyGemmKernel",
    "Sm80GemmKernel",
    "Sm90GemmKernel",
    "Status",
    "TensorWrapper",
    "TimedLaunches",
    "TracedEpilogue",
    "TuningBenchmark",
    "__version__",
    "add_tuning_results",
    "cache_directory",
    "check_gemm",
    "clear_tuning_results",
    "describe_epilogue",
    "device_cc",
    "explanation",
    "get_kernels",
    "get_launch_promotion",
    "get_use_c_exchange",
    "launch_gemm",
    "launch_graphs",
    "matmul",
    "native_floor",
    "nvrtc_info",
    "operand_matches",
    "register_kernel_class",
    "register_tuning_key",
    "set_launch_promotion",
    "set_use_c_exchange",
    "stream_handle",
    "trace_epilogue",
    "tuning_identity",
    "tuning_mode",
    "tuning_results",
]

@final
class DType:
    def __new__(cls, dtype: NumericLike) -> DType: ...
    @property
    def name(self) -> str: ...
    @property
    def width(self) -> int: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Status:
    def __new__(cls, error: str | BaseException | None = None) -> Status: ...
    @staticmethod
    def success() -> Status: ...
    @staticmethod
    def fail(error: str | BaseException) -> Status: ...
    @property
    def error(self) -> BaseException | None: ...
    def raise_on_error(self) -> None: ...
    def __bool__(self) -> bool: ...

class KernelOperand: ...

@final
class DenseTensor(KernelOperand):
    def __new__(cls, tensor: TensorLike) -> DenseTensor: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def element_type(self) -> DType: ...
    @property
    def data_ptr(self) -> int: ...
    def numel(self) -> int: ...
    @property
    def tensor(self) -> TensorWrapper: ...

@final
class ScaledTensor(KernelOperand):
    def __new__(
        cls, base: TensorLike, scale: TensorLike, mode: Any, swizzle: Any
    ) -> ScaledTensor: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def element_type(self) -> DType: ...
    @property
    def data_ptr(self) -> int: ...
    def numel(self) -> int: ...
    @property
    def tensor(self) -> TensorWrapper: ...
    @property
    def base(self) -> DenseTensor: ...
    @property
    def scale(self) -> DenseTensor: ...
    @property
    def mode(self) -> Any: ...
    @property
    def swizzle(self) -> Any: ...

@final
class TensorWrapper:
    def __new__(
        cls,
        tensor: TensorLike | KernelOperand | TensorWrapper,
        alignment_bytes: int | None = None,
    ) -> TensorWrapper: ...
    @property
    def runtime_tensor(self) -> Any: ...
    @property
    def compile_time_tensor(self) -> Any: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def stride(self) -> tuple[int, ...]: ...
    @property
    def element_type(self) -> DType: ...
    @property
    def data_ptr(self) -> int: ...
    @property
    def alignment_bytes(self) -> int: ...
    def numel(self) -> int: ...

@disjoint_base
class RuntimeArguments:
    def __new__(
        cls, *args: Any, performance: Any | None = None, **kwargs: Any
    ) -> RuntimeArguments: ...
    @property
    def performance(self) -> Any | None: ...

class GemmArguments(RuntimeArguments):
    def __new__(
        cls,
        A: TensorLike | KernelOperand,
        B: TensorLike | KernelOperand,
        out: TensorLike | KernelOperand,
        accumulator_type: NumericLike,
        epilogue: Any | None = None,
        performance: Any | None = None,
    ) -> GemmArguments: ...
    @property
    def A(self) -> DenseTensor | ScaledTensor: ...
    @property
    def B(self) -> DenseTensor | ScaledTensor: ...
    @property
    def out(self) -> DenseTensor | ScaledTensor: ...
    @property
    def accumulator_type(self) -> DType: ...
    @property
    def epilogue(self) -> Any | None: ...

class GroupedGemmArguments(RuntimeArguments):
    def __new__(
        cls,
        A: TensorLike | KernelOperand,
        B: TensorLike | KernelOperand,
        out: TensorLike | KernelOperand,
        accumulator_type: NumericLike,
        offsets: TensorLike | KernelOperand,
        epilogue: Any | None = None,
        performance: Any | None = None,
    ) -> GroupedGemmArguments: ...
    @property
    def A(self) -> DenseTensor | ScaledTensor: ...
    @property
    def B(self) -> DenseTensor | ScaledTensor: ...
    @property
    def out(self) -> DenseTensor | ScaledTensor: ...
    @property
    def offsets(self) -> DenseTensor | ScaledTensor: ...
    @property
    def accumulator_type(self) -> DType: ...
    @property
    def epilogue(self) -> Any | None: ...

class ElementwiseArguments(RuntimeArguments):
    def __new__(
        cls,
        A: TensorLike | KernelOperand,
        B: TensorLike | KernelOperand,
        out: TensorLike | KernelOperand,
        epilogue: Any | None = None,
        performance: Any | None = None,
    ) -> ElementwiseArguments: ...
    @property
    def A(self) -> DenseTensor | ScaledTensor: ...
    @property
    def B(self) -> DenseTensor | ScaledTensor: ...
    @property
    def out(self) -> DenseTensor | ScaledTensor: ...
    @property
    def accumulator_type(self) -> None: ...
    @property
    def epilogue(self) -> Any | None: ...

@disjoint_base
class EpilogueArguments:
    def __new__(cls, epilogue_fn: Callable[..., Any] | str, **kwargs: Any) -> EpilogueArguments: ...
    @property
    def epilogue_fn(self) -> Callable[..., Any] | str: ...
    @property
    def traced_epilogue(self) -> TracedEpilogue: ...
    @property
    def parameters(self) -> list[Any]: ...
    @property
    def parameter_names(self) -> list[str]: ...
    @property
    def tensors(self) -> dict[str, Any]: ...
    def to_tensor_wrappers(self) -> dict[str, TensorWrapper]: ...
    def trace(
        self,
        accumulator_shape: Sequence[int] | None = None,
        accumulator_type: NumericLike | None = None,
    ) -> TracedEpilogue: ...

@final
class TracedEpilogue:
    @property
    def inputs(self) -> list[str]: ...
    @property
    def outputs(self) -> list[str]: ...
    @property
    def nodes(self) -> list[tuple[Any, ...]]: ...
    @property
    def results(self) -> list[tuple[str, int, bool]]: ...
    @property
    def source(self) -> str: ...

@final
class Program:
    @property
    def kernel_name(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def cubin(self) -> bytes: ...
    @property
    def log(self) -> str: ...
    @property
    def nvrtc_version(self) -> tuple[int, int]: ...
    @property
    def shared_bytes(self) -> int: ...

@final
class CompiledArtifact:
    def __new__(cls, compiled_obj: Any, kernel_obj: Kernel) -> CompiledArtifact: ...
    @property
    def compiled_obj(self) -> Any: ...
    @property
    def kernel_obj(self) -> Kernel: ...
    def to_bytes(self) -> bytes: ...
    @staticmethod
    def from_bytes(data: bytes) -> CompiledArtifact: ...

@final
class CudaFunction:
    def __new__(
        cls,
        source: str,
        function: str,
        *,
        grid: int | Sequence[int] | Callable[..., int | Sequence[int]],
        block: int | Sequence[int],
        cluster: int | Sequence[int],
        shared_bytes: int,
        options: Sequence[str],
        contiguous: bool,
        file: str,
        line: int,
    ) -> CudaFunction: ...
    def __call__(self, *args: Any, stream: Any | None = None) -> None: ...
    def compile(self, *args: Any, cc: int | None = None) -> Program: ...
    def launch(
        self,
        args: tuple[Any, ...],
        grid: int | Sequence[int] | Callable[..., int | Sequence[int]],
        stream: Any | None = None,
        program: Program | None = None,
    ) -> None: ...
    def refusal(self, args: tuple[Any, ...]) -> str | None: ...
    @property
    def name(self) -> str: ...

@final
class Estimate:
    @property
    def waves(self) -> float: ...
    @property
    def bytes(self) -> float: ...
    @property
    def arithmetic_seconds(self) -> float: ...
    @property
    def memory_seconds(self) -> float: ...
    @property
    def cache_seconds(self) -> float: ...
    @property
    def launch_seconds(self) -> float: ...
    @property
    def total_seconds(self) -> float: ...

@disjoint_base
class Kernel:
    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def __init__(self, metadata: KernelMetadata) -> None: ...
    @property
    def metadata(self) -> KernelMetadata: ...
    @final
    def supports(self, args: RuntimeArguments) -> Status: ...
    def compile(self, args: RuntimeArguments, cc: int | None = None) -> CompiledArtifact: ...
    @final
    def run(
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact | None = None,
        stream: Any | None = None,
        workspace: Any | None = None,
        assume_supported_args: bool = False,
    ) -> None: ...
    def bind(
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact | None = None,
        stream: Any | None = None,
    ) -> PreparedLaunch: ...
    def estimate(self, args: RuntimeArguments, cc: int | None = None) -> Estimate: ...
    def get_workspace_size(self, args: RuntimeArguments) -> int: ...
    def initialize_workspace(self, args: RuntimeArguments, workspace: Any) -> None: ...
    def _run(
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact,
        stream: Any,
        workspace: Any | None = None,
    ) -> None: ...
    def _supports(self, args: RuntimeArguments) -> Status: ...
    @staticmethod
    def generate_kernels(
        metadata_filter: Callable[[KernelMetadata], bool] | None = None,
        epilogue_args: Any | None = None,
        cc: int | None = None,
    ) -> Iterable[Kernel]: ...

@final
class PreparedLaunch:
    def __call__(
        self,
        *args: Never,
        A: TensorLike | None = None,
        B: TensorLike | None = None,
        out: TensorLike | None = None,
        stream: Any | None = None,
        **epilogue: TensorLike | float,
    ) -> None: ...

@final
class SimtGemmKernel(Kernel): ...

@final
class SkinnyGemmKernel(Kernel): ...

@final
class Sm80GemmKernel(Kernel): ...

@final
class Sm90GemmKernel(Kernel): ...

@final
class ElementwiseKernel(Kernel): ...

@final
class ReferenceKernel(Kernel): ...

def get_kernels(
    args: RuntimeArguments | None = None,
    metadata_filter: Callable[[KernelMetadata], bool] | None = None,
    cc: int | None = None,
    providers: Sequence[str] | None = None,
) -> list[Kernel]: ...
def explanation(args: RuntimeArguments, cc: int | None = None) -> str: ...
def register_kernel_class(provider: str, kernel_class: type[Kernel]) -> None: ...
def describe_epilogue(args: RuntimeArguments | EpilogueArguments) -> str | None: ...
def operand_matches(
    name: str,
    operand: Any,
    dtype: NumericLike,
    stride: Sequence[int] | None = None,
    divisibility: int = 1,
    ptr_alignment_bytes: int | None = None,
) -> Status: ...
def trace_epilogue(epilogue_fn: Callable[..., Any] | str) -> TracedEpilogue: ...
def get_launch_promotion() -> bool: ...
def set_launch_promotion(on: bool) -> None: ...
def get_use_c_exchange() -> bool: ...
def set_use_c_exchange(on: bool) -> None: ...

@final
class TuningBenchmark:
    def __new__(
        cls,
        args: RuntimeArguments,
        *,
        device: int | None = None,
        checks: bool = False,
        tolerance: float | None = None,
    ) -> Self: ...
    @property
    def device(self) -> str: ...
    def alike(self) -> list[int]: ...
    @property
    def driver(self) -> int: ...
    @property
    def extents(self) -> tuple[int, int, int, int]: ...
    def key(self, name: str, extents: Sequence[int] | None = None) -> str: ...
    def compile(self, kernel: Kernel) -> CompiledArtifact: ...
    def record(self, artifact: CompiledArtifact) -> TimedLaunches: ...

@final
class TimedLaunches:
    @property
    def launches(self) -> int: ...
    def turn(self, replays: int = 1) -> float: ...

def tuning_mode() -> str: ...
def tuning_identity(kernel: Kernel) -> tuple[str, str]: ...
def tuning_results() -> list[tuple[str, int, str, str, str, float]]: ...
def add_tuning_results(
    rows: Sequence[tuple[str, int, str, str, str, float]],
    replaces: bool = False,
    persists: bool = True,
) -> None: ...
def clear_tuning_results() -> None: ...
def register_tuning_key(
    name: str, function: Callable[[tuple[int, int, int, int]], Sequence[int]]
) -> None: ...
def stream_handle(stream: Any) -> int: ...
def device_cc(device: int = 0) -> int: ...
def nvrtc_info() -> tuple[PathLike[str], tuple[int, int]]: ...
def cache_directory() -> PathLike[str] | None: ...
def matmul(
    A: TensorLike,
    B: TensorLike,
    out: TensorLike | None = None,
    accumulator_type: NumericLike | None = None,
    *,
    out_dtype: NumericLike | None = None,
    epilogue: Callable[..., Any] | str | None = None,
    **operands: TensorLike | float,
) -> Any: ...
def launch_gemm(
    A: TensorLike,
    B: TensorLike,
    *operands: TensorLike | float,
    out: TensorLike | tuple[TensorLike, ...],
    epilogue: Callable[..., Any] | str | None = None,
    kernel: str | None = None,
    offsets: TensorLike | None = None,
    accumulator_type: NumericLike | None = None,
    fast_sums: bool = False,
) -> None: ...
def check_gemm(
    A: TensorLike,
    B: TensorLike,
    *operands: TensorLike | float,
    out: TensorLike | tuple[TensorLike, ...],
    epilogue: Callable[..., Any] | str | None = None,
    offsets: TensorLike | None = None,
    fast_sums: bool = False,
) -> None: ...
def launch_graphs() -> int: ...
def native_floor(
    args: RuntimeArguments,
    compiled_artifact: CompiledArtifact,
    stream: Any,
    launches: int = 100,
    rounds: int = 30,
) -> float: ...
