"""Products as primitives of JAX: types, derivatives, batches, and the custom call of XLA."""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from cutlass_api import _core

#: The name of the custom call in programs of XLA, which ``jax.export`` needs.
TARGET = "cutlass_api_gemm"
#: What the kernels' rounding of float32 to tf32 depends on: settings of
#: ``jax.default_matmul_precision`` by which XLA rounds on GPUs, too.
ROUNDING = (None, "default", "fastest", "bfloat16", "high", "tensorfloat32")

_config: Any = jax.config

for _platform, _handler in _core.xla_handlers().items():
    # The stage `initialize` compiles: `execute` may be captured into a command buffer.
    _stages = {"execute": _handler}
    if _platform != "cpu":
        _stages["initialize"] = _handler
    jax.ffi.register_ffi_target(TARGET, _stages, platform=_platform)

#: A @ B of (M, K) or (L, M, K) and (K, N) or (L, K, N).
product_p: Any = Primitive("cutlass_api_product")
#: The same with an epilogue, whose operands follow B. Returns all outputs of the epilogue.
fused_p: Any = Primitive("cutlass_api_fused")
fused_p.multiple_results = True


def product(a: Array, b: Array, *, of_weight: bool = False, **options: Any) -> Array:
    """A @ B, of ranks 2 or 3. The batches of operands of rank 3 agree. ``of_weight``: B is the
    transpose of a weight, whose gradient is computed as the weight is stored."""
    options = _options(a, b) | options | {"of_weight": of_weight}
    found: Array = product_p.bind(a, b, **options)
    return found


def fused(a: Array, b: Array, *operands: Array, epilogue: str, outputs: int) -> list[Array]:
    """The outputs of an epilogue of A @ B. Operands broadcast to the output."""
    options = _options(a, b)
    found: list[Array] = fused_p.bind(
        a, b, *operands, epilogue=epilogue, outputs=outputs, **options
    )
    return found


def _options(a: Array, b: Array) -> dict[str, Any]:
    out, accumulator = _core.product_dtypes(a.dtype, b.dtype)
    return {
        "out_dtype": str(out),
        "accumulator_type": str(accumulator),
        "allows_tf32": _config.jax_default_matmul_precision in ROUNDING,
    }


# ---- types ---------------------------------------------------------------------------------------


def _workspace(
    operands: Sequence[Any],
    outputs: Sequence[Any],
    transposed: tuple[bool, bool] = (False, False),
    is_cuda: bool = False,
    *,
    accumulator_type: str,
    allows_tf32: bool,
    epilogue: str = "",
    **_: Any,
) -> int:
    """Checks a product, and returns the bytes of workspace that its kernel needs. Shapes of
    ``jax.export`` that are not known yet are checked by the call."""
    avals = [*operands, *outputs]
    if not all(isinstance(extent, int) for aval in avals for extent in aval.shape):
        return 0
    described = [(aval.dtype.name, aval.shape) for aval in avals]
    count = len(operands)
    return _core.xla_workspace(
        described[:count],
        described[count:],
        transposed,
        accumulator_type,
        epilogue,
        allows_tf32,
        is_cuda,
    )


def _output(a: Any, b: Any, out_dtype: str) -> ShapedArray:
    batch = a.shape[:-2] or b.shape[:-2]
    return ShapedArray((*batch, a.shape[-2], b.shape[-1]), jnp.dtype(out_dtype))


def _product_type(a: Any, b: Any, **options: Any) -> ShapedArray:
    out = _output(a, b, options["out_dtype"])
    _workspace([a, b], [out], **options)
    return out


def _fused_types(a: Any, b: Any, *operands: Any, outputs: int, **options: Any) -> Any:
    outs = [_output(a, b, options["out_dtype"])] * outputs
    _workspace([a, b, *operands], outs, **options)
    return outs


product_p.def_abstract_eval(_product_type)
fused_p.def_abstract_eval(_fused_types)

# ---- calls ---------------------------------------------------------------------------------------


