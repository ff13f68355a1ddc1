"""Our kernels as choices of Inductor's autotuner."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import sympy
import torch

import cutlass_api
from cutlass_api import _core
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from cutlass_api.inductor._torch import (
    ExternKernelCaller,
    ExternKernelChoice,
    ExternKernelGPUBenchmarkRequest,
    Layout,
    V,
    autotunes,
    extern_kernels,
    ir_node_to_tensor,
    size_hints,
    utils,
)
from cutlass_api.ops import _epilogues, _joint, _quantized_linear, _scales
from cutlass_api.ops._library import rows_of
from cutlass_api.ops._linear import bias_of_rows, matrix
from cutlass_api.weights import _adjacent
from cutlass_api.weights._formats import operand_of

#: The key in a node's metadata of the choice that was the fastest when the node was lowered.
WINNER = "cutlass_api_winner"

#: out = beta * C + alpha * (A @ B), and the same for alpha = beta = 1.
ADDMM = "def epilogue(accum, C):\n    D = accum + C\n    return D\n"
SCALED_ADDMM = (
    "def epilogue(accum, C, alpha, beta):\n    D = alpha * accum + beta * C\n    return D\n"
)


def addmm(
    C: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    *,
    out: torch.Tensor,
    alpha: float = 1,
    beta: float = 1,
    kernel: str | None = None,
) -> None:
    """out = beta * C + alpha * (A @ B), with the operands in the order of ``aten.addmm``."""
    if beta == 0:  # C is not read: it may hold NaN
        scale = "def epilogue(accum, alpha):\n    D = alpha * accum\n    return D\n"
        _core.launch_gemm(A, B, float(alpha), out=out, epilogue=scale, kernel=kernel)
    elif alpha == beta == 1:
        _core.launch_gemm(A, B, C, out=out, epilogue=ADDMM, kernel=kernel)
    else:
        _core.launch_gemm(
            A, B, C, float(alpha), float(beta), out=out, epilogue=SCALED_ADDMM, kernel=kernel
        )


def grouped(
    A: torch.Tensor,
    *others: torch.Tensor,
    out: torch.Tensor,
    epilogue: str | None = None,
    columns: Sequence[tuple[int, int, int]] = (),
    kernel: str | None = None,
) -> None:
    """out = A @ B for groups of A's rows that end at the offsets, as in ``aten._grouped_mm``.

    others: B, the operands of the epilogue, and the offsets. columns: as of `with_columns`.
    """
    *factors, offsets = with_columns(others, columns)
    _core.launch_gemm(A, *factors, out=out, offsets=offsets, epilogue=epilogue, kernel=kernel)


def with_columns(
    tensors: Sequence[torch.Tensor], columns: Sequence[tuple[int, int, int]]
) -> list[torch.Tensor]:
    """The tensors, with these columns of the first one in its place: a start, a stop and a step for
    each part. Without columns, the tensors."""
    if not columns:
        return list(tensors)
    B, *others = tensors
    return [*(B[..., slice(*each)] for each in columns), *others]


def scaled_grouped(
    A: torch.Tensor,
    B: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offsets: torch.Tensor,
    *,
    out: torch.Tensor,
    epilogue: str,
    fast_sums: bool = False,
    kernel: str | None = None,
) -> None:
    """The same for float8, with the scales of ``aten._scaled_grouped_mm``."""
    operands, _ = _scales.grouped_operands("scaled_grouped_mm", A, B, scale_a, scale_b)
    _core.launch_gemm(
        *(A, B, *operands.values()),
        out=out,
        epilogue=epilogue,
        kernel=kernel,
        offsets=offsets,
        fast_sums=fast_sums,
    )


def quantized_linear(
    *tensors: torch.Tensor,
    out: torch.Tensor,
    names: Sequence[str],
    epilogue: str | None = None,
    element: str | None = None,
    kernel: str | None = None,
    **options: Any,
) -> None:
    """The operator, by a kernel. names: the arguments that the tensors are. epilogue: of a launch
    whose operands are views of these; None: the operator computes operands."""
    if epilogue is None:
        named = _of_names(names, tensors)
        _quantized_linear.quantized_linear(**named, **options, out=out, kernel=kernel)
        return
    input, values, *others = tensors
    pairs = zip(names[2:], others, strict=True)
    _core.launch_gemm(
        rows_of(input),
        values if element else values.t(),
        *(each if name == "bias" else operand_of(name, each) for name, each in pairs),
        out=matrix(out),
        epilogue=epilogue,
        element=element,
        kernel=kernel,
    )


def _of_names(names: Sequence[str], tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    absent = dict.fromkeys(_quantized_linear.FIELDS)
    return {**absent, **dict(zip(names, tensors, strict=True))}


def quantized_linear_arguments(
    out: torch.Tensor, *tensors: torch.Tensor, names: Sequence[str], format: str, activation: Any
) -> GemmArguments:
    """The product that a call of `quantized_linear` launches."""
    name, named, target = "quantized_linear", _of_names(names, tensors), matrix(out)
    # The columns of the input are in the order of the weight's when the kernel runs.
    fields = {**{key: named[key] for key in _quantized_linear.FIELDS}, "permutation": None}
    weight = _quantized_linear.weight_of(name, *fields.values(), format)
    bias = named.get("bias")
    operands = {} if bias is None else {"bias": bias_of_rows(name, bias, out.shape)}
    epilogue = None
    if operands or activation:
        source = _epilogues.scaled(*operands, activation=activation)
        epilogue = EpilogueArguments(source, D=target, **operands)
    with V.fake_mode:  # it computes zero points
        rows, b = rows_of(named["input"]), weight.__cutlass_operand__()
    return GemmArguments(rows, b, target, "float32", epilogue=epilogue)


def joint_linear(
    input: torch.Tensor,
    *layers: torch.Tensor,
    out: torch.Tensor,
    weights: int,
    kernel: str | None = None,
) -> None:
    """The operator, by a kernel. layers: so many weights, then their biases."""
    _joint.launch_at_once(
        *(rows_of(input), layers[:weights], layers[weights:], matrix(out)), kernel=kernel
    )


def beside(
    *tensors: torch.Tensor,
    out: torch.Tensor,
    counts: Sequence[int],
    product: str,
    kernel: str | None = None,
    **options: Any,
) -> None:
    """A product by weights side by side in memory, as one weight.

    product: the choice that computes it. counts: how many of the tensors are of each of its
    arguments: one, or a part of each weight. kernel: of all weights as one; where they lie apart,
    each is multiplied by the one that ranks first.
    """
    choice, arguments = PRODUCTS[product], by_argument(tensors, counts)
    whole = [whole_of(choice, each) for each in arguments]
    if not any(each is None for each in whole):
        choice.to_callable()(*whole, out=out, kernel=kernel, **options)
        return
    columns = [by_columns(choice, part).shape[0] for part in arguments[1]]
    for at, part in enumerate(out.split(columns, -1)):
        parts = (each[at] if len(each) > 1 else each[0] for each in arguments)
        choice.to_callable()(*parts, out=part, **options)


def by_argument(tensors: Sequence[Any], counts: Sequence[int]) -> list[Sequence[Any]]:
    """The tensors of each argument of `beside`."""
    ends = accumulate(counts)
    return [tensors[end - count : end] for count, end in zip(counts, ends, strict=True)]


def by_columns(choice: "Choice", part: torch.Tensor) -> torch.Tensor:
    """A part of a weight, or of what belongs to it, with N as its first dimension; and back."""
    return part if choice is QUANTIZED_LINEAR else part.t()


def whole_of(choice: "Choice", parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """An argument of a product by all weights; None if its parts are not side by side."""
    if len(parts) == 1:
        return parts[0]
    whole = _adjacent.whole([by_columns(choice, part) for part in parts])
    return None if whole is None else by_columns(choice, whole)


def joint_linear_arguments(
    out: torch.Tensor, input: torch.Tensor, *layers: torch.Tensor, weights: int
) -> GemmArguments:
    """The product that a call of `joint_linear` launches."""
    target, epilogue = matrix(out), None
    with V.fake_mode:
        rows, columns = rows_of(input), [weight.t() for weight in layers[:weights]]
    if layers[weights:]:
        epilogue = EpilogueArguments(_epilogues.BIAS, bias=list(layers[weights:]), D=target)
    of_sums = accumulator(input.dtype, layers[0].dtype)
    return GemmArguments(rows, columns, target, of_sums, epilogue=epilogue)


def side_by_side(
    tensors: Sequence[torch.Tensor], counts: Sequence[int], choice: "Choice"
) -> list[torch.Tensor]:
    """The tensors of `beside`, with copies of parts that lie side by side."""
    found: list[torch.Tensor] = []
    for parts in by_argument(tensors, counts):
        if len(parts) > 1:
            copies = _adjacent.copied([by_columns(choice, part) for part in parts])
            parts = [by_columns(choice, copy) for copy in copies]
        found += parts
    return found


def arguments_beside(
    out: torch.Tensor,
    *tensors: torch.Tensor,
    counts: Sequence[int],
    choice: "Choice",
    make: Callable[..., GemmArguments],
) -> GemmArguments:
    """The product that a call of `beside` launches for weights side by side. make: makes the
    arguments of the choice's product."""
    with V.fake_mode:
        placed = by_argument(side_by_side(tensors, counts, choice), counts)
        whole = [whole_of(choice, parts) for parts in placed]
    return make(out, *whole)


