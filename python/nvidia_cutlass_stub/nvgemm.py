"""What PyTorch's NVGEMM backend needs beside ``cutlass.operators``, from PyTorch 2.14 on.

The backend imports PyTorch's own wrappers of kernels in the CuTe DSL, to compare operators with
their classes. The wrappers import the DSL. Where ``cutlass`` is the stand-in, the finder serves
modules that have the names of the classes, and no operators.

The backend decides by rules of its own which operations a kernel fuses. Operators receive them only
when the code runs. The functions that decide are wrapped when their module is imported, and refuse
what operators of this package cannot fuse. PyTorch's own kernels compute it.
"""

import sys
from functools import wraps
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from nvidia_cutlass_stub.hooks import after_import, installed_finder

#: The module that NVGEMM imports when it searches operators.
SEARCHES = "torch._inductor.codegen.nv_universal_gemm.kernel_cache"
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
    """Wraps the functions, now or when their module is imported.

    NVGEMM's first search for an operator imports ``cutlass_api``, which adds its kernels to
    NVIDIA's ``cutlass.operators``: the program that PyTorch compiles may import neither.
    """
    after_import(_SCHEDULING, _restrict)
    after_import(SEARCHES, _import_api)


def replace_wrappers() -> None:
    """Serves the wrappers' modules where ``cutlass`` is the stand-in."""
    installed_finder().stand_ins.update(dict.fromkeys(CLASSES, _find))


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


def _import_api() -> None:
    import_module("cutlass_api")


def _is_own(buffer: Any) -> bool:
    """Whether operators of this package may fuse an epilogue into a buffer of Inductor's graph."""
    return any(
        getattr(choice, "supports_epilogue_fusion", False)
        and type(getattr(choice, "kernel", None)).__module__.startswith("cutlass_api.")
        for choice in getattr(buffer, "_choices", (buffer,))
    )


def _restrict() -> None:
    module: Any = sys.modules[_SCHEDULING]
    scheduling: Any = module.NVUniversalGemmScheduling
    if hasattr(scheduling, "knows_rutlass"):
        return
    scheduling.knows_rutlass = True
    can_fuse = scheduling._can_fuse_epilogue_impl
    # PyTorch 2.15: the source of an epilogue, and the groups of the output that it reduces.
    if hasattr(scheduling, "_lower_pointwise_epilogue"):
        lower = scheduling._lower_pointwise_epilogue
        scheduling._lower_pointwise_epilogue = staticmethod(_checked(lower, module))
        scheduling._can_fuse_epilogue_impl = _without_groups(can_fuse, module)
    # PyTorch 2.14: the same.
    elif hasattr(module, "LoopIRCuteDSLCodegen"):
        scheduling._can_fuse_epilogue_impl = _rechecked(can_fuse, module)
        # It also tries to fuse what Triton can.
        generate = scheduling.generate_kernel_code_from_nodes
        scheduling.generate_kernel_code_from_nodes = _raising(generate)
    for name in ("_grouped_reduce_config", "_grouped_reduce_feeds_main_config"):
        if hasattr(scheduling, name):
            setattr(scheduling, name, staticmethod(_refused(getattr(scheduling, name))))


def _refused(find: Any) -> Any:
    """The function, which finds no groups to reduce in the output of an own operator."""

    @wraps(find)
    def refused(gemm: Any, *args: Any) -> Any:
        return None if _is_own(gemm) else find(gemm, *args)

    return refused


def _without_groups(can_fuse: Any, module: Any) -> Any:
    """The function, which refuses to reduce groups of the output of an own operator."""

    @wraps(can_fuse)
    def without_groups(scheduling: Any, template: Any, earlier: Any, added: Any) -> Any:
        if _is_own(template.node):
            program = scheduling._lower_epilogue(template.node, (*earlier, added))
            if program.reduction_plan is not None:
                return module.NVGemmVerticalFusionDecision.DEFER
        return can_fuse(scheduling, template, earlier, added)

    return without_groups


def _checked(lower: Any, module: Any) -> Any:
    """The function, which refuses epilogues that an own operator does not fuse."""

    @wraps(lower)
    def checked(
        gemm: Any, nodes: Any, removed: Any, reductions: Any = None, suppressed: Any = None
    ) -> Any:
        graph = module.V.graph
        if not _is_own(graph.try_get_buffer(gemm)):
            return lower(gemm, nodes, removed, reductions, suppressed)
        if reductions or suppressed:
            raise NotImplementedError("no kernel reduces groups of its output")
        plan = lower(gemm, nodes, removed, reductions, suppressed)
        if plan.is_evt_fallback:
            raise NotImplementedError("no kernel fuses the epilogue of a visitor tree")
        _check(plan.source, plan.writes, graph)
        # The kernel may compute the transposed product, for which PyTorch transposes matrices only.
        if module.config.nvgemm_swap_ab:
            inputs = [graph.get_buffer(name) or graph.graph_inputs[name] for name in plan.reads]
            if any(len(each.get_size()) == 1 for each in inputs):
                raise NotImplementedError("no kernel transposes a vector")
        return plan

    return checked


def _rechecked(can_fuse: Any, module: Any) -> Any:
    """The function, which refuses epilogues that an own operator does not fuse."""

    @wraps(can_fuse)
    def rechecked(scheduling: Any, template: Any, earlier: Any, added: Any) -> Any:
        fuses = can_fuse(scheduling, template, earlier, added)
        if not fuses or not _is_own(template.node):
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
    """The function, which raises for epilogues that an own operator does not fuse.

    Its caller then tries the next choice.
    """

    @wraps(generate)
    def raising(scheduling: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        _, template, epilogue = nodes[0].get_prologue_template_epilogue(list(nodes))
        if epilogue and _is_own(template.node):
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


__all__ = ["CLASSES", "SEARCHES", "prepare", "replace_wrappers"]
