"""Weights of 4 and 8 bits in compiled graphs on a GPU: timed, and right whatever is the fastest."""

import cutlass_api
import cutlass_api.inductor
import pytest
import torch
import torch.nn.functional as F
from cutlass_api import quantize
from cutlass_api.nn import convert
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


class Attention(torch.nn.Module):
    """Layers of one input, which a norm computes."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(K, device="cuda", dtype=torch.bfloat16)
        self.q, self.k, self.v = (
            torch.nn.Linear(K, n, bias, "cuda", torch.bfloat16) for n in (N, 256, 256)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        q, k, v = (F.silu(layer(x).float()) for layer in (self.q, self.k, self.v))
        return torch.cat([q[:, :256] * k, q[:, 256:512] * v], -1)


@pytest.mark.parametrize("rows", [1, 16, 300])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scheme", ["int4", "uint4", "mxfp4", "nvfp4", "fp8", "int8", "fp8-weight"])
def test_layers_of_one_input(scheme, bias, rows) -> None:
    """Right where the weights lie side by side, and once they do not."""
    model = Attention(bias)
    convert(model, scheme)
    # If activations are quantized, too, a rounding of the norm can become a step of 8 bits.
    limit = 0.02 if model.q.activations is None else 0.05
    x = torch.randn(rows, K, device="cuda").bfloat16()
    torch._dynamo.reset()
    settings = {"max_autotune": True, "force_disable_caches": True}
    with cutlass_api.inductor.enabled(), config.patch(**settings), torch.no_grad():
        call = torch.compile(model)
        expected = model(x)
        for _ in range(2):
            out = call(x)
            assert (out - expected).norm() / expected.norm() < limit
            for layer in (model.q, model.k, model.v):
                layer.values = layer.values.clone()
