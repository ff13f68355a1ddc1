"""The lowering of our operators: Inductor times our kernels beside the operations they replace."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

import cutlass_api
import cutlass_api.ops
from cutlass_api._batches import broadcast_shape
from cutlass_api.arguments import (
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    PerformanceControls,
)
from cutlass_api.inductor import Options
from cutlass_api.inductor import _candidates as ours
from cutlass_api.inductor._options import options_in_force
from cutlass_api.inductor._timing import time_alike
from cutlass_api.inductor._torch import (
    FixedLayout,
    FlexibleLayout,
    SubgraphChoiceCaller,
    V,
    autotune_select_algorithm,
    compile_for_benchmark,
    fallback_handler,
    inline_subgraph_to_ir_nodes,
    realize_inputs,
    register_lowering,
    size_hints,
)
from cutlass_api.ops import OPERATORS, _scales
from cutlass_api.ops._library import product_dtype
from cutlass_api.ops._operator import Call, Lowering, Operator

log = logging.getLogger(__name__)

#: The key in a node's metadata of the operations that the node replaces: a GraphModule with the
#: node's tensors as inputs.
REPLACED = "cutlass_api_replaced"
#: The key of the same with some of the operations fused: a further alternative.
PARTLY_REPLACED = "cutlass_api_partly_replaced"


class ReplacedCaller(SubgraphChoiceCaller):
    """The operations that an operator of ours replaces, as Inductor compiles them for the sizes
    that it benchmarks. If they are faster, they are inlined, for all sizes.

    at: the place among the alternatives of one operator. backends: the backends of products in this
    comparison, beside our kernels; None: all that the user configured.
    """

    def __init__(
        self,
        at: int,
        replaced: fx.GraphModule,
        nodes: Any,
        layout: Any,
        boxes: Any,
        backends: str | None,
    ) -> None:
        self._boxes = boxes
        self._backends = backends
        self._trace = make_fx(fx.Interpreter(replaced).run)
        super().__init__(f"cutlass_api_replaced_{at}", nodes, layout, "unfused", self._trace)

    def _compute_sym_input_values(self) -> list[int]:
        return []  # the compiled module has numbers in place of symbols

    def _compile_for_benchmarking(self) -> Any:
        # The parent compiles without autotuning, hence without our kernels.
        inputs = [ours.fake_of(node) for node in self.input_nodes]
        settings: dict[str, Any] = {"pipeline_max_autotune_gemm": False}
        if self._backends is not None:
            settings["max_autotune_gemm_backends"] = self._backends
        return compile_for_benchmark(self._trace(*inputs), inputs, settings)

    def output_node(self) -> Any:
        return inline_subgraph_to_ir_nodes(self.gm, self._boxes, self.name)


def _replaced() -> list[fx.GraphModule]:
    """The operations that the node in lowering replaces, in one or two forms."""
    node = V.graph.current_node
    meta = node.meta if isinstance(node, fx.Node) else {}
    return [meta[key] for key in (REPLACED, PARTLY_REPLACED) if key in meta]


def _lower(
    operator: Any,
    boxes: Sequence[Any],
    layout: Any,
    make_choices: Callable[[Sequence[Any]], list[Any]],
    backends: str | None,
    input_gen_fns: dict[int, Any] | None = None,
) -> Any:
    """The fastest of our kernels and the operations that the node in lowering replaces. None if
    Inductor does not autotune, or there is nothing to choose from."""
    replaced = _replaced()
    nodes = list(realize_inputs(*boxes))
    choices: list[Any] = []
    if ours.are_wanted() and layout.device.type == "cuda":
        try:
            choices = make_choices(nodes)
        except Exception:
            if not replaced:
                raise
            log.debug("no kernels of ours for %s", operator, exc_info=True)
    for at, module in enumerate(replaced):
        choices.append(ReplacedCaller(at, module, nodes, layout, boxes, backends))
    if not choices:
        return None
    time_alike(choices)
    result = autotune_select_algorithm(
        operator.name().replace("::", "_"),
        choices,
        nodes,
        layout,
        input_gen_fns=input_gen_fns,
        return_multi_template=False,
    )
    return result[0] if isinstance(result, tuple) else result


def _layout_of(call: Call, product: Lowering) -> FixedLayout:
    """The layout of the output: row-major, on A's device."""
    A, B = call.factors
    a, b = A.get_size(), B.get_size()
    batch = [] if product.offsets else broadcast_shape(a[:-2], b[:-2])
    size = [*batch, a[-2], b[-1]]
    dtype = product.out_dtype or product_dtype(A.get_dtype(), B.get_dtype())
    return FixedLayout(A.get_device(), dtype, size, FlexibleLayout.contiguous_strides(size))


