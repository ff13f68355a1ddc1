"""Formats of weights, one record each: element type, scales and zero points, and the arithmetic in
torch that quantizes and dequantizes. The width of an element, and how memory holds it, are those of
its descriptor in the core's table.

The CUDA counterparts are ``kernels/quantize.cuh`` (quantize) and, in a product, ``decode`` and
``ptx::widen`` of the element type with ``block_scale`` of ``kernels/common/fusion.cuh``. The
reference decodes in ``src/reference/scales.rs``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cutlass_api._dtypes import E8M0, ELEMENTS, FLOAT8
from cutlass_api.weights._packing import REPACKED, nibbles, packed
from cutlass_api.weights._reordering import reorder
from cutlass_api.weights._scales import (
    BLOCK,
    MX,
    MX_SWIZZLED,
    ROW,
    TENSOR,
    WHOLE,
    WIDE_BLOCK,
    Scales,
    swizzled,
    unswizzled,
)

#: The smallest float32 scale: that of a group of zeros.
SMALLEST = 2.0**-126

#: A code of e2m1 counts the bounds below a magnitude. A magnitude halfway between two numbers
#: rounds to the even code: each second bound is the float32 number before that middle.
_BELOW = 1 - 2.0**-24
E2M1_BOUNDS = (0.25, 0.75 * _BELOW, 1.25, 1.75 * _BELOW, 2.5, 3.5 * _BELOW, 5)


#: The operands of an epilogue that fields are, in the order of the operands.
OPERANDS = {"scales": "scale_b", "zeros": "zero_b", "factor": "scale_a"}


def operand_of(name: str, field: Tensor) -> Tensor:
    """A field of a weight, or of a stack of weights, as an operand of a product's epilogue: a view.
    A vector has a number for each weight of a stack.
    """
    if field.dim() == 1:
        return field[:, None, None]
    if name == "factor":
        return field.reshape(*field.shape[:-2], 1, -1)
    return field.mT if field.dim() else field[None]


class Fields(NamedTuple):
    """The tensors of a quantized matrix. ``zeros``: zero points, in the layout of ``scales``.
    ``factor``: a scale of the whole matrix, or of each row, in addition to ``scales``.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    factor: Tensor | None = None

    def t(self) -> "Fields":
        """Those of the transpose. A vector of swizzled scales, or a scalar, stays."""
        return Fields(*(None if each is None else each.t() for each in self))


