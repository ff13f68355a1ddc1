"""What the package uses of ``torch._inductor``, whose names may change with each release.

The only file that imports them, and the place for what differs between the supported releases.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import torch
from nvidia_cutlass_stub import probes
from torch._inductor import choices, config, utils
from torch._inductor.autotune_process import ExternKernelGPUBenchmarkRequest
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.subgraph import SubgraphChoiceCaller, inline_subgraph_to_ir_nodes
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import (
    FixedLayout,
    FlexibleLayout,
    Layout,
    gm_original_output_strides,
    ir_node_to_tensor,
)
from torch._inductor.lowering import (
    fallback_handler,
    make_fallback,
    register_lowering,
    require_contiguous,
)
from torch._inductor.select_algorithm import (
    ExternKernelCaller,
    ExternKernelChoice,
    autotune_select_algorithm,
    extern_kernels,
    realize_inputs,
)
from torch._inductor.virtualized import V


def choices_handler() -> Any:
    """The handler from which the calling thread takes the choices of products."""
    # PyTorch 2.15 can compose several handlers, of which one owns the method.
    return getattr(V.choices.get_template_configs, "__self__", None)


def set_choices(factory: Callable[[], InductorChoices] | None) -> None:
    """Configures the factory of handlers, and sets the handler of the calling thread as Inductor
    does for a thread without one.

    What the handler depends on enters Inductor's cache keys: PyTorch 2.11 pickles the factory, a
    partial by its values; later releases call the handler's ``uuid``.
    """
    config.inductor_choices_class = factory
    # PyTorch 2.15 makes one handler of several.
    create = getattr(choices, "create_inductor_choices", _create_choices)
    V.set_choices_handler(create(factory))


def _create_choices(factory: Callable[[], InductorChoices] | None) -> InductorChoices:
    return factory() if factory else InductorChoices()


def autotunes() -> bool:
    """Whether the calling thread compiles with max-autotune, and our kernels may take part.

    Some let the next grid start before those in front of them are complete. With ``enable_pdl``,
    Inductor's kernels would not wait for these: they wait for the one before them alone, where they
    read what it writes.
    """
    return bool(config.max_autotune or config.max_autotune_gemm) and not config.triton.enable_pdl


def size_hints(sizes: Sequence[Any]) -> tuple[int, ...]:
    """The sizes that Inductor benchmarks."""
    return tuple(V.graph.sizevars.optimization_hints(sizes))


def row_major_layout(value: torch.Tensor) -> FixedLayout:
    """The layout of a row-major tensor like a FakeTensor."""
    size = utils.convert_shape_to_inductor(value.shape)
    strides = FlexibleLayout.contiguous_strides(size)
    return FixedLayout(value.device, value.dtype, size, strides)


def lower_alone(module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor]) -> None:
    """Lowers a graph before the one that is compiled, with its choices."""
    lowering = GraphLowering(
        gm=module,
        example_inputs=inputs,
        shape_env=V.fake_mode.shape_env,
        name="cutlass_api_trial",
    )
    with V.set_graph_handler(lowering):
        lowering.run(*inputs)


def compile_for_benchmark(
    module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], settings: dict[str, Any]
) -> Any:
    """Compiles a part of the graph in lowering for inputs of fixed sizes, with settings of
    Inductor."""
    gm_original_output_strides(module)
    lowering = GraphLowering(
        gm=module,
        example_inputs=inputs,
        shape_env=V.graph._shape_env,
        is_inference=V.graph.is_inference,
        is_backward=V.graph.is_backward,
        name="benchmark_cutlass_api_replaced",
    )
    with V.set_graph_handler(lowering), config.patch(settings):
        lowering.run(*inputs)
        return lowering.compile_to_module()


def run_function(choice: Any) -> Callable[..., Any] | None:
    """A function of a choice's inputs and its output that returns the call to time; None if the
    choice has no such call."""
    if isinstance(choice, SubgraphChoiceCaller):
        return partial(_subgraph_call, choice)
    return getattr(getattr(choice, "bmreq", None), "make_run_fn", None)


def _subgraph_call(choice: Any, *inputs: Any, out: torch.Tensor) -> Callable[[], Any]:
    if choice._compiled_module is None:
        choice._compiled_module = choice._compile_for_benchmarking()
    call, sizes = choice._compiled_module.call, choice.sym_input_values
    return lambda: call([*sizes, *inputs])


def forget_nvgemm() -> None:
    """Clears what torch remembers of its NVGEMM backend."""
    probes.forget()
    import_module("torch._inductor.codegen.nv_universal_gemm.kernel_cache").clear_cache()


__all__ = [
    "CustomGraphPass",
    "ExternKernelCaller",
    "ExternKernelChoice",
    "ExternKernelGPUBenchmarkRequest",
    "GraphLowering",
    "InductorChoices",
    "Layout",
    "SubgraphChoiceCaller",
    "V",
    "autotune_select_algorithm",
    "config",
    "extern_kernels",
    "fallback_handler",
    "inline_subgraph_to_ir_nodes",
    "ir_node_to_tensor",
    "lower_alone",
    "make_fallback",
    "realize_inputs",
    "register_lowering",
    "require_contiguous",
    "select_decomp_table",
    "utils",
]