def _product_of(call: Call) -> Lowering | None:
    """What our kernels compute for a call of IR nodes; None if the operator has to, as for sizes
    that depend on data."""

    def symbolic(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return list(map(ours.symbolic, value))
        return ours.symbolic(value)

    shapes = {name: symbolic(getattr(call, name)) for name in call.operator.tensors}
    assert call.operator.lowering is not None
    try:
        return call.operator.lowering(call.replace(**shapes))
    except GuardOnDataDependentSymNode:
        return None


def _fused_arguments(product: Lowering) -> Callable[..., Any]:
    """The arguments of a kernel from its output, factors and operands."""

    def arguments(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *operands: Any) -> Any:
        if out.dim() == 3:
            # A matrix is a factor of each product of the batch.
            a, b = (factor.expand(out.shape[0], *factor.shape[-2:]) for factor in (a, b))
        accumulator = ours.accumulator(a.dtype, b.dtype)
        if product.epilogue is None:
            return GemmArguments(a, b, out, accumulator_type=accumulator)
        names = cutlass_api._core.trace_epilogue(product.epilogue).inputs
        fused = EpilogueArguments(
            product.epilogue, D=out, **dict(zip(names, operands, strict=True))
        )
        performance = PerformanceControls(product.fast_sums)
        return GemmArguments(a, b, out, accumulator, fused, performance=performance)

    return arguments


def _grouped_arguments(product: Lowering) -> Callable[..., Any]:
    """The same of a grouped product, whose last operand is the offsets."""

    def arguments(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *rest: Any) -> Any:
        *scales, ends = rest
        if product.epilogue is None:
            return GroupedGemmArguments(a, b, out, "float32", ends)
        operands, _ = _scales.grouped_operands("scaled_grouped_mm", a, b, *scales)
        fused = EpilogueArguments(product.epilogue, D=out, **operands)
        performance = PerformanceControls(product.fast_sums)
        return GroupedGemmArguments(a, b, out, "float32", ends, fused, performance=performance)

    return arguments


def _even_groups(A: Any) -> Callable[[Any], torch.Tensor]:
    """Offsets of groups of one size, for timings: random ones would lie outside of A."""

    def offsets_like(offsets: Any) -> torch.Tensor:
        rows, groups = size_hints([A.get_size()[0], *offsets.get_size()])
        ends = torch.linspace(rows / groups, rows, groups).round()
        return ends.to(dtype=offsets.get_dtype(), device=offsets.get_device())

    return offsets_like


def _lower_call(call: Call) -> Any:
    """The kernels that rank first, or the operations that the node replaces, whichever is faster;
    None as for `_lower`.

    For the comparison of matrix products, torch's product is the fastest of ATEN's and ours.
    Triton's templates would double the time of compilation; they take part once the operations are
    inlined. For grouped products, all backends take part.
    """
    product = _product_of(call)
    if product is None:
        return None
    inputs = list(call.factors)
    for name in product.operands:
        value = getattr(call, name)
        inputs += value if isinstance(value, (list, tuple)) else [value]
    options: dict[str, Any] = {}
    if product.epilogue is not None:
        options["epilogue"] = product.epilogue
    if product.fast_sums or (product.offsets and product.epilogue):
        options["fast_sums"] = product.fast_sums
    generators: dict[int, Any] = {}
    choice, arguments = ours.GEMM, _fused_arguments(product)
    if product.offsets:
        generators[len(inputs)] = _even_groups(call.factors[0])
        inputs.append(getattr(call, product.offsets))
        choice = ours.SCALED_GROUPED if product.epilogue else ours.GROUPED
        arguments = _grouped_arguments(product)
    layout = _layout_of(call, product)
    count = (options_in_force() or Options()).candidates

    def choices(nodes: Sequence[Any]) -> list[Any]:
        return list(ours.callers(count, choice, nodes, layout, arguments, **options))

    overload = call.operator.overload
    backends = None if product.offsets else "ATEN"
    return _lower(overload, inputs, layout, choices, backends, generators or None)


def _register(operator: Operator) -> None:
    def lower(*args: Any, **options: Any) -> Any:
        result = _lower_call(operator.bind(args, options))
        if result is None:
            fallback = fallback_handler(operator.overload, add_to_fallback_set=False)
            return fallback(*args, **options)
        return result

    register_lowering(operator.overload, type_promotion_kind=None)(lower)


for operator in OPERATORS.values():
    if operator.lowering is not None:
        _register(operator)
