"""PyTorch's own NVGEMM backend, unmodified, over our kernels, on a machine that needs no GPU.

Inductor's lowering, scheduling and generated code are real. The answers of a GPU (its properties,
autotuning timings) are simulated. To execute the generated code, its kernels are replaced by the
CPU reference kernels of the same element types.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import cutlass_api
import pytest
import torch
from support.helpers import run_python
from support.nvgemm import (
    GemmVariant,
    NVUniversalGemmKernel,
    backend,
    config_key,
    heuristics,
    kernel_cache,
)
from torch._inductor import config as inductor_config
from torch._inductor import utils as inductor_utils
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import PyCodeCache
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

HOPPER = 90
HALVES = [torch.float16, torch.bfloat16]
#: The default of `torch._inductor.config.nvgemm_max_profiling_configs`.
TRIED = 5


@pytest.fixture(autouse=True)
def fresh_kernel_cache() -> Iterator[None]:
    """torch keeps the kernels it found for the life of the process."""
    kernel_cache.clear_cache()
    yield
    kernel_cache.clear_cache()


# ---- discovery, as the backend does it -----------------------------------------------------------


def fake(
    *shape: int, dtype: torch.dtype = torch.float16, device: str = "cuda", mode: FakeTensorMode
) -> torch.Tensor:
    with mode:
        return torch.empty(shape, dtype=dtype, device=device)


def fake_arguments(
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    *,
    batch: int | None = None,
    linear: bool = False,
    out: Any = None,
) -> cutlass_api.arguments.GemmArguments:
    """Arguments over FakeTensors on a GPU. `linear`: B is the transpose of a row-major weight, as
    in nn.Linear.
    """
    mode, lead = FakeTensorMode(), () if batch is None else (batch,)
    a = fake(*lead, m, k, dtype=dtype, mode=mode)
    b = (
        fake(*lead, n, k, dtype=dtype, mode=mode)
        if linear
        else fake(*lead, k, n, dtype=dtype, mode=mode)
    )
    with mode:
        b = b.mT if linear else b
    result = fake(*lead, m, n, dtype=out or dtype, mode=mode)
    accumulator = {torch.float64: torch.float64, torch.int8: torch.int32}.get(dtype, torch.float32)
    return cutlass_api.arguments.GemmArguments(a, b, result, accumulator_type=accumulator)


def compatible(
    args: cutlass_api.arguments.GemmArguments, cc: int = HOPPER
) -> list[cutlass_api.Kernel]:
    return kernel_cache.get_compatible_kernels(
        args, cc, metadata_filter=backend._exclude_efc_kernels
    )


def family(kernel: cutlass_api.Kernel) -> str:
    return kernel.metadata.kernel_name.split("_")[0]


def test_a_fresh_process_finds_the_backend_available() -> None:
    # In a subprocess: torch caches both answers, and other tests may have imported NVIDIA's
    # package.
    code = (
        "import cutlass_api\n"
        "from torch._inductor.utils import ensure_cute_available\n"
        "from torch._inductor.utils import ensure_nv_universal_gemm_available\n"
        "assert ensure_cute_available() and ensure_nv_universal_gemm_available()\n"
        "import cutlass\n"
        "from torch._inductor.codegen.cutedsl.cutedsl_op_overrides import CuteDSLOpOverrides\n"
        # Every type that torch's code generation can spell as an accumulator.
        "for spelling in set(CuteDSLOpOverrides.TORCH_TO_CUTE_DTYPE.values()):\n"
        "    assert eval(spelling) is not None, spelling\n"
        "assert cutlass_api.DType(cutlass.Float32) == 'float32'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("linear", [False, True], ids=["row-row", "linear"])
@pytest.mark.parametrize("batch", [None, 3], ids=["mm", "bmm"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_first_kernels_for_aligned_halves_are_tensor_core_kernels(
    dtype: torch.dtype, batch: int | None, linear: bool
) -> None:
    args = fake_arguments(512, 768, 256, dtype, batch=batch, linear=linear)
    first = compatible(args)[:TRIED]
    assert len(first) == TRIED
    assert {family(kernel) for kernel in first} == {"sm90"}
    for kernel in first:
        operands = kernel.metadata.operands
        assert (
            operands.A.dtype == dtype and operands.B.dtype == dtype and operands.out.dtype == dtype
        )
        assert operands.accumulator_type == torch.float32
        assert operands.B.stride == ((0, 1, 0) if linear else (0, 0, 1))
    # Autotuning needs different tile shapes to choose from.
    assert len({kernel.metadata.design.tile_shape for kernel in first}) >= 3


@pytest.mark.parametrize("linear", [False, True], ids=["row-row", "linear"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_one_of_the_first_kernels_is_nearly_the_fastest(dtype: torch.dtype, linear: bool) -> None:
    """According to the cost model of an H100; `src/kernel/tests/listing.rs` has more shapes."""

    def seconds(kernel: cutlass_api.Kernel) -> float:
        return kernel.estimate(args).total_seconds

    for n, k in [(11008, 4096), (4096, 11008), (4096, 4096)]:
        for rows in [1, 16, 64, 256, 4096]:
            args = fake_arguments(rows, n, k, dtype, linear=linear)
            best = seconds(cutlass_api.get_kernels(args, cc=HOPPER)[0])
            assert min(seconds(kernel) for kernel in compatible(args)[:TRIED]) <= 1.05 * best, rows


@pytest.mark.parametrize("linear", [False, True], ids=["row-row", "linear"])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (67, 131, 37), (512, 768, 255), (1, 768, 256), (129, 257, 256)], ids=str
)
@pytest.mark.parametrize("batch", [None, 1, 3])
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64], ids=str)
def test_every_shape_has_a_kernel(
    dtype: torch.dtype, batch: int | None, shape: Any, linear: bool
) -> None:
    kernels = compatible(fake_arguments(*shape, dtype, batch=batch, linear=linear))
    assert kernels
    families = [family(kernel) for kernel in kernels]
    assert "simt" in families, "the floor under everything"
    # Inductor tries only the first few: kernels on tensor cores must rank before the others.
    assert families == sorted(families, key=lambda name: name == "simt")


def test_int8_has_kernels() -> None:
    kernels = compatible(fake_arguments(256, 256, 256, torch.int8, out=torch.int32))
    assert kernels and all(
        kernel.metadata.operands.accumulator_type == torch.int32 for kernel in kernels
    )


def test_no_reference_kernel_is_offered_for_a_gpu() -> None:
    """Their min_cc is 0, so they pass torch's filter on the compute capability; `supports` must
    refuse.
    """
    for dtype in [*HALVES, torch.float32, torch.float64]:
        kernels = compatible(fake_arguments(64, 64, 64, dtype))
        assert not [kernel for kernel in kernels if family(kernel) == "reference"]


def test_chips_older_than_a_kernel_are_offered_nothing() -> None:
    assert compatible(fake_arguments(256, 256, 256, torch.float16), cc=75) == []


def test_every_kernel_is_found_by_its_name() -> None:
    kernels = cutlass_api.get_kernels()
    assert len({kernel.metadata.kernel_name for kernel in kernels}) == len(kernels)
    for kernel in kernels:
        assert kernel_cache.get_kernel_by_name(kernel.metadata.kernel_name) is kernel
        assert backend._exclude_efc_kernels(kernel.metadata)
    assert kernel_cache.get_kernel_by_name("no such kernel") is None


#: All element types that a torch tensor can have, and so that a graph may bring to the lowering.
#: Quantized and opaque types are no tensors of numbers: torch makes no empty ones.
EVERY_DTYPE = sorted(
    {
        value
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype) and not name.startswith(("q", "bits"))
    },
    key=str,
)


@pytest.mark.parametrize("dtype", EVERY_DTYPE, ids=str)
def test_arguments_of_any_dtype_can_be_made_and_find_kernels_only_if_ours(
    dtype: torch.dtype,
) -> None:
    # The backend builds arguments before it calls `supports`; an error here would fail the
    # compilation.
    mode = FakeTensorMode()
    a, b, out = (fake(64, 64, dtype=dtype, mode=mode) for _ in range(3))
    args = cutlass_api.arguments.GemmArguments(a, b, out, accumulator_type=torch.float32)
    found = compatible(args)
    served = {torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2}
    assert bool(found) == (dtype in served)
    # The same call through `get_kernels`.
    assert bool(cutlass_api.get_kernels(args, cc=HOPPER)) == (dtype in served)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.int16, torch.bool], ids=str)
def test_real_tensors_of_foreign_dtypes_find_no_kernels_either(dtype: torch.dtype) -> None:
    a, b, out = (torch.zeros(8, 8, dtype=dtype) for _ in range(3))
    args = cutlass_api.arguments.GemmArguments(a, b, out, accumulator_type=torch.float32)
    assert cutlass_api.get_kernels(args) == []


def test_symbolic_shapes_are_read_as_the_sizes_they_stand_for() -> None:
    """With dynamic shapes, the FakeTensors' sizes are symbols. Reading a size makes torch guard on
    it: other sizes recompile the graph, and no kernel runs with an unchecked alignment.
    """
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)

    def symbolic(*shape: int) -> torch.Tensor:
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(shape))
        return mode.from_tensor(torch.empty(shape, dtype=torch.float16), symbolic_context=context)

    a, b, out = symbolic(192, 256), symbolic(256, 320), symbolic(192, 320)
    assert not isinstance(a.shape[0], int)
    args = cutlass_api.arguments.GemmArguments(a, b, out, accumulator_type=torch.float32)
    assert args.A.shape == (192, 256) and args.B.shape == (256, 320)
    assert family(cutlass_api.get_kernels(args, cc=HOPPER)[0]) == "sm90"
    assert {192, 256, 320} <= {int(size) for size in environment.replacements.values()}


# ---- the heuristics ------------------------------------------------------------------------------


def mm_inputs(m: int, n: int, k: int, dtype: torch.dtype) -> Any:
    """The methods of `MMKernelInputs` that the heuristics call, for row-major operands."""
    return SimpleNamespace(
        mnk_hinted=lambda: (m, n, k),
        batch_hinted=lambda: 1,
        dtype=lambda _index: dtype,
        out_dtype=lambda: dtype,
        strides_hinted=lambda: ((k, 1), (n, 1)),
        _mat1_idx=0,
        _mat2_idx=1,
    )


def test_the_heuristics_read_every_design() -> None:
    chooser = heuristics.get_nvgemm_heuristics()
    kernels = compatible(fake_arguments(512, 768, 256, torch.float16))
    by_config = chooser._extract_config_to_kernels(kernels)
    assert sum(len(group) for group in by_config.values()) == len(kernels)
    for kernel in cutlass_api.get_kernels(cc=HOPPER):
        design = kernel.metadata.design
        key = heuristics._make_config_key_from_kernel_design(design)
        assert key == config_key(design)
        assert all(type(number) is int and number > 0 for number in key)
    # A kernel without a design, such as a reference kernel, is passed over without an error.
    assert heuristics._make_config_key_from_kernel_design(None) is None


def test_without_the_heuristics_package_the_first_kernels_are_kept() -> None:
    kernels = compatible(fake_arguments(512, 768, 256, torch.float16))
    chooser = heuristics.get_nvgemm_heuristics()
    with mock.patch.object(type(chooser), "should_run", return_value=False):
        assert (
            chooser.filter_kernels(kernels, mm_inputs(512, 768, 256, torch.float16), TRIED)
            == kernels[:TRIED]
        )


def test_with_the_heuristics_package_its_order_is_followed() -> None:
    kernels = compatible(fake_arguments(512, 768, 256, torch.float16))
    chooser = heuristics.get_nvgemm_heuristics()
    tiles = list(dict.fromkeys(kernel.metadata.design.tile_shape for kernel in kernels))
    # Simulates nvMatmulHeuristics, with the opposite order of preference.
    advice = [
        heuristics.HeuristicConfig(
            *tile, 1, 1, 4, 1, 64, 64, 32, estimated_runtime=1e-6 * (len(tiles) - place)
        )
        for place, tile in enumerate(tiles)
    ]
    with (
        mock.patch.object(type(chooser), "should_run", return_value=True),
        mock.patch.object(type(chooser), "_get_heuristic_configs", return_value=advice) as asked,
    ):
        chosen = chooser.filter_kernels(kernels, mm_inputs(512, 768, 256, torch.float16), TRIED)
    assert asked.call_count == 1
    assert len(chosen) == TRIED
    assert chosen[0].metadata.design.tile_shape[:2] == tiles[-1][:2]


# ---- the lowering, from a graph to the code that is run ------------------------------------------


@dataclass
class Lowered:
    code: str
    #: The choices of each autotuning, in the order that the backend offered them.
    choices: list[list[Any]] = field(default_factory=list)


@contextmanager
def pretended_h100(choices: list[list[Any]]) -> Iterator[None]:
    """Simulates the GPU queries of Inductor's lowering; autotuning prefers the first choice."""
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3",
        major=9,
        minor=0,
        multi_processor_count=132,
        total_memory=80 << 30,
        warp_size=32,
    )

    def timings(_class: Any, offered: list[Any], *_args: Any, **_kwargs: Any) -> dict[Any, float]:
        choices.append(list(offered))
        return {choice: 1.0 + place for place, choice in enumerate(offered)}

    with ExitStack() as stack:
        for target, name, value in [
            (backend, "get_cuda_arch", lambda: str(HOPPER)),
            (torch.cuda, "get_device_properties", lambda *_: properties),
            (inductor_utils, "is_big_gpu", lambda *_: True),
            (AlgorithmSelectorCache, "benchmark_in_current_process", classmethod(timings)),
        ]:
            stack.enter_context(mock.patch.object(target, name, value))
        # Triton reports itself as missing without a GPU.
        stack.enter_context(mock.patch("torch._inductor.scheduler.has_triton", lambda *_: True))
        stack.enter_context(
            inductor_config.patch(
                max_autotune=True,
                max_autotune_gemm_backends="NVGEMM",
                autotune_in_subproc=False,
                force_disable_caches=True,
                compile_threads=1,
            )
        )
        yield


