"""What PyTorch's own NVGEMM backend, unmodified, finds among our kernels for CUDA FakeTensors."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import cutlass_api
import pytest
import torch
from support.helpers import accumulator_of, run_python
from support.nvgemm import (
    TRIED,
    backend,
    config_key,
    family,
    fresh_kernel_cache,  # noqa: F401, a fixture
    heuristics,
    kernel_cache,
)
from support.torch_compile import HALVES
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

HOPPER = 90

# ---- discovery, as the backend does it -----------------------------------------------------------


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
    lead = () if batch is None else (batch,)
    with FakeTensorMode():
        a = torch.empty(*lead, m, k, dtype=dtype, device="cuda")
        shape = (n, k) if linear else (k, n)
        b = torch.empty(*lead, *shape, dtype=dtype, device="cuda")
        result = torch.empty(*lead, m, n, dtype=out or dtype, device="cuda")
        b = b.mT if linear else b
    return cutlass_api.arguments.GemmArguments(a, b, result, accumulator_of(dtype))


def compatible(args: cutlass_api.arguments.GemmArguments) -> list[cutlass_api.Kernel]:
    exclude = backend._exclude_efc_kernels
    return kernel_cache.get_compatible_kernels(args, HOPPER, metadata_filter=exclude)


def test_a_fresh_process_finds_the_backend_available() -> None:
    # In a subprocess: torch caches both answers, and other tests may have imported NVIDIA's
    # package.
    run_python(
        """
        import cutlass_api
        from torch._inductor.utils import ensure_cute_available
        from torch._inductor.utils import ensure_nv_universal_gemm_available
        assert ensure_cute_available() and ensure_nv_universal_gemm_available()
        import cutlass
        from torch._inductor.codegen.cutedsl.cutedsl_op_overrides import CuteDSLOpOverrides
        # Every type that torch's code generation can spell as an accumulator.
        for spelling in set(CuteDSLOpOverrides.TORCH_TO_CUTE_DTYPE.values()):
            assert eval(spelling) is not None, spelling
        assert cutlass_api.DType(cutlass.Float32) == "float32"
        """,
        timeout=120,
    )


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
        assert operands.A.dtype == operands.B.dtype == operands.out.dtype == dtype
        assert operands.accumulator_type == torch.float32
        assert operands.B.stride == ((0, 1, 0) if linear else (0, 0, 1))
    # Autotuning needs different tile shapes to choose from.
    assert len({kernel.metadata.design.tile_shape for kernel in first}) >= 3


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


def test_every_kernel_is_found_by_its_name() -> None:
    for kernel in cutlass_api.get_kernels():
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
    with FakeTensorMode():
        a, b, out = (torch.empty(64, 64, dtype=dtype, device="cuda") for _ in range(3))
    args = cutlass_api.arguments.GemmArguments(a, b, out, "float32")
    found = compatible(args)
    served = {torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2}
    assert bool(found) == (dtype in served)
    # The same call through `get_kernels`.
    assert bool(cutlass_api.get_kernels(args, cc=HOPPER)) == (dtype in served)


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
    args = cutlass_api.arguments.GemmArguments(a, b, out, "float32")
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
    inputs = mm_inputs(512, 768, 256, torch.float16)
    with mock.patch.object(type(chooser), "should_run", return_value=False):
        assert chooser.filter_kernels(kernels, inputs, TRIED) == kernels[:TRIED]


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
