"""NVGEMM of PyTorch 2.14 and 2.15 over `cutlass.operators`: timings, workers, caches, processes."""

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from nvidia_cutlass_stub import nvgemm
from support.helpers import run_python
from support.nvgemm_graphs import lower_by_nvgemm, matmul
from support.nvgemm_operators import (
    IS_2_14,
    capability_of_hopper,
    compiled_artifacts,
    fresh_kernel_cache,  # noqa: F401, a fixture
    fuses,
    is_fused,
    is_nvgemm,
    makes_all_operators,
    needs_stand_in,
    nv_universal_gemm_kernel,
    operators_of_the_cpu,
    ops,
    run_operators,
    source_of,
)
from support.pretended_gpu import FUSION_TIMINGS
from support.torch_compile import tensors
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.scheduler import Scheduler

SHAPES = ((192, 256), (256, 320), (320,))


def bias_and_relu(a: torch.Tensor, b: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.addmm(row, a, b))


def halves() -> list[torch.Tensor]:
    return tensors(*SHAPES, dtype=torch.float16)


def assert_close(out: torch.Tensor, function: Any, inputs: list[torch.Tensor]) -> None:
    expected = function(*(x.double() for x in inputs))
    torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-5)


# ---- fusions that are timed ----------------------------------------------------------------------


@contextmanager
def timings_of_fusions() -> Iterator[None]:
    """A fused kernel takes half of the time of the kernel behind a product."""
    with (
        mock.patch.object(Scheduler, "benchmark_fused_nodes", lambda *_, **__: (1.0, "")),
        mock.patch.object(Scheduler, "benchmark_codegened_module", lambda *_, **__: (0.5, "")),
    ):
        yield


@pytest.mark.parametrize("is_fusing", [True, False])
@pytest.mark.parametrize(
    ("function", "is_served"),
    [
        (lambda a, b, row: torch.relu(a @ b), True),
        (lambda a, b, row: torch.nn.functional.gelu(torch.addmm(row, a, b)), True),
        (lambda a, b, row: torch.floor(a @ b), False),
        (lambda a, b, row: (a @ b).view(192, 20, 16).sum(-1), False),
    ],
    ids=["relu", "addmm and gelu", "floor", "sum of groups"],
)
def test_timed_fusions(function: Any, is_served: bool, is_fusing: bool) -> None:
    """All choices of a product stay until the fusions are timed."""
    inputs = halves()
    with timings_of_fusions():
        lowered = lower_by_nvgemm(
            function,
            inputs,
            prefers=lambda choice: is_nvgemm(choice) and fuses(choice) == is_fusing,
            backends="ATEN,NVGEMM",
            **{FUSION_TIMINGS: True},
        )
    assert is_fused(lowered) == (is_served and is_fusing)
    if is_fused(lowered):
        (out,), _ = run_operators(lowered, inputs)
        assert_close(out, function, inputs)


@pytest.mark.parametrize(
    ("function", "is_served"),
    [
        (lambda a, b, c: a @ b, True),
        (lambda a, b, c: torch.relu(a @ b) * c, not IS_2_14),
        # PyTorch does not transpose a vector beside the product.
        (lambda a, b, c: a @ b * c[0], False),
    ],
    ids=["product", "matrix", "row"],
)
def test_the_transposed_product(function: Any, is_served: bool) -> None:
    inputs = tensors((256, 256), (256, 256), (256, 256), dtype=torch.float16)

    def prefers(choice: Any) -> bool:
        return choice.swap_ab and (fuses(choice) or IS_2_14)

    lowered = lower_by_nvgemm(function, inputs, prefers=prefers, nvgemm_swap_ab=True)
    is_one_kernel = "async_compile.triton(" not in lowered.code
    assert is_one_kernel == is_served
    if is_one_kernel:
        assert "swap_ab=True" in lowered.code
        (out,), _ = run_operators(lowered, inputs)
        assert_close(out, function, inputs)


