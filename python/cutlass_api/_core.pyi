"""The types of the Rust extension. tests/api/test_stubs.py compares them with the extension."""

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any, TypeVar, final

from typing_extensions import Never, Self, disjoint_base

from cutlass_api.metadata import KernelMetadata
from cutlass_api.typing import NumericLike, TensorLike

_Tensor = TypeVar("_Tensor", bound=TensorLike)

__version__: str
ELEMENT_TYPES: tuple[ElementType, ...]
__all__ = [
    "ELEMENT_TYPES",
    "CompiledArtifact",
    "CudaBenchmark",
    "CudaFunction",
    "DType",
    "DenseTensor",
    "ElementType",
    "ElementwiseArguments",
    "ElementwiseKernel",
    "EpilogueArguments",
    "EpilogueFunction",
    "Estimate",
    "GemmArguments",
    "GroupedGemmArguments",
    "Kernel",
    "KernelOperand",
    "OpenGemmArguments",
    "PreparedLaunch",
    "Program",
    "PrologueArguments",
    "ReferenceKernel",
    "Resources",
    "RuntimeArguments",
    "ScaledTensor",
    "SimtGemmKernel",
    "SkinnyGemmKernel",
    "Sm80GemmKernel",
    "Sm90GemmKernel",
    "Status",
    "TensorMap",
    "TensorWrapper",
    "TimedLaunches",
    "TracedEpilogue",
    "TuningBenchmark",
    "__version__",
    "add_tuning_results",
    "cache_directory",
    "cache_limit",
    "cache_refusal",
    "cache_usage",
    "check_gemm",
    "chip_rates",
    "clear_tuning_results",
    "computes_alone",
    "describe_epilogue",
    "described_dtype",
    "device_cc",
    "device_count",
    "device_facts",
    "epilogue_functions",
    "explanation",
    "get_device_checks",
    "get_kernels",
    "get_launch_promotion",
    "get_use_c_exchange",
    "header",
    "kernel_by_name",
    "launch_gemm",
    "launch_graphs",
    "launch_linear",
    "matmul",
    "native_floor",
    "nvrtc_info",
    "operand_matches",
    "product_dtypes",
    "register_kernel_class",
    "register_tuning_key",
    "replace_tuning_mode",
    "set_launch_promotion",
    "set_use_c_exchange",
    "stream_handle",
    "trace_epilogue",
    "trim_cache",
    "tuning_identity",
    "tuning_mode",
    "tuning_results",
    "watch_torch_profiler",
    "xla_handlers",
    "xla_structs",
    "xla_workspace",
]

