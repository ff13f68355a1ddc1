"""What `test_distributed.py` checks in each rank of a process group (`distributed.py`)."""

from copy import deepcopy
from functools import partial

import cutlass_api
import cutlass_api.inductor
import pytest
import torch
from cutlass_api import distributed as distributed_layers
from cutlass_api import nn, quantize
from cutlass_api.ops import OPERATORS, OPS
from cutlass_api.ops._sharding import placements
from cutlass_api.weights._reordering import reorder
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInputOutput,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from support.distributed import EXIT
from support.distributed_calls import (
    BF16,
    BIAS_RELU,
    CALLS,
    E8M0,
    FACTOR,
    SWIGLU,
    ends,
    int4,
    int4_stack,
    integers,
    rand,
    scales,
)


def check_every_rule(world):
    """Each way to place the tensors of a call: nothing is communicated, and the result is right."""
    assert CALLS.keys() == OPERATORS.keys()
    for name, calls in CALLS.items():
        for dimensions, *args in calls:
            args = on(world.device, args)
            count = sum(isinstance(x, torch.Tensor) for x in tree_flatten(args)[0])
            replicated = distributed(world, args, [Replicate()] * count)
            specs = tree_map(lambda x: x._spec if isinstance(x, DTensor) else x, replicated)
            ways = placements(OPERATORS[name], *specs)
            # Of two ranks, more dimensions have whole blocks.
            assert (
                len(ways) > len(dimensions.split())
                if world.size == 2
                else (len(ways) == 1 + len(dimensions.split()))
            ), (name, dimensions, ways)
            expected = listed(getattr(OPS, name)(*args))
            for outputs, inputs in ways:
                with CommDebugMode() as traffic:
                    found = listed(getattr(OPS, name)(*distributed(world, args, inputs)))
                assert traffic.get_total_counts() == 0, (name, inputs)
                for out, placement, dense in zip(found, outputs, expected, strict=True):
                    assert out.placements == (placement,), (name, inputs, out.placements)
                    assert out.shape == dense.shape and out.dtype == dense.dtype
                    assert_equal(whole(out), dense, (name, dimensions, inputs))


def on(device, values):
    return tree_map(lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, values)


def listed(outputs):
    return [outputs] if isinstance(outputs, torch.Tensor) else outputs


def distributed(world, args, inputs):
    """The arguments, with DTensors of these placements in place of tensors."""
    flat, spec = tree_flatten(list(args))
    rest = iter(inputs)
    placed = [
        place(world, value, next(rest)) if isinstance(value, torch.Tensor) else value
        for value in flat
    ]
    assert next(rest, None) is None
    return tree_unflatten(placed, spec)


def place(world, tensor, placement):
    if isinstance(placement, Partial):
        part = tensor if world.rank == 0 else torch.zeros_like(tensor)
        return DTensor.from_local(part, world.mesh, [placement], run_check=False)
    if tensor.dtype is E8M0:  # torch splits no tensor of this dtype
        bytes = place(world, tensor.view(torch.uint8), placement)
        local = bytes.to_local().view(E8M0)
        return DTensor.from_local(local, world.mesh, [placement], run_check=False)
    if tensor.dim() == 2 and not tensor.is_contiguous():  # torch makes shards contiguous
        across = Shard(1 - placement.dim) if isinstance(placement, Shard) else placement
        return place(world, tensor.mT, across).mT
    return distribute_tensor(tensor, world.mesh, [placement], src_data_rank=None)


def whole(out):
    """The full tensor. gloo does not gather float8."""
    if out.dtype.itemsize > 1:
        return out.full_tensor()
    local = out.to_local().view(torch.uint8)
    shards = DTensor.from_local(local, out.device_mesh, out.placements, run_check=False)
    return shards.full_tensor().view(out.dtype)


def assert_equal(found, expected, what):
    if found.dtype.itemsize == 1:
        found, expected = (x.view(torch.uint8) for x in (found, expected))
    found, expected = found.double(), expected.double()
    error = (found - expected).norm() / expected.norm().clamp(min=1e-30)
    assert error < 1e-2, (what, error)