# ---- workers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_worker_compiles_the_kernel_that_the_main_process_chose(has_bias: bool) -> None:
    """Without a GPU: a worker receives the operator's description and FakeTensors."""
    a, b, row = halves()
    function, inputs = (
        (lambda a, b, row: torch.addmm(row, a, b), [a, b, row]) if has_bias else (matmul, [a, b])
    )
    (choices,) = lower_by_nvgemm(function, inputs, prefers=fuses).choices
    request = next(filter(fuses, choices)).bmreq
    kernel = request.kernel
    with mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)):
        context = nv_universal_gemm_kernel.CUDAContextMetadata.from_kernel(kernel, "cuda")
    sent = (
        (
            *(kernel.metadata.operator_name, request.variant.name, request.accumulator_type),
            *(request.input_tensor_meta, request.output_tensor_meta, {}, context),
        ),
        {"has_bias_epilogue": has_bias, "swap_ab": False, "metadata": kernel.metadata},
    )
    arguments, options = pickle.loads(pickle.dumps(sent))
    with capability_of_hopper():
        (artifact,) = compiled_artifacts(
            lambda: nv_universal_gemm_kernel._worker_nvgemm_autotuning_precompile(
                *arguments, **options
            )
        )
    of_core = artifact.compiled_obj.kernel_obj.metadata
    assert artifact.compiled_for == ops.TargetSm("90a")
    assert of_core.design == kernel.metadata.design.core
    assert (of_core.epilogue is not None) == has_bias


@needs_stand_in
def test_fake_tensors_are_compiled_for_their_gpu() -> None:
    (choices,) = lower_by_nvgemm(matmul, halves()[:2]).choices
    operator = choices[0].kernel
    fakes = [torch.empty(shape, dtype=torch.float16, device="meta") for shape in SHAPES[:2]]
    out = torch.empty(192, 320, dtype=torch.float16, device="meta")
    wrapped = [ops.utils.tensor.without_memory(tensor) for tensor in (*fakes, out)]
    args = ops.GemmArguments(*wrapped, accumulator_type=torch.float32)
    with mock.patch(
        "cutlass_api.operators.providers.checks.device_cc", side_effect=[80, 90]
    ) as asked:
        with pytest.raises(ValueError, match="does not run on compute capability 80"):
            operator.compile(args)
        assert operator.compile(args).compiled_for == ops.TargetSm("90a")
    assert asked.call_args.args == (0,)


# ---- generated code by itself --------------------------------------------------------------------


def test_a_rendered_module_runs_for_each_shape() -> None:
    name, source = source_of(lower_by_nvgemm(matmul, halves()[:2]))
    with inductor_config.patch(compile_threads=1), operators_of_the_cpu():
        module = AsyncCompile().nv_universal_gemm(name, source)
        for m, n, k in [(5, 7, 3), (16, 8, 32), (5, 7, 3), (1, 1, 0)]:
            a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
            out = torch.full((m, n), torch.nan, dtype=torch.float16)
            module.run(a, b, out, stream=0)
            assert_close(out, matmul, [a, b])


@makes_all_operators
def test_a_rendered_module_names_a_missing_operator() -> None:
    name, source = source_of(lower_by_nvgemm(matmul, halves()[:2]))
    source = source.replace("_KERNEL_NAME = 'sm90", "_KERNEL_NAME = 'of_another_version_sm90")
    a, b, _ = halves()
    with (
        inductor_config.patch(compile_threads=1),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        pytest.raises(RuntimeError, match="of_another_version"),
    ):
        module = AsyncCompile().nv_universal_gemm(name, source)
        module.run(a, b, torch.empty(192, 320).half(), stream=0)