def _is_transposed(value: Any) -> bool:
    """Whether a matrix of a program, or a batch, is the transpose of another one, whose memory the
    call can read. The answer decides where XLA copies, not what is computed."""
    is_transposed = False
    while not isinstance(value.owner, mlir.ir.Block):
        operation: Any = value.owner.opview
        if operation.OPERATION_NAME == "stablehlo.transpose":
            *_, rows, columns = operation.permutation
            is_transposed ^= rows > columns
        elif operation.OPERATION_NAME != "stablehlo.convert":
            break
        value = operation.operands[0]
    return is_transposed


def _lower(
    ctx: Any,
    *operands: Any,
    out_dtype: str,
    epilogue: str = "",
    outputs: int = 1,
    of_weight: bool = False,
    **options: Any,
) -> Any:
    platforms = {*(ctx.platforms or ctx.module_context.platforms)}
    if others := platforms - {"cpu", "cuda"}:
        raise NotImplementedError(
            f"cutlass_api.jax has no kernels for {', '.join(sorted(others))}; compute on cpu or "
            "cuda, or call jax.numpy.matmul"
        )
    transposed = (_is_transposed(operands[0]), _is_transposed(operands[1]))
    avals, is_cuda = (ctx.avals_in, ctx.avals_out), "cuda" in platforms
    workspace = _workspace(*avals, transposed, is_cuda, epilogue=epilogue, **options)
    # XLA keeps results while a command buffer lives, but not memory that a call allocates.
    outs = [*ctx.avals_out, ShapedArray((workspace,), jnp.dtype("uint8"))]
    # From minor to major, as XLA counts.
    layouts = [[*reversed(range(aval.ndim))] for aval in ctx.avals_in]
    for layout, swaps in zip(layouts, transposed, strict=False):
        layout[:2] = layout[1::-1] if swaps else layout[:2]
    lower = jax.ffi.ffi_lowering(TARGET, operand_layouts=layouts)
    a_is_transposed, b_is_transposed = transposed
    results = lower(
        ctx.replace(avals_out=outs),
        *operands,
        a_is_transposed=a_is_transposed,
        b_is_transposed=b_is_transposed,
        epilogue=epilogue,
        **options,
    )
    return [*results][:-1]


def _run(primitive: Any, *operands: Array, **options: Any) -> Any:
    return primitive.bind(*operands, **options)


_STATIC = ("out_dtype", "accumulator_type", "allows_tf32", "epilogue", "outputs", "of_weight")
_compiled = jax.jit(_run, static_argnums=0, static_argnames=_STATIC)

for _primitive in (product_p, fused_p):
    _primitive.def_impl(partial(_compiled, _primitive))
    # Cached rules do not see what precedes the call.
    mlir.register_lowering(_primitive, _lower, cacheable=False)


# ---- derivatives ---------------------------------------------------------------------------------


def _swap(matrix: Array) -> Array:
    return jnp.swapaxes(matrix, -1, -2)


def _alike(ct: Array, factor: Array) -> tuple[Array, Array]:
    """The gradient of a product and one of its factors, in one dtype: the factor's, if that has at
    least 16 bits."""
    is_wide = jnp.issubdtype(factor.dtype, jnp.floating) and factor.dtype.itemsize > 1
    return (ct.astype(factor.dtype), factor) if is_wide else (ct, factor.astype(ct.dtype))


def _gradient(a: Array, b: Array, aval: Any) -> Array:
    """A @ B as the gradient of a factor, summed over the batch if the factor has none."""
    if aval.ndim == 2 and max(a.ndim, b.ndim) == 3:
        return product(a, b, out_dtype=_core.product_dtypes(a.dtype, b.dtype)[1].name).sum(0)
    return product(a, b)


def _gradient_of_a(ct: Array, a: Any, b: Array, **_: Any) -> Array:
    ct, b = _alike(ct, b)
    return _gradient(ct, _swap(b), a.aval).astype(a.aval.dtype)


