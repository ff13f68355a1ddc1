"""`cutlass_api.jax.matmul` and `linear` on the CPU: values, copies, errors, exports."""

import re
import threading

import cutlass_api
import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp = jax.numpy
linear, matmul = cutlass_api.jax.linear, cutlass_api.jax.matmul
RNG = np.random.default_rng(7)
ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.array(jax.scipy.special.erf(x * 0.5**0.5))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    None: lambda x: x,
}
ACTIVATIONS["swish"], ACTIVATIONS["gelu_new"] = ACTIVATIONS["silu"], ACTIVATIONS["gelu_tanh"]


def random(*shape, dtype="float32"):
    """Values of few bits, whose products and sums are exact in float32."""
    if "int" in dtype:
        return RNG.integers(0, 100, shape).astype(dtype)
    return (RNG.integers(-8, 9, shape) / 4).astype(jnp.dtype(dtype))


def assert_rounded_once(out, exact):
    """Each value is that of the exact one in the dtype of the output."""
    assert (np.asarray(out) == exact.astype(out.dtype)).all()


@pytest.mark.parametrize(
    "dtype, out",
    [
        ("float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("float32", "float32"),
        ("float64", "float64"),
        ("int8", "int32"),
        ("uint8", "int32"),
        ("float8_e4m3fn", "bfloat16"),
    ],
)
def test_dtypes_are_those_of_cutlass_api(dtype, out):
    with jax.enable_x64(True):
        a, b = random(17, 33, dtype=dtype), random(33, 9, dtype=dtype)
        found = matmul(jnp.asarray(a), b)
        assert found.dtype == out == str(cutlass_api._core.product_dtypes(dtype, dtype)[0])
        assert_rounded_once(found, a.astype("float64") @ b.astype("float64"))


def test_an_output_and_an_accumulator_of_other_dtypes():
    a, b = random(4, 6, dtype="float16"), random(6, 5, dtype="float16")
    found = matmul(a, b, out_dtype=jnp.float32, accumulator_type="float32")
    assert found.dtype == jnp.float32
    assert_rounded_once(found, a.astype("float64") @ b.astype("float64"))


@pytest.mark.parametrize(
    "a, b",
    [
        ((5,), (5,)),
        ((5,), (5, 3)),
        ((2, 5), (5,)),
        ((5,), (4, 5, 3)),
        ((4, 2, 5), (5, 3)),
        ((2, 5), (4, 5, 3)),
        ((4, 2, 5), (1, 5, 3)),
        ((4, 1, 2, 5), (3, 5, 6)),
        ((0, 5), (5, 3)),
        ((2, 0), (0, 3)),
        ((0, 2, 5), (0, 5, 3)),
    ],
    ids=str,
)
def test_shapes_are_those_of_numpy(a, b):
    a, b = random(*a), random(*b)
    found = matmul(a, b)
    assert found.shape == np.matmul(a, b).shape
    assert_rounded_once(found, np.matmul(a.astype("float64"), b.astype("float64")))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation):
    x, w, b = random(2, 3, 40), random(6, 40), random(6)
    with jax.enable_x64(True):
        exact = ACTIVATIONS[activation](x.astype("float64") @ w.T.astype("float64") + b)
    found = np.asarray(linear(x, w, b, activation))
    assert np.abs(found - exact).max() <= 2e-7 * np.abs(exact).max()


@pytest.mark.parametrize(
    "input, weight, bias",
    [
        ((7,), (3, 7), None),
        ((7,), (7,), ()),
        ((4, 7), (7,), (4,)),
        ((2, 4, 7), (3, 7), (4, 1)),
        ((2, 4, 7), (3, 7), (2, 1, 3)),
        ((0, 7), (3, 7), (3,)),
        ((4, 0), (3, 0), (3,)),
    ],
    ids=str,
)
def test_shapes_of_linear(input, weight, bias):
    x, w = random(*input), random(*weight)
    b = None if bias is None else np.asarray(random(*bias))
    found = linear(x, w, b, "relu")
    assert_rounded_once(found, np.maximum(x @ w.T + (0 if b is None else b), 0))


def compiled(function, *arguments):
    """The program of XLA, without its comments."""
    text = jax.jit(function).lower(*arguments).compile().as_text()
    return text[text.index("ENTRY") :] + "".join(re.findall(r"^%fused.*?^}", text, re.M | re.S))


