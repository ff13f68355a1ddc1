"""`cutlass_api.grouped_mm_weight_grad` and its operator: values, accumulation, traces."""

import cutlass_api
import pytest
import torch
from cutlass_api.ops import OPS
from support.operator_calls import devices, ends

#: Groups of 0, 3, 0, 4 and 0 rows; a row behind them.
ENDS = (0, 3, 3, 7, 7)


def inputs(dtype, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    a, grad = (torch.randn(8, n, generator=generator) for n in (16, 24))
    return a.to(device, dtype), grad.to(device, dtype), ends(*ENDS).to(device)


def expected(a, grad):
    a, grad = a.double(), grad.double()
    return torch.stack([a[i:j].mT @ grad[i:j] for i, j in zip((0, *ENDS[:-1]), ENDS, strict=True)])


def assert_close(actual, wanted):
    tolerance = 1e-5 if actual.dtype in (torch.float32, torch.float64) else 0.02
    torch.testing.assert_close(actual.double(), wanted, rtol=tolerance, atol=tolerance)


@devices
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_values(dtype, device):
    a, grad, offs = inputs(dtype, device)
    a[7], grad[7] = torch.nan, torch.nan
    out = cutlass_api.grouped_mm_weight_grad(a, grad, offs)
    assert out.dtype is dtype
    assert_close(out, expected(a, grad))
    assert not out[[0, 2, 4]].any()


@devices
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("accumulate", [False, True])
def test_an_output(accumulate, out_dtype, device):
    a, grad, offs = inputs(torch.bfloat16, device)
    out = torch.randn(5, 16, 24).to(device, out_dtype)
    before = out.double()
    result = cutlass_api.grouped_mm_weight_grad(a, grad, offs, out=out, accumulate=accumulate)
    assert result is out
    assert_close(out, expected(a, grad) + (before if accumulate else 0))
    if accumulate:
        assert torch.equal(out[[0, 2, 4]].double(), before[[0, 2, 4]])


def test_accumulation_needs_an_output():
    with pytest.raises(ValueError, match="pass the tensor as out"):
        cutlass_api.grouped_mm_weight_grad(*inputs(torch.float32), accumulate=True)


@pytest.mark.parametrize("shape", [(5, 16, 23), (4, 16, 24), (5, 24, 16)])
def test_an_output_of_another_shape(shape):
    with pytest.raises(ValueError, match="grouped_mm_weight_grad: "):
        cutlass_api.grouped_mm_weight_grad(*inputs(torch.float32), out=torch.empty(shape))


def test_gradients_of_all_inputs():
    a, grad, offs = inputs(torch.float64)
    a, grad, offs = a[:7, :3].clone(), grad[:7, :2].clone(), offs
    for input in (torch.randn(5, 3, 2), torch.randn(1, 2)):
        tensors = [x.double().requires_grad_() for x in (a, grad, input)]
        torch.autograd.gradcheck(
            lambda a, grad, input: OPS.grouped_mm_weight_grad(a, grad, offs, input), tensors
        )


def test_an_input_of_another_dtype():
    a, grad, offs = inputs(torch.bfloat16)
    input = torch.randn(5, 16, 24, requires_grad=True)
    out = OPS.grouped_mm_weight_grad(a.requires_grad_(), grad, offs, input)
    assert out.dtype is torch.float32
    out.sum().backward()
    assert a.grad.dtype is torch.bfloat16 and torch.equal(input.grad, torch.ones_like(input))


def test_a_layer_and_its_gradient_are_one_graph():
    """No part of the backward reads offsets on the host."""

    def step(x, weights, offs):
        return OPS.grouped_mm(x, weights, offs, zero_rest=True).square().sum()

    a, _, offs = inputs(torch.float32)
    weights = torch.randn(5, 16, 24, requires_grad=True)
    step(a, weights, offs).backward()
    wanted, weights.grad = weights.grad, None
    torch.compile(step, backend="aot_eager", fullgraph=True)(a, weights, offs).backward()
    torch.testing.assert_close(weights.grad, wanted)


def test_accumulation_in_a_graph():
    a, grad, offs = inputs(torch.float32)
    total = torch.ones(5, 16, 24)

    def add(total):
        cutlass_api.grouped_mm_weight_grad(a, grad, offs, out=total, accumulate=True)

    torch.compile(add, backend="aot_eager", fullgraph=True)(total)
    assert_close(total, expected(a, grad) + 1)


def test_meta_tensors():
    a, grad, offs = (x.to("meta") for x in inputs(torch.bfloat16))
    out = cutlass_api.grouped_mm_weight_grad(a, grad, offs)
    assert (out.shape, out.dtype, out.is_meta) == ((5, 16, 24), torch.bfloat16, True)
    with pytest.raises(ValueError, match="grouped_mm_weight_grad: "):
        cutlass_api.grouped_mm_weight_grad(a, grad.float(), offs)


@devices
def test_offsets_of_64_bits(device):
    a, grad, offs = inputs(torch.bfloat16, device)
    wide = torch.stack([offs.long(), torch.full_like(offs, -1)], -1)
    b = torch.randn(5, 16, 24).to(device, torch.bfloat16)
    for each in (wide[:, 0].contiguous(), wide[:, 0]):
        for function, factors in {
            cutlass_api.grouped_mm: (a, b),
            cutlass_api.grouped_mm_weight_grad: (a, grad),
        }.items():
            found, expected = (function(*factors, ends)[:7] for ends in (each, offs))
            assert torch.equal(found, expected)
    compiled = torch.compile(cutlass_api.grouped_mm, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(a, b, wide[:, 0])[:7], cutlass_api.grouped_mm(a, b, offs)[:7])
