"""Operands on another GPU than the current one: launches run on the operands' device and keep the
current device. Needs two GPUs.
"""

import threading

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import (
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
)
from support.properties import first_of_families

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.multi_gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="asks for two GPUs"),
]

M, N, K = 200, 328, 136

FUSED = """
def fused(accum, bias):
    D = relu(accum + bias)
    total = sum(D, dim=-1)
    return D, total
"""


class Gemm:
    """A random product on one device, and its expected result."""

    def __init__(
        self,
        device: int,
        dtype: torch.dtype = torch.float16,
        epilogue: EpilogueArguments | None = None,
    ) -> None:
        generator = torch.Generator(f"cuda:{device}").manual_seed(device)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(
                *shape, device=f"cuda:{device}", dtype=torch.float16, generator=generator
            )

        self.device = torch.device("cuda", device)
        self.a, self.b = random(M, K), random(K, N)
        self.expected = self.a.double() @ self.b.double()
        self.out = torch.empty(M, N, device=self.device, dtype=torch.float16)
        self.clear()
        self.args = GemmArguments(
            self.a, self.b, self.out, accumulator_type=torch.float32, epilogue=epilogue
        )

    def clear(self) -> None:
        self.out.fill_(torch.nan)
        torch.cuda.synchronize(self.device)

    def is_right(self) -> bool:
        torch.cuda.synchronize(self.device)
        return bool((self.out.double() - self.expected).norm() < 1e-2 * self.expected.norm())


@pytest.fixture(autouse=True)
def the_current_device_stays():
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


@pytest.mark.parametrize("assume", [False, True], ids=["checks", "assumed"])
def test_one_artifact_serves_both_devices(assume: bool) -> None:
    """Alternates devices, so that the program's last launch is always on the other device."""
    products = [Gemm(0), Gemm(1)]
    kernels = first_of_families(products[0].args)
    assert len(kernels) > 2
    for kernel in kernels:
        artifact = kernel.compile(products[1].args)
        for product in [*products, *products, *reversed(products)]:
            product.clear()
            stream = torch.cuda.current_stream(product.device).cuda_stream
            kernel.run(product.args, artifact, stream=stream, assume_supported_args=assume)
            assert product.is_right(), (kernel, product.device)


def test_no_stream_means_the_current_one_of_the_operands_device() -> None:
    product = Gemm(1)
    kernel = cutlass_api.get_kernels(product.args)[0]
    artifact = kernel.compile(product.args)
    stream = torch.cuda.Stream(product.device)
    torch.cuda.synchronize(product.device)
    # `torch.cuda.stream` would make its device the current one, too.
    torch.cuda.set_device(1)
    torch.cuda.set_stream(stream)
    torch.cuda.set_device(0)
    try:
        with torch.cuda.stream(torch.cuda.Stream(0)):
            torch.cuda._sleep(1)
        torch.cuda.synchronize(0)
        with torch.cuda.device(1):
            torch.cuda._sleep(200_000_000)
        kernel.run(product.args, artifact)
        assert not stream.query(), "it waits behind the sleep"
        stream.synchronize()
        assert product.is_right()
    finally:
        torch.cuda.set_device(1)
        torch.cuda.set_stream(torch.cuda.default_stream(1))
        torch.cuda.set_device(0)


def test_a_stream_of_another_device_is_refused() -> None:
    product = Gemm(1)
    kernel = cutlass_api.get_kernels(product.args)[0]
    artifact = kernel.compile(product.args)
    with pytest.raises(
        ValueError, match="belongs to another device than the operands, which are on cuda:1"
    ):
        kernel.run(product.args, artifact, stream=torch.cuda.Stream(0))