class BenchmarkRequest(ExternKernelGPUBenchmarkRequest):
    """A benchmark of one of our kernels. Unpickling it in Inductor's autotuning process imports
    this module, which registers the functions that the request calls."""


class Caller(ExternKernelCaller):
    """One of our kernels for one product."""

    def __init__(self, choice: ExternKernelChoice, nodes: Any, layout: Layout, **kwargs: Any):
        #: The kernel and FakeTensor arguments to compile it for.
        self.compilation = kwargs.pop("compilation", None)
        super().__init__(choice, nodes, layout, kwargs, has_out_variant=True)
        self.description = kwargs.get("kernel") or "chosen by shape"
        if isinstance(self.bmreq, ExternKernelGPUBenchmarkRequest):
            self.bmreq.__class__ = BenchmarkRequest

    def output_node(self) -> Any:
        record_winner(self)
        return super().output_node()

    def precompile(self) -> None:
        """Compiles the kernel, which Inductor does for all choices in parallel."""
        if self.compilation is not None:
            kernel, args = self.compilation
            kernel.compile(args)


def record_winner(caller: Any) -> None:
    """Notes the fastest choice at the node in lowering. Inductor also chooses after the lowering,
    where there is no node; trials do not read those choices."""
    if V.graph.current_node is not None:
        V.graph.current_node.meta[WINNER] = caller


