"""``quantized_grouped_mm`` on the CPU: formats, empty sums, refusals, GPUs without kernels."""

import pytest
import torch
from cutlass_api import quantize, quantized_grouped_mm, quantized_linear
from cutlass_api.ops import OPS
from cutlass_api.weights import Int4

G, N, K = 3, 40, 96
X = torch.randn(9, K, dtype=torch.bfloat16)
ENDS = torch.tensor([4, 4, 7], dtype=torch.int32)
STACK = quantize.mxfp4(torch.randn(G, N, K)).repack()


@pytest.mark.parametrize("quantizer", ["int4", "uint4", "mxfp4", "nvfp4", "fp8", "int8"])
def test_groups_are_products_by_their_weights(quantizer):
    stack = getattr(quantize, quantizer)(torch.randn(G, N, K))
    expected = torch.cat([quantized_linear(X[:4], stack[0]), quantized_linear(X[4:7], stack[2])])
    for each in (stack, stack.repack()):
        out = quantized_grouped_mm(X, each, ENDS.long(), zero_rest=True)
        assert torch.equal(out[:7], expected) and not out[7:].any()


def test_the_gradient_is_that_of_the_matrices():
    x = X.clone().requires_grad_()
    grad = torch.randn(9, N, dtype=torch.bfloat16)
    (found,) = torch.autograd.grad(quantized_grouped_mm(x, STACK, ENDS), x, grad)
    matrices = STACK.dequantize(torch.float64)
    expected = torch.cat([grad[:4].double() @ matrices[0], grad[4:7].double() @ matrices[2]])
    torch.testing.assert_close(found[:7].double(), expected, rtol=1e-2, atol=0.1)
    assert not found[7:].any()


def test_sums_of_nothing_are_zeros():
    stack = Int4(torch.zeros(G, N, 0, dtype=torch.uint8), torch.full((G, N, 1), torch.inf))
    out = quantized_grouped_mm(X[:, :0], stack, ENDS, zero_rest=True)
    assert out.shape == (9, N) and not out.any()


REFUSED = {
    r"A is torch.float32; pass torch.float16 or torch.bfloat16": (X.float(), STACK, ENDS),
    r"A is torch.float16, whose range the scales of MXFP4 exceed": (X.half(), STACK, ENDS),
    r"A has shape \[9, 64\]; pass \(\*, 96\) for a weight": (X[:, :64], STACK, ENDS),
    r"A has shape \[1, 9, 96\]; pass \(TotalM, 96\)": (X[None], STACK, ENDS),
    r"offs has shape \[2\]; pass the end row of each of 3 groups": (X, STACK, ENDS[:2]),
    r"offs is torch.float32": (X, STACK, ENDS.float()),
    r"the weight is a matrix \[40, 96\]; pass the fields of a stack": (X, STACK[0], ENDS),
    "group 1 spans rows 5 to 4": (X, STACK, torch.tensor([5, 4, 7], dtype=torch.int32)),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    with pytest.raises((ValueError, RuntimeError), match=message) as error:
        quantized_grouped_mm(*REFUSED[message])
    assert str(error.value).startswith("cutlass_api::quantized_grouped_mm: ")


def test_other_weights_are_refused():
    with pytest.raises(TypeError, match="weight is Tensor; pass a stack of weights"):
        quantized_grouped_mm(X, torch.zeros(G, N, K), ENDS)
    with pytest.raises(ValueError, match=r"quantized_linear: the weight is a stack \[3, 40, 96\]"):
        OPS.quantized_linear(X, *STACK.fields, None, "MXFP4")
    fields = (STACK.values, STACK.scales.float(), None, None)
    with pytest.raises(ValueError, match=r"quantized_grouped_mm: MXFP4: scales is torch\.float32"):
        OPS.quantized_grouped_mm(X, *fields, "MXFP4", ENDS)