def lower(
    function: Callable[..., torch.Tensor], *specifications: tuple[Any, torch.dtype]
) -> Lowered:
    """Inductor's code for a function of row-major CUDA tensors of these shapes and dtypes."""
    mode = FakeTensorMode()
    inputs = [fake(*shape, dtype=dtype, mode=mode) for shape, dtype in specifications]
    traced = make_fx(function, tracing_mode="fake", decomposition_table=select_decomp_table())(
        *inputs
    )
    choices: list[list[Any]] = []
    # Inductor caches timings for the life of the process.
    with inductor_utils.fresh_cache(), pretended_h100(choices), V.set_fake_mode(mode):
        graph = GraphLowering(traced, example_inputs=inputs)
        with V.set_graph_handler(graph), V.set_debug_handler(DebugContext()):
            graph.run(*inputs)
            code, _kernels = graph.codegen()
    return Lowered(code.value, choices)


def reference_for(name: str) -> cutlass_api.Kernel:
    """The reference kernel of the same element types as the GPU kernel of this name."""
    wanted = next(
        kernel for kernel in cutlass_api.get_kernels() if kernel.metadata.kernel_name == name
    )
    operands = wanted.metadata.operands

    def same_types(metadata: Any) -> bool:
        other = metadata.operands
        return (
            type(other) is type(operands)
            and all(
                getattr(other, side).dtype == getattr(operands, side).dtype
                for side in ("A", "B", "out")
            )
            and other.accumulator_type == operands.accumulator_type
        )

    (kernel,) = cutlass_api.get_kernels(metadata_filter=same_types, providers=["reference"])
    return kernel


