"""Products of JAX arrays, which ``jit``, ``vmap`` and ``grad`` transform::

    import jax
    import cutlass_api.jax

    @jax.jit
    def layer(x, weight, bias):
        return cutlass_api.jax.linear(x, weight, bias, "gelu")

On a GPU, the kernel that ranks first for the shapes, layouts and dtypes runs on XLA's stream. On
the CPU, the reference backend computes.
"""

from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.typing import ArrayLike

from cutlass_api import _core
from cutlass_api.fusion._sources import (
    GATE_DERIVATIVES,
    PREACTIVATION_DERIVATIVES,
    SPELLINGS,
    known_activation,
)
from cutlass_api.fusion._sources import linear as linear_source
from cutlass_api.jax._product import TARGET, fused, product


def matmul(
    A: ArrayLike,
    B: ArrayLike,
    *,
    out_dtype: Any = None,
    accumulator_type: Any = None,
) -> jax.Array:
    """A @ B.

    A has shape (*, M, K), B (*, K, N); batch dimensions broadcast. A vector A (K,) counts as a row,
    B (K,) as a column, and the output lacks that dimension. dtypes: as of ``cutlass_api.matmul``,
    float64 with ``jax_enable_x64``. ``out_dtype``: by default A's and B's common dtype (int32 for
    integers, bfloat16 for float8). ``accumulator_type``: None means int32 for integers, float64 for
    float64, else float32.

    Under ``jit``, a transposed operand such as ``w.T`` is read in place. Of float32 operands,
    kernels may round to tf32 unless ``jax.default_matmul_precision`` is "highest" or "float32", as
    XLA's may.

    Raises TypeError for an operand that is no array, and for a dtype that no kernel computes with;
    ValueError if shapes do not match or no kernel serves the dtypes. Both are raised while JAX
    traces.
    """
    a, b = _array("A", A), _array("B", B)
    for name, x in (("A", a), ("B", b)):
        if x.ndim == 0:
            raise ValueError(f"{name} is a scalar; pass an array of rank 1 or more")
    depth = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != depth:
        raise ValueError(
            f"A has K = {a.shape[-1]} (shape {[*a.shape]}), but B has K = {depth} "
            f"(shape {[*b.shape]})"
        )
    try:
        np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"A has batch dimensions {[*a.shape[:-2]]} and B {[*b.shape[:-2]]}; pass dimensions "
            "that broadcast"
        ) from None
    names = {"out_dtype": out_dtype, "accumulator_type": accumulator_type}
    options = {name: _dtype(name, of) for name, of in names.items() if of is not None}
    found: jax.Array = _matmul(a, b, **options)
    return found


def linear(
    input: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    activation: str | None = None,
) -> jax.Array:
    """activation(input @ weight.T + bias), in one launch.

    ``input`` has shape (*, K), ``weight`` (N, K), or (K,) for an output (*). ``bias`` broadcasts to
    the output. ``activation`` is a name of ``cutlass_api.fusion.activation``, also as PyTorch
    and transformers spell it, or None. dtypes and errors: as of :func:`matmul`.
    """
    x, w = _array("input", input), _array("weight", weight)
    if x.ndim == 0 or w.ndim not in (1, 2):
        raise ValueError(
            f"input has shape {[*x.shape]} and weight {[*w.shape]}; pass an input (*, K) and a "
            "weight (N, K) or (K,)"
        )
    if x.shape[-1] != w.shape[-1]:
        raise ValueError(
            f"input has K = {x.shape[-1]} (shape {[*x.shape]}), but weight has K = {w.shape[-1]} "
            f"(shape {[*w.shape]})"
        )
    activation = known_activation("linear", SPELLINGS.get(activation or "", activation))
    shape = (*x.shape[:-1], *w.shape[:-1])
    added = None if bias is None else _array("bias", bias)
    if added is not None and not _broadcasts(added.shape, shape):
        raise ValueError(
            f"bias has shape {[*added.shape]}, which does not broadcast to the output's shape "
            f"{[*shape]}"
        )
    found: jax.Array = _linear(x, w, added, activation)
    return found


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _array(name: str, value: Any) -> jax.Array:
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)):
        kind = type(value)
        raise TypeError(
            f"{name} is a {kind.__module__}.{kind.__qualname__}; pass a JAX or NumPy array (torch "
            "tensors: cutlass_api.matmul, cutlass_api.linear)"
        )
    array = jnp.asarray(value)
    _dtype(name, array.dtype)
    return array