class Choice(ExternKernelChoice):
    """A function of this package that generated code calls as ``extern_kernels.<name>``."""

    def bind(self, input_nodes: Any, layout: Layout, *_: Any, **kwargs: Any) -> Caller:
        self.ordered_kwargs_for_cpp_kernel = ()
        return Caller(self, input_nodes, layout, **kwargs)

    def hash_key(self) -> str:
        """Part of the key of Inductor's autotuning cache."""
        return f"{self.name}-{_core.__version__}"


def _choice(function: Any, name: str) -> Choice:
    if hasattr(extern_kernels, name):  # this module is reloaded
        delattr(extern_kernels, name)
    return Choice(function, name=name)


#: ``extern_kernels.cutlass_api_gemm(A, B, *operands, epilogue=..., kernel=..., out=...)``.
GEMM = _choice(_core.launch_gemm, "cutlass_api_gemm")
ADDMM_CHOICE = _choice(addmm, "cutlass_api_addmm")
GROUPED = _choice(grouped, "cutlass_api_grouped_gemm")
SCALED_GROUPED = _choice(scaled_grouped, "cutlass_api_scaled_grouped_gemm")
JOINT_LINEAR = _choice(joint_linear, "cutlass_api_joint_linear")
QUANTIZED_LINEAR = _choice(quantized_linear, "cutlass_api_quantized_linear")
BESIDE = _choice(beside, "cutlass_api_beside")
#: What `beside` computes, by name.
PRODUCTS = {each.name: each for each in (GEMM, QUANTIZED_LINEAR)}


