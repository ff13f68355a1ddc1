"""Inductor on a machine without a GPU: lowers graphs of CUDA FakeTensors, runs the code on the CPU.

Lowering, scheduling and code generation are Inductor's own. The properties of the GPU and the
timings of choices are simulated.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from cutlass_api.inductor._candidates import Caller
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.device_interface import CudaInterface
from torch._functorch.aot_autograd import aot_function, make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext
from torch._inductor import config
from torch._inductor import utils as inductor_utils
from torch._inductor.codecache import PyCodeCache
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder, joint_graph_passes
from torch._inductor.fx_passes.post_grad import post_grad_passes, view_to_reshape
from torch._inductor.graph import GraphLowering
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.traceback import preserve_node_meta
from torch.utils._python_dispatch import TorchDispatchMode

PROPERTIES = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=80 << 30,
    warp_size=32,
    L2_cache_size=50 << 20,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
)


#: The setting's name up to PyTorch 2.14, and from 2.15 on.
FUSION_TIMINGS = next(
    name
    for name in ("benchmark_template_fusion", "benchmark_epilogue_fusion")
    if hasattr(config, name)
)


class ConstantsOnTheCPU(TorchDispatchMode):
    """Creates on the CPU the constants that Inductor folds."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        return function(*args, **kwargs)


@dataclass
class Lowered:
    #: The graph that was lowered, after the post-grad passes.
    graph: torch.fx.Graph
    code: str
    #: The choices of each autotuning, in the order of the autotunings.
    choices: list[list[Any]] = field(default_factory=list)
    #: What the code refers to by name.
    constants: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def call(self) -> str:
        """The code of a call."""
        return self.code.split("def call")[1]


@contextmanager
def pretended_h100(
    choices: list[list[Any]], prefers: Callable[[Any], bool], **patches: Any
) -> Iterator[None]:
    """Simulates the GPU queries of Inductor; autotuning takes the first choice that `prefers`
    names."""

    def timings(_class: Any, offered: list[Any], *_args: Any, **_kwargs: Any) -> dict[Any, float]:
        choices.append(list(offered))
        return {
            choice: place + (0 if prefers(choice) else 1000) for place, choice in enumerate(offered)
        }

    add_tensor_constant = GraphLowering.add_tensor_constant
    fold = UniformValueConstantFolder.run

    def folded_on_the_cpu(folder: Any, *args: Any, **kwargs: Any) -> Any:
        with ConstantsOnTheCPU():
            return fold(folder, *args, **kwargs)

    def constant_of_gpu(graph: Any, *args: Any) -> Any:
        box = add_tensor_constant(graph, *args)
        box.data.data.layout.device = torch.device("cuda", 0)
        return box

    with ExitStack() as stack:
        for target, name, value in [
            (torch.cuda, "get_device_properties", lambda *_: PROPERTIES),
            (CudaInterface, "get_device_properties", staticmethod(lambda *_: PROPERTIES)),
            (torch.cuda, "current_device", lambda: 0),
            (inductor_utils, "is_big_gpu", lambda *_: True),
            (AlgorithmSelectorCache, "benchmark_in_current_process", classmethod(timings)),
            (GraphLowering, "add_tensor_constant", constant_of_gpu),
            (UniformValueConstantFolder, "run", folded_on_the_cpu),
        ]:
            stack.enter_context(mock.patch.object(target, name, value))
        # Triton reports itself as missing without a GPU, and has no active driver.
        stack.enter_context(mock.patch("torch._inductor.scheduler.has_triton", lambda *_: True))
        backend = SimpleNamespace(hash=lambda: "pretended")
        stack.enter_context(mock.patch("torch.utils._triton.triton_backend", lambda: backend))
        settings = {
            "max_autotune": True,
            "max_autotune_gemm_backends": "ATEN",
            "autotune_in_subproc": False,
            "force_disable_caches": True,
            "compile_threads": 1,
            # Fusion of templates is decided by timings of Triton kernels.
            FUSION_TIMINGS: False,
        }
        stack.enter_context(config.patch(**(settings | patches)))
        # The kernels of these tests run on the CPU.
        stack.enter_context(mock.patch.object(Caller, "precompile", lambda self: None))
        yield


