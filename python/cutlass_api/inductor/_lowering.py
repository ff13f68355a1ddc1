"""The lowering of our operators: Inductor times our kernels beside the operations they replace."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import cutlass_api
import cutlass_api.ops
from cutlass_api._dtypes import FLOAT8
from cutlass_api.arguments import (
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    PerformanceControls,
)
from cutlass_api.inductor import Options
from cutlass_api.inductor import _candidates as ours
from cutlass_api.inductor._nodes import has_hints
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
from cutlass_api.ops import _epilogues, _scales
from cutlass_api.ops._library import product_dtype

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


def _row_major(A: Any, size: Sequence[Any], dtype: torch.dtype) -> FixedLayout:
    """The layout of a row-major output on A's device."""
    strides = FlexibleLayout.contiguous_strides(size)
    return FixedLayout(A.get_device(), dtype, list(size), strides)


def _layout_of_product(A: Any, B: Any, dtype: torch.dtype | None) -> FixedLayout:
    """The layout of A @ B, each a matrix or a batch (`_library.product_shape`)."""
    a, b = A.get_size(), B.get_size()
    batches = [size[0] for size in (a, b) if len(size) == 3]
    batch = [next((size for size in batches if size != 1), 1)] if batches else []
    dtype = dtype or product_dtype(A.get_dtype(), B.get_dtype())
    return _row_major(A, [*batch, a[-2], b[-1]], dtype)


def _count() -> int:
    return (options_in_force() or Options()).candidates


def _fused(
    operator: Any,
    factors: Sequence[Any],
    operands: Sequence[Any],
    epilogue: str | None,
    layout: Any,
    fast_sums: bool = False,
) -> Any:
    """The kernels that rank first, or the operations that the node replaces, whichever is faster;
    None as for `_lower`.

    For this comparison, the product is the fastest of ATEN's and ours. Triton's templates would
    double the time of compilation; they take part once the operations are inlined.
    """

    def arguments(out: torch.Tensor, *inputs: torch.Tensor) -> Any:
        a, b, *others = inputs
        if out.dim() == 3:
            # A matrix is a factor of each product of the batch.
            a, b = (factor.expand(out.shape[0], *factor.shape[-2:]) for factor in (a, b))
        accumulator = ours.accumulator(a.dtype, b.dtype)
        if epilogue is None:
            return GemmArguments(a, b, out, accumulator_type=accumulator)
        names = cutlass_api._core.trace_epilogue(epilogue).inputs
        fused = EpilogueArguments(epilogue, D=out, **dict(zip(names, others, strict=True)))
        return GemmArguments(
            *(a, b, out, accumulator, fused), performance=PerformanceControls(fast_sums)
        )

    options: dict[str, Any] = {} if epilogue is None else {"epilogue": epilogue}
    if fast_sums:
        options["fast_sums"] = True

    def choices(nodes: Sequence[Any]) -> list[Any]:
        return list(ours.callers(_count(), ours.GEMM, nodes, layout, arguments, **options))

    return _lower(operator, [*factors, *operands], layout, choices, "ATEN")


@register_lowering(torch.ops.cutlass_api.mm_epilogue.default, type_promotion_kind=None)
def mm_epilogue(
    A: Any, B: Any, operands: Sequence[Any], epilogue: str, *, out_dtype: Any = None
) -> Any:
    """A product with an epilogue (`_fused`)."""
    operator = torch.ops.cutlass_api.mm_epilogue.default
    layout = _layout_of_product(A, B, out_dtype)
    result = _fused(operator, [A, B], operands, epilogue, layout)
    if result is None:
        fallback = fallback_handler(operator, add_to_fallback_set=False)
        return fallback(A, B, operands, epilogue, out_dtype=out_dtype)
    return result


@register_lowering(torch.ops.cutlass_api.mixed_mm.default, type_promotion_kind=None)
def mixed_mm(
    A: Any, B: Any, scale: Any = None, zero_point: Any = None, *, out_dtype: Any = None
) -> Any:
    """A product of 16-bit numbers and 8-bit integers (`_fused`)."""
    operator = torch.ops.cutlass_api.mixed_mm.default
    layout = _layout_of_product(A, B, out_dtype)
    result = None
    a, b, factors = map(ours.symbolic, (A, B, scale))
    # Zero points may repeat along K: the operator expands them.
    if zero_point is None and all(value is None or has_hints(value) for value in (a, b, factors)):
        named, blocks = _scales.mixed_operands(a, b, factors, None)
        epilogue = _epilogues.scaled(*named, blocks=blocks) if named else None
        operands = [] if scale is None else [scale]
        result = _fused(operator, [A, B], operands, epilogue, layout)
    if result is None:
        fallback = fallback_handler(operator, add_to_fallback_set=False)
        return fallback(A, B, scale, zero_point, out_dtype=out_dtype)
    return result


