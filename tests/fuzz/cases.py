"""A case: one problem and the kernel that computes it, as a plain value with a JSON form."""

import json
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from support.memory import Form

from .workers import OPERATIONS

#: What K of a weight is a multiple of.
CODES_STEP = 32
GEMM, GROUPED, ELEMENTWISE, CODES, ALONG_K, MASKED = OPERATIONS
#: Operations with a matrix of B for each group of rows.
OF_ROWS = (GROUPED, MASKED)
PLAIN = Form()
#: Kinds of an epilogue's operands: a second matrix B, the output itself, and a row or a number for
#: each group of a grouped GEMM.
LIKE_B, OUT = "like B", "D"
ROW_OF_GROUP, NUMBER_OF_GROUP = "row of group", "number of group"


@dataclass(frozen=True)
class Scales:
    """Scales of blocks of A or B."""

    #: The rows of A or columns of B of a block.
    extent: int
    #: Along K; -1 is all of K.
    depth: int
    dtype: str
    swizzled: bool = False
    #: The dtype of zero points; none if empty.
    zeros: str = ""

    def block(self, factor: str) -> tuple[int, int]:
        """The extents in the order of the dimensions of "a" or "b"."""
        return (self.extent, self.depth) if factor == "a" else (self.depth, self.extent)


@dataclass(frozen=True)
class Codes:
    """B as a weight of 4 bits, or as a stack of weights."""

    #: A name of `support.weights.PACKED`.
    format: str
    #: Of scales along K; -1 is all of K.
    depth: int
    #: The dtype of scales.
    dtype: str
    #: The dtype of zero points; none if empty.
    zeros: str = ""
    #: Whether each row has a factor, and not the matrix.
    factor_of_rows: bool = False
    #: Whether the columns have another order than in memory (act-order).
    is_permuted: bool = False


@dataclass(frozen=True)
class Operand:
    """A parameter of the epilogue function."""

    #: A kind of `epilogues.shape_of`, or one of those above.
    kind: str
    dtype: str = ""
    form: Form = PLAIN


@dataclass(frozen=True)
class Result:
    """A further output of the epilogue function."""

    dtype: str
    form: Form = PLAIN
    #: "sum" or "max" along these dimensions; the value itself if empty.
    fold: str = ""
    dims: tuple[int, ...] = ()
    kept: bool = False


@dataclass(frozen=True)
class Stage:
    """A step of the epilogue: an expression of the value before it, x, and of an operand, c."""

    expression: str
    operand: Operand | None = None
    #: Outputs that store the value behind this stage.
    results: tuple[Result, ...] = ()


@dataclass(frozen=True)
class Case:
    """A problem, its operands' places in memory, and the choice of a kernel."""

    #: Of the operands' values.
    seed: int
    operation: str
    #: Of A, B, the accumulator and out.
    types: tuple[str, str, str, str]
    m: int
    n: int
    k: int = 0
    #: The matrices of a batch; None: rank 2.
    batch: int | None = None
    #: The end of each group: a row, or an index of K. Of masked groups, the counts of rows.
    ends: tuple[int, ...] = ()
    #: Whether A and out of a grouped GEMM have rank 3.
    leading_one: bool = False
    #: Whether an index names the rows of A, which lie in another order.
    by_index: bool = False
    a: Form = PLAIN
    b: Form = PLAIN
    out: Form = PLAIN
    a_scales: Scales | None = None
    b_scales: Scales | None = None
    codes: Codes | None = None
    #: Whether scales belong to `ScaledTensor`s, and not to a call of `scale_blocks`.
    scaled_tensors: bool = False
    stages: tuple[Stage, ...] = ()
    #: torch's "high" precision of float32 products.
    tf32: bool = False
    fast_sums: bool = False
    #: Chooses a kernel if `kernel` is empty.
    choice: int = 0
    kernel: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the output, without the leading dimension of a grouped GEMM."""
        matrices = len(self.ends) if self.operation in (ALONG_K, MASKED) else self.batch
        return (*(() if matrices is None else (matrices,)), self.m, self.n)

    @property
    def divided(self) -> int:
        """The extent that groups divide."""
        return self.k if self.operation == ALONG_K else self.m

    @property
    def k_step(self) -> int:
        """What K is a multiple of."""
        return 1 if self.codes is None else CODES_STEP

    @property
    def scales(self) -> dict[str, Scales]:
        """The scales of "a" and "b"."""
        both = {"a": self.a_scales, "b": self.b_scales}
        return {factor: scales for factor, scales in both.items() if scales is not None}

    def to_json(self) -> str:
        return json.dumps(_encode(self))

    @staticmethod
    def from_json(text: str) -> "Case":
        return _decode(Case, json.loads(text))


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        items = ((entry, getattr(value, entry.name)) for entry in fields(value))
        return {entry.name: _encode(item) for entry, item in items if item != _default(entry)}
    return [_encode(item) for item in value] if isinstance(value, tuple) else value


def _default(entry: field) -> Any:
    return MISSING if entry.default is MISSING else entry.default


def _decode(kind: Any, value: Any) -> Any:
    """The value of this type: dataclasses from dictionaries, tuples from lists."""
    if isinstance(value, dict):
        (cls,) = (each for each in (kind, *get_args(kind)) if is_dataclass(each))
        hints = get_type_hints(cls)
        return cls(**{name: _decode(hints[name], item) for name, item in value.items()})
    if isinstance(value, list):
        return tuple(_decode(get_args(kind)[0], item) for item in value)
    return value