def test_the_autotuner_s_own_call_runs() -> None:
    """Arguments and artifact are built once, then `run` gets a `torch.cuda.Stream`."""
    a, b, row = halves()
    stream = SimpleNamespace(cuda_stream=0)
    for inputs in ([a, b], [a, b, row]):
        function = matmul if len(inputs) == 2 else lambda a, b, row: torch.addmm(row, a, b)
        (choices,) = lower_by_nvgemm(function, inputs, prefers=fuses).choices
        request = next(filter(fuses, choices)).bmreq
        out = torch.full((192, 320), torch.nan, dtype=torch.float16)
        if len(inputs) == 2:
            args = ops.GemmArguments(a, b, out, accumulator_type=torch.float32)
            request.kernel = ops.get_operators(args)[0]
        with (
            mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)),
            mock.patch.object(torch.cuda, "current_stream", lambda: stream),
        ):
            run = request.make_run_fn(*inputs, out=out)
            run()
            run()
        assert_close(out, function, inputs)


@needs_stand_in
def test_a_warm_cache_serves_a_process_that_imports_only_torch(
    autoload: dict[str, str], tmp_path: Path
) -> None:
    """Inductor loads generated code from its cache without the lowering. The process has operators,
    and no DSL."""
    name, text = source_of(lower_by_nvgemm(bias_and_relu, halves(), prefers=fuses))
    source = tmp_path / "generated.py"
    source.write_text(text)
    code = """
        import sys
        import torch
        from torch._inductor.async_compile import AsyncCompile
        torch.cuda.get_device_capability = lambda *_: (9, 0)
        module = AsyncCompile().nv_universal_gemm(sys.argv[1], open(sys.argv[2]).read())
        for _ in range(2):
            a, b, row = (torch.randn(shape).half() for shape in ((5, 3), (3, 7), (7,)))
            out = torch.empty(5, 7).half()
            module.run(a, b, out, row, stream=0)
            expected = torch.relu(a.double() @ b.double() + row)
            torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-5)
        assert "nvidia_cutlass_stub" in sys.modules["cutlass"].__file__

        from torch._inductor import utils
        assert utils.ensure_nv_universal_gemm_available() and not utils.ensure_cute_available()
        import cutlass
        from cutlass.operators.utils.dtype import cutlass_type_from_torch_type
        assert cutlass_type_from_torch_type(torch.float16) is cutlass.Float16
        from torch._inductor.codegen.cutedsl.cutedsl_op_overrides import CuteDSLOpOverrides
        # Every type that torch's code generation can spell as an accumulator.
        for spelling in set(CuteDSLOpOverrides.TORCH_TO_CUTE_DTYPE.values()):
            assert eval(spelling) is not None, spelling
        import torch._inductor.kernel.vendored_templates.cutedsl.wrappers as wrappers
        scaled = wrappers.dense_blockscaled_gemm_kernel
        assert scaled.VendoredDenseBlockScaledGemmKernel.generate_operators(None) == []
    """
    environment = autoload | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    run_python(code, name, source, timeout=300, **environment)


# ---- what PyTorch finds --------------------------------------------------------------------------


@needs_stand_in
@pytest.mark.parametrize("module", nvgemm.CLASSES)
def test_torch_s_wrappers_are_its_own_without_the_stand_in(module: str) -> None:
    assert util.find_spec(module).origin == nvgemm.__file__
    loaded = sys.modules.pop(module, None)
    try:
        with mock.patch("nvidia_cutlass_stub.is_served", lambda: False):
            found = util.find_spec(module)
        # PyTorch 2.14 has one of the two modules.
        assert found is None or found.origin.startswith(torch.__path__[0])
    finally:
        if loaded is not None:
            sys.modules[module] = loaded


def test_a_local_reduction_is_refused() -> None:
    """Arguments of code that PyTorch generated where other operators were installed."""
    a, b, _ = halves()
    args = ops.GemmArguments(a, b, torch.empty(192, 320).half(), torch.float32)
    operator = ops.get_operators(args)[0]
    args.local_reduce = SimpleNamespace(enabled=True)
    with pytest.raises(NotImplementedError, match="groups of its output"):
        operator.compile(args)