def lower(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    *,
    prefers: Callable[[Any], bool] = lambda choice: True,
    ahead_of_time: bool = False,
    constants: Sequence[int] = (),
    **patches: Any,
) -> Lowered:
    """Inductor's code for a function of CUDA tensors like these. ahead_of_time: as AOTInductor.
    constants: the places of inputs that are frozen, as real tensors of the CPU. patches: Inductor's
    settings. C++ is not generated: it contains compiled Triton kernels."""
    mode = FakeTensorMode(allow_non_fake_inputs=bool(constants), shape_env=ShapeEnv())
    traced, fakes = trace(function, inputs, mode, patches)
    placeholders = traced.graph.find_nodes(op="placeholder")

    def fake_constant(_mode: Any, value: torch.Tensor, **_: Any) -> torch.Tensor:
        with mode:
            return like_on_gpu(value)

    if constants:  # operands of operations without a lowering
        mode.fake_tensor_converter.from_real_tensor = fake_constant  # type: ignore[assignment]
    for at in constants:
        traced.register_buffer(f"_frozen_param{at}", inputs[at])
        with traced.graph.inserting_before(placeholders[at]):
            constant = traced.graph.get_attr(f"_frozen_param{at}")
        constant.meta = placeholders[at].meta
        placeholders[at].replace_all_uses_with(constant)
        traced.graph.erase_node(placeholders[at])
    fakes = [fake for at, fake in enumerate(fakes) if at not in constants]
    return lower_graph(traced, fakes, mode, prefers, patches, ahead_of_time=ahead_of_time)