@final
class DType:
    """An element type. It equals every object that names the same type: dtypes of torch and
    NumPy, classes of NVIDIA's `cutlass`, and strings such as `"float16"`.
    """

    def __new__(cls, dtype: NumericLike) -> DType: ...
    @property
    def name(self) -> str:
        """The canonical name: `"float16"`, `"float8_e4m3fn"`, `"int8"`."""
    @property
    def width(self) -> int:
        """Bits in one element."""
    def __eq__(self, value: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class ElementType:
    """The descriptor of an element type."""

    @property
    def name(self) -> str:
        """The canonical name, which torch, NumPy, `ml_dtypes` and JAX share."""
    @property
    def dtype(self) -> DType:
        """The type, which operands of it have, also if no kernel computes with it."""

    @property
    def element_class(self) -> str:
        """What an element is: `"half"`, `"float8"`, `"integer8"`."""
    @property
    def bits(self) -> int:
        """Bits in one element."""
    @property
    def is_packed(self) -> bool:
        """Whether a byte holds two elements."""
    @property
    def cuda_name(self) -> str:
        """The name in CUDA code; empty if kernels have no such type."""
    @property
    def xla_code(self) -> int:
        """The code in XLA's FFI; 0 if XLA has no such type."""
    @property
    def cutlass_name(self) -> str:
        """The class in NVIDIA's `cutlass`; empty if it has none."""
    @property
    def accumulators(self) -> list[DType]:
        """The types in which products are summed, the default first. Empty: no kernel computes
        with this type.
        """
    @property
    def codes(self) -> list[float]:
        """The numbers of the codes of 4 bits, from 0 up; empty if an element has more bits."""

@final
class Status:
    """Success or failure. A success is truthy; the `.error` of a failure is an exception with
    the reason. Statuses with equal errors are equal; an exception equals itself only.
    """

    def __new__(cls, error: str | BaseException | None = None) -> Status: ...
    @staticmethod
    def success() -> Status:
        """A successful status."""
    @staticmethod
    def fail(error: str | BaseException) -> Status:
        """A failed status. `error` is an exception, or a message, which becomes a ValueError.
        Raises TypeError for other objects.
        """
    @property
    def error(self) -> BaseException | None:
        """None for a success, else the exception with the reason."""
    def raise_on_error(self) -> None:
        """Raises `.error` if it is not None."""
    def __bool__(self) -> bool: ...

class KernelOperand:
    """The base class of operands."""

@final
class DenseTensor(KernelOperand):
    """A tensor without scales."""

    def __new__(cls, tensor: TensorLike) -> DenseTensor: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the user's tensor."""
    @property
    def stride(self) -> tuple[int, ...]:
        """The strides in elements; 0 for dimensions of extent 1."""
    @property
    def element_type(self) -> DType:
        """The element type."""
    @property
    def data_ptr(self) -> int:
        """The address of the first element; 0 for a FakeTensor or a tensor without elements."""
    def numel(self) -> int:
        """The number of elements."""
    @property
    def tensor(self) -> TensorWrapper:
        """The tensor at run time and compile time."""

@final
class ScaledTensor(KernelOperand):
    """A tensor with a tensor of scales, each shared by a block of values.

    Built-in GEMM kernels read the scales of A and of B, in float32, float16, bfloat16 or
    float8_e8m0fnu, for blocks of any extents. A mode is (rows of A or columns of B, elements
    along K), with optional leading ones. The scales have the order of the operand's
    dimensions: (ceil(M / rows), ceil(K / elements)) for A, (ceil(K / elements), ceil(N /
    columns)) for B, with an optional batch. `Swizzle32x4x4`: contiguous, in tiles of 128 x 4
    and padded; those of B as of its transpose.
    """

    def __new__(
        cls, base: TensorLike, scale: TensorLike, mode: Any, swizzle: Any
    ) -> ScaledTensor: ...
    @staticmethod
    def of_weight(
        values: TensorLike,
        element: str,
        scale: TensorLike,
        group: int,
        zero: TensorLike | None = None,
        factor: TensorLike | None = None,
    ) -> ScaledTensor:
        """A weight as B (K, N). `values`: (N, K) of 8 bits, or the int32 words (N, K / 32, 4) of
        elements of 4 bits whose type `element` names. `scale`, `zero`: (N, K / group).
        `factor`: of the sums, (N, 1) or (1, 1). A stack of weights as B (G, K, N) has a
        leading G everywhere, and words (G, N, K / 8).
        """
    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the user's tensor."""
    @property
    def stride(self) -> tuple[int, ...]:
        """The strides in elements; 0 for dimensions of extent 1."""
    @property
    def element_type(self) -> DType:
        """The element type."""
    @property
    def data_ptr(self) -> int:
        """The address of the first element; 0 for a FakeTensor or a tensor without elements."""
    def numel(self) -> int:
        """The number of elements."""
    @property
    def tensor(self) -> TensorWrapper:
        """The tensor at run time and compile time."""
    @property
    def base(self) -> DenseTensor:
        """The values."""
    @property
    def scale(self) -> DenseTensor:
        """Their scales."""
    @property
    def mode(self) -> Any:
        """The `ScaleMode`: the block of values that shares a scale."""
    @property
    def swizzle(self) -> Any:
        """The `ScaleSwizzleMode`: the memory layout of the scales."""
    @property
    def zero(self) -> DenseTensor | None:
        """Of a weight: zero points in the layout of the scales."""
    @property
    def factor(self) -> DenseTensor | None:
        """Of a weight: a float32 factor of the sums, (1, 1) or of each column of B, (1, N)."""

@final
class TensorWrapper:
    """A tensor that stands for itself at run time and at compile time.

    tensor: an object with `__dlpack__`, a torch FakeTensor, or an operand of arguments.
    alignment_bytes: the address of the first element is a multiple of this; None: the size of
    an element, unchecked.

    Raises ValueError if the address is not a multiple of `alignment_bytes`, TypeError if
    `tensor` is no tensor.
    """

    def __new__(
        cls,
        tensor: TensorLike | KernelOperand | TensorWrapper,
        alignment_bytes: int | None = None,
    ) -> TensorWrapper: ...
    @property
    def runtime_tensor(self) -> Any:
        """The tensor that kernels run on. Raises ValueError for a FakeTensor, which has no
        memory.
        """
    @property
    def compile_time_tensor(self) -> Any:
        """The tensor that kernels are compiled for. It may be a FakeTensor."""
    @property
    def shape(self) -> tuple[int, ...]:
        """The extents. Raises ValueError for more than three dimensions."""
    @property
    def stride(self) -> tuple[int, ...]:
        """The strides in elements; 0 for dimensions of extent 1. Raises as `shape` does."""
    @property
    def element_type(self) -> DType:
        """The element type. Raises as `shape` does."""
    @property
    def data_ptr(self) -> int:
        """The address of the first element; 0 for a FakeTensor or a tensor without elements."""
    @property
    def alignment_bytes(self) -> int:
        """The address of the first element is a multiple of this many bytes."""
    def numel(self) -> int:
        """The number of elements."""

@disjoint_base
class RuntimeArguments:
    """The base of all arguments. A subclass for a kernel written in Python may hold anything."""

    def __new__(
        cls, *args: Any, performance: Any | None = None, **kwargs: Any
    ) -> RuntimeArguments: ...
    @property
    def performance(self) -> Any | None:
        """Hints on how to compute, or None."""

class GemmArguments(RuntimeArguments):
    """out = A @ B.

    A has shape (M, K), B (K, N), out (M, N); or all three have a leading batch dimension L.
    Any strides. B may be a list of 2 to 4 matrices (K, N_i) of one dtype, contiguous along K:
    their products lie side by side in out. accumulator_type is the dtype of the accumulator.
    prologue: PrologueArguments, computed of A in front of the product. Raises ValueError if
    the shapes do not match, the operands are on different devices, or out is read-only, and
    RuntimeError if an operand beside a prologue requires a gradient.
    """

    def __new__(
        cls,
        A: TensorLike | KernelOperand,
        B: TensorLike | KernelOperand | Sequence[TensorLike],
        out: TensorLike | KernelOperand,
        accumulator_type: NumericLike,
        epilogue: Any | None = None,
        performance: Any | None = None,
        prologue: PrologueArguments | None = None,
    ) -> GemmArguments: ...
    @property
    def A(self) -> DenseTensor | ScaledTensor:
        """The operand A: a DenseTensor, or the ScaledTensor that was passed."""
    @property
    def B(self) -> DenseTensor | ScaledTensor:
        """The operand B: a DenseTensor, or the ScaledTensor that was passed."""
    @property
    def out(self) -> DenseTensor | ScaledTensor:
        """The operand out: a DenseTensor, or the ScaledTensor that was passed."""
    @property
    def accumulator_type(self) -> DType:
        """The dtype of the accumulator; None for an elementwise operation."""
    @property
    def epilogue(self) -> Any | None:
        """The fused epilogue, or None."""

    @property
    def prologue(self) -> PrologueArguments | None:
        """The prologue, or None."""

class OpenGemmArguments(GemmArguments):
    """`GemmArguments` whose attributes a subclass written in Python sets. Its constructor calls
    the method `__cutlass_init__` with the parameters, if the core has no counterpart of an
    operand, an object with `__cutlass_operand__` stands for an operand or the epilogue, the
    core does not know the class of the epilogue, an operand has no memory, or `performance`
    is not None.
    """

    def __new__(
        cls,
        A: TensorLike | KernelOperand,
        B: TensorLike | KernelOperand | Sequence[TensorLike],
        out: TensorLike | KernelOperand,
        accumulator_type: NumericLike,
        epilogue: Any | None = None,
        performance: Any | None = None,
        prologue: PrologueArguments | None = None,
    ) -> OpenGemmArguments: ...
    def __init__(
        self,
        A: TensorLike | KernelOperand,
        B: TensorLike | KernelOperand | Sequence[TensorLike],
        out: TensorLike | KernelOperand,
        accumulator_type: NumericLike,
        epilogue: Any | None = None,
        performance: Any | None = None,
        prologue: PrologueArguments | None = None,
    ) -> None: ...

class GroupedGemmArguments(RuntimeArguments):
    """One GEMM per group. The groups divide the rows of A, or K, or are matrices of A.

    Groups of rows: A has shape (TotalM, K) or (1, TotalM, K), B (G, K, N), out (TotalM, N) or
    (1, TotalM, N). B may be a stack of weights of cutlass_api.weights. offsets is int32 of
    shape (G,): the end row of each group. A group may be empty; rows after the last group are
    not written. With index, int32 of shape (TotalM,), row i of out is of row index[i] of A,
    which has any number of rows.

    Masked, if A has a matrix for each of several groups: A has shape (G, M, K), B (G, K, N),
    out (G, M, N). offsets is int32 of shape (G,): the count of rows of each group. The first
    offsets[g] rows of out[g] are computed, and the others are not written.

    Groups along K, if B has rank 2 and out rank 3: A has shape (M, TotalK) or (1, M, TotalK),
    B (TotalK, N), out (G, M, N). offsets is int32 of shape (G,): the end of each group along
    K. out[g] = A[:, start:end] @ B[start:end]: an epilogue of zeros for an empty group. What
    lies after the last group is not used. Operands have no block scales.

    Offsets rise from 0 to at most TotalM (TotalK). GPU kernels read the offsets on the
    device, at each launch and each graph replay, so they cannot raise for invalid offsets:
    they clamp each offset to the range from its predecessor to TotalM (TotalK), and a count
    to the range from 0 to M. An index of no row of A stands for a row of zeros. The CPU
    raises ValueError.

    No kernel serves B or offsets of another rank, or another number of offsets; get_kernels
    then returns an empty list.

    Raises as GemmArguments does.
    """

    def __new__(
        cls,
        A: TensorLike | KernelOperand,
        B: TensorLike | KernelOperand,
        out: TensorLike | KernelOperand,
        accumulator_type: NumericLike,
        offsets: TensorLike | KernelOperand,
        epilogue: Any | None = None,
        performance: Any | None = None,
        index: TensorLike | KernelOperand | None = None,
    ) -> GroupedGemmArguments: ...
    @property
    def A(self) -> DenseTensor | ScaledTensor:
        """The operand A: a DenseTensor, or the ScaledTensor that was passed."""
    @property
    def B(self) -> DenseTensor | ScaledTensor:
        """The operand B: a DenseTensor, or the ScaledTensor that was passed."""
    @property
    def out(self) -> DenseTensor | ScaledTensor:
        """The operand out: a DenseTensor, or the ScaledTensor that was passed."""
    @property
    def offsets(self) -> DenseTensor | ScaledTensor:
        """The operand offsets: a DenseTensor, or the ScaledTensor that was passed."""
    @property
    def index(self) -> DenseTensor | None:
        """The operand index: a DenseTensor, or None."""
    @property
    def accumulator_type(self) -> DType:
        """The dtype of the accumulator; None for an elementwise operation."""
    @property
    def epilogue(self) -> Any | None:
        """The fused epilogue, or None."""

class ElementwiseArguments(RuntimeArguments):
    """out = A + B, element by element. All three have the same shape, of rank 1 to 3. out may be
    A or B.
    """

    def __new__(
        cls,
        A: TensorLike | KernelOperand,
        B: TensorLike | KernelOperand,
        out: TensorLike | KernelOperand,
        epilogue: Any | None = None,
        performance: Any | None = None,
    ) -> ElementwiseArguments: ...
    @property
    def A(self) -> DenseTensor | ScaledTensor:
        """The operand A: a DenseTensor, or the ScaledTensor that was passed."""
    @property
    def B(self) -> DenseTensor | ScaledTensor:
        """The operand B: a DenseTensor, or the ScaledTensor that was passed."""
    @property
    def out(self) -> DenseTensor | ScaledTensor:
        """The operand out: a DenseTensor, or the ScaledTensor that was passed."""
    @property
    def accumulator_type(self) -> None:
        """The dtype of the accumulator; None for an elementwise operation."""
    @property
    def epilogue(self) -> Any | None:
        """The fused epilogue, or None."""

@disjoint_base
class EpilogueArguments:
    """An epilogue function with its operands.

    epilogue_fn: a Python function, or its source as a string. Its first parameter is `accum`,
    the accumulated product. One of the names that it returns is `D`, the main output. Every
    other parameter and every returned name is a keyword of this constructor.

    A parameter takes a number, which each launch passes to the kernel, or a tensor of any
    dtype and strides. The tensor has the output's shape, or extent 1 in the dimensions along
    which it is broadcast: (1, N), (N,), (M, 1), or a single element. In a GEMM with groups
    along M, a tensor of shape (G, 1, N) or (G, 1, 1) has a row or an element for each group,
    such as a bias. An output takes a writable tensor of the output's shape. Behind a GEMM,
    the tensor of a reduction such as `sum(x, dim)` or `max(x, dim)` has extent 1 in the
    reduced dimensions, or omits them: (M, 1) or (M,) for dim=-1, and one element without
    `dim`. `D` is normally the tensor that the operation's arguments call `out`. If the two
    differ, the kernel writes `D`.

    Behind a GEMM of a list of matrices B, a parameter also takes a list of contiguous vectors
    (N_i,) of one dtype, one for the columns of each matrix.

    A kernel is specialized for each tensor's dtype, and for broadcast and contiguity along
    the output's last two dimensions. Other strides are launch parameters. `supports` returns
    whether a kernel can run with other tensors.

    The epilogue computes in float32, in float64 for a float64 accumulator, and in int32 for
    operations among integers. It rounds once, when it stores a value. The summation order of
    a reduction depends only on the kernel and the shape.

    Raises ValueError if a name is missing or unknown. Raises ValueError with the source line
    for unsupported Python code, and SyntaxError for source that does not parse.
    """

    def __new__(cls, epilogue_fn: Callable[..., Any] | str, **kwargs: Any) -> EpilogueArguments: ...
    @property
    def epilogue_fn(self) -> Callable[..., Any] | str:
        """The function or source that was passed."""
    @property
    def traced_epilogue(self) -> TracedEpilogue:
        """The function as an expression graph."""
    @property
    def parameters(self) -> list[Any]:
        """The operands: inputs in the order of the parameters, then outputs in the order of the
        return.
        """
    @property
    def parameter_names(self) -> list[str]:
        """The names of `parameters`."""
    @property
    def tensors(self) -> dict[str, Any]:
        """The tensors among `parameters`, by name."""
    def to_tensor_wrappers(self) -> dict[str, TensorWrapper]:
        """The tensors among `parameters`, by name, each as a `TensorWrapper`."""
    def trace(
        self,
        accumulator_shape: Sequence[int] | None = None,
        accumulator_type: NumericLike | None = None,
    ) -> TracedEpilogue:
        """The expression graph of the function, the same object as `traced_epilogue`. The
        constructor has traced the function; a call with parameters also checks the operands.

        accumulator_shape: the shape of the accumulated product; None: the shape of `D`.
        accumulator_type: the dtype of the accumulator; None: float32.

        Raises ValueError if `D` has another shape or an operand does not broadcast to the
        shape, TypeError if `accumulator_type` is no dtype.
        """

@disjoint_base
class PrologueArguments:
    """A prologue function with its operands: what is computed of A in front of the product.

    prologue_fn: a Python function, or its source as a string. Its first parameter is `A`, of
    shape (M, K). It returns `A`, the activations that the product multiplies, and may return
    further names, which are stored. Every other parameter, and every returned name but `A`,
    is a keyword of this constructor.

    dtype: the dtype of the activations; None: that of A. Each activation is rounded once, to
    nearest even. Integers and float8 saturate.

    A parameter takes a number or a tensor of any dtype and strides. The tensor has the shape
    of A, or extent 1 in the dimensions along which it is broadcast: (K,), (M, 1), or a single
    element. A returned name takes a writable tensor of the shape of A, or of shape (M, 1) if
    its value is one number of each row: a value that depends on reductions and numbers only.
    It overlaps no other operand, but the epilogue may read the same tensor, under the same
    name or another one.

    The function computes in float32, with the operations of epilogues. `sum(x)`, `mean(x)`
    and `amax(x)` reduce each row over K; their results broadcast as (M, 1).

    On a GPU, a kernel of its own computes the prologue in front of the product's, in one
    launch call, and stores the activations in workspace. There is no gradient.

    Raises ValueError if a name is missing or unknown. Raises ValueError with the source line
    for unsupported Python code, and SyntaxError for source that does not parse.
    """

    def __new__(
        cls,
        prologue_fn: Callable[..., Any] | str,
        *,
        dtype: NumericLike | None = None,
        **kwargs: Any,
    ) -> PrologueArguments: ...
    @property
    def prologue_fn(self) -> Callable[..., Any] | str:
        """The function or source that was passed."""
    @property
    def traced_prologue(self) -> TracedEpilogue:
        """The function as an expression graph."""
    @property
    def dtype(self) -> DType | None:
        """The dtype of the activations that the product multiplies; None: that of A."""
    @property
    def parameters(self) -> list[Any]:
        """The operands: inputs in the order of the parameters, then outputs in the order of the
        return.
        """
    @property
    def parameter_names(self) -> list[str]:
        """The names of `parameters`."""
    @property
    def tensors(self) -> dict[str, Any]:
        """The tensors among `parameters`, by name."""

@final
class TracedEpilogue:
    """An epilogue or prologue function as an expression graph: its inputs, operations and
    outputs.
    """

    @property
    def inputs(self) -> list[str]:
        """The parameters without the first one, in the function's order."""
    @property
    def outputs(self) -> list[str]:
        """The returned names, in the order of the return."""
    @property
    def nodes(self) -> list[tuple[Any, ...]]:
        """The operations in topological order, each as a tuple: its name, then the indices of
        the operations that it reads. ("accum",), ("A",), ("scale_blocks",), ("input",
        position of the parameter), ("product", position of the parameter) and ("number",
        value) read none; ("cast", dtype, index) has the dtype's name. ("sum", index),
        ("mean", index) and ("amax", index) of a prologue reduce over K.
        """
    @property
    def results(self) -> list[tuple[str, int, bool]]:
        """Each output's name, the index of its operation in `nodes`, and whether it is reduced."""
    @property
    def source(self) -> str:
        """Source of a function that computes the same, which epilogue operators take as a
        string.
        """

@final
class EpilogueFunction:
    """A function that an epilogue may call, as the core's table describes it."""

    @property
    def names(self) -> list[str]:
        """The name, then its other spellings."""
    @property
    def parameters(self) -> list[tuple[list[str], bool]]:
        """The names of each parameter, and whether it is a value that the function requires."""
    @property
    def operation(self) -> str:
        """The name of its operation in `TracedEpilogue.nodes`, if it is one operation."""
    @property
    def torch(self) -> str:
        """The function of torch that computes the same, as a path below `torch`, or ""."""
    @property
    def torch_keywords(self) -> list[tuple[str, str]]:
        """Keywords of the function of torch."""
    @property
    def aten(self) -> str:
        """The ATen operator that `cutlass_api.inductor` fuses as this function, or ""."""
    @property
    def is_reduction(self) -> bool:
        """Whether it reduces along dimensions."""
    @property
    def backward(self) -> str | None:
        """Of an activation: the ATen operator of its gradient, from that of the result and from
        the result; "" if the gradient is that of the result.
        """
    @property
    def reads_argument(self) -> bool:
        """Whether `backward` reads the argument of the activation in place of the result."""
    @property
    def constants(self) -> list[float | bool]:
        """Further arguments of `backward`."""
    @property
    def derivative(self) -> str | None:
        """The derivative at `accum` as an expression of an epilogue function, if the operator of
        `backward` cannot be differentiated.
        """

@final
class Program:
    """A program that NVRTC compiled."""

    @property
    def kernel_name(self) -> str:
        """The name of the kernel."""
    @property
    def architecture(self) -> str:
        """The architecture of the machine code, such as "sm_90a"."""
    @property
    def source(self) -> str:
        """The CUDA C++ source. The headers that it includes are in the package."""
    @property
    def prologue(self) -> Program | None:
        """The program of the row kernel that computes the prologue; None without a prologue."""
    @property
    def cubin(self) -> bytes:
        """The machine code: an ELF image that `cuobjdump` can read."""
    @property
    def ptx(self) -> str:
        """The PTX. Compiles the source once more."""
    @property
    def sass(self) -> str:
        """The instructions, as nvdisasm prints them. Raises RuntimeError without nvdisasm, with
        the package to install.
        """
    @property
    def resources(self) -> Resources:
        """What the program uses: registers, shared memory, spills."""
    @property
    def log(self) -> str:
        """NVRTC's messages, such as warnings; may be empty."""
    @property
    def nvrtc_version(self) -> tuple[int, int]:
        """Major and minor version of NVRTC."""
    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a launch, in bytes."""

@final
class CompiledArtifact:
    """A compiled kernel, as `Kernel.compile` returns it: the kernel and its program."""

    def __new__(cls, compiled_obj: Any, kernel_obj: Kernel) -> CompiledArtifact: ...
    @property
    def compiled_obj(self) -> Any:
        """The `Program` of a kernel that NVRTC compiled; None for a kernel that needs no
        compilation.
        """
    @property
    def kernel_obj(self) -> Kernel:
        """The kernel that was compiled."""
    @property
    def ptx(self) -> str:
        """The PTX of the program. Compiles the source once more. Raises ValueError for a kernel
        that has no program.
        """
    @property
    def sass(self) -> str:
        """The instructions of the program, as nvdisasm prints them. Raises ValueError for a
        kernel that has no program, and RuntimeError without nvdisasm, with the package to
        install.
        """
    @property
    def resources(self) -> Resources:
        """What the program uses: registers, shared memory, spills, and the occupancy. Raises
        ValueError for a kernel that has no program.
        """
    def to_bytes(self) -> bytes:
        """This artifact as bytes, for `from_bytes` in another process or on another machine
        (ahead-of-time compilation). Raises ValueError for a kernel that has no program.
        """
    @staticmethod
    def from_bytes(data: bytes) -> CompiledArtifact:
        """The artifact in bytes that `to_bytes` returned. The first `run`, or `bind` to tensors
        with memory, loads the program onto the device: call either before stream capture.

        Raises ValueError for invalid or corrupt bytes, and for a kernel that this version
        lacks. `run` raises ValueError for a program of another architecture.
        """

@final
class Resources:
    """What a compiled kernel uses, as ptxas reports it."""

    @property
    def registers(self) -> int:
        """Registers of a thread at the launch. Some warps of `sm90` kernels take more of them
        while others release theirs.
        """
    @property
    def stack_bytes(self) -> int:
        """Bytes of local memory of a thread: arrays that are indexed at run time, and spilled
        registers.
        """
    @property
    def spill_store_bytes(self) -> int:
        """Bytes of a thread that spilled registers are stored to."""
    @property
    def spill_load_bytes(self) -> int:
        """Bytes of a thread that spilled registers are loaded from."""
    @property
    def static_shared_bytes(self) -> int:
        """Shared memory of a CTA that the program declares, in bytes."""
    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a launch, in bytes."""
    @property
    def threads(self) -> int | None:
        """Threads of a CTA; None for a user's kernel, whose launches decide."""
    @property
    def ctas_per_sm(self) -> int | None:
        """CTAs that a multiprocessor holds at once; None for a user's kernel."""

@final
class CudaFunction:
    """A user's `__global__` function with its launch configuration. `cutlass_api.cuda_kernel`
    and the subclasses of `cutlass_api.providers.CudaKernel` construct it.
    """

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
    def __call__(self, *args: Any, stream: Any | None = None) -> None:
        """Launches the function on the current stream, or on `stream`."""
    def compile(self, *args: Any, cc: int | None = None) -> Program:
        """Compiles the function, or loads its program from the cache. Loads the program onto the
        device if there is one, so that the first call may happen under stream capture.
        Returns the `Program`.

        args: as for a call. The program is for the arguments' device; without arguments, for
        the first CUDA device. cc: compile for this compute capability instead (90 for an
        H100); no such GPU is needed. Raises RuntimeError with the compiler's messages.
        """
    def launch(
        self,
        args: tuple[Any, ...],
        grid: int | Sequence[int] | Callable[..., int | Sequence[int]],
        stream: Any | None = None,
        program: Program | None = None,
    ) -> None:
        """Launches the function with another grid. program: the program that `compile` returned;
        None: the program for the arguments' device.
        """
    def refusal(self, args: tuple[Any, ...]) -> str | None:
        """Why the tensors' device or layout prevents a launch; None if it does not."""
    def signature(self, *args: Any) -> list[str]:
        """What a result of the autotuner depends on, for each argument: dtype and number of
        elements of a tensor, the value of a number.
        """
    def device_index(self, *args: Any) -> int:
        """The index of the CUDA device that holds the tensors among the arguments."""
    @property
    def name(self) -> str:
        """The name of the `__global__` function."""
    @property
    def parameters(self) -> list[str]:
        """The names of the function's parameters; empty if its declaration was not found."""
    @property
    def fingerprint(self) -> str:
        """A hash of the source, the function's name and the options."""

@final
class TensorMap:
    """A tensor as the Tensor Memory Accelerator of Hopper and later sees it: the argument for a
    parameter `const __grid_constant__ TensorMap` ("common/tma.cuh") or `CUtensorMap` of a
    `cuda_kernel`.

    tensor: of rank 1 to 3, or an operand of `cutlass_api.arguments`. Its last dimension is
    contiguous; its address and the strides of its other dimensions are multiples of 16 bytes.
    A launch reads its address, so that the map follows a tensor whose memory moves.

    box: the extents of the boxes that the kernel copies, in the order of the tensor's
    dimensions, each from 1 to 256. A row of a box is a multiple of 16 bytes. Coordinates in
    the kernel have the opposite order: the contiguous dimension is first. Elements outside
    the tensor read as zero and are not written.

    swizzle: the bytes of the swizzle in shared memory: 0 (none), 32, 64 or 128. A row of a
    box then has at most that many bytes.

    Raises TypeError for something other than a tensor and ValueError for a tensor or a box
    that TMA cannot address.
    """

    def __new__(cls, tensor: Any, box: Sequence[int], *, swizzle: int = 0) -> TensorMap: ...

@final
class Estimate:
    """The terms of the cost model for one kernel and one problem. Terms overlap in time, so they
    do not add up to `total_seconds`.
    """

    @property
    def waves(self) -> float:
        """Rounds of CTAs (clusters, for sm90) over the chip."""
    @property
    def bytes(self) -> float:
        """Bytes that move between device memory and the chip."""
    @property
    def arithmetic_seconds(self) -> float:
        """Seconds of arithmetic."""
    @property
    def memory_seconds(self) -> float:
        """Seconds of device memory traffic."""
    @property
    def cache_seconds(self) -> float:
        """Seconds of loads from the L2 cache."""
    @property
    def launch_seconds(self) -> float:
        """Seconds of the launch, of packing, of tile stores, and of the exchange of partial
        sums.
        """
    @property
    def total_seconds(self) -> float:
        """Seconds of the kernel: `get_kernels` ranks by this number."""
    def _repr_html_(self) -> str:
        """The terms as a table in HTML, for notebooks."""

@disjoint_base
class Kernel:
    """A kernel. `metadata` describes it; `supports`, `compile` and `run` check, compile and
    launch it.

    Built-in kernels come from `cutlass_api.get_kernels`. A subclass defines
    `__init__(metadata)`, `compile`, `_run(args, compiled_artifact, stream, workspace=None)`,
    optionally `_supports(args)`, and a static `generate_kernels(metadata_filter,
    epilogue_args=None, cc=None)`. The `register` method of a provider adds the subclass to
    `get_kernels`.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...
    def __copy__(self) -> Self: ...
    def __deepcopy__(self, memo: Any) -> Self: ...
    def __init__(self, metadata: KernelMetadata) -> None: ...
    @property
    def metadata(self) -> KernelMetadata:
        """The `KernelMetadata`: operands, design and epilogue."""
    @property
    def source(self) -> str | PathLike[str] | None:
        """The CUDA C++ text of the program; of a `CudaKernel`, its class's text or file. None
        for a kernel that needs no compilation. The package holds the headers that the text
        includes.
        """
    @final
    def supports(self, args: RuntimeArguments) -> Status:
        """A `Status`: truthy if the kernel supports these arguments, else with the reason."""
    def compile(self, args: RuntimeArguments, cc: int | None = None) -> CompiledArtifact:
        """Compiles the kernel with NVRTC, or loads its program from the cache in the process or
        on disk.

        cc: the compute capability to compile for, which needs no GPU; None: the compute
        capability of the operands' device. The program is loaded on that device, except for
        FakeTensors with a cc. Raises RuntimeError with NVRTC's log if compilation fails, or
        with the package to install if NVRTC is missing.
        """
    @final
    def run(
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact | None = None,
        stream: Any | None = None,
        workspace: Any | None = None,
        assume_supported_args: bool = False,
    ) -> None:
        """Runs the kernel on the arguments. A GPU kernel enqueues its launch on a stream; a CPU
        kernel returns after the computation. A kernel with `packed` operands in its metadata
        first enqueues a launch that copies them.

        compiled_artifact: from `compile`; None compiles through the cache. stream: a
        `torch.cuda.Stream`, a CuPy stream, a `CUstream`, an integer handle; None: the current
        stream of the framework that owns the operands. workspace: device memory of
        `get_workspace_size` bytes; None allocates it if the kernel needs it.
        assume_supported_args: skips `supports`, but still checks that the kernel computes the
        arguments, if slowly: code compiled for one size may run at others. A workspace that
        is too small for them is not used; `run` allocates one.

        A launch that the cost model estimates at 2 us or less and that repeats on one stream
        is promoted to a CUDA graph, which profilers show as a graph launch;
        `GlobalOptions().launch_graphs` switches this off.

        Unlike `cutlass_api.matmul`, `run` does not report the write to `out` to autograd. If
        autograd saved `out` or a view of its memory, call
        `torch.autograd.graph.increment_version(out)`.

        Raises ValueError if the kernel does not serve the arguments, RuntimeError with CUDA's
        error name if the launch fails.
        """
    def bind(
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact | None = None,
        stream: Any | None = None,
    ) -> PreparedLaunch:
        """Prepares a launch for repeated calls: computes everything except the operands'
        addresses now. A launch that needs a workspace allocates it at each call.

        args, compiled_artifact, stream: as for `run`; with stream None, each call uses its
        current stream. The launch keeps the operands alive. Raises as `run` does.
        """
    def estimate(self, args: RuntimeArguments, cc: int | None = None) -> Estimate:
        """The cost model's estimate for the kernel on these arguments.

        cc: the compute capability of a chip to estimate for (90: an H100); None: the
        operands' device. Raises ValueError if the kernel does not support the arguments, if
        the operands are on the CPU and cc is None, and for kernels without a cost model
        (written in Python, elementwise, reference).
        """
    def get_workspace_size(self, args: RuntimeArguments) -> int:
        """Bytes of workspace that `run` needs; 0 if it needs none."""
    def initialize_workspace(self, args: RuntimeArguments, workspace: Any) -> None:
        """Prepares workspace for its first use. Built-in kernels need no preparation."""
    def _run(
        self,
        args: RuntimeArguments,
        compiled_artifact: CompiledArtifact,
        stream: Any,
        workspace: Any | None = None,
    ) -> None:
        """Launches the compiled kernel. Subclasses define it. `stream` is the object that `run`
        received, or the handle of the current stream if that was None:
        `cutlass_api.utils.to_cuda_stream` accepts both.
        """
    def _supports(self, args: RuntimeArguments) -> Status:
        """The checks of `supports` beyond the metadata. Subclasses may define it."""
    @staticmethod
    def generate_kernels(
        metadata_filter: Callable[[KernelMetadata], bool] | None = None,
        epilogue_args: Any | None = None,
        cc: int | None = None,
    ) -> Iterable[Kernel]:
        """The kernels of this class. Subclasses define it. `get_kernels` passes a callable
        `metadata_filter` in any case, `epilogue_args` and `cc` as its caller passed them.
        """

@final
class PreparedLaunch:
    """A prepared launch, as `Kernel.bind` returns it. Each call enqueues the launch on the
    operands' current memory.

    An operand passed by keyword replaces the bound operand in that call. It must have the
    same dtype, shape, strides and device. A bound FakeTensor must be replaced. An epilogue's
    operand has its name in the epilogue function as keyword (D has `out`); a number replaces
    a number. An epilogue's operand named A, B, out or stream cannot be replaced. A weight of
    `cutlass_api.weights` replaces a weight of its format, with its scales.
    """

    def __call__(
        self,
        *args: Never,
        A: TensorLike | None = None,
        B: TensorLike | None = None,
        out: TensorLike | None = None,
        stream: Any | None = None,
        **epilogue: TensorLike | float,
    ) -> None:
        """Enqueues the launch on `stream`, else on the stream that `bind` received, else on the
        current one.
        """

@final
class SimtGemmKernel(Kernel):
    """CUDA cores: any dtypes, any strides. Compute capability 8.0 and later."""

@final
class SkinnyGemmKernel(Kernel):
    """Few rows or few columns, bound by the memory bandwidth of the other operand. Compute
    capability 8.0 and later.
    """

@final
class Sm80GemmKernel(Kernel):
    """Tensor cores through `mma.sync` and `cp.async`. Compute capability 8.0 and later."""

@final
class Sm90GemmKernel(Kernel):
    """Hopper tensor cores through `wgmma` and TMA. Compute capability 9.0 only."""

@final
class ElementwiseKernel(Kernel):
    """A + B, element by element, bound by memory bandwidth. Compute capability 8.0 and later."""

@final
class ReferenceKernel(Kernel):
    """The CPU: sums in float64 (integers exactly), rounded once. The oracle of the tests."""

def get_kernels(
    args: RuntimeArguments | None = None,
    metadata_filter: Callable[[KernelMetadata], bool] | None = None,
    cc: int | None = None,
    providers: Sequence[str] | None = None,
) -> list[Kernel]:
    """Kernels, ranked by estimated time, fastest first.

    args: return the kernels that support these arguments; None: return all kernels.
    metadata_filter: a predicate over `KernelMetadata`. cc: return GPU kernels for this
    compute capability (90 for an H100), regardless of the operands' device; None: return
    kernels for the operands' device. providers: names of providers; None: all.

    A notebook shows the list as a table: `cutlass_api.explanation.KernelList`.

    If no kernel serves the arguments, the list is empty, and indexing it raises IndexError
    with the reasons that `cutlass_api.explain` prints.

    Raises ValueError for an unknown provider, and for two kernels of the same name.
    Exceptions of a registered class propagate.
    """

def explanation(args: RuntimeArguments, cc: int | None = None) -> str:
    """A text that explains for each family why it serves the arguments or not, and lists the
    first kernels with their estimates. cc: as for `get_kernels`.
    """

def register_kernel_class(provider: str, kernel_class: type[Kernel]) -> None:
    """Adds a kernel class to a provider, so that `get_kernels` finds its kernels. Replaces a
    class of the same provider, module and qualified name. Raises TypeError unless the class
    derives from `Kernel`.
    """

def describe_epilogue(args: RuntimeArguments | EpilogueArguments) -> str | None:
    """The epilogue of `args` in words, as the metadata of kernels that fuse it has it; None if
    `args` has none that built-in kernels fuse. args: arguments of an operation, or
    `EpilogueArguments`, which are assumed to follow a floating-point accumulator.
    """

def operand_matches(
    name: str,
    operand: Any,
    dtype: NumericLike,
    stride: Sequence[int] | None = None,
    divisibility: int = 1,
    ptr_alignment_bytes: int | None = None,
) -> Status:
    """Whether an operand has the dtype, stride order, divisibility and pointer alignment of a
    kernel's metadata. `name` is the operand's name in the message of the status.

    `stride` starts with the batch and is 1 for the contiguous dimension, as in `(0, 0, 1)`;
    None accepts any order. A matrix matches without its batch. A dimension of extent 1
    matches any stride. `divisibility` applies to all strides but the contiguous one, in
    elements.
    """

def epilogue_functions() -> list[EpilogueFunction]:
    """The functions that an epilogue may call."""

def trace_epilogue(epilogue_fn: Callable[..., Any] | str) -> TracedEpilogue:
    """Translates an epilogue function into an expression graph. `epilogue_fn` is a Python
    function or its source as a string. The result is cached.

    Raises ValueError with the source line for unsupported Python code, and SyntaxError for
    source that does not parse.
    """

def get_device_checks() -> bool:
    """Whether offsets and indices on a GPU are checked before each launch:
    `CUTLASS_API_CHECK=1`.
    """

def get_launch_promotion() -> bool:
    """Whether short launches that repeat are promoted to CUDA graphs."""

def set_launch_promotion(on: bool) -> None: ...
def get_use_c_exchange() -> bool:
    """Whether operands are read through DLPack's C exchange table (True) or through `__dlpack__`
    at each call (False).
    """

def set_use_c_exchange(on: bool) -> None: ...
def watch_torch_profiler(profiler: dict[str, Any]) -> None:
    """Makes calls check whether a profiler of torch records. profiler: the globals of
    `torch.autograd.profiler`.
    """

@final
class TuningBenchmark:
    """Times kernels on copies of the operands of arguments.

    args: GemmArguments or GroupedGemmArguments on a GPU. device: the ordinal of the GPU that
    times; None: the one of the operands. checks: whether `record` compares outputs with the
    CPU reference. tolerance: of this comparison, relative to the element's magnitude plus the
    root mean square of the output; None: by types and K. Raises ValueError for other
    arguments, for FakeTensors, and for problems that the reference does not compute,
    RuntimeError if the device does not exist or has too little memory.
    """

    def __new__(
        cls,
        args: RuntimeArguments,
        *,
        device: int | None = None,
        checks: bool = False,
        tolerance: float | None = None,
    ) -> Self: ...
    @property
    def device(self) -> str:
        """The device's name, as the driver reports it."""
    def alike(self) -> list[int]:
        """The ordinals of all GPUs of this name, the benchmark's first."""
    @property
    def driver(self) -> int:
        """The driver's major version, as CUDA counts."""
    @property
    def extents(self) -> tuple[int, int, int, int]:
        """Batch (or groups), M, N and K."""
    def key(self, name: str, extents: Sequence[int] | None = None) -> str:
        """The key of the problem in the store. name: "exact", "pow2", or the name of a function,
        whose result is passed as extents.
        """
    def compile(self, kernel: Kernel) -> CompiledArtifact:
        """Compiles a kernel for the benchmark's device. Several threads may do so at once."""
    def record(self, artifact: CompiledArtifact) -> TimedLaunches:
        """Records the launches of an artifact's kernel. Raises what its launch raises, and
        RuntimeError if an output differs from the CPU reference's.
        """

@final
class CudaBenchmark:
    """Times users' functions on copies of the tensors among these arguments.

    function: one that takes the arguments. Raises RuntimeError during a stream capture, and
    if the device has too little memory.
    """

    def __new__(cls, function: CudaFunction, args: tuple[Any, ...]) -> Self: ...
    @property
    def device(self) -> str:
        """The device's name, as the driver reports it."""
    @property
    def driver(self) -> int:
        """The driver's major version, as CUDA counts."""
    def record(self, function: CudaFunction) -> TimedLaunches:
        """Records launches of a function with the arguments. Raises what its launch raises."""

@final
class TimedLaunches:
    """The launches of one kernel on every set of operands of a benchmark."""

    @property
    def launches(self) -> int:
        """Launches of one replay."""
    def turn(self, replays: int = 1) -> float:
        """Seconds of one launch: the mean of this many replays on all sets of operands."""

def replace_tuning_mode(mode: str | None) -> None:
    """Replaces the mode of this process, off, use or record, until None restores that of
    CUTLASS_API_TUNE. The choices of `matmul` and the operators are made anew. Raises
    ValueError for another mode.
    """

def tuning_mode() -> str:
    """Off, use or record: the value of CUTLASS_API_TUNE. Raises ValueError for another value."""

def tuning_identity(kernel: Kernel) -> tuple[str, str]:
    """The name of a kernel without its epilogue, and the fingerprint of its program: how the
    store names it.
    """

def tuning_results() -> list[tuple[str, int, str, str, str, float]]:
    """All results of the store."""

def add_tuning_results(
    rows: Sequence[tuple[str, int, str, str, str, float]],
    replaces: bool = False,
    persists: bool = True,
) -> None:
    """Adds results to the store. replaces: whether earlier results of the same problems are
    removed. persists: whether they are written to the file, beyond this process.
    """

def clear_tuning_results() -> None:
    """Removes all results of the store."""

def register_tuning_key(
    name: str, function: Callable[[tuple[int, int, int, int]], Sequence[int]]
) -> None:
    """Lets rankings of this process look for keys of a function of (batch, M, N, K). A function
    of the same name replaces the earlier one.
    """

def stream_handle(stream: Any) -> int:
    """The CUDA handle of a `torch.cuda.Stream`, a CuPy stream, a `CUstream` of `cuda.bindings`,
    or any object with `__cuda_stream__`. An integer is the handle itself.
    """

def device_cc(device: int = 0) -> int:
    """The compute capability of a CUDA device, ten times major plus minor: 90 for an H100.
    Raises RuntimeError if there is no such device. Makes no CUDA context.
    """

def device_facts(device: int) -> tuple[str, int, int, int]:
    """The name, compute capability and number of multiprocessors of a CUDA device, and the
    version of the driver's interface, 1000 times major plus 10 times minor: 13000 for CUDA
    13.0. Raises RuntimeError if there is no such device.
    """

def chip_rates(device: int = 0, cc: int | None = None) -> dict[str, float]:
    """The peak rates of a CUDA device, by name: multiprocessors, their highest clock in Hz, the
    dense FLOP per clock of one of them (16-bit products by tensor cores, the same through
    `mma.sync`, float32, and float64 by the faster unit), bytes of the L2 cache, and bytes per
    second of memory. They come from the driver and the compute capability. cc: of a typical
    chip of this compute capability instead. Raises RuntimeError without such a device.
    """

def header(name: str) -> str:
    """The text of one of this package's CUDA headers, by its name in `#include` directives.
    Raises ValueError if there is no such header.
    """

def device_count() -> int:
    """How many CUDA devices the machine has. Raises RuntimeError without a driver."""

def nvrtc_info() -> tuple[PathLike[str], tuple[int, int]]:
    """The path and version of the NVRTC library in use. Raises RuntimeError if none is found."""

def cache_directory() -> PathLike[str] | None:
    """The directory of compiled programs; None if the disk cache is off."""

def cache_limit() -> int:
    """The most bytes of the cache of compiled programs (CUTLASS_API_CACHE_LIMIT, in MiB). Raises
    ValueError if the variable is no number.
    """

def cache_refusal() -> str | None:
    """Why the directory of compiled programs is not used: other users may have written to it.
    None if it is used.
    """

def cache_usage() -> tuple[int, int]:
    """How many files the cache of compiled programs has, and their bytes."""

def trim_cache(limit: int) -> tuple[int, int]:
    """Removes the programs that were used longest ago, until the others take at most `limit`
    bytes. Returns how many files were removed, and their bytes.
    """

def matmul(
    A: _Tensor,
    B: TensorLike,
    out: _Tensor | None = None,
    accumulator_type: NumericLike | None = None,
    *,
    out_dtype: NumericLike | None = None,
    epilogue: Callable[..., Any] | str | None = None,
    **operands: TensorLike | float,
) -> _Tensor:
    """Returns A @ B, or epilogue(A @ B, **operands), computed by the kernel that ranks first.

    A has shape (*, M, K), B (*, K, N); batch dimensions broadcast. A vector A (K,) counts as
    a row, B (K,) as a column, and the output lacks that dimension. out: the output; None
    allocates it in out_dtype, by default A's and B's common dtype (int32 for integers,
    bfloat16 for float8). accumulator_type: None means int32 for integers, float64 if A or B
    is float64, else float32. epilogue: an epilogue function or its source
    (cutlass_api.fusion). Its parameters are passed as keywords, tensors or numbers that
    broadcast to the output; so are its outputs except D, tensors that are written. The first
    call for each combination of shapes, strides and dtypes chooses and compiles a kernel, and
    later calls reuse it.

    Of torch tensors: follows autocast as `torch.matmul` does, unless `out` is passed. If an
    operand requires grad, or torch traces or transforms the call (torch.compile,
    torch.export, make_fx, vmap, FakeTensors), `matmul` calls torch.ops.cutlass_api.mm, bmm or
    mm_epilogue. Autograd sees the write to `out`.

    Raises ValueError if shapes do not match or no kernel serves the dtypes; RuntimeError if a
    tensor has a tangent, and if `out` is passed and an operand requires grad.
    """

def launch_gemm(
    A: TensorLike,
    B: TensorLike | Sequence[TensorLike],
    *operands: TensorLike | float | Sequence[TensorLike],
    out: TensorLike | tuple[TensorLike, ...],
    epilogue: Callable[..., Any] | str | None = None,
    kernel: str | None = None,
    offsets: TensorLike | None = None,
    index: TensorLike | None = None,
    accumulator_type: NumericLike | None = None,
    fast_sums: bool = False,
    free_multiprocessors: int = 0,
    element: str | None = None,
    prologue: PrologueArguments | None = None,
) -> None:
    """Computes out = epilogue(A @ B, *operands) on the current stream of A's framework. The
    operators of `torch.ops.cutlass_api` and code that Inductor generates call this function.

    A has shape (M, K) or (L, M, K), B (K, N) or (L, K, N); a batch of extent 1 is broadcast.
    B may be a list of 2 to 4 matrices, as in `GemmArguments`. With offsets, int32 of shape
    (G,), A is (TotalM, K), B (G, K, N), or A (M, TotalK), B (TotalK, N) and out (G, M, N),
    and the product is a grouped GEMM. With an index too, int32 of shape (TotalM,), row i of
    out is of row index[i] of A, which may have any number of rows. operands: tensors or
    numbers, one per parameter of the epilogue after the accumulator; for a list B, also lists
    of vectors. out: the output, or a tuple of the outputs in the order of the epilogue's
    return. epilogue: an epilogue function or its source; None: out = A @ B. kernel: the name
    of the kernel to run if it serves the operands; otherwise, and if None, the kernel that
    ranks first runs. Its first call for each combination of shapes, strides and dtypes
    compiles it. fast_sums: whether sums of float8 products may keep 14 bits.
    free_multiprocessors: how many multiprocessors persistent kernels leave to other work.
    `PerformanceControls` describes both.

    element: an element type of less than 8 bits, of a weight B, which is then int32 words (N,
    K / 32, 4) in the order of `Weight.repack`.

    prologue: `PrologueArguments`, with the views that their tensors had at construction.

    Reads FakeTensors as an error, casts nothing, and records nothing for autograd.

    Raises ValueError if the operands do not fit or no kernel serves them.
    """

def computes_alone(input: Any, *operands: Any) -> bool:
    """Whether torch's dispatcher would do nothing but compute: the input has no class that
    dispatches, and nothing records, traces or casts a call with these tensors.
    """

def launch_linear(
    input: TensorLike,
    B: TensorLike,
    *operands: TensorLike,
    epilogue: Callable[..., Any] | str | None = None,
    element: str | None = None,
    out_dtype: NumericLike | None = None,
) -> Any:
    """Returns epilogue(input @ B, *operands) for an input (*, K) of rank 2 or 3, in `out_dtype`,
    without a call of torch's dispatcher. None where torch has to see the call (autograd,
    autocast, a trace, a transform, a subclass of tensors), and for operands that do not fit:
    the caller then calls an operator of `torch.ops.cutlass_api`.

    out_dtype: by default the input's. B: (K, N), or the words (N, K / 32, 4) of a repacked
    weight of the type `element`. operands and epilogue: as of `launch_gemm`.
    """

def check_gemm(
    A: TensorLike,
    B: TensorLike,
    *operands: TensorLike | float,
    out: TensorLike | tuple[TensorLike, ...],
    epilogue: Callable[..., Any] | str | None = None,
    offsets: TensorLike | None = None,
    index: TensorLike | None = None,
    fast_sums: bool = False,
    element: str | None = None,
    prologue: PrologueArguments | None = None,
) -> None:
    """Checks the arguments of `launch_gemm` and launches nothing. The operands may be
    FakeTensors.

    Raises what `launch_gemm` raises if the operands do not fit or no kernel serves them. On a
    machine without a GPU, operands on a CUDA device are checked for compute capability 9.0.
    """

def described_dtype(name: str) -> DType:
    """The type of a name, also one that no kernel computes with, such as `"float4_e2m1fn_x2"`."""

def product_dtypes(a: Any, b: Any) -> tuple[DType, DType]:
    """The dtype of A @ B and the accumulator type, unless the caller names them.

    Raises TypeError for an object that names no element type.
    """

def kernel_by_name(name: str) -> Kernel:
    """The built-in kernel of a name, which fuses no epilogue. Raises ValueError if this version
    has none.
    """

def xla_handlers() -> dict[str, Any]:
    """The handlers that compute products, as capsules by platform of
    `jax.ffi.register_ffi_target`. The handler of CUDA also serves the stage `initialize`, in
    which it compiles.
    """

def xla_structs() -> list[tuple[str, int, list[tuple[str, int]]]]:
    """The structs of XLA's interface as the handlers read them: name, size without padding at
    the end, names and offsets of the fields.
    """

def xla_workspace(
    operands: Sequence[tuple[Any, Sequence[int]]],
    outputs: Sequence[tuple[Any, Sequence[int]]],
    transposed: tuple[bool, bool],
    accumulator: Any,
    epilogue: str,
    allows_tf32: bool,
    is_cuda: bool,
) -> int:
    """Checks a product of JAX arrays, and returns the bytes of workspace of the kernel that
    ranks first: 0 on the CPU.

    operands, outputs: dtype and shape of each, in the order of the custom call, without the
    workspace. transposed: whether the memory of A and of B holds the transposed matrix.
    epilogue: the source, or "". is_cuda: whether the call runs on a GPU; without one,
    workspace is counted for a typical chip of compute capability 9.0.

    Raises ValueError if the operands do not fit or no kernel serves them, TypeError for an
    unknown dtype.
    """

def launch_graphs() -> int:
    """The number of launches in this process that are promoted to CUDA graphs."""

def native_floor(
    args: RuntimeArguments,
    compiled_artifact: CompiledArtifact,
    stream: Any,
    launches: int = 100,
    rounds: int = 30,
) -> float:
    """Seconds that the host spends on one bare driver launch, the native floor of benchmarks:
    the median over `rounds` loops of `launches` driver calls with no other code around them.
    The stream is synchronized between loops.
    """
