"""`cutlass_api.jax` under JAX's transforms on the CPU, beside the same programs of `jax.numpy`."""

import re

import cutlass_api
import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy
linear, matmul = cutlass_api.jax.linear, cutlass_api.jax.matmul
RNG = np.random.default_rng(3)
ACTIVATIONS = {
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "hardswish": jax.nn.hard_swish,
    "identity": lambda x: x,
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def random(*shape):
    return RNG.standard_normal(shape)


def plain(activation):
    return lambda x, w, b: ACTIVATIONS[activation](x @ w.T + b)


def ours(activation):
    return lambda x, w, b: linear(x, w, b, activation)


def same(cases):
    """Of each case by name: two functions whose results on the arguments differ by roundings of
    float64 alone. XLA compiles all cases as one program, which takes half the time of many.
    """
    cases = {str(name): case for name, case in cases.items()}
    results = jax.jit(
        lambda arguments: {
            name: (function(*arguments[name]), reference(*arguments[name]))
            for name, (function, reference, *_) in cases.items()
        }
    )({name: arguments for name, (_, _, *arguments) in cases.items()})
    for name, (found, expected) in results.items():
        for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12, err_msg=name)


def gradients(function):
    """The output, and the gradients of a sum of different terms."""

    def all_of(*arguments):
        out, gradients_of = jax.vjp(function, *arguments)
        weights = jnp.cos(jnp.arange(out.size, dtype=out.dtype)).reshape(out.shape)
        return out, gradients_of(weights)

    return all_of


def derivatives(function):
    """The same with the tangent of the output."""
    return lambda tangents, *arguments: (
        jax.jvp(function, arguments, tangents)[1],
        gradients(function)(*arguments),
    )


PRODUCTS = [
    ((5, 7), (7, 9)),
    ((7,), (7, 9)),
    ((3, 5, 7), (7, 9)),
    ((5, 7), (3, 7, 9)),
    ((3, 5, 7), (3, 7, 9)),
    ((2, 1, 5, 7), (3, 7, 9)),
]


def test_derivatives_of_products():
    functions = derivatives(matmul), derivatives(jnp.matmul)
    same(
        {
            (a, b): (*functions, (random(*a), random(*b)), random(*a), random(*b))
            for a, b in PRODUCTS
        }
    )


def test_derivatives_of_layers():
    operands = random(5, 7), random(9, 7), random(9)
    tangents = random(5, 7), random(9, 7), random(9)
    same(
        {
            name: (derivatives(ours(name)), derivatives(plain(name)), tangents, *operands)
            for name in ACTIVATIONS
        }
    )


def test_second_derivatives():
    """Of the gradient of a layer, whose activation has its argument stored by the launch."""
    x, w, b = random(2, 3), random(4, 3), random(4)

    def hessians(layer):
        return jax.hessian(lambda x, w: jnp.sin(layer(x, w, b)).sum(), (0, 1))

    same({"gelu": (hessians(ours("gelu")), hessians(plain("gelu")), x, w)})


def test_linearize_and_checkpoint():
    x, w, b = random(5, 7), random(9, 7), random(9)

    def linearized(layer):
        def run(x, tangent):
            out, at = jax.linearize(jax.checkpoint(lambda x: layer(x, w, b)), x)
            return out, at(tangent)

        return run

    same({"silu": (linearized(ours("silu")), linearized(plain("silu")), x, x)})


def test_no_product_is_computed_for_operands_without_a_gradient():
    """Input and weight of a first layer: one product forward, and one of the gradient."""
    x, w, b = random(5, 7), random(9, 7), random(9)
    program = jax.make_jaxpr(jax.grad(lambda w: linear(x, w, b, "relu").sum()))(w)
    assert len(re.findall(r"cutlass_api_(?:product|fused)\b", str(program))) == 2


