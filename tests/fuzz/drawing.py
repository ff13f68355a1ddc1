"""Draws cases from seeds. Some seeds in a row have the same types, layouts, scales and epilogue, so
that their cases mostly share a compiled program.
"""

import random
from dataclasses import dataclass, replace
from functools import cache

import cutlass_api
from support.epilogues import COLUMN, FULL, KEPT_ROW, NUMBER, ONE, ROW, ROW1
from support.helpers import DTYPES, SELDOM_STORED
from support.memory import Form
from support.properties import multiplies_codes
from support.weights import PACKED

from .cases import (
    ALONG_K,
    CODES,
    ELEMENTWISE,
    GEMM,
    GROUPED,
    LIKE_B,
    MASKED,
    NUMBER_OF_GROUP,
    OF_ROWS,
    OUT,
    ROW_OF_GROUP,
    Case,
    Codes,
    Operand,
    Result,
    Scales,
    Stage,
)
from .stages import EXPRESSIONS, OF_TWO, PRODUCT
from .workers import OPERATIONS, SEEDS_OF_A_PROGRAM

#: Operations that have groups.
GROUPS = (*OF_ROWS, ALONG_K)

FLOATS = ("float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "float8_e5m2")
FLOAT8, HALVES, INTEGER8 = FLOATS[4:], FLOATS[1:3], ("int8", "uint8")
#: The values of an epilogue whose accumulator is an integer stay integers beside integers.
STORED_INTEGERS = ("int32", "int8", "float32", "float16")

SELDOM = [tuple(str(dtype).removeprefix("torch.") for dtype in types) for types in SELDOM_STORED]

Types = tuple[str, str, str, str]


@dataclass(frozen=True)
class Limits:
    """The size of cases: multiplications, and elements of an operand."""

    products: int
    elements: int
    #: Whether offsets of groups may be out of order or out of range: GPU kernels clamp them, the
    #: reference refuses them.
    any_offsets: bool = True


def draw(seed: int, limits: Limits, only: str = "") -> Case:
    """The case of a seed. ``only``: its operation; any if empty."""
    program = random.Random(f"program {seed // SEEDS_OF_A_PROGRAM}")
    chance = random.Random(f"case {seed}")
    operation = program.choices(OPERATIONS, [15, 4, 1, 3, 3, 3])[0]
    operation = only or operation
    is_stack = operation in OF_ROWS and program.random() < 0.3
    codes = _codes(program, is_stack) if is_stack or operation == CODES else None
    types = _types(program, operation) if codes is None else _types_of(program, codes)
    # The layout that most kernels serve, or any.
    likely = 0.4 if codes is None else 0.8
    orders = "tnt" if program.random() < likely else program.choices("tn", k=3)
    is_aligned = program.random() < (0.65 if codes is None else 0.85)
    is_batch = operation in (GEMM, ELEMENTWISE) and program.random() < 0.35
    a_scales, b_scales = _scales(program, operation, types) if codes is None else (None, None)
    case = Case(
        seed=chance.getrandbits(31),
        operation=operation,
        types=types,
        m=_rows(chance) if operation == CODES else _extent(chance, is_aligned),
        n=_extent(chance, is_aligned),
        k=0 if operation == ELEMENTWISE else _depth(chance, is_aligned),
        batch=chance.choice([0, 1, 1, 2, 2, 3, 4, 5]) if is_batch else None,
        ends=(0,) * chance.choice([0, 1, 2, 3, 5, 8, 40, 70]) if operation in GROUPS else (),
        leading_one=operation == GROUPED and chance.random() < 0.2,
        by_index=operation == GROUPED and codes is None and program.random() < 0.3,
        a_scales=a_scales,
        b_scales=b_scales,
        codes=codes,
        stages=_stages(program, operation, types, is_batch, bool(a_scales or b_scales or codes)),
        tf32=types[0] == "float32" and program.random() < 0.6,
        fast_sums=types[0] in FLOAT8 and program.random() < 0.4,
        choice=program.getrandbits(31),
    )
    is_plain = not any(scales.zeros or scales.depth == -1 for scales in case.scales.values())
    scaled_tensors = bool(case.scales) and is_plain and program.random() < 0.3
    case = replace(_within(case, limits), scaled_tensors=scaled_tensors)
    if 0 in case.shape:
        case = replace(case, stages=tuple(map(_without_maxima, case.stages)))
    a, b = (_factor_form(chance, order, is_aligned, case) for order in orders[:2])
    return replace(
        case, ends=_ends(chance, case, limits), a=a, b=b, out=_form(chance, is_aligned, orders[2])
    )


def _types(chance: random.Random, operation: str) -> Types:
    """Mostly 16-bit types, and rarely outputs that only `simt` and the reference store."""
    by_a = types_of(operation)
    weights = [3 if name in HALVES else 1 for name in by_a]
    (found,) = chance.choices(list(by_a.values()), weights)
    (types,) = chance.choices(found, [1 if each in SELDOM else 4 for each in found])
    return types


@cache
def types_of(operation: str) -> dict[str, list[Types]]:
    """The types of the kernels of tensors for an operation, by the type of A: those of the
    reference, which has a kernel for all types of the others.
    """
    found: dict[str, list[Types]] = {}
    for kernel in cutlass_api.get_kernels(providers=["reference"]):
        is_of_tensors = not multiplies_codes(kernel)
        # Masked groups have the kernels of groups along M.
        of = GROUPED if operation == MASKED else operation
        if is_of_tensors and kernel.metadata.kernel_name.startswith(f"reference_{of}_"):
            operands = kernel.metadata.operands
            accumulator = getattr(operands, "accumulator_type", operands.out.dtype)
            dtypes = (operands.A.dtype, operands.B.dtype, accumulator, operands.out.dtype)
            found.setdefault(operands.A.dtype.name, []).append(tuple(x.name for x in dtypes))
    return found


def _types_of(chance: random.Random, codes: Codes) -> Types:
    """Those of a product by a weight. Only `simt` and the reference store float32."""
    served = PACKED[codes.format].dtypes
    wide = chance.choice([name for name in HALVES if DTYPES[name] in served])
    return (wide, wide, "float32", "float32" if chance.random() < 0.1 else wide)


def _codes(chance: random.Random, is_stack: bool) -> Codes:
    # Those of various groups and scales twice.
    names = [name for name, kind in PACKED.items() for _ in range(1 if kind.depth else 2)]
    format = chance.choice(names)
    kind = PACKED[format]
    is_permuted = chance.random() < 0.05 and not is_stack
    if kind.depth:
        of_rows = kind.has_factor and chance.random() < 0.4
        scales = str(kind.scales).removeprefix("torch.")
        return Codes(format, kind.depth, scales, "", of_rows, is_permuted)
    zeros = chance.choice(["uint8", "uint8", "float32", *HALVES]) if kind.has_zeros else ""
    dtype = chance.choice(["bfloat16", "bfloat16", "float16", "float32"])
    return Codes(format, chance.choice([32, 64, 128, 128, -1]), dtype, zeros, False, is_permuted)


# ---- extents -------------------------------------------------------------------------------------


def _extent(chance: random.Random, is_aligned: bool) -> int:
    """Mostly small, or near the boundary of a tile."""
    part = chance.random()
    if part < 0.1:
        return int(part > 0.03)
    if part < 0.4:
        extent = chance.randint(2, 40)
    elif part < 0.7:
        tile = chance.choice([16, 32, 64, 128, 256])
        extent = tile * chance.randint(1, 3) + chance.choice([-1, 0, 1])
    else:
        extent = chance.randint(40, chance.choice([300, 300, 2000]))
    return -(-extent // 16) * 16 if is_aligned and chance.random() < 0.7 else extent


def _rows(chance: random.Random) -> int:
    """The rows of a product by a weight, mostly few."""
    return chance.choices(
        [0, 1, chance.randint(2, 16), chance.randint(17, 64), chance.randint(65, 400)],
        [3, 17, 35, 30, 15],
    )[0]


def _depth(chance: random.Random, is_aligned: bool) -> int:
    """K, sometimes large."""
    if chance.random() < 0.85:
        return _extent(chance, is_aligned)
    return chance.randint(1000, 20_000) // 16 * (16 if is_aligned else 1)


def _within(case: Case, limits: Limits) -> Case:
    """The case with extents halved until it is within the limits. A large K stays large. K of a
    weight is a multiple of 32.
    """
    if (step := case.k_step) > 1:
        case = replace(case, k=max(case.k // step, 1) * step)
    several, matrices = max(len(case.ends), case.batch or 1), case.batch or 1
    if case.operation in (ALONG_K, MASKED):
        matrices = several
    is_deep = case.k > 1000
    while True:
        m, n, k = case.m, case.n, case.k
        elements = max(matrices * m * max(k, n), several * k * n)
        if matrices * m * n * max(k, 1) <= limits.products and elements <= limits.elements:
            return case
        sizes = {"m": m, "n": n, "k": k / 64 if is_deep else k}
        if k == step > 1:
            del sizes["k"]
        name = max(sizes, key=sizes.__getitem__)
        unit = step if name == "k" else 1
        case = replace(case, **{name: getattr(case, name) // unit // 2 * unit})


def _ends(chance: random.Random, case: Case, limits: Limits) -> tuple[int, ...]:
    """The end of each group, or its count of rows: often none or all."""
    if case.operation == MASKED:
        ends = [chance.choice([0, case.m, chance.randint(0, case.m)]) for _ in case.ends]
    else:
        ends = sorted(chance.randint(0, case.divided) for _ in case.ends)
    if ends and limits.any_offsets and chance.random() < 0.1:
        wild = [-5, case.divided + 999, 2**31 - 1, -(2**31)]
        ends[chance.randrange(len(ends))] = chance.choice(wild)
    return tuple(ends)


# ---- places in memory ----------------------------------------------------------------------------


def _form(chance: random.Random, is_aligned: bool, order: str = "t") -> Form:
    """Rows and addresses at multiples of 16 elements, or anywhere."""
    if is_aligned:
        return Form(
            order,
            multiple=chance.choice([16, 16, 128]),
            pad=chance.choice([0, 0, 16, 48]),
            offset=chance.choice([0, 0, 16, 48]),
        )
    return Form(
        order,
        multiple=chance.choice([1, 1, 2, 8, 16]),
        pad=chance.choice([0, 0, 0, 1, 3, 8]),
        offset=chance.choice([0, 0, 1, 2, 3, 8]),
        step=chance.choice([1] * 9 + [2]),
    )


def _any_form(chance: random.Random) -> Form:
    return _form(chance, chance.random() < 0.5, chance.choice("tn"))


def _factor_form(chance: random.Random, order: str, is_aligned: bool, case: Case) -> Form:
    """The form of A or B, which may hold an element several times."""
    form = _form(chance, is_aligned, order)
    # Rounding errors of long sums of equal terms do not average out.
    if not is_aligned and case.k <= 200 and chance.random() < 0.08:
        form = replace(form, broadcast=chance.choice([(-1,), (-2,), (-1, -2)]))
    if case.batch is not None and chance.random() < 0.2:
        form = replace(form, batches=chance.choice(["same", "overlapping"]))
    return form


# ---- scales and epilogues ------------------------------------------------------------------------


def _scales(
    chance: random.Random, operation: str, types: Types
) -> tuple[Scales | None, Scales | None]:
    """Scales of A and B that vary along K, mostly of 8-bit operands."""
    is_narrow = [name in (*FLOAT8, *INTEGER8) for name in types[:2]]
    likely = 0.35 if any(is_narrow) else 0.05
    if (
        operation in (ELEMENTWISE, CODES, ALONG_K)
        or types[2] != "float32"
        or chance.random() > likely
    ):
        return None, None
    depth = chance.choice([7, 16, 32, 48, 64, 128, 128, 128, 256, -1])
    dtype = chance.choice(["float32", "float32", "float16", "bfloat16", "float8_e8m0fnu"])
    is_swizzled = dtype == "float8_e8m0fnu" and chance.random() < 0.5
    # Of both if both have the same width, else of the operand of 8 bits.
    scaled = [not any(is_narrow) or narrow for narrow in is_narrow]
    if all(scaled) and chance.random() < 0.2:
        scaled[chance.randrange(2)] = False

    def of(name: str) -> Scales:
        zeros = ""
        if name in INTEGER8 and not is_swizzled and chance.random() < 0.6:
            zeros = chance.choice([*INTEGER8, "int32", "float32", *HALVES])
        return Scales(chance.choice([1, 1, 1, 3, 64, 128]), depth, dtype, is_swizzled, zeros)

    a, b = (of(name) if yes else None for name, yes in zip(types[:2], scaled, strict=True))
    return a, b


def _stages(
    chance: random.Random, operation: str, types: Types, is_batch: bool, is_scaled: bool
) -> tuple[Stage, ...]:
    count = chance.choice([0, 0, 0, 1, 1, 2, 3, 4])
    # GPU kernels serve second products of 16-bit types.
    dual = 0.12 if types[0] in HALVES else 0.02
    is_dual = operation in (GEMM, *OF_ROWS) and not is_scaled and chance.random() < dual
    dims = [(-1,), (-2,), (-2, -1), *([(0, -1), (0, 1, 2)] if is_batch else [])]
    folds = dims if operation in (GEMM, CODES) and not is_dual else []
    stages = [_stage(chance, types, folds, operation in OF_ROWS) for _ in range(count)]
    if is_dual:
        stages.insert(chance.randint(0, count), Stage(PRODUCT, Operand(LIKE_B)))
    return tuple(stages)


def _stage(
    chance: random.Random, types: Types, folds: list[tuple[int, ...]], has_groups: bool
) -> Stage:
    """`folds`: the dimensions along which a result can be reduced."""
    is_integer = types[2] == "int32"
    expression, operand, results = chance.choice(EXPRESSIONS), None, []
    if expression in OF_TWO:
        of_groups = [ROW_OF_GROUP, ROW_OF_GROUP, NUMBER_OF_GROUP] if has_groups else []
        kinds = [FULL, FULL, ROW, ROW1, KEPT_ROW, COLUMN, ONE, NUMBER, OUT, *of_groups]
        kind = chance.choice(kinds)
        dtypes = STORED_INTEGERS[:2] if is_integer and chance.random() < 0.5 else (*FLOATS, "int8")
        operand = Operand(kind)
        if kind not in (NUMBER, OUT):
            operand = Operand(kind, chance.choice(dtypes), _any_form(chance))
    if chance.random() < 0.15:
        dtypes = STORED_INTEGERS if is_integer else (*FLOATS, "int32")
        results.append(Result(chance.choice(dtypes), _any_form(chance)))
    if folds and chance.random() < 0.15:
        dtype, fold = chance.choice(["float32", "float64"]), chance.choice(["sum", "max"])
        is_kept = chance.random() < 0.5
        results.append(Result(dtype, _form(chance, False), fold, chance.choice(folds), is_kept))
    return Stage(expression, operand, tuple(results))


def _without_maxima(stage: Stage) -> Stage:
    """The stage with sums in place of maxima, which no elements have."""
    folds = [replace(result, fold=result.fold and "sum") for result in stage.results]
    return replace(stage, results=tuple(folds))
