"""`cutlass_api.matmul` and `linear` of vectors, of batches that broadcast, and into an output."""

import cutlass_api
import numpy as np
import pytest
import torch
from cutlass_api.ops import OPS
from support.operator_calls import SHAPES, randn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

shapes = pytest.mark.parametrize(("shape_a", "shape_b"), SHAPES, ids=str)


def operands(shape_a, shape_b, dtype=torch.float64):
    return randn(*shape_a, dtype=dtype), randn(*shape_b, dtype=dtype)


def into(a, b, out):
    return cutlass_api.matmul(a, b, out=out)


def into_half(a, b, out):
    return cutlass_api.matmul(a, b, out=out, out_dtype=torch.float16)


#: Ways to call a function that writes into an argument.
TRANSFORMS = {
    "eager": lambda f: f,
    "make_fx": lambda f: lambda *args: make_fx(f)(*args)(*args),
    "compile": lambda f: torch.compile(f, backend="aot_eager", fullgraph=True),
    "dynamic": lambda f: torch.compile(f, backend="aot_eager", fullgraph=True, dynamic=True),
    "vmap": lambda f: lambda *args: torch.vmap(f)(*(x[None] for x in args))[0],
}


#: Each transform of all shapes; those that compile, of some.
OUTPUTS = [
    (*shapes, transform)
    for at, shapes in enumerate(SHAPES)
    for transform in TRANSFORMS
    if at % {"compile": 8, "dynamic": 13}.get(transform, 1) == 0
]


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize(("shape_a", "shape_b", "transform"), OUTPUTS, ids=str)
def test_out_of_another_dtype_is_rounded_once(shape_a, shape_b, transform):
    a, b = operands(shape_a, shape_b, torch.float16)
    for scale, narrow, wide in (
        (100, torch.float16, torch.float32),
        (1, torch.float32, torch.float16),
    ):
        a, b = (a * scale).to(narrow), (b * scale).to(narrow)
        expected = torch.matmul(a.double(), b.double()).to(wide)
        out = torch.full_like(expected, torch.nan)
        result = TRANSFORMS[transform](into)(a, b, out)
        assert out.isfinite().all() or scale == 1
        torch.testing.assert_close(
            out, expected, rtol=1e-6 if wide is torch.float32 else 1e-3, atol=1e-5
        )
        torch.testing.assert_close(result, out)


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("transform", ["eager", "compile", "dynamic"])
@pytest.mark.parametrize("shape", [(4, 5), (2, 3, 4, 5), (5,)], ids=str)
def test_out_is_checked_and_follows_no_autocast(shape, transform):
    a, b = operands(shape, (5, 6), torch.float32)
    run, expected = TRANSFORMS[transform](into), torch.matmul(a, b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = run(a, b, torch.empty_like(expected))
    torch.testing.assert_close(out, expected)
    with pytest.raises(Exception, match=r"out.* has shape|out is \[|same rank|dimension"):
        run(a, b, expected.new_empty(7, *expected.shape))
    with pytest.raises(Exception, match="out has dtype float32, but out_dtype is float16; omit"):
        TRANSFORMS[transform](into_half)(a, b, expected)


def test_symbolic_traces_call_matmul():
    """Of `torch.fx`, whose proxies are no tensors."""
    a, b = operands((4, 5), (5, 6))
    graph = torch.fx.symbolic_trace(lambda a, b: cutlass_api.matmul(a, b, epilogue=ADD, n=3, c=2))
    torch.testing.assert_close(graph(a, b), (a @ b) * 2 + 3)
    graph, out = torch.fx.symbolic_trace(into), torch.empty(4, 6, dtype=torch.float64)
    assert graph(a, b, out) is out
    torch.testing.assert_close(out, a @ b)


# ---- epilogues -----------------------------------------------------------------------------------

ADD = "def epilogue(accum, n, c):\n    D = accum * c + n\n    return D"


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "number", [2**24 + 1, -(2**24) - 1, 2**30 + 1, 2**31 - 99, -(2**31) + 99, True, 0]
)
def test_integers_of_an_epilogue_are_exact(number, transform):
    a, b = torch.randint(-3, 4, (4, 5), dtype=torch.int8), torch.ones(5, 6, dtype=torch.int8)

    def call(a, b):
        return cutlass_api.matmul(a, b, epilogue=ADD, n=number, c=2)

    exact = (a.int() @ b.int()) * 2 + number
    assert torch.equal(TRANSFORMS[transform](call)(a, b), exact)
    with FlopCounterMode(display=False):
        assert torch.equal(call(a, b), exact)
    fake = FakeTensorMode().from_tensor
    assert call(fake(a), fake(b)).dtype is exact.dtype


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_integers_beyond_int32_are_refused_beside_integers_alone(transform):
    a = torch.ones(4, 4, dtype=torch.int8)

    def call(a):
        return cutlass_api.matmul(a, a, epilogue=ADD, n=2**31 + 5, c=1)

    with pytest.raises(Exception, match="n is 2147483653, which exceeds int32"):
        TRANSFORMS[transform](call)(a)
    expected = torch.full((4, 4), 2.0**31 + 9, dtype=torch.float64)
    assert torch.equal(TRANSFORMS[transform](call)(a.double()), expected.sub(5).add(5))


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("alpha", [2**24 + 1, -(2**30) - 1, 0.5])
@pytest.mark.parametrize("dynamic", [False, True])
def test_factors_of_addmm_are_exact(alpha, dynamic):
    a, c = torch.eye(4, dtype=torch.int8), torch.ones(4, 4, dtype=torch.int32)

    def call(c, a, alpha):
        return OPS.addmm(c, a, a, beta=3, alpha=alpha)

    if isinstance(alpha, float):
        a, c = a.double(), c.double()
    expected = a.to(c.dtype) * alpha + 3
    assert torch.equal(call(c, a, alpha), expected)
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    assert torch.equal(compiled(c, a, alpha), expected)
    assert torch.equal(torch.vmap(call, (0, None, None))(c[None], a, alpha)[0], expected)


