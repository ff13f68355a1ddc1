"""Weights of 4 and 8 bits in compiled graphs on a GPU: timed, and right whatever is the fastest."""

import cutlass_api
import cutlass_api.inductor
import pytest
import torch
from cutlass_api import quantize
from torch._inductor import config

pytestmark = pytest.mark.gpu

N, K = 1024, 4096


class Product(torch.nn.Module):
    def __init__(self, function, **tensors: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x, *self.buffers())


def int4pack():
    codes = torch.randint(16, (N, K), device="cuda", dtype=torch.uint8)
    both = torch.randn(K // 128, N, 2, device="cuda").bfloat16()
    packed = torch.ops.aten._convert_weight_to_int4pack(codes[:, ::2] << 4 | codes[:, 1::2], 8)
    scales, zeros = (x.double().t().repeat_interleave(128, 1) for x in both.unbind(-1))

    def function(x, packed, both):
        return torch.ops.aten._weight_int4pack_mm(x, packed, 128, both)

    return Product(function, packed=packed, both=both), (codes.double() - 8) * scales + zeros


def int8pack():
    w = torch.randint(-128, 128, (N, K), device="cuda", dtype=torch.int8)
    scales = torch.rand(N, device="cuda").bfloat16()
    module = Product(torch.ops.aten._weight_int8pack_mm, w=w, scales=scales)
    return module, w.double() * scales.double()[:, None]


def quantized_linear():
    weight = quantize.int4(torch.randn(N, K, device="cuda")).repack()
    module = Product(lambda x: cutlass_api.quantized_linear(x, weight))
    return module, weight.dequantize(torch.float32).double()


@pytest.mark.parametrize("rows", [1, 16, 300])
@pytest.mark.parametrize("make", [int4pack, int8pack, quantized_linear])
def test_compiled(make, rows) -> None:
    module, matrix = make()
    x = torch.randn(rows, K, device="cuda").bfloat16()
    torch._dynamo.reset()
    settings = {"freezing": True, "max_autotune": True, "force_disable_caches": True}
    with cutlass_api.inductor.enabled(), config.patch(**settings), torch.no_grad():
        out = torch.compile(module)(x)
    expected = x.double() @ matrix.t()
    assert (out.double() - expected).norm() / expected.norm() < 2**-8
