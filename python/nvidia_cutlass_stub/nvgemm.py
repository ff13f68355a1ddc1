"""What PyTorch's NVGEMM backend needs beside ``cutlass.operators``, from PyTorch 2.14 on.

The backend imports PyTorch's own wrappers of kernels in the CuTe DSL, to compare operators with
their classes. The wrappers import the DSL. Where ``cutlass`` is the stand-in, the finder serves
modules that have the names of the classes, and no operators.

The backend decides by rules of its own which operations a kernel fuses. Operators receive them only
when the code runs. The functions that decide are wrapped when their module is imported. PyTorch's
own kernels compute what the functions refuse.
"""

import sys
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from nvidia_cutlass_stub.hooks import after_import, installed_finder

_SCHEDULING = "torch._inductor.codegen.nv_universal_gemm.nv_universal_gemm_scheduling"
_WRAPPERS = "torch._inductor.kernel.vendored_templates.cutedsl.wrappers"
#: The classes of wrappers by module.
CLASSES = {
    f"{_WRAPPERS}.dense_gemm_efc_kernel": ("VendoredDenseGemmEFCOperator",),
    f"{_WRAPPERS}.dense_blockscaled_gemm_kernel": (
        "VendoredDenseBlockScaledGemmKernel",
        "VendoredDenseBlockScaledGemmEFC",
    ),
}
#: The dtypes that fused kernels write.
_WRITTEN = ("float16", "bfloat16", "float32")


def prepare() -> None:
    """Serves the wrappers' modules, and wraps the functions now or when their module is imported.

    None of it has an effect where ``cutlass`` is NVIDIA's.
    """
    installed_finder().stand_ins.update(dict.fromkeys(CLASSES, _find))
    after_import(_SCHEDULING, _restrict)


class Loader:
    """Fills a module in place of a wrapper's."""

    def create_module(self, spec: ModuleSpec) -> None:
        """The default module."""

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "Classes without operators, in place of kernels in the CuTe DSL."
        for name in CLASSES[module.__name__]:
            contents = {"__module__": module.__name__, "generate_operators": staticmethod(_none)}
            setattr(module, name, type(name, (), contents))


def _find(name: str) -> ModuleSpec | None:
    from nvidia_cutlass_stub import is_served

    loader: Any = Loader()
    return ModuleSpec(name, loader, origin=__file__) if is_served() else None


def _none(*_: Any, **__: Any) -> list[Any]:
    return []


def _restrict() -> None:
    module: Any = sys.modules[_SCHEDULING]
    scheduling: Any = module.NVUniversalGemmScheduling
    variant: Any = getattr(module, "GemmVariant", None)
    if hasattr(scheduling, "knows_the_stand_in"):
        return
    scheduling.knows_the_stand_in = True
    # PyTorch 2.15: the source of an epilogue, and whether a variant reduces groups of its output.
    if hasattr(scheduling, "_lower_pointwise_epilogue"):
        lower = scheduling._lower_pointwise_epilogue
        scheduling._lower_pointwise_epilogue = staticmethod(_checked(lower, module))
    if hasattr(variant, "supports_reduction"):
        variant.supports_reduction = _refused(variant.supports_reduction, False)
    # PyTorch 2.14: the same.
    elif hasattr(module, "LoopIRCuteDSLCodegen"):
        can_fuse = scheduling._can_fuse_epilogue_impl
        scheduling._can_fuse_epilogue_impl = _rechecked(can_fuse, module)
        # It also tries to fuse what Triton can.
        generate = scheduling.generate_kernel_code_from_nodes
        scheduling.generate_kernel_code_from_nodes = _raising(generate)
    for name in ("_grouped_reduce_config", "_grouped_reduce_feeds_main_config"):
        if hasattr(scheduling, name):
            setattr(scheduling, name, staticmethod(_refused(getattr(scheduling, name), None)))


def _refused(function: Any, answer: Any) -> Any:
    """The function, which returns ``answer`` where the stand-in is served."""
    from nvidia_cutlass_stub import is_served

    @wraps(function)
    def refused(*args: Any, **kwargs: Any) -> Any:
        return answer if is_served() else function(*args, **kwargs)

    return refused


def _checked(lower: Any, module: Any) -> Any:
    """The function, which refuses epilogues that no kernel fuses where the stand-in is served."""
    from nvidia_cutlass_stub import is_served

    @wraps(lower)
    def checked(
        gemm: Any, nodes: Any, removed: Any, reductions: Any = None, suppressed: Any = None
    ) -> Any:
        if not is_served():
            return lower(gemm, nodes, removed, reductions, suppressed)
        if reductions or suppressed:
            raise NotImplementedError("no kernel reduces groups of its output")
        plan = lower(gemm, nodes, removed, reductions, suppressed)
        if plan.is_evt_fallback:
            raise NotImplementedError("no kernel fuses the epilogue of a visitor tree")
        graph = module.V.graph
        _check(plan.source, plan.writes, graph)
        # The kernel may compute the transposed product, for which PyTorch transposes matrices only.
        if module.config.nvgemm_swap_ab:
            inputs = [graph.get_buffer(name) or graph.graph_inputs[name] for name in plan.reads]
            if any(len(each.get_size()) == 1 for each in inputs):
                raise NotImplementedError("no kernel transposes a vector")
        return plan

    return checked


def _rechecked(can_fuse: Any, module: Any) -> Any:
    """The function, which refuses epilogues that no kernel fuses where the stand-in is served."""
    from nvidia_cutlass_stub import is_served

    @wraps(can_fuse)
    def rechecked(scheduling: Any, template: Any, earlier: Any, added: Any) -> Any:
        fuses = can_fuse(scheduling, template, earlier, added)
        if not fuses or not is_served():
            return fuses
        gemm, graph = template.node.get_name(), module.V.graph
        buffers = [node.node for each in (*earlier, added) for node in each.get_nodes()]
        try:
            _, writes, _, source = module.LoopIRCuteDSLCodegen.from_buffers(
                gemm, buffers, graph.removed_buffers | {gemm}, "epilogue"
            )
            _check(source, writes, graph)
        except NotImplementedError:
            return False
        return True

    return rechecked


def _raising(generate: Any) -> Any:
    """The function, which raises for epilogues that no kernel fuses where the stand-in is served.

    Its caller then tries the next choice.
    """
    from nvidia_cutlass_stub import is_served

    @wraps(generate)
    def raising(scheduling: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        if is_served():
            _, template, epilogue = nodes[0].get_prologue_template_epilogue(list(nodes))
            if epilogue:
                *earlier, last = epilogue
                if not scheduling._can_fuse_epilogue_impl(template, earlier, last):
                    cant_split = sys.modules["torch._inductor.codegen.simd"].CantSplit
                    raise cant_split("the epilogue", "what a kernel fuses")
        return generate(scheduling, nodes, *args, **kwargs)

    return raising


def _check(source: str, writes: Any, graph: Any) -> None:
    """Raises NotImplementedError unless a kernel fuses the source and writes these buffers."""
    for name in writes:
        dtype = str(graph.get_dtype(name)).removeprefix("torch.")
        if dtype not in _WRITTEN:
            raise NotImplementedError(f"no kernel fuses an output of {dtype}")
    from cutlass_api.operators.fusion.generated import check

    check(source)


__all__ = ["CLASSES", "prepare"]