@shapes
def test_arrays_of_any_rank(shape_a, shape_b):
    """tests/operators/ has tensors of these shapes."""
    a, b = operands(shape_a, shape_b)
    result = torch.from_numpy(np.asarray(cutlass_api.matmul(a.numpy(), b.numpy())))
    torch.testing.assert_close(result, torch.matmul(a, b))
    assert cutlass_api.matmul(a.requires_grad_(), b).is_contiguous()


# ---- linear --------------------------------------------------------------------------------------


def linear_arguments(shapes):
    return tuple(None if shape is None else randn(*shape, dtype=torch.float64) for shape in shapes)


def test_linear_writes_into_outputs_of_any_strides():
    x, w, out = randn(2, 3, 4), randn(2, 4), torch.empty(2, 2, 3).mT
    OPS.linear.out(x, w, out=out)
    torch.testing.assert_close(out, x @ w.mT)
    OPS.linear.out(x, w[0], out=(vector := torch.empty(3, 2).mT))
    torch.testing.assert_close(vector, x @ w[0])
    with pytest.raises(ValueError, match=r"^cutlass_api::linear: out has shape \[6, 2\]; pass"):
        OPS.linear.out(x, w, out=torch.empty(6, 2))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 8), (6, 8), (2, 4, 6)), "bias with shape"),
        (((4, 8), (6, 8), (5,)), "bias with shape"),
        (((2, 4, 8), (6, 8), (8, 6)), "bias with shape"),
        (((1, 8), (6, 8), (4, 6)), "bias with shape"),
        (((), (6, 8), None), "input has shape"),
        (((4, 8), (2, 6, 8), None), "input has shape"),
    ],
    ids=str,
)
def test_linear_refuses_other_shapes(shapes, message):
    with pytest.raises(ValueError, match=f"^cutlass_api::linear: {message}"):
        cutlass_api.linear(*linear_arguments(shapes))


# ---- memory --------------------------------------------------------------------------------------


def plain(a, b):
    return cutlass_api.matmul(a, b)


def fused(a, b):
    return cutlass_api.matmul(a, b, epilogue=ADD, n=1, c=2)


def of_examples(a, b):
    return torch.vmap(OPS.mm, (0, None))(a, b)


def of_sums(a, b):
    return torch.vmap(OPS.addmm, (None, 0, None))(b[0], a, b)


MANY, WIDE, TALL, FEW = (1024, 2, 1024), (1024, 65536), (65536, 1024), (1024, 1024, 2)


@pytest.mark.parametrize(
    ("call", "shape_a", "shape_b"),
    [
        *((f, MANY, (1, *WIDE)) for f in (plain, fused)),
        *((f, MANY, WIDE) for f in (plain, fused, of_examples, of_sums)),
        *((f, (1, *TALL), FEW) for f in (plain, fused)),
        *((f, TALL, FEW) for f in (plain, fused)),
        (plain, (1024, 1, 2, 1024), (1, 2, *WIDE)),
        (plain, (2, 1, *TALL), (1, *FEW)),
        (lambda a, b: of_examples(b.mT, a.mT), TALL, FEW),
        (lambda a, b: torch.vmap(OPS.mm, (None, 0))(a, b), TALL, FEW),
        (lambda a, b: torch.vmap(OPS.bmm, (0, None))(a[:, None], b[None]), MANY, WIDE),
        (lambda a, b: torch.vmap(plain, (None, 0))(a, b), TALL, FEW),
        (lambda a, b: torch.vmap(cutlass_api.linear, (0, None))(a, b.mT), MANY, WIDE),
        (lambda a, b: torch.vmap(OPS.addmm, (None, None, 0))(b[0, :1, 0], a, b), TALL, FEW),
    ],
)
def test_no_gradient_expands_a_factor(call, shape_a, shape_b):
    """The largest tensor that the backward makes, from traces of meta tensors."""
    a, b = (torch.empty(shape, device="meta", requires_grad=True) for shape in (shape_a, shape_b))

    def gradients(a, b):
        return torch.autograd.grad(call(a, b).sum(), (a, b))

    graph = make_fx(gradients, tracing_mode="fake")(a, b)
    made = [node.meta["val"] for node in graph.graph.nodes if node.op == "call_function"]
    tensors = [x for x in made if isinstance(x, torch.Tensor)]
    out = torch.matmul(torch.empty(shape_a, device="meta"), torch.empty(shape_b, device="meta"))
    largest = max(x.untyped_storage().nbytes() // x.element_size() for x in tensors)
    assert largest <= max(a.numel(), b.numel(), out.numel())
