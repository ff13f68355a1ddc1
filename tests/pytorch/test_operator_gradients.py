"""Gradients that do not exist, and those of rows of no group."""

import cutlass_api
import pytest
import torch
from cutlass_api import quantize
from cutlass_api.ops import OPS
from support.helpers import run_python
from support.operator_calls import BIAS_RELU, F8, ends, integers, randn
from torch.utils.checkpoint import checkpoint

ROWS = "def f(accum, s):\n    D = scale_blocks(accum, a=s, a_block=(1, -1))\n    return D"
HALF, BYTES, ONE = randn(4, 16).half(), integers(16, 16), torch.tensor(0.5)
A8, B8 = randn(4, 16).to(F8), randn(16, 16).to(F8)
GROUPS = B8.expand(2, 16, 16)

#: Calls with one operand that has no gradient, its shape, and how the error names it.
REFUSED = {
    "scaled_mm, bias": (16, "bias", lambda x: cutlass_api.scaled_mm(A8, B8, ONE, ONE, bias=x)),
    "scaled_mm, scale_b": ((1, 16), "scale_b", lambda x: cutlass_api.scaled_mm(A8, B8, ONE, x)),
    "scaled_mm, a": ((4, 16), "A", lambda x: cutlass_api.scaled_mm(x.to(F8), B8, ONE, ONE)),
    "int8_mm, bias": (
        16,
        "bias with A of torch.int8 and B of torch.int8",
        lambda x: cutlass_api.int8_mm(BYTES, BYTES, ONE, ONE, bias=x),
    ),
    "mixed_mm, scale": (16, "scale", lambda x: cutlass_api.mixed_mm(HALF, BYTES, x)),
    "mixed_mm, groups": (
        (4, 16),
        "A with scales of groups or zero points",
        lambda x: cutlass_api.mixed_mm(x.half(), BYTES, torch.ones(1, 16), None, ONE.int()),
    ),
    "mixed_mm, scales of groups": (
        (4, 32),
        "A with scales of groups or zero points",
        lambda x: cutlass_api.mixed_mm(x.half(), BYTES.repeat(2, 1), torch.ones(2, 16)),
    ),
    "scaled_grouped_mm": (
        (2, 1, 16),
        "scale_b",
        lambda x: cutlass_api.scaled_grouped_mm(A8, GROUPS, ONE, x, ends(1, 4)),
    ),
    "quantize.per_row": ((4, 16), "input", lambda x: quantize.per_row(x)[0].float()),
    "quantize.per_tensor": ((4, 16), "input", lambda x: quantize.per_tensor(x)[1]),
    "quantize.per_group": ((4, 32), "input", lambda x: quantize.per_group(x, 32)[1]),
    "mm": ((4, 16), "A of torch.float8_e4m3fn", lambda x: OPS.mm(x.to(F8), B8)),
    "linear": ((4, 16), "input of torch.float8_e4m3fn", lambda x: OPS.linear(x.to(F8), B8)),
    "grouped_mm": (
        (4, 16),
        "A of torch.float8_e4m3fn",
        lambda x: OPS.grouped_mm(x.to(F8), GROUPS, ends(1, 4)),
    ),
    "masked_grouped_mm": (
        (1, 4, 16),
        "A",
        lambda x: OPS.masked_grouped_mm(x, torch.ones(1, 16, 16), ends(4)),
    ),
    "mm_epilogue, scale_blocks": (
        (4, 16),
        "A of an epilogue with scale_blocks",
        lambda x: OPS.mm_epilogue(x, torch.ones(16, 16), [torch.ones(4, 1)], ROWS),
    ),
    "mm_epilogue": (
        16,
        "bias with A of torch.int8",
        lambda x: OPS.mm_epilogue(BYTES, BYTES, [x], BIAS_RELU, out_dtype=torch.float32),
    ),
}
refused = pytest.mark.parametrize("case", REFUSED)


def parameter(shape):
    return torch.nn.Parameter(randn(*torch.Size([shape] if isinstance(shape, int) else shape)))