def _dtype(name: str, dtype: Any) -> str:
    """The name of a dtype. Raises TypeError, with the operand's or argument's name."""
    try:
        return str(_core.product_dtypes(dtype, dtype) and jnp.dtype(dtype).name)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None


# ---- products ------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("out_dtype", "accumulator_type"), inline=True)
def _matmul(a: jax.Array, b: jax.Array, **options: Any) -> jax.Array:
    is_row, is_column = a.ndim == 1, b.ndim == 1
    a, b = a[None] if is_row else a, b[:, None] if is_column else b
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, *[a.shape[-2]] * (not is_row), *[b.shape[-1]] * (not is_column))
    if prod(b.shape[:-2]) == 1:
        # One matrix B: all rows of A are those of one product.
        a, b = _rows_of(a), b.reshape(b.shape[-2:])
    else:
        count = prod(batch)
        is_one = prod(a.shape[:-2]) == 1
        a = a.reshape(a.shape[-2:]) if is_one else _stack(a, batch, count)
        b = _stack(b, batch, count)
    return product(a, b, **options).reshape(shape)


def _rows_of(x: jax.Array) -> jax.Array:
    """All rows of an array as a matrix."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


def _stack(x: jax.Array, batch: tuple[int, ...], count: int) -> jax.Array:
    """Matrices as a batch of one dimension."""
    matrix = x.shape[-2:]
    return jnp.broadcast_to(x, (*batch, *matrix)).reshape(count, *matrix)


@partial(jax.jit, static_argnames="activation", inline=True)
def _linear(
    input: jax.Array, weight: jax.Array, bias: jax.Array | None, activation: str
) -> jax.Array:
    shape = (*input.shape[:-1], *weight.shape[:-1])
    if weight.ndim == 1:
        weight = weight[None]
        bias = bias[..., None] if bias is not None and bias.ndim > 0 else bias
    rows = _rows_of(input)
    if bias is not None and prod(bias.shape[:-1]) == 1:
        bias = bias.reshape(bias.shape[-1:])
    elif bias is not None:
        full = (*input.shape[:-1], weight.shape[0])
        bias = _rows_of(jnp.broadcast_to(bias, full))
    operands = () if bias is None else (bias,)
    return _layer(activation, False, rows, weight, *operands)[0].reshape(shape)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _layer(activation: str, stores: bool, input: Any, weight: Any, *bias: Any) -> list[jax.Array]:
    """``linear`` of a matrix, and the argument of the activation if ``stores``."""
    if activation == "identity" and not bias:
        return [product(input, weight.T, of_weight=True)]
    source = linear_source(activation, bool(bias), returns_preactivation=stores)
    return fused(input, weight.T, *bias, epilogue=source, outputs=1 + stores)


@partial(_layer.defjvp, symbolic_zeros=True)
def _tangents_of_layer(activation: str, stores: bool, primals: Any, tangents: Any) -> Any:
    reads_argument = activation in PREACTIVATION_DERIVATIVES
    outs = _layer(activation, stores or reads_argument, *primals)
    (input, weight, *_), (of_input, of_weight, *of_bias) = primals, tangents
    addends = [jnp.broadcast_to(of, outs[0].shape) for of in of_bias if not _is_zero(of)]
    if not _is_zero(of_input):
        addends.append(product(of_input, weight.T, of_weight=True))
    if not _is_zero(of_weight):
        addends.append(product(input, of_weight.T, of_weight=True))
    if not addends:
        zeros = [SymbolicZero(jax.typeof(out).to_tangent_aval()) for out in outs]
        return outs[: 1 + stores], zeros[: 1 + stores]
    of_argument = of_out = sum(addends[1:], addends[0]).astype(outs[0].dtype)
    if activation != "identity":
        # The result has the sign of the argument where that is not stored.
        factor = _derivative(activation, outs[0], outs[-1])
        of_out = (of_argument * factor).astype(of_argument.dtype)
    return outs[: 1 + stores], [of_out, of_argument][: 1 + stores]


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


def _derivative(activation: str, value: jax.Array, gate: jax.Array) -> jax.Array:
    """The derivative of an activation, in float32 or wider, from its result and its argument."""
    dtype = jnp.promote_types(value.dtype, jnp.float32)
    functions = {name: getattr(jnp, name) for name in ("where", "exp", "square", "tanh")}
    functions |= {"erf": jax.lax.erf, "sigmoid": jax.nn.sigmoid}
    values = {"value": value.astype(dtype), "gate": gate.astype(dtype)}
    # An expression of this package's own.
    found: jax.Array = eval(GATE_DERIVATIVES[activation], functions | values)
    return found


__all__ = ["TARGET", "linear", "matmul"]