def _odd_hints(sizes: Sequence[Any]) -> tuple[int, ...]:
    """The sizes that Inductor benchmarks, with the next odd number for each symbol that is even."""
    symbols = _symbols(sizes)
    odd = {symbol: hint | 1 for symbol, hint in zip(symbols, size_hints(symbols), strict=True)}
    return tuple(int(utils.sympy_subs(sympy.sympify(size), odd)) for size in sizes)


def _symbols(sizes: Sequence[Any]) -> list[Any]:
    return list({symbol for size in sizes for symbol in sympy.sympify(size).free_symbols})


def fake_of(
    node: Any, numbers: Callable[[Sequence[Any]], tuple[int, ...]] = size_hints
) -> torch.Tensor:
    """A FakeTensor like an IR node or a layout, with numbers in place of symbols."""
    if isinstance(node, Layout):
        size, stride, dtype, device = node.size, node.stride, node.dtype, node.device
    else:
        size, stride = node.get_size(), node.get_stride()
        dtype, device = node.get_dtype(), node.get_device()
    with V.fake_mode:
        return torch.empty_strided(numbers(size), numbers(stride), dtype=dtype, device=device)


def symbolic(node: Any) -> torch.Tensor:
    """A FakeTensor like an IR node, symbols included."""
    with V.fake_mode:
        return ir_node_to_tensor(node)


def accumulator(a: torch.dtype, b: torch.dtype) -> str:
    """The accumulator type of a product of these dtypes."""
    return _core.product_dtypes(a, b)[1].name


def is_static(*nodes: Any) -> bool:
    """Whether every extent and stride of the nodes is a number."""
    return not any(_symbols([*node.get_size(), *node.get_stride()]) for node in nodes)


def are_wanted() -> bool:
    """Whether the graph that is lowered autotunes and runs from Python."""
    return autotunes() and not V.graph.cpp_wrapper and not V.graph.aot_mode


def _plain_name(kernel: cutlass_api.Kernel) -> str:
    """The name of a kernel without the epilogue that it fuses."""
    return kernel.metadata.kernel_name.partition("_epilogue_")[0]


def callers(
    count: int,
    choice: Choice,
    nodes: Sequence[Any],
    layout: Layout,
    make_arguments: Callable[..., Any],
    **kwargs: Any,
) -> list[Caller]:
    """The kernels that rank first, as choices over IR nodes. With dynamic shapes, one choice that
    picks a kernel by shape at each call. Empty if no kernel serves the shapes.

    make_arguments: makes arguments of FakeTensors, of the output and the nodes.
    """

    def served(numbers: Callable[[Sequence[Any]], tuple[int, ...]]) -> tuple[Any, list[Any]]:
        args = make_arguments(*(fake_of(each, numbers) for each in (layout, *nodes)))
        return args, list(cutlass_api.get_kernels(args)[:count])

    args, kernels = served(size_hints)
    if not is_static(*nodes):
        try:
            # Kernels differ in the alignment that they need: what serves odd sizes serves all.
            if not kernels or not served(_odd_hints)[1]:
                return []
        except ValueError:  # symbols depend on each other, as K and a number of groups
            return []
        return [choice.bind(nodes, layout, compilation=(kernels[0], args), **kwargs)]
    return [
        choice.bind(nodes, layout, compilation=(kernel, args), kernel=_plain_name(kernel), **kwargs)
        for kernel in kernels
    ]