#: Differentiable calls.
GRADIENTS = {
    "mm": [(rand(8, 12), rand(12, 16))],
    "bmm": [(rand(4, 8, 12), rand(4, 12, 16))],
    "addmm": [(rand(16), rand(8, 12), rand(12, 16))],
    "baddbmm": [(rand(1, 8, 1), rand(4, 8, 12), rand(4, 12, 16))],
    "linear": [
        (rand(8, 12), rand(16, 12), rand(16)),
        (rand(4, 8, 12), rand(16, 12), rand(16), "gelu"),
        (rand(4, 8, 12), rand(16, 12), rand(16), "relu"),
    ],
    "joint_linear": [(rand(4, 8, 12), [rand(16, 12), rand(8, 12)], [rand(16), rand(8)])],
    "grouped_mm": [
        (rand(9, 12), rand(3, 12, 16), ends(4, 4, 9)),
        (rand(9, 12), rand(3, 12, 16), ends(4, 4, 9), rand(3, 16)),
        (rand(8, 12), rand(3, 12, 16), ends(4, 4, 9), None, None, False, ends(*range(8), 0)),
    ],
    "grouped_gated_mm": [
        (rand(9, 12), rand(3, 12, 16), rand(3, 12, 16), ends(4, 4, 9)),
        (rand(9, 12), *[rand(3, 12, 16)] * 2, ends(4, 4, 9), "silu", rand(3, 16), rand(3, 16)),
    ],
    "grouped_gated_mlp": [
        (
            *(rand(9, 12), rand(3, 12, 16), rand(3, 8, 16), ends(4, 4, 9), "silu", False),
            *(rand(3, 16), rand(3, 16, seed=1)),
        ),
    ],
    "mixed_mm": [(rand(8, 12).half(), integers(12, 16), scales(16))],
    "quantized_linear": [(rand(8, 128).half(), *int4(16, 128, 32))],
    "quantized_grouped_mm": [
        (rand(9, 128).half(), *int4_stack(3, 16, 128, group=32), ends(4, 4, 9))
    ],
    "mm_epilogue": [
        (rand(8, 12), rand(12, 16), [rand(16)], BIAS_RELU),
        (rand(8, 16, dtype=BF16), FACTOR, [FACTOR.neg()], SWIGLU),
    ],
}


def check_gradients(world):
    """The gradients of DTensors are those of whole tensors, whatever the placements."""
    if world.size > 2:
        return
    for name, calls in GRADIENTS.items():
        for args in calls:
            dense = with_gradients(on(world.device, args))
            out = first(getattr(OPS, name)(*dense))
            grad = rand(*out.shape, dtype=out.dtype, seed=3).to(world.device)
            out.backward(grad)
            for inputs in ways_of(world, name, args):
                placed = with_gradients(distributed(world, on(world.device, args), inputs))
                out = first(getattr(OPS, name)(*placed))
                out.backward(place(world, grad, Replicate()))
                for x, expected in zip(
                    tree_flatten(placed)[0], tree_flatten(dense)[0], strict=True
                ):
                    if isinstance(x, torch.Tensor) and x.requires_grad:
                        assert_equal(whole(x.grad), expected.grad, (name, inputs))


def first(outs):
    return outs if isinstance(outs, torch.Tensor) else outs[0]


def with_gradients(args):
    def leaf(x):
        is_float = isinstance(x, torch.Tensor) and x.is_floating_point()
        return x.detach().clone().requires_grad_() if is_float else x

    leaves, spec = tree_flatten(list(args))
    # Scales have no gradient.
    count = len(leaves) if leaves[0].dtype is not torch.float16 else 1
    return tree_unflatten([*map(leaf, leaves[:count]), *leaves[count:]], spec)


def ways_of(world, name, args):
    """The placements of the inputs of a call, without partial sums."""
    count = sum(isinstance(x, torch.Tensor) for x in tree_flatten(list(args))[0])
    replicated = distributed(world, on(world.device, args), [Replicate()] * count)
    specs = tree_map(lambda x: x._spec if isinstance(x, DTensor) else x, replicated)
    for _, inputs in placements(OPERATORS[name], *specs):
        yield [Replicate() if isinstance(x, Partial) else x for x in inputs]