@register_lowering(torch.ops.cutlass_api.scaled_mm.default, type_promotion_kind=None)
def scaled_mm(
    A: Any,
    B: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """A scaled product of float8 (`_fused`)."""
    operator = torch.ops.cutlass_api.scaled_mm.default
    layout = _layout_of_product(A, B, out_dtype or A.get_dtype())
    # As the operator: a scale of the result is for float8.
    is_narrow = layout.dtype in FLOAT8
    operands = {
        "scale_a": scale_a,
        "scale_b": scale_b,
        "bias": bias,
        "scale_result": scale_result if is_narrow else None,
    }
    present = {name: operand for name, operand in operands.items() if operand is not None}
    result = None
    a, b, of_a, of_b = map(ours.symbolic, (A, B, scale_a, scale_b))
    if all(map(has_hints, (a, b, of_a, of_b))):
        _, blocks = _scales.scaled_operands("scaled_mm", a, b, of_a, of_b, None)
        epilogue = _epilogues.scaled(*present, blocks=blocks)
        values = list(present.values())
        result = _fused(operator, [A, B], values, epilogue, layout, fast_sums=use_fast_accum)
    if result is None:
        fallback = fallback_handler(operator, add_to_fallback_set=False)
        return fallback(A, B, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum)
    return result


def _even_groups(A: Any) -> Callable[[Any], torch.Tensor]:
    """Offsets of groups of one size, for timings: random ones would lie outside of A."""

    def offsets_like(offsets: Any) -> torch.Tensor:
        rows, groups = size_hints([A.get_size()[0], *offsets.get_size()])
        ends = torch.linspace(rows / groups, rows, groups).round()
        return ends.to(dtype=offsets.get_dtype(), device=offsets.get_device())

    return offsets_like


@register_lowering(torch.ops.cutlass_api.grouped_mm.default, type_promotion_kind=None)
def grouped_mm(A: Any, B: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """The grouped kernels that rank first, or ``aten._grouped_mm``, whichever is faster."""
    operator = torch.ops.cutlass_api.grouped_mm.default
    dtype = out_dtype or product_dtype(A.get_dtype(), B.get_dtype())
    layout = _row_major(A, [A.get_size()[0], B.get_size()[-1]], dtype)

    def arguments(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor) -> Any:
        return GroupedGemmArguments(a, b, out, "float32", ends)

    def choices(nodes: Sequence[Any]) -> list[Any]:
        return list(ours.callers(_count(), ours.GROUPED, nodes, layout, arguments))

    result = None
    if offs is not None and bias is None:
        result = _lower(operator, [A, B, offs], layout, choices, None, {2: _even_groups(A)})
    if result is None:
        return fallback_handler(operator, add_to_fallback_set=False)(A, B, offs, bias, out_dtype)
    return result


@register_lowering(torch.ops.cutlass_api.scaled_grouped_mm.default, type_promotion_kind=None)
def scaled_grouped_mm(
    A: Any,
    B: Any,
    scale_a: Any,
    scale_b: Any,
    offs: Any,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """The grouped kernels of float8 that rank first, or ``aten._scaled_grouped_mm``, whichever is
    faster."""
    operator = torch.ops.cutlass_api.scaled_grouped_mm.default
    layout = _row_major(A, [A.get_size()[0], B.get_size()[-1]], out_dtype or A.get_dtype())

    inputs = [A, B, scale_a, scale_b, offs]
    result = None
    shapes = list(map(ours.symbolic, inputs))
    if all(map(has_hints, shapes)):
        named, blocks = _scales.grouped_operands("scaled_grouped_mm", *shapes[:4])
        epilogue = _epilogues.scaled(*named, blocks=blocks)

        def arguments(out: torch.Tensor, *values: torch.Tensor) -> Any:
            a, b, of_a, of_b, offsets = values
            operands, _ = _scales.grouped_operands("scaled_grouped_mm", a, b, of_a, of_b)
            fused = EpilogueArguments(epilogue, D=out, **operands)
            return GroupedGemmArguments(
                *(a, b, out, "float32", offsets, fused),
                performance=PerformanceControls(use_fast_accum),
            )

        def choices(nodes: Sequence[Any]) -> list[Any]:
            options = {"epilogue": epilogue, "fast_sums": use_fast_accum}
            return list(
                ours.callers(_count(), ours.SCALED_GROUPED, nodes, layout, arguments, **options)
            )

        result = _lower(operator, inputs, layout, choices, None, {4: _even_groups(A)})
    if result is None:
        fallback = fallback_handler(operator, add_to_fallback_set=False)
        return fallback(*inputs, out_dtype, use_fast_accum)
    return result
