"""Random GEMMs, and kernels to try on them."""

import cutlass_api
import torch
from cutlass_api.arguments import GemmArguments
from cutlass_api.metadata import GemmOperandsMetadata

from support import memory
from support.helpers import FLOAT8, INTEGERS
from support.memory import Form, Output, generator_for, random_operand
from support.problems import Problem, check
from support.properties import Types, by_family_and_types, family_of, rounds_to_tf32

#: All kernels for an H100, by family and types.
GROUPS = by_family_and_types(GemmOperandsMetadata)
ALL_TYPES = list(dict.fromkeys(types for _, types in GROUPS))
#: Types with code paths of their own in the kernels; they run every layout with every shape.
THOROUGH = [
    types
    for types in ALL_TYPES
    if types
    in {
        Types(torch.float16, torch.float16, torch.float32, torch.float16),
        Types(torch.float16, torch.float16, torch.float16, torch.float16),
        Types(torch.bfloat16, torch.bfloat16, torch.float32, torch.bfloat16),
        Types(torch.bfloat16, torch.bfloat16, torch.float32, torch.float32),
        Types(torch.float32, torch.float32, torch.float32, torch.float32),
        Types(torch.float64, torch.float64, torch.float64, torch.float64),
        Types(torch.float8_e4m3fn, torch.float8_e5m2, torch.float32, torch.bfloat16),
        Types(torch.int8, torch.int8, torch.int32, torch.int32),
        Types(torch.int8, torch.uint8, torch.int32, torch.float32),
        Types(torch.int8, torch.float16, torch.float32, torch.float16),
    }
]


def make_problem(types: Types, shape, a_form: Form, b_form: Form, tf32: bool = False) -> Problem:
    """Random inputs for `shape`, which is (M, N, K) or (L, M, N, K)."""
    *batch, m, n, k = shape
    generator = generator_for(types, shape, a_form, b_form)
    # Sums of 8-bit integers can exceed float16's range, and sums of any type that of float8. Sums
    # of small values stay within both for these K.
    has_integers = types.a in INTEGERS or types.b in INTEGERS
    small = (has_integers and types.out == torch.float16) or types.out in FLOAT8
    a = random_operand((*batch, m, k), types.a, a_form, generator, small)
    b = random_operand((*batch, k, n), types.b, b_form, generator, small)
    return Problem(types, a, b, tf32)


#: (M, N, K) and (L, M, N, K): ones, twos, primes, K = 0, K = 1, long and thin, more than a tile
#: with a remainder.
SHAPES = [
    (1, 1, 1),
    (1, 2, 3),
    (2, 1, 17),
    (5, 7, 0),
    (31, 29, 1),
    (1, 257, 64),
    (263, 1, 40),
    (67, 131, 61),
    (129, 65, 33),
    (192, 320, 256),
    (387, 259, 131),
    (1, 33, 20, 17),
    (2, 3, 5, 0),
    (3, 7, 11, 2),
    (5, 130, 67, 24),
]


def in_all_forms(layout: str, batched: bool) -> dict[str, tuple[Form, Form, Form]]:
    """Memory layouts of an operand."""
    a, b, out = layout
    tight = (Form(a), Form(b), Form(out))
    forms = {
        "tight": tight,
        "rows of 16 bytes": (Form(a, multiple=16), Form(b, multiple=16), Form(out, multiple=16)),
        "rows of an odd number": (
            Form(a, multiple=2, pad=1),
            Form(b, multiple=2, pad=1),
            Form(out, multiple=2, pad=1),
        ),
        "offset by one": (Form(a, offset=1), Form(b, offset=1), Form(out, offset=1)),
        "A offset by one": (Form(a, multiple=16, offset=1), Form(b, multiple=16), Form(out)),
        "no unit stride in A": (Form(a, step=2), Form(b), Form(out)),
        "no unit stride in B": (Form(a), Form(b, step=3), Form(out)),
        "no unit stride in out": (
            Form(a, multiple=16),
            Form(b, multiple=16),
            Form(out, step=2, pad=5),
        ),
        "rows of A alike": (Form(a, broadcast=(-2,)), Form(b), Form(out)),
        "columns of A alike": (Form(a, broadcast=(-1,)), Form(b), Form(out)),
        "rows of B alike": (Form(a), Form(b, broadcast=(-2,)), Form(out)),
        "columns of B alike": (Form(a, multiple=16), Form(b, broadcast=(-1,)), Form(out)),
        "A one number": (Form(a, broadcast=(-1, -2)), Form(b, multiple=16), Form(out)),
    }
    if batched:
        forms |= {
            "one A": (Form(a, batches="same"), Form(b), Form(out)),
            "one B": (Form(a, multiple=16), Form(b, multiple=16, batches="same"), Form(out)),
            "overlapping A": (Form(a, batches="overlapping"), Form(b), Form(out)),
            "overlapping, aligned": (
                Form(a, multiple=16, batches="overlapping"),
                Form(b, multiple=16, batches="overlapping"),
                Form(out, pad=1),
            ),
        }
    return forms