def test_gradients_of_other_dtypes():
    """A gradient has the dtype of its operand, whatever that of the output."""
    x, w = random(4, 8).astype("bfloat16"), random(3, 8).astype("float32")

    def of(a, b, **options):
        loss = lambda a, b: matmul(a, b, **options).astype("float32").sum()  # noqa: E731
        return jax.grad(loss, (0, 1))(a, b)

    for dtype in ("float16", "float8_e4m3fn"):
        a, b = x.astype(dtype), w.T.astype(dtype)
        found = jax.jit(of, static_argnames="out_dtype")(a, b, out_dtype="float32")
        assert [each.dtype for each in found] == [a.dtype, b.dtype]
        expected = np.tile(b.astype("float64").sum(1), (4, 1))
        np.testing.assert_allclose(found[0].astype("float64"), expected, rtol=0.07)
    integers = jnp.ones((2, 2), "int8")
    assert jax.grad(lambda s: (matmul(integers, integers) * s).sum())(1.0) == 8


def mapped(x, axis):
    return x if axis is None else np.stack([x, x + 1, 2 * x], axis)


def test_vmap_of_products():
    cases = {}
    for axes in [(0, None), (None, 0), (0, 0), (2, None), (None, 1), (1, 2)]:
        batch = [jax.vmap(gradients(each), axes) for each in (matmul, jnp.matmul)]
        cases[axes] = *batch, mapped(random(5, 7), axes[0]), mapped(random(7, 9), axes[1])
    same(cases)


def test_vmap_of_layers():
    cases = {}
    for axes in [(0, None, None), (None, 0, None), (None, None, 0), (1, None, 0), (0, 1, 1)]:
        batch = [jax.vmap(gradients(each("silu")), axes) for each in (ours, plain)]
        operands = random(5, 7), random(9, 7), random(9)
        cases[axes] = *batch, *map(mapped, operands, axes)
    same(cases)


def test_nested_vmap():
    cases = {}
    for outer, inner in [
        ((0, None), (0, 0)),
        ((None, 0), (0, 0)),
        ((0, 0), (0, 0)),
        ((0, None), (None, 0)),
        ((None, 0), (0, None)),
        ((0, 0), (None, 0)),
    ]:

        def shape(at, *extents, axes=(outer, inner)):
            leading = [size for size, of in zip((2, 3), axes, strict=True) if of[at] is not None]
            return random(*leading, *extents)

        bias = random(5, 9)
        layers = [lambda a, b, f=each, c=bias: f("tanh")(a, b, c) for each in (ours, plain)]
        products = [lambda a, b, f=each: f(a, b.T) for each in (matmul, jnp.matmul)]
        for kind, functions in (("layer", layers), ("product", products)):
            nested = (jax.vmap(jax.vmap(each, inner), outer) for each in functions)
            cases[kind, outer, inner] = *nested, shape(0, 5, 7), shape(1, 9, 7)
    same(cases)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_a_weight_that_is_not_mapped_is_read_once_for_all_examples(activation):
    x, w = jnp.ones((6, 5, 7)), jnp.ones((9, 7))
    batch = jax.vmap(lambda x, w: linear(x, w, jnp.ones(9), activation), (0, None))
    text = jax.jit(batch).lower(x, w).compile().as_text()
    # One product of 30 rows.
    assert re.search(r"custom-call\(f64\[30,7\]|operand_layout_constraints=\{f64\[30,7\]", text)
    assert "f64[6,9,7]" not in text and "f64[6,7,9]" not in text


def test_control_flow():
    w = random(7, 7)

    def steps(product):
        def run(x):
            x = jax.lax.fori_loop(0, 2, lambda _, x: product(x, w), x)
            x, _ = jax.lax.scan(lambda x, _: (jnp.tanh(product(x, w)), None), x, None, length=2)
            return jax.lax.cond(x.sum() > 0, lambda x: product(x, w), lambda x: x, x)

        return run

    same({"loops": (steps(matmul), steps(jnp.matmul), random(3, 7))})


def test_shard_map():
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    rows, whole = jax.P("rows"), jax.P()

    def of(layer):
        return jax.shard_map(
            lambda x, w, b: layer(x, w, b),
            mesh=mesh,
            in_specs=(rows, whole, whole),
            out_specs=rows,
            check_vma=False,
        )

    operands = random(4, 7), random(9, 7), random(9)
    same({"relu": (of(ours("relu")), of(plain("relu")), *operands)})
