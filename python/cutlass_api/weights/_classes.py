"""The classes of quantized weights: one a format, made from the records of ``_formats.py``."""

import operator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from cutlass_api._core import ScaledTensor
from cutlass_api._dtypes import E8M0, FLOAT8, FLOATS
from cutlass_api.weights._formats import (
    GROUPS,
    Asymmetric,
    Factored,
    Fields,
    Format,
    OffsetBinary,
    PowersOfTwo,
    names,
)
from cutlass_api.weights._packing import REPACKED
from cutlass_api.weights._scales import BLOCK, ROW, TENSOR, WHOLE, WIDE_BLOCK, Scales

Self = TypeVar("Self", bound="Weight")

#: A scale a row, or a group along K. If both have one scale a row, it is called a row.
GROUPED = (ROW, *GROUPS.values())


class Weight:
    """A quantized weight: a matrix (N, K), where K is the contracted dimension; or a stack
    (G, N, K) of such matrices, as the experts of a layer, which :func:`stack` makes.

    A plain class of tensors. Subclasses are its formats. K is a multiple of 32. The fields of a
    stack have a dimension in front, G, and no permutation; ``stack[g]`` is the weight of a matrix,
    a view.

    - ``values``: the stored elements. Formats of 4 bits have two orders, of different dtypes:
      uint8 (N, K / 2), two elements in a byte, the first in the low bits; and that of
      :meth:`repack`, int32 (N, K / 32, 4). The words of checkpoints have other orders, and other
      shapes: call their readers.
    - ``scales``, ``zeros``, ``factor``: as the formats describe them. None where a format has no
      such field.
    - ``permutation``: int32 (K,), or None. The order of columns (act-order): the column ``j`` of
      ``values`` is the column ``permutation[j]`` of the weight, so that
      ``x @ weight.dequantize().t()`` is ``x[..., permutation] @ stored.t()``.

    Fields are contiguous; others are copied. Construction raises TypeError for a field that is no
    tensor, and ValueError for shapes, dtypes and devices that do not fit. It reads no data, so that
    fields may be meta tensors or FakeTensors, and NaN passes.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    factor: Tensor | None = None
    permutation: Tensor | None = None

    #: The arithmetic; the name of the element type; the ways to share scales, the dtypes of scales.
    _record: ClassVar[type[Format]] = Format
    _element: ClassVar[str]
    _shared: ClassVar[tuple[Scales, ...]] = GROUPED
    _scale_dtypes: ClassVar[tuple[torch.dtype, ...]] = FLOATS
    #: The fields, but for the permutation.
    _required: ClassVar[tuple[str, ...]] = ("values", "scales")

    def __post_init__(self) -> None:
        name = type(self).__name__
        for key in (*self._required, "permutation"):
            tensor = getattr(self, key)
            if tensor is None and key == "permutation":
                continue
            if not isinstance(tensor, Tensor):
                raise TypeError(
                    f"{name}: {key} is {described(tensor)}; pass {_remedy(key, tensor)}"
                )
            setattr(self, key, tensor.contiguous())
        try:
            self.format = self._find_format()
            self.format.check(self.fields)
            self._check_permutation()
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None

    @classmethod
    def _formats(cls, scales: torch.dtype) -> list[Format]:
        """The formats that have scales of a dtype."""
        return [cls._record(cls._element, each._replace(dtype=scales)) for each in cls._shared]

    def _find_format(self) -> Format:
        formats = self._formats(self._scale_dtypes[0])
        self.values = _as_stored(self.values, formats[0])
        if self.values.dim() - (self.values.dtype is REPACKED) not in (2, 3):
            raise ValueError(
                f"values has shape {list(self.values.shape)}; pass the matrix of one weight, or "
                "those of several behind each other"
            )
        if self._scale_dtypes == (E8M0,) and self.scales.dtype is torch.uint8:
            self.scales = self.scales.view(E8M0)
        if self.scales.dtype not in self._scale_dtypes:
            raise ValueError(
                f"scales is {self.scales.dtype}; pass {names(self._scale_dtypes)}"
                + _view("scales", self.scales, self._scale_dtypes[0])
            )
        *outer, k = formats[0].extents(self.values)
        if k % 32:
            raise ValueError(f"K is {k}; pad the weight and the activations to a multiple of 32")
        shape = tuple(self.scales.shape)
        # Not by a dictionary: symbolic sizes have no hash.
        shapes = [each.layout(*outer, k)["scales"][0] for each in formats]
        pairs = zip(shapes, self._formats(self.scales.dtype), strict=True)
        found = next((each for served, each in pairs if served == shape), None)
        if found is None:
            named: dict[str, str] = {}
            for served, each in zip(shapes, formats, strict=True):
                named.setdefault(str(list(served)), f"{list(served)} (a {each.scales.name()})")
            hint = ", such as scales.t()" if shape[::-1] in shapes else ""
            raise ValueError(
                f"scales has shape {list(shape)} for a weight {[*outer, k]}; pass "
                f"{' or '.join(named.values())}{hint}"
            )
        return found

    def _check_permutation(self) -> None:
        order, k = self.permutation, self.shape[-1]
        if order is None:
            return
        if self.is_stack:
            raise ValueError(
                "a stack takes no permutation, since its matrices multiply columns of one order; "
                "dequantize the weights and quantize them again"
            )
        if order.dtype is not torch.int32:
            raise ValueError(f"permutation is {order.dtype}; pass permutation.int()")
        if tuple(order.shape) != (k,):
            raise ValueError(f"permutation has shape {list(order.shape)}; pass {[k]}")
        if order.device != self.device:
            raise ValueError(
                f"permutation is on {order.device} and values on {self.device}; move permutation"
            )

    @classmethod
    def _quantized(cls: type[Self], matrix: Tensor, depth: int) -> Self:
        """A matrix (N, K) in this format, with a scale for each ``depth`` elements of a row."""
        dtypes = cls._scale_dtypes
        dtype = matrix.dtype if matrix.dtype in dtypes else dtypes[-1]
        format = next(each for each in cls._formats(dtype) if each.scales.depth == depth)
        return cls(*(each for each in format.quantized(matrix) if each is not None))

    @property
    def fields(self) -> Fields:
        """What all formats have in common; None for those that this format does not have."""
        return Fields(self.values, self.scales, self.zeros, self.factor)

    @property
    def shape(self) -> torch.Size:
        """(N, K), the extents of the matrix, or (G, N, K) of a stack."""
        return torch.Size(self.format.extents(self.values))

    @property
    def is_stack(self) -> bool:
        """Whether this is a stack of weights."""
        return len(self.shape) == 3

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of :meth:`dequantize`: that of ``scales`` if it is float16, bfloat16 or
        float32, else bfloat16.
        """
        return self.scales.dtype if self.scales.dtype in FLOATS else torch.bfloat16

    @property
    def device(self) -> torch.device:
        """The device of all fields."""
        return self.values.device

    @property
    def group(self) -> int:
        """How many elements along K share a scale; the last group may be partial. K if there is one
        scale a row or for the whole matrix.
        """
        depth = self.format.scales.depth
        return depth if self.format.scales.varies_along_k else self.shape[-1]

    @property
    def is_repacked(self) -> bool:
        """Whether ``values`` has the order of kernels."""
        return self.format.packing > 1 and self.values.dtype is REPACKED

    @property
    def is_operand(self) -> bool:
        """Whether kernels read the fields as they are: :meth:`__cutlass_operand__` copies none."""
        return not self.format.adds_zero and (self.format.packing == 1 or self.is_repacked)

    def __cutlass_operand__(self) -> ScaledTensor:
        """The weight as B (K, N) of :class:`cutlass_api.arguments.GemmArguments`, with its scales;
        a stack as B (G, K, N) of :class:`cutlass_api.arguments.GroupedGemmArguments`. Arguments
        hold a copy in the order of :meth:`repack`, unless the weight has that order.

        Raises ValueError for a permutation, which applies to the columns of A.
        """
        if self.permutation is not None:
            raise ValueError(
                "the weight has a permutation; pass A as x[..., weight.permutation], and a weight "
                "without it"
            )
        *stack, n, _ = self.shape
        if self.format.dtype in FLOAT8:
            shared, scales = self.format.scales, self.scales
            extent = max(n, 1) if shared.extent == WHOLE else shared.extent
            if shared == TENSOR:
                scales = scales.reshape(*stack, 1, 1)[..., :n, :]
            return ScaledTensor(self.values.mT, scales.mT, (extent, self.group), "none")
        fields = self.format.repack(self.fields)
        scales, zeros = self.format.subtracted(fields)
        factor = fields.factor
        if factor is not None and factor.dim() == len(stack):
            factor = factor[..., None, None]
        values = fields.values
        if stack and self.format.packing > 1:
            values = values.flatten(-2)
        element = self.format.kernel_element
        return ScaledTensor.of_weight(values, element, scales, self.group, zeros, factor)

    def __getitem__(self: Self, index: int) -> Self:
        """The weight of one matrix of a stack: views. Raises IndexError for another index, and
        TypeError for an index that is no integer, or if this is no stack.
        """
        if not self.is_stack:
            raise TypeError(f"{type(self).__name__} {list(self.shape)} is no stack of weights")
        return type(self)(**{key: x[operator.index(index)] for key, x in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are not None by name, as a ``state_dict`` or safetensors saves them."""
        tensors = {key: getattr(self, key) for key in (*self._required, "permutation")}
        return {key: tensor for key, tensor in tensors.items() if tensor is not None}

    @classmethod
    def from_tensors(cls: type[Self], tensors: dict[str, Tensor]) -> Self:
        """The weight whose :meth:`tensors` these are.

        Raises ValueError for missing and unknown names, and as the constructor.
        """
        required = set(cls._required)
        if not required <= set(tensors) <= required | {"permutation"}:
            raise ValueError(
                f"{cls.__name__}: the tensors are {names(tensors)}; pass {names(cls._required)} "
                "(permutation is optional)"
            )
        return cls(**tensors)

    @classmethod
    def _of_checked(cls: type[Self], tensors: dict[str, Tensor], format: Format) -> Self:
        """The weight with contiguous tensors that fit a format, without checks."""
        weight = cls.__new__(cls)
        vars(weight).update(tensors, format=format)
        return weight

    def to(self: Self, device: torch.device | str | int) -> Self:
        """The weight on another device."""
        device = torch.device(device)
        return type(self)(**{key: x.to(device) for key, x in self.tensors().items()})

    def repack(self: Self) -> Self:
        """The weight in the order that kernels read; itself if it has that order.

        Of 8 bits, that is the order of storage. The words of 4 bits are int32 (N, K / 32, 4):
        of each 32 elements, the word q of four holds, from the low bits up, the elements 2q,
        2q + 8, 2q + 16, 2q + 24, 2q + 1, 2q + 9, 2q + 17 and 2q + 25. Of float4_e2m1fn, bits 15,
        12, 13 and 14 are the signs of the first four, bits 6 to 8, 3 to 5, 9 to 11 and 0 to 2 their
        other bits.
        """
        return self._with(self.format.repack(self.fields).values)

    def unpack(self: Self) -> Self:
        """The inverse of :meth:`repack`."""
        return self._with(self.format.unpack(self.fields).values)

    def _with(self: Self, values: Tensor) -> Self:
        if values is self.values:
            return self
        return type(self)(**{**self.tensors(), "values": values})

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix (N, K), with its columns in the original order; of a stack (G, N, K).

        Arithmetic is in float32. The result is rounded once to ``dtype``, by default the weight's.
        """
        matrix = self.format.dequantize(self.fields).to(dtype or self.dtype)
        if self.permutation is None:
            return matrix
        return matrix.index_select(1, self.permutation.argsort())

    def __repr__(self) -> str:
        scales = f"{str(self.scales.dtype).removeprefix('torch.')}{list(self.scales.shape)}"
        about = [f"{type(self).__name__} {list(self.shape)}", f"scales {scales}"]
        about += ["repacked"] * self.is_repacked + ["permuted"] * (self.permutation is not None)
        return f"<{', '.join(about)}, on {self.device}>"


@dataclass(eq=False, repr=False)
class Int4(Weight):
    """Integers of 4 bits without zero points: element (q - 8) * scale, q from 0 to 15.

    ``scales``: (N, 1), or (N, ceil(K / group)) for groups of 32, 64 or 128, in float16, bfloat16 or
    float32. They may be negative.
    """

    values: Tensor
    scales: Tensor
    permutation: Tensor | None = None

    _record = OffsetBinary
    _element = "uint4"


@dataclass(eq=False, repr=False)
class UInt4(Weight):
    """Integers of 4 bits with zero points: element (q - zero) * scale, q from 0 to 15.

    - ``scales``: as those of :class:`Int4`.
    - ``zeros``: of the shape of ``scales``. uint8, 0 to 16; or float16, bfloat16 or float32, which
      are added, in units of the weight: q * scale + zero.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor
    permutation: Tensor | None = None

    _record = Asymmetric
    _element = "uint4"
    _required = ("values", "scales", "zeros")

    def _find_format(self) -> Format:
        return _with_zeros(super()._find_format(), self.zeros, (torch.uint8, *FLOATS))


@dataclass(eq=False, repr=False)
class MXFP4(Weight):
    """float4_e2m1fn (0, 0.5, 1, 1.5, 2, 3, 4, 6, and negative) with a power of two for each 32
    elements of a row: element number * scale.

    ``scales``: (N, K / 32) in float8_e8m0fnu, 2^(byte - 127). Bytes in uint8 are viewed as such,
    and ``values`` in float4_e2m1fn_x2 as uint8.
    """

    values: Tensor
    scales: Tensor
    permutation: Tensor | None = None

    _record = PowersOfTwo
    _element = "float4_e2m1fn"
    _shared = (Scales(1, 32),)
    _scale_dtypes = (E8M0,)


@dataclass(eq=False, repr=False)
class NVFP4(Weight):
    """float4_e2m1fn with a scale for each 16 elements of a row, and a factor: element
    number * scale * factor.

    - ``values``: as those of :class:`MXFP4`.
    - ``scales``: (N, K / 16) in float8_e4m3fn, row-major and not swizzled.
    - ``factor``: float32. (): of the whole matrix. (N, 1): of each row, for layers that are fused
      and have factors of their own. A multiplier: compressed-tensors stores the inverse.
    """

    values: Tensor
    scales: Tensor
    factor: Tensor
    permutation: Tensor | None = None

    _record = Factored
    _element = "float4_e2m1fn"
    _required = ("values", "scales", "factor")
    _shared = (Scales(1, 16),)
    _scale_dtypes = (torch.float8_e4m3fn,)

    @classmethod
    def _formats(cls, scales: torch.dtype) -> list[Format]:
        shared = cls._shared[0]._replace(dtype=scales)
        return [Factored(cls._element, shared, has_factor=True)]


@dataclass(eq=False, repr=False)
class Float8(Weight):
    """float8_e4m3fn: element number * scale.

    ``scales``: float32. (): of the whole matrix. (N, 1): of each row. (N, ceil(K / 128)): of each
    128 elements of a row. (ceil(N / 128), ceil(K / 128)): of blocks of 128 x 128.
    """

    values: Tensor
    scales: Tensor
    permutation: Tensor | None = None

    _element = "float8_e4m3fn"
    _shared = (TENSOR, ROW, WIDE_BLOCK, BLOCK)
    _scale_dtypes = (torch.float32,)


@dataclass(eq=False, repr=False)
class Int8(Weight):
    """int8 without zero points: element q * scale, with ``scales`` as those of :class:`Int4`."""

    values: Tensor
    scales: Tensor
    permutation: Tensor | None = None

    _element = "int8"


@dataclass(eq=False, repr=False)
class UInt8(Weight):
    """uint8 with zero points: element (q - zero) * scale.

    ``scales``: as those of :class:`Int4`. ``zeros``: uint8, of the shape of ``scales``.
    """

    values: Tensor
    scales: Tensor
    zeros: Tensor
    permutation: Tensor | None = None

    _record = Asymmetric
    _element = "uint8"
    _required = ("values", "scales", "zeros")

    def _find_format(self) -> Format:
        return _with_zeros(super()._find_format(), self.zeros, (torch.uint8,))


#: The classes by name.
CLASSES: dict[str, type[Weight]] = {each.__name__: each for each in Weight.__subclasses__()}


def _with_zeros(format: Format, zeros: Tensor, dtypes: tuple[torch.dtype, ...]) -> Format:
    """The format with zero points in their dtype."""
    if zeros.dtype not in dtypes:
        raise ValueError(
            f"zeros is {zeros.dtype}; pass {names(dtypes)}, one for each scale, not packed"
        )
    is_added = zeros.dtype.is_floating_point
    return Asymmetric(format.element, format.scales, zero=zeros.dtype, adds_zero=is_added)


def _as_stored(values: Tensor, format: Format) -> Tensor:
    """Values in the dtype of the format. Raises ValueError for others."""
    dtype = values.dtype
    is_repacked = dtype is REPACKED and values.dim() in (3, 4) and values.shape[-1] == 4
    if dtype is format.stored or (format.packing > 1 and is_repacked):
        return values
    if format.packing > 1 and dtype is REPACKED:
        raise ValueError(
            f"values is int32 of shape {list(values.shape)}, as the words of a checkpoint; call "
            "weights.from_compressed_tensors for (N, K / 8), from_gptq for (K / 8, N), from_awq "
            "for (K, N / 8), from_torchao for 4 dimensions; repack() returns (N, K / 32, 4)"
        )
    if format.packing > 1 and dtype is format.dtype:
        return values.view(format.stored)
    passed = str(format.stored)
    if format.packing > 1:
        passed += " (N, K / 2), two elements in a byte, or int32 (N, K / 32, 4) of repack()"
    raise ValueError(f"values is {dtype}; pass {passed}" + _view("values", values, format.stored))


def _view(name: str, tensor: Tensor, dtype: torch.dtype) -> str:
    """The remedy for bytes in another dtype."""
    if tensor.dtype.itemsize != 1 or dtype.itemsize != 1 or tensor.dtype is torch.bool:
        return ""
    return f": {name}.view({dtype}) if it holds such bytes, without a conversion"


def described(thing: Any) -> str:
    """The type, and the dtype of an array."""
    dtype = getattr(thing, "dtype", None)
    return type(thing).__qualname__ + (f" of {dtype}" if dtype is not None else "")


def _remedy(name: str, thing: Any) -> str:
    """What to pass in place of a field that is no tensor. Arrays of JAX and ml_dtypes have one
    element of 4 bits in a byte.
    """
    codes = {
        "uint4": "astype('uint8'))",
        "int4": "astype('int8')) + 8",
        "float4_e2m1fn": "view('uint8'))",
    }.get(str(getattr(thing, "dtype", None)))
    if codes is None:
        return "a torch.Tensor"
    return f"weights.pack(torch.from_numpy(numpy.asarray({name}).{codes})"