def compiled(
    function: Callable[..., torch.Tensor],
    *,
    prefers: Callable[[Any], bool] = lambda choice: True,
    runs: bool = True,
) -> tuple[Callable[..., Any], list[Lowered]]:
    """A function of CPU tensors that Dynamo compiles, as for CUDA tensors, and its graphs: one more
    for each call that the guards of the others refuse. runs: whether a call runs the code."""
    graphs: list[Lowered] = []

    def backend(captured: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        inputs = [
            node.meta["example_value"] for node in captured.graph.nodes if node.op == "placeholder"
        ]
        mode = TracingContext.get().fake_mode
        traced, fakes = trace(torch.fx.Interpreter(captured).run, inputs, mode, {})
        graphs.append(lower_graph(traced, fakes, mode, prefers, {}))
        return lambda *values: (run_on_the_cpu(graphs[-1], values) if runs else None,)

    torch.compiler.reset()
    return torch.compile(function, backend=backend), graphs


def trace(
    function: Callable[..., Any], inputs: Sequence[Any], mode: FakeTensorMode, patches: Any
) -> tuple[Any, list[Any]]:
    """The graph of a function of CUDA tensors like these, and the FakeTensors."""
    with mode:
        fakes = all_like_on_gpu(inputs)
        # As AOTAutograd: nodes name the operation that they are a decomposition of, and operations
        # on symbolic shapes use the Python dispatcher.
        with config.patch(**patches), preserve_node_meta(), enable_python_dispatcher():
            return make_fx(function, decomposition_table=select_decomp_table())(*fakes), fakes


def lower_training(
    function: Callable[..., torch.Tensor],
    inputs: Sequence[torch.Tensor],
    *,
    prefers: Callable[[Any], bool] = lambda choice: True,
) -> list[Lowered]:
    """Inductor's code for the forward and the backward pass, as AOTAutograd separates them. All
    inputs require gradients."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    graphs: list[tuple[Any, list[torch.Tensor]]] = []

    def keep(captured: Any, inputs: Sequence[torch.Tensor]) -> Any:
        # Autograd needs a device that exists: the graph is captured on the CPU, and moved.
        fakes = [like_on_gpu(value) for value in inputs]
        with preserve_node_meta():
            graphs.append((make_fx(torch.fx.Interpreter(captured).run)(*fakes), fakes))
        return make_boxed_func(captured.forward)

    with mode:
        values = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in inputs]
        out = aot_function(
            function,
            keep,
            keep,
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
        )(*(value.requires_grad_() for value in values))
        out.backward(torch.empty_like(out))
    forward, backward = graphs
    return [
        lower_graph(*forward, mode, prefers, {}, is_inference=False),
        lower_graph(*backward, mode, prefers, {}, is_inference=False, is_backward=True),
    ]


def like_on_gpu(value: torch.Tensor) -> torch.Tensor:
    """A CUDA tensor like this one, fake in a FakeTensorMode."""
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")


def all_like_on_gpu(inputs: Sequence[Any]) -> list[Any]:
    """CUDA tensors like these. Those that share a storage share one, too."""
    storages = [x.untyped_storage() for x in inputs if isinstance(x, torch.Tensor)]
    shared = Counter(storage._cdata for storage in storages)
    bytes_of: dict[int, torch.Tensor] = {}

    def like(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if shared[storage._cdata] == 1:
            return like_on_gpu(value)
        whole = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cuda")
        whole = bytes_of.setdefault(storage._cdata, whole).view(value.dtype)
        return whole.as_strided(value.shape, value.stride(), value.storage_offset())

    return [like(x) if isinstance(x, torch.Tensor) else x for x in inputs]


def lower_graph(
    traced: Any,
    fakes: Sequence[Any],
    mode: FakeTensorMode,
    prefers: Callable[[Any], bool],
    patches: dict[str, Any],
    *,
    ahead_of_time: bool = False,
    is_inference: bool = True,
    is_backward: bool = False,
) -> Lowered:
    choices: list[list[Any]] = []
    with (
        inductor_utils.fresh_cache(),
        pretended_h100(choices, prefers, **patches),
        V.set_fake_mode(mode),
        V.set_aot_compilation(ahead_of_time),
        V.set_debug_handler(DebugContext()),
    ):
        if not is_backward:  # AOTAutograd runs these on the joint graph
            joint_graph_passes(traced)
        post_grad_passes(traced, is_inference=is_inference)
        view_to_reshape(traced)
        graph = GraphLowering(
            traced,
            example_inputs=fakes,
            shape_env=mode.shape_env,
            cpp_wrapper=config.cpp_wrapper,
            aot_mode=ahead_of_time,
            is_inference=is_inference,
            is_backward=is_backward,
        )
        with V.set_graph_handler(graph):
            graph.run(*fakes)
            code = "" if graph.cpp_wrapper else graph.codegen()[0].value
    return Lowered(traced.graph, code, choices, dict(graph.constants))


@contextmanager
def loaded_on_the_cpu(lowered: Lowered) -> Iterator[Callable[[list[Any]], Any]]:
    """The function of generated code, with its buffers on the CPU."""
    code = lowered.code.replace("empty_strided_cuda(", "empty_strided_cpu(").replace(
        "get_raw_stream(0)", "0"
    )
    with (
        mock.patch.object(torch.cuda, "_DeviceGuard", lambda _index: nullcontext()),
        mock.patch.object(torch.cuda, "set_device", lambda _index: None),
        config.patch(compile_threads=1),
    ):
        key, path = PyCodeCache.write(code)
        yield PyCodeCache.load_by_key_path(key, path, attrs=lowered.constants).call


def run_on_the_cpu(lowered: Lowered, inputs: Sequence[Any]) -> torch.Tensor:
    """Runs generated code with its buffers on the CPU."""
    with loaded_on_the_cpu(lowered) as call:
        (out,) = call(list(inputs))
    return out
