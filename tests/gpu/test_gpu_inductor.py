"""`torch.compile` with PyTorch's unmodified NVGEMM backend, which selects, times and runs our
kernels.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from unittest import mock

import cutlass_api
import pytest
import torch
from support.nvgemm import NVUniversalGemmKernelWrapper, backend, kernel_cache
from support.problems import Problem
from support.properties import Types, family_of
from torch._inductor import config as inductor_config
from torch._inductor import utils as inductor_utils

pytestmark = pytest.mark.gpu

HALVES = [torch.float16, torch.bfloat16]
MODES = ["max-autotune", "max-autotune-no-cudagraphs"]


class Witness:
    """The events while a function is compiled and run."""

    def __init__(self) -> None:
        #: Kernels that the generated code looked up, once per call that does not replay a CUDA
        #: graph.
        self.looked_up: list[str] = []
        #: Calls that the generated code made to our kernels.
        self.calls = 0
        #: Kernels that Inductor timed.
        self.timed: list[str] = []
        #: The code that Inductor wrote.
        self.code: list[str] = []


@contextmanager
def inductor(backends: str) -> Iterator[Witness]:
    """Inductor with empty caches and these GEMM backends only, observed."""
    witness = Witness()
    original_run, original_benchmark = (
        NVUniversalGemmKernelWrapper.run,
        backend.NVUniversalGemmCaller.benchmark,
    )
    original_lookup = kernel_cache.get_kernel_by_name

    def run(self, *args, **kwargs):
        witness.calls += 1
        return original_run(self, *args, **kwargs)

    def benchmark(self, *args, **kwargs):
        witness.timed.append(self.kernel.metadata.kernel_name)
        return original_benchmark(self, *args, **kwargs)

    def lookup(name: str):
        witness.looked_up.append(name)
        return original_lookup(name)

    def save(code: str) -> None:
        if code not in witness.code:  # torch may call this twice
            witness.code.append(code)

    # torch caches both answers for the process, possibly from before the import of cutlass_api.
    inductor_utils.ensure_cute_available.cache_clear()
    inductor_utils.ensure_nv_universal_gemm_available.cache_clear()
    kernel_cache.clear_cache()
    torch._dynamo.reset()
    with (
        inductor_utils.fresh_cache(),
        inductor_config.patch(
            max_autotune_gemm_backends=backends, force_disable_caches=True, compile_threads=1
        ),
        mock.patch.object(NVUniversalGemmKernelWrapper, "run", run),
        mock.patch.object(backend.NVUniversalGemmCaller, "benchmark", benchmark),
        # The generated module imports it by name when it is loaded.
        mock.patch.object(kernel_cache, "get_kernel_by_name", lookup),
        mock.patch("torch._inductor.graph.GraphLowering.save_output_code", save),
        torch.no_grad(),
    ):
        yield witness
    torch._dynamo.reset()


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


#: Name: a function, the shape of each input.
CASES = {
    "mm": (matmul, (512, 256), (256, 768)),
    "bmm": (torch.bmm, (4, 128, 96), (4, 96, 160)),
    # No extent is a multiple of 8, so no operand is aligned to 16 bytes.
    "mm, odd": (matmul, (131, 67), (67, 259)),
}


def assert_as_good_as_torch(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    problem = Problem(Types(a.dtype, b.dtype, torch.float32, out.dtype), a, b)
    assert out.shape == problem.shape
    error = problem.error(out)
    assert error <= problem.limit, (
        f"error {error:.3e}, limit {problem.limit:.3e}, torch {problem.torch_error:.3e}"
    )


def assert_ours_alone(witness: Witness, dtype: torch.dtype, aligned: bool) -> None:
    assert len(witness.code) == 1
    (code,) = witness.code
    assert (
        "async_compile.nv_universal_gemm" in code and "cutlass_api.arguments.GemmArguments" in code
    )
    assert "extern_kernels.mm" not in code and "extern_kernels.bmm" not in code
    assert witness.calls > 0 and len(witness.looked_up) == witness.calls
    assert len(set(witness.looked_up)) == 1
    kernels = {kernel.metadata.kernel_name: kernel for kernel in cutlass_api.get_kernels(cc=90)}
    assert set(witness.timed) <= kernels.keys() and witness.looked_up[0] in kernels
    assert kernels[witness.looked_up[0]].metadata.operands.A.dtype == dtype
    if aligned:
        assert len(set(witness.timed)) == 5
        assert {family_of(kernels[name]) for name in witness.timed} != {"simt"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_product_is_computed_by_our_kernels(name: str, dtype: torch.dtype, mode: str) -> None:
    function, *shapes = CASES[name]
    torch.manual_seed(0)
    with inductor("NVGEMM") as witness:
        compiled = torch.compile(function, mode=mode, dynamic=False)
        calls = []
        # With CUDA graphs: a warm-up call, a captured call, and replays, each with new inputs.
        for _ in range(5):
            inputs = [torch.randn(shape, device="cuda").to(dtype) for shape in shapes]
            torch.compiler.cudagraph_mark_step_begin()
            out = compiled(*inputs).clone()
            assert_as_good_as_torch(*inputs, out)
            calls.append(witness.calls)
    assert_ours_alone(witness, dtype, aligned="odd" not in name)
    if mode == "max-autotune":
        assert calls[-1] == calls[-3], "the last calls were replays, which run no Python"
    else:
        assert calls == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("mode", MODES)
def test_a_grouped_product_is_computed_by_our_kernels(mode: str) -> None:
    """Rows sorted by expert; group boundaries change between calls."""
    torch.manual_seed(0)
    weights = torch.randn(5, 96, 64, device="cuda").bfloat16()

    def grouped(x: torch.Tensor, weights: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return torch._grouped_mm(x, weights.mT, offs=offsets)

    with inductor("NVGEMM") as witness:
        compiled = torch.compile(grouped, mode=mode, dynamic=False)
        for ends in (
            [64, 64, 200, 256, 300],
            [300] * 5,
            [1, 2, 3, 4, 300],
            [0, 100, 150, 299, 300],
        ):
            x = torch.randn(300, 64, device="cuda").bfloat16()
            torch.compiler.cudagraph_mark_step_begin()
            out = compiled(x, weights, torch.tensor(ends, device="cuda", dtype=torch.int32)).clone()
            for group, (start, end) in enumerate(pairwise([0, *ends])):
                if start < end:
                    assert_as_good_as_torch(x[start:end], weights[group].mT, out[start:end])
    (code,) = witness.code
    assert "cutlass_api.arguments.GroupedGemmArguments" in code
    assert "aten._grouped_mm.default(" not in code and "extern_kernels._grouped_mm" not in code
    assert witness.calls > 0 and all(
        name.startswith("sm90_grouped_gemm_") for name in witness.timed
    )
    assert len(set(witness.timed)) == 5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("batch", [(), (3,)], ids=["rows", "batches"])
def test_a_linear_layer_is_computed_by_our_kernels(batch, dtype: torch.dtype, mode: str) -> None:
    """Without a bias. torch 2.11 lowers a bias to `addmm`, for which its NVGEMM backend offers no
    choices.
    """
    torch.manual_seed(0)
    layer = torch.nn.Linear(256, 320, bias=False, device="cuda", dtype=dtype)
    with inductor("NVGEMM") as witness:
        compiled = torch.compile(layer, mode=mode, dynamic=False)
        for _ in range(4):
            x = torch.randn(*batch, 128, 256, device="cuda").to(dtype)
            torch.compiler.cudagraph_mark_step_begin()
            out = compiled(x).clone()
            assert_as_good_as_torch(x.view(-1, 256), layer.weight.detach().mT, out.view(-1, 320))
    assert_ours_alone(witness, dtype, aligned=True)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_beside_the_other_backends(dtype: torch.dtype) -> None:
    """Our kernels are timed too. Results are correct whichever wins, with or without a bias."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(256, 320, device="cuda", dtype=dtype)

    def network(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        product = x @ weight
        return product, layer(torch.relu(product))

    with inductor("ATEN,TRITON,NVGEMM") as witness:
        compiled = torch.compile(network, mode="max-autotune", dynamic=False)
        for _ in range(3):
            x = torch.randn(192, 128, device="cuda").to(dtype)
            weight = torch.randn(128, 256, device="cuda").to(dtype)
            torch.compiler.cudagraph_mark_step_begin()
            product, out = (tensor.clone() for tensor in compiled(x, weight))
            assert_as_good_as_torch(x, weight, product)
            hidden = torch.relu(product)
            expected = hidden.double() @ layer.weight.double().mT + layer.bias.double()
            theirs = (layer(hidden).double() - expected).norm()
            # `addmm` is torch's own kernel or Triton's; the tolerance is a little larger than ours.
            assert (out.double() - expected).norm() <= 1.5 * theirs
    assert witness.timed, "ours took part"


def test_shapes_that_change() -> None:
    """One compiled function for all sizes: each call builds new arguments; artifacts support every
    shape.
    """
    torch.manual_seed(0)
    with inductor("NVGEMM") as witness:
        compiled = torch.compile(matmul, mode="max-autotune-no-cudagraphs", dynamic=True)
        for m, n, k in [
            (128, 256, 64),
            (136, 256, 64),
            (520, 264, 72),
            (8, 1024, 640),
            (128, 256, 64),
        ]:
            a = torch.randn(m, k, device="cuda", dtype=torch.float16)
            b = torch.randn(k, n, device="cuda", dtype=torch.float16)
            assert_as_good_as_torch(a, b, compiled(a, b))
    assert witness.calls == 5
