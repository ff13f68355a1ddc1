"""`explain` and `autotune` of a call."""

import cutlass_api
import pytest
import torch
from cutlass_api import quantize
from cutlass_api._calls import products_of

X, W, BIAS = torch.randn(4, 64).bfloat16(), torch.randn(32, 64).bfloat16(), torch.randn(32)


def int8():
    (a, scale_a), (b, scale_b) = (quantize.per_row(each, torch.int8) for each in (X, W))
    return a, b.t(), scale_a, scale_b.t()


CALLS = {
    "linear": (cutlass_api.linear, lambda: (X, W, BIAS, "gelu"), "(?s)erf|gelu"),
    "matmul": (cutlass_api.matmul, lambda: (X, W.t()), "bfloat16"),
    "int8_mm": (cutlass_api.int8_mm, int8, "scale_a"),
    "grouped_mm": (
        cutlass_api.grouped_mm,
        lambda: (X, torch.stack([W.t()] * 2), torch.tensor([2, 4], dtype=torch.int32)),
        "offsets",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_explain_a_call(name, capsys):
    function, operands, fact = CALLS[name]
    (args,) = products_of(function, *operands())
    assert fact.rpartition("|")[2] in repr(args)
    cutlass_api.explain(function, *operands(), cc=90)
    printed = capsys.readouterr().out
    cutlass_api.explain(args, cc=90)
    assert printed == capsys.readouterr().out and "kernels serve it" in printed


def test_products_of_a_function(capsys):
    assert len(products_of(lambda: [cutlass_api.linear(X, W) for _ in range(3)])) == 3
    cutlass_api.explain(cutlass_api.matmul, X, W.t(), out_dtype=torch.float32)
    assert "reference    1 of 318 kernels serve it" in capsys.readouterr().out


def test_what_is_no_call():
    for function in (cutlass_api.explain, cutlass_api.autotune):
        with pytest.raises(TypeError, match=r"args is a Tensor, and operands follow; .*linear"):
            function(X, W)
        with pytest.raises(ValueError, match="launched no product of the operators"):
            function(torch.add, X, X)
    with pytest.raises(ValueError, match="the operands are on the CPU"):
        cutlass_api.autotune(cutlass_api.linear, X, W)
    with pytest.raises(ValueError, match="launches 2 products"):
        cutlass_api.autotune(lambda: [cutlass_api.linear(X, W) for _ in range(2)])
    weight = quantize.int4(W)
    with pytest.raises(ValueError, match="weight of 4 bits; pass GemmArguments"):
        cutlass_api.explain(cutlass_api.quantized_linear, X, weight.repack())