def sample(kernels: list[cutlass_api.Kernel]) -> list[cutlass_api.Kernel]:
    """The first, the last, and the first of each family."""
    chosen = [kernels[0], kernels[-1]]
    for kernel in kernels:
        if family_of(kernel) not in {family_of(other) for other in chosen}:
            chosen.append(kernel)
    return list(dict.fromkeys(chosen))


def try_all(
    types: Types, shape, forms, layout: str, artifacts, tf32: bool, share: slice = slice(None)
) -> list[str]:
    """A sample of the kernels that `get_kernels` returns for a problem, or a share of it. The
    sample must not be empty.
    """
    failures = []
    for name, (a_form, b_form, out_form) in forms.items():
        problem = make_problem(types, shape, a_form, b_form)
        tf32_problem = Problem(types, problem.a, problem.b, tf32=True)
        out = Output(problem.shape, types.out, out_form)
        args = GemmArguments(problem.a, problem.b, out.tensor, accumulator_type=types.accumulator)
        kernels = cutlass_api.get_kernels(args)
        what = f"{shape} {layout} {name}"
        if not kernels:
            failures.append(f"{types}, {what}: no kernel")
            continue
        chosen = sample(kernels)
        chosen = chosen[share] or chosen
        for kernel, artifact in zip(chosen, artifacts.of(chosen), strict=True):
            if isinstance(artifact, Exception):
                continue  # `test_every_kernel` reports it
            rounded = tf32 and rounds_to_tf32(kernel)
            failure = check(kernel, artifact, tf32_problem if rounded else problem, out_form, what)
            if failure:
                failures.append(failure)
    return failures


def check_infinities(dtype: torch.dtype) -> None:
    """A NaN in A affects only its own row: values beyond a tile's edge are not multiplied in."""
    m, n, k = 65, 67, 45
    a = torch.ones(m, k, dtype=dtype, device=memory.DEVICE)
    b = torch.ones(k, n, dtype=dtype, device=memory.DEVICE)
    a[3, 44], b[0, 66] = float("nan"), float("inf")
    expected = torch.full((m, n), float(k), device=memory.DEVICE)
    expected[:, 66], expected[3, :] = float("inf"), float("nan")
    out = torch.full((m, n), -1.0, dtype=dtype, device=memory.DEVICE)
    for kernel in sample(
        cutlass_api.get_kernels(args := GemmArguments(a, b, out, accumulator_type=torch.float32))
    ):
        out.fill_(-1)
        kernel.run(args)
        torch.testing.assert_close(out.float(), expected, rtol=0, atol=0, equal_nan=True)


def check_nothing(shape) -> None:
    """An output without elements, or sums of no products."""
    *batch, m, n, k = shape
    a = torch.zeros(*batch, m, k, dtype=torch.float16, device=memory.DEVICE)
    b = torch.zeros(*batch, k, n, dtype=torch.float16, device=memory.DEVICE)
    out = torch.zeros(*batch, m, n, dtype=torch.float16, device=memory.DEVICE)
    args = GemmArguments(a, b, out, accumulator_type=torch.float32)
    for kernel in sample(cutlass_api.get_kernels(args)):
        kernel.run(args)
    memory.synchronize()