def execute_on_the_cpu(lowered: Lowered, *inputs: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
    """Runs generated code with its buffers on the CPU. Returns its output and the kernels it looked
    up.
    """
    asked_for: list[str] = []

    def stand_in(name: str) -> cutlass_api.Kernel:
        asked_for.append(name)
        return reference_for(name)

    code = lowered.code.replace("empty_strided_cuda(", "empty_strided_cpu(").replace(
        "get_raw_stream(0)", "0"
    )
    with (
        mock.patch.object(kernel_cache, "get_kernel_by_name", stand_in),
        mock.patch.object(torch.cuda, "_DeviceGuard", lambda _index: nullcontext()),
        mock.patch.object(torch.cuda, "set_device", lambda _index: None),
        inductor_config.patch(compile_threads=1),
    ):
        (out,) = PyCodeCache.load(code).call(list(inputs))
    return out, asked_for


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.linear(x, weight)


def from_the_left(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.mT @ b


LOWERINGS = {
    "mm": (matmul, (192, 256), (256, 320)),
    "linear": (linear, (192, 256), (320, 256)),
    "linear, batch": (linear, (3, 64, 256), (320, 256)),
    "column-major A": (from_the_left, (256, 192), (256, 320)),
    "bmm": (torch.bmm, (3, 64, 128), (3, 128, 96)),
    "bmm, column-major A": (from_the_left, (3, 128, 64), (3, 128, 96)),
    "mm, nothing aligned": (matmul, (67, 131), (131, 37)),
    "bmm, nothing aligned": (torch.bmm, (3, 7, 5), (3, 5, 11)),
    "one row": (matmul, (1, 256), (256, 320)),
}


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("name", LOWERINGS)
def test_the_generated_code_computes_the_product(name: str, dtype: torch.dtype) -> None:
    function, *shapes = LOWERINGS[name]
    lowered = lower(function, *((shape, dtype) for shape in shapes))
    (choices,) = lowered.choices
    assert 1 <= len(choices) <= TRIED
    assert all(isinstance(choice, backend.NVUniversalGemmCaller) for choice in choices)
    assert "async_compile.nv_universal_gemm" in lowered.code
    assert "accumulator_type=cutlass.Float32" in lowered.code

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    out, asked_for = execute_on_the_cpu(lowered, *inputs)
    # An autotuning that prefers the first choice ends with it in the code.
    assert asked_for == [choices[0].kernel.metadata.kernel_name]
    reference = function(*(tensor.double() for tensor in inputs))
    assert out.shape == reference.shape and out.dtype == dtype
    # The reference kernel rounds once; its unit roundoff bounds the error of each element.
    roundoff = torch.finfo(dtype).eps / 2
    torch.testing.assert_close(out.double(), reference, rtol=1.001 * roundoff, atol=1e-7)


def grouped(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch._grouped_mm(a, b, offs=offsets)


def grouped_linear(a: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return torch._grouped_mm(a, weights.mT, offs=offsets)


@pytest.mark.parametrize(
    ("function", "b_shape"), [(grouped, (4, 64, 96)), (grouped_linear, (4, 96, 64))], ids=str
)
def test_the_generated_code_computes_a_grouped_product(
    function: Any, b_shape: tuple[int, ...]
) -> None:
    """One matrix per group of A's rows; torch's own kernels support bfloat16 only."""
    bf16 = torch.bfloat16
    lowered = lower(function, ((200, 64), bf16), (b_shape, bf16), ((4,), torch.int32))
    (choices,) = lowered.choices
    assert [family(choice.kernel) for choice in choices] == ["sm90"] * TRIED
    assert "GroupedGemmArguments" in lowered.code

    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).to(bf16) for shape in ((200, 64), b_shape))
    ends = [70, 70, 199, 200]
    out, asked_for = execute_on_the_cpu(lowered, a, b, torch.tensor(ends, dtype=torch.int32))
    assert asked_for == [choices[0].kernel.metadata.kernel_name]
    matrices = (b if function is grouped else b.mT).double()
    spans = enumerate(pairwise([0, *ends]))
    expected = torch.cat([a[start:end].double() @ matrices[group] for group, (start, end) in spans])
    torch.testing.assert_close(
        out.double(), expected, rtol=1.001 * torch.finfo(bf16).eps / 2, atol=1e-7
    )


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_the_lowering_offers_tensor_cores_for_aligned_halves(dtype: torch.dtype) -> None:
    for name in ("mm", "linear", "column-major A", "bmm"):
        function, *shapes = LOWERINGS[name]
        (choices,) = lower(function, *((shape, dtype) for shape in shapes)).choices
        assert [family(choice.kernel) for choice in choices] == ["sm90"] * TRIED, name


def test_integer_products_are_left_to_other_backends() -> None:
    """No choice is added and our code raises nothing. Without other backends, torch raises."""
    with pytest.raises(Exception, match="No choices"):
        lower(matmul, ((64, 64), torch.int64), ((64, 64), torch.int64))


def test_complex_products_are_left_to_torch() -> None:
    lowered = lower(matmul, ((64, 64), torch.complex64), ((64, 64), torch.complex64))
    assert "nv_universal_gemm" not in lowered.code and not lowered.choices


def test_a_patched_workspace_size_reaches_the_generated_code() -> None:
    with mock.patch.object(cutlass_api.Kernel, "get_workspace_size", return_value=4096) as asked:
        lowered = lower(matmul, ((192, 256), torch.float16), ((256, 320), torch.float16))
    assert asked.called
    (choices,) = lowered.choices
    assert {choice.workspace_size for choice in choices} == {4096}
    assert (
        "out_ptr0, workspace, stream=None" in lowered.code and "workspace=workspace" in lowered.code
    )
    a, b = torch.randn(192, 256).half(), torch.randn(256, 320).half()
    out, _ = execute_on_the_cpu(lowered, a, b)
    torch.testing.assert_close(
        out.double(), a.double() @ b.double(), rtol=1.001 * 2**-11, atol=1e-7
    )


# ---- one kernel rendered and run by itself -------------------------------------------------------


def render(name: str, workspace_size: int = 0) -> str:
    kernel = NVUniversalGemmKernel(
        kernel_name="nv_universal_gemm_test",
        input_nodes=[mock.Mock(), mock.Mock()],
        output_node=mock.Mock(),
        kernel_metadata={"kernel_name": name, "min_cc": 80},
        accumulator_type=torch.float32,
        variant=GemmVariant.GEMM,
        workspace_size=workspace_size,
    )
    return kernel.render()


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
        roundoff = torch.finfo(dtype).eps / 2
        torch.testing.assert_close(
            out.double(), a.double() @ b.double(), rtol=1.001 * roundoff, atol=1e-7
        )


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
    assert "rutlass_stand_in" in run_python(code, source, timeout=120, **environment)


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
    (kernel,) = (
        k
        for k in cutlass_api.get_kernels()
        if k.metadata.kernel_name == "reference_gemm_f16xf16_f32_f16"
    )
    a, b = torch.randn(33, 17).half(), torch.randn(17, 9).half()
    out = torch.full((33, 9), torch.nan, dtype=torch.float16)
    request = backend.NVUniversalGemmBenchmarkRequest(
        kernel_name="nv_universal_gemm_0",
        input_tensor_meta=[],
        output_tensor_meta=SimpleNamespace(device=torch.device("cpu")),
        kernel=kernel,
        accumulator_type=torch.float32,
        variant=GemmVariant.GEMM,
        workspace_size=workspace_size,
    )
    run = request.make_run_fn(a, b, out=out)
    with mock.patch.object(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0)):
        run()
        run()
    torch.testing.assert_close(
        out.double(), a.double() @ b.double(), rtol=1.001 * 2**-11, atol=1e-7
    )