@dataclass(frozen=True)
class Format:
    """A quantized matrix (N, K): element (number - zero point) * scale. K is the contracted
    dimension. Subclasses differ in the arithmetic that computes scales.
    """

    #: The name of the element type. Types of fewer than 8 bits are packed along K.
    element: str
    scales: Scales
    #: The dtype of zero points, if the format has some.
    zero: torch.dtype | None = None
    #: Whether zero points are added, in units of the matrix: number * scale + zero point.
    adds_zero: bool = False
    #: Whether the matrix has one more scale, in float32.
    has_factor: bool = False
    #: What a stored code exceeds its number by.
    offset: int = 0

    @property
    def name(self) -> str:
        swizzle = "_swizzled" if self.scales.is_swizzled else ""
        shared = self.scales.name().removeprefix("block of ").replace(" ", "")
        return f"{self.element}_{shared}{swizzle}"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that names the element type: the argument of ``quantize``.

        Not cached: the lock of ``cached_property`` before Python 3.12 breaks graphs.
        """
        dtype: torch.dtype = getattr(torch, self.element, None) or getattr(
            torch, self.element + "_x2"
        )
        return dtype

    @property
    def stored(self) -> torch.dtype:
        """The dtype of the stored values."""
        return torch.uint8 if ELEMENTS[self.element].is_packed else self.dtype

    @property
    def packing(self) -> int:
        """How many numbers a stored value holds."""
        return 8 * int(self.stored.itemsize) // ELEMENTS[self.element].bits

    @property
    def cuda_name(self) -> str:
        """The name of the element type in CUDA code."""
        return ELEMENTS[self.element].cuda_name

    @property
    def kernel_element(self) -> str:
        """The element type after :meth:`repack`, as kernels name it: int4 for an offset of 8."""
        return self.element.removeprefix("u") if self.offset else self.element

    @property
    def is_float(self) -> bool:
        """Whether the elements are floating-point numbers of 4 bits."""
        return ELEMENTS[self.element].element_class == "float4"

    @property
    def codes(self) -> list[float]:
        """The numbers of codes of 4 bits, as stored. Empty: elements have more bits."""
        return ELEMENTS[self.element].codes

    @property
    def limit(self) -> float:
        """The largest finite number."""
        if self.codes:
            return max(self.codes)
        info = torch.finfo if self.dtype.is_floating_point else torch.iinfo
        return float(info(self.dtype).max)

    # ---- how it is stored -------------------------------------------------------------------

    def extents(self, values: Tensor) -> tuple[int, ...]:
        """N and K of a matrix that is stored so; G, N and K of a stack of matrices."""
        if self.packing > 1 and values.dtype is REPACKED:
            return (*values.shape[:-2], values.shape[-2] * 32)
        return (*values.shape[:-1], values.shape[-1] * self.packing)

    def layout(self, *extents: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """The shape and dtype of each field of a matrix (N, K), or of a stack (G, N, K), before
        :meth:`repack`. A factor of each row has shape (N, 1), of a stack (G, N, 1).
        """
        *stack, n, k = extents
        shape = (*stack, *(() if self.scales == TENSOR else self.scales.shape(n, k)))
        fields = {
            "values": ((*stack, n, k // self.packing), self.stored),
            "scales": (shape, self.scales.dtype),
        }
        if self.zero is not None:
            fields["zeros"] = (shape, self.zero)
        if self.has_factor:
            fields["factor"] = (tuple(stack), torch.float32)
        return fields

    def check(self, fields: Fields) -> None:
        """Raises ValueError for fields of other shapes, dtypes or devices."""
        *outer, k = self.extents(fields.values)
        expected = self.layout(*outer, k)
        if self.packing > 1 and fields.values.dtype is REPACKED:
            expected["values"] = ((*outer, k // 32, 4), REPACKED)
        for name, tensor in zip(Fields._fields, fields, strict=True):
            if (tensor is None) != (name not in expected):
                verb = "takes no" if tensor is not None else "requires"
                raise ValueError(f"{self.name} {verb} {name}")
            if tensor is None:
                continue
            shape, dtype = expected[name]
            if tensor.dtype != dtype:
                raise ValueError(f"{name} is {tensor.dtype}; pass {dtype}")
            is_of_rows = name == "factor" and tuple(tensor.shape) == (*outer, 1)
            if tuple(tensor.shape) != shape and not is_of_rows:
                raise ValueError(f"{name} has shape {list(tensor.shape)}; pass {list(shape)}")
            if tensor.device != fields.values.device:
                raise ValueError(
                    f"{name} is on {tensor.device} and values on {fields.values.device}; "
                    f"move {name}"
                )

    def repack(self, fields: Fields) -> Fields:
        """The fields in the order that kernels read: of elements of 4 bits, that of
        :func:`reorder`, else that of storage.
        """
        if self.packing == 1 or fields.values.dtype is REPACKED:
            return fields
        return fields._replace(values=self._reordered(fields.values, True))

    def unpack(self, fields: Fields) -> Fields:
        """The inverse of :meth:`repack`."""
        if self.packing == 1 or fields.values.dtype is not REPACKED:
            return fields
        return fields._replace(values=self._reordered(fields.values, False))

    def _reordered(self, values: Tensor, to_kernels: bool) -> Tensor:
        if values.dim() == (2 if to_kernels else 3):
            return reorder(values, to_kernels, self.is_float)
        # Rows do not depend on each other.
        rows = reorder(values.flatten(0, 1), to_kernels, self.is_float)
        return rows.unflatten(0, values.shape[:2])

    def of_product(self, fields: Fields) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The matrix as B (K, N) of a product: the operands of ``scale_b`` and ``zero_b``, and the
        arguments of ``scale_blocks`` by the factor, if the scales apply inside of the sum over K.
        Others multiply the sum, as the factor does, which is ``scale_a``.
        """
        scales, zeros = self.subtracted(fields)
        found = {"scales": scales, "zeros": zeros, "factor": fields.factor}
        # Swizzled scales are a vector for one matrix.
        is_vector = {"scales": self.scales.is_swizzled}
        operands = {
            OPERANDS[name]: field if is_vector.get(name) else operand_of(name, field)
            for name, field in found.items()
            if field is not None
        }
        if not self.scales.varies_along_k and zeros is None:
            return operands, {}
        return operands, {"b": self.scales.arguments("b", zeros is not None)}

    def subtracted(self, fields: Fields) -> tuple[Tensor, Tensor | None]:
        """The scales, and zero points that are subtracted from numbers.

        number * scale + zero = (number - -zero / scale) * scale. A scale of 0 leaves the zero
        point: with the scale zero / 2^28, a float32 difference of a number and 2^28 is 2^28.
        """
        scales, zeros = fields.scales, fields.zeros
        if zeros is None or not self.adds_zero:
            return scales, zeros
        scales, zeros = scales.float(), zeros.float()
        scales = scales.where(scales != 0, zeros * 2.0**-28)
        return scales, (-zeros / scales).where(scales != 0, 0)

    # ---- how it is computed -----------------------------------------------------------------

    def empty(self, matrix: Tensor, is_a: bool = True) -> Fields:
        """Uninitialized fields of a matrix in 8 bits, row-major. ``is_a=False``: of (K, N)."""
        values = matrix.new_empty(matrix.shape, dtype=self.stored)
        scales = self.scales.empty(matrix, is_a, is_float=self.stored.is_floating_point)
        return Fields(values, scales, self.zero and torch.empty_like(scales, dtype=self.zero))

    def compute(self, matrix: Tensor, out: Fields) -> None:
        """Quantizes a matrix (N, K) with the arithmetic of ``kernels/quantize.cuh``, on the CPU."""
        for tensor, target in zip(self.quantized(matrix), out, strict=True):
            if tensor is not None and target is not None:
                target.copy_(tensor)

    def quantized(self, matrix: Tensor) -> Fields:
        """The fields of a matrix (N, K), row-major."""
        n, k = matrix.shape
        height = n if self.scales.extent == WHOLE else self.scales.extent
        width = k if self.scales.depth == WHOLE else self.scales.depth
        whole, padding = matrix.float(), (0, -k % width, 0, -n % height if height > 1 else 0)
        if any(padding):  # n may be a symbol
            whole = torch.nn.functional.pad(whole, padding)
        blocks = whole.view(whole.shape[0] // height, height, whole.shape[1] // width, width)
        values, scales, zeros, factor = self.quantize_blocks(blocks)
        shape = blocks.shape[0], blocks.shape[2]
        scales = scales.view(shape)
        if self.scales.is_swizzled:
            scales = swizzled(scales.view(torch.uint8)).view(scales.dtype)
        elif self.scales == TENSOR:
            scales = scales.view(())
        zeros = None if zeros is None else zeros.view(shape).to(self.zero)
        return Fields(self.store(values.view(whole.shape)[:n, :k]), scales, zeros, factor)

    def quantize_blocks(self, blocks: Tensor) -> Fields:
        """The numbers in float32, scales and zero points of float32 blocks: the dimensions 1 and 3,
        and a factor.
        """
        factors = (largest(blocks.abs()) / self.limit).clamp(min=SMALLEST)
        values = blocks * (1 / factors)
        if not self.dtype.is_floating_point:
            values = values.round().nan_to_num(nan=0)
        return Fields(values, factors)

    def rounded(self, scales: Tensor) -> Tensor:
        """Positive scales, rounded to their dtype, in float32."""
        info = torch.finfo(self.scales.dtype)
        smallest = max(SMALLEST, info.smallest_normal * info.eps)
        return scales.clamp(min=smallest).to(self.scales.dtype).float()

    def store(self, numbers: Tensor) -> Tensor:
        """Numbers in float32 as stored values: of several in a byte, the first in its low bits.
        Those of e2m1 are rounded to nearest even, and saturate.
        """
        if not self.codes:
            return numbers.to(self.stored)
        if self.dtype.is_floating_point:
            bounds = torch.tensor(E2M1_BOUNDS, device=numbers.device)
            magnitudes = numbers.abs().contiguous()  # of others, torch warns that it copies them
            codes = torch.bucketize(magnitudes, bounds, out_int32=True).to(torch.uint8)
            codes += (numbers < 0).to(torch.uint8) << 3
        else:
            codes = (numbers + self.offset).to(torch.uint8)
        return packed(codes)

    def numbers(self, values: Tensor) -> Tensor:
        """The stored numbers in float32: the inverse of :meth:`store`."""
        if not self.codes:
            return values.float()
        table = torch.tensor(self.codes, device=values.device) - self.offset
        return table[nibbles(values).int()]

    def dequantize(self, fields: Fields) -> Tensor:
        """The matrix in float32. The difference from the zero point is exact; the product with the
        scale is rounded once.
        """
        self.check(fields)
        numbers = self.numbers(self.unpack(fields).values)
        zeros = None if fields.zeros is None else self.of_elements(fields.zeros, numbers.shape)
        if zeros is not None and not self.adds_zero:
            numbers = numbers - zeros
        matrix = numbers * self.of_elements(fields.scales, numbers.shape)
        if zeros is not None and self.adds_zero:
            matrix = matrix + zeros
        if fields.factor is None:
            return matrix
        is_vector = fields.factor.dim() == 1  # of a stack
        return matrix * (fields.factor[:, None, None] if is_vector else fields.factor)

    def of_elements(self, scales: Tensor, shape: Sequence[int]) -> Tensor:
        """Scales or zero points in float32, one for each element of a matrix."""
        if self.scales.is_swizzled:
            n, k = shape
            scales = unswizzled(scales, *self.scales._replace(is_swizzled=False).shape(n, k))
        scales = scales.float()
        if self.scales == TENSOR:
            scales = scales[..., None, None]
        for dim, extent in zip((-2, -1), self.scales.block(), strict=True):
            if extent != WHOLE:
                scales = scales.repeat_interleave(extent, dim).narrow(dim, 0, shape[dim])
        return scales.expand(*shape)


class PowersOfTwo(Format):
    """Scales in float8_e8m0fnu: OCP Microscaling Formats (MX) Specification 1.0, section 6.3."""

    def quantize_blocks(self, blocks: Tensor) -> Fields:
        # The sign of NaN is arbitrary.
        exponents = largest(blocks.abs()).view(torch.int32) >> 23 & 0xFF
        is_finite = exponents < 255
        largest_power = math.frexp(self.limit)[1] - 1
        codes = (exponents - largest_power).clamp(min=0).where(is_finite, 255)
        inverse = ((254 - codes) << 23).view(torch.float32).where(is_finite, math.nan)
        values = (blocks * inverse).clamp(-self.limit, self.limit)
        return Fields(values, codes.to(torch.uint8).view(E8M0))


class Factored(Format):
    """Scales in float8_e4m3fn, and a factor that maps the largest magnitude of the matrix to the
    largest number at the largest scale: NVFP4.
    """

    def quantize_blocks(self, blocks: Tensor) -> Fields:
        most = torch.finfo(self.scales.dtype).max
        whole = blocks.abs().amax() if blocks.numel() else blocks.new_zeros(())
        factor = (whole / (self.limit * most)).clamp(min=SMALLEST)
        quotients = largest(blocks.abs()) / (self.limit * factor)
        # The smallest scale is the smallest positive number of e4m3.
        quotients = quotients.where(quotients != 0, 1).clamp(2.0**-9, most)
        scales = quotients.to(self.scales.dtype)
        return Fields(blocks / (scales.float() * factor), scales, factor=factor)


@dataclass(frozen=True)
class OffsetBinary(Format):
    """Signed integers of 4 bits, -8 to 7, which are stored with 8 added. A scale maps the largest
    magnitude to 7.5, so that no element is off by more than half a scale.
    """

    offset: int = 8

    def quantize_blocks(self, blocks: Tensor) -> Fields:
        scales = self.rounded(largest(blocks.abs()) / (self.limit / 2))
        values = (blocks / scales).round().clamp(-self.offset, self.offset - 1).nan_to_num(nan=0)
        return Fields(values, scales.to(self.scales.dtype))


@dataclass(frozen=True)
class Asymmetric(Format):
    """Unsigned integers, with a zero point for each scale."""

    zero: torch.dtype | None = torch.uint8

    def quantize_blocks(self, blocks: Tensor) -> Fields:
        positive, negative = largest(blocks.clamp(min=0)), largest((-blocks).clamp(min=0))
        # clamp returns NaN for NaN. The range itself can overflow.
        half = 0.5 * positive + 0.5 * negative
        factors = self.rounded(half / (self.limit / 2))
        zeros = (negative * (1 / factors)).round().clamp(max=self.limit)
        values = ((blocks * (1 / factors)).round() + zeros).clamp(0, self.limit)
        scales = factors.to(self.scales.dtype)
        return Fields(values.nan_to_num(nan=0), scales, zeros.nan_to_num(nan=0))


def largest(blocks: Tensor) -> Tensor:
    return blocks.amax((1, 3), keepdim=True)


FLOATS = tuple(str(dtype).removeprefix("torch.") for dtype in FLOAT8)
SYMMETRIC = (*FLOATS, "int8")
#: Groups of ``mixed_mm``, of which one is a block of int8.
GROUPS = {depth: Scales(1, depth) for depth in (32, 64, 128)}
#: All formats. The order is that of messages.
FORMATS: tuple[Format, ...] = (
    *(Format(element, scales) for scales in (TENSOR, ROW, BLOCK) for element in SYMMETRIC),
    Asymmetric("uint8", GROUPS[128]),
    Format("int8", GROUPS[64]),
    Asymmetric("uint8", GROUPS[64]),
    *(PowersOfTwo(element, scales) for scales in (MX, MX_SWIZZLED) for element in FLOATS),
    Format("int8", GROUPS[32]),
    Asymmetric("uint8", GROUPS[32]),
    *(Format(element, WIDE_BLOCK) for element in SYMMETRIC),
)


def names(values: Any) -> str:
    return ", ".join(map(str, dict.fromkeys(values)))


def find_format(dtype: torch.dtype, extents: tuple[int, ...], swizzle: bool) -> tuple[Format, bool]:
    """The format of blocks of these extents, and whether they are those of a matrix (N, K), or of
    (K, N). Raises ValueError for what is not served.
    """
    alike = [each for each in FORMATS if extents in (each.scales.block(), each.scales.block(False))]
    if not alike:
        served = names(each.scales.block() for each in FORMATS)
        raise ValueError(f"block is {extents}; pass one of {served}, or a transpose")
    alike = [each for each in alike if each.dtype is dtype] or alike
    if alike[0].dtype is not dtype:
        served = names(each.dtype for each in alike)
        raise ValueError(f"the output dtype is {dtype}; pass one of {served}")
    found = next((each for each in alike if each.scales.is_swizzled == swizzle), None)
    if found is None:
        raise ValueError(
            f"swizzle is True for {dtype} in blocks of {extents}; pass False, or float8 and "
            f"{MX.block()}"
        )
    return found, extents == found.scales.block()