class Linear(torch.nn.Linear):
    """A module that `parallelize_module` distributes as `nn.Linear`, in one launch a rank."""

    def __init__(self, *extents, activation=None, bias=True):
        super().__init__(*extents, bias=bias)
        self.activation = activation

    def forward(self, x):
        return cutlass_api.linear(x, self.weight, self.bias, self.activation)


class Mlp(torch.nn.Module):
    def __init__(self, width=16, hidden=32):
        super().__init__()
        self.up = Linear(width, hidden, activation="gelu")
        self.down = Linear(hidden, width)

    def forward(self, x):
        return x + self.down(self.up(x))


def mlp(world):
    """An MLP of random weights, the same on each rank."""
    torch.manual_seed(0)
    return Mlp().to(world.device)


TENSOR_PARALLEL = {"up": ColwiseParallel(), "down": RowwiseParallel()}


def expected_step(world, x):
    """The output, the gradients and the output after one step of SGD, of torch's operators."""
    model = mlp(world)

    def forward():
        hidden = functional.linear(x, model.up.weight, model.up.bias)
        return x + functional.linear(functional.gelu(hidden), model.down.weight, model.down.bias)

    out = forward()
    out.square().mean().backward()
    gradients = {name: each.grad.clone() for name, each in model.named_parameters()}
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    with torch.no_grad():
        return out.detach(), gradients, forward()


def train(world, model, x, own=slice(None), forward=None):
    """A training and an inference step of a model, beside those of torch on one device.

    ``own``: the rows of the batch that this rank computes. The mean over ranks is that of FSDP.
    """
    expected, gradients, after = expected_step(world, x)
    forward = model if forward is None else forward
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    out = forward(x[own])
    assert_equal(out, expected[own], "output")
    out.square().mean().backward()
    for name, parameter in model.named_parameters():
        grad = parameter.grad
        assert_equal(
            grad.full_tensor() if isinstance(grad, DTensor) else grad,
            gradients[name.replace("_orig_mod.", "")],
            name,
        )
    optimizer.step()
    with torch.no_grad():
        assert_equal(forward(x[own]), after[own], "output after a step")


def check_tensor_parallel(world):
    model = parallelize_module(mlp(world), world.mesh, TENSOR_PARALLEL)
    assert model.up.weight.placements == (Shard(0),) and model.down.weight.placements == (Shard(1),)
    x = rand(2, 8, 16).to(world.device)
    with CommDebugMode() as traffic:
        model(x)
    assert traffic.get_total_counts() == 1, "one reduction of the output"
    train(world, model, x)


