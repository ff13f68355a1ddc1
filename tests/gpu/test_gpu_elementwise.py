"""Elementwise sums on a GPU: every type and layout, bit-identical to torch's exact sums."""

import statistics
from itertools import permutations, product

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import ElementwiseArguments, EpilogueArguments
from support import memory
from support.gpu_helpers import say
from support.helpers import DTYPES, INTEGERS, run_first, same
from support.memory import Form, Output, random_operand
from support.sums import FORMS, check, expected

pytestmark = pytest.mark.gpu
dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)

#: Less than a vector, an odd row, many rows of whole vectors, rows of many CTAs, several matrices.
SHAPES = [(1, 1), (3, 5), (7, 1031), (257, 64), (2, 40_000), (3, 17, 33), (5, 64, 48)]


@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_way_to_lie_in_memory(shape, dtype):
    generator = torch.Generator(memory.DEVICE).manual_seed(0)
    outputs = [form for form in FORMS if not form.broadcast]
    pairs = [
        (left, FORMS[place])
        for at, left in enumerate(FORMS)
        for place in {0, (at + 3) % 9, (2 * at + 1) % 9}
    ]
    for at, (left, right) in enumerate(pairs):
        a, b = (random_operand(shape, dtype, form, generator) for form in (left, right))
        check(
            a,
            b,
            Output(shape, dtype, outputs[at % len(outputs)]),
            f"{left} {right} {outputs[at % len(outputs)]}",
        )


@dtypes
def test_dimensions_in_any_order(dtype):
    generator = torch.Generator(memory.DEVICE).manual_seed(1)
    for shape in [(4, 32, 16), (3, 5, 7)]:
        for left, out in product(permutations(range(3)), permutations(range(3))):

            def permuted(tensor, order):
                return (
                    tensor.permute(order)
                    .contiguous()
                    .permute([order.index(dim) for dim in range(3)])
                )

            a, b = (random_operand(shape, dtype, Form(), generator) for _ in range(2))
            output = permuted(torch.zeros(shape, device=a.device).to(dtype), out)
            args = ElementwiseArguments(permuted(a, left), b, output)
            output.copy_(torch.full(shape, float("nan") if dtype not in INTEGERS else 7))
            run_first(args)
            assert same(output, expected(a, b)), f"{left} {out}"


@dtypes
def test_vectors_of_one_dimension(dtype):
    generator = torch.Generator(memory.DEVICE).manual_seed(2)
    for size in (1, 15, 16, 17, 1000, 100_003):
        for start, step in ((0, 1), (1, 1), (0, 3)):
            parent = random_operand((1, size * step + start), dtype, Form(), generator)[0]
            a = parent[start::step]
            out = torch.zeros_like(a)
            args = ElementwiseArguments(a, a, out)
            run_first(args)
            assert same(out, expected(a, a)), f"{size} {start} {step}"


@dtypes
def test_in_place(dtype):
    generator = torch.Generator(memory.DEVICE).manual_seed(3)
    for form in (Form(multiple=16), Form(order="n"), Form(multiple=16, pad=1)):
        a, b = (random_operand((130, 1000), dtype, form, generator) for _ in range(2))
        wanted = expected(a, b)
        run_first(ElementwiseArguments(a, b, a))
        assert same(a, wanted)


def test_nothing_to_add():
    empty = torch.ones(0, 5, device=memory.DEVICE)
    run_first(ElementwiseArguments(empty, empty, torch.ones_like(empty)))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.float64, torch.bfloat16], ids=str
)
def test_an_epilogue_behind_the_sum(dtype):
    def scaled(accum, scale, bias, alpha):
        total = accum * scale
        D = torch.relu(total + bias) * alpha
        return D, total

    generator = torch.Generator(memory.DEVICE).manual_seed(4)
    for shape, form in product(
        [(33, 64), (3, 17, 33)], [Form(multiple=16), Form(order="n"), Form(multiple=16, pad=1)]
    ):
        a, b = (random_operand(shape, dtype, form, generator) for _ in range(2))
        scale = random_operand(shape, dtype, Form(), generator)
        bias = random_operand((1, shape[-1]), torch.float32, Form(), generator)
        out, total = Output(shape, dtype, form), Output(shape, torch.float32, Form())
        epilogue = EpilogueArguments(
            scaled, scale=scale, bias=bias, alpha=0.5, D=out.tensor, total=total.tensor
        )
        run_first(ElementwiseArguments(a, b, out.tensor, epilogue))
        product_ = (a.double() + b.double()) * scale.double()
        wanted = torch.relu(product_ + bias.double()) * 0.5
        tolerance = {
            torch.float64: 1e-6,
            torch.float32: 1e-5,
            torch.float16: 5e-3,
            torch.bfloat16: 3e-2,
        }[dtype]
        torch.testing.assert_close(out.tensor.double(), wanted, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(total.tensor.double(), product_, rtol=tolerance, atol=tolerance)
        assert out.intact_around() and total.intact_around()


@pytest.mark.timing
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.int8], ids=str
)
def test_bandwidth_beside_a_copy(dtype, request):
    """Bytes read and written per second, relative to torch's copy."""
    size = 256 * 2**20 // dtype.itemsize  # three of these are far more than L2
    a, b = (
        torch.randint(-9, 9, (size,), device="cuda", dtype=torch.int8).to(dtype) for _ in range(2)
    )
    out = torch.empty_like(a)
    args = ElementwiseArguments(a, b, out)
    kernel = cutlass_api.get_kernels(args)[0]
    artifact = kernel.compile(args)

    def graph_of(call):
        call()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(5):
                call()
        return graph

    calls = {"copy": lambda: out.copy_(a), "add": lambda: torch.add(a, b, out=out)}
    graphs = {name: graph_of(call) for name, call in calls.items()} | {
        "ours": graph_of(lambda: kernel.run(args, artifact))
    }
    times = {name: [] for name in graphs}
    for _ in range(10):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end) / 5)
    moved = {"copy": 2, "add": 3, "ours": 3}
    rates = {
        name: moved[name] * size * dtype.itemsize / (1e-3 * statistics.median(times[name])) / 1e12
        for name in graphs
    }
    say(
        request, f"{dtype}: " + ", ".join(f"{name} {rate:.2f} TB/s" for name, rate in rates.items())
    )
    assert rates["ours"] > 0.9 * rates["copy"]