def test_bound_launches_and_matmul() -> None:
    products = [Gemm(0), Gemm(1)]
    kernel = cutlass_api.get_kernels(products[0].args)[0]
    artifact = kernel.compile(products[0].args)
    launches = [kernel.bind(product.args, artifact) for product in products]
    for product, launch in [*zip(products, launches, strict=True)] * 3:
        product.clear()
        launch()
        assert product.is_right()
        product.clear()
        launch(A=product.a.clone())
        assert product.is_right()
        product.clear()
        assert cutlass_api.matmul(product.a, product.b, out=product.out) is product.out
        assert product.is_right()
        fresh = cutlass_api.matmul(product.a, product.b)
        assert fresh.device == product.device
        assert torch.equal(fresh, product.out)


def test_a_graph_of_the_second_device() -> None:
    product = Gemm(1)
    kernel = cutlass_api.get_kernels(product.args)[0]
    artifact = kernel.compile(product.args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(1), torch.cuda.graph(graph):
        kernel.run(product.args, artifact)
    assert torch.isnan(product.out).all()
    graph.replay()
    assert product.is_right()


def test_epilogues_with_a_workspace_and_without() -> None:
    for device in (1, 0, 1):
        row = torch.randn(1, N, device=f"cuda:{device}", dtype=torch.float16)
        total = torch.full((M, 1), torch.nan, device=f"cuda:{device}", dtype=torch.float32)
        D = torch.full((M, N), torch.nan, device=f"cuda:{device}", dtype=torch.float16)

        epilogue = EpilogueArguments(FUSED, bias=row, D=D, total=total)
        product = Gemm(device, epilogue=epilogue)
        expected = (product.expected + row.double()).relu()
        for kernel in first_of_families(product.args):
            D.fill_(torch.nan)
            total.fill_(torch.nan)
            torch.cuda.synchronize(device)
            kernel.run(product.args)
            torch.cuda.synchronize(device)
            assert (D.double() - expected).norm() < 1e-2 * expected.norm(), kernel
            assert (total.double() - expected.sum(1, keepdim=True)).norm() < 1e-2 * expected.sum(
                1
            ).norm(), kernel


def test_groups_elements_and_kernels_of_one_s_own() -> None:
    double = cutlass_api.cuda_kernel(
        """
        __global__ void twice(const float* x, float* y, int count) {
          const int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < count) y[i] = 2 * x[i];
        }
        """,
        "twice",
        grid=8,
        block=128,
    )
    for device in (1, 0, 1):
        place = f"cuda:{device}"
        x, y = torch.randn(1000, device=place), torch.full((1000,), torch.nan, device=place)
        double(x, y, 1000)
        torch.cuda.synchronize(device)
        assert torch.equal(y, 2 * x)

        left, right, out = (torch.randn(64, 96, device=place) for _ in range(3))
        elementwise = ElementwiseArguments(left, right, out)
        cutlass_api.get_kernels(elementwise)[0].run(elementwise)
        torch.cuda.synchronize(device)
        assert torch.equal(out, left + right)

        a = torch.randn(192, 64, device=place, dtype=torch.bfloat16)
        b = torch.randn(2, 64, 128, device=place, dtype=torch.bfloat16)
        grouped = torch.full((192, 128), torch.nan, device=place, dtype=torch.bfloat16)
        offsets = torch.tensor([100, 192], device=place, dtype=torch.int32)
        args = GroupedGemmArguments(a, b, grouped, accumulator_type=torch.float32, offsets=offsets)
        cutlass_api.get_kernels(args)[0].run(args)
        torch.cuda.synchronize(device)
        expected = torch.cat([a[:100].double() @ b[0].double(), a[100:].double() @ b[1].double()])
        assert (grouped.double() - expected).norm() < 1e-2 * expected.norm()


def test_threads_on_two_devices() -> None:
    failures: list[object] = []

    def work(device: int) -> None:
        try:
            product = Gemm(device)
            kernel = cutlass_api.get_kernels(product.args)[0]
            for _ in range(50):
                product.clear()
                kernel.run(product.args)
                if not product.is_right():
                    failures.append(device)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