def check_sequence_parallel(world):
    """Activations are sharded along the sequence outside of the products."""
    plan = {
        "": PrepareModuleInputOutput(
            input_layouts=(Replicate(),),
            desired_input_layouts=(Shard(1),),
            output_layouts=(Shard(1),),
            desired_output_layouts=(Replicate(),),
            use_local_input=False,
        ),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    train(world, parallelize_module(mlp(world), world.mesh, plan), rand(2, 8, 16).to(world.device))


def check_fully_shard(world):
    model = mlp(world)
    for module in (model.up, model.down, model):
        fully_shard(module, mesh=world.mesh)
    rows = 8 // world.size
    own = slice(world.rank * rows, (world.rank + 1) * rows)
    train(world, model, rand(8, 16).to(world.device), own)


def check_fully_shard_and_tensor_parallel(world):
    if world.size < 4:
        return
    mesh = world.mesh_2d()
    model = parallelize_module(mlp(world), mesh["tensor"], TENSOR_PARALLEL)
    fully_shard(model, mesh=mesh["data"])
    rows = 8 // 2
    at = mesh.get_local_rank("data")
    train(world, model, rand(8, 16).to(world.device), slice(at * rows, (at + 1) * rows))


def quantized_layers(world):
    torch.manual_seed(0)
    matrix, bias = torch.randn(64, 256).to(BF16), torch.randn(64).to(BF16)
    weights = {"int4": quantize.int4(matrix, 32), "mxfp4": quantize.mxfp4(matrix)}
    weights |= {"fp8": quantize.fp8(matrix), "int8": quantize.int8(matrix)}
    layers = [nn.Linear(weight, bias) for weight in weights.values()]
    layers += [nn.Linear(weights[name], bias, name) for name in ("fp8", "int8")]
    return [layer.to(world.device) for layer in layers]


def check_quantized_layers_as_dtensors(world):
    """Rows and columns of weights are sharded, also before they are repacked."""

    def shard(dim, name, layer, mesh):
        for key, field in (*layer.named_buffers(), ("bias", layer.bias)):
            is_split = field.dim() > dim and field.shape[dim] > 1
            placements = [Shard(dim) if is_split else Replicate()]
            placed = distribute_tensor(field.detach(), mesh, placements, src_data_rank=None)
            setattr(layer, key, torch.nn.Parameter(placed) if key == "bias" else placed)

    torch.manual_seed(1)
    x = torch.randn(4, 256, device=world.device).to(BF16)
    for layer in quantized_layers(world):
        expected = layer(x)
        for dim in (0, 1):
            for is_repacked in (True, False):
                own = deepcopy(layer) if is_repacked else deepcopy(layer).unpack()
                own = distribute_module(own, world.mesh, partial(shard, dim)).repack().half()
                placed = distribute_tensor(x, world.mesh, [Replicate()]).requires_grad_()
                out = own(placed)
                out.sum().backward()
                whole = x.clone().requires_grad_()
                layer(whole).sum().backward()
                for found, wanted in ((out, expected), (placed.grad, whole.grad)):
                    assert found.dtype is BF16
                    error = (found.full_tensor() - wanted).float().norm() / wanted.float().norm()
                    assert error < 1e-2, (layer, dim, error)
    values = torch.zeros(8, 16 * world.size + 16, dtype=torch.uint8, device=world.device)
    values = distribute_tensor(values, world.mesh, [Shard(1)])
    with pytest.raises(ValueError, match="shard N, or K in equal multiples of 32 elements"):
        reorder(values, True, False)


def check_quantized_layers_in_fully_shard(world):
    """The buffers of weights stay whole on each rank; biases are sharded."""
    for layer in quantized_layers(world):
        model = torch.nn.Sequential(layer, torch.nn.Linear(64, 64, dtype=BF16)).to(world.device)
        for parameter in model[1].parameters():
            torch.distributed.broadcast(parameter.data, 0)
        x = torch.randn(4, 256, device=world.device).to(BF16)
        expected, fields = model(x), dict(layer.named_buffers())
        for each in model:
            fully_shard(each, mesh=world.mesh)
        fully_shard(model, mesh=world.mesh)
        torch.testing.assert_close(model(x), expected)
        assert isinstance(layer.bias, DTensor)
        for name, field in layer.named_buffers():
            assert not isinstance(field, DTensor) and field.shape == fields[name].shape
        model(x).sum().backward()
        assert isinstance(layer.bias.grad, DTensor)


def check_compiled(world):
    """The models under torch.compile, with cutlass_api.inductor."""
    if world.size > 2:
        return
    x = rand(2, 8, 16).to(world.device)
    backend = "inductor" if world.kind == "cuda" else "aot_eager"
    with cutlass_api.inductor.enabled():
        model = parallelize_module(mlp(world), world.mesh, TENSOR_PARALLEL)
        train(world, model, x, forward=torch.compile(model, backend=backend, fullgraph=True))
        model = mlp(world)
        fully_shard(model, mesh=world.mesh)
        rows = 8 // world.size
        own = slice(world.rank * rows, (world.rank + 1) * rows)
        train(world, model, x.flatten(0, 1)[:8], own, torch.compile(model, backend=backend))


def check_expert_parallel(world):
    """Tokens travel to the ranks of their experts, one grouped product a rank, and back."""
    local, width, count = 2, 16, 24
    experts = local * world.size
    routed = torch.Generator().manual_seed(world.rank)
    expert = torch.randint(0, experts - 1, (count,), generator=routed).to(world.device)
    tokens = rand(count, width, seed=world.rank).to(world.device).requires_grad_()
    weights = rand(experts, width, 8).to(world.device)
    own = weights.view(world.size, local, width, 8)[world.rank].clone().requires_grad_()

    out = expert_parallel(world, tokens, expert, own)
    expected = torch.einsum("tk,tkn->tn", tokens.detach(), weights[expert])
    assert_equal(out.detach(), expected, "output")

    out.sum().backward()
    assert_equal(tokens.grad, weights[expert].sum(2), "gradient of the tokens")
    sums = torch.zeros(experts, width, device=world.device)
    sums.index_add_(0, expert, tokens.detach())
    torch.distributed.all_reduce(sums)
    of_own = sums.view(world.size, local, width)[world.rank, :, :, None].expand_as(own)
    assert_equal(own.grad, of_own, "gradient of the weights")


def expert_parallel(world, tokens, expert, weights):
    """The product of each token with the weights of its expert, of which each rank has a part."""
    local = weights.shape[0]
    group = torch.distributed.group.WORLD
    exchange = partial(all_to_all_single_autograd, group=group)
    sent = torch.bincount(expert, minlength=local * world.size)
    received = torch.empty_like(sent)
    torch.distributed.all_to_all_single(received, sent)
    # The splits of NCCL's exchange are known to the host, the offsets of the groups are not.
    splits = [x.view(world.size, local).sum(1).tolist() for x in (received, sent)]
    order = expert.argsort(stable=True)
    rows = exchange(tokens[order], *splits)
    # Rows arrive by their rank, and those of a rank by their expert.
    of_rows = torch.arange(local, device=expert.device).repeat(world.size)
    grouped = of_rows.repeat_interleave(received, output_size=rows.shape[0]).argsort(stable=True)
    offsets = received.view(world.size, local).sum(0).cumsum(0).int()
    out = OPS.grouped_mm(rows[grouped], weights, offsets)
    back = exchange(out[grouped.argsort()], *splits[::-1])
    return back[order.argsort()]


def check_overlap(world):
    """Layers in chunks: results and gradients are those of whole products."""
    rows, width, columns = 5, 16, 8
    x = rand(world.size * rows, width).to(world.device).requires_grad_()
    up = rand(world.size * columns, width).to(world.device).requires_grad_()
    down = rand(12, world.size * columns).to(world.device).requires_grad_()
    hidden = functional.linear(x, up)
    y = functional.linear(hidden, down)
    grad = rand(*y.shape, seed=1).to(world.device)
    y.backward(grad)

    own = slice(world.rank * rows, (world.rank + 1) * rows)
    part = slice(world.rank * columns, (world.rank + 1) * columns)
    leaves = (x[own], up[part], down[:, part])
    mine, first, second = (each.detach().clone().requires_grad_() for each in leaves)
    for chunks in (1, 3, 8):
        for each in (mine, first, second):
            each.grad = None
        found = distributed_layers.all_gather_linear(mine, first, chunks=chunks)
        assert_equal(found.detach(), hidden[:, part], "gathered")
        out = distributed_layers.linear_reduce_scatter(found, second, chunks=chunks)
        assert_equal(out.detach(), y[own], "scattered")
        out.backward(grad[own])
        assert_equal(mine.grad, x.grad[own], "input")
        assert_equal(first.grad, up.grad[part], "column-parallel weight")
        assert_equal(second.grad, down.grad[:, part], "row-parallel weight")
    bias = rand(columns).to(world.device)
    with torch.no_grad():
        found = distributed_layers.all_gather_linear(mine, first, bias, "gelu")
        assert_equal(found, functional.gelu(hidden[:, part] + bias), "activation")


def check_a_rank_that_dies(world):
    """The error names the operator whose operands could not be moved. No check follows."""
    if world.kind == "cuda":
        return None  # NCCL waits for the rank until its timeout ends the process
    if world.rank == world.size - 1:
        return EXIT
    a = DTensor.from_local(torch.ones(4, 8), world.mesh, [Shard(0)])
    b = DTensor.from_local(torch.ones(8 // world.size, 4), world.mesh, [Shard(0)])
    try:
        for _ in range(100):
            OPS.mm(a, b).to_local()
    except RuntimeError as error:
        assert str(error).startswith("cutlass_api::mm on DTensors: "), error
        return None
    raise AssertionError("a product without the operands of one rank")
