"""`cutlass_api.jax` on a GPU, where JAX has one."""

import re

import cutlass_api
import numpy as np
import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def jax(monkeypatch):
    # By default, JAX allocates three quarters of the memory with its first array.
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip(f"JAX runs on {jax.default_backend()} here")
    return jax


def random(jax, *shape, dtype="float16"):
    return jax.random.normal(jax.random.key(len(shape)), shape).astype(dtype)


def assert_close(found, expected, dtype="float16"):
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-3}[dtype]


#: M, N and K: of most families, packed operands, and a grid split, which needs workspace.
SHAPES = [(128, 128, 128), (16, 11008, 4096), (1, 4096, 4096), (70, 90, 41), (256, 512, 32768)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_products(jax, shape, dtype):
    m, n, k = shape
    x, w = random(jax, m, k, dtype=dtype), random(jax, n, k, dtype=dtype)
    expected = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
    product = jax.jit(lambda x, w: cutlass_api.jax.matmul(x, w.T))
    text = product.lower(x, w).compile().as_text()
    assert not re.search(r"\{1,0\} (transpose|copy)\(", text)
    for _ in range(3):
        assert_close(product(x, w), expected, dtype)
    assert_close(cutlass_api.jax.linear(x, w, None, "relu"), np.maximum(expected, 0), dtype)


def test_a_program_of_many_calls_is_captured_and_replayed(jax):
    """XLA captures five operations and more into a command buffer."""
    x, w = random(jax, 16, 512), random(jax, 512, 512) / 16
    shared = random(jax, 4096, 512) / 64

    @jax.jit
    def layers(x, w, shared):
        for _ in range(8):
            x = cutlass_api.jax.linear(x, w, None, "tanh")
        return cutlass_api.jax.linear(x, shared)

    expected = np.asarray(x, np.float64)
    for _ in range(8):
        expected = np.tanh(expected @ np.asarray(w, np.float64).T)
    expected = expected @ np.asarray(shared, np.float64).T
    for _ in range(5):
        assert_close(layers(x, w, shared), expected)
    # Other addresses.
    assert_close(layers(x + 0, w + 0, shared + 0), expected)


def test_gradients_and_batches(jax):
    x, w, b = random(jax, 3, 32, 64), random(jax, 48, 64), random(jax, 48)

    def loss(layer):
        batch = jax.vmap(layer, (0, None, None))
        return jax.jit(jax.grad(lambda *a: batch(*a).astype("float32").sum(), (0, 1, 2)))

    def reference(x, w, b):
        return jax.nn.silu(x @ w.T + b)

    found = loss(lambda *a: cutlass_api.jax.linear(*a, "silu"))(x, w, b)
    wide = [each.astype("float32") for each in (x, w, b)]
    with jax.default_matmul_precision("highest"):
        for ours, theirs in zip(found, loss(reference)(*wide), strict=True):
            assert_close(ours, theirs, "bfloat16")


def test_errors_of_a_gpu_are_raised_while_jax_lowers(jax):
    a = jax.numpy.ones((4, 4), "float16")
    with pytest.raises(ValueError, match="no kernel computes"):
        cutlass_api.jax.matmul(a, a.astype("float32"))
