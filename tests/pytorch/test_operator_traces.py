"""`torch.ops.cutlass_api` in traces, compiled code and training."""

import cutlass_api.ops
import pytest
import torch
from cutlass_api.ops import OPERATORS, OPS
from support.operator_calls import BIAS_RELU, F8, devices, randn
from torch.fx.experimental.proxy_tensor import make_fx


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def all_operators(a, b, weight, bias):
    """A function that calls each operator. a (M, 8), b (8, 6)."""
    batch = OPS.bmm(a.expand(2, *a.shape), b.expand(2, 8, 6)) + OPS.baddbmm(
        bias, a[None], b[None], beta=0.5
    )
    rows = (torch.arange(1, 3, dtype=torch.int32) * a.shape[0] // 2).to(torch.int32)
    one, scale = torch.ones(()), torch.full((1, 6), 0.5)
    # These have no gradients, except for the float operand of mixed_mm.
    x, y = a.detach(), b.detach()
    integer, narrow = (y * 8).to(torch.int8), y.to(F8)
    words, factors = (y.t().repeat(1, 2)[:, None, :4] * 99).int(), scale.t()  # of a weight (6, 32)
    eight_bits = (
        OPS.int_mm((x * 8).to(torch.int8), integer)
        + OPS.mixed_mm(a.half(), integer, scale).float()
        + OPS.scaled_mm(x.to(F8), narrow, one, scale, out_dtype=torch.float32)
        + OPS.scaled_mm(
            *(x.to(F8).repeat(1, 32), narrow.repeat(32, 1)),
            *(one.expand(a.shape[0], 2), one.expand(2, 6)),
            out_dtype=torch.float32,
        )
        + OPS.mixed_mm(a.half().expand(2, *a.shape), integer, scale)[1].float()
        + OPS.quantized_linear(
            x.half().repeat(1, 4), words, factors, None, None, None, "Int4"
        ).float()
        + OPS.quantized_grouped_mm(
            *(x.half().repeat(1, 4), words[None].expand(2, 6, 1, 4), factors.expand(2, 6, 1)),
            *(None, None, "Int4", rows),
        ).float()
        + OPS.scaled_grouped_mm(
            x.to(F8), narrow.expand(2, 8, 6), one, scale.expand(2, 1, 6), rows, torch.float32
        )
    )
    return (
        eight_bits
        + OPS.quantize(x, torch.int8, [1, -1])[0][:, :6]
        + OPS.mm(a, b)
        + OPS.addmm(bias, a, b, alpha=2)
        + batch.sum(0)
        + OPS.linear(a, weight, bias, "gelu")
        + OPS.joint_linear(a, [weight[:4], weight[4:]], [bias[:4], bias[4:]])
        + OPS.grouped_mm(a, b.expand(2, 8, 6), rows)
        + OPS.grouped_gated_mm(a, b.expand(2, 8, 6), b.neg().expand(2, 8, 6), rows)
        + OPS.grouped_gated_mlp(a, b.expand(2, 8, 6), b[:3].expand(2, 3, 6), rows)[0]
        + OPS.masked_grouped_mm(x.expand(2, *x.shape), y.expand(2, 8, 6), rows[[1, 1]])[0]
        + OPS.mm_epilogue(a, b, [bias], BIAS_RELU)
    )


def inputs(rows=4, requires_grad=False):
    shapes = ((rows, 8), (8, 6), (6, 8), (6,))
    return [randn(*shape, requires_grad=requires_grad) for shape in shapes]


@pytest.mark.usefixtures("dynamo")
def test_compile_of_dynamic_shapes():
    compiled = torch.compile(all_operators, fullgraph=True, backend="aot_eager", dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for rows in (4, 6, 10):
            args = inputs(rows)
            torch.testing.assert_close(compiled(*args), all_operators(*args))


@pytest.mark.usefixtures("dynamo")
def test_compile_of_out():
    def function(a, b):
        out = a.new_empty(a.shape[0], b.shape[1])
        OPS.mm.out(a, b, out=out)
        OPS.mm_epilogue.out(a, b, [out], BIAS_RELU, out=out)
        return out * 2

    a, b = inputs()[:2]
    compiled = torch.compile(function, fullgraph=True, backend="inductor")
    torch.testing.assert_close(compiled(a, b), function(a, b))


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict):
    rows = torch.export.Dim("rows", min=2, max=64)
    args = tuple(inputs())
    shapes = {"args": ({0: rows * 2}, None, None, None)}
    program = torch.export.export(Module(all_operators), args, strict=strict, dynamic_shapes=shapes)
    names = {str(node.target) for node in program.graph.nodes}
    public = [name for name, operator in OPERATORS.items() if operator.summary]
    assert names >= {f"cutlass_api.{name}.default" for name in public}
    args = inputs(10)
    torch.testing.assert_close(program.module()(*args), all_operators(*args))


@pytest.mark.usefixtures("dynamo")
def test_sizes_that_depend_on_data():
    def function(x, weight):
        return OPS.linear(x[x[:, 0] > 0], weight)

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        x, weight = randn(16, 8), randn(6, 8)
        torch.testing.assert_close(compiled(x, weight), function(x, weight))


# Training.


class Perceptron(torch.nn.Module):
    """Two linear layers with a gelu between them."""

    def __init__(self, linear):
        super().__init__()
        self.linear = linear
        generator = torch.Generator().manual_seed(0)
        shapes = {"up": (64, 32), "up_bias": (64,), "down": (16, 64), "down_bias": (16,)}
        for name, shape in shapes.items():
            values = torch.randn(shape, generator=generator) / 8
            self.register_parameter(name, torch.nn.Parameter(values))

    def forward(self, x):
        hidden = self.linear(x, self.up, self.up_bias, "gelu")
        return self.linear(hidden, self.down, self.down_bias, None)


def torch_linear(x, weight, bias, activation):
    out = torch.nn.functional.linear(x, weight, bias)
    return torch.nn.functional.gelu(out) if activation == "gelu" else out


@devices
@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_training_step_of_a_perceptron(device, is_compiled):
    x = randn(2, 24, 32, device=device)
    target = randn(2, 24, 16, device=device)
    losses, gradients = [], []
    for linear in (cutlass_api.linear, torch_linear):
        model = Perceptron(linear).to(device)
        step = torch.compile(model, fullgraph=True, backend="aot_eager") if is_compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = torch.nn.functional.mse_loss(step(x).float(), target)
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*losses, rtol=1e-2, atol=0)
    for ours, theirs in zip(*gradients, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


@pytest.mark.parametrize("activation", cutlass_api.fusion.activation.__all__)
def test_linear_takes_names_and_functions(activation):
    x, weight, bias = randn(4, 8), randn(6, 8), randn(6)
    ours = getattr(cutlass_api.fusion.activation, activation)
    expected = ours(torch.nn.functional.linear(x, weight, bias))
    torch.testing.assert_close(cutlass_api.linear(x, weight, bias, activation), expected)
    torch.testing.assert_close(cutlass_api.linear(x, weight, bias, ours), expected)
    if theirs := getattr(torch.nn.functional, activation, None):
        torch.testing.assert_close(cutlass_api.linear(x, weight, bias, theirs), expected)


def test_sources_of_epilogues_are_lines_in_graphs():
    """torch 2.11 writes arguments into a comment of generated code."""
    a, b, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    i8 = torch.ones(4, 4, dtype=torch.int8)

    def rounded(accum, bias):
        """Two statements."""
        x = accum + bias  # a comment
        D = relu(x)  # noqa: F821
        return D

    calls = [
        lambda: cutlass_api.matmul(a, b, epilogue=rounded, bias=bias),
        lambda: cutlass_api.int8_mm(i8, i8, bias=torch.ones(4)),
        lambda: torch.vmap(lambda x: cutlass_api.linear(x, b.t(), bias, "gelu"))(a[None]),
    ]
    for call in calls:
        graph = make_fx(call)()
        sources = [arg for node in graph.graph.nodes for arg in node.args if isinstance(arg, str)]
        assert all("\n" not in source for source in sources) and sources, graph
        torch.testing.assert_close(graph(), call())
