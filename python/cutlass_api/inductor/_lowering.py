"""The lowering of our operators: Inductor times our kernels beside the operations they replace.

What it offers for an operator is the attribute ``lowering`` of the operator's record.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from cutlass_api import _core
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
from cutlass_api.inductor._timing import Arrange, time_alike
from cutlass_api.inductor._torch import (
    SubgraphChoiceCaller,
    V,
    autotune_select_algorithm,
    compile_for_benchmark,
    fallback_handler,
    inline_subgraph_to_ir_nodes,
    realize_inputs,
    register_lowering,
    row_major_layout,
    size_hints,
)
from cutlass_api.ops import OPERATORS
from cutlass_api.ops._operator import Call, Lowering, Operator
from cutlass_api.ops._scales import grouped_operands

log = logging.getLogger(__name__)

#: The key in a node's metadata of the operations that the node replaces: a GraphModule with the
#: node's tensors as inputs.
REPLACED = "cutlass_api_replaced"
#: The key of the same with some of the operations fused: a further alternative.
PARTLY_REPLACED = "cutlass_api_partly_replaced"
#: The key of the description of one of our kernels: the fastest in a trial of the same operator
#: (`_trials`).
CHOSEN = "cutlass_api_chosen"

#: The key of the products among the operations that the node replaces, if the others take no time.
ALONE = "cutlass_api_alone"

#: The time of products alone is multiplied by this: the operations that fuse take a little, too,
#: times of one kernel scatter by as much, and a kernel of ours that is as fast spares Inductor the
#: autotuning of its templates.
_ALONE_FACTOR = 1.02


class ReplacedCaller(SubgraphChoiceCaller):
    """The operations that an operator of ours replaces, as Inductor compiles them for the sizes
    that it benchmarks. If they are faster, they are inlined, for all sizes.

    at: the place among the alternatives of one operator. backends: the backends of products in this
    comparison, beside our kernels; None: all that the user configured. alone: what is timed in
    place of all operations.
    """

    def __init__(
        self,
        at: int,
        replaced: fx.GraphModule,
        nodes: Any,
        layout: Any,
        boxes: Any,
        backends: str | None,
        alone: fx.GraphModule | None = None,
    ) -> None:
        self.at = at
        self._boxes = boxes
        self._backends = backends
        trace = make_fx(fx.Interpreter(replaced).run)
        super().__init__(f"cutlass_api_replaced_{at}", nodes, layout, "unfused", trace)
        self._alone = alone
        #: By which the measured time is multiplied.
        self.time_factor = 1.0 if alone is None else _ALONE_FACTOR
        self._timed = make_fx(fx.Interpreter(alone).run) if alone is not None else trace

    def _compute_sym_input_values(self) -> list[int]:
        return []  # the compiled module has numbers in place of symbols

    def _compile_for_benchmarking(self) -> Any:
        # The parent compiles without autotuning, hence without our kernels.
        inputs = [ours.fake_of(node) for node in self.input_nodes]
        settings: dict[str, Any] = {"pipeline_max_autotune_gemm": False}
        if self._backends is not None:
            settings["max_autotune_gemm_backends"] = self._backends
        return compile_for_benchmark(self._timed(*inputs), inputs, settings)

    def hash_key(self) -> str:
        alone = "" if self._alone is None else self._alone.graph
        return f"{super().hash_key()}{alone}"

    def output_node(self) -> Any:
        ours.record_winner(self)
        return inline_subgraph_to_ir_nodes(self.gm, self._boxes, self.name)


def _register(operator: Operator) -> None:
    """Registers the lowering of an operator, which calls the operator where it offers nothing."""
    fallback = fallback_handler(operator.overload, add_to_fallback_set=False)

    def lowering(*args: Any, **options: Any) -> Any:
        result = _lower(operator, operator.bind(args, options))
        return fallback(*args, **options) if result is None else result

    register_lowering(operator.overload, type_promotion_kind=None)(lowering)


def _lower(operator: Operator, call: Call) -> Any:
    """The fastest of our kernels and the operations that the node in lowering replaces. None if
    Inductor does not autotune, or there is nothing to choose from."""
    fakes = {name: mapped(ours.symbolic, getattr(call, name)) for name in operator.tensors}
    if not all(has_hints(fake) for value in fakes.values() for fake in flat(value)):
        return None
    assert operator.lowering is not None
    offer = operator.lowering(call.replace(**fakes))
    if offer is None:
        return None
    names = [*operator.factors, *offer.operands, *([offer.offsets] if offer.offsets else [])]
    boxes = [box for name in names for box in flat(getattr(call, name))]
    node = V.graph.current_node
    layout = row_major_layout(node.meta["val"])
    nodes = list(realize_inputs(*boxes))
    choices: list[Any] = []
    if ours.are_wanted() and layout.device.type == "cuda":
        try:
            choice, make, options = offered(offer)
            choices = ours.callers(candidate_count(), choice, nodes, layout, make, **options)
        except Exception:
            if REPLACED not in node.meta:
                raise
            log.debug("no kernels of ours for %s", operator.overload, exc_info=True)
    inputs = {len(nodes) - 1: even_groups(nodes[0])} if offer.offsets else None
    backends = None if offer.offsets else "ATEN"
    return fastest(operator.name, choices, nodes, layout, boxes, backends, inputs=inputs)


def fastest(
    name: str,
    choices: Sequence[Any],
    nodes: Sequence[Any],
    layout: Any,
    boxes: Any,
    backends: str | None = "ATEN",
    inputs: dict[int, Any] | None = None,
    arrange: Arrange = tuple,
) -> Any:
    """The output of the fastest of our kernels and the operations that the node in lowering
    replaces; None if there is neither.

    boxes and nodes: the operands, before and after `realize_inputs`. backends: as of
    `ReplacedCaller`. inputs: functions that make operands for timings, by their places. arrange: as
    of `time_alike`.
    """
    meta = V.graph.current_node.meta
    replaced = [meta[key] for key in (REPLACED, PARTLY_REPLACED) if key in meta]
    chosen = [choice for choice in choices if choice.description == meta.get(CHOSEN)]
    # None is chosen if the layouts of operands are others than in the trial.
    all_choices = chosen[:1] if chosen else list(choices)
    # For the comparison with a fused kernel, the product is the fastest of ATEN's and ours.
    # Triton's templates would double the time of compilation; they take part once the operations
    # are inlined.
    for at, module in enumerate([] if chosen else replaced):
        alone = meta.get(ALONE) if at == 0 else None
        all_choices.append(ReplacedCaller(at, module, nodes, layout, boxes, backends, alone))
    if not all_choices:
        return None
    time_alike(all_choices, arrange)
    result = autotune_select_algorithm(
        f"cutlass_api_{name}",
        all_choices,
        nodes,
        layout,
        input_gen_fns=inputs,
        return_multi_template=False,
    )
    return result[0] if isinstance(result, tuple) else result


def flat(value: Any) -> Sequence[Any]:
    """The tensors of an argument: a tensor, a list of tensors, or none."""
    if isinstance(value, list | tuple):
        return value
    return [] if value is None else [value]


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """The same argument of other tensors."""
    if isinstance(value, list | tuple):
        return list(map(function, value))
    return None if value is None else function(value)


class Offered(NamedTuple):
    """What `ours.callers` takes beside the nodes of a product."""

    choice: ours.Choice
    make_arguments: Callable[..., Any]
    options: dict[str, Any]


def offered(offer: Lowering) -> Offered:
    """The kernels for a product, which ``operator.lowering`` describes."""
    if offer.joint:
        joint = {"weights": offer.joint}
        return Offered(ours.JOINT_LINEAR, partial(ours.joint_linear_arguments, **joint), joint)
    if offer.weight is not None:
        names = tuple(offer.operands)
        make = partial(ours.quantized_linear_arguments, names=names, **offer.weight)
        options = offer.weight
        if offer.epilogue is not None:
            options = {"epilogue": offer.epilogue, "element": offer.element}
        return Offered(ours.QUANTIZED_LINEAR, make, {"names": names, **options})

    has_scales = bool(offer.offsets) and "scale_a" in offer.operands

    def arguments(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *others: Any) -> Any:
        *operands, offsets = others if offer.offsets else (*others, None)
        if has_scales:
            operands = list(grouped_operands("scaled_grouped_mm", a, b, *operands)[0].values())
        elif out.dim() == 3:
            # A matrix is a factor of each product of the batch.
            a, b = (factor.expand(out.shape[0], *factor.shape[-2:]) for factor in (a, b))
        epilogue = None
        if offer.epilogue is not None:
            names = _core.trace_epilogue(offer.epilogue).inputs
            inputs = dict(zip(names, operands, strict=True))
            epilogue = EpilogueArguments(offer.epilogue, D=out, **inputs)
        accumulator = ours.accumulator(a.dtype, b.dtype)
        performance = PerformanceControls(offer.fast_sums)
        if offsets is None:
            return GemmArguments(a, b, out, accumulator, epilogue, performance)
        return GroupedGemmArguments(a, b, out, accumulator, offsets, epilogue, performance)

    options = {} if offer.epilogue is None else {"epilogue": offer.epilogue}
    if offer.fast_sums:
        options["fast_sums"] = True
    choice = ours.GEMM
    if offer.offsets:
        choice = ours.SCALED_GROUPED if has_scales else ours.GROUPED
    return Offered(choice, arguments, options)


def candidate_count() -> int:
    return (options_in_force() or Options()).candidates


def even_groups(A: Any) -> Callable[[Any], torch.Tensor]:
    """Offsets of groups of one size, for timings: random ones would lie outside of A."""

    def offsets_like(offsets: Any) -> torch.Tensor:
        rows, groups = size_hints([A.get_size()[0], *offsets.get_size()])
        ends = torch.linspace(rows / groups, rows, groups).round()
        return ends.to(dtype=offsets.get_dtype(), device=offsets.get_device())

    return offsets_like


for operator in OPERATORS.values():
    if operator.lowering is not None:
        _register(operator)