def _gradient_of_b(ct: Array, a: Array, b: Any, *, of_weight: bool, **_: Any) -> Array:
    ct, a = _alike(ct, a)
    if b.aval.ndim == 2 and a.ndim == 3:
        # The sum over the batch is one over all rows.
        a, ct = (each.reshape(prod(each.shape[:-1]), each.shape[-1]) for each in (a, ct))
    if of_weight:
        return _swap(_gradient(_swap(ct), a, b.aval)).astype(b.aval.dtype)
    return _gradient(_swap(a), ct, b.aval).astype(b.aval.dtype)


_ad: Any = ad
_ad.defbilinear(product_p, _gradient_of_a, _gradient_of_b)


# ---- batches -------------------------------------------------------------------------------------


def _batch(primitive: Any, operands: Any, dims: Any, **options: Any) -> Any:
    """A batch of products. A factor that is not mapped is read in place by all of them."""
    is_mapped = [dim is not None for dim in dims]
    size = next(x.shape[at] for x, at in zip(operands, dims, strict=True) if at is not None)
    if not any(is_mapped[:2]):
        # Operands of the epilogue alone are mapped.
        operands = [jnp.broadcast_to(operands[0], (size, *operands[0].shape)), *operands[1:]]
        is_mapped[0], dims = True, [0, *dims[1:]]
    a, b, *others = (
        x if at is None else jnp.moveaxis(x, at, 0) for x, at in zip(operands, dims, strict=True)
    )
    has_batch = any(x.ndim - mapped == 3 for x, mapped in zip((a, b), is_mapped, strict=False))
    are_rows = not any(is_mapped[2:]) and all(x.ndim < 2 or x.shape[-2] == 1 for x in others)
    if not is_mapped[1] and are_rows:
        # All rows of the examples as those of one product.
        of_a = jnp.moveaxis(a, 0, -3)
        rows = of_a.reshape(*of_a.shape[:-3], size * of_a.shape[-2], of_a.shape[-1])
        outs = _bind(primitive, rows, b, *others, **options)
        outs = [x.reshape(*x.shape[:-2], size, a.shape[-2], x.shape[-1]) for x in outs]
        return _results(primitive, outs, outs[0].ndim - 3)
    if has_batch:
        batch = next(
            x.shape[-3]
            for x, mapped in zip((a, b), is_mapped, strict=False)
            if x.ndim - mapped == 3
        )
        flat = partial(_flat, size=size, batch=batch)
        a, b, *others = map(flat, (a, b, *others), is_mapped)
    else:
        # Operands of the epilogue broadcast from the right.
        others = [
            x.reshape(size, *[1] * (3 - x.ndim), *x.shape[1:]) if mapped else x
            for x, mapped in zip(others, is_mapped[2:], strict=True)
        ]
    outs = _bind(primitive, a, b, *others, **options)
    if has_batch:
        outs = [x.reshape(size, batch, *x.shape[1:]) for x in outs]
    return _results(primitive, outs, 0)


def _flat(x: Array, is_mapped: bool, size: int, batch: int) -> Array:
    """An operand of a mapped batch of products, with both batch dimensions as one."""
    if x.ndim - is_mapped < 3:
        if not is_mapped:
            return x
        x = x.reshape(size, 1, *[1] * (3 - x.ndim), *x.shape[1:])
    elif not is_mapped:
        x = x[None]
    return jnp.broadcast_to(x, (size, batch, *x.shape[2:])).reshape(size * batch, *x.shape[2:])


def _bind(primitive: Any, *operands: Array, **options: Any) -> list[Array]:
    outs = primitive.bind(*operands, **options)
    return outs if primitive.multiple_results else [outs]


def _results(primitive: Any, outs: list[Array], dim: int) -> Any:
    return (outs, [dim] * len(outs)) if primitive.multiple_results else (outs[0], dim)


for _primitive in (product_p, fused_p):
    batching.primitive_batchers[_primitive] = partial(_batch, _primitive)
