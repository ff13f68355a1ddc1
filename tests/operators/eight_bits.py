"""Products of 8-bit operands with scales, compared with float64, and quantization."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import cutlass_api
import torch
from cutlass_api import quantize
from cutlass_api.ops import OPS
from support.eight_bits import of_blocks, spread
from torch import Tensor

from operators.case import DERIVATIVES, Case, operator

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
F32, F16, BF16, I8, U8 = torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8
FLOAT8 = (E4M3, E5M2)


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Exact values as an output of this dtype: integers saturate."""
    if dtype in (I8, U8):
        return x.round().clamp(torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    return x.trunc() if dtype is torch.int32 else x


def rounded(
    exact: Callable[..., Tensor], dtype: Callable[..., torch.dtype]
) -> Callable[..., Tensor]:
    """An exact function with results in the dtype that a function of the arguments returns."""
    return lambda *args, **options: exact(*args, **options).to(dtype(*args, **options))


# ---- scaled_mm -----------------------------------------------------------------------------------


def scaled(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    left = a.double() * each(scale_a, a.shape[-2:])
    right = b.double() * each(scale_b, b.shape[-2:])
    out = left @ right + (0 if bias is None else bias.double())
    if out_dtype in FLOAT8 and scale_result is not None:
        out = out * scale_result
    return out


def each(scale: Tensor, shape: Any) -> Tensor:
    """The scale of each element."""
    return scale.double().reshape(()) if scale.numel() == 1 else of_blocks(scale.double(), shape)


def scaled_dtype(*args: Any) -> torch.dtype:
    return args[6]


def scaled_v2(a: Tensor, b: Tensor, of_a: Any, _a: Any, _1: Any, of_b: Any, *rest: Any) -> Tensor:
    """torch's operator takes lists of scales and the kinds of each."""
    bias, dtype = (*rest[2:], None, None)[:2]
    return cutlass_api.scaled_mm(a, b, of_a[0], of_b[0], dtype, bias)


def scaled_v2_exact(a: Tensor, b: Tensor, of_a: Any, _a: Any, _1: Any, of_b: Any, *rest: Any):
    return scaled(a, b, of_a[0], of_b[0], None, None, BF16)


def scaled_samples(t: Callable[..., Tensor]) -> Any:
    def s(*shape: int) -> Tensor:
        return t(*shape, dtype=F32, low=0, high=2)

    a, b = t(6, 256), t(256, 5)
    yield a, b, s(6, 1), s(1, 5), t(5, dtype=F32), None, F32
    yield a, b, s(6, 2), s(2, 5), None, None, BF16
    yield a, b, s(1, 2), s(2, 1), t(5, dtype=BF16), None, F32, True
    yield t(6, 300), t(300, 5), s(6, 3), s(3, 5), t(5, dtype=F32), None, F32
    yield a, b, s(6, 2), s(1, 5), None, None, F32
    yield a, b, s(6, 1), s(2, 5), None, None, F32
    yield a, b, s(1), s(1), None, s(1) / 64, E5M2
    yield t(2, 3, 4), t(2, 4, 3), s(2, 3, 1), s(1), None, None, F32
    yield t(3, 4), t(4, 2, dtype=E5M2), s(3, 1), s(1, 2), t(2, dtype=F32), s(1), F16
    yield t(3, 39), t(39, 2, dtype=E4M3), s(3, 1), s(), None, s(1) / 64, E4M3, True
    yield t(1, 3, 4), t(2, 4, 3), s(3, 1), s(2, 1, 3), t(3, dtype=F32), None, F32
    yield t(3, 4), t(2, 4, 3), s(2, 1, 1), s(1, 1, 3), None, None, F32


# ---- integers ------------------------------------------------------------------------------------


def int8_exact(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor | None = None,
    scale_b: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    zero_point: Tensor | None = None,
) -> Tensor:
    out = a.double() @ b.double()
    for factor in (scale_a, scale_b):
        out = out if factor is None else out * factor.double()
    out = out if bias is None else out + bias.double()
    zero = 0 if zero_point is None else zero_point.double()
    return stored(out.round() + zero, out_dtype) if out_dtype in (I8, U8) else out


def int8_dtype(a: Tensor, b: Tensor, scale_a: Any = None, scale_b: Any = None, *rest: Any, **named):
    has_scales = scale_a is not None or scale_b is not None
    given = rest[1] if len(rest) > 1 else named.get("out_dtype")
    return given or (BF16 if has_scales else torch.int32)


def int8_samples(t: Callable[..., Tensor]) -> Any:
    def power(*shape: int) -> Tensor:
        """Products with powers of two are exact."""
        return 2.0 ** t(*shape, dtype=torch.int32).float()

    a, b = t(4, 7), t(7, 3)
    yield a, b, power(4, 1), power(1, 3)
    yield a, b, power(1), None, t(3, dtype=F32).round(), F32
    yield a, b, None, power(1), t(3, dtype=BF16), F16
    yield a, t(7, 3, dtype=U8, low=0), power(1, 1), power(1, 3), t(3, dtype=torch.int32), F32
    yield t(2, 4, 7), t(7, 3), power(2, 4, 1)
    yield a, t(2, 7, 3), power(2, 1, 1), power(2, 1, 3), t(3, dtype=F32).round(), F32


def int8_output_samples(t: Callable[..., Tensor]) -> Any:
    quarter = torch.full((), 0.25, device=t().device)
    yield t(4, 7), t(7, 3), quarter, None, None, I8, t(3, dtype=I8)
    yield t(4, 7), t(7, 3), quarter, quarter, None, U8
    yield t(2, 4, 7), t(7, 3)
    yield t(4, 7, dtype=U8, low=0), t(7, 3), None, None, t(3, dtype=torch.int32)


def mixed_exact(
    a: Tensor, b: Tensor, scale: Tensor | None = None, out_dtype: Any = None, zero: Any = None
) -> Tensor:
    """The scale of columns, rows or groups of K. float64 operands may hold what was integers."""
    is_vector = scale is None or scale.dim() < 2 or 1 in scale.shape[:1]
    if is_vector or (scale.shape[1] == 1 and b.shape[-1] > 1):
        factor = 1 if scale is None else scale.double()
        return a.double() @ (b.double() - (0 if zero is None else zero.double())) * factor
    weight = b.double()
    if zero is not None:
        weight = weight - spread(zero.expand(scale.shape), b.shape[0] // len(scale), 1, b.shape)
    return a.double() @ (weight * spread(scale, b.shape[0] // len(scale), 1, b.shape))


def mixed_dtype(a: Tensor, b: Tensor, scale: Any = None, out_dtype: Any = None, zero: Any = None):
    if torch.is_autocast_enabled(a.device.type):
        return out_dtype or torch.get_autocast_dtype(a.device.type)
    return out_dtype or (a.dtype if a.is_floating_point() else b.dtype)


def mixed_samples(t: Callable[..., Tensor]) -> Any:
    yield t(4, 7), t(7, 3, dtype=I8)
    yield t(4, 7, dtype=U8, low=0), t(7, 3), t(3, dtype=F32)
    yield t(4, 7), t(7, 3, dtype=U8, low=0), t(1, 3), F32
    yield t(4, 7), t(7, 3, dtype=I8), t(4, 1, dtype=F32)
    yield t(2, 4, 7), t(7, 3, dtype=I8), t(1, dtype=BF16)
    yield t(4, 39), t(39, 3, dtype=I8), t(dtype=F16), F32


def mixed_group_samples(t: Callable[..., Tensor]) -> Any:
    yield t(4, 64), t(64, 3, dtype=I8), t(2, 3, dtype=F32)
    yield t(4, 64), t(64, 3, dtype=U8, low=0), t(4, 3), None, t(4, 3, dtype=I8)
    yield t(2, 64), t(64, 1, dtype=I8), t(2, 1, dtype=F32)
    yield t(3, 8), t(8, 3, dtype=I8), t(3, dtype=F32), F32, t(3, dtype=I8)


def of_float_operand(tensors: Sequence[Tensor]) -> list[int]:
    return [0] if tensors[0].is_floating_point() else [1]


# ---- groups --------------------------------------------------------------------------------------


def scaled_groups(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor, *rest: Any
) -> Tensor:
    if b.dim() == 2:
        return scaled_groups_along_k(a, b, scale_a, scale_b, offs)
    left = a.double() * each(scale_a[:, None] if scale_a.dim() == 1 else scale_a, a.shape)
    scale_b = scale_b[:, None] if scale_b.dim() == 2 else scale_b
    products, start = [], 0
    for group, end in enumerate(offs.tolist()):
        scale = scale_b[group] if scale_b.numel() > 1 else scale_b
        right = b[group].double() * each(scale, b.shape[1:])
        products.append(left[start:end] @ right)
        start = end
    return torch.cat(products)


def scaled_groups_along_k(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, offs: Tensor
) -> Tensor:
    """With scales of groups, of three dimensions, or of blocks, of two."""
    left, right, of_groups = a.double(), b.double(), 1.0
    if scale_a.dim() == 2:
        left, right = left * each(scale_a, a.shape), right * each(scale_b, b.shape)
    else:
        of_groups = scale_a.double() * scale_b.double()
    spans = pairwise([0, *offs.tolist()])
    return torch.stack([left[:, start:end] @ right[start:end] for start, end in spans]) * of_groups


def scaled_group_samples(t: Callable[..., Tensor]) -> Any:
    def s(*shape: int) -> Tensor:
        return t(*shape, dtype=F32, low=0, high=2)

    ends = torch.tensor([2, 2, 6], dtype=torch.int32, device=t().device)
    yield t(6, 4), t(3, 4, 5), s(6, 1), s(3, 1, 5), ends, F32
    yield t(6, 256), t(3, 256, 3), s(6, 2), s(3, 2, 3), ends, F32
    yield t(6, 4), t(3, 4, 5), s(1), s(3, 1, 1), ends, F32, True
    for of_a, of_b in (((), ()), ((6,), (3,)), ((1, 2), (3, 2, 1)), ((6, 1), (3, 5))):
        yield t(6, 256), t(3, 256, 5), s(*of_a), s(*of_b), ends, F32
    yield t(4, 6), t(6, 5), s(3, 4, 1), s(3, 1, 5), ends, F32
    yield t(4, 256), t(256, 5), s(4, 2), s(2, 5), 40 * ends, F32


# ---- quantization --------------------------------------------------------------------------------


def numbers(x: Tensor, function: str, **options: Any) -> list[Tensor]:
    """What the results of a function of ``cutlass_api.quantize`` hold, in float32."""
    return [each.float() for each in getattr(quantize, function)(x, **options)]


def exact_numbers(x: Tensor, function: str, block: Any = None) -> list[Tensor]:
    """One scale for all elements, or for each row, column or block."""
    rows, columns = x.shape
    extents = {"per_tensor": x.shape, "per_row": (1, columns), "per_column": (rows, 1)}
    height, width = extents.get(function, block)
    padded = torch.nn.functional.pad(x.double(), (0, -columns % width, 0, -rows % height))
    tiles = padded.unflatten(1, (-1, width)).unflatten(0, (-1, height))
    scales = (tiles.abs().amax((1, 3)) / 448).clamp(min=2.0**-126)
    factors = 1 / scales.float()
    values = x.float() * spread(factors, height, width, x.shape).float()
    shape = () if function == "per_tensor" else scales.shape
    return [values.to(E4M3).float(), scales.view(shape).float()]


def quantize_samples(t: Callable[..., Tensor]) -> Any:
    for function in ("per_tensor", "per_row", "per_column"):
        yield t(5, 8), function
    yield t(3, 130), "per_block", {"block": (1, 128)}
    yield t(130, 3), "per_block", {"block": (128, 128)}


CASES = (
    Case(
        name="_int_mm",
        ours=cutlass_api.int8_mm,
        theirs=torch._int_mm,
        wide=int8_exact,
        into=OPS.int_mm.out,
        dtypes=[I8],
        own=lambda t: [(t(24, 16), t(16, 8)), (t(32, 8), t(8, 24)), (t(3, 4), t(4, 2))],
        lacks=DERIVATIVES,
        skips=["vmap(vmap)"],
    ),
    Case(
        name="int8_mm",
        ours=cutlass_api.int8_mm,
        theirs=rounded(int8_exact, int8_dtype),
        wide=int8_exact,
        dtypes=[I8],
        own=int8_samples,
        refuses=DERIVATIVES,
        lacks=["out="],
    ),
    Case(
        name="int8_mm, integer output",
        ours=cutlass_api.int8_mm,
        theirs=rounded(int8_exact, int8_dtype),
        wide=int8_exact,
        dtypes=[I8],
        own=int8_output_samples,
        leaves=lambda tensors: [],
        lacks=(*DERIVATIVES, "out="),
        skips=["vmap(vmap)"],
    ),
    Case(
        name="mixed_mm",
        ours=cutlass_api.mixed_mm,
        theirs=rounded(mixed_exact, mixed_dtype),
        wide=mixed_exact,
        dtypes=[BF16, F16],
        own=mixed_samples,
        leaves=of_float_operand,
        lacks=["out="],
    ),
    Case(
        name="mixed_mm, groups",
        ours=cutlass_api.mixed_mm,
        theirs=rounded(mixed_exact, mixed_dtype),
        wide=mixed_exact,
        dtypes=[BF16, F16],
        own=mixed_group_samples,
        leaves=of_float_operand,
        refuses=DERIVATIVES,
        lacks=["out="],
    ),
    Case(
        name="torch._scaled_mm",
        ours=operator("scaled_mm"),
        theirs=torch._scaled_mm,
        wide=scaled,
        into=OPS.scaled_mm.out,
        database="torch._scaled_mm",
        skips=["vmap(vmap)"],  # the results overflow
        dtypes=FLOAT8,
        refuses=DERIVATIVES,
    ),
    Case(
        name="torch._scaled_mm_v2",
        ours=scaled_v2,
        theirs=torch._scaled_mm_v2,
        wide=scaled_v2_exact,
        database="torch._scaled_mm_v2",
        skips=["torch.save"],  # torch's kinds of scales cannot be pickled
        dtypes=FLOAT8,
        refuses=DERIVATIVES,
        lacks=["out="],
    ),
    Case(
        name="scaled_mm",
        ours=operator("scaled_mm"),
        theirs=rounded(scaled, scaled_dtype),
        wide=scaled,
        into=OPS.scaled_mm.out,
        own=scaled_samples,
        dtypes=FLOAT8,
        refuses=DERIVATIVES,
    ),
    Case(
        name="scaled_grouped_mm",
        ours=cutlass_api.scaled_grouped_mm,
        theirs=rounded(scaled_groups, lambda *args, **options: F32),
        wide=scaled_groups,
        own=scaled_group_samples,
        dtypes=FLOAT8,
        refuses=DERIVATIVES,
        lacks=["out="],
    ),
    Case(
        name="quantize",
        ours=numbers,
        theirs=exact_numbers,
        wide=exact_numbers,
        own=quantize_samples,
        dtypes=[F32, BF16, F16],
        refuses=DERIVATIVES,
        lacks=["out="],
    ),
)