@refused
@pytest.mark.parametrize("transform", ["eager", "compile", "vmap", "checkpoint"])
@pytest.mark.usefixtures("dynamo")
def test_a_missing_gradient_is_an_error_of_backward(case, transform):
    shape, named, call = REFUSED[case]
    x = parameter(shape)
    run = {
        "eager": call,
        "compile": torch.compile(call, backend="aot_eager", fullgraph=True),
        "vmap": lambda x: torch.vmap(call)(x[None])[0],
        "checkpoint": lambda x: checkpoint(call, x, use_reentrant=False),
    }[transform]
    with torch.no_grad():
        expected = call(x)
    out = run(x)
    torch.testing.assert_close(out.float(), expected.float(), equal_nan=True)
    with pytest.raises(RuntimeError, match=f"has no derivative for {named}.*: detach "):
        out.float().sum().backward()
    with pytest.raises(RuntimeError, match=f"has no derivative for {named}.*: detach "):
        torch.func.grad(lambda x: call(x).float().sum())(x)


def test_activations_of_distributed_layers_have_no_gradient():
    script = """
        import torch, cutlass_api.distributed
        from torch.distributed import HashStore, init_process_group
        init_process_group("gloo", rank=0, world_size=1, store=HashStore())
        layer = torch.nn.Linear(8, 6)
        x = torch.randn(4, 8)
        out = cutlass_api.distributed.all_gather_linear(x, layer.weight, layer.bias, "gelu")
        torch.testing.assert_close(out, torch.nn.functional.gelu(layer(x)))
        try:
            out.sum().backward()
        except RuntimeError as error:
            print(error)
        plain = cutlass_api.distributed.all_gather_linear(x, layer.weight, layer.bias)
        plain.sum().backward()
        torch.testing.assert_close(layer.bias.grad, torch.full((6,), 4.0))
    """
    message = "all_gather_linear has no derivative with activation='gelu': omit it"
    assert run_python(script, is_warm=True).startswith(message)


def test_other_operands_have_gradients_beside_one_without():
    """Backward refuses only what it would have to compute."""
    x, bias = parameter((4, 16)), parameter(16)
    out = cutlass_api.linear(x, torch.ones(16, 16), cutlass_api.scaled_mm(A8, B8, ONE, ONE)[0])
    out.sum().backward()
    assert x.grad is not None
    loss = (cutlass_api.scaled_mm(A8, B8, ONE, ONE, bias=bias).detach() * x).sum()
    loss.backward()
    assert bias.grad is None


@pytest.mark.parametrize("rows", [(0, 0), (2, 4), (0, 9), (9, 9)], ids=str)
def test_rows_behind_the_last_group_have_zero_gradients(rows):
    """Of `grouped_mm` and of the operator of its gradient, of which rows stay uninitialized."""
    offs, n = ends(*rows), rows[-1]
    a, b = randn(9, 8).requires_grad_(), randn(2, 8, 6).requires_grad_()

    def whole(a, b):
        assigned = torch.bucketize(torch.arange(9), offs, right=True)
        products = torch.einsum("mk,mkn->mn", a, torch.cat([b, b[:1] * 0])[assigned])
        return products[:n]

    results = []
    for function in (lambda a, b: OPS.grouped_mm(a, b, offs)[:n], whole):
        first = torch.autograd.grad(function(a, b).square().sum(), (a, b), create_graph=True)
        second = torch.autograd.grad(sum(x.pow(3).sum() for x in first), (a, b))
        results.append([*first, *second])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-2)
    assert all(not x[n:].any() for x in (results[0][0], results[0][2]))
    filled = OPS.grouped_mm(a.detach(), b.detach(), offs, zero_rest=True)
    assert not filled[n:].any() and torch.equal(filled[:n], OPS.grouped_mm(a, b, offs)[:n])
    gated = OPS.grouped_gated_mm(a, b, b, offs)[:n].square().sum()
    assert not torch.autograd.grad(gated, a)[0][n:].any()
