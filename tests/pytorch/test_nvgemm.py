"""PyTorch's own NVGEMM backend, unmodified, over our kernels, on a machine that needs no GPU.

Inductor's lowering, scheduling and generated code are real. The answers of a GPU (its properties,
autotuning timings) are simulated. To execute the generated code, its kernels are replaced by the
CPU reference kernels of the same element types.
"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import cutlass_api
import pytest
import torch
from support.helpers import run_python
from support.nvgemm import (
    TRIED,
    GemmVariant,
    backend,
    family,
    fresh_kernel_cache,  # noqa: F401, a fixture
    kernel_cache,
    render,
)
from support.nvgemm_graphs import PRODUCTS, assert_rounded_once, lower_by_nvgemm, matmul
from support.pretended_gpu import Lowered, run_on_the_cpu
from support.torch_compile import HALVES, grouped_reference, tensors
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile

# ---- the lowering, from a graph to the code that is run ------------------------------------------


def kernel_named(name: str) -> cutlass_api.Kernel:
    return next(each for each in cutlass_api.get_kernels() if each.metadata.kernel_name == name)


def reference_for(name: str) -> cutlass_api.Kernel:
    """The reference kernel of the same element types as the GPU kernel of this name."""

    def types(metadata: Any) -> Any:
        of = metadata.operands
        accumulator = getattr(of, "accumulator_type", None)
        along = getattr(of, "offsets_along", None)
        return type(of), of.A.dtype, of.B.dtype, of.out.dtype, accumulator, along

    wanted = types(kernel_named(name).metadata)
    (kernel,) = cutlass_api.get_kernels(
        metadata_filter=lambda metadata: types(metadata) == wanted, providers=["reference"]
    )
    return kernel


def execute_on_the_cpu(
    lowered: Lowered, inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[str]]:
    """Runs generated code with its buffers on the CPU. Returns its output and the kernels it looked
    up.
    """
    asked_for: list[str] = []

    def stand_in(name: str) -> cutlass_api.Kernel:
        asked_for.append(name)
        return reference_for(name)

    with mock.patch.object(kernel_cache, "get_kernel_by_name", stand_in):
        out = run_on_the_cpu(lowered, inputs)
    return out, asked_for


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_generated_code_computes_the_product(name: str, dtype: torch.dtype) -> None:
    function, *shapes = PRODUCTS[name]
    inputs = tensors(*shapes, dtype=dtype)
    lowered = lower_by_nvgemm(function, inputs)
    (choices,) = lowered.choices
    assert 1 <= len(choices) <= TRIED
    assert all(isinstance(choice, backend.NVUniversalGemmCaller) for choice in choices)
    assert "async_compile.nv_universal_gemm" in lowered.code
    assert "accumulator_type=cutlass.Float32" in lowered.code

    out, asked_for = execute_on_the_cpu(lowered, inputs)
    # An autotuning that prefers the first choice ends with it in the code.
    assert asked_for == [choices[0].kernel.metadata.kernel_name]
    reference = function(*(tensor.double() for tensor in inputs))
    assert out.shape == reference.shape and out.dtype == dtype
    assert_rounded_once(out, reference)


@pytest.mark.parametrize("is_linear", [False, True], ids=["row-row", "linear"])
def test_the_generated_code_computes_a_grouped_product(is_linear: bool) -> None:
    """One matrix per group of A's rows; torch's own kernels support bfloat16 only."""
    a, b = tensors((200, 64), (4, 96, 64))
    offsets = torch.tensor([70, 70, 199, 200], dtype=torch.int32)
    inputs = [a, b if is_linear else b.mT.contiguous(), offsets]

    def function(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(a, b.mT if is_linear else b, offs=offsets)

    lowered = lower_by_nvgemm(function, inputs)
    (choices,) = lowered.choices
    assert [family(choice.kernel) for choice in choices] == ["sm90"] * TRIED
    assert "GroupedGemmArguments" in lowered.code
    out, asked_for = execute_on_the_cpu(lowered, inputs)
    assert asked_for == [choices[0].kernel.metadata.kernel_name]
    assert_rounded_once(out, grouped_reference(a.double(), b.double(), offsets))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_lowering_offers_tensor_cores_for_aligned_halves(dtype: torch.dtype) -> None:
    for name in ("mm", "linear", "column-major A", "bmm"):
        function, *shapes = PRODUCTS[name]
        (choices,) = lower_by_nvgemm(function, tensors(*shapes, dtype=dtype)).choices
        assert [family(choice.kernel) for choice in choices] == ["sm90"] * TRIED, name


def test_integer_products_are_left_to_other_backends() -> None:
    """No choice is added and our code raises nothing. Without other backends, torch raises."""
    with pytest.raises(Exception, match="No choices"):
        lower_by_nvgemm(matmul, 2 * [torch.ones(64, 64, dtype=torch.int64)])


def test_complex_products_are_left_to_torch() -> None:
    lowered = lower_by_nvgemm(matmul, 2 * [torch.ones(64, 64, dtype=torch.complex64)])
    assert "nv_universal_gemm" not in lowered.code and not lowered.choices


def test_a_patched_workspace_size_reaches_the_generated_code() -> None:
    a, b = tensors((192, 256), (256, 320), dtype=torch.float16)
    with mock.patch.object(cutlass_api.Kernel, "get_workspace_size", return_value=4096) as asked:
        lowered = lower_by_nvgemm(matmul, [a, b])
    assert asked.called
    (choices,) = lowered.choices
    assert {choice.workspace_size for choice in choices} == {4096}
    assert (
        "out_ptr0, workspace, stream=None" in lowered.code and "workspace=workspace" in lowered.code
    )
    out, _ = execute_on_the_cpu(lowered, [a, b])
    assert_rounded_once(out, a.double() @ b.double())


# ---- one kernel rendered and run by itself -------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_rendered_module_runs_again_and_again(dtype: torch.dtype) -> None:
    short = {torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
    source = render(f"reference_gemm_{short}x{short}_f32_{short}")
    with inductor_config.patch(compile_threads=1):
        module = AsyncCompile().nv_universal_gemm("nv_universal_gemm_test", source)
    # Shapes vary, as in eager calls of one compiled function; its cache of artifacts is keyed by
    # shape.
    for m, n, k in [(5, 7, 3), (16, 8, 32), (5, 7, 3), (1, 1, 0)]:
        a, b = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype)
        out = torch.full((m, n), torch.nan, dtype=dtype)
        module.run(a, b, out, stream=0)
        assert_rounded_once(out, a.double() @ b.double())


def test_a_warm_cache_serves_a_process_that_imports_only_torch(
    autoload: dict[str, str], tmp_path: Path
) -> None:
    """Inductor loads generated code from its cache without the lowering."""
    source = tmp_path / "generated.py"
    source.write_text(render("reference_gemm_f16xf16_f32_f16"))
    code = """
        import sys
        import torch
        from torch._inductor.async_compile import AsyncCompile
        source = open(sys.argv[1]).read()
        module = AsyncCompile().nv_universal_gemm("nv_universal_gemm_test", source)
        a, b, out = torch.randn(5, 3).half(), torch.randn(3, 7).half(), torch.empty(5, 7).half()
        module.run(a, b, out, stream=0)
        torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=1e-3, atol=1e-7)
        print(sys.modules["cutlass"].__file__)
    """
    environment = autoload | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    assert "nvidia_cutlass_stub" in run_python(code, source, timeout=300, **environment)


def test_a_rendered_module_names_a_missing_kernel() -> None:
    source = render("sm80_gemm_of_another_version")
    with inductor_config.patch(compile_threads=1):
        module = AsyncCompile().nv_universal_gemm("nv_universal_gemm_test", source)
    with pytest.raises(RuntimeError, match="sm80_gemm_of_another_version"):
        module.run(torch.zeros(2, 2), torch.zeros(2, 2), torch.zeros(2, 2), stream=0)


@pytest.mark.parametrize("workspace_size", [0, 64])
def test_the_autotuner_s_own_call_runs(workspace_size: int) -> None:
    """The calls that Inductor times: arguments and artifact built once, then `run` on a
    `torch.cuda.Stream`.
    """
    a, b = torch.randn(33, 17).half(), torch.randn(17, 9).half()
    out = torch.full((33, 9), torch.nan, dtype=torch.float16)
    request = backend.NVUniversalGemmBenchmarkRequest(
        kernel_name="nv_universal_gemm_0",
        input_tensor_meta=[],
        output_tensor_meta=SimpleNamespace(device=torch.device("cpu")),
        kernel=kernel_named("reference_gemm_f16xf16_f32_f16"),
        accumulator_type=torch.float32,
        variant=GemmVariant.GEMM,
        workspace_size=workspace_size,
    )
    run = request.make_run_fn(a, b, out=out)
    with mock.patch.object(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0)):
        run()
        run()
    assert_rounded_once(out, a.double() @ b.double())