#: Each reads a matrix in place, with these flags.
IN_PLACE = {
    "plain": (lambda a, b: matmul(a, b), (8, 4), (4, 6), "ff"),
    "weight": (lambda a, b: matmul(a, b.T), (8, 4), (6, 4), "ft"),
    "both": (lambda a, b: matmul(a.T, b.T), (4, 8), (6, 4), "tt"),
    "twice": (lambda a, b: matmul(a.T.T, b), (8, 4), (4, 6), "ff"),
    "cast": (lambda a, b: matmul(a, b.T.astype("float16")), (8, 4), (6, 4), "ft"),
    "batch": (lambda a, b: matmul(a, b.mT), (3, 8, 4), (3, 6, 4), "ft"),
    "shared": (lambda a, b: jax.vmap(matmul, (0, None))(a, b.T), (3, 8, 4), (6, 4), "ft"),
    "mapped": (
        lambda a, b: jax.vmap(lambda a, b: matmul(a, b.T))(a, b),
        (3, 8, 4),
        (3, 6, 4),
        "ft",
    ),
    "linear": (lambda a, b: linear(a, b, None, "relu"), (8, 4), (6, 4), "ft"),
    "of a": (
        lambda g, b: jax.vjp(lambda a: linear(a, b), jnp.ones((8, 4)))[1](g),
        (8, 6),
        (6, 4),
        None,
    ),
    "of b": (
        lambda a, g: jax.vjp(lambda b: linear(a, b), jnp.ones((6, 4)))[1](g),
        (8, 4),
        (8, 6),
        None,
    ),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_transposed_operands_are_not_copied(name):
    function, a, b, flags = IN_PLACE[name]
    dtype = "float16" if name == "cast" else "float32"
    a, b = jnp.ones(a, dtype), jnp.ones(b, "float32")
    text = compiled(function, a, b)
    assert "cutlass_api_gemm" in text
    # A transpose into column-major memory moves nothing.
    assert not re.search(r"\{(1,0|2,1,0)\} (transpose|copy|broadcast)\(", text), text
    if flags is not None:
        found = re.findall(r"[ab]_is_transposed = (\w)", text)
        assert "".join(found) == flags, text


def test_a_permuted_batch_is_no_transpose():
    """The call reads what XLA has permuted, or the matrices of another order would be read."""
    a, b = random(4, 3, 5), random(3, 5, 4)
    found = jax.jit(lambda a, b: matmul(a.transpose(1, 0, 2), b))(a, b)
    assert_rounded_once(found, a.transpose(1, 0, 2) @ b)
    cube = random(4, 4, 4)
    found = jax.jit(lambda x: matmul(x.transpose(2, 1, 0), x.transpose(1, 0, 2)))(cube)
    assert_rounded_once(found, cube.transpose(2, 1, 0) @ cube.transpose(1, 0, 2))


def test_rounding_to_tf32_follows_jax():
    a = jnp.ones((4, 4))

    def allows():
        return re.search(r"allows_tf32 = (\w+)", jax.jit(matmul).lower(a, a).as_text())[1]

    assert allows() == "true"
    for setting in ("highest", "float32"):
        with jax.default_matmul_precision(setting):
            assert allows() == "false"


def test_calls_of_several_threads():
    a = random(8, 16, 16)
    found = [None] * 8
    square = jax.jit(lambda x: linear(x, x, None, "relu"))

    def compute(at):
        for _ in range(10):
            found[at] = square(a[at])

    threads = [threading.Thread(target=compute, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at in range(8):
        assert_rounded_once(found[at], np.maximum(a[at] @ a[at].T, 0))


# ---- exports -------------------------------------------------------------------------------------


def exported(*shapes, **options):
    check = jax.export.DisabledSafetyCheck.custom_call(cutlass_api.jax.TARGET)
    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    layer = jax.jit(lambda x, w: linear(x, w, None, "relu"))
    return jax.export.export(layer, disabled_checks=[check], **options)(*shapes)


def test_export_for_two_platforms_and_any_number_of_rows():
    program = exported(jax.export.symbolic_shape("m, 4"), (6, 4), platforms=["cpu", "cuda"])
    x, w = random(5, 4), random(6, 4)
    assert_rounded_once(program.call(x, w), np.maximum(x @ w.T, 0))


def test_workspace_of_a_program_for_a_gpu():
    """It is a result of the call, of as many bytes as the kernel needs that ranks first."""
    shapes = (256, 32768), (512, 32768)
    text = exported(*shapes, platforms=["cuda"]).mlir_module()
    [found] = re.findall(r"custom_call @cutlass_api_gemm.*tensor<(\d+)xui8>", text)
    source = re.search(r'epilogue = "(.*?)"', text)[1]
    operands = [("float32", shapes[0]), ("float32", shapes[1][::-1])]
    needed = cutlass_api._core.xla_workspace(
        operands, [("float32", (256, 512))], (False, True), "float32", source, True, True
    )
    assert int(found) == needed
    assert "tensor<0xui8>" in exported(*shapes, platforms=["cpu"]).mlir_module()


# ---- errors --------------------------------------------------------------------------------------


def ones(*shape, dtype="float32"):
    return jnp.ones(shape, dtype)


ERRORS = {
    "K": (
        lambda: matmul(ones(2, 3), ones(4, 5)),
        ValueError,
        r"A has K = 3 \(shape \[2, 3\]\), but B has K = 4",
    ),
    "scalar": (lambda: matmul(ones(2, 3), ones()), ValueError, "B is a scalar; pass an array"),
    "batch": (
        lambda: matmul(ones(2, 3, 3), ones(4, 3, 3)),
        ValueError,
        r"A has batch dimensions \[2\] and B \[4\]",
    ),
    "list": (
        lambda: matmul(ones(2, 3), [[1.0]]),
        TypeError,
        "B is a builtins.list; pass a JAX or NumPy array",
    ),
    "complex": (
        lambda: matmul(ones(2, 2, dtype="complex64"), ones(2, 2)),
        TypeError,
        "^A: .*complex64.* supported: float64",
    ),
    "int4": (
        lambda: matmul(ones(2, 2), ones(2, 2, dtype="int4")),
        TypeError,
        "^B: .*int4.* supported: float64",
    ),
    "mixed": (
        lambda: matmul(ones(2, 2, dtype="float16"), ones(2, 2, dtype="bfloat16")),
        ValueError,
        "no kernel computes float16 @ bfloat16.* cast B to float16",
    ),
    "out_dtype": (
        lambda: matmul(ones(2, 2), ones(2, 2), out_dtype="int8"),
        ValueError,
        "into int8; pass an output in float32",
    ),
    "no dtype": (
        lambda: matmul(ones(2, 2), ones(2, 2), out_dtype="float33"),
        TypeError,
        "^out_dtype: 'float33' does not name",
    ),
    "accumulator": (
        lambda: matmul(ones(2, 2), ones(2, 2), accumulator_type="float16"),
        ValueError,
        "summed in float16.*pass accumulator_type as float32",
    ),
    "linear K": (
        lambda: linear(ones(2, 3), ones(4, 5)),
        ValueError,
        r"input has K = 3 .*weight has K = 5",
    ),
    "weight": (
        lambda: linear(ones(2, 3), ones(1, 4, 3)),
        ValueError,
        r"weight \[1, 4, 3\]; pass an input \(\*, K\) and a weight",
    ),
    "bias": (
        lambda: linear(ones(2, 3), ones(4, 3), ones(3)),
        ValueError,
        r"bias has shape \[3\], .* the output's shape \[2, 4\]",
    ),
    "wide bias": (
        lambda: linear(ones(2, 3), ones(4, 3), ones(5, 2, 4)),
        ValueError,
        r"bias has shape \[5, 2, 4\]",
    ),
    "activation": (
        lambda: linear(ones(2, 3), ones(4, 3), None, "glu"),
        ValueError,
        "activation is 'glu'; pass None or one of gelu",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_raised_while_jax_traces(name):
    call, kind, message = ERRORS[name]
    with pytest.raises(kind, match=message):
        jax.eval_shape(call)


def test_a_platform_without_kernels():
    with pytest.raises(NotImplementedError, match="no kernels for tpu; compute on cpu"):
        jax.export.export(jax.jit(matmul), platforms=["tpu"])(ones(2, 2), ones(2, 2))


def test_cutlass_api_matmul_names_the_module_for_jax():
    x, host = ones(3, 3), np.ones((3, 3), np.float32)
    for arguments in ((x, x), (x[0], x), (ones(2, 2, 3, 3), x)):
        with pytest.raises(TypeError, match=r"immutable; call cutlass_api\.jax\.matmul"):
            cutlass_api.matmul(*arguments)
    for a in (x, host):
        with pytest.raises(ValueError, match=r"^out is read-only.*cutlass_api\.jax\.matmul"):
            cutlass_api.matmul(a, a, x)
    calls = [
        lambda x: cutlass_api.matmul(x, x),
        lambda x: cutlass_api.matmul(host, x),
        lambda x: cutlass_api.matmul(x, host),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"traced by JAX.*call cutlass_api\.jax\.matmul"):
            jax.jit(call)(x)
    assert (cutlass_api.matmul(x, x, np.zeros_like(host)) == 3).all()
